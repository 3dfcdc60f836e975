"""Clients beyond their quotas get the throttle time, and their connections are muted (KIP-219)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trio.testing import MockClock

from mqd.controller.records import SetClientQuotas
from mqd.security.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from mqd.server.context import PEER
from mqd.server.peer_requests import authenticated
from mqd.types import NodeId
from tests.log.support import batch
from tests.server.rig import Client, Rig, rig, run_until_idle

ANONYMOUS = (("user", "ANONYMOUS"),)
KIB = 1024


def set_quota(node: Rig, key: str, limit: float | None) -> None:
    node.change(SetClientQuotas(ANONYMOUS, ((key, limit),)))


async def responses(client: Client) -> list[Any]:
    await run_until_idle()
    return client.responses()


async def test_a_producer_is_throttled_and_its_connection_muted(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        set_quota(node, PRODUCER_BYTE_RATE, 1000.0)
        client, other = await node.connect(), await node.connect()
        client.post("produce", 9, node.produce_body("t", batch(b"x" * 20_000)))
        client.post("produce", 9, node.produce_body("t", batch(b"second")))
        (first,) = await responses(client)
        assert 10_000 < first.throttle_time_ms < 11_000
        assert node.partition("t").log.log_end_offset == 1, "the second request waits"
        other.post("metadata", 9, {"topics": []})
        assert len(await responses(other)) == 1, "only the producer's connection is muted"
        mock_clock.jump(first.throttle_time_ms / 1000 - 0.1)
        assert await responses(client) == []
        mock_clock.jump(0.2)
        (second,) = await responses(client)
        assert second.responses[0].partition_responses[0].base_offset == 1


async def test_a_fetch_beyond_the_quota_returns_no_records(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        for _ in range(3):
            await client.produce("t", batch(b"x" * 8000))
        set_quota(node, CONSUMER_BYTE_RATE, 1000.0)
        client.post("fetch", 12, node.fetch_body("t", 0, max_bytes=1))
        (first,) = await responses(client)
        assert first.throttle_time_ms == 0
        assert len(first.responses[0].partitions[0].records) > 8000
        client.post("fetch", 12, node.fetch_body("t", 1, max_bytes=1))
        (second,) = await responses(client)
        assert second.throttle_time_ms > 5000
        assert second.responses == []
        mock_clock.jump(11.1)
        client.post("fetch", 12, node.fetch_body("t", 1, max_bytes=1))
        (third,) = await responses(client)
        assert (third.throttle_time_ms, len(third.responses)) == (0, 1)


async def test_a_fetch_returns_no_more_than_a_window_allows(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        for _ in range(10):
            await client.produce("t", batch(b"x" * KIB))
        set_quota(node, CONSUMER_BYTE_RATE, 300.0)
        client.post("fetch", 12, node.fetch_body("t", 0))
        (found,) = await responses(client)
        assert found.throttle_time_ms == 0
        assert 0 < len(found.responses[0].partitions[0].records) <= 3000


async def test_a_client_that_uses_too_much_time_is_throttled(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        set_quota(node, REQUEST_PERCENTAGE, 1.0)
        client = await node.connect()
        connection = next(iter(node.server._connections))
        node.node.quotas.used(connection, 1.0)
        client.post("metadata", 9, {"topics": []})
        (first,) = await responses(client)
        assert first.throttle_time_ms == 1000, "one sample at most"
        client.post("metadata", 9, {"topics": []})
        assert await responses(client) == []
        mock_clock.jump(1.1)
        assert len(await responses(client)) == 1


async def test_a_quota_that_is_removed_throttles_no_more(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        set_quota(node, PRODUCER_BYTE_RATE, 1.0)
        set_quota(node, PRODUCER_BYTE_RATE, None)
        client = await node.connect()
        client.post("produce", 9, node.produce_body("t", batch(b"x" * 20_000)))
        (found,) = await responses(client)
        assert found.throttle_time_ms == 0
        assert not node.node.quotas.keys


async def test_nodes_have_no_quotas(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        set_quota(node, REQUEST_PERCENTAGE, 1.0)
        await node.connect(PEER)
        connection = next(iter(node.server._connections))
        authenticated(connection, NodeId(2))
        node.node.quotas.used(connection, 100.0)
        assert node.node.quotas.throttle_for_other_request(connection) == 0


async def test_a_closed_connection_is_not_kept_while_it_is_muted(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        set_quota(node, PRODUCER_BYTE_RATE, 0.001)
        client = await node.connect()
        client.post("produce", 9, node.produce_body("t", batch(b"x")))
        await run_until_idle()
        assert len(node.server._muted) == 1
        client.reset()
        mock_clock.jump(1.1)
        await run_until_idle()
        mock_clock.jump(1.1)
        await run_until_idle()
        assert len(node.server._muted) == 0


async def test_an_address_that_connects_too_often_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path, quota_window_num="1") as node:
        node.change(
            SetClientQuotas((("ip", "10.0.0.7"),), ((CONNECTION_CREATION_RATE, 2.0),)),
        )
        of_address = [await node.connect(address="10.0.0.7") for _ in range(3)]
        other = await node.connect(address="10.0.0.8")
        assert [client.sock.closed for client in of_address] == [False, False, True]
        assert not other.sock.closed


async def test_new_connections_wait_for_the_rate_of_the_node(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path, max_connection_creation_rate="2") as node:
        clients = [await node.connect() for _ in range(3)]
        for client in clients:
            client.post("metadata", 9, {"topics": []})
        await run_until_idle()
        assert [len(client.responses()) for client in clients] == [1, 1, 0]
        mock_clock.jump(0.6)
        assert len(await responses(clients[2])) == 1


async def test_new_connections_wait_for_the_rate_of_their_listener(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    rate: dict[str, Any] = {"listener.name.plaintext.max.connection.creation.rate": "2"}
    async with rig(tmp_path, max_connection_creation_rate="100", **rate) as node:
        clients = [await node.connect() for _ in range(4)]
        for client in clients:
            client.post("metadata", 9, {"topics": []})
        await run_until_idle()
        assert [len(client.responses()) for client in clients] == [1, 1, 0, 0]
        mock_clock.jump(0.6)
        assert len(await responses(clients[2])) == 1
        assert await responses(clients[3]) == []


async def test_the_rate_of_another_listener_delays_nothing(tmp_path: Path) -> None:
    rate: dict[str, Any] = {"listener.name.other.max.connection.creation.rate": "1"}
    async with rig(tmp_path, **rate) as node:
        clients = [await node.connect() for _ in range(3)]
        for client in clients:
            client.post("metadata", 9, {"topics": []})
        assert [len(await responses(client)) for client in clients] == [1, 1, 1]
