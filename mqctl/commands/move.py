"""mqctl partition move, move-status, move-cancel: replicas go to other nodes (KIP-455)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import IO, TYPE_CHECKING, Any

import click

from mqctl import render
from mqctl.app import FAILED, PARTIAL, Failure, Settings, finish, options, run, run_timed, say
from mqctl.commands.partition import expand
from mqctl.moving import (
    PLAN,
    begin,
    check_done,
    complain_of,
    plan_rows,
    reassignment_rows,
    save,
    shown,
    throttled_by,
    unthrottle,
    watch,
)
from mqctl.planning import (
    Assignment,
    Move,
    Plan,
    parse_json,
    parse_partition,
    parse_target,
    plan_swap,
    plan_targets,
)
from mqctl.quantities import format_bytes, parse_bytes
from mqctl.snapshot import Snapshot, moves_under_way, sizes, take
from mqd.types import TopicPartition

if TYPE_CHECKING:
    from mqd.client.admin import Admin
    from mqd.client.cluster import ClusterClient
    from mqd.client.errors import ClientError

MOVES = (
    render.Column("topic", "TOPIC"),
    render.Column("partition", "PARTITION", right=True),
    render.Column("replicas", "REPLICAS"),
    render.Column("adding", "ADDS"),
    render.Column("removing", "REMOVES"),
    render.Column("left", "LEFT", right=True),
    render.Column("stands_still", "STALLED"),
)
CANCELLED = (
    render.Column("topic", "TOPIC"),
    render.Column("partition", "PARTITION", right=True),
    render.Column("cancelled", "CANCELLED"),
)
GOES_ON = (
    "the moves continue in the cluster: show them with `mqctl partition move-status`, cancel "
    "them with `mqctl partition move-cancel`"
)
THROTTLE_STAYS = (
    "the throttle stays until you remove it: `mqctl partition move-status --wait` or "
    "`--clear-throttle`"
)


class Rate(click.ParamType[int]):
    """Bytes per second."""

    name = "BYTES/s"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def execution_options(function: Any) -> Any:
    """What `move` and `broker drain` have in common."""
    for option in (
        click.option(
            "--save",
            "save_to",
            metavar="FILE",
            help="Save the current assignments; `move --file FILE` restores them.",
        ),
        click.option(
            "--wait",
            is_flag=True,
            help="With --execute: show progress, wait until all moves are done, then remove the "
            "throttle.",
        ),
        click.option(
            "--throttle",
            type=Rate(),
            help="With --execute: limit of the replication rate of each node, in bytes per second, "
            "for example 50M.",
        ),
        click.option(
            "--execute",
            is_flag=True,
            help="Apply the plan. Without --execute, the command only shows it.",
        ),
    ):
        function = option(function)
    return function


def fewer_option(text: str) -> Callable[[Any], Any]:
    """--allow-fewer-replicas, of `move` and `broker drain`."""
    return click.option("--allow-fewer-replicas", "fewer", is_flag=True, help=text)


def check_options(execute: bool, throttle: int | None, wait: bool) -> None:
    if not execute and (throttle is not None or wait):
        raise click.UsageError("--throttle and --wait require --execute")


@click.command()
@click.argument("targets", nargs=-1, metavar="[TOPIC:PARTITION=NODE,..]...")
@click.option(
    "--from",
    "leaving",
    type=click.IntRange(min=0),
    metavar="ID",
    help="Move all replicas from this node to the node of --to.",
)
@click.option(
    "--to", "joining", type=click.IntRange(min=0), metavar="ID", help="The target node of --from."
)
@click.option(
    "-t",
    "--topic",
    "pattern",
    metavar="PATTERN",
    help="With --from: only topics that match this pattern (* and ?).",
)
@click.option(
    "-f",
    "--file",
    type=click.File(encoding="utf-8"),
    help="JSON file in the format of kafka-reassign-partitions (- for stdin).",
)
@fewer_option("Permit a target with fewer replicas than the partition has.")
@execution_options
@options
def move(
    settings: Settings,
    targets: tuple[str, ...],
    leaving: int | None,
    joining: int | None,
    pattern: str | None,
    file: IO[str] | None,
    fewer: bool,
    execute: bool,
    throttle: int | None,
    wait: bool,
    save_to: str | None,
) -> None:
    """Move partitions to other nodes.

    A target lists all replicas of a partition, the preferred leader first. It needs at least as
    many nodes as the partition has replicas, unless you add --allow-fewer-replicas. Clients can
    read and write during the move: old replicas are deleted only after the new ones are in sync.

    \b
    mqctl partition move orders:0=1,2,4                         only shows the plan
    mqctl partition move orders:0=1,2,4 --execute --wait        applies it
    mqctl partition move --from 3 --to 4 --execute --throttle 50M
    mqctl partition move --file moves.json --save before.json --execute
    """
    check_options(execute, throttle, wait)
    if (leaving is None) != (joining is None) or (leaving is not None and leaving == joining):
        raise click.UsageError("--from and --to must be used together, with two different nodes")
    if [bool(targets), leaving is not None, file is not None].count(True) != 1:
        raise click.UsageError(
            "specify one of TOPIC:PARTITION=NODE,.., --from ID --to ID, and --file FILE"
        )
    if pattern is not None and leaving is None:
        raise click.UsageError("--topic requires --from and --to")
    if fewer and leaving is not None:
        raise click.UsageError("--allow-fewer-replicas has no effect with --from and --to")
    wanted = _targets(targets, file)

    def plan(seen: Snapshot) -> Plan:
        if leaving is None or joining is None:
            return plan_targets(seen.assignments, wanted, seen.alive, fewer=fewer)
        if not any(broker.node_id == leaving for broker in seen.cluster.brokers) and not _holds(
            seen, leaving
        ):
            raise Failure(
                f"node {leaving} is unknown, and has no replicas",
                remedy="list the nodes with `mqctl broker list`",
            )
        if joining not in seen.alive:
            raise Failure(
                f"node {joining} is unknown or not alive",
                remedy="list the nodes with `mqctl broker list`",
            )
        chosen = {
            tp: nodes
            for tp, nodes in seen.assignments.items()
            if pattern is None or fnmatchcase(tp.topic, pattern)
        }
        return plan_swap(chosen, leaving, joining)

    topics = {tp.topic for tp in wanted} or None

    async def work(client: ClusterClient, deadline: float) -> int:
        from mqd.client.admin import Admin

        admin = Admin(client, timeout_s=settings.timeout_s)
        seen = await take(admin, deadline, topics, min_isr=False)
        made = plan(seen)
        complain_of(made)
        if made.impossible and not made.moves:
            raise Failure("no partition can be moved", remedy="see the reasons above")
        if made.impossible and execute:
            raise Failure(
                "nothing was moved: some of the moves are impossible",
                remedy="remove the partitions named above from the request, then try again",
            )
        code = await carry_out(
            settings,
            admin,
            seen,
            made,
            deadline,
            execute=execute,
            throttle=throttle,
            wait=wait,
            save_to=save_to,
        )
        return code or impossible_code(made)

    _end(run_watching(settings, work, execute and wait))


def _targets(targets: tuple[str, ...], file: IO[str] | None) -> dict[TopicPartition, Assignment]:
    try:
        if file is not None:
            return parse_json(file.read())
        parsed = [parse_target(text) for text in targets]
    except (ValueError, UnicodeDecodeError) as error:
        raise click.BadParameter(str(error) if file is None else f"{file.name}: {error}") from None
    wanted = dict(parsed)
    if len(wanted) < len(parsed):
        raise click.BadParameter("a partition appears twice")
    return wanted


def _holds(seen: Snapshot, node: int) -> bool:
    """Some clusters do not list a node that is dead: its replicas tell of it."""
    return any(node in nodes for nodes in seen.assignments.values())


def run_watching(settings: Settings, work: Any, watching: bool) -> int:
    """As `run_timed`; who stops watching is told that the moves go on."""
    try:
        code: int = run_timed(settings, work)
    except KeyboardInterrupt:
        if watching:
            say(GOES_ON)
        raise
    return code


def impossible_code(plan: Plan) -> int:
    """The exit code for what a plan could not do."""
    return 0 if not plan.impossible else PARTIAL if plan.moves else FAILED


def _end(code: int) -> None:
    if code:
        raise SystemExit(code)


async def carry_out(
    settings: Settings,
    admin: Admin,
    seen: Snapshot,
    plan: Plan,
    deadline: float,
    *,
    execute: bool,
    throttle: int | None,
    wait: bool,
    save_to: str | None,
) -> int:
    """Show the plan, by `deadline`, and do it if that is wanted; returns the exit code."""
    alive = seen.alive
    rows = plan_rows(plan.moves, await sizes(admin, alive, deadline))
    if rows or settings.output != "table":
        settings.show(PLAN, shown(rows) if settings.output == "table" else rows)
    if not rows:
        say("nothing to move")
        return 0
    copied = [row["bytes_to_copy"] for row in rows]
    total = "" if None in copied else f", {format_bytes(sum(copied))} to copy"
    busy = [tp for tp in plan.moves if tp in seen.moves]
    if busy:
        say(
            f"{len(busy)} of these partitions are already being moved: the new target will replace "
            "the old one"
        )
    if save_to is not None:
        save(save_to, {tp: seen.assignments[tp] for tp in plan.moves})
    if not execute:
        say(
            f"{len(rows)} partition{'s' if len(rows) > 1 else ''} to move{total}; nothing was "
            "changed; re-run with --execute to apply the plan"
        )
        return 0
    results = await begin(admin, plan.moves, list(alive), throttle)
    begun = {tp: plan.moves[tp] for tp, error in results.items() if error is None}
    say(f"{len(begun)} of {len(results)} moves started{total}")
    if wait and begun:
        code = await _wait(admin, begun, seen, throttled=throttle is not None)
    else:
        code = 0
        if any(move.adding or move.removing for move in begun.values()):
            say(GOES_ON)
        if throttle is not None and throttled_by(begun, alive):
            say(THROTTLE_STAYS)
    return _report(results) or code


async def _wait(
    admin: Admin, begun: Mapping[TopicPartition, Move], seen: Snapshot, *, throttled: bool
) -> int:
    await watch(admin, begun, list(seen.alive))
    if throttled:
        await unthrottle(admin, throttled_by(begun, seen.alive))
    wrong = await check_done(admin, begun)
    for tp, reason in sorted(wrong.items()):
        say(f"{tp} was not moved as planned: {reason}")
    return 0 if not wrong else PARTIAL if len(wrong) < len(begun) else FAILED


def _report(results: Mapping[TopicPartition, ClientError | None]) -> int:
    """Complain of what was refused; the exit code."""
    try:
        finish(results)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@click.command("move-status")
@click.option(
    "--wait",
    is_flag=True,
    help="Show progress, wait until all moves are done, then remove the throttle.",
)
@click.option(
    "--clear-throttle",
    is_flag=True,
    help="Remove all replication throttles, also those set by others; moves continue at full "
    "speed.",
)
@options
def move_status(settings: Settings, wait: bool, clear_throttle: bool) -> None:
    """Show the moves in progress.

    If a throttle is still set after all moves are done, the command reports it: it would slow down
    the next replica that has to catch up.

    \b
    mqctl partition move-status
    mqctl partition move-status --wait
    """

    async def work(client: ClusterClient, deadline: float) -> int:
        from mqd.client.admin import Admin
        from mqd.client.throttle import clear_throttle as clear, find_throttle

        admin = Admin(client, timeout_s=settings.timeout_s)
        seen = await take(admin, deadline, min_isr=False)
        impatient = Admin(client, timeout_s=settings.timeout_s, patient=False)
        rows = (
            reassignment_rows(seen, await sizes(impatient, seen.alive, deadline))
            if seen.moves
            else []
        )
        if rows or settings.output != "table":
            settings.show(
                MOVES,
                [{**row, "left": format_bytes(row["bytes_left"])} for row in rows]
                if settings.output == "table"
                else rows,
            )
        if not rows:
            say("no moves in progress")
        if any(row["stands_still"] for row in rows):
            say(
                "stalled moves continue when the node is back; to restore the old replicas "
                "instead: `mqctl partition move-cancel`"
            )
        if wait and seen.moves:
            await watch(admin, seen.moves, list(seen.alive))
        if seen.moves and not wait and not clear_throttle:
            return 0
        throttled = await find_throttle(
            admin, sorted({tp.topic for tp in seen.partitions}), sorted(seen.alive)
        )
        if not throttled:
            if clear_throttle:
                say("no throttle is set")
            return 0
        what = ", ".join(
            [
                *(f"topic {name}" for name in throttled.topics),
                *(f"node {node}" for node in throttled.nodes),
            ]
        )
        if clear_throttle:
            errors = await clear(admin, throttled)
            finish({resource: errors.get(resource) for resource in errors})
            say(f"throttle removed from {what}")
        elif wait:
            if await unthrottle(admin, throttled):
                say(f"throttle removed from {what}")
        else:
            say(f"a throttle is still set on {what}: remove it with --clear-throttle")
        return 0

    _end(run_watching(settings, work, wait))


@click.command("move-cancel")
@click.argument("partitions", nargs=-1, metavar="[TOPIC[:PARTITION]...]")
@click.option("--all", "everything", is_flag=True, help="All moves in progress.")
@options
def move_cancel(settings: Settings, partitions: tuple[str, ...], everything: bool) -> None:
    """Cancel moves, and restore the replicas from before.

    Partial copies are deleted. When no moves remain, the throttle is removed, too.

    \b
    mqctl partition move-cancel orders:0
    mqctl partition move-cancel --all
    """
    if everything == bool(partitions):
        raise click.UsageError("specify partitions (TOPIC or TOPIC:PARTITION), or --all")
    try:
        named = [parse_partition(text) for text in partitions]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None

    async def work(client: ClusterClient) -> dict[TopicPartition, ClientError | None]:
        from mqd.client.admin import Admin
        from mqd.client.throttle import find_throttle

        admin = Admin(client, timeout_s=settings.timeout_s)
        moving = await moves_under_way(admin)
        chosen = list(moving)
        if not everything:
            chosen = await expand(admin, named)
            whole = {topic for topic, index in named if index is None}
            chosen = [tp for tp in chosen if tp in moving or tp.topic not in whole]
        results = await admin.alter_partition_reassignments(dict.fromkeys(chosen))
        if any(error is None for error in results.values()) and not await moves_under_way(admin):
            cluster = await admin.describe_cluster()
            alive = sorted(
                broker.node_id for broker in cluster.brokers if broker.node_id not in cluster.fenced
            )
            throttled = await find_throttle(admin, sorted({tp.topic for tp in chosen}), alive)
            if throttled:
                await unthrottle(admin, throttled)
        return dict(results)

    results = run(settings, work)
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "cancelled": error is None}
        for tp, error in results.items()
    ]
    if not rows:
        say("no moves in progress")
    if rows or settings.output != "table":
        settings.show(CANCELLED, rows)
    finish(results)
