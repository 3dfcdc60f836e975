"""What is wrong with a cluster, why, and what to do next. Pure: `Observed` in, findings out.

Each question has its own time limit, and one that was not answered is itself a finding: on a bad
night the answers are few.
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
"""A voter that has not had everything for this long lags."""

DISK_LOW, DISK_FULL = 0.15, 0.05
"""Shares of a disk that are free."""

NAMED_MAX = 5
"""So many partitions are named; the others are counted."""


class Finding(NamedTuple):
    """One line of a health report. `remedy` is empty where nothing is to be done."""

    check: str
    level: str
    what: str
    remedy: str = ""

    @property
    def healthy(self) -> bool:
        return self.level in (OK, NOTE)


@dataclass(frozen=True, slots=True)
class Observed:
    """What was asked, each with its answer or the reason why there is none.

    `unreachable`: living nodes that do not answer here.
    """

    cluster: ClusterDescription | ClientError
    quorum: Quorum | ClientError
    partitions: Mapping[TopicPartition, PartitionState] | ClientError
    moves: Mapping[TopicPartition, Reassignment] | ClientError
    unreachable: Mapping[int, str] = field(default_factory=dict)
    min_isr: Mapping[str, int] | ClientError = field(default_factory=dict)
    disks: Mapping[int, Sequence[LogDirectory] | ClientError] = field(default_factory=dict)
    throttled: str = ""
    usage: Mapping[int, Sequence[BoundUsage] | ClientError] = field(default_factory=dict)


def diagnose(seen: Observed) -> list[Finding]:
    """Everything there is to say: first who runs the cluster, then what it holds, then its
    disks and bounds.
    """
    return [
        *_controller(seen),
        *_nodes(seen),
        *_partitions(seen),
        *_moves(seen),
        *_disks(seen),
        *_bounds(seen),
    ]


# -- who runs the cluster


def _controller(seen: Observed) -> Iterable[Finding]:
    quorum = seen.quorum
    if not _has_controller(seen):
        yield _no_controller(
            quorum.message
            if isinstance(quorum, ClientError)
            else "the voters have elected no leader"
        )
        return
    if isinstance(quorum, ClientError):
        yield Finding(
            "controller", OK, f"node {_controller_id(seen)}; the cluster does not report its quorum"
        )
        return
    voters = {voter.node_id: voter for voter in quorum.voters}
    fenced = set() if isinstance(seen.cluster, ClientError) else seen.cluster.fenced
    lost: dict[int, str] = {}
    silent: dict[int, str] = {}
    for node, voter in sorted(voters.items()):
        if why := lag_of(voter, quorum):
            lost[node] = why
        elif node != quorum.leader_id and node in fenced:
            lost[node] = "is fenced"
        elif node != quorum.leader_id and node in seen.unreachable:
            silent[node] = "is unreachable from here"
    following = len(voters) - len(lost) - len(silent)
    majority = len(voters) // 2 + 1
    yield Finding(
        "controller",
        OK,
        f"node {quorum.leader_id} leads in epoch {quorum.leader_epoch}; {following} of "
        f"{len(voters)} voters follow",
    )
    if behind := {**lost, **silent}:
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
            BAD if len(voters) - len(lost) < majority else WARNING,
            f"{what}: {consequence}",
            f"start {_nodes_named(behind)}, or repair the network to it; its log shows what it "
            "waits for",
        )
    observers = {one.node_id: why for one in quorum.observers if (why := lag_of(one, quorum))}
    if observers:
        replicas = {one.node_id: one for one in quorum.observers}
        what = "; ".join(
            f"node {node} {why}{_no_connection(replicas[node])}"
            for node, why in sorted(observers.items())
        )
        yield Finding(
            "quorum",
            WARNING,
            f"{what} (an observer)",
            f"start {_nodes_named(observers)}, or check its log",
        )


def _no_connection(replica: QuorumReplica) -> str:
    reason = replica.no_connection_reason
    return f" (no connection from the leader: {reason})" if reason else ""


def _has_controller(seen: Observed) -> bool:
    """Whether one is known. Clusters that do not tell about their quorum name it all the same."""
    if isinstance(seen.quorum, ClientError):
        return seen.quorum.code.name == "UNSUPPORTED_VERSION" and _controller_id(seen) >= 0
    return seen.quorum.leader_id >= 0


def lag_of(replica: QuorumReplica, quorum: Quorum) -> str:
    """Why a replica of the metadata log is behind; empty if it is not.

    By the leader's clock alone.
    """
    if replica.node_id == quorum.leader_id:
        return ""
    now_ms = next(
        (each.last_caught_up_ms for each in quorum.voters if each.node_id == quorum.leader_id), -1
    )
    if replica.log_end_offset < 0 and replica.last_fetch_ms < 0:
        return (
            f"has not contacted the leader, node {quorum.leader_id} (epoch {quorum.leader_epoch})"
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
        f"no controller: {why}. Metadata cannot change, and nodes refuse clients when their "
        "sessions expire",
        "start the voters that are down: a majority must run and reach one another; the log of "
        "each voter names the nodes it waits for",
    )


def _controller_id(seen: Observed) -> int:
    return -1 if isinstance(seen.cluster, ClientError) else seen.cluster.controller_id


def _nodes(seen: Observed) -> Iterable[Finding]:
    cluster = seen.cluster
    if isinstance(cluster, ClientError):
        yield Finding("nodes", BAD, f"cannot list the nodes: {cluster.message}", cluster.remedy)
        return
    known = {broker.node_id: broker for broker in cluster.brokers}
    for node in sorted(cluster.fenced):
        broker = known[node]
        rack = "" if broker.rack is None else f", rack {broker.rack}"
        yield Finding(
            "nodes",
            BAD,
            f"node {node} at {broker.host}:{broker.port}{rack} is fenced: the controller receives "
            "no heartbeats from it",
            "start it; if it runs, check its log: a node whose peers file names other voters is "
            "rejected;"
            " only if its machine is lost for good:"
            f" `mqctl broker drain {node}`, then `mqctl broker unregister {node}`",
        )
    for node, why in sorted(seen.unreachable.items()):
        yield Finding(
            "nodes",
            BAD,
            f"node {node} is unreachable from here, but not fenced (yet): {why}",
            "if it has just failed, the controller will fence it when its session expires; else "
            "check its advertised address and the network",
        )
    if not isinstance(seen.quorum, ClientError):
        for voter in sorted({voter.node_id for voter in seen.quorum.voters} - known.keys()):
            yield Finding(
                "nodes",
                WARNING,
                f"node {voter} is a voter, but not registered as a broker",
                "start it, unless it is a controller only",
            )
    alive = len(known) - len(cluster.fenced)
    if alive == len(known) and not seen.unreachable:
        yield Finding("nodes", OK, f"all {alive} alive" if alive > 1 else "the only node is alive")


# -- what it holds


def _partitions(seen: Observed) -> Iterable[Finding]:
    if isinstance(seen.partitions, ClientError):
        yield Finding(
            "partitions",
            BAD,
            f"cannot get the state of partitions: {seen.partitions.message}",
            seen.partitions.remedy,
        )
        return
    states = seen.partitions
    moves = {} if isinstance(seen.moves, ClientError) else seen.moves
    if isinstance(seen.min_isr, ClientError):
        yield Finding(
            "partitions",
            WARNING,
            f"cannot read min.insync.replicas: {seen.min_isr.message}",
            seen.min_isr.remedy,
        )
    least = {} if isinstance(seen.min_isr, ClientError) else seen.min_isr
    wrong: dict[str, list[TopicPartition]] = {}
    for tp, state in states.items():
        for problem in problems(state, least.get(tp.topic, 1), moves.get(tp)):
            wrong.setdefault(problem, []).append(tp)
    if LEADERLESS in wrong:
        yield from _leaderless(states, wrong[LEADERLESS], has_controller=_has_controller(seen))
    dead = set() if isinstance(seen.cluster, ClientError) else seen.cluster.fenced
    if under := [tp for tp in wrong.get(UNDER_MIN_ISR, ()) if tp not in wrong.get(LEADERLESS, ())]:
        yield Finding(
            "min-isr",
            BAD,
            f"{_named(under)} below min.insync.replicas: acks=all writes are rejected",
            _bring_back(states, under, dead)
            + "; only if that takes too long, lower the topic's min.insync.replicas",
        )
    if disks := [tp for tp in wrong.get(OFFLINE, ()) if not set(states[tp].offline) <= dead]:
        nodes = sorted({node for tp in disks for node in states[tp].offline} - dead)
        yield Finding(
            "offline",
            BAD,
            f"replicas of {_named(disks)} are offline on {_nodes_named(nodes)}, which is alive: a "
            "log or log directory failed",
            f"check its log and `mqctl broker describe {nodes[0]}`; then replace the disk and "
            "restart the node",
        )
    seen_above = {*under, *wrong.get(LEADERLESS, ())}
    if behind := [tp for tp in wrong.get(UNDER_REPLICATED, ()) if tp not in seen_above]:
        yield Finding(
            "replication",
            WARNING,
            f"{_named(behind)} under-replicated: not all replicas are in sync",
            _bring_back(states, behind, dead)
            + "; replicas on running nodes catch up by themselves",
        )
    if not wrong:
        yield Finding(
            "partitions",
            OK,
            f"all {len(states)} have a leader and all replicas in sync"
            if states
            else "there are no partitions",
        )
    if few := [
        tp
        for tp, state in states.items()
        if len(moves[tp].target if tp in moves else state.replicas) < least.get(tp.topic, 1)
    ]:
        yield Finding(
            "min-isr",
            NOTE,
            f"{_named(few)} with fewer replicas than min.insync.replicas: acks=all needs all of "
            "its replicas instead",
            "add replicas: `mqctl partition move TOPIC:PARTITION=NODE,NODE,..`; or lower the "
            "topic's min.insync.replicas",
        )
    if misled := [
        tp
        for tp, state in states.items()
        if state.leader >= 0 and state.leader != state.replicas[0] in state.isr
    ]:
        yield Finding(
            "leaders",
            NOTE,
            f"{_named(misled)} not led by the preferred replica",
            "elect preferred leaders: `mqctl partition elect-leader --all`",
        )


def _leaderless(
    states: Mapping[TopicPartition, PartitionState],
    found: list[TopicPartition],
    *,
    has_controller: bool,
) -> Iterable[Finding]:
    """Those that one node's return would help go together.

    While there is no controller none of them need have lost anything.
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
        nodes, what_they_have = state.isr or state.elr, ", which has all acknowledged records"
        if not nodes:
            nodes, what_they_have = state.last_known_elr, ", which was the last in sync"
        if not nodes:
            nodes, what_they_have = state.replicas, ""
        groups.setdefault((tuple(sorted(nodes)), what_they_have), []).append(tp)
    for (nodes, what_they_have), partitions in sorted(groups.items()):
        last = f"restart {_nodes_named(nodes, 'or')}{what_they_have}"
        if any(set(states[tp].replicas) - set(states[tp].offline) for tp in partitions):
            last += (
                "; as a last resort, with loss of records: `mqctl partition elect-leader "
                f"{_argument(partitions)} --unclean`"
            )
        else:
            last += "; no other replica is alive"
        yield Finding("leaderless", BAD, f"{_named(partitions)} {what}", last)


