"""Produce in transactions, through the whole server: requests to the coordinator, and late
confirmations (KIP-890).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from mqd.errors import ErrorCode, MqError
from mqd.server.verification import SupportedOperation, offsets_confirmed
from mqd.types import TopicPartition
from tests.log.support import NOW, batch
from tests.server.coordinator import STATE, ScriptedCoordinator
from tests.server.rig import ME, OTHER, Rig, rig, run_until_idle

OFFSETS = "__consumer_offsets"
PID = 9
TX = "tx"


def part(sequence: int, *values: bytes, epoch: int = 0, producer_id: int = PID) -> bytearray:
    return batch(
        *values, producer_id=producer_id, epoch=epoch, sequence=sequence, transactional=True
    )


def mark(node: Rig, committed: bool, *, epoch: int = 0, version: int = 0, topic: str = "t") -> None:
    node.replica.append_marker_nowait(
        node.partition(topic), (PID, epoch), 0, committed, NOW, version
    )
    node.replica.end_of_turn()


@pytest.mark.parametrize(
    ("version", "verify_only"), [(9, True), (11, True), (12, False), (13, False)]
)
async def test_only_the_first_batch_of_a_transaction_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, verify_only: bool
) -> None:
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client = await node.connect()
        for sequence in range(3):
            row = await client.produce("t", part(sequence), version=version, transactional_id=TX)
            assert (row.error_code, row.base_offset) == (0, sequence)
        assert [
            (one["transactional_id"], one["producer_id"], one["verify_only"])
            for one in coordinator.requests
        ] == [(TX, PID, verify_only)]
        assert node.partition("t").last_stable_offset == 0
        mark(node, committed=True)
        assert node.partition("t").last_stable_offset == 4
        assert (
            await client.produce("t", part(3), version=version, transactional_id=TX)
        ).base_offset == 4
        assert len(coordinator.requests) == 2, "the next transaction is another one"


@pytest.mark.parametrize(
    ("version", "code", "expected"),
    [
        (9, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (9, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (9, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (9, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (9, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (9, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (9, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
        (12, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
async def test_batches_that_the_coordinator_refuses_are_not_appended(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    code: ErrorCode,
    expected: ErrorCode,
) -> None:
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client = await node.connect()
        coordinator.codes["t", 0] = code
        row = await client.produce("t", part(0), version=version, transactional_id=TX)
        assert row.error_code == expected
        assert node.partition("t").log.log_end_offset == 0
        del coordinator.codes["t", 0]
        assert (
            await client.produce("t", part(0), version=version, transactional_id=TX)
        ).error_code == 0


async def test_a_transaction_in_completion_is_retried_briefly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client = await node.connect()
        coordinator.codes["t", 0] = ErrorCode.CONCURRENT_TRANSACTIONS
        client.post("produce", 12, node.produce_body("t", part(0), version=12, transactional_id=TX))
        await run_until_idle()
        assert client.responses() == [] and len(coordinator.requests) == 1
        coordinator.codes.clear()
        mock_clock.jump(0.02)
        await run_until_idle()
        (response,) = client.responses()
        assert response.responses[0].partition_responses[0].error_code == 0
        mark(node, committed=True, epoch=1, version=2)
        coordinator.codes["t", 0] = ErrorCode.CONCURRENT_TRANSACTIONS
        client.post(
            "produce", 12, node.produce_body("t", part(0, epoch=1), version=12, transactional_id=TX)
        )
        for _ in range(10):
            await run_until_idle()
            mock_clock.jump(0.02)
        await run_until_idle()
        (response,) = client.responses()
        assert (
            response.responses[0].partition_responses[0].error_code
            == ErrorCode.CONCURRENT_TRANSACTIONS
        )


async def test_later_requests_of_the_connection_wait_for_the_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client, other = await node.connect(), await node.connect()
        coordinator.may_respond = type(coordinator.may_respond)()
        client.post("produce", 9, node.produce_body("t", part(0), transactional_id=TX))
        client.post("produce", 9, node.produce_body("t", part(1), transactional_id=TX))
        client.post("produce", 9, node.produce_body("t", batch(b"plain")))
        await run_until_idle()
        assert client.responses() == [] and len(coordinator.requests) == 1
        assert (await other.produce("t", batch(b"other"))).base_offset == 0
        coordinator.may_respond.set()
        await run_until_idle()
        assert [
            response.responses[0].partition_responses[0].base_offset
            for response in client.responses()
        ] == [1, 2, 3]
        assert len(coordinator.requests) == 1, "the second batch arrived in an open transaction"


async def test_a_waiting_request_continues_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t", replicas=(ME, OTHER), isr=(ME, OTHER))
        client = await node.connect()
        client.post("produce", 9, node.produce_body("t", part(0), transactional_id=TX))
        client.post("produce", 9, node.produce_body("t", part(1), transactional_id=TX))
        await run_until_idle()
        assert node.partition("t").log.log_end_offset == 2, (
            "the barrier ends with the append, not with the response"
        )
        assert client.responses() == []


async def test_a_verification_after_the_marker_begins_no_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client = await node.connect()
        coordinator.may_respond = type(coordinator.may_respond)()
        client.post("produce", 9, node.produce_body("t", part(0), transactional_id=TX))
        await run_until_idle()
        mark(node, committed=False)  # the coordinator timed the transaction out meanwhile
        coordinator.may_respond.set()
        await run_until_idle()
        (response,) = client.responses()
        assert (
            response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TXN_STATE
        )
        assert node.partition("t").last_stable_offset == 1
        assert not node.partition("t").log.producers.open


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS])
async def test_a_marker_of_the_previous_transaction_during_a_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock, code: ErrorCode
) -> None:
    """With version 2 a transaction may begin before the markers of the previous one are written:
    its epoch differs.
    """
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client = await node.connect()
        assert (await client.produce("t", part(0), version=12, transactional_id=TX)).error_code == 0
        coordinator.may_respond = type(coordinator.may_respond)()
        coordinator.codes["t", 0] = code
        client.post(
            "produce", 12, node.produce_body("t", part(0, epoch=1), version=12, transactional_id=TX)
        )
        await run_until_idle()
        mark(node, committed=True, epoch=1, version=2)
        coordinator.may_respond.set()
        await run_until_idle()
        coordinator.codes.clear()
        mock_clock.jump(0.02)
        await run_until_idle()
        (response,) = client.responses()
        row = response.responses[0].partition_responses[0]
        assert (row.error_code, row.base_offset) == (0, 2)
        assert len(coordinator.requests) == 3, "once for the first, twice for the second"


async def test_offsets_are_appended_after_the_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create(OFFSETS)
        partition = node.partition(OFFSETS)

        def append() -> None:
            data = memoryview(batch(producer_id=PID, transactional=True))
            node.replica.append_nowait(partition, data, -1, NOW, client=False)
            node.replica.end_of_turn()

        with pytest.raises(MqError) as caught:
            append()
        assert caught.value.code is ErrorCode.INVALID_TXN_STATE
        for code, expected in (
            (ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ):
            coordinator.codes[OFFSETS, 0] = code
            with pytest.raises(MqError) as caught:
                async with offsets_confirmed(
                    node.node, "g", TX, (PID, 0), SupportedOperation.ADD_PARTITION
                ):
                    raise AssertionError
            assert caught.value.code is expected
        coordinator.codes.clear()
        async with offsets_confirmed(
            node.node, "g", TX, (PID, 0), SupportedOperation.ADD_PARTITION
        ):
            append()
        requested = len(coordinator.requests)
        async with offsets_confirmed(
            node.node, "g", TX, (PID, 0), SupportedOperation.ADD_PARTITION
        ):
            append()
        assert len(coordinator.requests) == requested, "it is open"
        assert partition.log.log_end_offset == 2


async def test_a_verification_is_valid_for_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t", max_message_bytes="500")
        client = await node.connect()
        row = await client.produce("t", part(0, b"x" * 1000), transactional_id=TX)
        assert row.error_code == ErrorCode.MESSAGE_TOO_LARGE
        with pytest.raises(MqError) as caught:
            node.replica.append_nowait(node.partition("t"), memoryview(part(0)), -1, NOW)
        assert caught.value.code is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", [3, 9, 12])
async def test_a_batch_of_a_transaction_needs_the_transactional_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Apache Kafka refuses the whole request when any of its batches violates this."""
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create("t", 2)
        client = await node.connect()
        body = node.produce_body("t", part(0), version=version)
        body["topic_data"][0]["partition_data"].append({"index": 1, "records": batch(b"plain")})
        response = await client.request("produce", version, body)
        refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert [row.error_code for row in response.responses[0].partition_responses] == [
            refused,
            0,
        ] and not coordinator.requests
        assert (
            await client.produce("t", part(0), version=version, transactional_id=TX)
        ).error_code == 0
        assert (await client.produce("t", part(1), version=version)).error_code == refused, (
            "nor within the transaction"
        )
        assert node.partition("t").log.log_end_offset == 1


