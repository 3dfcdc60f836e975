"""mqctl broker: list, describe, empty and unregister nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from mqctl import render
from mqctl.app import (
    Failure,
    LazyGroup,
    Settings,
    confirm,
    finish,
    in_time,
    options,
    run_timed,
    say,
    write,
)
from mqctl.commands.move import (
    carry_out,
    check_options,
    execution_options,
    fewer_option,
    impossible_code,
    run_watching,
)
from mqctl.moving import complain_of
from mqctl.planning import plan_drain, plan_leaders
from mqctl.quantities import format_bytes
from mqctl.snapshot import Snapshot, directory_row, disks, take
from mqd.errors import some_of
from mqd.types import TopicPartition

if TYPE_CHECKING:
    from mqd.client.admin import Admin
    from mqd.client.cluster import ClusterClient
    from mqd.client.descriptions import LogDirectory
    from mqd.client.errors import ClientError

COMMANDS = {
    "list": (
        "mqctl.commands.broker:list_",
        "List the nodes with their leaders, replicas and disks.",
    ),
    "describe": (
        "mqctl.commands.broker:describe",
        "Describe one node: partitions, disks, configuration.",
    ),
    "drain": (
        "mqctl.commands.broker:drain",
        "Move all replicas off a node, or only its leaderships.",
    ),
    "unregister": (
        "mqctl.commands.broker:unregister",
        "Remove the registration of a node that will not return.",
    ),
}

NODES = (
    render.Column("node", "NODE", right=True),
    render.Column("host", "HOST"),
    render.Column("port", "PORT", right=True),
    render.Column("rack", "RACK"),
    render.Column("state", "STATE"),
    render.Column("leads", "LEADS", right=True),
    render.Column("preferred", "PREFERRED", right=True),
    render.Column("replicas", "REPLICAS", right=True),
    render.Column("not_in_sync", "NOT-IN-SYNC", right=True),
    render.Column("size", "SIZE", right=True),
    render.Column("free", "FREE", right=True),
)
DIRECTORIES = (
    render.Column("path", "DIRECTORY"),
    render.Column("replicas", "REPLICAS", right=True),
    render.Column("size", "SIZE", right=True),
    render.Column("free", "FREE", right=True),
    render.Column("total", "TOTAL", right=True),
    render.Column("error", "ERROR"),
)
_NAMED_AT_MOST = 5
_ROOM = "add a node, or use --allow-fewer-replicas; for maintenance --leaders-only is enough"


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def broker() -> None:
    """List, describe, drain and unregister brokers."""


@click.command("list")
@options
def list_(settings: Settings) -> None:
    """List the nodes with their leaders, replicas and disks.

    PREFERRED counts the partitions of which the node is the preferred leader, NOT-IN-SYNC its
    replicas that are not in the ISR. A fenced node is registered, but the controller receives no
    heartbeats from it. A silent node is not fenced (yet), and did not respond to this command.

    \b
    mqctl broker list
    """

    async def work(
        client: ClusterClient, deadline: float
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        from mqd.client.admin import Admin

        seen = await take(
            Admin(client, timeout_s=settings.timeout_s), deadline, min_isr=False, moves="no"
        )
        told = await disks(
            Admin(client, timeout_s=settings.timeout_s, patient=False), seen.alive, deadline
        )
        return [
            node_row(seen, node.node_id, told.get(node.node_id)) for node in seen.cluster.brokers
        ], _results(told)

    rows, told = run_timed(settings, work)
    if settings.output == "table":
        settings.show(NODES, [_readable(row) for row in rows])
    else:
        settings.show((), rows)
    finish(told)


def _results(told: Mapping[int, list[LogDirectory] | ClientError]) -> dict[str, Any]:
    """For `finish`: what the cluster knows was told in any case, disks by those that were
    asked and did answer.
    """
    return {"the cluster": None, **{f"node {node}": outcome for node, outcome in told.items()}}


def node_row(
    seen: Snapshot, node_id: int, told: list[LogDirectory] | ClientError | None
) -> dict[str, Any]:
    """What a list of nodes says of one, with its disks if they were told."""
    rows = [directory_row(each) for each in told] if isinstance(told, list) else []
    (info,) = (each for each in seen.cluster.brokers if each.node_id == node_id)
    states = seen.partitions.values()
    free = [each["usable_bytes"] for each in rows if each["usable_bytes"] is not None]
    return {
        "node": node_id,
        "host": info.host,
        "port": info.port,
        "rack": info.rack,
        "state": "fenced"
        if node_id in seen.cluster.fenced
        else "alive"
        if told is None or isinstance(told, list)
        else "silent",
        "leads": sum(state.leader == node_id for state in states),
        "preferred": sum(state.replicas[:1] == (node_id,) for state in states),
        "replicas": sum(node_id in state.replicas for state in states),
        "not_in_sync": sum(
            node_id in state.replicas and node_id not in state.isr for state in states
        ),
        "bytes": sum(each["bytes"] for each in rows) if rows else None,
        "usable_bytes": sum(free) if free else None,
    }


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "size": format_bytes(row["bytes"]),
        "free": format_bytes(row["usable_bytes"]),
        "total": format_bytes(row.get("total_bytes")),
    }


@click.command()
@click.argument("node", type=click.IntRange(min=0), metavar="ID")
@options
def describe(settings: Settings, node: int) -> None:
    """Describe one node: partitions, disks, and the options that are set on it.

    \b
    mqctl broker describe 2
    """

    async def work(client: ClusterClient, deadline: float) -> tuple[dict[str, Any], dict[str, Any]]:
        from mqd.client.admin import Admin
        from mqd.client.descriptions import ConfigEntry, ConfigSource, Resource, ResourceType
        from mqd.client.errors import ClientError

        seen = await take(
            Admin(client, timeout_s=settings.timeout_s), deadline, min_isr=False, moves="no"
        )
        _check_known(seen, node)
        admin = Admin(client, timeout_s=settings.timeout_s, patient=False)
        alive = [node] if node in seen.alive else []
        told = await disks(admin, alive, deadline)
        resources = [
            Resource(ResourceType.BROKER, str(each))
            for each in alive
            if not isinstance(told[each], ClientError)
        ]
        results = _results(told)
        described: Mapping[Resource, list[ConfigEntry] | ClientError] = {}
        try:
            with in_time(deadline, f"timed out while reading the configuration of node {node}"):
                described = await admin.describe_configs(resources)
        except ClientError as error:
            results[f"node {node}, configuration"] = error
        config: dict[str, str | None] = {}
        for entries in described.values():
            for entry in entries if not isinstance(entries, ClientError) else ():
                if entry.source in (
                    ConfigSource.DYNAMIC_BROKER_CONFIG,
                    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
                    ConfigSource.STATIC_BROKER_CONFIG,
                ):
                    config[entry.name] = entry.value
        lagging = [
            str(tp)
            for tp, state in seen.partitions.items()
            if node in state.replicas and node not in state.isr
        ]
        directories = [
            directory_row(each)
            for rows in told.values()
            if not isinstance(rows, ClientError)
            for each in rows
        ]
        data = {
            **node_row(seen, node, told.get(node)),
            "lagging": lagging,
            "config": config,
            "directories": directories,
        }
        return data, results

    data, told = run_timed(settings, work)
    if settings.output != "table":
        settings.show_data(data)
    else:
        _show(settings, data)
    finish(told)


def _show(settings: Settings, data: dict[str, Any]) -> None:
    summary = {
        name.replace("_", " "): value
        for name, value in {
            **data,
            "bytes": format_bytes(data["bytes"]),
            "usable_bytes": format_bytes(data["usable_bytes"]),
        }.items()
        if name not in ("directories", "config", "lagging")
    }
    write(render.fields(summary))
    if data["lagging"]:
        write("lagging" + render.GAP + some_of(data["lagging"], _NAMED_AT_MOST) + "\n")
    if data["directories"]:
        write("\n")
        settings.show(DIRECTORIES, [_readable(each) for each in data["directories"]])
    if data["config"]:
        write("\n" + render.fields(data["config"]))


def _check_known(seen: Snapshot, node: int) -> None:
    if all(each.node_id != node for each in seen.cluster.brokers):
        known = ", ".join(str(each.node_id) for each in seen.cluster.brokers)
        raise Failure(
            f"node {node} does not exist; the nodes are {known}",
            remedy="list the nodes with `mqctl broker list`",
        )


@click.command()
@click.argument("node", type=click.IntRange(min=0), metavar="ID")
@click.option(
    "--leaders-only",
    is_flag=True,
    help="For maintenance: move leaderships only. Replicas stay where they are.",
)
@fewer_option(
    "Drop replicas that no other node can take. Their partitions have one replica less then."
)
@execution_options
@options
def drain(
    settings: Settings,
    node: int,
    leaders_only: bool,
    fewer: bool,
    execute: bool,
    throttle: int | None,
    wait: bool,
    save_to: str | None,
) -> None:
    """Move all replicas off a node, or only its leaderships.

    Each replica moves to a rack without a replica of its partition, if possible, and there to the
    node with the fewest replicas. Other replicas stay. The node may be down. While it runs, new
    topics may still be placed on it: stop it when it is empty.

    With --leaders-only the node becomes the last replica in the list of each partition that it
    leads or should lead. To undo this, run `partition move --file` with the file from --save, then
    `partition elect-leader --all`. A clean stop does not need this command: the node hands over its
    leaderships by itself.

    \b
    mqctl broker drain 3                               only shows the plan
    mqctl broker drain 3 --execute --throttle 50M --wait
    mqctl broker drain 3 --leaders-only --save before.json --execute
    """
    check_options(execute, throttle, wait)
    if leaders_only and fewer:
        raise click.UsageError(
            "--allow-fewer-replicas has no effect with --leaders-only, which moves no replicas"
        )

    async def work(client: ClusterClient, deadline: float) -> int:
        from mqd.client.admin import Admin

        admin = Admin(client, timeout_s=settings.timeout_s)
        seen = await take(admin, deadline, min_isr=False)
        _check_known(seen, node)
        if leaders_only:
            in_sync = {tp: state.isr for tp, state in seen.partitions.items()}
            leading = {tp: state.leader for tp, state in seen.partitions.items()}
            plan = plan_leaders(seen.assignments, in_sync, leading, node)
        else:
            plan = plan_drain(seen.assignments, seen.alive, node, fewer=fewer)
        complain_of(plan)
        if plan.impossible and execute and not leaders_only:
            raise Failure(
                f"nothing was moved: {len(plan.impossible)} partitions cannot leave node {node}",
                remedy=_ROOM,
            )
        if plan.impossible and not leaders_only:
            say(_ROOM)
        code = await carry_out(
            settings,
            admin,
            seen,
            plan,
            deadline,
            execute=execute,
            throttle=throttle,
            wait=wait,
            save_to=save_to,
        )
        if leaders_only and execute and plan.moves:
            code = await lead_elsewhere(admin, list(plan.moves), node) or code
        return code or impossible_code(plan)

    code = run_watching(settings, work, execute and wait and not leaders_only)
    if code:
        raise SystemExit(code)


async def lead_elsewhere(admin: Admin, partitions: list[TopicPartition], node: int) -> int:
    """Elect the new preferred leaders; the exit code."""
    from mqctl.app import complain, failure_of
    from mqd.client.descriptions import ElectionType
    from mqd.client.errors import ClientError
    from mqd.errors import ErrorCode

    results = await admin.elect_leaders(ElectionType.PREFERRED, partitions)
    errors = [
        error
        for error in results.values()
        if isinstance(error, ClientError) and error.code is not ErrorCode.ELECTION_NOT_NEEDED
    ]
    for error in errors:
        complain(failure_of(error))
    states = await admin.describe_partitions({tp.topic for tp in partitions})
    left = sum(state.leader == node for state in states.values())
    say(f"node {node} now leads {left or 'none'} of the partitions of these topics")
    return 3 if errors else 0


@click.command()
@click.argument("node", type=click.IntRange(min=0), metavar="ID")
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
@options
def unregister(settings: Settings, node: int, yes: bool) -> None:
    """Remove the registration of a node that will not return.

    The node must be fenced, and have no replicas: drain it first, which also works while it is
    down.

    \b
    mqctl broker unregister 3
    """

    async def work(client: ClusterClient, deadline: float, *, check: bool) -> None:
        from mqd.client.admin import Admin

        admin = Admin(client, timeout_s=settings.timeout_s)
        if not check:
            await admin.unregister_broker(node)
            return
        seen = await take(admin, deadline, min_isr=False)
        _check_known(seen, node)
        if node in seen.alive:
            raise Failure(
                f"node {node} is still alive",
                remedy="stop it, and wait until `mqctl broker list` shows it as fenced",
            )
        held = sum(node in state.replicas for state in seen.partitions.values())
        if held:
            raise Failure(
                f"node {node} still has replicas of {held} partitions",
                remedy=f"move them to other nodes: `mqctl broker drain {node} --execute`",
            )

    run_timed(settings, lambda client, deadline: work(client, deadline, check=True))
    confirm(f"This removes the registration of node {node}.", yes=yes)
    run_timed(settings, lambda client, deadline: work(client, deadline, check=False))
    if settings.output != "table":
        settings.show_data({"node": node, "unregistered": True})
    say(f"node {node} is unregistered")
