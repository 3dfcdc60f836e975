"""mqctl topic trim: delete the oldest records of topics (DeleteRecords in Kafka's API)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mqctl import places, render
from mqctl.app import Failure, Settings, confirm, options, print_message, run
from mqctl.outcomes import finish
from mqctl.planning import parse_partition
from mqd.types import TopicPartition

if TYPE_CHECKING:
    from mqd.client.admin import Admin
    from mqd.client.cluster import ClusterClient
    from mqd.client.errors import ClientError

TRIMMED = (
    render.Column("topic", "TOPIC"),
    render.Column("partition", "PARTITION", right=True),
    render.Column("before", "BEGINNING", right=True),
    render.Column("after", "NEW-BEGINNING", right=True),
    render.Column("end", "END", right=True),
    render.Column("offsets", "DELETED", right=True),
)


_NAMED_MAX = 50


class Cut(NamedTuple):
    """One partition: its log start and log end, and the offset before which records are deleted."""

    beginning: int
    target: int
    end: int


class Limit(NamedTuple):
    """What to delete. Exactly one is set: records before an offset, records before a time (ms since
    1970), or all but the last `keep` offsets.
    """

    offset: int | None = None
    timestamp_ms: int | None = None
    keep: int | None = None


@click.command()
@click.argument("partitions", nargs=-1, required=True, metavar="TOPIC[:PARTITION]...")
@click.option(
    "--before-offset",
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="Delete the records before this offset.",
)
@click.option(
    "--before-time",
    metavar="TIME",
    help="Delete the records before the first record at or after TIME. " + places.TIME_FORMS,
)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    metavar="N",
    help="Keep the last N offsets of each partition, and delete the records before them.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, without deleting it.")
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
@options
def trim(
    settings: Settings,
    partitions: tuple[str, ...],
    before_offset: int | None,
    before_time: str | None,
    keep: int | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete the oldest records of topics or partitions. This cannot be undone.

    The other records keep their offsets: only the log start offset moves. Topics with
    cleanup.policy=compact cannot be trimmed.

    \b
    mqctl topic trim orders --before-time -7d --dry-run     shows what would be deleted
    mqctl topic trim orders:0 --before-offset 1000
    mqctl topic trim orders payments --keep 100000 --yes
    """
    if [before_offset is not None, before_time is not None, keep is not None].count(True) != 1:
        raise click.UsageError(
            "specify one limit: --before-offset OFFSET, --before-time TIME or --keep N"
        )
    try:
        named = [parse_partition(text) for text in partitions]
        timestamp_ms = (
            None if before_time is None else places.parse_time(before_time, int(time.time() * 1000))
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    limit = Limit(before_offset, timestamp_ms, keep)

    planned = run(settings, lambda client: _plan(client, settings, named, limit))
    cuts = {
        tp: cut
        for tp, cut in planned.items()
        if isinstance(cut, Cut) and cut.target > cut.beginning
    }
    if cuts and not dry_run:
        lines = [_line(tp, cut) for tp, cut in cuts.items()]
        more = [f"and {len(lines) - _NAMED_MAX} more partitions"] if len(lines) > _NAMED_MAX else []
        confirm(
            "\n  ".join(["This permanently deletes records:", *lines[:_NAMED_MAX], *more]),
            yes=yes,
        )

    async def work(client: ClusterClient) -> dict[TopicPartition, int | ClientError]:
        return await _admin(client, settings).delete_records(
            {tp: cut.target for tp, cut in cuts.items()}
        )

    deleted = (
        dict(run(settings, work))
        if cuts and not dry_run
        else {tp: cut.target for tp, cut in cuts.items()}
    )
    results: dict[TopicPartition, Any] = {**planned, **deleted}
    settings.show(
        TRIMMED, [_row(tp, cut, results[tp]) for tp, cut in planned.items() if isinstance(cut, Cut)]
    )
    if dry_run:
        print_message("dry run: nothing was deleted")
    elif not cuts and any(isinstance(cut, Cut) for cut in planned.values()):
        print_message("nothing to delete: the logs already start there")
    finish(results)


def _line(tp: TopicPartition, cut: Cut) -> str:
    return (
        f"{tp}: {cut.target - cut.beginning} offsets, from {cut.beginning} up to {cut.target}; "
        f"{cut.end - cut.target} remain"
    )


def _row(tp: TopicPartition, cut: Cut, outcome: object) -> dict[str, Any]:
    after = outcome if isinstance(outcome, int) and not isinstance(outcome, bool) else cut.beginning
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "before": cut.beginning,
        "after": after,
        "end": cut.end,
        "offsets": after - cut.beginning,
    }


def _admin(client: ClusterClient, settings: Settings) -> Admin:
    from mqd.client.admin import Admin

    return Admin(client, timeout_s=settings.timeout_s)


async def _plan(
    client: ClusterClient, settings: Settings, named: list[tuple[str, int | None]], limit: Limit
) -> dict[TopicPartition, Cut | ClientError]:
    """The cut of each named partition, or its error."""
    from mqd.client.descriptions import EARLIEST, LATEST
    from mqd.client.errors import ClientError

    admin = _admin(client, settings)
    tps: dict[TopicPartition, None] = {}
    for topic, described in (
        await admin.describe_topics(dict.fromkeys(topic for topic, _ in named))
    ).items():
        if isinstance(described, ClientError):
            raise described
        existing = [each.partition for each in described.partitions]
        for wanted in [index for name, index in named if name == topic]:
            if wanted is not None and wanted not in existing:
                raise Failure(
                    f"topic {topic!r} has no partition {wanted}",
                    remedy=f"its partitions are 0 to {len(existing) - 1}",
                )
            tps.update(
                (TopicPartition(topic, index), None)
                for index in (existing if wanted is None else [wanted])
            )
    beginnings = await admin.list_offsets(dict.fromkeys(tps, EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(tps, LATEST))
    since = (
        {}
        if limit.timestamp_ms is None
        else await admin.list_offsets(dict.fromkeys(tps, limit.timestamp_ms))
    )
    plan: dict[TopicPartition, Cut | ClientError] = {}
    for tp in tps:
        found = [beginnings[tp], ends[tp], *([since[tp]] if since else [])]
        failed = next((each for each in found if isinstance(each, ClientError)), None)
        if failed is not None:
            plan[tp] = failed
            continue
        offsets = [each.offset for each in found if not isinstance(each, ClientError)]
        plan[tp] = _cut(tp, offsets[0], offsets[1], offsets[2] if since else -1, limit)
    return plan


def _cut(tp: TopicPartition, beginning: int, end: int, since: int, limit: Limit) -> Cut:
    """`since`: the first offset at or after the limit's time; -1 if there is none.

    Raises Failure for an offset beyond the log end.
    """
    if limit.offset is not None:
        if limit.offset > end:
            remedy = "choose an offset within the log, or --keep 0 to delete all records"
            raise Failure(
                f"offset {limit.offset} is beyond the log end of {tp}, which is {end}",
                remedy=remedy,
            )
        target = limit.offset
    elif limit.keep is not None:
        target = end - limit.keep
    else:
        target = since if since >= 0 else end
    return Cut(beginning, min(max(beginning, target), end), end)
