"""mqctl cluster quorum and health: the metadata quorum, and a diagnosis of the cluster."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqctl import render
from mqctl.app import (
    FAILED,
    Failure,
    Settings,
    in_time,
    options,
    run,
    run_timed,
    wants_colour,
    write,
)
from mqctl.places import format_time
from mqctl.quantities import format_duration

if TYPE_CHECKING:
    from mqctl.findings import Finding, Observed
    from mqd.client.cluster import ClusterClient
    from mqd.client.descriptions import Quorum, QuorumReplica
    from mqd.client.metadata import BrokerInfo

ResultT = TypeVar("ResultT")

REQUEST_SECONDS = 5.0
"""Timeout of each request of `health`, and of `quorum`: without a majority there is no response."""

AUTO_CREATE = "auto.create.topics.enable"

VOTERS = (
    render.Column("node", "NODE", right=True),
    render.Column("role", "ROLE"),
    render.Column("log_end_offset", "END", right=True),
    render.Column("lag", "LAG", right=True),
    render.Column("last_contact", "LAST CONTACT", right=True),
    render.Column("caught_up", "CAUGHT UP", right=True),
    render.Column("state", "STATE"),
)


@click.command()
@options
def quorum(settings: Settings) -> None:
    """Show the leader of the metadata quorum, and the lag of its voters and observers.

    LAST CONTACT: time since the leader last received a fetch. CAUGHT UP: time since the node last
    had all entries. Without a majority of the voters there is no leader; the command reports this
    within 5 seconds.

    \b
    mqctl cluster quorum
    """
    limit_s = min(settings.timeout_s, REQUEST_SECONDS)

    async def work(client: ClusterClient, deadline: float) -> Quorum:
        from mqd.client.admin import Admin

        with in_time(
            deadline,
            f"the leader of the metadata quorum is unknown: no response within {limit_s:g} s",
        ):
            found = await Admin(client, timeout_s=limit_s).describe_quorum()
        return found

    found = run_timed(replace(settings, timeout_s=limit_s), work)
    leader = next((each for each in found.voters if each.node_id == found.leader_id), None)
    now_ms = leader.last_caught_up_ms if leader is not None else -1
    rows = [
        *(
            _replica_row(each, "leader" if each is leader else "voter", found, now_ms)
            for each in found.voters
        ),
        *(_replica_row(each, "observer", found, now_ms) for each in found.observers),
    ]
    data = {
        "leader": found.leader_id if found.leader_id >= 0 else None,
        "leader_epoch": found.leader_epoch,
        "high_watermark": found.high_watermark,
        "majority": len(found.voters) // 2 + 1,
    }
    if settings.output != "table":
        settings.show_data({**data, "nodes": rows})
        return
    write(render.fields({name.replace("_", " "): value for name, value in data.items()}) + "\n")
    settings.show(
        VOTERS,
        [
            {
                **row,
                "last_contact": _ago(row["last_fetch_ms"], now_ms),
                "caught_up": _ago(row["last_caught_up_ms"], now_ms),
            }
            for row in rows
        ],
    )


def _replica_row(replica: QuorumReplica, role: str, found: Quorum, now_ms: int) -> dict[str, Any]:
    from mqctl.quorum_findings import lag_of

    return {
        "node": replica.node_id,
        "role": role,
        "log_end_offset": replica.log_end_offset if replica.log_end_offset >= 0 else None,
        "lag": max(0, found.high_watermark - replica.log_end_offset)
        if replica.log_end_offset >= 0
        else None,
        "last_fetch_ms": replica.last_fetch_ms if replica.last_fetch_ms >= 0 else None,
        "last_fetch": format_time(replica.last_fetch_ms) if replica.last_fetch_ms >= 0 else None,
        "last_caught_up_ms": replica.last_caught_up_ms if replica.last_caught_up_ms >= 0 else None,
        "last_caught_up": format_time(replica.last_caught_up_ms)
        if replica.last_caught_up_ms >= 0
        else None,
        "state": lag_of(replica, found) or "ok",
    }


def _ago(then_ms: int | None, now_ms: int) -> str | None:
    return (
        None
        if then_ms is None or now_ms < 0
        else f"{format_duration((now_ms - then_ms) / 1000)} ago"
    )


@click.command()
@options
def health(settings: Settings) -> None:
    """Diagnose the cluster, and show what to do. Exit code 0 if it is healthy, 1 if not.

    The command checks brokers, leaders, in-sync replicas, disks, moves, the controller and the
    quorum. It waits at most 5 seconds for each, so it also works while half of the cluster is down.
    A cluster is healthy if no finding is worse than a note.

    \b
    mqctl cluster health
    mqctl cluster health -o json | jq -e .healthy
    """
    from mqctl.diagnosis import diagnose

    limit_s = min(settings.timeout_s, REQUEST_SECONDS)
    limited = replace(settings, timeout_s=limit_s)
    try:
        observed = run(limited, lambda client: observe(client, limit_s))
    except Failure as failure:
        remedy = (
            "start the brokers, or specify others with --bootstrap; the log of each broker shows "
            "what it waits for"
        )
        if failure.remedy and "cluster health" not in failure.remedy:
            remedy = failure.remedy
        raise Failure(failure.message, remedy=remedy) from None
    findings = diagnose(observed)
    healthy = all(each.healthy for each in findings)
    if settings.output == "table":
        write(report(findings, healthy, colour=wants_colour(sys.stdout)))
    else:
        settings.show_data({"healthy": healthy, "findings": [each._asdict() for each in findings]})
    if not healthy:
        raise SystemExit(FAILED)


_COLOURS = {"ok": "32", "note": "36", "warning": "33", "bad": "31"}


def report(findings: list[Finding], healthy: bool, *, colour: bool) -> str:
    """The report as text: the worst findings first."""
    from mqctl.findings import BAD, NOTE, OK, WARNING

    counts = {level: sum(each.level == level for each in findings) for level in (BAD, WARNING)}
    lines = [
        "healthy" if healthy else f"NOT HEALTHY (bad: {counts[BAD]}, warnings: {counts[WARNING]})",
        "",
    ]
    for level in (BAD, WARNING, NOTE, OK):
        for each in findings:
            if each.level == level:
                label = f"{level:8}"
                if colour:
                    label = f"\x1b[{_COLOURS[level]}m{label}\x1b[0m"
                lines.append(f"{label}{each.check:13}{render.printable(each.what)}")
                if each.remedy:
                    lines.append(f"{'':21}-> {render.printable(each.remedy)}")
    return "\n".join(lines) + "\n"


async def observe(client: ClusterClient, limit_s: float) -> Observed:
    """Send all requests, concurrently where one does not need the response of another."""
    import trio

    from mqctl.findings import TOPIC_KEYS, Observed
    from mqctl.snapshot import MIN_ISR
    from mqd.client.admin import Admin
    from mqd.client.descriptions import Resource, ResourceType
    from mqd.client.errors import ClientError
    from mqd.client.throttle import find_throttle
    from mqd.errors import ErrorCode
    from mqd.resource_configs import GROUP_DEAD_LETTERS

    admin = Admin(client, timeout_s=limit_s)
    found: dict[str, Any] = {}

    async def read(name: str, request: Callable[[], Awaitable[Any]]) -> None:
        found[name] = ClientError(ErrorCode.REQUEST_TIMED_OUT, f"no response within {limit_s:g} s")
        with trio.move_on_after(limit_s):
            try:
                found[name] = await request()
            except ClientError as error:
                found[name] = error

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, "cluster", admin.describe_cluster)
        nursery.start_soon(read, "partitions", admin.describe_partitions)
    alive: list[BrokerInfo] = []
    if not isinstance(found["cluster"], ClientError):
        alive = [
            each for each in found["cluster"].brokers if each.node_id not in found["cluster"].fenced
        ]
    topics = (
        []
        if isinstance(found["partitions"], ClientError)
        else sorted({tp.topic for tp in found["partitions"]})
    )
    unreachable: dict[int, str] = {}

    async def reach(broker: BrokerInfo) -> None:
        unreachable[broker.node_id] = f"no response within {limit_s:g} s"
        with trio.move_on_after(limit_s):
            try:
                await client.connection_to(broker.address)
            except ClientError as error:
                unreachable[broker.node_id] = error.message
            else:
                del unreachable[broker.node_id]

    async def topic_configs() -> dict[str, dict[str, str]]:
        described = await admin.describe_configs(
            [Resource(ResourceType.TOPIC, name) for name in topics], [MIN_ISR, *TOPIC_KEYS]
        )
        return {
            resource.name: {row.name: row.value for row in rows if row.value is not None}
            for resource, rows in described.items()
            if not isinstance(rows, ClientError)
        }

    async def group_dead_letters() -> dict[str, str]:
        # half the time, so that brokers that do not respond hide no groups of the others
        some = Admin(client, timeout_s=limit_s / 2, patient=False)
        listed = await some.list_groups_by_node(types=["share"])
        groups = {
            each.group_id for rows in listed.values() if isinstance(rows, list) for each in rows
        }
        return await values_of(ResourceType.GROUP, sorted(groups), GROUP_DEAD_LETTERS)

    async def creates_topics() -> dict[str, str]:
        brokers = [str(each) for each in reached[:1]]
        return await values_of(ResourceType.BROKER, brokers, AUTO_CREATE)

    async def values_of(kind: ResourceType, names: list[str], config: str) -> dict[str, str]:
        """By name: the value of a config, if it is set."""
        if not names:
            return {}
        described = await admin.describe_configs([Resource(kind, name) for name in names], [config])
        return {
            resource.name: row.value
            for resource, rows in described.items()
            if not isinstance(rows, ClientError)
            for row in rows
            if row.value
        }

    async def throttle(brokers: list[int]) -> str:
        throttled = await find_throttle(admin, topics, brokers)
        return ", ".join(
            [
                *(f"topic {name}" for name in throttled.topics),
                *(f"broker {each}" for each in throttled.brokers),
            ]
        )

    async with trio.open_nursery() as nursery:
        for broker in alive:
            nursery.start_soon(reach, broker)
    reached = [broker.node_id for broker in alive if broker.node_id not in unreachable]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, "topic_configs", topic_configs)
        nursery.start_soon(read, "group_dead_letters", group_dead_letters)
        nursery.start_soon(read, "creates_topics", creates_topics)
        nursery.start_soon(read, "throttled", lambda: throttle(reached))
        nursery.start_soon(read, "disks", lambda: admin.describe_log_dirs(reached))
        nursery.start_soon(read, "usage", lambda: admin.describe_usage(reached))
    # last: without a controller these get no response, nor do requests behind them
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, "quorum", admin.describe_quorum)
        nursery.start_soon(read, "moves", _moves(admin))
    configs = found["topic_configs"]
    return Observed(
        cluster=found["cluster"],
        quorum=found["quorum"],
        partitions=found["partitions"],
        moves=found["moves"],
        unreachable=unreachable,
        min_isr=configs
        if isinstance(configs, ClientError)
        else {
            name: int(values[MIN_ISR])
            for name, values in configs.items()
            if values.get(MIN_ISR, "").isdecimal()
        },
        topic_configs={} if isinstance(configs, ClientError) else configs,
        group_dead_letters={}
        if isinstance(found["group_dead_letters"], ClientError)
        else found["group_dead_letters"],
        creates_topics=not isinstance(found["creates_topics"], ClientError)
        and "true" in found["creates_topics"].values(),
        disks=dict.fromkeys(reached, found["disks"])
        if isinstance(found["disks"], ClientError)
        else found["disks"],
        usage=dict.fromkeys(reached, found["usage"])
        if isinstance(found["usage"], ClientError)
        else found["usage"],
        throttled="" if isinstance(found["throttled"], ClientError) else found["throttled"],
    )


def _moves(admin: Any) -> Callable[[], Awaitable[Any]]:
    from mqctl.snapshot import moves_in_progress

    return lambda: moves_in_progress(admin)
