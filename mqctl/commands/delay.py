"""mqctl delay: show and cancel the pending records of delay topics, and count the others."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from mqctl import render
from mqctl.app import Failure, LazyGroup, Settings, options, print_message, run
from mqctl.committed import (
    committed_records,
    configs_of,
    described,
    headers_of,
    log_ranges,
    text_of,
)
from mqctl.relay_progress import Committed, committed_of
from mqd.delay_names import TARGET_CONFIG

if TYPE_CHECKING:
    from mqd.client.cluster import ClusterClient
    from mqd.protocol.record_reader import Record
    from mqd.relay.delay_topic import DelayTopic
    from mqd.types import TopicPartition

COMMANDS = {
    "describe": ("mqctl.commands.delay:describe", "Count what became of the records."),
    "list": ("mqctl.commands.delay:list_", "List pending records, the first due first."),
    "cancel": ("mqctl.commands.delay:cancel", "Cancel the pending records of a key."),
}
COUNTS = (
    render.Column("partition", "PARTITION", right=True),
    render.Column("first_pending", "FIRST-PENDING", right=True),
    render.Column("relayed", "RELAYED", right=True),
    render.Column("cancelled", "CANCELLED", right=True),
    render.Column("expired", "EXPIRED", right=True),
    render.Column("failed", "FAILED", right=True),
    render.Column("overdue", "OVERDUE", right=True),
)
CHECKED_MAX = 100_000
"""Records that `describe` reads to find overdue ones."""
LATE_MS = 5_000
"""A record that is due for longer is overdue."""
PENDING = (
    render.Column("partition", "PARTITION", right=True),
    render.Column("offset", "OFFSET", right=True),
    render.Column("due_ms", "DUE-MS", right=True),
    render.Column("due", "DUE"),
    render.Column("key", "KEY"),
    render.Column("bytes", "BYTES", right=True),
    render.Column("schedule", "SCHEDULE"),
    render.Column("expires", "EXPIRES"),
)


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def delay() -> None:
    """Show and cancel the pending records of delay topics."""


@click.command()
@click.argument("topic")
@options
def describe(settings: Settings, topic: str) -> None:
    """Count the records of a delay topic that were relayed, cancelled, expired, or failed.

    FIRST-PENDING: no record below this offset is pending. FAILED: no attempts left, bad headers, or
    refused by the target. OVERDUE: due for 5 seconds, and still pending; the command reads at most
    100,000 records to find them. A partition without such records is not shown.

    A cancelled record is counted when it would have been due. Until then, FIRST-PENDING may be its
    offset.

    \b
    mqctl delay describe orders.delay
    """

    async def work(client: ClusterClient) -> list[dict[str, Any]]:
        from mqd.relay.delay_progress import Counts

        configured = await _delay_topic(client, topic, settings.timeout_s)
        committed = await committed_of(client, topic, settings.timeout_s)
        rows = {
            place.partition: {
                "partition": place.partition,
                "first_pending": one.start,
                **one.counts._asdict(),
                "overdue": 0,
            }
            for place, one in committed.items()
        }
        pending = await _pending(
            client, topic, configured, committed, settings.timeout_s, most=CHECKED_MAX
        )
        now_ms = time.time() * 1000
        for one in pending:
            if one["due_ms"] < now_ms - LATE_MS:
                number = one["partition"]
                none = {"partition": number, "first_pending": 0, **Counts()._asdict()}
                row = rows.setdefault(number, {**none, "overdue": 0})
                row["overdue"] += 1
        return [rows[number] for number in sorted(rows)]

    rows = run(settings, work)
    if not rows:
        print_message(f"No record of topic {topic!r} is counted yet.")
    overdue = sum(row["overdue"] for row in rows)
    if overdue:
        print_message(
            f"{overdue} records are overdue. The log of the broker that leads the partition has "
            "the cause: see its line 'relay is stuck', and `mqctl cluster health`."
        )
    settings.show_found(COUNTS, rows)


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
    """List the pending records of a delay topic, the first due first.

    Reads all records from the first pending one on. SCHEDULE: the mqd-cron of a record that is
    relayed at each of its times; DUE is the next one. EXPIRES: the record expires before it is due,
    so it will not be relayed.

    \b
    mqctl delay list orders.delay -n 10
    """

    async def work(client: ClusterClient) -> list[dict[str, Any]]:
        configured = await _delay_topic(client, topic, settings.timeout_s)
        committed = await committed_of(client, topic, settings.timeout_s)
        return await _pending(client, topic, configured, committed, settings.timeout_s)

    rows = sorted(run(settings, work), key=lambda row: (row["due_ms"], row["offset"]))
    if not rows:
        print_message(f"Topic {topic!r} has no pending records.")
    elif len(rows) > limit:
        print_message(f"{len(rows)} records are pending; the first {limit} are shown.")
    settings.show_found(PENDING, rows[:limit])


def warn_of_pending(settings: Settings, topic: str) -> None:
    """Print how many records are not relayed if the topic becomes an ordinary one."""

    async def work(client: ClusterClient) -> tuple[str, int]:
        from mqd.relay.delay_topic import DelayTopic

        configured = DelayTopic.of(await configs_of(client, topic, settings.timeout_s))
        if configured is None:
            return "", 0
        committed = await committed_of(client, topic, settings.timeout_s)
        pending = await _pending(
            client, topic, configured, committed, settings.timeout_s, most=CHECKED_MAX
        )
        return configured.target, len(pending)

    try:
        target, count = run(settings, work)
    except Failure as failure:
        print_message(f"warning: pending records were not counted: {failure.message}")
        return
    if count:
        print_message(
            f"warning: {count} records of {topic} are pending. Without {TARGET_CONFIG}, no relay "
            "writes them to the target, and retention may delete them. To relay them, run "
            f"`mqctl topic config set {topic} {TARGET_CONFIG}={target}`."
        )


async def _delay_topic(client: ClusterClient, topic: str, timeout_s: float) -> DelayTopic:
    from mqd.relay.delay_topic import DelayTopic

    found = DelayTopic.of(await configs_of(client, topic, timeout_s))
    if found is None:
        raise Failure(
            f"topic {topic!r} is no delay topic",
            remedy="name a delay topic, or create one with "
            f"`mqctl topic create {topic}.delay -c {TARGET_CONFIG}={topic}`",
        )
    return found


async def _pending(
    client: ClusterClient,
    topic: str,
    configured: DelayTopic,
    committed: dict[TopicPartition, Committed],
    timeout_s: float,
    *,
    most: int | None = None,
) -> list[dict[str, Any]]:
    """`most`: records to read; None: all."""
    from datetime import UTC, datetime

    from mqd.relay.delay_records import due_ms_of, ends

    pending: dict[tuple[TopicPartition, int], dict[str, Any]] = {}
    by_key: dict[tuple[TopicPartition, bytes], list[int]] = {}
    ranges = {
        place: (max(first, committed[place].start) if place in committed else first, last)
        for place, (first, last) in (await log_ranges(client, topic, timeout_s)).items()
    }
    records = committed_records(client, ranges, timeout_s)
    async with aclosing(records):  # type: ignore[type-var]
        async for place, record in records:
            if most is not None:
                if not most:
                    break
                most -= 1
            if record.key is not None and (record.value is None or configured.replaces):
                earlier = by_key.pop((place, record.key), [])
                for offset in earlier:
                    if ends(configured, record, offset):
                        del pending[place, offset]
                    else:
                        by_key.setdefault((place, record.key), []).append(offset)
            if record.key is not None and record.value is None:
                continue
            due_ms = due_ms_of(configured, record)
            if place in committed and committed[place].progress.covers(due_ms, record.offset):
                continue
            if record.key is not None:
                by_key.setdefault((place, record.key), []).append(record.offset)
            try:
                due = datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(timespec="milliseconds")
            except (OverflowError, ValueError):
                due = ""
            pending[place, record.offset] = {
                "partition": place.partition,
                "offset": record.offset,
                "due_ms": due_ms,
                "due": due,
                "key": text_of(record.key),
                "bytes": len(record.value or b""),
                **_plans(configured, record),
            }
    return list(pending.values())


def _plans(configured: DelayTopic, record: Record) -> dict[str, Any]:
    """Whether the record is repeated, and whether it expires before it is due."""
    from mqd.delay_names import CRON
    from mqd.relay.delay_headers import BadHeader
    from mqd.relay.delay_records import times_in

    times = times_in(configured, record)
    if isinstance(times, BadHeader):  # relayed at once, or a dead letter
        return {"schedule": None, "expires": False}
    return {
        "schedule": headers_of(record)[CRON] if times.cron is not None else None,
        "expires": times.is_expired(times.due_ms),
    }


@click.command()
@click.argument("topic")
@click.option("-k", "--key", required=True, metavar="KEY", help="The key, as text.")
@options
def cancel(settings: Settings, topic: str, key: str) -> None:
    """Cancel the pending records of a key: write a tombstone, a record with the key and without a
    value, to each partition. So it does not matter how the producers choose partitions.

    \b
    mqctl delay cancel orders.delay --key 4711
    """

    async def work(client: ClusterClient) -> int:
        from mqd.client.producer import open_producer

        await _delay_topic(client, topic, settings.timeout_s)
        info = await described(client, topic, settings.timeout_s)
        content = key.encode(errors="surrogateescape")
        async with open_producer(client, delivery_timeout_s=settings.timeout_s) as producer:
            written = [
                await producer.enqueue(topic, None, content, partition=one.partition)
                for one in info.partitions
            ]
            for one in written:
                await one
        return len(written)

    count = run(settings, work)
    print_message(
        f"Wrote a tombstone to {'the partition' if count == 1 else f'each of {count} partitions'} "
        f"of {topic}. It cancels the pending records of key {key!r}, if there are any."
    )
