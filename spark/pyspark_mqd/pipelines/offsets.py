"""mqd-spark offsets: show where a streaming query resumes, and change it.

`reset` is safe only in one state, which checkpoint.py explains: every planned batch is done, and
the query is not running. It refuses in every other state that it can see.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from mqd.types import TopicPartition
from pyspark_mqd.errors import OptionError
from pyspark_mqd.offsets import Offsets, parse_offsets, show as offsets_text
from pyspark_mqd.pipelines import report
from pyspark_mqd.pipelines.brokers import (
    PLACES,
    connected,
    log_ends,
    log_starts,
    offsets_at,
    parse_partition,
)
from pyspark_mqd.pipelines.checkpoint import (
    Checkpoint,
    CheckpointError,
    folder_of,
    out_of_range,
    parse_source,
    plan_reset,
    processes_with,
    read_checkpoint,
    seconds_since_written,
    write_entry,
)
from pyspark_mqd.pipelines.cli import HELP_NAMES, Settings, options
from pyspark_mqd.pipelines.report import Column

QUIET_SECONDS = 60
"""A checkpoint that was written more recently may belong to a query that runs."""

SHOWN = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", right=True),
    Column("start", "BATCH-START", right=True),
    Column("next", "NEXT", right=True),
    Column("planned", "PLANNED-END", right=True),
)
CHANGED = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", right=True),
    Column("from", "FROM", right=True),
    Column("to", "TO", right=True),
    Column("rows", "ROWS"),
)


@click.group(context_settings=HELP_NAMES, no_args_is_help=True)
def command() -> None:
    """Show and reset the offsets of a query.

    \b
    Example: mqd-spark offsets show --checkpoint state/orders
    """


_checkpoint = click.option(
    "--checkpoint", metavar="DIR", required=True, help="Checkpoint of the query."
)
_source = click.option(
    "--source",
    type=click.IntRange(min=0),
    help="Index of the source, for a query with several sources.",
)


@command.command("show")
@options()
@_checkpoint
@_source
@click.option(
    "--starting-offsets",
    is_flag=True,
    help="Print only the offsets as JSON, for startingOffsets of a new query.",
)
def show(settings: Settings, source: int | None, starting_offsets: bool) -> None:
    """Show where a query resumes, from its checkpoint alone.

    BATCH-START and NEXT bound the last committed micro-batch. PLANNED-END is the end of a
    micro-batch that is planned and not committed: the query runs exactly that range again.

    \b
    Example: mqd-spark offsets show --checkpoint state/orders
             mqd-spark offsets show --checkpoint state/orders --starting-offsets
    """
    found = read_checkpoint(folder_of(settings.checkpoint))
    index = found.source_of(source)
    if starting_offsets:
        click.echo(offsets_text(next_offsets(found, index)))
        return
    head, rows = described(found, index)
    if settings.output == "json":
        report.show_summary("json", {**head, "rows": rows})
        return
    report.show_summary("table", head)
    click.echo()
    report.show("table", SHOWN, rows)


def next_offsets(found: Checkpoint, source: int) -> Offsets:
    """Where the rows begin that no batch has done. Raises CheckpointError before the first one."""
    if found.done is None:
        raise CheckpointError(
            "No batch of the query is done, so its checkpoint has no offset to resume at.",
            remedy="Use the option startingOffsets that the query was started with.",
        )
    return parse_source(found.done.sources[source]).ends


def described(found: Checkpoint, source: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What `show` prints: of the query, and of each partition. Pure."""
    done, planned = found.done, found.planned
    before = [each for each in found.entries if done is not None and each.batch < done.batch]
    starts = parse_source(before[-1].sources[source]).ends if before else {}
    nexts = {} if done is None else parse_source(done.sources[source]).ends
    ends = {} if planned is None else parse_source(planned.sources[source]).ends
    head = {
        "query_id": found.query_id,
        "last_done_batch": None if done is None else done.batch,
        "planned_batch": None if planned is None else planned.batch,
        "last_planned_at": _time(found.latest.planned_ms),
        "state": "yes" if found.stateful else "no",
    }
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "start": starts.get(tp),
            "next": nexts.get(tp),
            "planned": ends.get(tp),
        }
        for tp in sorted({**nexts, **ends})
    ]
    return head, rows