def _moves(seen: Observed) -> Iterable[Finding]:
    if isinstance(seen.moves, ClientError):
        yield Finding(
            "moves", WARNING, f"cannot list reassignments: {seen.moves.message}", seen.moves.remedy
        )
        return
    if seen.moves:
        yield Finding(
            "moves",
            NOTE,
            f"{_named(list(seen.moves))} being moved",
            "show progress: `mqctl partition move-status`",
        )
    elif seen.throttled:
        yield Finding(
            "moves",
            WARNING,
            "no partition is being moved, but a replication throttle is still set on "
            f"{seen.throttled}",
            "remove it: `mqctl partition move-status --clear-throttle`",
        )


def _disks(seen: Observed) -> Iterable[Finding]:
    worst = OK
    free: list[float] = []
    for node, directories in sorted(seen.disks.items()):
        if isinstance(directories, ClientError):
            worst = WARNING
            yield Finding(
                "disks",
                WARNING,
                f"cannot describe the log directories of node {node}: {directories.message}",
                directories.remedy,
            )
            continue
        for each in directories:
            if each.error is not None:
                worst = BAD
                yield Finding(
                    "disks",
                    BAD,
                    f"log directory {each.path} of node {node} is offline: {each.error.message}",
                    "replace the disk, then restart the node; it copies the missing replicas from "
                    "the others",
                )
            elif each.total_bytes > 0 and each.usable_bytes >= 0:
                share = each.usable_bytes / each.total_bytes
                free.append(share)
                if share < DISK_LOW:
                    worst = BAD
                    yield Finding(
                        "disks",
                        BAD if share < DISK_FULL else WARNING,
                        f"log directory {each.path} of node {node} has "
                        f"{format_bytes(each.usable_bytes)} free, {share:.0%}",
                        "delete topics or shorten their retention, move partitions away, or "
                        "enlarge the disk",
                    )
    if worst is OK and free:
        yield Finding("disks", OK, f"at least {min(free):.0%} free on each")