async def test_the_request_goes_to_the_node_of_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        for index in range(2):
            node.lead(STATE, OTHER, partition=index)
        client = await node.connect()
        assert (await client.produce("t", part(0), transactional_id=TX)).error_code == 0
        assert coordinator.forwarded == [(OTHER, "AddPartitionsToTxn", 5)]


@pytest.mark.parametrize("fails", [OSError("gone"), MqError(ErrorCode.COORDINATOR_NOT_AVAILABLE)])
async def test_without_a_coordinator_the_client_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Exception
) -> None:
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client = await node.connect()
        coordinator.fails = fails
        row = await client.produce("t", part(0), transactional_id=TX)
        assert (
            row.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            and "Underlying error" in row.error_message
        )


async def test_only_verification_without_added_partitions_can_be_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path, transaction_partition_verification_enable="false") as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client = await node.connect()
        assert (await client.produce("t", part(0), transactional_id=TX)).error_code == 0
        assert not coordinator.requests
        mark(node, committed=True)
        assert (await client.produce("t", part(1), transactional_id=TX, version=12)).error_code == 0
        assert coordinator.requests


async def test_two_producers_in_one_request_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t", 2)
        client = await node.connect()
        body = node.produce_body("t", part(0), transactional_id=TX)
        body["topic_data"][0]["partition_data"].append(
            {"index": 1, "records": part(0, producer_id=PID + 1)}
        )
        response = await client.request("produce", 9, body)
        rows = response.responses[0].partition_responses
        assert [row.error_code for row in rows] == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2


