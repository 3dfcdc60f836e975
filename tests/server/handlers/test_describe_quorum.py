"""DescribeQuorum: what the leader returns, as Kafka's offsets and times; other nodes forward the
request to the leader.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqd.errors import ErrorCode, MqError
from mqd.peers import parse_peers
from mqd.protocol import apis
from mqd.raft.machine import PeerStatus, RaftStatus, Role
from mqd.security.authorizer import Authorizer
from mqd.server.context import CLIENT, PEER
from mqd.server.fair_slots import FairSlots
from mqd.server.handlers import describe_quorum

PEERS = parse_peers(
    'cluster_id = "c"\n'
    + "".join(
        f'[[node]]\nid = {i}\nhost = "h{i}"\nport = 9{i}\npeer_port = 19{i}\nvoter = '
        f"{str(i < 4).lower()}\n"
        for i in (1, 2, 3, 4)
    ),
    Path("peers.toml"),
)
STATUS = RaftStatus(
    Role.LEADER,
    True,
    7,
    2,
    40,
    40,
    41,
    41,
    10,
    (1, 2, 3),
    (1, 3),
    observers=(4,),
    peers=(
        PeerStatus(1, True, 41, 99.5, 99.25),
        PeerStatus(3, True, 0, -inf, -inf),
        PeerStatus(4, False, 20, 90.0, 80.0),
    ),
)
REQUESTED = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
REFUSED = "node 3 refuses this node: the peers file of node 3 names voters [3]"
API = apis.by_name("describe_quorum")
assert API is not None


class Controller:
    def __init__(self) -> None:
        self.forwarded: list[tuple[str, int]] = []

    async def at_controller(
        self, here: Any, name: str, version: int, request: Any, *, timeout: float
    ) -> Any:
        self.forwarded.append((name, version))
        return await here()


async def request_quorum(
    topics: list[dict[str, Any]],
    *,
    version: int = 2,
    listener: str = CLIENT,
    status: RaftStatus = STATUS,
) -> Any:
    """The response after encoding and decoding."""
    assert API is not None
    clock = SimpleNamespace(monotonic=lambda: 100.0, wall_ms=lambda: 1_000_000)
    node = SimpleNamespace(
        node_id=2,
        peers=PEERS,
        authorizer=Authorizer(enforces=False),
        clock=clock,
        raft=SimpleNamespace(
            status=lambda: status,
            no_connection_reason=lambda node_id: REFUSED if node_id == 3 else "",
        ),
        controller=Controller(),
        admin_slots=FairSlots(1),
    )
    context: Any = SimpleNamespace(
        node=node,
        peer="10.0.0.1:1",
        listener=listener,
        header=SimpleNamespace(api_key=55, api_version=version),
    )
    request = API.decode_request(
        version, memoryview(API.encode_request(version, {"topics": topics})), 0
    )
    response = await describe_quorum.handle(context, request)
    return API.decode_response(version, memoryview(API.encode_response(version, response)), 0)


@pytest.mark.parametrize("listener", [CLIENT, PEER])
async def test_the_leader_describes_the_quorum(listener: str) -> None:
    response = await request_quorum(REQUESTED, listener=listener)
    (topic,) = response.topics
    (partition,) = topic.partitions
    assert (response.error_code, response.error_message, topic.topic_name) == (
        0,
        "",
        "__cluster_metadata",
    )
    assert (
        partition.error_code,
        partition.leader_id,
        partition.leader_epoch,
        partition.high_watermark,
    ) == (0, 2, 7, 41)
    received = [
        (row.replica_id, row.log_end_offset, row.last_fetch_timestamp, row.last_caught_up_timestamp)
        for row in partition.current_voters
    ]
    assert received == [(1, 42, 999_500, 999_250), (2, 42, 1_000_000, 1_000_000), (3, -1, -1, -1)]
    reasons = [row.no_connection_reason for row in partition.current_voters]
    assert reasons == ["", "", REFUSED]
    (observer,) = partition.observers
    assert (observer.replica_id, observer.log_end_offset, observer.last_fetch_timestamp) == (
        4,
        21,
        990_000,
    )
    assert [
        (node.node_id, node.listeners[0].host, node.listeners[0].port) for node in response.nodes
    ] == [
        (1, "h1", 191),
        (2, "h2", 192),
        (3, "h3", 193),
    ]


@pytest.mark.parametrize("version", [0, 1])
async def test_older_versions_have_fewer_fields(version: int) -> None:
    response = await request_quorum(REQUESTED, version=version)
    (partition,) = response.topics[0].partitions
    assert [row.last_fetch_timestamp for row in partition.current_voters] == (
        [-1] * 3 if version == 0 else [999_500, 1_000_000, -1]
    )


@pytest.mark.parametrize(
    "topics",
    [
        [{"topic_name": "other", "partitions": [{"partition_index": 0}]}],
        [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 1}]}],
        [
            {
                "topic_name": "__cluster_metadata",
                "partitions": [{"partition_index": 0}, {"partition_index": 1}],
            }
        ],
        [*REQUESTED, {"topic_name": "other", "partitions": [{"partition_index": 0}]}],
        [],
    ],
)
async def test_only_the_metadata_partition_is_described(topics: list[dict[str, Any]]) -> None:
    """Each one as Apache Kafka 4.3.1 returns it."""
    response = await request_quorum(topics)
    assert response.error_code == 0 and list(response.nodes) == []
    rows = [(topic.topic_name, row) for topic in response.topics for row in topic.partitions]
    assert [name for name, _ in rows] == [
        topic["topic_name"] for topic in topics for _ in topic["partitions"]
    ]
    for _, row in rows:
        assert (row.error_code, row.error_message) == (
            3,
            "This server does not host this topic-partition.",
        )
        assert (row.leader_id, row.leader_epoch, row.high_watermark) == (0, 0, 0)


async def test_other_nodes_refuse() -> None:
    follower = replace(STATUS, role=Role.FOLLOWER, ready=False)
    with pytest.raises(MqError) as caught:
        await request_quorum(REQUESTED, listener=PEER, status=follower)
    assert caught.value.code is ErrorCode.NOT_CONTROLLER
    assert describe_quorum.failed(None, caught.value)["error_code"] == ErrorCode.NOT_CONTROLLER
