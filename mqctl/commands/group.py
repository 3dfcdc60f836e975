"""mqctl group: who reads as a group, how far it is, and setting where it goes on."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import IO, TYPE_CHECKING, Any

import click

from mqctl import places, render
from mqctl.app import (
    FAILED,
    Failure,
    LazyGroup,
    Settings,
    Told,
    confirm,
    finish,
    options,
    run,
    say,
    write,
)
from mqctl.planning import parse_partition
from mqctl.quantities import format_duration
from mqctl.seeking import Bounds, Step, Wish, choose, parse_file, plan_file, plan_seek, write_file
from mqd.errors import some_of
from mqd.types import TopicPartition

if TYPE_CHECKING:
    from mqd.client.admin import Admin
    from mqd.client.cluster import ClusterClient
    from mqd.client.errors import ClientError
    from mqd.client.group_descriptions import GroupDescription, ListedGroup, PartitionLag

COMMANDS = {
    "list": ("mqctl.commands.group:list_", "List groups with their states and coordinators."),
    "describe": (
        "mqctl.commands.group:describe",
        "Show the members of groups and their assignments.",
    ),
    "lag": ("mqctl.commands.group:lag", "Show committed offsets and consumer lag."),
    "seek": ("mqctl.commands.group:seek", "Reset the committed offsets of a group."),
    "config": (
        "mqctl.commands.group_config:config",
        "Show and change the configuration of a group.",
    ),
    "remove-member": ("mqctl.commands.group:remove_member", "Remove members from a group."),
    "delete": ("mqctl.commands.group:delete", "Delete groups and their offsets."),
    "delete-offsets": (
        "mqctl.commands.group:delete_offsets",
        "Delete a group's committed offsets of topics.",
    ),
}

GROUPS = (
    render.Column("group", "GROUP"),
    render.Column("state", "STATE"),
    render.Column("type", "TYPE"),
    render.Column("protocol_type", "PROTOCOL"),
    render.Column("coordinator", "COORDINATOR", right=True),
)
MEMBERS = (
    render.Column("member", "MEMBER"),
    render.Column("instance", "INSTANCE"),
    render.Column("client", "CLIENT"),
    render.Column("host", "HOST"),
    render.Column("epoch", "EPOCH", right=True),
    render.Column("partitions", "PARTITIONS"),
)
LAGS = (
    render.Column("group", "GROUP"),
    render.Column("topic", "TOPIC"),
    render.Column("partition", "PARTITION", right=True),
    render.Column("committed", "COMMITTED", right=True),
    render.Column("end", "END", right=True),
    render.Column("lag", "LAG", right=True),
    render.Column("client", "CLIENT"),
    render.Column("host", "HOST"),
)
TOTALS = (
    render.Column("group", "GROUP"),
    render.Column("partitions", "PARTITIONS", right=True),
    render.Column("uncommitted", "UNCOMMITTED", right=True),
    render.Column("unknown", "UNKNOWN", right=True),
    render.Column("lag", "LAG", right=True),
)
_CHOSEN_AT_MOST = 50
PLAN = (
    render.Column("topic", "TOPIC"),
    render.Column("partition", "PARTITION", right=True),
    render.Column("before", "NOW", right=True),
    render.Column("after", "NEW", right=True),
    render.Column("note", "NOTE"),
)
STATES = (
    *("Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Dead"),  # classic groups
    *("Assigning", "Reconciling", "NotReady"),  # the others
)
TYPES = ("classic", "consumer", "share", "streams")
DELETED = (render.Column("group", "GROUP"), render.Column("deleted", "DELETED"))
REMOVED = (render.Column("member", "MEMBER"), render.Column("removed", "REMOVED"))
FORGOTTEN = (
    render.Column("topic", "TOPIC"),
    render.Column("partition", "PARTITION", right=True),
    render.Column("deleted", "DELETED"),
)


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def group() -> None:
    """Show groups, members and lag; reset offsets; delete groups."""


def _admin(client: ClusterClient, settings: Settings, *, patient: bool = True) -> Admin:
    from mqd.client.admin import Admin

    return Admin(client, timeout_s=settings.timeout_s, patient=patient)


async def _listed(
    client: ClusterClient, settings: Settings, states: Sequence[str] = (), types: Sequence[str] = ()
) -> Told[ListedGroup]:
    return Told(await _admin(client, settings, patient=False).list_groups_by_node(states, types))


@click.command("list")
@click.argument("pattern", required=False)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only groups in this state; repeatable.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(TYPES, case_sensitive=False),
    help="Only groups of this type; repeatable.",
)
@options
def list_(
    settings: Settings, pattern: str | None, states: tuple[str, ...], types: tuple[str, ...]
) -> None:
    """List all groups, or those that match PATTERN (* and ?).

    \b
    mqctl group list
    mqctl group list 'billing-*' --state Stable
    """
    told = run(settings, lambda client: _listed(client, settings, states, types))
    rows = [
        {
            "group": each.group_id,
            "state": each.state or None,
            "type": each.type or None,
            "protocol_type": each.protocol_type or None,
            "coordinator": each.node_id,
        }
        for each in told.rows
        if pattern is None or fnmatchcase(each.group_id, pattern)
    ]
    if not rows and not told.silent:
        say("no groups" if pattern is None and not states and not types else "no group matches")
    if rows or settings.output != "table":
        settings.show(GROUPS, rows)
    finish(told.results)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP|PATTERN...")
@options
def describe(settings: Settings, names: tuple[str, ...]) -> None:
    """Show the members of groups and their assignments. GROUP may be a pattern (* and ?).

    For a classic group that is rebalancing, mqd also reports since when, and which members it
    waits for. For offsets and lag, see `mqctl group lag`.

    \b
    mqctl group describe billing
    """

    async def work(client: ClusterClient) -> tuple[Mapping[str, Any], Told[ListedGroup]]:
        chosen, told = await _choose(client, settings, names)
        return await _admin(client, settings).describe_groups(chosen), told

    results, told = run(settings, work)
    if not results and not told.silent:
        raise Failure("no group matches", remedy="list the groups with `mqctl group list`")
    from mqd.client.errors import ClientError
    from mqd.client.group_descriptions import REBALANCING_STATES

    known = [each for each in results.values() if not isinstance(each, ClientError)]
    now_ms = time.time_ns() // 1_000_000
    found = [_described(each, now_ms) for each in known]
    if settings.output == "table":
        for index, each in enumerate(found):
            write("\n" if index else "")
            rebalances = "rebalancing_since" in each
            write(render.fields({name: value for name, value in each.items() if name != "members"}))
            if each["members"]:
                write("\n")
                columns = (*MEMBERS, render.Column("awaited", "AWAITED")) if rebalances else MEMBERS
                settings.show(
                    columns,
                    [{**row, "partitions": _short(row["partitions"])} for row in each["members"]],
                )
    else:
        settings.show((), found)
    for group in known:
        if group.state in REBALANCING_STATES and group.since_ms < 0:
            say(
                f"group {group.group_id!r} is rebalancing; the log of its coordinator, "
                f"{group.coordinator}, may name the members that it waits for"
            )
    finish(told.beside(results))


def _described(each: GroupDescription, now_ms: int) -> dict[str, Any]:
    rebalances = each.since_ms >= 0
    members = []
    for member in each.members:
        row: dict[str, Any] = {
            "member": member.member_id,
            "instance": member.instance_id,
            "client": member.client_id,
            "host": member.host,
            "rack": member.rack,
            "epoch": member.epoch if member.epoch >= 0 else None,
            "topics": list(member.topics),
            "pattern": member.pattern,
            "partitions": _by_topic(member.assignment),
        }
        if member.target is not None and member.target != member.assignment:
            row["target"] = _by_topic(member.target)
        if rebalances:
            row["awaited"] = member.awaited
        members.append(row)
    return {
        "group": each.group_id,
        "state": each.state,
        **(
            {
                "rebalancing_since": places.format_time(each.since_ms),
                "rebalancing_for": format_duration((now_ms - each.since_ms) / 1000),
            }
            if rebalances
            else {}
        ),
        "type": each.type,
        "protocol_type": each.protocol_type or None,
        "assignor": each.assignor or None,
        "epoch": each.epoch if each.epoch >= 0 else None,
        "coordinator": each.coordinator,
        "members": members,
    }


def _by_topic(partitions: tuple[TopicPartition, ...]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return topics


def _short(topics: Mapping[str, list[int]]) -> str:
    """`orders:0,1 payments:3`"""
    return " ".join(f"{topic}:{','.join(map(str, indexes))}" for topic, indexes in topics.items())


@click.command()
@click.argument("names", nargs=-1, metavar="[GROUP...]")
@click.option("--all", "everything", is_flag=True, help="All groups.")
@click.option(
    "-t",
    "--topic",
    "pattern",
    metavar="PATTERN",
    help="Only topics that match this pattern (* and ?).",
)
@click.option("--total", is_flag=True, help="One line for each group.")
@click.option(
    "--read-committed",
    is_flag=True,
    help="Compute lag up to the last stable offset, not to the high watermark.",
)
@options
def lag(
    settings: Settings,
    names: tuple[str, ...],
    everything: bool,
    pattern: str | None,
    total: bool,
    read_committed: bool,
) -> None:
    """Show the committed offsets and the lag of groups.

    An assigned partition without a committed offset has no lag; --total counts it as uncommitted.
    --all omits groups without any such partition.

    \b
    mqctl group lag billing
    mqctl group lag --all --total -o json
    """
    if everything == bool(names):
        raise click.UsageError("specify groups, or --all")

    async def work(client: ClusterClient) -> tuple[dict[str, Any], Told[ListedGroup]]:
        told = await _listed(client, settings) if everything else Told({})
        wanted = [
            *names,
            *(each.group_id for each in told.rows if each.type in ("", "classic", "consumer")),
        ]
        return dict(
            await _admin(client, settings, patient=not everything).group_lags(
                wanted, read_committed=read_committed
            )
        ), told

    results, told = run(settings, work)
    rows: list[dict[str, Any]] = []
    unknown: list[str] = []
    for name, outcome in results.items():
        if isinstance(outcome, list):
            lags = [
                each for each in outcome if pattern is None or fnmatchcase(each.tp.topic, pattern)
            ]
            if everything and not lags:
                continue
            rows += [_total(name, lags)] if total else [_lag_row(name, each) for each in lags]
            unknown += [f"{each.tp} (group {name!r})" for each in lags if each.end is None]
            if not lags:
                say(
                    f"group {name!r} has no committed offsets"
                    + ("" if pattern is None else " for such topics")
                )
    if everything and not rows and not told.silent:
        say(
            "no group has assigned partitions or committed offsets"
            if pattern is None
            else "no group reads matching topics"
        )
    if rows or settings.output != "table":
        settings.show(TOTALS if total else LAGS, rows)
    if unknown:
        say(
            "lag is unknown where a partition was deleted, has no leader, or its leader does not "
            f"respond: {some_of(unknown, 5)}"
        )
    finish(told.beside(results))


def _total(name: str, lags: list[PartitionLag]) -> dict[str, Any]:
    return {
        "group": name,
        "partitions": len(lags),
        "uncommitted": sum(each.committed is None for each in lags),
        "unknown": sum(each.committed is not None and each.end is None for each in lags),
        "lag": sum(each.lag for each in lags if each.lag is not None),
    }


def _lag_row(name: str, each: PartitionLag) -> dict[str, Any]:
    return {
        "group": name,
        "topic": each.tp.topic,
        "partition": each.tp.partition,
        "committed": None if each.committed is None else each.committed.offset,
        "metadata": None if each.committed is None else each.committed.metadata or None,
        "start": each.start,
        "end": each.end,
        "lag": each.lag,
        "member": None if each.member is None else each.member.member_id,
        "client": None if each.member is None else each.member.client_id,
        "host": None if each.member is None else each.member.host,
    }


@click.command()
@click.argument("name", metavar="GROUP")
@click.argument("partitions", nargs=-1, metavar="[TOPIC[:PARTITION]...]")
@click.option("--to", "place", metavar="PLACE", help=f"New position: {places.HELP}, or current.")
@click.option(
    "--shift", type=int, metavar="N", help="Move each committed offset N forward, or back (-N)."
)
@click.option(
    "-f",
    "--file",
    type=click.File(encoding="utf-8"),
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
    """Reset the committed offsets of a group: of the given partitions, or of all that have one.

    The group must have no members: stop them first. An offset outside of the log becomes the log
    start or the log end. If the group does not exist and you name topics, it is created. Partitions
    without a leader are reported and not changed; the exit code is 3 then.

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
    wish: Wish = 0
    named: list[tuple[str, int | None]] = []
    from_file: dict[TopicPartition, int] | None = None
    try:
        named = [parse_partition(text) for text in partitions]
        if place is not None:
            wish = (
                "current"
                if place == "current"
                else places.parse_place(place, time.time_ns() // 1_000_000)
            )
        elif shift is not None:
            wish = shift
        elif file is not None:
            from_file = parse_file(file.read(), name)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None

    async def work(client: ClusterClient) -> tuple[list[Step], dict[TopicPartition, Any]]:
        admin = _admin(client, settings)
        steps, before, unknown = await _plan(client, settings, name, named, wish, from_file)
        if save_to is not None:
            _save(save_to, before)
        results: dict[TopicPartition, Any] = dict.fromkeys((step.tp for step in steps), None)
        if execute:
            results = dict(
                await admin.alter_group_offsets(name, {step.tp: step.after for step in steps})
            )
        return steps, {**results, **unknown}

    steps, results = run(settings, work)
    rows = [
        {"topic": each.tp.topic, "partition": each.tp.partition, **each._asdict()} for each in steps
    ]
    for row in rows:
        del row["tp"]
    settings.show(PLAN, rows)
    if not execute:
        say("nothing was changed; re-run with --execute to apply the plan")
    elif all(error is None for error in results.values()):
        say(f"the offsets of group {name!r} were reset")
    finish(results)


async def _plan(
    client: ClusterClient,
    settings: Settings,
    name: str,
    named: list[tuple[str, int | None]],
    wish: Wish,
    from_file: dict[TopicPartition, int] | None,
) -> tuple[list[Step], dict[TopicPartition, int], dict[TopicPartition, ClientError]]:
    """What will happen, where the group is now in these partitions, and why for some of them nobody
    can tell what their logs have. Raises Failure, for a group with members too.
    """
    from mqd.client.errors import ClientError
    from mqd.errors import ErrorCode

    admin = _admin(client, settings)
    described = (await admin.describe_groups([name]))[name]
    if isinstance(described, ClientError):
        if described.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise described
    elif described.is_active:
        raise Failure(
            f"group {name!r} is {described.state} with {len(described.members)} member(s), which "
            "would overwrite the new offsets",
            remedy="stop its members first; list them with `mqctl group describe "
            f"{shlex.quote(name)}`",
            exit_code=FAILED,
        )
    committed = (await admin.list_group_offsets([name]))[name]
    if isinstance(committed, ClientError):
        raise committed
    now = {tp: each.offset for tp, each in committed.items()}
    topics = {topic.name: len(topic.partitions) for topic in await admin.list_topics(internal=True)}
    try:
        if from_file is not None:
            wanted = choose([(tp.topic, tp.partition) for tp in from_file], topics)
        elif named:
            wanted = choose(named, topics)
        else:
            wanted = [tp for tp in now if tp.partition < topics.get(tp.topic, 0)]
            if not wanted:
                missing = (
                    "does not exist"
                    if isinstance(described, ClientError)
                    else "has no committed offsets"
                )
                raise Failure(
                    f"group {name!r} {missing}",
                    remedy="name topics to set offsets for, or list the groups with `mqctl group "
                    "list`",
                )
        bounds, unknown = await _bounds(
            _admin(client, settings, patient=False), wanted, getattr(wish, "timestamp_ms", None)
        )
        steps = (
            plan_seek(wish, now, bounds) if from_file is None else plan_file(from_file, now, bounds)
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
    """The bounds, and the errors of the partitions whose leaders do not say, or that have none."""
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


@click.command("remove-member")
@click.argument("name", metavar="GROUP")
@click.option(
    "--member",
    "member_ids",
    multiple=True,
    metavar="ID",
    help="Member id, as shown by `mqctl group describe`; repeatable.",
)
@click.option(
    "--instance",
    "instance_ids",
    multiple=True,
    metavar="ID",
    help="group.instance.id of a static member; repeatable.",
)
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
@options
def remove_member(
    settings: Settings,
    name: str,
    member_ids: tuple[str, ...],
    instance_ids: tuple[str, ...],
    yes: bool,
) -> None:
    """Remove members from a group. The other members take over their partitions.

    Use it for a dead member with a long session timeout, or for one that delays a rebalance
    (AWAITED in `mqctl group describe`). A running member rejoins after its next heartbeat: stop it
    first.

    \b
    mqctl group remove-member billing --instance billing-3
    mqctl group remove-member billing --member consumer-1-5f0c..
    """
    if not member_ids and not instance_ids:
        raise click.UsageError("specify a member: --member ID or --instance ID")

    async def look(client: ClusterClient) -> dict[str, str]:
        from mqd.client.errors import ClientError

        described = (await _admin(client, settings).describe_groups([name]))[name]
        if isinstance(described, ClientError):
            raise described
        places_of: dict[str, str] = {}
        for each in described.members:
            told = (
                f"client {each.client_id!r} at {each.host}, which has "
                f"{_short(_by_topic(each.assignment)) or 'no partitions'}"
            )
            places_of |= {each.member_id: told, each.instance_id or each.member_id: told}
        return places_of

    known = run(settings, look)
    lines = [
        f"{each}: {known.get(each, 'not a member of the group')}"
        for each in (*member_ids, *instance_ids)
    ]
    confirm(
        "\n  ".join([f"This removes from group {name!r}, which then rebalances:", *lines]), yes=yes
    )

    async def work(client: ClusterClient) -> dict[str, Any]:
        reason = "removed by an administrator with mqctl"
        return dict(
            await _admin(client, settings).remove_members(
                name, member_ids=member_ids, instance_ids=instance_ids, reason=reason
            )
        )

    results = run(settings, work)
    settings.show(
        REMOVED, [{"member": each, "removed": error is None} for each, error in results.items()]
    )
    finish(results)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP|PATTERN...")
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
@click.option(
    "--if-exists",
    is_flag=True,
    help="Ignore groups that do not exist, and patterns without matches.",
)
@options
def delete(settings: Settings, names: tuple[str, ...], yes: bool, if_exists: bool) -> None:
    """Delete groups and their offsets. GROUP may be a pattern (* and ?).

    The groups must have no members. This cannot be undone.

    \b
    mqctl group delete billing
    mqctl group delete 'console-consumer-*'      shows the groups that match, and asks
    """
    chosen, told = run(settings, lambda client: _choose(client, settings, names))
    from mqd.client.errors import ClientError
    from mqd.errors import ErrorCode

    empty = [name for name, is_active in chosen.items() if not is_active]
    active = [name for name in chosen if name not in set(empty)]
    if empty:
        staying = (
            f"\nIt keeps {len(active)} group(s) with members: {some_of(active, _CHOSEN_AT_MOST)}"
            if active
            else ""
        )
        staying += (
            f"\nIt skips the groups of unreachable nodes: {some_of(told.silent, _CHOSEN_AT_MOST)}"
            if told.silent
            else ""
        )
        confirm(
            f"This permanently deletes {len(empty)} group(s) and their offsets: "
            f"{some_of(empty, _CHOSEN_AT_MOST)}{staying}",
            yes=yes,
        )
    results: dict[str, Any] = dict(
        run(settings, lambda client: _admin(client, settings).delete_groups(empty)) if empty else {}
    )
    results |= {
        name: ClientError(ErrorCode.NON_EMPTY_GROUP, "the group is not empty") for name in active
    }
    rows = [{"group": name, "deleted": error is None} for name, error in results.items()]
    for name, error in list(results.items()):
        if if_exists and error is not None and error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            say(f"group {name!r} does not exist")
            results[name] = None
    if not chosen and not if_exists and not told.silent:
        raise Failure("no group matches", remedy="list the groups with `mqctl group list`")
    settings.show(DELETED, rows)
    finish(told.beside(results))


async def _choose(
    client: ClusterClient, settings: Settings, names: tuple[str, ...]
) -> tuple[dict[str, bool], Told[ListedGroup]]:
    """The groups that are named, and those that match a pattern, which are known to have members or
    not; and the list in which they were looked for.
    """
    from mqd.client.group_descriptions import EMPTY_STATES

    patterns = [name for name in names if "*" in name or "?" in name]
    chosen = {name: False for name in names if name not in patterns}
    if not patterns:
        return chosen, Told({})
    told = await _listed(client, settings)
    matching = [
        each
        for each in told.rows
        if any(fnmatchcase(each.group_id, pattern) for pattern in patterns)
    ]
    return {each.group_id: each.state not in EMPTY_STATES for each in matching} | chosen, told


@click.command("delete-offsets")
@click.argument("name", metavar="GROUP")
@click.argument("partitions", nargs=-1, required=True, metavar="TOPIC[:PARTITION]...")
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
@options
def delete_offsets(settings: Settings, name: str, partitions: tuple[str, ...], yes: bool) -> None:
    """Delete a group's committed offsets of topics or partitions that no member is subscribed to.

    This cannot be undone.

    \b
    mqctl group delete-offsets billing orders payments:3
    """
    try:
        named = [parse_partition(text) for text in partitions]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    confirm(
        f"This permanently deletes the offsets that group {name!r} has committed for "
        f"{', '.join(partitions)}.",
        yes=yes,
    )

    async def work(client: ClusterClient) -> dict[TopicPartition, Any]:
        from mqd.client.errors import ClientError

        admin = _admin(client, settings)
        committed = (await admin.list_group_offsets([name]))[name]
        if isinstance(committed, ClientError):
            raise committed
        wanted = [
            tp
            for tp in committed
            if any(tp.topic == topic and index in (None, tp.partition) for topic, index in named)
        ]
        return dict(await admin.delete_group_offsets(name, wanted)) if wanted else {}

    results = run(settings, work)
    if not results:
        raise Failure(
            f"group {name!r} has no committed offsets for these partitions",
            remedy=f"list its offsets with `mqctl group lag {shlex.quote(name)}`",
        )
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "deleted": error is None}
        for tp, error in results.items()
    ]
    settings.show(FORGOTTEN, rows)
    finish(results)