def _time(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


# -- reset


@command.command("reset")
@options()
@_checkpoint
@_source
@click.option(
    "--to",
    "place",
    required=True,
    metavar="POSITION",
    help='earliest, latest, a time in ISO 8601, or offsets as JSON: \'{"orders":{"0":5}}\'.',
)
@click.option(
    "--partition",
    "partitions",
    metavar="TOPIC:N",
    multiple=True,
    help="Change only this partition. Repeat it for more.",
)
@click.option(
    "--yes", is_flag=True, help="Change the checkpoint. Without it, only the plan is printed."
)
@click.option(
    "--export",
    is_flag=True,
    help="Print the new offsets as JSON for startingOffsets, and change nothing.",
)
@click.option(
    "--quiet-seconds",
    type=click.IntRange(min=0),
    default=QUIET_SECONDS,
    help="Refuse if the checkpoint was written less than this many seconds ago.",
)
def reset(
    settings: Settings,
    source: int | None,
    place: str,
    partitions: tuple[str, ...],
    yes: bool,
    export: bool,
    quiet_seconds: int,
) -> None:
    """Change where a stopped query resumes. Prints the plan; --yes carries it out.

    The command refuses while a micro-batch is planned and not committed, and while the query seems
    to run. It judges that by the age of the checkpoint's files and by command lines on this
    machine.

    State of the query (aggregates, joins) does not change: rows that are read again count twice.
    The old file is saved in the checkpoint's folder `mqd-offsets-backup`.

    \b
    Example: mqd-spark offsets reset --checkpoint state/orders --to 2026-11-23T08:00:00Z
             mqd-spark offsets reset --checkpoint state/orders --to '{"orders":{"0":1200}}' --yes
    """
    folder = folder_of(settings.checkpoint)
    found = read_checkpoint(folder)
    index = found.source_of(source)
    current = parse_source(found.latest.sources[index]).ends
    only = [parse_partition(each) for each in partitions]
    with connected(settings) as client:
        given = given_offsets(place, only)
        special = {tp: offset for tp, offset in given.items() if offset < 0}
        specs = special if given else time_specs(place, only or current)
        target = {**given, **offsets_at(client, specs)}
        starts, ends = log_starts(client, target), log_ends(client, target)
    outside = out_of_range(target, starts, ends)
    if outside:
        tp = outside[0]
        raise CheckpointError(
            f"Offset {target[tp]} of '{tp}' is outside of the log, which has {starts[tp]} to"
            f" {ends[tp]}.",
            remedy="Choose an offset between them, or use --to earliest or --to latest.",
        )
    if export:
        click.echo(offsets_text({**current, **target}))
        return
    entry = plan_reset(found, index, target)
    rows = changes(current, target)
    if not any(row["from"] != row["to"] for row in rows):
        raise CheckpointError("Nothing would change: the query resumes at these offsets already.")
    refuse_running(settings.checkpoint, folder, quiet_seconds)
    kept = str(write_entry(folder, entry)) if yes else None
    head = {
        "query_id": found.query_id,
        "batch": entry.batch,
        "changed": yes,
        "old_file": kept,
    }
    if settings.output == "json":
        report.show_summary("json", {**head, "rows": rows})
        return
    report.show("table", CHANGED, rows)
    click.echo()
    report.show_summary("table", head)
    if found.stateful:
        click.echo("note: the query has state: rows that are read again count twice", err=True)
    if not yes:
        click.echo("This is a plan. Re-run with --yes to change the checkpoint.", err=True)


def given_offsets(place: str, only: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Offsets that --to names as JSON (-1 latest, -2 earliest); none where it names a place."""
    if not place.lstrip().startswith("{"):
        return {}
    try:
        target = dict(parse_offsets(place))
    except OptionError as error:
        raise click.BadParameter(str(error), param_hint="--to") from None
    if list(only):
        raise click.UsageError("Offsets as JSON name their partitions: drop --partition")
    if not target:
        raise click.BadParameter("no partition is named", param_hint="--to")
    return target


def time_specs(place: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """earliest, latest or a time as what ListOffsets takes."""
    if place in PLACES:
        return dict.fromkeys(partitions, PLACES[place])
    try:
        at = datetime.fromisoformat(place)
    except ValueError:
        raise click.BadParameter(
            f"{place!r} is not earliest, latest, a time such as 2026-11-23T08:00:00Z, or JSON",
            param_hint="--to",
        ) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return dict.fromkeys(partitions, int(at.timestamp() * 1000))


def changes(current: Offsets, target: Offsets) -> list[dict[str, Any]]:
    """One row a partition: from where to where, and what that means for its rows."""
    rows = []
    for tp in sorted(target):
        before, after = current.get(tp), target[tp]
        step = 0 if before is None else after - before
        meaning = f"{-step} read again" if step < 0 else f"{step} skipped" if step else ""
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "from": before,
                "to": after,
                "rows": meaning,
            }
        )
    return rows


def refuse_running(location: str, folder: Path, quiet_seconds: int) -> None:
    """Raises CheckpointError while the query seems to run."""
    running = processes_with({location, str(folder), str(folder.resolve())})
    if running:
        raise CheckpointError(
            f"The query seems to run: process {', '.join(map(str, running))} has '{location}' on"
            " its command line.",
            remedy="Stop the query first.",
        )
    age = seconds_since_written(folder, time.time())
    if age < quiet_seconds:
        raise CheckpointError(
            f"The query may run: its checkpoint was written {age:.0f} seconds ago.",
            remedy="Stop the query, then wait, or re-run with --quiet-seconds 0 if it is stopped.",
        )
