"""mqd-spark lag: how far a streaming query, or a group, is behind the end of the logs.

The checkpoint says where the query resumes, the brokers say where the logs end. A batch that is
planned and not done counts as lag: its rows are not in the sink yet. `rows_of` and `summary_of` are
pure.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import click

from mqd.types import TopicPartition
from pyspark_mqd.offsets import Offsets
from pyspark_mqd.pipelines import report
from pyspark_mqd.pipelines.brokers import connected, log_ends, log_starts
from pyspark_mqd.pipelines.checkpoint import folder_of, parse_source, read_checkpoint
from pyspark_mqd.pipelines.cli import Settings, options
from pyspark_mqd.pipelines.report import Column

if TYPE_CHECKING:
    from mqd.client.sync import BlockingClient

TIME_SECONDS = 10.0
"""For reading one record of each partition that is behind."""

COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", right=True),
    Column("next", "NEXT", right=True),
    Column("start", "START", right=True),
    Column("end", "END", right=True),
    Column("lag", "LAG", right=True),
    Column("behind", "BEHIND", right=True),
    Column("note", "NOTE"),
)


def rows_of(
    positions: Offsets,
    starts: Offsets,
    ends: Offsets,
    oldest_ms: Mapping[TopicPartition, int],
    now_ms: int,
) -> list[dict[str, Any]]:
    """One row a partition. `oldest_ms` has the timestamp of the next record, if it is known."""
    rows = []
    for tp in sorted(positions.keys() | ends.keys()):
        position, start, end = positions.get(tp), starts.get(tp), ends.get(tp)
        first = start if position is None else position
        lag = None if end is None or first is None else max(end - first, 0)
        behind = (now_ms - oldest_ms[tp]) / 1000 if tp in oldest_ms else 0.0 if lag == 0 else None
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "next": position,
                "start": start,
                "end": end,
                "lag": lag,
                "behind_seconds": behind,
                "note": _note(position, start, end),
            }
        )
    return rows


def _note(position: int | None, start: int | None, end: int | None) -> str:
    if end is None:
        return "the topic or partition is gone"
    if position is None:
        return "new: not read yet"
    if start is not None and position < start:
        return f"{start - position} offsets were deleted before they were read"
    if position > end:
        return "beyond the end: was the topic recreated?"
    return ""


def summary_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Total, least, mean and greatest lag, and the greatest delay if it is known."""
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    behind = [row["behind_seconds"] for row in rows if row["behind_seconds"] is not None]
    return {
        "partitions": len(rows),
        "total_lag": sum(lags),
        "min_lag": min(lags, default=0),
        "avg_lag": sum(lags) / len(lags) if lags else 0.0,
        "max_lag": max(lags, default=0),
        "max_behind_seconds": max(behind) if len(behind) == len(rows) and behind else None,
    }


# -- the command


@click.command(no_args_is_help=True)
@options()
@click.option("--checkpoint", metavar="DIR", help="Checkpoint of the query.")
@click.option("--group", metavar="NAME", help="Consumer group, instead of --checkpoint.")
@click.option(
    "--source", type=click.IntRange(min=0),
    help="Index of the source, for a query with several sources.",
)  # fmt: skip
@click.option("--read-committed", is_flag=True, help="Measure to the last stable offset.")
@click.option(
    "--time/--no-time",
    "timed",
    default=True,
    help="Read the next record of each partition to compute BEHIND.",
)
def command(
    settings: Settings,
    group: str | None,
    source: int | None,
    read_committed: bool,
    timed: bool,
) -> None:
    """Show the lag of a query or a group behind the log ends.

    NEXT is the offset that the query reads next, and BEHIND is the age of that record. A
    micro-batch that is planned and not committed counts as lag.

    \b
    Example: mqd-spark lag --checkpoint state/orders
             mqd-spark lag --group orders-archive -o json
    """
    if bool(settings.checkpoint) == bool(group):
        raise click.UsageError("Specify one of --checkpoint and --group")
    head: dict[str, Any]
    with connected(settings) as client:
        if group:
            head, positions = {"group": group}, _of_group(client, group, read_committed)
            topics = {tp.topic for tp in positions}
        else:
            head, positions, topics = _of_checkpoint(settings.checkpoint, source)
        wanted = known_partitions(client, topics)
        starts = log_starts(client, wanted)
        ends = log_ends(client, wanted, read_committed=read_committed)
        late = {
            tp: max(positions.get(tp, 0), starts[tp])
            for tp, end in ends.items()
            if positions.get(tp, starts[tp]) < end
        }
        oldest = _timestamps(client, late, read_committed) if timed and late else {}
    rows = rows_of(positions, starts, ends, oldest, time.time_ns() // 1_000_000)
    show(settings.output, head, rows)


def show(output: str, head: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows and what they come to."""
    summary = {**head, **summary_of(rows)}
    if output == "json":
        report.show_summary(output, {**summary, "rows": list(rows)})
        return
    shown = [{**row, "behind": _duration(row["behind_seconds"])} for row in rows]
    report.show(output, COLUMNS, shown)
    click.echo()
    report.show_summary(output, summary)


def _duration(behind: float | None) -> str | None:
    from pyspark_mqd.pipelines.progress import seconds

    return None if behind is None else seconds(max(behind, 0.0))


def _of_checkpoint(location: str, source: int | None) -> tuple[dict[str, Any], Offsets, set[str]]:
    """What to print of the query, where it resumes, and the topics that it reads."""
    found = read_checkpoint(folder_of(location))
    index = found.source_of(source)
    head = {
        "query_id": found.query_id,
        "last_done_batch": found.committed if found.committed >= 0 else None,
        "planned_batch": None if found.planned is None else found.planned.batch,
    }
    positions = {} if found.done is None else parse_source(found.done.sources[index]).ends
    return head, positions, {tp.topic for tp in parse_source(found.latest.sources[index]).ends}


def _of_group(client: BlockingClient, group: str, read_committed: bool) -> Offsets:
    rows = client.admin.group_lag(group, read_committed=read_committed)
    return {row.tp: row.committed.offset for row in rows if row.committed is not None}


def known_partitions(client: BlockingClient, topics: Set[str]) -> list[TopicPartition]:
    """All partitions of these topics, as far as they exist. Raises ClientError."""
    return sorted(
        TopicPartition(each.name, one.partition)
        for each in client.admin.list_topics(internal=True)
        if each.name in topics
        for one in each.partitions
    )


def _timestamps(
    client: BlockingClient, places: Mapping[TopicPartition, int], read_committed: bool
) -> dict[TopicPartition, int]:
    """The timestamp of the next record of each partition, as far as it is read in time."""
    found: dict[TopicPartition, int] = {}
    deadline = time.monotonic() + TIME_SECONDS
    with client.consumer(
        places, end="end", read_committed=read_committed, reset="beginning", partition_max_bytes=1
    ) as consumer:
        while len(found) < len(places) and (left := deadline - time.monotonic()) > 0:
            batch = consumer.next(timeout_s=left)
            if batch is None:
                break
            tp = TopicPartition(batch.topic, batch.partition)
            if batch.records and tp not in found:
                found[tp] = batch.records[0].timestamp
    return found