METADATA = "metadata"
_LEVELS = NOTE, WARNING, BAD
"""Of a bound that has passed a threshold, by its number."""
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
"""Of the metadata, and by the topic of a coordinator: the option, what happens at the
bound, what to do.
"""


def _bounds(seen: Observed) -> Iterable[Finding]:
    """The fullest of each kind: the metadata is the same on all nodes, and of a coordinator
    each node reports its fullest shard.
    """
    fullest: dict[str, tuple[BoundUsage, int]] = {}
    all_known = True
    for node, found in sorted(seen.usage.items()):
        if isinstance(found, ClientError):
            all_known = False
            yield Finding(
                "bounds",
                NOTE,
                f"node {node} does not report its memory bounds: {found.message}",
                found.remedy,
            )
            continue
        for each in found:
            if each.bound not in fullest or each.share > fullest[each.bound][0].share:
                fullest[each.bound] = each, node
    tight = [name for name, (each, _) in sorted(fullest.items()) if each.share >= THRESHOLDS[0]]
    for name in tight:
        each, node = fullest[name]
        option, consequence, remedy = _BOUNDS.get(name.rpartition("-")[0], _BOUNDS[""])
        where = "" if name == METADATA else f" on node {node}"
        yield Finding(
            "bounds",
            _LEVELS[sum(each.share >= threshold for threshold in THRESHOLDS) - 1],
            f"{name}{where} uses {format_bytes(each.used_bytes)}, {each.share:.0%} of its bound; "
            f"at 100% {consequence}",
            f"{remedy}; or raise {option} on every node",
        )
    if all_known and fullest and not tight:
        most = max(each.share for each, _ in fullest.values())
        yield Finding(
            "bounds", OK, f"metadata and coordinators use at most {most:.0%} of their bounds"
        )


