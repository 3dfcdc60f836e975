"""Diagnoses a cluster: `Observed` in, findings with causes and remedies out. Pure.

A request without a response is a finding, too: while the cluster fails, responses may be few.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mqctl.quantities import format_bytes, format_duration
from mqctl.snapshot import LEADERLESS, OFFLINE, UNDER_MIN_ISR, UNDER_REPLICATED, problems
from mqd.client.descriptions import (
    BoundUsage,
    ClusterDescription,
    LogDirectory,
    PartitionState,
    Quorum,
    QuorumReplica,
    Reassignment,
)
from mqd.client.errors import ClientError
from mqd.types import GROUPS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from mqd.usage import THRESHOLDS

OK, NOTE, WARNING, BAD = "ok", "note", "warning", "bad"
LAG_SECONDS = 10.0
"""A voter lags if it has not been caught up for longer than this."""

DISK_LOW, DISK_FULL = 0.15, 0.05
"""Free shares of a disk: below the first a warning, below the second bad."""

NAMED_MAX = 5
"""At most this many partitions are named in a finding; it also gives their number."""


class Finding(NamedTuple):
    """One line of a health report. `remedy` is empty if there is nothing to do."""

    check: str
    level: str
    what: str
    remedy: str = ""

    @property
    def healthy(self) -> bool:
        return self.level in (OK, NOTE)


@dataclass(frozen=True, slots=True)
class Observed:
    """The responses of a cluster. Each field has the response or the error."""

    cluster: ClusterDescription | ClientError
    quorum: Quorum | ClientError
    partitions: Mapping[TopicPartition, PartitionState] | ClientError
    moves: Mapping[TopicPartition, Reassignment] | ClientError
    unreachable: Mapping[int, str] = field(default_factory=dict)
    """Brokers that are not fenced, but cannot be reached from here, with the reason."""
    min_isr: Mapping[str, int] | ClientError = field(default_factory=dict)
    disks: Mapping[int, Sequence[LogDirectory] | ClientError] = field(default_factory=dict)
    throttled: str = ""
    """The topics and brokers with a replication throttle, as text."""
    usage: Mapping[int, Sequence[BoundUsage] | ClientError] = field(default_factory=dict)


def diagnose(observed: Observed) -> list[Finding]:
    """All findings: controller and brokers, partitions and moves, disks and bounds."""
    return [
        *_controller(observed),
        *_brokers(observed),
        *_partitions(observed),
        *_moves(observed),
        *_disks(observed),
        *_bounds(observed),
    ]


# -- controller, quorum, brokers


def _controller(observed: Observed) -> Iterable[Finding]:
    quorum = observed.quorum
    if not _has_controller(observed):
        yield _no_controller(
            quorum.message
            if isinstance(quorum, ClientError)
            else "the voters have elected no leader"
        )
        return
    if isinstance(quorum, ClientError):
        yield Finding(
            "controller",
            OK,
            f"broker {_controller_id(observed)}; the cluster does not report its quorum",
        )
        return
    voters = {voter.node_id: voter for voter in quorum.voters}
    fenced = set() if isinstance(observed.cluster, ClientError) else observed.cluster.fenced
    failed: dict[int, str] = {}
    unreachable: dict[int, str] = {}
    for node, voter in sorted(voters.items()):
        if why := lag_of(voter, quorum):
            failed[node] = why
        elif node != quorum.leader_id and node in fenced:
            failed[node] = "is fenced"
        elif node != quorum.leader_id and node in observed.unreachable:
            unreachable[node] = "is unreachable from here"
    following = len(voters) - len(failed) - len(unreachable)
    majority = len(voters) // 2 + 1
    yield Finding(
        "controller",
        OK,
        f"voter {quorum.leader_id} leads in epoch {quorum.leader_epoch}; {following} of "
        f"{len(voters)} voters follow",
    )
    if behind := {**failed, **unreachable}:
        spare = following - majority
        what = "; ".join(
            f"voter {node} {why}{_no_connection(voters[node])}"
            for node, why in sorted(behind.items())
        )
        consequence = (
            "metadata cannot change if one more voter fails"
            if spare <= 0
            else f"metadata can still change if {spare} more fail"
        )
        yield Finding(
            "quorum",
            BAD if len(voters) - len(failed) < majority else WARNING,
            f"{what}: {consequence}",
            f"start {_named_ids('voter', behind)}, or repair the network to it; its log shows "
            "what it waits for",
        )
    observers = {one.node_id: why for one in quorum.observers if (why := lag_of(one, quorum))}
    if observers:
        replicas = {one.node_id: one for one in quorum.observers}
        what = "; ".join(
            f"observer {node} {why}{_no_connection(replicas[node])}"
            for node, why in sorted(observers.items())
        )
        yield Finding(
            "quorum",
            WARNING,
            what,
            f"start {_named_ids('observer', observers)}, or check its log",
        )


def _no_connection(replica: QuorumReplica) -> str:
    reason = replica.no_connection_reason
    return f" (no connection from the leader: {reason})" if reason else ""


def _has_controller(observed: Observed) -> bool:
    """Whether a controller is known. Clusters without DescribeQuorum name it in their metadata."""
    if isinstance(observed.quorum, ClientError):
        return observed.quorum.code.name == "UNSUPPORTED_VERSION" and _controller_id(observed) >= 0
    return observed.quorum.leader_id >= 0


def lag_of(replica: QuorumReplica, quorum: Quorum) -> str:
    """Why a replica of the metadata log is behind; empty if it is caught up. All times are from the
    leader's clock.
    """
    if replica.node_id == quorum.leader_id:
        return ""
    now_ms = next(
        (each.last_caught_up_ms for each in quorum.voters if each.node_id == quorum.leader_id), -1
    )
    if replica.log_end_offset < 0 and replica.last_fetch_ms < 0:
        return (
            f"has not contacted the leader, voter {quorum.leader_id} (epoch {quorum.leader_epoch})"
        )
    if now_ms > 0 and replica.last_caught_up_ms > 0:
        behind = (now_ms - replica.last_caught_up_ms) / 1000
        return f"has lagged for {format_duration(behind)}" if behind > LAG_SECONDS else ""
    missing = quorum.high_watermark - replica.log_end_offset
    return f"is {missing} records behind" if missing > 0 and now_ms > 0 else ""


def _no_controller(why: str) -> Finding:
    return Finding(
        "controller",
        BAD,
        f"no controller: {why}. Metadata cannot change, and brokers refuse clients when their "
        "sessions expire",
        "start the voters that are down: a majority must run and reach one another; the log of "
        "each voter names the voters it waits for",
    )


def _controller_id(observed: Observed) -> int:
    return -1 if isinstance(observed.cluster, ClientError) else observed.cluster.controller_id


def _brokers(observed: Observed) -> Iterable[Finding]:
    cluster = observed.cluster
    if isinstance(cluster, ClientError):
        yield Finding("brokers", BAD, f"cannot list the brokers: {cluster.message}", cluster.remedy)
        return
    known = {broker.node_id: broker for broker in cluster.brokers}
    for broker_id in sorted(cluster.fenced):
        broker = known[broker_id]
        rack = "" if broker.rack is None else f", rack {broker.rack}"
        yield Finding(
            "brokers",
            BAD,
            f"broker {broker_id} at {broker.host}:{broker.port}{rack} is fenced: the controller "
            "receives no heartbeats from it",
            "start it; if it runs, check its log: a broker whose peers file names other voters is "
            "rejected;"
            " only if its machine is lost for good:"
            f" `mqctl broker drain {broker_id}`, then `mqctl broker unregister {broker_id}`",
        )
    for broker_id, why in sorted(observed.unreachable.items()):
        yield Finding(
            "brokers",
            BAD,
            f"broker {broker_id} is unreachable from here, but not fenced (yet): {why}",
            "if it has just failed, the controller will fence it when its session expires; else "
            "check its advertised address and the network",
        )
    if not isinstance(observed.quorum, ClientError):
        for voter in sorted({voter.node_id for voter in observed.quorum.voters} - known.keys()):
            yield Finding(
                "brokers",
                WARNING,
                f"voter {voter} is not registered as a broker",
                "start it, unless it is a controller only",
            )
    alive = len(known) - len(cluster.fenced)
    if alive == len(known) and not observed.unreachable:
        yield Finding(
            "brokers", OK, f"all {alive} alive" if alive > 1 else "the only broker is alive"
        )


# -- partitions and moves


def _partitions(observed: Observed) -> Iterable[Finding]:
    if isinstance(observed.partitions, ClientError):
        yield Finding(
            "partitions",
            BAD,
            f"cannot get the state of partitions: {observed.partitions.message}",
            observed.partitions.remedy,
        )
        return
    states = observed.partitions
    moves = {} if isinstance(observed.moves, ClientError) else observed.moves
    if isinstance(observed.min_isr, ClientError):
        yield Finding(
            "partitions",
            WARNING,
            f"cannot read min.insync.replicas: {observed.min_isr.message}",
            observed.min_isr.remedy,
        )
    min_isr = {} if isinstance(observed.min_isr, ClientError) else observed.min_isr
    by_problem: dict[str, list[TopicPartition]] = {}
    for tp, state in states.items():
        for problem in problems(state, min_isr.get(tp.topic, 1), moves.get(tp)):
            by_problem.setdefault(problem, []).append(tp)
    if LEADERLESS in by_problem:
        yield from _leaderless(
            states, by_problem[LEADERLESS], has_controller=_has_controller(observed)
        )
    fenced = set() if isinstance(observed.cluster, ClientError) else observed.cluster.fenced
    if under := [
        tp for tp in by_problem.get(UNDER_MIN_ISR, ()) if tp not in by_problem.get(LEADERLESS, ())
    ]:
        yield Finding(
            "min-isr",
            BAD,
            f"{_named(under)} below min.insync.replicas: acks=all writes are rejected",
            _restore(states, under, fenced)
            + "; only if that takes too long, lower the topic's min.insync.replicas",
        )
    if disks := [tp for tp in by_problem.get(OFFLINE, ()) if not set(states[tp].offline) <= fenced]:
        broker_ids = sorted(
            {broker_id for tp in disks for broker_id in states[tp].offline} - fenced
        )
        yield Finding(
            "offline",
            BAD,
            f"replicas of {_named(disks)} are offline on {_named_ids('broker', broker_ids)}, "
            "which is alive: a log or log directory failed",
            f"check its log and `mqctl broker describe {broker_ids[0]}`; then replace the disk and "
            "restart the broker",
        )
    reported = {*under, *by_problem.get(LEADERLESS, ())}
    if behind := [tp for tp in by_problem.get(UNDER_REPLICATED, ()) if tp not in reported]:
        yield Finding(
            "replication",
            WARNING,
            f"{_named(behind)} under-replicated: not all replicas are in sync",
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
            f"{_named(too_few)} with fewer replicas than min.insync.replicas: acks=all needs all "
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
            f"{_named(not_preferred)} not led by the preferred replica",
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
            f"{_named(found)} {what}",
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
        last = f"restart {_named_ids('broker', broker_ids, 'or')}{content}"
        if any(set(states[tp].replicas) - set(states[tp].offline) for tp in partitions):
            last += (
                "; as a last resort, with loss of records: `mqctl partition elect-leader "
                f"{_argument(partitions)} --unclean`"
            )
        else:
            last += "; no other replica is alive"
        yield Finding("leaderless", BAD, f"{_named(partitions)} {what}", last)


def _moves(observed: Observed) -> Iterable[Finding]:
    if isinstance(observed.moves, ClientError):
        yield Finding(
            "moves",
            WARNING,
            f"cannot list reassignments: {observed.moves.message}",
            observed.moves.remedy,
        )
        return
    if observed.moves:
        yield Finding(
            "moves",
            NOTE,
            f"{_named(list(observed.moves))} being moved",
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


def _disks(observed: Observed) -> Iterable[Finding]:
    worst = OK
    free: list[float] = []
    for broker_id, directories in sorted(observed.disks.items()):
        if isinstance(directories, ClientError):
            worst = WARNING
            yield Finding(
                "disks",
                WARNING,
                f"cannot describe the log directories of broker {broker_id}: {directories.message}",
                directories.remedy,
            )
            continue
        for each in directories:
            if each.error is not None:
                worst = BAD
                yield Finding(
                    "disks",
                    BAD,
                    f"log directory {each.path} of broker {broker_id} is offline: "
                    f"{each.error.message}",
                    "replace the disk, then restart the broker; it copies the missing replicas "
                    "from the others",
                )
            elif each.total_bytes > 0 and each.usable_bytes >= 0:
                share = each.usable_bytes / each.total_bytes
                free.append(share)
                if share < DISK_LOW:
                    worst = BAD
                    yield Finding(
                        "disks",
                        BAD if share < DISK_FULL else WARNING,
                        f"log directory {each.path} of broker {broker_id} has "
                        f"{format_bytes(each.usable_bytes)} free, {share:.0%}",
                        "delete topics or shorten their retention, move partitions away, or "
                        "enlarge the disk",
                    )
    if worst is OK and free:
        yield Finding("disks", OK, f"at least {min(free):.0%} free on each")


METADATA = "metadata"
_LEVELS = NOTE, WARNING, BAD
"""The level of a finding, by the number of the highest threshold that usage has passed."""
_BOUNDS = {
    "": (
        "metadata.image.max.bytes",
        "new topics, partitions and config overrides are rejected",
        "delete unused topics or config overrides",
    ),
    GROUPS_TOPIC: (
        "group.coordinator.memory.bytes",
        "new groups, members and offsets are rejected",
        "delete unused groups: `mqctl group list`, `mqctl group delete`",
    ),
    TRANSACTIONS_TOPIC: (
        "transaction.coordinator.memory.bytes",
        "new transactional ids are rejected",
        "shorten transactional.id.expiration.ms, or use fewer ids: `mqctl txn list`",
    ),
}
"""By the topic of a coordinator ("": the metadata): the option that sets the bound, the consequence
of reaching it, and the remedy.
"""


def _bounds(observed: Observed) -> Iterable[Finding]:
    """The highest usage of each bound. All brokers have the same metadata; of each coordinator, a
    broker reports its fullest shard.
    """
    fullest: dict[str, tuple[BoundUsage, int]] = {}
    all_known = True
    for broker_id, found in sorted(observed.usage.items()):
        if isinstance(found, ClientError):
            all_known = False
            yield Finding(
                "bounds",
                NOTE,
                f"broker {broker_id} does not report its memory bounds: {found.message}",
                found.remedy,
            )
            continue
        for each in found:
            if each.bound not in fullest or each.share > fullest[each.bound][0].share:
                fullest[each.bound] = each, broker_id
    tight = [name for name, (each, _) in sorted(fullest.items()) if each.share >= THRESHOLDS[0]]
    for name in tight:
        each, broker_id = fullest[name]
        option, consequence, remedy = _BOUNDS.get(name.rpartition("-")[0], _BOUNDS[""])
        where = "" if name == METADATA else f" on broker {broker_id}"
        yield Finding(
            "bounds",
            _LEVELS[sum(each.share >= threshold for threshold in THRESHOLDS) - 1],
            f"{name}{where} uses {format_bytes(each.used_bytes)}, {each.share:.0%} of its bound; "
            f"at 100% {consequence}",
            f"{remedy}; or raise {option} on every broker",
        )
    if all_known and fullest and not tight:
        most = max(each.share for each, _ in fullest.values())
        yield Finding(
            "bounds", OK, f"metadata and coordinators use at most {most:.0%} of their bounds"
        )


# -- text


def _named(partitions: list[TopicPartition]) -> str:
    names = ", ".join(map(str, partitions[:NAMED_MAX])) + (
        " .." if len(partitions) > NAMED_MAX else ""
    )
    return f"{len(partitions)} partition{'s' if len(partitions) > 1 else ''} ({names})"


def _argument(partitions: list[TopicPartition]) -> str:
    first = f"{partitions[0].topic}:{partitions[0].partition}"
    return first if len(partitions) == 1 else f"{first} .."


def _named_ids(role: str, ids: Iterable[int], last: str = "and") -> str:
    """`broker 1`, or `brokers 1, 2 and 3`."""
    names = [str(each) for each in sorted(ids)]
    if len(names) == 1:
        return f"{role} {names[0]}"
    return f"{role}s {', '.join(names[:-1])} {last} {names[-1]}"


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
        return f"restart {_named_ids('broker', down)}"
    return (
        f"check the log of {_named_ids('broker', missing)}"
        if missing
        else "see `mqctl partition list --under-min-isr`"
    )