async def test_several_producers_in_one_request_leave_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client = await node.connect()
        body = node.produce_body("t", part(0), transactional_id=TX)
        body["topic_data"][0]["partition_data"] += [
            {"index": 0, "records": part(0, producer_id=PID + more)} for more in range(1, 100)
        ]
        response = await client.request("produce", 9, body)
        codes = [row.error_code for row in response.responses[0].partition_responses]
        assert codes == [ErrorCode.INVALID_TXN_STATE] * 99 + [0], "the request named one of them"
        assert not node.partition("t").log.producers.guards


async def test_guards_of_refused_producers_are_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqd.server.guards.GUARDS_KEPT_MAX", 3)
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create("t", 2)
        guards = [node.partition("t", index).log.producers.guards for index in range(2)]
        client, other = await node.connect(), await node.connect()
        coordinator.may_respond = type(coordinator.may_respond)()
        client.post("produce", 9, node.produce_body("t", part(0), transactional_id=TX))
        await run_until_idle()
        coordinator.may_respond, goes = type(coordinator.may_respond)(), coordinator.may_respond
        coordinator.may_respond.set()
        coordinator.codes = dict.fromkeys(
            [("t", 0), ("t", 1)], ErrorCode.INVALID_PRODUCER_ID_MAPPING
        )
        for number in range(10):
            row = await other.produce(
                "t",
                part(0, producer_id=100 + number),
                partition=number % 2,
                transactional_id="other",
            )
            assert row.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert [sorted(one) for one in guards] == [[PID, 108], [107, 109]], (
            "the last one of any partition, and producers with waiting batches"
        )
        coordinator.codes.clear()
        goes.set()
        await run_until_idle()
        (response,) = client.responses()
        assert response.responses[0].partition_responses[0].error_code == 0
        assert [sorted(one) for one in guards] == [[108], [107, 109]]


