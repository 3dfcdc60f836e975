"""SealTransactions through the whole server: the sealed epoch of a prepared transaction writes no
more records, and the marker ends the transaction.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqd.errors import ErrorCode
from mqd.log.producers import Producers
from mqd.protocol.batch import iterate_batches
from mqd.protocol.files import decode_producer_snapshot, encode_producer_snapshot
from mqd.protocol.markers import build_transaction_seal, is_transaction_seal, parse_end_marker
from tests.log.support import NOW, batch
from tests.server.coordinator import ScriptedCoordinator
from tests.server.handlers.test_write_txn_markers import PID, coordinator_on, marker, send
from tests.server.rig import ME, OTHER, Client, rig, run_until_idle

READ_COMMITTED = 1


def part(sequence: int, *content: bytes, epoch: int = 0) -> bytearray:
    return batch(*content, producer_id=PID, epoch=epoch, sequence=sequence, transactional=True)


async def seal(
    client: Client, *partitions: int, epoch: int = 1, coordinator_epoch: int = 3, topic: str = "t"
) -> set[int]:
    """The codes of all partitions."""
    row = {
        "producer_id": PID,
        "producer_epoch": epoch,
        "topics": [{"name": topic, "partition_indexes": list(partitions or (0,))}],
        "coordinator_epoch": coordinator_epoch,
    }
    response = await client.request("seal_transactions", 0, {"seals": [row]})
    (found,) = response.seals
    assert found.producer_id == PID
    return {one.error_code for of_topic in found.topics for one in of_topic.partitions}


async def written(client: Client, sequence: int, *, epoch: int = 0) -> int:
    code: int = (
        await client.produce("t", part(sequence, b"v", epoch=epoch), transactional_id="tx")
    ).error_code
    return code


@pytest.mark.parametrize("committed", [True, False])
async def test_the_writer_is_fenced_and_the_transaction_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client, coordinator = await node.connect(), await coordinator_on(node)
        assert await written(client, 0) == 0
        assert await seal(coordinator) == {0}
        partition = node.partition("t")
        assert (partition.high_watermark, partition.last_stable_offset) == (2, 0)
        assert await written(client, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await written(client, 0) == ErrorCode.INVALID_PRODUCER_EPOCH, "a repeated batch, too"
        assert await seal(coordinator) == {0}
        assert partition.log.log_end_offset == 2, "the second one writes nothing"
        end = {**marker(committed, {"t": [0]}, epoch=1), "transaction_version": 1}
        assert await send(coordinator, end, version=2) == {(PID, "t", 0): 0}
        assert partition.last_stable_offset == 3
        assert await seal(coordinator) == {0}
        assert partition.log.log_end_offset == 3
        assert await written(client, 0, epoch=2) == 0, "the next transaction"


async def test_readers_skip_a_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client, coordinator = await node.connect(), await coordinator_on(node)
        assert await written(client, 0) == 0
        assert await seal(coordinator) == {0}
        await send(coordinator, marker(False, {"t": [0]}, epoch=1))
        row = await client.fetch("t", 0, isolation_level=READ_COMMITTED)
        control = [header.is_control for _, _, header in iterate_batches(memoryview(row.records))]
        assert control == [False, True, True]
        assert [(one.producer_id, one.first_offset) for one in row.aborted_transactions] == [
            (PID, 0)
        ]


async def test_a_batch_confirmed_before_the_preparation_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator has confirmed the transaction, and the batch waits: the seal removes that
    confirmation, as a marker does.
    """
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        coordinator = await coordinator_on(node)
        producers = node.partition("t").log.producers
        guard = producers.guard(PID, 0, 0, True, NOW)
        assert guard is not None
        assert await seal(coordinator) == {0}
        assert PID not in producers.guards and node.partition("t").log.log_end_offset == 0


async def test_the_response_waits_until_the_seal_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client, coordinator = await node.connect(), await coordinator_on(node)
        assert await written(client, 0) == 0
        node.register(OTHER)
        node.create("u", replicas=[ME, OTHER])
        node.lead("u", ME, isr=[ME, OTHER])
        row = {"producer_id": PID, "producer_epoch": 1, "coordinator_epoch": 3}
        producers = node.partition("u").log.producers
        producers.replay(PID, 0, 0, 0, 0, NOW, 16)
        coordinator.post(
            "seal_transactions",
            0,
            {"seals": [{**row, "topics": [{"name": "u", "partition_indexes": [0]}]}]},
        )
        await run_until_idle()
        assert not coordinator.frames(), "the other replica does not have it"


async def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client, coordinator = await node.connect(), await coordinator_on(node)
        assert await written(client, 0) == 0
        await send(coordinator, marker(True, {"t": [0]}, coordinator_epoch=7))
        assert await written(client, 1) == 0
        assert await seal(coordinator, coordinator_epoch=6) == {
            ErrorCode.TRANSACTION_COORDINATOR_FENCED
        }
        assert await seal(coordinator, 5) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert await seal(coordinator, coordinator_epoch=7) == {0}


async def test_clients_may_not_seal(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        client = await node.connect()
        client.post("seal_transactions", 0, {"seals": []})
        await run_until_idle()
        assert client.sock.closed


def test_a_seal_survives_a_restart() -> None:
    producers = Producers()
    producers.replay(PID, 4, 0, 10, 2, NOW, 16)
    producers.seal(PID, 5, NOW)
    again = Producers(decode_producer_snapshot(encode_producer_snapshot(producers.snapshot())))
    for one in (producers, again):
        assert one.in_transaction(PID, 5) and not one.in_transaction(PID, 4)
        assert list(one.open) == [10]
        assert not one.may_seal(PID, 5, 3) and one.may_seal(PID, 6, 3)


def test_a_seal_is_not_a_marker() -> None:
    view: Any = memoryview(build_transaction_seal(PID, 1, 3, NOW))
    assert is_transaction_seal(view) and parse_end_marker(view) is None
