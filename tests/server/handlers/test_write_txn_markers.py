"""WriteTxnMarkers through the whole server, and the effect on readers of committed records."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mqd.errors import ErrorCode, MqError
from mqd.log import transaction_index
from mqd.log.transaction_index import TransactionIndex
from mqd.server import consumer_fetch
from mqd.server.context import PEER
from mqd.server.handlers import write_txn_markers
from mqd.server.handlers.write_txn_markers import write_markers
from mqd.server.peer_requests import authenticated
from tests.log.support import batch
from tests.server.coordinator import ScriptedCoordinator
from tests.server.rig import ME, OTHER, Client, Rig, rig, run_until_idle, values

READ_COMMITTED = 1
PID = 9


def part(sequence: int, *content: bytes, producer_id: int = PID) -> bytearray:
    return batch(*content, producer_id=producer_id, sequence=sequence, transactional=True)


def marker(
    committed: bool,
    topics: dict[str, list[int]],
    *,
    epoch: int = 0,
    producer_id: int = PID,
    coordinator_epoch: int = 3,
) -> dict[str, Any]:
    return {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": committed,
        "topics": [
            {"name": name, "partition_indexes": indexes} for name, indexes in topics.items()
        ],
        "coordinator_epoch": coordinator_epoch,
    }


async def coordinator_on(node: Rig) -> Client:
    """A connection of another node, for requests of transaction coordinators."""
    client = await node.connect(PEER)
    authenticated(list(node.server._connections)[-1], OTHER)
    return client


async def send(
    client: Client, *markers: dict[str, Any], version: int = 1
) -> dict[tuple[int, str, int], int]:
    response = await client.request("write_txn_markers", version, {"markers": list(markers)})
    return codes(response)


def codes(response: Any) -> dict[tuple[int, str, int], int]:
    return {
        (found["producer_id"], topic["name"], row["partition_index"]): row["error_code"]
        for found in response["markers"]
        for topic in found["topics"]
        for row in topic["partitions"]
    }


async def write(
    client: Client, sequence: int, *content: bytes, producer_id: int = PID, topic: str = "t"
) -> None:
    row = await client.produce(
        topic,
        part(sequence, *content, producer_id=producer_id),
        transactional_id=f"tx{producer_id}",
    )
    assert row.error_code == 0


@pytest.mark.parametrize("version", [1, 2])
async def test_each_partition_has_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t", 2)
        client, peer = await node.connect(), await coordinator_on(node)
        await write(client, 0, b"a")
        wanted = {"t": [0, 1, 2], "nowhere": [0]}
        assert await send(
            peer,
            marker(True, wanted),
            marker(False, {"t": [1]}, producer_id=PID + 1),
            version=version,
        ) == {
            (PID, "t", 0): 0,
            (PID, "t", 1): 0,  # no transaction was open there: no effect
            (PID, "t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            (PID, "nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            (PID + 1, "t", 1): 0,
        }
        assert [node.partition("t", index).last_stable_offset for index in (0, 1)] == [2, 2]


async def test_a_follower_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t", replicas=(ME, OTHER), leader=OTHER)
        client = await node.connect()
        assert await send(client, marker(True, {"t": [0]})) == {
            (PID, "t", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER
        }


async def test_epochs_of_producers_and_coordinators_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client, peer = await node.connect(), await coordinator_on(node)
        await write(client, 0, b"a")
        late = {**marker(True, {"t": [0]}), "transaction_version": 2}
        assert await send(peer, late, version=2) == {
            (PID, "t", 0): ErrorCode.INVALID_PRODUCER_EPOCH
        }
        assert await send(peer, late, version=1) == {(PID, "t", 0): 0}, (
            "version 1 has no epoch changes"
        )
        old = marker(True, {"t": [0]}, coordinator_epoch=2)
        assert await send(peer, old) == {(PID, "t", 0): ErrorCode.TRANSACTION_COORDINATOR_FENCED}


async def test_the_response_waits_until_the_replicas_have_the_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t", replicas=(ME, OTHER), min_insync_replicas="2")
        peer = await coordinator_on(node)
        peer.post("write_txn_markers", 1, {"markers": [marker(True, {"t": [0]})]})
        await run_until_idle()
        assert peer.responses() == []
        mock_clock.jump(31)
        await run_until_idle()
        (response,) = peer.responses()
        assert codes(response) == {(PID, "t", 0): ErrorCode.REQUEST_TIMED_OUT}
        node.lead("t", ME, isr=(ME,))
        assert await send(peer, marker(True, {"t": [0]})) == {
            (PID, "t", 0): ErrorCode.NOT_ENOUGH_REPLICAS
        }


async def test_the_group_coordinator_ends_offsets_of_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        peer = await coordinator_on(node)
        topics = {"__consumer_offsets": [4], "t": [0]}
        assert set((await send(peer, marker(True, topics), version=2)).values()) == {0}
        assert coordinator.marked == [(4, (PID, 0), 3, True, 0)]
        coordinator.fails = MqError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert await send(peer, marker(True, topics)) == {
            (PID, "__consumer_offsets", 4): ErrorCode.NOT_LEADER_OR_FOLLOWER,
            (PID, "t", 0): 0,
        }


async def test_this_node_s_own_coordinator_needs_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        assert codes(await write_markers(node.node, {"markers": [marker(True, {"t": [0]})]})) == {
            (PID, "t", 0): 0
        }


# -- what clients may do


async def test_a_client_ends_only_open_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client, peer = await node.connect(), await coordinator_on(node)
        nothing = {(PID, "t", 0): ErrorCode.INVALID_TXN_STATE}
        assert await send(client, marker(False, {"t": [0]})) == nothing, "a future producer"
        await write(client, 0, b"a")
        assert await send(client, marker(False, {"t": [0]}, epoch=7)) == nothing, "a future epoch"
        assert await send(client, marker(False, {"t": [0]}, coordinator_epoch=2**31 - 1)) == {
            (PID, "t", 0): 0
        }
        assert await send(client, marker(False, {"t": [0]})) == nothing, "it has ended"
        await write(client, 1, b"b")
        assert await send(peer, marker(True, {"t": [0]}, coordinator_epoch=3)) == {
            (PID, "t", 0): 0
        }, "no coordinator is fenced"


async def test_a_partition_named_many_times_gets_one_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        peer = await coordinator_on(node)
        assert await send(peer, marker(True, {"t": [0] * 1000})) == {(PID, "t", 0): 0}
        assert node.partition("t").log.log_end_offset == 1


async def test_two_markers_of_one_producer_are_two_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        peer = await coordinator_on(node)
        assert await send(peer, marker(True, {"t": [0]}), marker(False, {"t": [0]}, epoch=1)) == {
            (PID, "t", 0): 0
        }
        assert node.partition("t").log.log_end_offset == 2


# -- what readers get


async def fetched(
    client: Client, offset: int = 0, **options: Any
) -> tuple[list[bytes], list[tuple[int, int]] | None, int]:
    row = await client.fetch("t", offset, isolation_level=READ_COMMITTED, **options)
    assert row.error_code == 0
    aborted = [(one.producer_id, one.first_offset) for one in row.aborted_transactions or ()]
    return (
        [value for value in values(row.records) if len(value) < 5],
        aborted,
        row.last_stable_offset,
    )


async def test_committed_reads_end_at_the_first_open_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client, peer = await node.connect(), await coordinator_on(node)
        await client.produce("t", batch(b"0"))
        await write(client, 0, b"1")
        await client.produce("t", batch(b"2"))
        assert await fetched(client) == ([b"0"], [], 1)
        row = await client.fetch("t", 0)
        assert values(row.records) == [b"0", b"1", b"2"] and (
            row.high_watermark,
            row.last_stable_offset,
        ) == (3, 1)
        offsets = {
            "topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        }
        for level, end in ((0, 3), (1, 1)):
            response = await client.request(
                "list_offsets", 7, {"isolation_level": level, **offsets}
            )
            assert response.topics[0].partitions[0].offset == end
        response = await client.request(
            "describe_producers", 0, {"topics": [{"name": "t", "partition_indexes": [0]}]}
        )
        (found,) = response.topics[0].partitions[0].active_producers
        assert (found.producer_id, found.current_txn_start_offset, found.coordinator_epoch) == (
            PID,
            1,
            -1,
        )
        await send(peer, marker(True, {"t": [0]}))
        assert await fetched(client) == ([b"0", b"1", b"2"], [], 4)
        response = await client.request(
            "describe_producers", 0, {"topics": [{"name": "t", "partition_indexes": [0]}]}
        )
        (found,) = response.topics[0].partitions[0].active_producers
        assert (found.current_txn_start_offset, found.coordinator_epoch) == (-1, 3)


async def test_overlapping_aborted_transactions_are_listed_by_first_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client = await node.connect()
        await write(client, 0, b"0", producer_id=1)
        await write(client, 0, b"1", producer_id=2)
        await write(client, 0, b"2", producer_id=3)
        for producer_id in (3, 2, 1):  # the transaction that began first ends last
            await send(client, marker(False, {"t": [0]}, producer_id=producer_id))
        await client.produce("t", batch(b"6"))
        assert await fetched(client) == ([b"0", b"1", b"2", b"6"], [(1, 0), (2, 1), (3, 2)], 7)
        assert (await fetched(client, 4))[1] == [(1, 0), (2, 1)]
        assert (await fetched(client, 6))[1] == []
        assert (await fetched(client, 0, partition_max_bytes=1))[1] == [(1, 0)]


async def test_a_parked_fetch_of_committed_records_wakes_at_the_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        reader, writer = await node.connect(), await node.connect()
        body = node.fetch_body(
            "t", 0, isolation_level=READ_COMMITTED, max_wait_ms=60_000, min_bytes=300
        )
        await write(writer, 0, b"x" * 400)
        reader.post("fetch", 12, body)
        await run_until_idle()
        await write(writer, 1, b"y" * 400)
        assert reader.responses() == [], "none of it is stable"
        await send(writer, marker(True, {"t": [0]}))  # a marker is 78 bytes
        (response,) = reader.responses()
        assert values(response.responses[0].partitions[0].records)[:2] == [b"x" * 400, b"y" * 400]
        reader.post(
            "fetch",
            12,
            node.fetch_body(
                "t", 3, isolation_level=READ_COMMITTED, max_wait_ms=60_000, min_bytes=300
            ),
        )
        await run_until_idle()
        await write(writer, 2, b"z" * 10)
        await send(writer, marker(True, {"t": [0]}))
        assert reader.responses() == [], "still too few bytes"
        await writer.produce("t", batch(b"plain" * 40))
        assert len(reader.responses()) == 1


async def test_a_follower_serves_committed_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t", replicas=(ME, OTHER), isr=(ME,))
        client = await node.connect()
        await write(client, 0, b"0")
        await write(client, 0, b"1", producer_id=2)
        await send(client, marker(False, {"t": [0]}))
        node.lead("t", OTHER, isr=(ME, OTHER))
        partition = node.partition("t")
        assert not partition.is_leader and partition.high_watermark == 3
        assert await fetched(client) == ([b"0"], [(PID, 0)], 1)


async def test_peers_may_write_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(tmp_path) as node:
        handlers = node.server.dispatcher._handlers
        assert 27 in handlers[PEER]


async def test_a_marker_whose_write_failed_is_not_reported_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_txn_markers, "SLICE_ROWS", 2)
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t", 2)
        client = await node.connect()
        await write(client, 0, b"a")
        responses: list[Any] = []

        async def mark() -> None:
            responses.append(
                await write_markers(node.node, {"markers": [marker(True, {"t": [0, 1]})]})
            )

        async with trio.open_nursery() as nursery:
            node.disk.write_error = errno.ENOSPC
            nursery.start_soon(mark)
            # the write of the first slice is undone
            while node.partition("t", 0).log.failure is None:
                await trio.lowlevel.checkpoint()
            node.disk.write_error = 0
            row = await client.produce("t", batch(b"another"))  # takes the marker's offset
            assert row.error_code == 0
        partition = node.partition("t", 0)
        assert partition.last_stable_offset == 0, "the marker is not there"
        assert codes(responses[0])[PID, "t", 0] == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("version", [11, 12])
async def test_a_long_list_of_aborted_transactions_is_made_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """All transactions are open at the same time, so each record is read with all of them."""
    for module in (transaction_index, consumer_fetch):
        monkeypatch.setattr(module, "ABORTED_AT_ONCE", 2)
    monkeypatch.setattr(consumer_fetch, "ABORTED_PER_FETCH_MAX", 7)
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t", 3)
        client, peer = await node.connect(), await coordinator_on(node)
        order = [5, 2, 7, 1, 6, 3, 4]
        for index in (0, 1):
            for producer_id in order:
                records = part(0, b"x", producer_id=producer_id)
                row = await client.produce(
                    "t", records, partition=index, transactional_id=f"tx{producer_id}"
                )
                assert row.error_code == 0
        for producer_id in sorted(order):
            await send(peer, marker(False, {"t": [0, 1]}, producer_id=producer_id))
        chunks: list[int] = []
        begun_before = transaction_index.TransactionIndex.begun_before

        def noted(index: TransactionIndex, end: int, positions: range) -> Any:
            chunks.append(len(positions))
            return begun_before(index, end, positions)

        monkeypatch.setattr(transaction_index.TransactionIndex, "begun_before", noted)
        rows = [
            {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
            for index in (0, 1)
        ]
        body = {
            "max_wait_ms": 60_000,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": READ_COMMITTED,
            "session_epoch": -1,
            "topics": [{"topic": "t", "partitions": rows}],
        }
        response = await client.request("fetch", version, body)
        first, second = response.responses[0].partitions
        assert [(one.producer_id, one.first_offset) for one in first.aborted_transactions] == [
            (producer_id, offset) for offset, producer_id in enumerate(order)
        ]
        assert values(first.records)[:7] == [b"x"] * 7
        assert (list(second.aborted_transactions), second.records or b"") == ([], b"")
        assert chunks == [2, 2, 2, 1], "the second partition must wait for the next fetch"
        body["topics"] = [{"topic": "t", "partitions": rows[1:]}]
        response = await client.request("fetch", version, body)
        assert len(response.responses[0].partitions[0].aborted_transactions) == 7