async def test_no_later_batch_begins_the_transaction_of_a_refused_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client = await node.connect()
        coordinator.codes["t", 0] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (
            await client.produce("t", part(0), transactional_id=TX)
        ).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        coordinator.codes.clear()
        assert (
            await client.produce("t", part(1), transactional_id=TX)
        ).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await client.produce("t", part(0), transactional_id=TX)).error_code == 0
        assert (await client.produce("t", part(1), transactional_id=TX)).error_code == 0
        assert not node.partition("t").log.producers.guards


async def test_a_refused_partition_does_not_affect_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create("t", 2)
        coordinator.codes["t", 1] = ErrorCode.INVALID_TXN_STATE
        client = await node.connect()
        body = node.produce_body("t", part(0), transactional_id=TX)
        body["topic_data"][0]["partition_data"].append({"index": 1, "records": part(0)})
        body["topic_data"][0]["partition_data"].append({"index": 2, "records": part(0)})
        response = await client.request("produce", 9, body)
        codes = [row.error_code for row in response.responses[0].partition_responses]
        assert codes == [0, ErrorCode.INVALID_TXN_STATE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_a_partition_that_this_node_leads_since_then_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not in the request to the coordinator: that ends neither the transaction nor the
    producer.
    """
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create("t", 2, replicas=(ME, OTHER), isr=(ME,))
        node.lead("t", OTHER, isr=(OTHER,), partition=1)
        coordinator.may_respond = type(coordinator.may_respond)()
        client = await node.connect()
        body = node.produce_body("t", part(0), version=12, transactional_id=TX)
        body["topic_data"][0]["partition_data"].append({"index": 1, "records": part(0)})
        client.post("produce", 12, body)
        await run_until_idle()
        node.lead("t", ME, isr=(ME,), partition=1)
        coordinator.may_respond.set()
        await run_until_idle()
        (response,) = client.responses()
        codes = [row.error_code for row in response.responses[0].partition_responses]
        assert codes == [0, ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert (
            await client.produce("t", part(0), partition=1, version=12, transactional_id=TX)
        ).error_code == 0


async def test_a_disconnected_client_appends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client = await node.connect()
        coordinator.may_respond = type(coordinator.may_respond)()
        client.post("produce", 9, node.produce_body("t", part(0), transactional_id=TX))
        await run_until_idle()
        client.reset()
        await run_until_idle()
        coordinator.may_respond.set()
        await run_until_idle()
        assert node.partition("t").log.log_end_offset == 0 and node.server.memory.request_bytes == 0


async def test_the_epochs_and_sequences_of_transactions_version_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        ScriptedCoordinator(node, monkeypatch)
        node.create("t")
        client = await node.connect()

        async def code(sequence: int, epoch: int) -> int:
            row = await client.produce(
                "t", part(sequence, epoch=epoch), version=12, transactional_id=TX
            )
            return int(row.error_code)

        assert await code(3, 0) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (
            "an unknown producer begins at 0"
        )
        assert await code(0, 0) == 0
        assert await code(1, 0) == 0
        mark(node, committed=True, epoch=1, version=2)
        assert await code(2, 0) == ErrorCode.INVALID_PRODUCER_EPOCH, (
            "batches of the previous transaction are too late"
        )
        assert await code(2, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await code(0, 1) == 0
        row = await client.produce("t", batch(producer_id=PID, epoch=1, sequence=1))
        assert row.error_code == ErrorCode.INVALID_TXN_STATE, (
            "outside the transaction, while it is open"
        )


async def test_clients_do_not_write_to_internal_topics(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("__consumer_offsets")
        client = await node.connect()
        assert (
            await client.produce("__consumer_offsets", batch())
        ).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        partition = node.replica.get(TopicPartition("__consumer_offsets", 0))
        assert partition is not None and partition.log.log_end_offset == 0
