"""mqctl dlq: show, redrive and purge dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from mqctl import render
from mqctl.app import Failure, LazyGroup, Settings, confirm, options, print_message, run
from mqctl.committed import committed_records, described, headers_of, text_of
from mqctl.outcomes import finish
from mqd.delay_names import (
    DLQ_COUNT,
    DLQ_MESSAGE,
    DLQ_OFFSET,
    DLQ_PARTITION,
    DLQ_PREFIX,
    DLQ_TARGET,
    DLQ_TOPIC,
    RELAY_HEADERS,
)

if TYPE_CHECKING:
    from mqd.client.cluster import ClusterClient
    from mqd.client.transactional import TransactionalProducer
    from mqd.protocol.record_reader import Record
    from mqd.types import TopicPartition

COMMANDS = {
    "list": ("mqctl.commands.dlq:list_", "List dead letters."),
    "show": ("mqctl.commands.dlq:show", "Show one dead letter with its headers."),
    "redrive": ("mqctl.commands.dlq:redrive", "Write dead letters to their original topic again."),
    "purge": ("mqctl.commands.dlq:purge", "Delete all dead letters."),
}
LETTERS = (
    render.Column("partition", "PARTITION", right=True),
    render.Column("offset", "OFFSET", right=True),
    render.Column("from", "FROM"),
    render.Column("attempts", "ATTEMPTS", right=True),
    render.Column("key", "KEY"),
    render.Column("cause", "CAUSE"),
)
_REDRIVEN_AT_ONCE = 500


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def dlq() -> None:
    """Show, redrive and purge dead letters."""


def _row(place: TopicPartition, record: Record) -> dict[str, Any]:
    headers = headers_of(record)
    origin = "-".join(headers[name] for name in (DLQ_TOPIC, DLQ_PARTITION) if name in headers)
    offset = headers.get(DLQ_OFFSET)
    return {
        "partition": place.partition,
        "offset": record.offset,
        "from": f"{origin}@{offset}" if offset else origin,
        "attempts": headers.get(DLQ_COUNT),
        "key": text_of(record.key),
        "cause": headers.get(DLQ_MESSAGE),
    }


@click.command("list")
@click.argument("topic")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    metavar="N",
    help="Show at most N records. [default: 100]",
)
@options
def list_(settings: Settings, topic: str, limit: int) -> None:
    """List the records of a dead-letter topic.

    \b
    mqctl dlq list orders.dlq -n 10
    """

    async def work(client: ClusterClient) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        records = committed_records(client, topic, {}, settings.timeout_s)
        async with aclosing(records):  # type: ignore[type-var]
            async for place, record in records:
                rows.append(_row(place, record))
                if len(rows) == limit:
                    break
        return rows

    rows = run(settings, work)
    if not rows:
        print_message(f"Topic {topic!r} has no records.")
    settings.show_found(LETTERS, rows)


@click.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
@options
def show(settings: Settings, topic: str, partition: int, offset: int) -> None:
    """Show one dead letter with its headers.

    \b
    mqctl dlq show orders.dlq 0 17
    """

    async def work(client: ClusterClient) -> dict[str, Any]:
        from mqd.types import TopicPartition

        wanted = TopicPartition(topic, partition)
        records = committed_records(client, topic, {wanted: offset}, settings.timeout_s)
        async with aclosing(records):  # type: ignore[type-var]
            async for place, record in records:
                if (place, record.offset) == (wanted, offset):
                    return {
                        **_row(place, record),
                        "timestamp": record.timestamp,
                        "value": text_of(record.value),
                        "headers": headers_of(record),
                    }
        raise Failure(f"{wanted} has no committed record at offset {offset}")

    settings.show_data(run(settings, work))


@click.command()
@click.argument("topic")
@click.option("--to", metavar="TOPIC", help="Write there. [default: the original topic of each]")
@click.option(
    "--group",
    metavar="ID",
    help="The group whose offsets say what was redriven. [default: mqctl-redrive-TOPIC]",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@options
def redrive(settings: Settings, topic: str, to: str | None, group: str | None, yes: bool) -> None:
    """Write dead letters to their original topic again, each exactly once.

    Records and the offsets of a group are written in transactions, so a second run continues after
    the first. The dead letters stay: see `mqctl dlq purge`. Attempts begin again.

    \b
    mqctl dlq redrive orders.dlq
    """
    owner = group or f"mqctl-redrive-{topic}"
    confirm(f"Write the dead letters of {topic!r} to {to or 'their original topics'}.", yes=yes)

    async def work(client: ClusterClient) -> tuple[int, int]:
        from mqd.client.admin import Admin
        from mqd.client.errors import ClientError
        from mqd.client.transactional import open_transactional_producer

        async with open_transactional_producer(
            client, owner, timeout_s=settings.timeout_s
        ) as producer:
            admin = Admin(client, timeout_s=settings.timeout_s)
            found = (await admin.list_group_offsets([owner], stable=True))[owner]
            if isinstance(found, ClientError):
                raise found
            starts = {place: one.offset for place, one in found.items() if place.topic == topic}
            written = skipped = 0
            batch: list[tuple[TopicPartition, Record]] = []
            records = committed_records(client, topic, starts, settings.timeout_s)
            async with aclosing(records):  # type: ignore[type-var]
                async for one in records:
                    batch.append(one)
                    if len(batch) == _REDRIVEN_AT_ONCE:
                        count = await _redrive(producer, owner, batch, to)
                        written, skipped = written + count, skipped + len(batch) - count
                        batch = []
            if batch:
                count = await _redrive(producer, owner, batch, to)
                written, skipped = written + count, skipped + len(batch) - count
        return written, skipped

    written, skipped = run(settings, work)
    print_message(f"Wrote {written} records again.")
    if skipped:
        print_message(f"Skipped {skipped} records without an original topic: use --to.")


async def _redrive(
    producer: TransactionalProducer,
    owner: str,
    batch: Sequence[tuple[TopicPartition, Record]],
    to: str | None,
) -> int:
    """One transaction. Returns the number of records that were written."""
    from mqd.client.group_member import GroupMetadata

    written = 0
    async with producer.transaction():
        offsets = {}
        for place, record in batch:
            offsets[place] = record.offset + 1
            headers = headers_of(record)
            target = to or headers.get(DLQ_TARGET) or headers.get(DLQ_TOPIC)
            if not target:
                continue
            # The record begins again: no attempt, and no delay, was made before.
            kept = [
                header
                for header in record.headers
                if not header[0].startswith(DLQ_PREFIX) and header[0] not in RELAY_HEADERS
            ]
            await producer.enqueue(target, record.value, key=record.key, headers=kept)
            written += 1
        await producer.send_offsets(offsets, GroupMetadata(owner))
    return written


@click.command()
@click.argument("topic")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@options
def purge(settings: Settings, topic: str, yes: bool) -> None:
    """Delete all records of a dead-letter topic.

    \b
    mqctl dlq purge orders.dlq --yes
    """
    confirm(f"Delete all records of {topic!r}.", yes=yes)

    async def work(client: ClusterClient) -> dict[Any, Any]:
        from mqd.client.admin import Admin
        from mqd.types import TopicPartition

        partitions = (await described(client, topic, settings.timeout_s)).partitions
        places = [TopicPartition(topic, one.partition) for one in partitions]
        admin = Admin(client, timeout_s=settings.timeout_s)
        return dict(await admin.delete_records(dict.fromkeys(places, "end")))

    results = run(settings, work)
    finish(results)
    print_message(f"Deleted the records of {len(results)} partitions.")
