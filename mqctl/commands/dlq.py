"""mqctl dlq: show, redrive and purge dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from mqctl import render
from mqctl.app import Failure, LazyGroup, Settings, confirm, options, print_message, run
from mqctl.committed import (
    committed_records,
    described,
    exists,
    headers_of,
    log_ranges,
    records_at,
    text_of,
)
from mqctl.outcomes import finish
from mqctl.redriving import (
    PartitionProgress,
    decode_progress,
    encode_left,
    has_copy,
    is_letter,
    origin_of,
    plan_of,
    restored_headers,
    target_of,
)
from mqd.delay_names import DLQ_COUNT, DLQ_MESSAGE, DLQ_OFFSET, DLQ_PARTITION, DLQ_TOPIC

if TYPE_CHECKING:
    from mqd.client.cluster import ClusterClient
    from mqd.client.offsets import CommittedOffset
    from mqd.client.transactional import TransactionalProducer
    from mqd.protocol.record_reader import Record
    from mqd.types import TopicPartition

    Ranges: TypeAlias = Mapping[TopicPartition, tuple[int, int]]

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
    render.Column("redriven", "REDRIVEN"),
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


group_option = click.option(
    "--group",
    metavar="ID",
    help="The group whose committed offsets say what was redriven. [default: mqctl-redrive-TOPIC]",
)


def _group(topic: str, group: str | None) -> str:
    return group or f"mqctl-redrive-{topic}"


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
@group_option
@options
def list_(settings: Settings, topic: str, limit: int, group: str | None) -> None:
    """List the dead letters of a topic.

    REDRIVEN: whether `mqctl dlq redrive` has written the record again. Needs DESCRIBE on its group.

    \b
    mqctl dlq list orders.dlq -n 10
    """

    async def work(client: ClusterClient) -> tuple[list[dict[str, Any]], int]:
        rows: list[dict[str, Any]] = []
        others = 0
        ranges = await log_ranges(client, topic, settings.timeout_s)
        progress = await _shown_progress(client, _group(topic, group), ranges, settings.timeout_s)
        records = committed_records(client, ranges, settings.timeout_s)
        async with aclosing(records):  # type: ignore[type-var]
            async for place, record in records:
                if not is_letter(record):
                    others += 1
                    continue
                done = None if progress is None else not progress[place].wants(record.offset)
                rows.append({**_row(place, record), "redriven": done})
                if len(rows) == limit:
                    break
        return rows, others

    rows, others = run(settings, work)
    if not rows:
        print_message(f"Topic {topic!r} has no dead letters.")
    if others:
        print_message(f"Skipped {others} records that are not dead letters.")
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
        ranges = await log_ranges(client, topic, settings.timeout_s)
        if wanted not in ranges:
            raise Failure(
                f"topic {topic!r} has no partition {partition}",
                remedy=f"its partitions are 0 to {len(ranges) - 1}",
            )
        first, last = ranges[wanted]
        one = {wanted: (max(first, offset), min(last, offset + 1))}
        records = committed_records(client, one, settings.timeout_s)
        async with aclosing(records):  # type: ignore[type-var]
            async for place, record in records:
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
@group_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@options
def redrive(settings: Settings, topic: str, to: str | None, group: str | None, yes: bool) -> None:
    """Write dead letters to their original topic again, each exactly once.

    For a letter without a copy of its record, the command reads the original: from the topic of a
    share group, or from the delay topic. Letters whose original no longer exists are left, and
    those without a target, too: a later run tries them again, for example with --to.

    Records and the offsets of a group are written in transactions, so a second run continues after
    the first. The dead letters stay: see `mqctl dlq purge`. Attempts begin again.

    Whoever may write to the topic chooses where its letters go, and you write them with your own
    permissions: check the list of topics before you confirm, or use --to.

    \b
    mqctl dlq redrive orders.dlq
    """
    owner = _group(topic, group)
    if to == topic:
        raise click.UsageError("--to is the topic of the dead letters itself: name another topic")

    async def look(client: ClusterClient) -> tuple[Ranges, str]:
        if to is not None:
            await described(client, to, settings.timeout_s)
        ranges = await log_ranges(client, topic, settings.timeout_s)
        if yes:
            return ranges, ""
        progress = await _progress(client, owner, ranges, settings.timeout_s, stable=False)
        targets = Counter[str | None]()
        letters = _wanted(client, ranges, progress, settings.timeout_s)
        async with aclosing(letters):  # type: ignore[type-var]
            async for _, letter in letters:
                targets[to or target_of(letter)] += 1
        return ranges, plan_of(topic, targets)

    # Letters that arrive after the list was shown are left to the next run.
    ranges, plan = run(settings, look)
    confirm(plan, yes=yes)

    async def work(client: ClusterClient) -> Redrive:
        from mqd.client.transactional import open_transactional_producer

        async with open_transactional_producer(
            client, owner, timeout_s=settings.timeout_s
        ) as producer:
            progress = await _progress(client, owner, ranges, settings.timeout_s)
            work = Redrive(client, producer, owner, progress, to, settings.timeout_s)
            await work.run(ranges)
        return work

    done = run(settings, work)
    print_message(f"Wrote {done.written.total()} records again.")
    for target, count in sorted(done.written.items()):
        print_message(f"{count} to topic {target!r}.")
    for reason, count in done.left.items():
        print_message(f"Left {count} records: {reason}.")


async def _shown_progress(
    client: ClusterClient, owner: str, places: Iterable[TopicPartition], timeout_s: float
) -> dict[TopicPartition, PartitionProgress] | None:
    """Also while a redrive runs. None: the client may not describe the group."""
    from mqd.client.errors import ClientError
    from mqd.errors import ErrorCode

    try:
        return await _progress(client, owner, places, timeout_s, stable=False)
    except ClientError as error:
        if error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
            return None
        raise


async def _progress(
    client: ClusterClient,
    owner: str,
    places: Iterable[TopicPartition],
    timeout_s: float,
    *,
    stable: bool = True,
) -> dict[TopicPartition, PartitionProgress]:
    from mqd.client.admin import Admin
    from mqd.client.errors import ClientError

    admin = Admin(client, timeout_s=timeout_s)
    found = (await admin.list_group_offsets([owner], stable=stable))[owner]
    if isinstance(found, ClientError):
        raise found
    return {
        place: decode_progress(found[place].offset, found[place].metadata)
        if place in found
        else PartitionProgress()
        for place in places
    }


async def _wanted(
    client: ClusterClient,
    ranges: Ranges,
    progress: Mapping[TopicPartition, PartitionProgress],
    timeout_s: float,
) -> AsyncIterator[tuple[TopicPartition, Record]]:
    """The letters in these ranges that are not redriven yet."""
    starts = {
        place: (max(first, progress[place].start), last) for place, (first, last) in ranges.items()
    }
    records = committed_records(client, starts, timeout_s)
    async with aclosing(records):  # type: ignore[type-var]
        async for place, record in records:
            if progress[place].wants(record.offset):
                yield place, record


class Redrive:
    """One run of `mqctl dlq redrive`."""

    def __init__(
        self,
        client: ClusterClient,
        producer: TransactionalProducer,
        owner: str,
        progress: dict[TopicPartition, PartitionProgress],
        to: str | None,
        timeout_s: float,
    ) -> None:
        self._client = client
        self._producer = producer
        self._owner = owner
        self._progress = progress
        self._to = to
        self._timeout_s = timeout_s
        self._exists: dict[str, bool] = {}
        self._stopped: set[TopicPartition] = set()
        """The list of left letters is full: a later run continues here."""
        self.written: Counter[str] = Counter()
        """Records by topic."""
        self.left: Counter[str] = Counter()
        """Letters that were not redriven, by reason."""

    async def run(self, ranges: Ranges) -> None:
        """Redrive the letters in these ranges: the log of each partition."""
        before = self._offsets()
        batch: list[tuple[TopicPartition, Record]] = []
        letters = _wanted(self._client, ranges, self._progress, self._timeout_s)
        async with aclosing(letters):  # type: ignore[type-var]
            async for place, record in letters:
                batch.append((place, record))
                if len(batch) == _REDRIVEN_AT_ONCE:
                    await self._write(batch)
                    before, batch = self._offsets(), []
        if batch:
            await self._write(batch)
            before = self._offsets()
        for place, (first, last) in ranges.items():
            if place not in self._stopped:
                self._progress[place].finish(first, last)
        if self._offsets() != before:  # behind the last letters are control records
            await self._write([])

    def _offsets(self) -> dict[TopicPartition, CommittedOffset]:
        from mqd.client.offsets import CommittedOffset

        return {
            place: CommittedOffset(one.next_offset, metadata=encode_left(one.left))
            for place, one in self._progress.items()
            if one.next_offset
        }

    async def _write(self, batch: Sequence[tuple[TopicPartition, Record]]) -> None:
        """One transaction."""
        from mqd.client.group_member import GroupMetadata

        originals = await records_at(
            self._client,
            [
                (origin.tp, origin.offset)
                for _, record in batch
                if is_letter(record) and not has_copy(record)
                for origin in [origin_of(record)]
                if origin is not None
            ],
            self._timeout_s,
        )
        async with self._producer.transaction():
            for place, record in batch:
                if place in self._stopped:
                    self.left[_full(place)] += 1
                    continue
                problem = await self._redrive(record, originals)
                if not problem:
                    self._progress[place].redriven(record.offset)
                elif self._progress[place].leave(record.offset):
                    self.left[problem] += 1
                else:
                    self._stopped.add(place)
                    self.left[_full(place)] += 1
            await self._producer.send_offsets(self._offsets(), GroupMetadata(self._owner))

    async def _redrive(
        self, letter: Record, originals: Mapping[tuple[TopicPartition, int], Record]
    ) -> str:
        """Returns why the letter is left, or an empty string."""
        target = self._to or target_of(letter)
        if target is None:
            return "they name no original topic. Use --to"
        if target not in self._exists:
            self._exists[target] = await exists(self._client, target, self._timeout_s)
        if not self._exists[target]:
            return f"topic {target!r} does not exist. Create it, or use --to"
        record = letter
        if is_letter(letter) and not has_copy(letter):
            origin = origin_of(letter)
            found = None if origin is None else originals.get((origin.tp, origin.offset))
            # A topic that was deleted and created again has other records at these offsets.
            if found is None or origin is None or found.timestamp != origin.timestamp:
                return "they have no copy of the record, and the original no longer exists"
            record = found
        headers = restored_headers(record.headers)
        await self._producer.enqueue(target, record.value, key=record.key, headers=headers)
        self.written[target] += 1
        return ""


def _full(place: TopicPartition) -> str:
    return f"too many were left in {place}. Redrive or purge those first"


@click.command()
@click.argument("topic")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@options
def purge(settings: Settings, topic: str, yes: bool) -> None:
    """Delete all records of a dead-letter topic.

    Refused if the first record of a partition is not a dead letter.

    \b
    mqctl dlq purge orders.dlq --yes
    """
    confirm(f"Delete all records of {topic!r}.", yes=yes)

    async def work(client: ClusterClient) -> dict[Any, Any]:
        from mqd.client.admin import Admin

        ranges = await log_ranges(client, topic, settings.timeout_s)
        for place in ranges:
            await _check_begins_with_letter(client, place, ranges[place], settings.timeout_s)
        admin = Admin(client, timeout_s=settings.timeout_s)
        return dict(await admin.delete_records(dict.fromkeys(ranges, "end")))

    results = run(settings, work)
    finish(results)
    print_message(f"Deleted the records of {len(results)} partitions.")


async def _check_begins_with_letter(
    client: ClusterClient, place: TopicPartition, log: tuple[int, int], timeout_s: float
) -> None:
    records = committed_records(client, {place: log}, timeout_s)
    async with aclosing(records):  # type: ignore[type-var]
        async for _, record in records:
            if is_letter(record):
                return
            raise Failure(
                f"the record of {place} at offset {record.offset} is not a dead letter",
                remedy=f"to delete such records, use `mqctl topic trim {place.topic} --keep 0`",
            )
