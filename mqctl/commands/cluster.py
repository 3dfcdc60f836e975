"""mqctl cluster: brokers and the state of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mqctl import render
from mqctl.app import LazyGroup, Settings, in_time, options, run_timed, write
from mqctl.outcomes import finish

if TYPE_CHECKING:
    from mqd.client.admin import Admin
    from mqd.client.cluster import ClusterClient
    from mqd.client.errors import ClientError

COMMANDS = {
    "info": ("mqctl.commands.cluster:info", "Show brokers, controller, and unhealthy partitions."),
    "quorum": (
        "mqctl.commands.health:quorum",
        "Show the leader of the metadata quorum, and the lag of its voters.",
    ),
    "health": ("mqctl.commands.health:health", "Diagnose the cluster, and show what to do."),
}

QUORUM_SECONDS = 5.0
"""How long `info` waits for the quorum leader: without a majority there is none."""

BROKERS = (
    render.Column("broker", "BROKER", right=True),
    render.Column("host", "HOST"),
    render.Column("port", "PORT", right=True),
    render.Column("rack", "RACK"),
    render.Column("state", "STATE"),
    render.Column("leads", "LEADS", right=True),
    render.Column("replicas", "REPLICAS", right=True),
)


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def cluster() -> None:
    """Show the brokers, the quorum and the health of the cluster."""


@click.command()
@options
def info(settings: Settings) -> None:
    """Show brokers, controller, and unhealthy partitions, including those of internal topics.

    Only the controller knows which brokers are alive. Without a controller their state is unknown,
    and the exit code is 3.

    \b
    mqctl cluster info
    """
    data, unknown = run_timed(
        settings, lambda client, deadline: gather(client, settings.timeout_s, deadline)
    )
    if settings.output != "table":
        settings.show_data(data)
    else:
        summary = {
            name.replace("_", " "): value for name, value in data.items() if name != "brokers"
        }
        write(render.fields(summary) + "\n")
        settings.show(BROKERS, data["brokers"])
    finish({"the cluster": None, "quorum": unknown})


async def gather(
    client: ClusterClient, timeout_s: float, deadline: float
) -> tuple[dict[str, Any], ClientError | None]:
    """The output of `info`, and the error if the quorum leader is unknown."""
    import trio

    from mqd.client.admin import Admin

    admin = Admin(client, timeout_s=timeout_s)
    with in_time(deadline, "timed out while reading brokers and topics"):
        described = await admin.describe_cluster()
        topics = await admin.list_topics(internal=True)
    partitions = [partition for topic in topics for partition in topic.partitions]
    controller, unknown = await _leader(
        admin, described.controller_id, min(deadline, trio.current_time() + QUORUM_SECONDS)
    )
    data = {
        "cluster_id": described.cluster_id,
        "controller": controller,
        "topics": len(topics),
        "partitions": len(partitions),
        "leaderless_partitions": sum(partition.leader < 0 for partition in partitions),
        "under_replicated_partitions": sum(
            len(partition.isr) < len(partition.replicas) for partition in partitions
        ),
        "brokers": [
            {
                "broker": broker.node_id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "state": "fenced"
                if broker.node_id in described.fenced
                else "alive"
                if controller is not None
                else "unknown",
                "leads": sum(partition.leader == broker.node_id for partition in partitions),
                "replicas": sum(broker.node_id in partition.replicas for partition in partitions),
            }
            for broker in described.brokers
        ],
    }
    return data, unknown


async def _leader(
    admin: Admin, otherwise: int, deadline: float
) -> tuple[int | None, ClientError | None]:
    """The leader of the quorum, or the error why it is unknown. A cluster without DescribeQuorum
    has the controller `otherwise`.
    """
    from mqd.client.errors import ClientError
    from mqd.errors import ErrorCode

    no_leader = ClientError(
        ErrorCode.LEADER_NOT_AVAILABLE,
        "the metadata quorum has no leader",
        remedy="check the cluster with `mqctl cluster health`",
    )
    try:
        with in_time(
            deadline, "the leader of the metadata quorum is unknown: the request timed out"
        ):
            leader = (await admin.describe_quorum()).leader_id
    except ClientError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            return None, error
        leader = otherwise
    return (leader, None) if leader >= 0 else (None, no_leader)
