"""The server as a whole on an in-memory network: limits on connections, time limits,
memory, turns.
"""

from __future__ import annotations

from pathlib import Path
from struct import pack
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mqd.controller.records import SetConfigs
from mqd.errors import ErrorCode, ProtocolError
from mqd.limits import (
    FRAME_RECEIVE_TIMEOUT_MS,
    HANDSHAKE_SECONDS_MIN,
    MIB,
    PEER_CONNECTIONS_MAX,
    RECEIVE_ARENA_BYTES,
    RECEIVE_BYTES_MAX,
    SEND_QUEUE_BYTES_MAX,
    UNAUTHENTICATED_CLUSTER_MAX,
    UNAUTHENTICATED_OTHER_MAX,
    UNAUTHENTICATED_PER_ADDRESS_MAX,
)
from mqd.server.context import CLIENT, PEER
from mqd.server.peer_requests import authenticated
from tests.log.support import batch
from tests.server.rig import Client, Rig, rig, run_until_idle, values

API_VERSIONS: tuple[str, int, dict[str, Any]] = ("api_versions", 0, {})


async def serves(client: Client) -> bool:
    if client.sock.closed:
        return False
    client.post(*API_VERSIONS)
    await run_until_idle()
    return len(client.responses()) == 1


# -- limits on connections


async def test_connections_above_the_limit_are_closed_and_the_others_stay(tmp_path: Path) -> None:
    async with rig(tmp_path, max_connections="10") as node:
        clients = [await node.connect(address=f"10.0.0.{number}") for number in range(11)]
        assert [await serves(client) for client in clients] == [True] * 10 + [False]
        assert node.server.statistics().refused_connections == 1
        clients[0].reset()
        await run_until_idle()
        assert await serves(await node.connect(address="10.0.1.1"))
        assert not await serves(await node.connect(address="10.0.1.2"))


async def test_one_address_does_not_block_the_others(tmp_path: Path, mock_clock: MockClock) -> None:
    async with rig(tmp_path, max_connections="10") as node:
        flood = []
        for _ in range(10):
            flood.append(await node.connect(address="10.0.0.1"))
            mock_clock.jump(0.1)
        assert await serves(flood[0])
        next_ones = [await node.connect(address=address) for address in ("10.0.0.2", "127.0.0.1")]
        assert [await serves(client) for client in next_ones] == [True, True]
        assert [number for number, client in enumerate(flood) if client.sock.closed] == [1, 2], (
            "the longest idle"
        )
        assert not await serves(await node.connect(address="10.0.0.1")), "it has its share"
        more = [await node.connect(address="10.0.0.2") for _ in range(10)]
        assert [client.sock.closed for client in more] == [False] * 3 + [True] * 7, (
            "5 and 4 are about equal"
        )
        assert await serves(next_ones[0]) and await serves(next_ones[1])
        statistics = node.server.statistics()
        assert (
            statistics.connections,
            statistics.evicted_connections,
            statistics.refused_connections,
        ) == (10, 5, 8)


async def test_connections_of_one_address_have_a_limit(tmp_path: Path) -> None:
    async with rig(tmp_path, max_connections_per_ip="2") as node:
        same = [await node.connect(address="10.0.0.1") for _ in range(3)]
        assert [await serves(client) for client in same] == [True, True, False]
        assert await serves(await node.connect(address="10.0.0.2"))
        assert await serves(await node.connect(address="fe80::1"))
        same[1].reset()
        await run_until_idle()
        assert await serves(await node.connect(address="10.0.0.1"))


