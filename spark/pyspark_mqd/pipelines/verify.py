"""mqd-spark verify: whether an archive covers its topics, by the names of its files.

The names of an archive's files are offset ranges, so a listing is enough: no record is read, and
no Spark is started. With --footers the statistics inside each file are compared with its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqd.types import TopicPartition
from pyspark_mqd.pipelines import report
from pyspark_mqd.pipelines.archive_layout import ArchivedFile, listing
from pyspark_mqd.pipelines.brokers import connected, log_ends, log_starts
from pyspark_mqd.pipelines.cli import FAILED, Failure, Settings, options, split_list
from pyspark_mqd.pipelines.progress import Progress
from pyspark_mqd.pipelines.report import Column
from pyspark_mqd.pipelines.verify_checks import (
    DAMAGED,
    HEAD,
    Coverage,
    Log,
    Problem,
    check_file,
    coverage_rows,
    judge_all,
    problem_rows,
    with_problems,
    without,
)

if TYPE_CHECKING:
    from mqd.client.sync import BlockingClient

READERS = 8
"""Footers that are read at a time."""

COVERAGE = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", right=True),
    Column("log_start", "LOG-START", right=True),
    Column("log_end", "LOG-END", right=True),
    Column("start", "START", right=True),
    Column("end", "END", right=True),
    Column("ranges", "RANGES", right=True),
    Column("lag", "LAG", right=True),
    Column("problems", "PROBLEMS", right=True),
)
PROBLEMS = (
    Column("kind", "PROBLEM"),
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", right=True),
    Column("start", "START", right=True),
    Column("end", "END", right=True),
    Column("offsets", "OFFSETS", right=True),
    Column("meaning", "MEANING"),
)


@click.command(no_args_is_help=True)
@options()
@click.option("--archive", "root", metavar="DIR", required=True, help="Folder of the archive.")
@click.option(
    "--topics", metavar="NAME,..", default="", show_default=False,
    help="Verify these topics  [default: all of the archive]",
)  # fmt: skip
@click.option(
    "--lag-max",
    type=click.IntRange(min=0),
    default=0,
    help="Offsets per partition that may be missing at the end, for an archive that runs.",
)
@click.option(
    "--ignore-head", is_flag=True, help="Accept an archive that starts after the log does."
)
@click.option(
    "--footers", is_flag=True, help="Also compare the offsets inside each file with its name."
)
@click.option(
    "--offline", is_flag=True, help="Compare files only with one another; connect to no broker."
)
def command(
    settings: Settings,
    root: str,
    topics: str,
    lag_max: int,
    ignore_head: bool,
    footers: bool,
    offline: bool,
) -> None:
    """Compare an archive with the offsets of the brokers. Exit code 1 if offsets are not covered.

    The files of a partition must cover the log from its start to its last stable offset, without a
    gap or an overlap. Missing offsets inside a file are not loss: compaction and aborted
    transactions leave such gaps.

    \b
    Example: mqd-spark verify --archive lake --topics orders
             mqd-spark verify --archive lake --lag-max 100000 --footers -o json
    """
    wanted = split_list(topics)
    files = files_in(Path(root), wanted)
    logs = None
    if not offline:
        names = set(wanted) or {each.range.topic for each in files}
        with connected(settings) as client:
            logs = logs_of(client, names)
    if not files and not logs:
        raise Failure(f"The archive '{root}' has no files.", remedy="Name its root folder.")
    found = judge_all(ranges_of(files), logs, lag_max=lag_max)
    if footers:
        found = add_problems(found, check_footers(files))
    if ignore_head:
        found = [without(each, HEAD) for each in found]
    show(settings.output, root, len(files), found)
    raise SystemExit(FAILED if any(each.problems for each in found) else 0)


def files_in(root: Path, topics: Sequence[str]) -> list[ArchivedFile]:
    """Every file of the archive, of a Delta table too. Raises Failure."""
    if not root.is_dir():
        raise Failure(f"The archive '{root}' is not a folder.", remedy="Name its root folder.")
    if (root / "_delta_log").is_dir():
        files = _files_of_delta(root)
        return [each for each in files if not topics or each.range.topic in topics]
    return list(listing(root, topics or None))


def _files_of_delta(root: Path) -> list[ArchivedFile]:
    from pyspark_mqd.pipelines.archive_delta import covered_by, require_deltalake

    return covered_by(require_deltalake().DeltaTable(str(root)), root)


def ranges_of(files: Iterable[ArchivedFile]) -> dict[tuple[str, int], set[tuple[int, int]]]:
    """(topic, partition) -> the ranges of its files; files of several dates share one."""
    ranges: dict[tuple[str, int], set[tuple[int, int]]] = {}
    for each in files:
        topic, partition, start, end = each.range
        ranges.setdefault((topic, partition), set()).add((start, end))
    return ranges


def logs_of(client: BlockingClient, topics: Iterable[str]) -> dict[TopicPartition, Log]:
    """Every partition of those topics that exist. Raises ClientError."""
    wanted = set(topics)
    partitions = [
        TopicPartition(topic.name, each.partition)
        for topic in client.admin.list_topics(internal=True)
        if topic.name in wanted
        for each in topic.partitions
    ]
    starts = log_starts(client, partitions)
    stable = log_ends(client, partitions, read_committed=True)
    ends = log_ends(client, partitions)
    return {tp: Log(starts[tp], stable[tp], ends[tp]) for tp in partitions}


def check_footers(files: Sequence[ArchivedFile]) -> list[Problem]:
    """Files that cannot be read, or hold offsets outside of their ranges."""
    found = []
    filled = [each for each in files if each.date]
    progress = Progress("footers", unit="files", total=len(filled))
    with progress, ThreadPoolExecutor(READERS) as pool:
        for problem in pool.map(_check_footer, filled):
            progress.add(1)
            if problem is not None:
                found.append(problem)
    return found


def _check_footer(file: ArchivedFile) -> Problem | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    topic, partition, start, end = file.range
    tp = TopicPartition(topic, partition)
    try:
        metadata = pq.read_metadata(file.path)
        index = metadata.schema.to_arrow_schema().names.index("offset")
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        statistics = [group.column(index).statistics for group in groups]
    except (OSError, ValueError, pa.ArrowException) as error:
        return Problem(DAMAGED, tp, start, end, f"'{file.path.name}' cannot be read: {error}")
    known = [each for each in statistics if each is not None and each.has_min_max]
    if len(known) < len(statistics) or not known:
        return None
    least, greatest = min(each.min for each in known), max(each.max for each in known)
    return check_file(tp, start, end, file.path.name, least, greatest)


def add_problems(found: Iterable[Coverage], problems: Iterable[Problem]) -> list[Coverage]:
    """Each partition with those of the problems that are its own."""
    by_partition: dict[TopicPartition, list[Problem]] = {}
    for each in problems:
        by_partition.setdefault(each.tp, []).append(each)
    return [with_problems(each, by_partition.get(each.tp, ())) for each in found]


def show(output: str, root: str, files: int, found: Sequence[Coverage]) -> None:
    """The partitions, and below them the problems."""
    partitions, problems = coverage_rows(found), problem_rows(found)
    summary: dict[str, Any] = {
        "archive": root,
        "files": files,
        "partitions": len(partitions),
        "problems": len(problems),
        "offsets_in_doubt": sum(row["offsets"] for row in problems),
    }
    if output == "json":
        report.show_summary("json", {**summary, "rows": partitions, "problem_rows": problems})
        return
    report.show("table", COVERAGE, partitions)
    click.echo()
    if problems:
        report.show("table", PROBLEMS, problems)
        click.echo()
    report.show_summary("table", summary)
