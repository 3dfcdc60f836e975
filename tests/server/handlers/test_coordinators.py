"""FindCoordinator and InitProducerId, and requests between nodes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from mqd.coordinator.partitioning import partition_for
from mqd.errors import ErrorCode
from mqd.limits import COORDINATOR_KEY_BYTES_MAX
from mqd.raft import versions
from mqd.server.context import CLIENT, PEER
from mqd.types import NodeId
from tests.controller.cluster import CLUSTER
from tests.server.handlers.node import running_node

ONE, TWO = NodeId(1), NodeId(2)


@pytest.mark.parametrize(
    ("key", "java_hash"),
    [
        ("", 0),
        ("g", 103),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("my-group", -1906497762),
        ("𐍈", 1771336),
    ],
)
def test_the_hash_is_javas(key: str, java_hash: int) -> None:
    for partitions in (1, 7, 50):
        assert (
            partition_for(key, partitions)
            == (0 if java_hash == -(2**31) else abs(java_hash)) % partitions
        )


@pytest.mark.parametrize(
    "key", ["k" * (COORDINATOR_KEY_BYTES_MAX + 1), "é" * (COORDINATOR_KEY_BYTES_MAX // 2 + 1)]
)
async def test_empty_and_long_names_are_refused(key: str) -> None:
    async with running_node() as node:
        for requested, code in ((key, 42), (key[:-1], 15)):
            assert (await node.request("find_coordinator", 3, key=requested)).error_code == code
            several = await node.request("find_coordinator", 4, coordinator_keys=["g", requested])
            assert [row.error_code for row in several.coordinators] == [15, code]


@pytest.mark.parametrize("version", range(7))
async def test_a_coordinator_is_found_after_its_topic_is_created(
    version: int, autojump_clock: MockClock
) -> None:
    async with running_node() as node:

        async def find(*keys: str, key_type: int = 0) -> list[tuple[int, int, str, int]]:
            if version >= 4:
                rows = (
                    await node.request(
                        "find_coordinator", version, coordinator_keys=list(keys), key_type=key_type
                    )
                ).coordinators
                assert [row.key for row in rows] == list(keys)
            else:
                fields: dict[str, Any] = {"key": keys[0]}
                if version:
                    fields["key_type"] = key_type
                rows = [await node.request("find_coordinator", version, **fields)]
            return [(row.error_code, row.node_id, row.host, row.port) for row in rows]

        assert await find("g") == [(15, -1, "", -1)]
        await trio.sleep(0.1)
        assert await find("g") == [(0, 1, "localhost", 9091)]
        topic = node.image.topics["__consumer_offsets"]
        assert (
            len(topic.partitions) == 50
            and node.image.topic_configs(topic.name)["cleanup.policy"] == "compact"
        )
        if version >= 1:
            assert (await find("t", key_type=1))[0][0] == 15
            await trio.sleep(0.1)
            assert (await find("t", key_type=1))[0][0] == 0
            for key_type in (2, 5, -1):
                assert await find("g", key_type=key_type) == [(42, -1, "", -1)]
        if version >= 4:
            assert [row[0] for row in await find("g", "h", "")] == [0, 0, 0]
            assert await find() == []


async def test_no_coordinator_while_its_partition_has_no_leader(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        await node.create("__consumer_offsets")
        await node.controller.lifecycle.leave(timeout=1, no_controller_timeout=1)
        response = await node.request("find_coordinator", 4, coordinator_keys=["g"])
        assert response.coordinators[0].error_code == 15


@pytest.mark.parametrize("version", range(6))
async def test_idempotent_producers_get_fresh_ids(version: int) -> None:
    async with running_node() as node:
        responses = [
            await node.request(
                "init_producer_id", version, transactional_id=None, transaction_timeout_ms=0
            )
            for _ in range(3)
        ]
        assert [(a.error_code, a.producer_id, a.producer_epoch) for a in responses] == [
            (0, 0, 0),
            (0, 1, 0),
            (0, 2, 0),
        ]
        assert node.image.next_producer_id == 1000


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"producer_id": 1000}, 42),
        ({"producer_epoch": 3}, 42),
        ({"producer_id": 1000, "producer_epoch": 3}, 0),
    ],
)
async def test_invalid_init_producer_id_requests_are_refused(
    request_: dict[str, Any], code: int
) -> None:
    async with running_node() as node:
        response = await node.request(
            "init_producer_id",
            4,
            **{"transactional_id": None, "transaction_timeout_ms": 1000, **request_},
        )
        assert response.error_code == code
        assert (response.producer_id, response.producer_epoch) == (
            (0, 0) if code == 0 else (-1, -1)
        )


async def test_ids_wait_for_a_controller(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        node.quorum.leader_id = None
        response = await node.request(
            "init_producer_id", 4, transactional_id=None, transaction_timeout_ms=1000
        )
        assert (response.error_code, response.producer_id) == (14, -1)


# -- requests between nodes


def registration(node_id: int, cluster: str = CLUSTER, **rest: Any) -> dict[str, Any]:
    listeners = [{"name": "PLAINTEXT", "host": "localhost", "port": 9091, "security_protocol": 0}]
    return {
        "broker_id": node_id,
        "cluster_id": cluster,
        "incarnation_id": UUID(int=5),
        "listeners": listeners,
        "rack": "r",
        "metadata_version_max": versions.NEWEST,
        **rest,
    }


async def test_registration_and_heartbeats(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        node.peers.nodes[2] = node.peers.nodes[1]
        for version in range(5):
            response = await node.request(
                "broker_registration", version, listener=PEER, peer_node=2, **registration(2)
            )
            if version < 3:  # of a release that cannot read the metadata
                assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
                continue
            assert (response.error_code, response.broker_epoch) == (
                0,
                node.image.brokers[TWO].epoch,
            )
        beat = {
            "broker_id": 2,
            "broker_epoch": response.broker_epoch,
            "current_metadata_offset": node.image.index,
        }
        beat["partitions_max"] = 7
        for version in range(3):
            response = await node.request(
                "broker_heartbeat", version, listener=PEER, peer_node=2, **beat
            )
            assert (
                response.error_code,
                response.is_caught_up,
                response.is_fenced,
                response.should_shut_down,
            ) == (0, True, False, False)
        assert node.controller.operations.options().partitions_max[TWO] == 7
        broker = node.image.brokers[TWO]
        assert (broker.host, broker.port, broker.rack) == ("localhost", 9091, "r")
        block = await node.request(
            "allocate_producer_ids",
            0,
            listener=PEER,
            peer_node=2,
            broker_id=2,
            broker_epoch=beat["broker_epoch"],
        )
        assert (block.error_code, block.producer_id_start, block.producer_id_len) == (0, 0, 1000)
        stale = await node.request(
            "broker_heartbeat", 1, listener=PEER, peer_node=2, **{**beat, "broker_epoch": 0}
        )
        assert (stale.error_code, stale.is_fenced) == (77, True)
        assert (
            await node.request(
                "allocate_producer_ids", 0, listener=PEER, peer_node=9, broker_id=9, broker_epoch=0
            )
        ).error_code == 102


async def test_nodes_outside_the_peers_file_do_not_register() -> None:
    async with running_node() as node:
        for request, code in (
            (registration(9), 119),
            (registration(1, "another"), 104),
            (registration(1, listeners=[]), 119),
            (
                registration(
                    1,
                    listeners=[
                        {
                            "name": "PLAINTEXT",
                            "host": "evil.example",
                            "port": 9091,
                            "security_protocol": 0,
                        }
                    ],
                ),
                119,
            ),
            (
                registration(
                    1,
                    listeners=[
                        {
                            "name": "PLAINTEXT",
                            "host": "localhost",
                            "port": 666,
                            "security_protocol": 0,
                        }
                    ],
                ),
                119,
            ),
        ):
            response = await node.request(
                "broker_registration", 4, listener=PEER, peer_node=request["broker_id"], **request
            )
            assert (response.error_code, response.broker_epoch) == (code, -1)


async def test_clients_cannot_send_requests_of_nodes() -> None:
    async with running_node() as node:
        assert (
            await node.request("broker_registration", 4, listener=CLIENT, **registration(1))
        ).error_code == 31
        assert (
            await node.request("broker_heartbeat", 1, listener=CLIENT, broker_id=1)
        ).error_code == 31
        assert (
            await node.request("allocate_producer_ids", 0, listener=CLIENT, broker_id=1)
        ).error_code == 31


@pytest.mark.parametrize("peer_node", [None, 2])
async def test_a_node_sends_requests_only_in_its_own_name(peer_node: int | None) -> None:
    async with running_node() as node:
        before = node.image.brokers[ONE]
        me: dict[str, Any] = {"listener": PEER, "peer_node": peer_node}
        assert (
            await node.request("broker_registration", 4, **me, **registration(1))
        ).error_code == 31
        beat: dict[str, Any] = {"broker_id": 1, "broker_epoch": before.epoch}
        beat |= {"want_shut_down": True}
        assert (await node.request("broker_heartbeat", 1, **me, **beat)).error_code == 31
        assert (
            await node.request(
                "allocate_producer_ids", 0, **me, broker_id=1, broker_epoch=before.epoch
            )
        ).error_code == 31
        assert node.image.brokers[ONE] == before