async def test_connections_above_the_limit_of_their_listener_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limit: dict[str, Any] = {"listener.name.PLAINTEXT.max.connections": "2"}
    async with rig(tmp_path, **limit) as node:
        clients = [await node.connect(address=f"10.0.0.{number}") for number in range(4)]
        assert [await serves(client) for client in clients] == [True, True, False, False]
        assert not any(client.sock.closed for client in clients)
        clients[0].reset()
        await run_until_idle()
        assert len(clients[2].responses()) == 1, "it was accepted in place of the first"
        assert clients[3].responses() == []
        assert await serves(await node.connect(PEER))
        assert node.server.statistics().refused_connections == 0
    assert "listener=PLAINTEXT connections=2" in caplog.text


async def test_an_override_replaces_the_limit_of_one_address(tmp_path: Path) -> None:
    overrides = "10.0.0.1:3, [fe80:0::1]:1,127.0.0.1:1,10.0.0.9:0"
    async with rig(
        tmp_path, max_connections_per_ip="2", max_connections_per_ip_overrides=overrides
    ) as node:

        async def accepted(address: str) -> int:
            clients = [await node.connect(address=address) for _ in range(4)]
            return sum(not client.sock.closed for client in clients)

        assert await accepted("10.0.0.1") == 3
        assert await accepted("10.0.0.2") == 2
        assert await accepted("fe80::1") == 1
        assert await accepted("127.0.0.1") == 1
        assert await accepted("::ffff:10.0.0.9") == 0


async def test_peers_are_accepted_whatever_clients_do(tmp_path: Path) -> None:
    async with rig(tmp_path, max_connections="10", max_connections_per_ip="1") as node:
        others = [await node.connect(address=f"10.1.0.{number}") for number in range(9)]
        assert all([await serves(client) for client in others])
        assert await serves(await node.connect())
        assert await serves(await node.connect(PEER))


def become_nodes(node: Rig, *clients: Client, node_id: int = 2) -> None:
    """The server has accepted their handshakes."""
    for client in clients:
        unauthenticated = node.server._quotas.unauthenticated
        authenticated(next(one for one in unauthenticated if one.sock is client.sock), node_id)


