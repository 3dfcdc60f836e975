"""mqctl partition: list partitions and elect leaders. Moves are in move.py."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from mqctl import render
from mqctl.app import Failure, LazyGroup, Settings, confirm, options, print_message, run, run_timed
from mqctl.outcomes import finish
from mqctl.planning import parse_partition
from mqctl.snapshot import (
    LEADERLESS,
    MIN_ISR,
    OFFLINE,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    Snapshot,
    take_snapshot,
)
from mqd.types import TopicPartition

if TYPE_CHECKING:
    from mqd.client.admin import Admin
    from mqd.client.cluster import ClusterClient

COMMANDS = {
    "list": ("mqctl.commands.partition:list_", "List partitions and their problems."),
    "move": ("mqctl.commands.move:move", "Move partitions to other brokers."),
    "move-status": ("mqctl.commands.move_status:move_status", "Show the moves in progress."),
    "move-cancel": (
        "mqctl.commands.move_status:move_cancel",
        "Cancel moves, and restore the previous replicas.",
    ),
    "elect-leader": (
        "mqctl.commands.partition:elect_leader",
        "Elect preferred leaders, or leaders that are not in sync.",
    ),
}

PARTITIONS = (
    render.Column("topic", "TOPIC"),
    render.Column("partition", "PARTITION", right=True),
    render.Column("leader", "LEADER", right=True),
    render.Column("leader_epoch", "EPOCH", right=True),
    render.Column("replicas", "REPLICAS"),
    render.Column("isr", "IN-SYNC"),
    render.Column("elr", "ELIGIBLE"),
    render.Column("offline", "OFFLINE"),
    render.Column("min_isr", "MIN-ISR", right=True),
    render.Column("state", "STATE"),
)
ELECTED = (
    render.Column("topic", "TOPIC"),
    render.Column("partition", "PARTITION", right=True),
    render.Column("result", "RESULT"),
)


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def partition() -> None:
    """List and move partitions, elect leaders."""


@click.command("list")
@click.option(
    "-t",
    "--topic",
    "pattern",
    metavar="PATTERN",
    help="Only topics that match this pattern (* and ?).",
)
@click.option(
    "--broker",
    "broker_id",
    type=click.IntRange(min=0),
    metavar="ID",
    help="Only partitions with a replica on this broker.",
)
@click.option(
    "--under-replicated", is_flag=True, help="Partitions with a replica that is not in sync."
)
@click.option(
    "--under-min-isr",
    is_flag=True,
    help="Partitions with fewer in-sync replicas than min.insync.replicas: acks=all is rejected.",
)
@click.option(
    "--offline", is_flag=True, help="Partitions with a replica on a failed broker or disk."
)
@click.option(
    "--leaderless",
    is_flag=True,
    help="Partitions without a leader: they cannot be read or written.",
)
@options
def list_(
    settings: Settings,
    pattern: str | None,
    broker_id: int | None,
    under_replicated: bool,
    under_min_isr: bool,
    offline: bool,
    leaderless: bool,
) -> None:
    """List partitions and their problems, including internal topics.

    With several of --under-replicated, --under-min-isr, --offline and --leaderless, a partition is
    listed if it matches any of them.

    \b
    mqctl partition list --under-replicated --leaderless
    mqctl partition list --topic 'orders*' --broker 3 -o json
    """
    chosen = {
        name
        for name, wanted in (
            (UNDER_REPLICATED, under_replicated),
            (UNDER_MIN_ISR, under_min_isr),
            (OFFLINE, offline),
            (LEADERLESS, leaderless),
        )
        if wanted
    }

    async def work(client: ClusterClient, deadline: float) -> Snapshot:
        from mqd.client.admin import Admin

        return await take_snapshot(
            Admin(client, timeout_s=settings.timeout_s), deadline, moves="optional"
        )

    snapshot = run_timed(settings, work)
    rows = []
    for tp, state in snapshot.partitions.items():
        wrong = snapshot.problems_of(tp)
        fits = pattern is None or fnmatchcase(tp.topic, pattern)
        if (
            fits
            and (broker_id is None or broker_id in state.replicas)
            and (not chosen or chosen & set(wrong))
        ):
            rows.append(partition_row(snapshot, tp, wrong))
    if not rows:
        print_message(
            "no partition matches"
            if chosen or pattern or broker_id is not None
            else "no partitions"
        )
    settings.show_found(PARTITIONS, rows)
    finish({"partitions": None, MIN_ISR: snapshot.min_isr_error, "moves": snapshot.moves_error})


def partition_row(snapshot: Snapshot, tp: TopicPartition, wrong: list[str]) -> dict[str, Any]:
    state = snapshot.partitions[tp]
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "leader": state.leader if state.leader >= 0 else None,
        "leader_epoch": state.leader_epoch,
        "replicas": list(state.replicas),
        "isr": list(state.isr),
        "elr": list(state.elr),
        "last_known_elr": list(state.last_known_elr),
        "offline": list(state.offline),
        "min_isr": snapshot.min_isr.get(tp.topic),
        "state": [*wrong, *(["moving"] if tp in snapshot.moves else [])] or ["ok"],
    }


@click.command("elect-leader")
@click.argument("partitions", nargs=-1, metavar="[TOPIC[:PARTITION]...]")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="All partitions whose leader is not the preferred one.",
)
@click.option(
    "--unclean",
    is_flag=True,
    help="If no replica is in sync, elect any replica that is alive. Records that only the others "
    "have are lost.",
)
@click.option(
    "--yes", "-y", is_flag=True, help="Skip the confirmation prompt of an unclean election."
)
@options
def elect_leader(
    settings: Settings, partitions: tuple[str, ...], everything: bool, unclean: bool, yes: bool
) -> None:
    """Elect preferred leaders, or leaders that are not in sync.

    The preferred leader is the first replica of a partition; it is elected if it is in sync. Use
    this to give a restarted broker its leaderships back.

    \b
    mqctl partition elect-leader --all
    mqctl partition elect-leader orders payments:3
    mqctl partition elect-leader orders:0 --unclean
    """
    if everything == bool(partitions):
        raise click.UsageError("specify partitions (TOPIC or TOPIC:PARTITION), or --all")
    try:
        named = [parse_partition(text) for text in partitions]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if unclean:
        names = "all leaderless partitions" if everything else ", ".join(partitions)
        confirm(
            f"This elects leaders that are not in sync, for {names}: records that only other "
            "replicas have are lost permanently.",
            yes=yes,
        )

    async def work(client: ClusterClient) -> dict[TopicPartition, Any]:
        from mqd.client.admin import Admin
        from mqd.client.descriptions import ElectionType

        admin = Admin(client, timeout_s=settings.timeout_s)
        kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
        return dict(
            await admin.elect_leaders(kind, None if everything else await expand(admin, named))
        )

    results = run(settings, work)
    from mqd.client.errors import ClientError
    from mqd.errors import ErrorCode

    rows = []
    for tp, outcome in list(results.items()):
        result = "elected"
        if isinstance(outcome, ClientError):
            needless = outcome.code is ErrorCode.ELECTION_NOT_NEEDED
            result = "not needed" if needless else "failed"
            if needless:
                results[tp] = None
        rows.append({"topic": tp.topic, "partition": tp.partition, "result": result})
    if not rows:
        print_message("no partition needs an election")
    settings.show_found(ELECTED, rows)
    finish(results)


async def expand(admin: Admin, named: list[tuple[str, int | None]]) -> list[TopicPartition]:
    """The partitions that `topic` and `topic:partition` name, once each. Raises Failure if one does
    not exist.
    """
    states = await admin.describe_partitions({topic for topic, _ in named})
    found: dict[TopicPartition, None] = {}
    for topic, index in named:
        wanted = [tp for tp in states if tp.topic == topic and index in (None, tp.partition)]
        if not wanted:
            subject = f"Topic {topic!r}" if index is None else f"Partition '{topic}:{index}'"
            raise Failure(
                f"{subject} does not exist.",
                remedy="list the partitions with `mqctl partition list`",
            )
        found.update(dict.fromkeys(wanted))
    return list(found)
