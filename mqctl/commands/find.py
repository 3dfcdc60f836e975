"""mqctl find: find the records with a key (FindRecords, an API of mqd)."""

from __future__ import annotations

import base64
import binascii
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from mqctl import places
from mqctl.app import (
    ReaderGone,
    Settings,
    connection_options,
    print_message,
    run,
    settings_of,
)
from mqctl.commands.consume import OUTPUTS, Printer, printer_for
from mqctl.quantities import format_bytes

if TYPE_CHECKING:
    from mqd.client.cluster import ClusterClient
    from mqd.client.finding import Finding, FoundRecord


@click.command()
@click.argument("topic")
@click.option("-k", "--key", metavar="KEY", help="The key, as text.")
@click.option("--key-base64", metavar="KEY", help="The key in base64, if it is not text.")
@click.option(
    "--since", metavar="TIME", help=f"Only records from this time on. {places.TIME_FORMS}"
)
@click.option("--until", metavar="TIME", help="Only records before this time.")
@click.option("--last", is_flag=True, help="Only the last record.")
@click.option(
    "--as-of",
    metavar="TIME",
    help="The value of the key at this time: the last record at or before it, unless that is a "
    "tombstone.",
)
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="Search this partition. [default: the one of Kafka's default partitioner]",
)
@click.option("--all-partitions", is_flag=True, help="Search every partition.")
@click.option(
    "-n", "--count", type=click.IntRange(min=1), metavar="N", help="Stop after N records."
)
@click.option(
    "-f",
    "--format",
    "text_format",
    metavar="FORMAT",
    help=r"Format of a record, as of `mqctl consume`. [default: %v\n]",
)
@click.option("--read-committed", is_flag=True, help="Find only committed records.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(OUTPUTS),
    help="Output format: text (see --format), a table, or complete records. [default: table]",
)
@connection_options
def find(
    topic: str,
    key: str | None,
    key_base64: str | None,
    since: str | None,
    until: str | None,
    last: bool,
    as_of: str | None,
    partition: int | None,
    all_partitions: bool,
    count: int | None,
    text_format: str | None,
    read_committed: bool,
    output: str | None,
    bootstrap: str | None,
    timeout: float | None,
    command_config: str | None,
    profile: str | None,
) -> None:
    """Find the records of a topic with a key, the oldest first.

    The brokers search their logs: fast with mqd.key.index=true on the topic, else they read all of
    the partition. A tombstone is a record without a value.

    \b
    mqctl find orders --key 4711                        all records with this key
    mqctl find orders --key 4711 --last -o json         the last one
    mqctl find orders --key 4711 --as-of -1h            the value of an hour ago
    mqctl find orders --key 4711 --since -1d --all-partitions
    """
    settings = settings_of(
        bootstrap,
        output,
        timeout,
        command_config=command_config,
        profile=profile,
        default_output="table" if text_format is None else "text",
    )
    if text_format is not None and settings.output != "text":
        raise click.UsageError("--format requires -o text")
    if as_of is not None and (last or since is not None or until is not None):
        raise click.UsageError("--as-of excludes --last, --since and --until")
    if all_partitions and partition is not None:
        raise click.UsageError("specify --partition or --all-partitions")
    now_ms = int(time.time() * 1000)
    try:
        wanted = _key(key, key_base64)
        time_of = places.parse_time(as_of, now_ms) if as_of is not None else None
        options = {
            "since": places.parse_time(since, now_ms) if since is not None else None,
            "until": places.parse_time(until, now_ms) if until is not None else None,
            "last": last,
            "partition": partition,
            "partitions": "all" if all_partitions else None,
            "read_committed": read_committed,
            "timeout_s": settings.timeout_s,
        }
        if time_of is not None:
            options |= {"until": time_of + 1, "last": True}
        printer = printer_for(settings.output, text_format)
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    async def work(client: ClusterClient) -> None:
        from mqd.client.finding import find as find_records

        finding = find_records(client, topic, wanted, **options)  # type: ignore[arg-type]
        found = await _print(finding, printer, count, without_tombstone=time_of is not None)
        if not found:
            print_message(_nothing(topic, as_of))
        _explain(finding, settings)

    try:
        run(settings, work)
    finally:
        with suppress(ReaderGone):
            printer.end()


def _key(text: str | None, encoded: str | None) -> bytes:
    """ValueError."""
    if (text is None) == (encoded is None):
        raise ValueError("specify --key or --key-base64")
    if text is not None:
        return text.encode(errors="surrogateescape")
    try:
        return base64.b64decode(encoded or "", validate=True)
    except binascii.Error as error:
        raise ValueError(f"--key-base64 is not base64: {error}") from None


async def _print(
    finding: Finding, printer: Printer, count: int | None, *, without_tombstone: bool
) -> int:
    """Returns the number of records."""
    from mqd.protocol.record_reader import Record

    written = 0
    found: FoundRecord
    async for found in finding:
        if without_tombstone and found.value is None:
            continue
        record = Record(found.offset, found.timestamp, found.key, found.value, found.headers)
        printer.write(found.topic, found.partition, [record])
        written += 1
        if written == count:
            break
    printer.begin()
    return written


def _nothing(topic: str, as_of: str | None) -> str:
    if as_of is not None:
        return f"The key has no value in topic '{topic}' at {as_of}."
    return f"Topic '{topic}' has no record with this key in that range."


def _explain(finding: Finding, settings: Settings) -> None:
    """Say how much was read, if a filter would have saved it."""
    if finding.segments_unindexed:
        print_message(
            f"Read {format_bytes(finding.scanned_bytes)}: {finding.segments_unindexed} segments "
            "have no key filter. Set mqd.key.index=true on the topic to read less."
        )
