"""mqctl broker: list, describe, drain and unregister brokers."""

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
    in_time,
    options,
    print_error,
    print_message,
    run_timed,
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
from mqctl.configs import shown_configs
from mqctl.moving import print_impossible_moves
from mqctl.outcomes import finish
from mqctl.planning import MovePlan, plan_drain, plan_leaders
from mqctl.quantities import format_bytes
from mqctl.snapshot import Snapshot, directory_row, disks, take_snapshot
from mqd.errors import ErrorCode, some_of
from mqd.types import TopicPartition

if TYPE_CHECKING:
    from mqd.client.admin import Admin
    from mqd.client.cluster import ClusterClient
    from mqd.client.descriptions import LogDirectory
    from mqd.client.errors import ClientError

COMMANDS = {
    "list": (
        "mqctl.commands.broker:list_",
        "List the brokers with their leaders, replicas and disks.",
    ),
    "describe": (
        "mqctl.commands.broker:describe",
        "Describe one broker: partitions, disks, configuration.",
    ),
    "drain": (
        "mqctl.commands.broker:drain",
        "Move all replicas off a broker, or only its leaderships.",
    ),
    "unregister": (
        "mqctl.commands.broker:unregister",
        "Remove the registration of a broker that will not return.",
    ),
}

BROKERS = (
    render.Column("broker", "BROKER", right=True),
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
_ROOM = "add a broker, or use --allow-fewer-replicas; for maintenance --leaders-only is enough"


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def broker() -> None:
    """List, describe, drain and unregister brokers."""


@click.command("list")
@options
def list_(settings: Settings) -> None:
    """List the brokers with their leaders, replicas and disks.

    PREFERRED counts the partitions whose preferred leader is the broker, NOT-IN-SYNC its replicas
    that are not in the ISR. A fenced broker is registered, but the controller receives no
    heartbeats from it. A silent broker is not fenced (yet), but did not respond to this command.
    SIZE and FREE need DESCRIBE on the cluster.

    \b
    mqctl broker list
    """

    async def work(
        client: ClusterClient, deadline: float
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        from mqd.client.admin import Admin

        snapshot = await take_snapshot(
            Admin(client, timeout_s=settings.timeout_s), deadline, min_isr=False, moves="no"
        )
        log_dirs = await disks(
            Admin(client, timeout_s=settings.timeout_s, patient=False), snapshot.alive, deadline
        )
        return [
            broker_row(snapshot, each.node_id, log_dirs.get(each.node_id))
            for each in snapshot.cluster.brokers
        ], _results(log_dirs)

    rows, results = run_timed(settings, work)
    if settings.output == "table":
        settings.show(BROKERS, [_readable(row) for row in rows])
    else:
        settings.show((), rows)
    finish(results)


def _results(log_dirs: Mapping[int, list[LogDirectory] | ClientError]) -> dict[str, Any]:
    """For `finish`: the log directories of each broker, and one success for the rest of the
    output, which is always there.
    """
    return {
        "the cluster": None,
        **{f"broker {broker_id}": outcome for broker_id, outcome in log_dirs.items()},
    }


def broker_row(
    snapshot: Snapshot, broker_id: int, log_dirs: list[LogDirectory] | ClientError | None
) -> dict[str, Any]:
    """One broker as a row, with the sizes of its log directories if they are known."""
    rows = [directory_row(each) for each in log_dirs] if isinstance(log_dirs, list) else []
    (info,) = (each for each in snapshot.cluster.brokers if each.node_id == broker_id)
    states = snapshot.partitions.values()
    free = [each["usable_bytes"] for each in rows if each["usable_bytes"] is not None]
    return {
        "broker": broker_id,
        "host": info.host,
        "port": info.port,
        "rack": info.rack,
        "state": "fenced"
        if broker_id in snapshot.cluster.fenced
        else "alive"
        if log_dirs is None
        or isinstance(log_dirs, list)
        or log_dirs.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        else "silent",
        "leads": sum(state.leader == broker_id for state in states),
        "preferred": sum(state.replicas[:1] == (broker_id,) for state in states),
        "replicas": sum(broker_id in state.replicas for state in states),
        "not_in_sync": sum(
            broker_id in state.replicas and broker_id not in state.isr for state in states
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
@click.argument("broker_id", type=click.IntRange(min=0), metavar="ID")
@options
def describe(settings: Settings, broker_id: int) -> None:
    """Describe one broker: partitions, disks, and the options that are set on it.

    \b
    mqctl broker describe 2
    """

    async def work(client: ClusterClient, deadline: float) -> tuple[dict[str, Any], dict[str, Any]]:
        from mqd.client.admin import Admin
        from mqd.client.descriptions import ConfigEntry, ConfigSource, Resource, ResourceType
        from mqd.client.errors import ClientError

        snapshot = await take_snapshot(
            Admin(client, timeout_s=settings.timeout_s), deadline, min_isr=False, moves="no"
        )
        _check_known(snapshot, broker_id)
        admin = Admin(client, timeout_s=settings.timeout_s, patient=False)
        alive = [broker_id] if broker_id in snapshot.alive else []
        log_dirs = await disks(admin, alive, deadline)
        resources = [
            Resource(ResourceType.BROKER, str(each))
            for each in alive
            if not isinstance(log_dirs[each], ClientError)
        ]
        results = _results(log_dirs)
        described: Mapping[Resource, list[ConfigEntry] | ClientError] = {}
        try:
            with in_time(
                deadline, f"timed out while reading the configuration of broker {broker_id}"
            ):
                described = await admin.describe_configs(resources, documentation=True)
        except ClientError as error:
            results[f"broker {broker_id}, configuration"] = error
        set_here: list[ConfigEntry] = []
        for entries in described.values():
            for entry in entries if not isinstance(entries, ClientError) else ():
                if entry.source in (
                    ConfigSource.DYNAMIC_BROKER_CONFIG,
                    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
                    ConfigSource.STATIC_BROKER_CONFIG,
                ):
                    set_here.append(entry)
        lagging = [
            str(tp)
            for tp, state in snapshot.partitions.items()
            if broker_id in state.replicas and broker_id not in state.isr
        ]
        directories = [
            directory_row(each)
            for rows in log_dirs.values()
            if not isinstance(rows, ClientError)
            for each in rows
        ]
        data = {
            **broker_row(snapshot, broker_id, log_dirs.get(broker_id)),
            "lagging": lagging,
            **shown_configs(set_here, settings),
            "directories": directories,
        }
        return data, results

    data, results = run_timed(settings, work)
    if settings.output != "table":
        settings.show_data(data)
    else:
        _show(settings, data)
    finish(results)


def _show(settings: Settings, data: dict[str, Any]) -> None:
    summary = {
        name.replace("_", " "): value
        for name, value in {
            **data,
            "size": format_bytes(data["bytes"]),
            "free": format_bytes(data["usable_bytes"]),
        }.items()
        if name not in ("directories", "config", "lagging", "bytes", "usable_bytes")
    }
    write(render.fields(summary))
    if data["lagging"]:
        write("lagging" + render.GAP + some_of(data["lagging"], _NAMED_AT_MOST) + "\n")
    if data["directories"]:
        write("\n")
        settings.show(DIRECTORIES, [_readable(each) for each in data["directories"]])
    if data["config"]:
        write("\n" + render.fields(data["config"]))


def _check_known(snapshot: Snapshot, broker_id: int) -> None:
    if all(each.node_id != broker_id for each in snapshot.cluster.brokers):
        known = ", ".join(str(each.node_id) for each in snapshot.cluster.brokers)
        raise Failure(
            f"broker {broker_id} does not exist; existing brokers: {known}",
            remedy="list the brokers with `mqctl broker list`",
        )


def _cannot_leave(plan: MovePlan, broker_id: int, *, execute: bool, leaders_only: bool) -> Failure:
    """The failure of a drain that has impossible moves."""
    what = "leadership" if leaders_only else "replica"
    if not plan.moves:
        message = f"no {what} can leave broker {broker_id}"
    else:
        count = len(plan.impossible) + len(plan.moves)
        message = f"{len(plan.impossible)} of {count} {what}s cannot leave broker {broker_id}"
    if execute and not leaders_only:
        message = f"nothing was moved: {message}"
    remedy = "restart the other replicas of these partitions" if leaders_only else _ROOM
    return Failure(message, remedy=remedy)


@click.command()
@click.argument("broker_id", type=click.IntRange(min=0), metavar="ID")
@click.option(
    "--leaders-only",
    is_flag=True,
    help="For maintenance: move leaderships only. Replicas stay where they are.",
)
@fewer_option(
    "Drop replicas that no other broker can take. Their partitions then have fewer replicas."
)
@execution_options
@options
def drain(
    settings: Settings,
    broker_id: int,
    leaders_only: bool,
    fewer: bool,
    execute: bool,
    throttle: int | None,
    wait: bool,
    save_to: str | None,
) -> None:
    """Move all replicas off a broker, or only its leaderships.

    Each replica moves to a rack without a replica of its partition, if possible, and there to the
    broker with the fewest replicas. Other replicas stay. The broker may be down. While it runs, it
    may still get replicas of new topics: stop it when it is empty.

    With --leaders-only the broker becomes the last replica in the list of each partition that it
    leads or should lead. To undo this, run `partition move --file` with the file from --save, then
    `partition elect-leader --all`. A controlled shutdown does not need this command: the broker
    then hands over its leaderships by itself.

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
        snapshot = await take_snapshot(admin, deadline, min_isr=False)
        _check_known(snapshot, broker_id)
        if leaders_only:
            in_sync = {tp: state.isr for tp, state in snapshot.partitions.items()}
            leading = {tp: state.leader for tp, state in snapshot.partitions.items()}
            plan = plan_leaders(snapshot.assignments, in_sync, leading, broker_id)
        else:
            plan = plan_drain(snapshot.assignments, snapshot.alive, broker_id, fewer=fewer)
        print_impossible_moves(plan)
        if plan.impossible:
            failure = _cannot_leave(plan, broker_id, execute=execute, leaders_only=leaders_only)
            if not plan.moves or (execute and not leaders_only):
                raise failure
            print_error(failure)
        code = await carry_out(
            settings,
            admin,
            snapshot,
            plan,
            deadline,
            execute=execute,
            throttle=throttle,
            wait=wait,
            save_to=save_to,
        )
        if leaders_only and execute and plan.moves:
            code = await elect_other_leaders(admin, list(plan.moves), broker_id) or code
        return code or impossible_code(plan)

    code = run_watching(settings, work, execute and wait and not leaders_only)
    if code:
        raise SystemExit(code)


async def elect_other_leaders(
    admin: Admin, partitions: list[TopicPartition], broker_id: int
) -> int:
    """Elect the new preferred leaders; returns the exit code."""
    from mqctl.app import failure_of
    from mqd.client.descriptions import ElectionType
    from mqd.client.errors import ClientError

    results = await admin.elect_leaders(ElectionType.PREFERRED, partitions)
    errors = [
        error
        for error in results.values()
        if isinstance(error, ClientError) and error.code is not ErrorCode.ELECTION_NOT_NEEDED
    ]
    for error in errors:
        print_error(failure_of(error))
    states = await admin.describe_partitions({tp.topic for tp in partitions})
    left = sum(state.leader == broker_id for state in states.values())
    print_message(
        f"broker {broker_id} now leads {left or 'none'} of the partitions of these topics"
    )
    return 3 if errors else 0


@click.command()
@click.argument("broker_id", type=click.IntRange(min=0), metavar="ID")
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
@options
def unregister(settings: Settings, broker_id: int, yes: bool) -> None:
    """Remove the registration of a broker that will not return.

    The broker must be fenced, and have no replicas: drain it first, which also works while it is
    down.

    \b
    mqctl broker unregister 3
    """

    async def work(client: ClusterClient, deadline: float, *, check: bool) -> None:
        from mqd.client.admin import Admin

        admin = Admin(client, timeout_s=settings.timeout_s)
        if not check:
            await admin.unregister_broker(broker_id)
            return
        snapshot = await take_snapshot(admin, deadline, min_isr=False)
        _check_known(snapshot, broker_id)
        if broker_id in snapshot.alive:
            raise Failure(
                f"broker {broker_id} is still alive",
                remedy="stop it, and wait until `mqctl broker list` shows it as fenced",
            )
        replicas = sum(broker_id in state.replicas for state in snapshot.partitions.values())
        if replicas:
            raise Failure(
                f"broker {broker_id} still has replicas of {replicas} partitions",
                remedy=f"move them to other brokers: `mqctl broker drain {broker_id} --execute`",
            )

    run_timed(settings, lambda client, deadline: work(client, deadline, check=True))
    confirm(f"This removes the registration of broker {broker_id}.", yes=yes)
    run_timed(settings, lambda client, deadline: work(client, deadline, check=False))
    if settings.output != "table":
        settings.show_data({"broker": broker_id, "unregistered": True})
    print_message(f"broker {broker_id} is unregistered")
