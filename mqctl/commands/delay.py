"""mqctl delay: show and cancel the pending records of delay topics."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from mqctl import render
from mqctl.app import Failure, LazyGroup, Settings, options, print_message, run
from mqctl.committed import committed_records, configs_of, described, text_of
from mqd.delay_names import TARGET_CONFIG

if TYPE_CHECKING:
    from mqd.client.cluster import ClusterClient
    from mqd.relay.delay_progress import Progress
    from mqd.relay.delay_topic import DelayTopic
    from mqd.types import TopicPartition

COMMANDS = {
    "list": ("mqctl.commands.delay:list_", "List pending records, the first due first."),
    "cancel": ("mqctl.commands.delay:cancel", "Cancel the pending records of a key."),
}
PENDING = (
    render.Column("partition", "PARTITION", right=True),
    render.Column("offset", "OFFSET", right=True),
    render.Column("due_ms", "DUE-MS", right=True),
    render.Column("due", "DUE"),
    render.Column("key", "KEY"),
    render.Column("bytes", "BYTES", right=True),
)


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def delay() -> None:
    """Show and cancel the pending records of delay topics."""


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

    Reads all records from the first pending one on.

    \b
    mqctl delay list orders.delay -n 10
    """

    async def work(client: ClusterClient) -> list[dict[str, Any]]:
        configured = await _delay_topic(client, topic, settings.timeout_s)
        progress, starts = await _progress(client, topic, settings.timeout_s)
        return await _pending(client, topic, configured, progress, starts, settings.timeout_s)

    rows = sorted(run(settings, work), key=lambda row: (row["due_ms"], row["offset"]))
    if not rows:
        print_message(f"Topic {topic!r} has no pending records.")
    elif len(rows) > limit:
        print_message(f"{len(rows)} records are pending; the first {limit} are shown.")
    settings.show_found(PENDING, rows[:limit])


async def _delay_topic(client: ClusterClient, topic: str, timeout_s: float) -> DelayTopic:
    from mqd.relay.delay_topic import DelayTopic

    found = DelayTopic.of(await configs_of(client, topic, timeout_s))
    if found is None:
        raise Failure(
            f"topic {topic!r} is no delay topic",
            remedy=f"make it one with `mqctl topic config set {topic} {TARGET_CONFIG}=TARGET`",
        )
    return found


async def _progress(
    client: ClusterClient, topic: str, timeout_s: float
) -> tuple[dict[TopicPartition, Progress], dict[TopicPartition, int]]:
    """What was relayed, and where the first pending record is."""
    from mqd.client.admin import Admin
    from mqd.client.errors import ClientError
    from mqd.errors import ProtocolError
    from mqd.relay.delay_progress import decode_progress
    from mqd.relay.names import delay_group

    group = delay_group(topic)
    topic_id = (await described(client, topic, timeout_s)).topic_id
    found = (await Admin(client, timeout_s=timeout_s).list_group_offsets([group], stable=True))[
        group
    ]
    if isinstance(found, ClientError):
        raise found
    progress, starts = {}, {}
    for place, committed in found.items():
        owner, _, text = committed.metadata.partition(":")
        if owner == topic_id.hex:
            try:
                progress[place] = decode_progress(text)
            except ProtocolError as error:
                raise Failure(f"the progress of {place} is unreadable: {error}") from None
            starts[place] = committed.offset
    return progress, starts


async def _pending(
    client: ClusterClient,
    topic: str,
    configured: DelayTopic,
    progress: dict[TopicPartition, Progress],
    starts: dict[TopicPartition, int],
    timeout_s: float,
) -> list[dict[str, Any]]:
    from datetime import UTC, datetime

    from mqd.relay.delay_records import due_ms_of, ends

    pending: dict[tuple[TopicPartition, int], dict[str, Any]] = {}
    by_key: dict[tuple[TopicPartition, bytes], list[int]] = {}
    records = committed_records(client, topic, starts, timeout_s)
    async with aclosing(records):  # type: ignore[type-var]
        async for place, record in records:
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
            if place in progress and progress[place].covers(due_ms, record.offset):
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
            }
    return list(pending.values())


@click.command()
@click.argument("topic")
@click.option("-k", "--key", required=True, metavar="KEY", help="The key, as text.")
@options
def cancel(settings: Settings, topic: str, key: str) -> None:
    """Cancel the pending records of a key: writes a record with the key and without a value.

    Records that the producer wrote to another partition than Kafka's default partitioner does are
    not cancelled.

    \b
    mqctl delay cancel orders.delay --key 4711
    """

    async def work(client: ClusterClient) -> tuple[int, int]:
        from mqd.client.producer import open_producer

        await _delay_topic(client, topic, settings.timeout_s)
        async with open_producer(client, delivery_timeout_s=settings.timeout_s) as producer:
            sent = await producer.send(topic, None, key=key.encode(errors="surrogateescape"))
        return sent.partition, sent.offset

    partition, offset = run(settings, work)
    print_message(f"Cancelled the records of key {key!r} in {topic}-{partition} before {offset}.")