async def test_unauthenticated_connections_do_not_block_nodes(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """The oldest is closed for a new one, but not before it had time for a handshake."""
    async with rig(tmp_path) as node:
        first = [await node.connect(PEER) for _ in range(UNAUTHENTICATED_CLUSTER_MAX)]
        next_one = await node.connect(PEER)
        assert not any(client.sock.closed for client in (*first, next_one))
        become_nodes(node, *first[:2])
        others = [await node.connect(PEER) for _ in range(2)]
        mock_clock.jump(HANDSHAKE_SECONDS_MIN / 2)
        await run_until_idle()
        assert not any(client.sock.closed for client in first)
        for _ in range(3):
            mock_clock.jump(HANDSHAKE_SECONDS_MIN / 2)
            await run_until_idle()
        assert [number for number, client in enumerate(first) if client.sock.closed] == [2]
        assert [await serves(client) for client in (next_one, *others)] == [True] * 3


async def test_a_flood_from_other_addresses_displaces_no_node(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        flood = [
            await node.connect(PEER, address=f"10.9.{number % 50}.1") for number in range(1000)
        ]
        peer = await node.connect(PEER)  # from the address in the peers file
        assert sum(not client.sock.closed for client in flood) == UNAUTHENTICATED_OTHER_MAX
        assert await serves(peer)
        mock_clock.jump(HANDSHAKE_SECONDS_MIN)
        next_one = await node.connect(PEER, address="10.8.1.1")  # the oldest had its time
        assert await serves(next_one) and flood[0].sock.closed
        for _ in range(UNAUTHENTICATED_PER_ADDRESS_MAX):
            mock_clock.jump(HANDSHAKE_SECONDS_MIN)
            last = await node.connect(PEER, address="10.8.1.1")
        assert last.sock.closed and not next_one.sock.closed
        become_nodes(node, next_one)  # their address belongs to the cluster from now on
        again = [
            await node.connect(PEER, address="10.8.1.1") for _ in range(UNAUTHENTICATED_CLUSTER_MAX)
        ]
        assert not any(client.sock.closed for client in again)


async def test_connections_of_nodes_have_a_separate_limit(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        for _ in range(PEER_CONNECTIONS_MAX):
            await node.connect(PEER)
            authenticated(next(iter(node.server._quotas.unauthenticated)), 2)
        for _ in range(2):
            assert await serves(await node.connect(PEER))
        with pytest.raises(
            ProtocolError, match=f"{PEER_CONNECTIONS_MAX} connections of other nodes are open"
        ):
            authenticated(next(iter(node.server._quotas.unauthenticated)), 3)
        next(one for one in node.server._connections if one.peer_node == 2).close()
        authenticated(next(iter(node.server._quotas.unauthenticated)), 3)


async def test_peers_use_no_connection_of_clients(tmp_path: Path) -> None:
    async with rig(tmp_path, max_connections="10", max_connections_per_ip="1") as node:
        assert all([await serves(await node.connect(PEER)) for _ in range(10)])
        assert all(
            [await serves(await node.connect(address=f"10.1.0.{number}")) for number in range(10)]
        )


async def test_limits_in_the_metadata_block_no_other_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An earlier version accepted them from clients."""
    async with rig(tmp_path) as node:
        stale = (
            ("max.connections", "0"),
            ("max.connections.per.ip", "0"),
            ("group.members.memory.bytes", "1"),
        )
        node.change(SetConfigs("node", "", stale), SetConfigs("node", "1", stale))
        assert await serves(await node.connect(address="10.0.0.1"))
        assert (
            "resource=broker:<default> "
            "configs=group.members.memory.bytes=1,max.connections.per.ip=0" in caplog.text
        )
        assert "resource=broker:1 configs=group.members.memory.bytes=1" in caplog.text


# -- time limits


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path, connections_max_idle_ms="5000") as node:
        idle, busy = await node.connect(), await node.connect()
        for _ in range(4):
            assert await serves(busy)
            mock_clock.jump(2)
            await run_until_idle()
        assert (idle.sock.closed, busy.sock.closed) == (True, False)
        mock_clock.jump(6.1)
        await run_until_idle()
        assert busy.sock.closed


async def test_a_connection_that_waits_for_a_response_is_not_idle(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path, connections_max_idle_ms="1000") as node:
        node.create("t")
        client = await node.connect()
        client.post("fetch", 12, node.fetch_body("t", 0, max_wait_ms=60_000))
        await run_until_idle()
        for _ in range(5):
            mock_clock.jump(2)
            await run_until_idle()
        assert not client.sock.closed
        await (await node.connect()).produce("t", batch(b"a"))
        assert values(client.responses()[0].responses[0].partitions[0].records) == [b"a"]


async def test_a_response_restarts_the_idle_time(tmp_path: Path, mock_clock: MockClock) -> None:
    async with rig(tmp_path, connections_max_idle_ms="5000") as node:
        node.create("t")
        client = await node.connect()
        client.post("fetch", 12, node.fetch_body("t", 0, max_wait_ms=8000))
        await run_until_idle()
        for _ in range(10):
            mock_clock.jump(1)
            await run_until_idle()
        assert len(client.responses()) == 1
        assert await serves(client)


async def test_a_client_that_still_reads_is_not_idle(tmp_path: Path, mock_clock: MockClock) -> None:
    async with rig(tmp_path, connections_max_idle_ms="3000") as node:
        node.create("t")
        client = await node.connect()
        await client.produce("t", batch(b"x" * 1000))
        client.sock.room = 0
        client.post("fetch", 12, node.fetch_body("t", 0))
        await run_until_idle()
        for _ in range(5):
            client.take(100)
            mock_clock.jump(1.5)
            await run_until_idle()
        client.take(1 << 20)
        await run_until_idle()
        assert len(client.responses()) == 1


async def test_no_idle_limit(tmp_path: Path, mock_clock: MockClock) -> None:
    async with rig(tmp_path, connections_max_idle_ms="-1") as node:
        client = await node.connect()
        mock_clock.jump(5)
        await run_until_idle()
        assert not client.sock.closed


async def test_an_incomplete_frame_is_closed_in_time(tmp_path: Path, mock_clock: MockClock) -> None:
    async with rig(tmp_path) as node:
        client, other = await node.connect(), await node.connect()
        client.send(pack(">i", 100) + b"begun")
        await run_until_idle()
        for _ in range(int(FRAME_RECEIVE_TIMEOUT_MS / 1000) - 2):
            mock_clock.jump(1)
            client.send(b".")  # an occasional byte does not help
            await run_until_idle()
        closed = [client.sock.closed]
        for _ in range(4):
            mock_clock.jump(1)
            await run_until_idle()
        closed.append(client.sock.closed)
        assert closed == [False, True]
        assert await serves(other)
        assert node.server.statistics().request_bytes == 0


async def test_half_a_length_begins_a_frame(tmp_path: Path, mock_clock: MockClock) -> None:
    async with rig(tmp_path) as node:
        client = await node.connect()
        client.send(b"\0\0")
        await run_until_idle()
        for _ in range(2):
            mock_clock.jump(FRAME_RECEIVE_TIMEOUT_MS / 1000)
            await run_until_idle()
        assert client.sock.closed


# -- memory


@pytest.mark.parametrize(
    "size",
    [
        5000,
        RECEIVE_BYTES_MAX,
    ],
)
async def test_a_frame_larger_than_allowed_closes_its_connection(tmp_path: Path, size: int) -> None:
    async with rig(tmp_path, socket_request_max_bytes="5000", message_max_bytes="4900") as node:
        node.create("t")
        client = await node.connect()
        assert (await client.produce("t", batch(b"x" * 4000))).error_code == 0
        client.post("produce", 9, node.produce_body("t", batch(b"x" * size)))
        await run_until_idle()
        assert client.sock.closed


async def begun(node: Rig, records: int, sent: int) -> tuple[Client, bytes]:
    """A connection that has sent that many bytes of a produce request; and the others."""
    client = await node.connect()
    client.post("produce", 9, node.produce_body("t", batch(b"x" * records)))
    frame = bytes(client.sock.incoming)
    client.sock.incoming.clear()
    client.send(frame[:sent])
    await run_until_idle()
    return client, frame[sent:]


async def test_large_frames_wait_for_memory_and_continue(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    limit = MIB * 4 // 3  # a quarter is for small frames
    async with rig(tmp_path, message_max_bytes=str(2 * MIB)) as node:
        node.server.memory.request_pool(CLIENT).bytes_max = limit
        node.create("t")
        (first, rest), (second, other_rest) = [
            await begun(node, 3 * MIB // 2, MIB - 1000) for _ in range(2)
        ]
        first.send(rest[:-10])  # one may exceed the limit, and is not complete yet
        await run_until_idle()
        second.send(other_rest)
        await run_until_idle()
        assert not second.responses()
        assert node.server.statistics().request_bytes <= limit + 2 * MIB
        assert await serves(await node.connect())  # small ones do not wait
        first.send(rest[-10:])
        await run_until_idle()
        assert len(first.responses()) == 1
        mock_clock.jump(1.1)
        await run_until_idle()
        assert second.responses()[0].responses[0].partition_responses[0].error_code == 0
        assert node.partition("t").log.log_end_offset == 2


async def test_one_of_the_connections_that_wait_for_memory_continues(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path, message_max_bytes=str(2 * MIB)) as node:
        node.server.memory.request_pool(CLIENT).bytes_max = 33 * MIB // 10
        node.create("t")
        pairs = [await begun(node, 3 * MIB // 2, MIB - 1000) for _ in range(2)]
        for client, rest in pairs:
            client.send(rest)
        for _ in range(20):
            mock_clock.jump(1)
            await run_until_idle()
        assert sum(len(client.responses()) for client, _ in pairs) >= 1


async def test_a_turn_may_exceed_the_arena(tmp_path: Path, mock_clock: MockClock) -> None:
    """The turn ends in the middle: no records are overwritten before they are in the
    file.
    """
    async with rig(tmp_path) as node:
        count = RECEIVE_ARENA_BYTES // (RECEIVE_BYTES_MAX // 2) + 8
        node.create("t")
        clients = [await node.connect() for _ in range(count)]
        before = node.server.turns
        bodies = [bytes([number]) * (RECEIVE_BYTES_MAX // 2) for number in range(count)]
        for client, body in zip(clients, bodies):
            client.post("produce", 9, node.produce_body("t", batch(body)))
        await run_until_idle()
        assert node.server.turns - before > 1
        offsets = [
            client.responses()[0].responses[0].partition_responses[0].base_offset
            for client in clients
        ]
        assert sorted(offsets) == list(range(count))
        for offset, body in zip(offsets, bodies):
            assert values((await clients[0].fetch("t", offset, partition_max_bytes=1)).records) == [
                body
            ]


# -- slow readers


async def test_a_slow_reader_gets_every_response_but_none_in_advance(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path, message_max_bytes=str(2 * MIB)) as node:
        node.create("t")
        client, other = await node.connect(), await node.connect()
        data = batch(b"x" * 1000)
        for _ in range(50):
            await other.produce("t", data)
        client.sock.room = 10
        for _ in range(20):
            client.post("fetch", 12, node.fetch_body("t", 0))
        await run_until_idle()
        assert len(client.sock.sent) == 10
        assert await serves(other)
        client.take(SEND_QUEUE_BYTES_MAX)
        await run_until_idle()
        responses = client.responses()
        assert len(responses) == 20
        assert {
            len(values(response.responses[0].partitions[0].records)) for response in responses
        } == {50}


# -- turns


async def test_one_turn_is_one_write_and_one_send_per_connection(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        clients = [await node.connect() for _ in range(3)]
        flushes: list[int] = []
        flush = node.logs.flush

        def counted() -> Any:
            failures = flush()
            flushes.append(node.partition("t").log.log_end_offset)
            return failures

        monkeypatch.setattr(node.logs, "flush", counted)
        for client in clients:
            for _ in range(5):
                client.post("produce", 9, node.produce_body("t", batch(b"x")))
        await run_until_idle()
        assert flushes == [15]
        assert [len(client.responses()) for client in clients] == [5, 5, 5]
        assert [client.sock.sends for client in clients] == [1, 1, 1]


async def test_a_server_that_is_stopped_closes_every_connection(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        clients = [await node.connect() for _ in range(3)]
        clients[0].post("fetch", 12, node.fetch_body("t", 0, max_wait_ms=60_000))
        clients[1].send(pack(">i", 100) + b"half")
        await run_until_idle()
    assert all(client.sock.closed for client in clients)
    assert node.server.statistics().connections == 0
    assert node.server.memory.request_bytes == 0


async def test_other_tasks_run_while_sockets_stay_ready(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        turns: list[int] = []
        for _ in range(600):  # more requests than one connection may have without responses
            client.post("produce", 9, node.produce_body("t", batch(b"x" * 2000)))
        with trio.fail_after(10):
            while node.partition("t").log.log_end_offset < 600:
                await trio.lowlevel.checkpoint()
                turns.append(node.server.turns)
        assert len(set(turns)) > 1
        await run_until_idle()
        codes = {
            response.responses[0].partition_responses[0].error_code
            for response in client.responses()
        }
        assert codes == {ErrorCode.NONE}


async def test_statistics(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        client = await node.connect()
        assert await serves(client)
        found = node.server.statistics()
        assert (
            found.connections,
            found.requests,
            found.refused_connections,
            found.request_bytes,
        ) == (1, 1, 0, 0)
