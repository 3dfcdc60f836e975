"""DescribeQuorum (key 55), versions 0 to 2: the leader of the metadata log, and the progress of its
voters and observers (KIP-595, KIP-836).

Only the quorum's leader knows them: any other node forwards the request to it. Raft indexes appear
as Kafka's offsets: the end is one past the last entry, the high watermark one past the last
committed one. v1 the times of the last fetch and of the last caught-up state. v2 error messages,
and the voters' listeners (KIP-853).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any
from uuid import UUID

from mqd.errors import ErrorCode, MqError
from mqd.raft.machine import PeerStatus, RaftStatus
from mqd.security.acls import Operation
from mqd.server.authorization import require_cluster
from mqd.server.context import Context
from mqd.server.handlers.admin import DEFAULT_TIMEOUT_MS, at_controller
from mqd.server.partitions import no_such_partition
from mqd.server.slices import finished_in_slices

_TOPIC = "__cluster_metadata"
_NO_DIRECTORY = UUID(int=0)
_LISTENER = "PEER"


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_cluster(context, Operation.DESCRIBE)
    named = [
        (topic.topic_name, [row.partition_index for row in topic.partitions[:2]])
        for topic in request.topics[:2]
    ]
    if named != [(_TOPIC, [0])]:
        unknown = no_such_partition()
        return await finished_in_slices(_refused(request, unknown.code, unknown.message))

    async def here() -> Mapping[str, Any]:
        status = context.node.raft.status()
        if not status.ready:
            raise MqError(ErrorCode.NOT_CONTROLLER, "This node does not lead the quorum.")
        return _described(context, status)

    return await at_controller(context, request, here, DEFAULT_TIMEOUT_MS)


def _described(context: Context, status: RaftStatus) -> dict[str, Any]:
    node = context.node
    now, now_ms = node.clock.monotonic(), node.clock.wall_ms()

    def milliseconds(moment: float) -> int:
        return now_ms - round((now - moment) * 1000) if moment >= 0 else -1

    def replica(peer: PeerStatus) -> dict[str, Any]:
        return {
            "replica_id": peer.node_id,
            "replica_directory_id": _NO_DIRECTORY,
            "log_end_offset": peer.match_index + 1 if peer.match_index > 0 else -1,
            "last_fetch_timestamp": milliseconds(peer.last_replied_at),
            "last_caught_up_timestamp": milliseconds(peer.caught_up_at),
            "no_connection_reason": node.raft.no_connection_reason(peer.node_id),
        }

    me = PeerStatus(int(node.node_id), True, status.last_index, now, now)
    replicas = sorted([me, *status.peers], key=lambda peer: peer.node_id)
    partition = {
        "partition_index": 0,
        "error_code": ErrorCode.NONE,
        "error_message": "",
        "leader_id": me.node_id,
        "leader_epoch": status.term,
        "high_watermark": status.commit_index + 1,
        "current_voters": [replica(peer) for peer in replicas if peer.voter],
        "observers": [replica(peer) for peer in replicas if not peer.voter],
    }
    return {
        "error_code": ErrorCode.NONE,
        "error_message": "",
        "topics": [{"topic_name": _TOPIC, "partitions": [partition]}],
        "nodes": [
            {
                "node_id": peer.id,
                "listeners": [{"name": _LISTENER, "host": peer.host, "port": peer.peer_port}],
            }
            for peer in sorted(node.peers.nodes.values(), key=lambda peer: peer.id)
            if peer.id in status.voters
        ],
    }


def _refused(request: Any, code: ErrorCode, message: str) -> Generator[int, None, dict[str, Any]]:
    """As Kafka: of each partition, also of the right one beside a wrong one."""
    topics = []
    for topic in request.topics:
        rows = []
        for row in topic.partitions:
            rows.append(
                {
                    "partition_index": row.partition_index,
                    "error_code": code,
                    "error_message": message,
                    "leader_id": 0,
                    "leader_epoch": 0,
                    "high_watermark": 0,
                    "current_voters": [],
                    "observers": [],
                }
            )
            yield 1
        topics.append({"topic_name": topic.topic_name, "partitions": rows})
        yield 1
    return {"error_code": ErrorCode.NONE, "error_message": "", "topics": topics, "nodes": []}


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message, "topics": [], "nodes": []}
