"""mqctl produce: send records from standard input or a file."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from mqctl import places, render
from mqctl.app import (
    FAILED,
    OK,
    PARTIAL,
    Failure,
    Settings,
    failure_of,
    options,
    parse_pairs,
    print_error,
    run,
)

if TYPE_CHECKING:
    from mqctl.records import Envelope
    from mqd.client.cluster import ClusterClient
    from mqd.client.delivery import Delivery
    from mqd.client.producer import Producer

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_READ_BYTES = 256 * 1024
_OUTSTANDING_MAX = 20_000
"""At most this many records wait for their acknowledgements; then input is not read."""
_ERRORS_SHOWN = 5

RESULTS = (
    render.Column("topic", "TOPIC"),
    render.Column("partition", "PARTITION", right=True),
    render.Column("records", "RECORDS", right=True),
    render.Column("first_offset", "FIRST", right=True),
    render.Column("last_offset", "LAST", right=True),
)

Parse = Callable[[bytes], "Envelope"]


@click.command()
@click.argument("topic")
@click.option(
    "-f",
    "--file",
    "path",
    default="-",
    metavar="FILE",
    help="Read this file instead of standard input.",
)
@click.option(
    "--input",
    "form",
    type=click.Choice(("lines", "jsonl", "whole")),
    default="lines",
    show_default=True,
    help="One record per line, JSON lines as written by consume -o jsonl, or the whole "
    "input as one record.",
)
@click.option(
    "-k",
    "--key-delimiter",
    metavar="TEXT",
    help=r"Separator of key and value in a line; escapes such as \t are permitted.",
)
@click.option("--key", metavar="KEY", help="The key of all records.")
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of all records; repeatable.",
)
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="The partition of all records. [default: by key; balanced without a key]",
)
@click.option(
    "-t",
    "--timestamp",
    metavar="TIME",
    help=f"Timestamp of all records. {places.TIME_FORMS} [default: now]",
)
@click.option(
    "-z",
    "--codec",
    type=click.Choice(CODECS),
    default="none",
    show_default=True,
    help="Compression.",
)
@click.option(
    "--acks",
    type=click.Choice(("0", "1", "all")),
    default="all",
    show_default=True,
    help="Replicas that must have a record before it is acknowledged.",
)
@click.option(
    "--null",
    "empty_is_null",
    is_flag=True,
    help="Send null for an empty value: a tombstone in a compacted topic.",
)
@options
def produce(
    settings: Settings,
    topic: str,
    path: str,
    form: str,
    key_delimiter: str | None,
    key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    timestamp: str | None,
    codec: str,
    acks: str,
    empty_is_null: bool,
) -> None:
    """Send records to TOPIC, one for each line, and print their partitions and offsets.

    \b
    echo hello | mqctl produce greetings
    mqctl produce orders -k : -f orders.txt -z zstd
    mqctl consume orders -e -o jsonl | mqctl produce copy --input jsonl
    """
    from mqctl.records import unescape

    if key is not None and key_delimiter is not None:
        raise click.UsageError("--key and --key-delimiter cannot be combined")
    if key_delimiter is not None and form != "lines":
        raise click.UsageError("--key-delimiter requires --input lines")
    try:
        delimiter = unescape(key_delimiter) if key_delimiter is not None else None
        moment = (
            places.parse_time(timestamp, int(time.time() * 1000)) if timestamp is not None else None
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if delimiter == b"":
        raise click.UsageError("--key-delimiter must not be empty")
    defaults = _Defaults(
        key=key.encode(errors="surrogateescape") if key is not None else None,
        headers=tuple(
            (name, value.encode(errors="surrogateescape"))
            for name, value in parse_pairs(headers).items()
        ),
        partition=partition,
        timestamp=moment,
        empty_is_null=empty_is_null,
    )
    parse = _parser(form, delimiter, defaults)
    acked: Any = int(acks) if acks != "all" else "all"

    async def work(client: ClusterClient) -> _Tally:
        from mqd.client.producer import open_producer
        from mqd.protocol.compression import Codec

        async with open_producer(
            client,
            acks=acked,
            codec=Codec[codec.upper()],
            delivery_timeout_s=settings.timeout_s,
            unknown_topic_grace_s=min(2.0, settings.timeout_s / 2),
        ) as producer:
            return await _pump(producer, topic, parse, path, form)

    tally = run(settings, work)
    settings.show(RESULTS, tally.rows(topic))
    raise SystemExit(tally.print_errors())


@dataclass(frozen=True, slots=True)
class _Defaults:
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    timestamp: int | None
    empty_is_null: bool


def _parser(form: str, delimiter: bytes | None, defaults: _Defaults) -> Parse:
    """A function that parses one piece of input into a record. It raises ValueError for invalid
    input.
    """
    from mqctl.records import Envelope, from_envelope

    def plain(piece: bytes) -> Envelope:
        key: bytes | None = defaults.key
        value: bytes | None = piece
        if delimiter is not None:
            before, found, after = piece.partition(delimiter)
            if found:
                key, value = before, after
        if not value and defaults.empty_is_null:
            value = None
        return Envelope(key, value, defaults.headers, defaults.timestamp, defaults.partition)

    def enveloped(piece: bytes) -> Envelope:
        parsed = from_envelope(piece)
        return Envelope(
            parsed.key if parsed.key is not None else defaults.key,
            parsed.value,
            parsed.headers + defaults.headers,
            defaults.timestamp if defaults.timestamp is not None else parsed.timestamp,
            defaults.partition,
        )

    return enveloped if form == "jsonl" else plain


@dataclass(slots=True)
class _Tally:
    """Counts the acknowledged records of each partition, and the failed ones."""

    placed: dict[int, list[int]] = field(default_factory=dict)
    """partition -> [records, first offset, last offset]"""
    errors: list[Failure] = field(default_factory=list)
    failed: int = 0

    def add(self, partition: int, offset: int) -> None:
        row = self.placed.setdefault(partition, [0, offset, offset])
        row[0] += 1
        row[1] = min(row[1], offset)
        row[2] = max(row[2], offset)

    def fail(self, failure: Failure) -> None:
        self.failed += 1
        if len(self.errors) < _ERRORS_SHOWN and all(
            each.message != failure.message for each in self.errors
        ):
            self.errors.append(failure)

    def rows(self, topic: str) -> list[dict[str, Any]]:
        return [
            {
                "topic": topic,
                "partition": partition,
                "records": count,
                "first_offset": first if first >= 0 else None,
                "last_offset": last if last >= 0 else None,
            }
            for partition, (count, first, last) in sorted(self.placed.items())
        ]

    def print_errors(self) -> int:
        """Print the errors; returns the exit code."""
        if not self.failed:
            return OK
        for error in self.errors:
            print_error(error)
        sent = sum(row[0] for row in self.placed.values())
        print_error(Failure(f"{self.failed} of {self.failed + sent} records were not sent"))
        return PARTIAL if sent else max((error.exit_code for error in self.errors), default=FAILED)


async def _pump(producer: Producer, topic: str, parse: Parse, path: str, form: str) -> _Tally:
    from mqd.client.errors import ClientError

    tally = _Tally()
    outstanding: deque[Delivery] = deque()

    async def count_result(delivery: Delivery) -> None:
        try:
            placed = await delivery.wait()
        except ClientError as error:
            tally.fail(failure_of(error))
        else:
            tally.add(placed.partition, placed.offset)

    number = 0
    async with aclosing(_pieces(path, form)) as chunks:
        async for pieces in chunks:
            for piece in pieces:
                number += 1
                try:
                    record = parse(piece)
                except ValueError as error:
                    tally.fail(Failure(f"line {number}: {error}"))
                    continue
                try:
                    delivery = await producer.enqueue(
                        topic,
                        record.value,
                        record.key,
                        record.headers,
                        record.timestamp,
                        record.partition,
                    )
                except ClientError as error:
                    if not tally.placed and not outstanding:
                        raise  # nothing was sent: the topic does not exist, or has no leader
                    tally.fail(failure_of(error))
                    continue
                outstanding.append(delivery)
                while outstanding and (
                    outstanding[0].is_done() or len(outstanding) > _OUTSTANDING_MAX
                ):
                    await count_result(outstanding.popleft())
    await producer.flush()
    for delivery in outstanding:
        await count_result(delivery)
    return tally


async def _pieces(path: str, form: str) -> AsyncGenerator[list[bytes], None]:
    """The input in pieces, as it arrives: each line of a terminal is sent when it is complete."""
    import trio

    try:
        descriptor = sys.stdin.fileno() if path == "-" else os.open(path, os.O_RDONLY)
    except OSError as error:
        raise Failure(f"cannot read {str(path)!r}: {error.strerror}") from None
    rest = bytearray()
    try:
        while True:
            data = await trio.to_thread.run_sync(
                os.read, descriptor, _READ_BYTES, abandon_on_cancel=True
            )
            if not data:
                break
            rest += data
            if form != "whole":
                end = rest.rfind(b"\n") + 1
                if end:
                    yield list(_lines(bytes(rest[:end])))
                    del rest[:end]
    except OSError as error:
        raise Failure(f"cannot read {str(path)!r}: {error.strerror}") from None
    finally:
        if path != "-":
            os.close(descriptor)
    if form == "whole" or rest:
        yield [bytes(rest)]


def _lines(data: bytes) -> Iterator[bytes]:
    for line in data[:-1].split(b"\n"):
        yield line.removesuffix(b"\r")
