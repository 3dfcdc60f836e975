"""What is wrong with partitions, their replicas and their moves. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mqctl.findings import (
    BAD,
    NOTE,
    OK,
    WARNING,
    Finding,
    Observed,
    argument,
    has_controller,
    named,
    named_ids,
    reason_of,
    remedy_of,
)
from mqctl.snapshot import LEADERLESS, OFFLINE, UNDER_MIN_ISR, UNDER_REPLICATED, problems
from mqd.client.descriptions import (
    PartitionState,
)
from mqd.client.errors import ClientError
from mqd.types import TopicPartition


def check_partitions(observed: Observed) -> Iterable[Finding]:
    if isinstance(observed.partitions, ClientError):
        yield Finding(
            "partitions",
            BAD,
            f"cannot get the state of partitions: {reason_of(observed.partitions)}",
            remedy_of(observed.partitions),
        )
        return
    states = observed.partitions
    moves = {} if isinstance(observed.moves, ClientError) else observed.moves
    if isinstance(observed.min_isr, ClientError):
        yield Finding(
            "partitions",
            WARNING,
            f"cannot read min.insync.replicas: {reason_of(observed.min_isr)}",
            remedy_of(observed.min_isr),
        )
    min_isr = {} if isinstance(observed.min_isr, ClientError) else observed.min_isr
    by_problem: dict[str, list[TopicPartition]] = {}
    for tp, state in states.items():
        for problem in problems(state, min_isr.get(tp.topic, 1), moves.get(tp)):
            by_problem.setdefault(problem, []).append(tp)
    if LEADERLESS in by_problem:
        yield from _leaderless(
            states, by_problem[LEADERLESS], has_controller=has_controller(observed)
        )
    fenced = set() if isinstance(observed.cluster, ClientError) else observed.cluster.fenced
    if under := [
        tp for tp in by_problem.get(UNDER_MIN_ISR, ()) if tp not in by_problem.get(LEADERLESS, ())
    ]:
        yield Finding(
            "min-isr",
            BAD,
            f"{named(under)} below min.insync.replicas: acks=all writes are rejected",
            _restore(states, under, fenced)
            + "; only if that takes too long, lower the topic's min.insync.replicas",
        )
    offline = [tp for tp in by_problem.get(OFFLINE, ()) if not set(states[tp].offline) <= fenced]
    lost = [tp for tp in offline if observed.is_in_memory(tp.topic)]
    if lost:
        yield Finding(
            "memory",
            WARNING,
            f"replicas of {named(lost)} have lost their records: their topics are in memory, and "
            f"{named_ids('broker', _running(states, lost, fenced))} restarted",
            "wait: they copy the records of the leader, or begin without records if none has them",
        )
    if disks := [tp for tp in offline if tp not in lost]:
        broker_ids = _running(states, disks, fenced)
        yield Finding(
            "offline",
            BAD,
            f"replicas of {named(disks)} are offline on {named_ids('broker', broker_ids)}, "
            "which is alive: a log or log directory failed",
            f"check its log and `mqctl broker describe {broker_ids[0]}`; then replace the disk and "
            "restart the broker",
        )
    reported = {*under, *by_problem.get(LEADERLESS, ())}
    if behind := [tp for tp in by_problem.get(UNDER_REPLICATED, ()) if tp not in reported]:
        yield Finding(
            "replication",
            WARNING,
            f"{named(behind)} under-replicated: not all replicas are in sync",
            _restore(states, behind, fenced)
            + "; replicas on running brokers catch up by themselves",
        )
    if not by_problem:
        yield Finding(
            "partitions",
            OK,
            f"all {len(states)} have a leader and all replicas in sync"
            if states
            else "there are no partitions",
        )
    if too_few := [
        tp
        for tp, state in states.items()
        if len(moves[tp].target if tp in moves else state.replicas) < min_isr.get(tp.topic, 1)
    ]:
        yield Finding(
            "min-isr",
            NOTE,
            f"{named(too_few)} with fewer replicas than min.insync.replicas: acks=all needs all "
            "of its replicas instead",
            "add replicas: `mqctl partition move TOPIC:PARTITION=BROKER,BROKER,..`; or lower the "
            "topic's min.insync.replicas",
        )
    if not_preferred := [
        tp
        for tp, state in states.items()
        if state.leader >= 0 and state.leader != state.replicas[0] in state.isr
    ]:
        yield Finding(
            "leaders",
            NOTE,
            f"{named(not_preferred)} not led by the preferred replica",
            "elect preferred leaders: `mqctl partition elect-leader --all`",
        )


def _leaderless(
    states: Mapping[TopicPartition, PartitionState],
    found: list[TopicPartition],
    *,
    has_controller: bool,
) -> Iterable[Finding]:
    """A finding for each group of partitions that the same brokers can restore.

    Without a controller a single finding: it has to elect leaders first, and no record need be
    lost.
    """
    what = "without a leader: cannot be read or written"
    if not has_controller:
        yield Finding(
            "leaderless",
            BAD,
            f"{named(found)} {what}",
            "restore the controller first: it elects their leaders",
        )
        return
    groups: dict[tuple[tuple[int, ...], str], list[TopicPartition]] = {}
    for tp in found:
        state = states[tp]
        broker_ids, content = state.isr or state.elr, ", which has all acknowledged records"
        if not broker_ids:
            broker_ids, content = state.last_known_elr, ", which was the last in sync"
        if not broker_ids:
            broker_ids, content = state.replicas, ""
        groups.setdefault((tuple(sorted(broker_ids)), content), []).append(tp)
    for (broker_ids, content), partitions in sorted(groups.items()):
        last = f"restart {named_ids('broker', broker_ids, 'or')}{content}"
        if any(set(states[tp].replicas) - set(states[tp].offline) for tp in partitions):
            last += (
                "; as a last resort, with loss of records: `mqctl partition elect-leader "
                f"{argument(partitions)} --unclean`"
            )
        else:
            last += "; no other replica is alive"
        yield Finding("leaderless", BAD, f"{named(partitions)} {what}", last)


def check_moves(observed: Observed) -> Iterable[Finding]:
    if isinstance(observed.moves, ClientError):
        yield Finding(
            "moves",
            WARNING,
            f"cannot list reassignments: {reason_of(observed.moves)}",
            remedy_of(observed.moves),
        )
        return
    if observed.moves:
        yield Finding(
            "moves",
            NOTE,
            f"{named(list(observed.moves))} being moved",
            "show progress: `mqctl partition move-status`",
        )
    elif observed.throttled:
        yield Finding(
            "moves",
            WARNING,
            "no partition is being moved, but a replication throttle is still set on "
            f"{observed.throttled}",
            "remove it: `mqctl partition move-status --clear-throttle`",
        )


def _running(
    states: Mapping[TopicPartition, PartitionState],
    partitions: list[TopicPartition],
    fenced: Iterable[int],
) -> list[int]:
    """The running brokers with offline replicas."""
    return sorted({each for tp in partitions for each in states[tp].offline} - set(fenced))


def _restore(
    states: Mapping[TopicPartition, PartitionState],
    partitions: list[TopicPartition],
    fenced: Iterable[int],
) -> str:
    """The remedy for partitions with replicas that are not in sync."""
    missing = {
        broker_id
        for tp in partitions
        for broker_id in states[tp].replicas
        if broker_id not in states[tp].isr
    }
    down = missing & set(fenced)
    if down:
        return f"restart {named_ids('broker', down)}"
    return (
        f"check the log of {named_ids('broker', missing)}"
        if missing
        else "see `mqctl partition list --under-min-isr`"
    )
