"""What is wrong with the controller, the quorum and the brokers. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mqctl.findings import (
    BAD,
    DENIED,
    DENIED_REMEDY,
    OK,
    WARNING,
    Finding,
    Observed,
    controller_id,
    has_controller,
    is_denied,
    named_ids,
    reason_of,
    remedy_of,
)
from mqctl.quantities import format_duration
from mqd.client.descriptions import (
    Quorum,
    QuorumReplica,
)
from mqd.client.errors import ClientError

LAG_SECONDS = 10.0
"""A voter lags if it has not been caught up for longer than this."""


def check_controller(observed: Observed) -> Iterable[Finding]:
    quorum = observed.quorum
    if not has_controller(observed):
        yield _no_controller(
            quorum.message
            if isinstance(quorum, ClientError)
            else "the voters have elected no leader"
        )
        return
    if isinstance(quorum, ClientError) and is_denied(quorum):
        yield Finding(
            "controller", WARNING, f"the quorum cannot be checked: {DENIED}", DENIED_REMEDY
        )
        return
    if isinstance(quorum, ClientError):
        yield Finding(
            "controller",
            OK,
            f"broker {controller_id(observed)}; the cluster does not report its quorum",
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
            f"start {named_ids('voter', behind)}, or repair the network to it; its log shows "
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
            f"start {named_ids('observer', observers)}, or check its log",
        )


def _no_connection(replica: QuorumReplica) -> str:
    reason = replica.no_connection_reason
    return f" (no connection from the leader: {reason})" if reason else ""


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
        f"no controller: {why.rstrip('.')}. Metadata cannot change, and brokers refuse clients "
        "when their sessions expire",
        "start the voters that are down: a majority must run and reach one another; the log of "
        "each voter names the voters it waits for",
    )


def check_brokers(observed: Observed) -> Iterable[Finding]:
    cluster = observed.cluster
    if isinstance(cluster, ClientError):
        yield Finding(
            "brokers", BAD, f"cannot list the brokers: {reason_of(cluster)}", remedy_of(cluster)
        )
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
            "start it; if it runs, check its log. A broker whose peers file names other voters, or "
            "whose certificate has expired (`mqctl cert show`), is rejected."
            " Only if its machine is lost for good:"
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
