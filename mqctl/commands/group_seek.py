"""mqctl group seek: reset the committed offsets of a group."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

import click

from mqctl import places, render
from mqctl.app import Failure, Settings, options, print_message, run
from mqctl.groups import admin_of
from mqctl.outcomes import finish
from mqctl.planning import parse_partition
from mqctl.seeking import Bounds, Step, Target, choose, parse_file, plan_file, plan_seek, write_file
from mqd.types import TopicPartition

if TYPE_CHECKING:
    from mqd.client.admin import Admin
    from mqd.client.cluster import ClusterClient
    from mqd.client.errors import ClientError
    from mqd.client.group_descriptions import GroupDescription


PLAN = (
    render.Column("topic", "TOPIC"),
    render.Column("partition", "PARTITION", right=True),
    render.Column("before", "NOW", right=True),
    render.Column("after", "NEW", right=True),
    render.Column("note", "NOTE"),
)


@click.command()
@click.argument("name", metavar="GROUP")
@click.argument("partitions", nargs=-1, metavar="[TOPIC[:PARTITION]...]")
@click.option(
    "--to",
    "place",
    metavar="PLACE",
    help=f"New position: {places.PLACE_FORMS}; or current (the committed offset). "
    f"{places.TIME_FORMS}",
)
@click.option(
    "--shift", type=int, metavar="N", help="Move each committed offset N forward, or back (-N)."
)
@click.option(
    "-f",
    "--file",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="File with lines of topic,partition,offset (- for stdin).",
)
@click.option(
    "--save",
    "save_to",
    metavar="FILE",
    help="Save the current offsets; `seek --file FILE` restores them.",
)
@click.option(
    "--execute", is_flag=True, help="Apply the plan. Without --execute, the command only shows it."
)
@options
def seek(
    settings: Settings,
    name: str,
    partitions: tuple[str, ...],
    place: str | None,
    shift: int | None,
    file: IO[str] | None,
    save_to: str | None,
    execute: bool,
) -> None:
    """Reset the committed offsets of a group.

    Without TOPIC, it resets all partitions with a committed offset. For a share group, it resets
    the start offsets. The group must have no members: stop them first. If the group does not exist
    and you specify topics, the command creates it.
    An offset outside of the log becomes the log start or the log end. Partitions without a leader
    are reported and not changed; the exit code is 3 then.

    \b
    mqctl group seek billing --to beginning                    only shows the plan
    mqctl group seek billing orders --to @2026-01-31T12:00:00Z --save before.csv --execute
    mqctl group seek billing orders:0 --shift -100 --execute
    mqctl group seek billing --file before.csv --execute
    """
    if [place is not None, shift is not None, file is not None].count(True) != 1:
        raise click.UsageError("specify one target: --to PLACE, --shift N or --file FILE")
    if file is not None and partitions:
        raise click.UsageError(
            "--file cannot be combined with TOPIC[:PARTITION] arguments: the file names the "
            "partitions"
        )
    target: Target = 0
    named: list[tuple[str, int | None]] = []
    from_file: dict[TopicPartition, int] | None = None
    try:
        named = [parse_partition(text) for text in partitions]
        if place is not None:
            target = (
                "current"
                if place == "current"
                else places.parse_place(place, time.time_ns() // 1_000_000)
            )
        elif shift is not None:
            target = shift
        elif file is not None:
            from_file = parse_file(file.read(), name)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None

    async def work(client: ClusterClient) -> tuple[list[Step], dict[TopicPartition, Any]]:
        admin = admin_of(client, settings)
        group = await _group_without_members(admin, name)
        shares = group is not None and group.type == "share"
        now = await _offsets(admin, name, shares=shares)
        steps, before, unknown = await _plan(
            client, settings, name, group is not None, now, named, target, from_file
        )
        if save_to is not None:
            _save(save_to, before)
        results: dict[TopicPartition, Any] = dict.fromkeys((step.tp for step in steps), None)
        if execute:
            offsets = {step.tp: step.after for step in steps}
            alter = admin.alter_share_group_offsets if shares else admin.alter_group_offsets
            results = dict(await alter(name, offsets))
        return steps, {**results, **unknown}

    steps, results = run(settings, work)
    rows = [
        {"topic": each.tp.topic, "partition": each.tp.partition, **each._asdict()} for each in steps
    ]
    for row in rows:
        del row["tp"]
    settings.show(PLAN, rows)
    if not execute:
        print_message("nothing was changed; re-run with --execute to apply the plan")
    elif all(error is None for error in results.values()):
        print_message(f"the offsets of group {name!r} were reset")
    finish(results)


async def _group_without_members(admin: Admin, name: str) -> GroupDescription | None:
    """None if it does not exist. Raises Failure for a group with members."""
    from mqd.client.errors import ClientError
    from mqd.errors import ErrorCode

    described = (await admin.describe_groups([name]))[name]
    if isinstance(described, ClientError):
        if described.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise described
        return None
    if described.is_active:
        raise Failure(
            f"group {name!r} is {described.state} with {len(described.members)} member(s), which "
            "would overwrite the new offsets",
            remedy="stop its members first; list them with `mqctl group describe "
            f"{shlex.quote(name)}`",
        )
    return described


async def _offsets(admin: Admin, name: str, *, shares: bool) -> dict[TopicPartition, int]:
    """The committed offsets of the group, or the start offsets of a share group."""
    from mqd.client.errors import ClientError

    if shares:
        started = (await admin.list_share_group_offsets([name]))[name]
        if isinstance(started, ClientError):
            raise started
        return {tp: one.start_offset for tp, one in started.items() if one.start_offset is not None}
    committed = (await admin.list_group_offsets([name]))[name]
    if isinstance(committed, ClientError):
        raise committed
    return {tp: each.offset for tp, each in committed.items()}


async def _plan(
    client: ClusterClient,
    settings: Settings,
    name: str,
    exists: bool,
    now: Mapping[TopicPartition, int],
    named: list[tuple[str, int | None]],
    target: Target,
    from_file: dict[TopicPartition, int] | None,
) -> tuple[list[Step], dict[TopicPartition, int], dict[TopicPartition, ClientError]]:
    """The steps, the present offsets of their partitions, and the errors of partitions whose log
    bounds are unknown. Raises Failure.
    """
    admin = admin_of(client, settings)
    topics = {topic.name: len(topic.partitions) for topic in await admin.list_topics(internal=True)}
    try:
        if from_file is not None:
            wanted = choose([(tp.topic, tp.partition) for tp in from_file], topics)
        elif named:
            wanted = choose(named, topics)
        else:
            wanted = [tp for tp in now if tp.partition < topics.get(tp.topic, 0)]
            if not wanted:
                raise Failure(
                    f"group {name!r} has no committed offsets"
                    if exists
                    else f"Group {name!r} does not exist.",
                    remedy="name topics to set offsets for, or list the groups with `mqctl group "
                    "list`",
                )
        bounds, unknown = await _bounds(
            admin_of(client, settings, patient=False), wanted, getattr(target, "timestamp_ms", None)
        )
        steps = (
            plan_seek(target, now, bounds)
            if from_file is None
            else plan_file(from_file, now, bounds)
        )
    except ValueError as error:
        raise Failure(
            str(error),
            remedy="list the topics with `mqctl topic list`, and the group's offsets with `mqctl "
            "group lag`",
        ) from None
    return steps, {tp: now[tp] for tp in wanted if tp in now}, unknown


async def _bounds(
    admin: Admin, partitions: list[TopicPartition], timestamp_ms: int | None
) -> tuple[dict[TopicPartition, Bounds], dict[TopicPartition, ClientError]]:
    """The bounds, and the errors of partitions whose leader does not respond or that have none."""
    from mqd.client.descriptions import EARLIEST, LATEST
    from mqd.client.errors import ClientError

    unknown: dict[TopicPartition, ClientError] = {}

    async def listed(spec: int) -> dict[TopicPartition, int]:
        offsets = {}
        for tp, outcome in (
            await admin.list_offsets({tp: spec for tp in partitions if tp not in unknown})
        ).items():
            if isinstance(outcome, ClientError):
                unknown[tp] = outcome
            else:
                offsets[tp] = outcome.offset
        return offsets

    starts, ends = await listed(EARLIEST), await listed(LATEST)
    times = {} if timestamp_ms is None else await listed(timestamp_ms)
    return {
        tp: Bounds(starts[tp], ends[tp], times.get(tp)) for tp in partitions if tp not in unknown
    }, unknown


def _save(path: str, offsets: Mapping[TopicPartition, int]) -> None:
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(write_file(offsets))
    except OSError as error:
        raise Failure(
            f"cannot write {path!r}: {error.strerror}", remedy="choose a file that does not exist"
        ) from None