# -- words


def _named(partitions: list[TopicPartition]) -> str:
    names = ", ".join(map(str, partitions[:NAMED_MAX])) + (
        " .." if len(partitions) > NAMED_MAX else ""
    )
    return f"{len(partitions)} partition{'s' if len(partitions) > 1 else ''} ({names})"


def _argument(partitions: list[TopicPartition]) -> str:
    first = f"{partitions[0].topic}:{partitions[0].partition}"
    return first if len(partitions) == 1 else f"{first} .."


def _nodes_named(nodes: Iterable[int], last: str = "and") -> str:
    names = [str(node) for node in sorted(nodes)]
    if len(names) == 1:
        return f"node {names[0]}"
    return f"nodes {', '.join(names[:-1])} {last} {names[-1]}"


def _bring_back(
    states: Mapping[TopicPartition, PartitionState],
    partitions: list[TopicPartition],
    dead: Iterable[int],
) -> str:
    """Which nodes to mend for partitions that lack replicas in sync."""
    missing = {
        node for tp in partitions for node in states[tp].replicas if node not in states[tp].isr
    }
    gone = missing & set(dead)
    if gone:
        return f"restart {_nodes_named(gone)}"
    return (
        f"check the log of {_nodes_named(missing)}"
        if missing
        else "see `mqctl partition list --under-min-isr`"
    )
