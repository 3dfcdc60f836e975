"""mqctl partition move: moves replicas to other brokers (KIP-455), as does `broker drain`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import IO, TYPE_CHECKING, Any

import click

from mqctl.app import (
    FAILED,
    PARTIAL,
    Failure,
    Settings,
    options,
    print_error,
    print_message,
    run_timed,
)
from mqctl.moving import (
    PLAN,
    check_done,
    plan_rows,
    print_impossible_moves,
    save,
    start_moves,
    throttled_by,
    unthrottle,
    watch,
    with_readable_sizes,
)
from mqctl.outcomes import finish
from mqctl.planning import (
    Assignment,
    Move,
    MovePlan,
    parse_json,
    parse_target,
    plan_swap,
    plan_targets,
)
from mqctl.quantities import format_bytes, parse_bytes
from mqctl.snapshot import Snapshot, sizes, take_snapshot
from mqd.types import TopicPartition

if TYPE_CHECKING:
    from mqd.client.admin import Admin
    from mqd.client.cluster import ClusterClient
    from mqd.client.errors import ClientError

MOVES_CONTINUE = (
    "the moves continue in the cluster: show them with `mqctl partition move-status`, cancel "
    "them with `mqctl partition move-cancel`"
)
THROTTLE_REMAINS = (
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
    """Add --execute, --throttle, --wait and --save, the options of `move` and `broker drain`."""
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
            help="With --execute: limit each broker's replication to this many bytes per second; "
            "50M is 50,000,000, 50MiB is 52,428,800.",
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
    """The option --allow-fewer-replicas of `move` and `broker drain`."""
    return click.option("--allow-fewer-replicas", "fewer", is_flag=True, help=text)


def check_options(execute: bool, throttle: int | None, wait: bool) -> None:
    if not execute and (throttle is not None or wait):
        raise click.UsageError("--throttle and --wait require --execute")


@click.command()
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option(
    "--from",
    "leaving",
    type=click.IntRange(min=0),
    metavar="ID",
    help="Move all replicas of this broker to the broker of --to.",
)
@click.option(
    "--to", "joining", type=click.IntRange(min=0), metavar="ID", help="The target broker of --from."
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
    metavar="FILE",
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
    """Move partitions to other brokers.

    TARGET is TOPIC:PARTITION=BROKER,.. and lists all replicas of a partition, the preferred leader
    first. It needs at least as many brokers as the partition has replicas, unless you add
    --allow-fewer-replicas. Clients can read and write during the move: old replicas are deleted
    only after the new ones are in sync.

    \b
    mqctl partition move orders:0=1,2,4                         only shows the plan
    mqctl partition move orders:0=1,2,4 --execute --wait        applies it
    mqctl partition move --from 3 --to 4 --execute --throttle 50M
    mqctl partition move --file moves.json --save before.json --execute
    """
    check_options(execute, throttle, wait)
    if (leaving is None) != (joining is None) or (leaving is not None and leaving == joining):
        raise click.UsageError("--from and --to must be used together, with two different brokers")
    if [bool(targets), leaving is not None, file is not None].count(True) != 1:
        raise click.UsageError(
            "specify one of TOPIC:PARTITION=BROKER,.., --from ID --to ID, and --file FILE"
        )
    if pattern is not None and leaving is None:
        raise click.UsageError("--topic requires --from and --to")
    if fewer and leaving is not None:
        raise click.UsageError("--allow-fewer-replicas has no effect with --from and --to")
    wanted = _targets(targets, file)

    def plan(snapshot: Snapshot) -> MovePlan:
        if leaving is None or joining is None:
            return plan_targets(snapshot.assignments, wanted, snapshot.alive, fewer=fewer)
        if not any(
            broker.node_id == leaving for broker in snapshot.cluster.brokers
        ) and not _has_replicas(snapshot, leaving):
            raise Failure(
                f"broker {leaving} is unknown, and has no replicas",
                remedy="list the brokers with `mqctl broker list`",
            )
        if joining not in snapshot.alive:
            raise Failure(
                f"broker {joining} is unknown or not alive",
                remedy="list the brokers with `mqctl broker list`",
            )
        chosen = {
            tp: brokers
            for tp, brokers in snapshot.assignments.items()
            if pattern is None or fnmatchcase(tp.topic, pattern)
        }
        return plan_swap(chosen, leaving, joining)

    topics = {tp.topic for tp in wanted} or None

    async def work(client: ClusterClient, deadline: float) -> int:
        from mqd.client.admin import Admin

        admin = Admin(client, timeout_s=settings.timeout_s)
        snapshot = await take_snapshot(admin, deadline, topics, min_isr=False)
        planned = plan(snapshot)
        print_impossible_moves(planned)
        if planned.impossible and not planned.moves:
            raise Failure("no partition can be moved", remedy="see the reasons above")
        if planned.impossible and execute:
            raise Failure(
                "nothing was moved: some of the moves are impossible",
                remedy="remove the partitions named above from the request, then try again",
            )
        code = await carry_out(
            settings,
            admin,
            snapshot,
            planned,
            deadline,
            execute=execute,
            throttle=throttle,
            wait=wait,
            save_to=save_to,
        )
        return code or impossible_code(planned)

    end_with(run_watching(settings, work, execute and wait))


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


def _has_replicas(snapshot: Snapshot, broker_id: int) -> bool:
    """Whether the broker has replicas. Some clusters list no dead brokers."""
    return any(broker_id in brokers for brokers in snapshot.assignments.values())


def run_watching(settings: Settings, work: Any, watching: bool) -> int:
    """Like `run_timed`. After Ctrl-C with `watching`, print that the moves continue."""
    try:
        code: int = run_timed(settings, work)
    except KeyboardInterrupt:
        if watching:
            print_message(MOVES_CONTINUE)
        raise
    return code


def impossible_code(plan: MovePlan) -> int:
    """The exit code for the impossible moves of a plan."""
    return 0 if not plan.impossible else PARTIAL if plan.moves else FAILED


def end_with(code: int) -> None:
    if code:
        raise SystemExit(code)


async def carry_out(
    settings: Settings,
    admin: Admin,
    snapshot: Snapshot,
    plan: MovePlan,
    deadline: float,
    *,
    execute: bool,
    throttle: int | None,
    wait: bool,
    save_to: str | None,
) -> int:
    """Show the plan; with `execute`, carry it out. Returns the exit code.

    Sizes of replicas that are unknown at `deadline` are not shown.
    """
    alive = snapshot.alive
    rows = plan_rows(plan.moves, await sizes(admin, alive, deadline))
    settings.show_found(PLAN, with_readable_sizes(rows) if settings.output == "table" else rows)
    if not rows:
        print_message("nothing to move")
        return 0
    copied = [row["bytes_to_copy"] for row in rows]
    total = "" if None in copied else f", {format_bytes(sum(copied))} to copy"
    busy = [tp for tp in plan.moves if tp in snapshot.moves]
    if busy:
        print_message(
            f"{len(busy)} of these partitions are already being moved: the new target will replace "
            "the old one"
        )
    if save_to is not None:
        save(save_to, {tp: snapshot.assignments[tp] for tp in plan.moves})
    if not execute:
        print_message(
            f"{len(rows)} partition{'s' if len(rows) > 1 else ''} to move{total}; nothing was "
            "changed; re-run with --execute to apply the plan"
        )
        return 0
    results = await start_moves(admin, plan.moves, list(alive), throttle)
    started = {tp: plan.moves[tp] for tp, error in results.items() if error is None}
    print_message(f"{len(started)} of {len(results)} moves started{total}")
    if wait and started:
        code = await _wait(admin, started, snapshot, throttled=throttle is not None)
    else:
        code = 0
        if any(move.adding or move.removing for move in started.values()):
            print_message(MOVES_CONTINUE)
        if throttle is not None and throttled_by(started, alive):
            print_message(THROTTLE_REMAINS)
    return _report(results) or code


async def _wait(
    admin: Admin, started: Mapping[TopicPartition, Move], snapshot: Snapshot, *, throttled: bool
) -> int:
    await watch(admin, started, list(snapshot.alive))
    if throttled:
        await unthrottle(admin, throttled_by(started, snapshot.alive))
    wrong = await check_done(admin, started)
    for tp, reason in sorted(wrong.items()):
        print_error(Failure(f"{tp} was not moved as planned: {reason}"))
    return 0 if not wrong else PARTIAL if len(wrong) < len(started) else FAILED


def _report(results: Mapping[TopicPartition, ClientError | None]) -> int:
    """Print the errors of rejected moves; returns the exit code."""
    try:
        finish(results)
    except SystemExit as end:
        return int(end.code or 0)
    return 0
