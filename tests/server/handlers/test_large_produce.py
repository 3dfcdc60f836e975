"""Produce requests of many partitions or bytes: decoded, appended and encoded in slices,
with the same results as small ones.
"""

from __future__ import annotations

from pathlib import Path
from struct import pack
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mqd.delay_names import RESERVED_PREFIX
from mqd.errors import ErrorCode
from mqd.limits import KIB, PRODUCED_AT_ONCE_BYTES_MAX
from mqd.protocol import hot_produce
from mqd.server import large_produce
from tests.log.support import batch
from tests.server.coordinator import ScriptedCoordinator
from tests.server.handlers.test_large_fetch import AT_ONCE, MANY, create_many
from tests.server.handlers.test_produce import synced
from tests.server.handlers.test_transactional_produce import TX, part
from tests.server.rig import ME, OTHER, Client, Rig, rig, run_until_idle, values

VALUE = batch(b"v")
SLICE = AT_ONCE
SLICES = -(-MANY // SLICE)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A produce request of more than `AT_ONCE` partitions is large: creating thousands of
    partitions would be slow.
    """
    monkeypatch.setattr(hot_produce, "SLICE_ROWS", AT_ONCE)
    monkeypatch.setattr(large_produce, "_SLICE_ROWS", AT_ONCE)


def produce_of(node: Rig, rows: Any, *, version: int = 9, **options: Any) -> dict[str, Any]:
    """`rows`: (partition, records)."""
    body = node.produce_body("t", None, version=version, **options)
    body["topic_data"][0]["partition_data"] = [
        {"index": index, "records": records} for index, records in rows
    ]
    return body


def codes(response: Any) -> list[int]:
    return [row.error_code for topic in response.responses for row in topic.partition_responses]


def offsets(response: Any) -> list[int]:
    return [row.base_offset for topic in response.responses for row in topic.partition_responses]


def appended(node: Rig) -> int:
    return sum(partition.log.log_end_offset for partition in node.replica.partitions())


async def until_begun(node: Rig, topic: str = "t", last: int = MANY - 1) -> None:
    """Run the node until the first slice is appended, and the last is not."""
    with trio.fail_after(5):
        while not appended(node):
            await trio.lowlevel.checkpoint()
    assert not node.partition(topic, last).log.log_end_offset


@pytest.mark.parametrize("version", [3, 8, 9, 13])
async def test_every_partition_is_appended_and_has_a_row(tmp_path: Path, version: int) -> None:
    async with rig(tmp_path) as node:
        await create_many(node)
        client = await node.connect()
        rows = [(index, None if index == 5 else batch(b"%d" % index)) for index in range(MANY + 1)]
        response = await client.request("produce", version, produce_of(node, rows, version=version))
        expected = [0] * (MANY + 1)
        expected[5], expected[MANY] = ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes(response) == expected
        assert appended(node) == MANY - 1
        assert values((await client.fetch("t", 0, partition=MANY - 1)).records) == [
            b"%d" % (MANY - 1)
        ]
        assert node.server.memory.request_bytes == 0


@pytest.mark.parametrize("version", [8, 9])
async def test_many_topics_keep_their_order_in_the_response(tmp_path: Path, version: int) -> None:
    async with rig(tmp_path) as node:
        for name in ("a", "b"):
            node.create(name)
        client = await node.connect()
        body = node.produce_body("a", None, version=version)
        names = ["a", "missing", "b"] * AT_ONCE
        body["topic_data"] = [
            {"name": name, "partition_data": [{"index": 0, "records": VALUE}]} for name in names
        ]
        response = await client.request("produce", version, body)
        assert [topic.name for topic in response.responses] == names
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes(response) == [unknown if name == "missing" else 0 for name in names]


async def test_records_of_a_partition_stay_in_their_order(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        client.post("produce", 9, produce_of(node, [(0, batch(b"first"))]))
        client.post(
            "produce", 9, produce_of(node, [(0, batch(b"%d" % number)) for number in range(MANY)])
        )
        client.post("produce", 9, produce_of(node, [(0, batch(b"last"))]))
        await run_until_idle()
        first, large, last = client.responses()
        assert (offsets(first), offsets(large), offsets(last)) == (
            [0],
            list(range(1, MANY + 1)),
            [MANY + 1],
        )
        stored = values((await client.fetch("t", 0)).records)
        assert stored == [b"first", *(b"%d" % number for number in range(MANY)), b"last"]


async def test_other_requests_are_served_between_two_slices(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        await create_many(node)
        client, other = await node.connect(), await node.connect()
        client.post("produce", 9, produce_of(node, [(index, VALUE) for index in range(MANY)]))
        await until_begun(node)
        other.post("api_versions", 0, {})
        while not other.responses():
            assert not client.sock.sent
            await trio.lowlevel.checkpoint()


async def test_later_requests_wait_for_the_appends_and_not_the_commit(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        await create_many(node, flush_before_ack="true")
        client = await node.connect()
        client.post("produce", 9, produce_of(node, [(index, VALUE) for index in range(MANY)]))
        client.post("produce", 9, produce_of(node, [(MANY - 1, VALUE)], acks=0), responds=False)
        await until_begun(node)
        await run_until_idle()
        assert client.responses() == []
        assert node.partition("t", MANY - 1).log.log_end_offset == 2
        for index in range(MANY):
            synced(node, "t", index)
        await run_until_idle()
        (response,) = client.responses()
        assert codes(response) == [0] * MANY


@pytest.mark.parametrize("refused", [False, True])
async def test_acks_0_gets_no_response(tmp_path: Path, refused: bool) -> None:
    async with rig(tmp_path) as node:
        await create_many(node)
        client = await node.connect()
        rows = [(index, None if refused and index == 3 else VALUE) for index in range(MANY)]
        client.post("produce", 9, produce_of(node, rows, acks=0), responds=False)
        await run_until_idle()
        assert appended(node) == MANY - refused
        assert client.sock.closed == refused
        assert not client.sock.sent


async def test_only_uncommitted_partitions_time_out(tmp_path: Path, mock_clock: MockClock) -> None:
    async with rig(tmp_path) as node:
        await create_many(node, flush_before_ack="true")
        client = await node.connect()
        client.post(
            "produce",
            9,
            produce_of(node, [(index, VALUE) for index in range(MANY)], timeout_ms=1500),
        )
        await run_until_idle()
        for index in range(1, MANY):
            synced(node, "t", index)
        mock_clock.jump(1.4)
        await run_until_idle()
        assert client.responses() == []
        mock_clock.jump(0.2)
        await run_until_idle()
        (response,) = client.responses()
        assert codes(response) == [ErrorCode.REQUEST_TIMED_OUT] + [0] * (MANY - 1)
        synced(node, "t")
        await run_until_idle()
        assert client.responses() == []


async def test_a_leadership_lost_between_two_slices_is_an_error(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        await create_many(node, replicas=(ME, OTHER), flush_before_ack="true")
        client = await node.connect()
        client.post(
            "produce", 10, produce_of(node, [(index, VALUE) for index in range(MANY)], version=10)
        )
        await until_begun(node)
        for index in (0, MANY - 1):
            node.lead("t", OTHER, partition=index)
        for index in range(1, MANY - 1):
            node.lead("t", ME, partition=index, isr=(ME,))
        await run_until_idle()
        for index in range(1, MANY - 1):
            synced(node, "t", index)
        await run_until_idle()
        (response,) = client.responses()
        moved = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert codes(response) == [moved] + [0] * (MANY - 2) + [moved]
        assert [one.node_id for one in response.node_endpoints] == [OTHER]
        assert not node.partition("t", MANY - 1).log.log_end_offset


async def test_a_failed_slice_is_refused_even_if_a_later_one_is_written(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as node:
        node.create("t", partitions=2)
        client = await node.connect()
        rows: list[Any] = [(0, VALUE)] * (SLICE - 1)
        rows += [(1, batch(b"x" * 100_000)), *[(1, VALUE)] * SLICE * 10]
        node.disk.free = 60_000
        client.post("produce", 9, produce_of(node, rows))
        await until_begun(node, "t", 1)
        node.disk.free = 1 << 40
        await run_until_idle()
        (response,) = client.responses()
        assert codes(response)[SLICE - 1] == ErrorCode.KAFKA_STORAGE_ERROR
        later = codes(response)[SLICE:]
        stored = values((await client.fetch("t", 0, partition=1)).records)
        assert later.count(0) == len(stored) > 0


@pytest.mark.parametrize("how", ["half close", "reset"])
async def test_a_client_that_disconnects(tmp_path: Path, how: str) -> None:
    async with rig(tmp_path) as node:
        await create_many(node)
        client = await node.connect()
        client.post("produce", 9, produce_of(node, [(index, VALUE) for index in range(MANY)]))
        await until_begun(node)
        (client.half_close if how == "half close" else client.reset)()
        await run_until_idle()
        assert client.sock.closed
        if how == "half close":
            (response,) = client.responses()
            assert codes(response) == [0] * MANY
        assert node.server.memory.request_bytes == 0


async def test_a_damaged_large_request_closes_its_connection(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        client, other = await node.connect(), await node.connect()
        head = pack(">hhih", 0, 8, 1, -1) + pack(">hhi", -1, -1, 1000) + pack(">ih1s", 1, 1, b"t")
        client.send_frame(head + pack(">i", MANY + 1) + pack(">ii", 0, -1) * MANY)
        await run_until_idle()
        assert client.sock.closed
        assert (await other.request("api_versions", 0, {})).error_code == 0
        assert node.server.memory.request_bytes == 0


async def test_many_bytes_are_appended_in_slices_and_not_copied(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", partitions=2)
        client = await node.connect()
        count = PRODUCED_AT_ONCE_BYTES_MAX // (800 * KIB) + 2
        for letter in (b"a", b"b"):
            rows = [
                (number % 2, batch(letter + b"%d" % number + b"x" * 800 * KIB))
                for number in range(count)
            ]
            client.post("produce", 9, produce_of(node, rows))
        with trio.fail_after(5):
            while not appended(node):
                await trio.lowlevel.checkpoint()
        assert appended(node) < count
        await run_until_idle()
        first, second = client.responses()
        assert codes(first) == codes(second) == [0] * count
        for index in (0, 1):
            log = [value[:2] for value in await everything(client, index)]
            assert log == [
                letter + b"%d" % number
                for letter in (b"a", b"b")
                for number in range(index, count, 2)
            ]


async def everything(client: Client, index: int) -> list[bytes]:
    found: list[bytes] = []
    while records := values((await client.fetch("t", len(found), partition=index)).records):
        found += records
    return found


# -- transactions


async def test_each_slice_of_a_transaction_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        await create_many(node)
        client = await node.connect()
        coordinator.codes["t", MANY - 1] = ErrorCode.INVALID_TXN_STATE
        rows = [(index, part(0)) for index in range(MANY)]
        response = await client.request("produce", 9, produce_of(node, rows, transactional_id=TX))
        assert codes(response) == [0] * (MANY - 1) + [ErrorCode.INVALID_TXN_STATE]
        assert len(coordinator.requests) == SLICES
        response = await client.request(
            "produce",
            9,
            produce_of(node, [(i, part(1)) for i in range(MANY - 1)], transactional_id=TX),
        )
        assert codes(response) == [0] * (MANY - 1)
        assert len(coordinator.requests) == SLICES, "the transaction is open in each of these"


async def test_producers_of_two_transactions_in_one_request_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        await create_many(node)
        client = await node.connect()
        rows = [
            (index, part(0, producer_id=7 if index == MANY - 1 else 9)) for index in range(MANY)
        ]
        response = await client.request("produce", 9, produce_of(node, rows, transactional_id=TX))
        assert set(codes(response)) == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
        assert (len(coordinator.requests), appended(node)) == (0, 0)


@pytest.mark.parametrize("rows", [1, MANY])
async def test_clients_never_use_the_transactional_ids_of_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Also without an authorizer: the records would be in the transactions of relays."""
    async with rig(tmp_path) as node:
        coordinator = ScriptedCoordinator(node, monkeypatch)
        await create_many(node)
        client = await node.connect()
        wanted = [(index, part(0)) for index in range(rows)]
        request = produce_of(node, wanted, transactional_id=f"{RESERVED_PREFIX}.delay.x.0")
        response = await client.request("produce", 9, request)
        assert set(codes(response)) == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
        assert (len(coordinator.requests), appended(node)) == (0, 0)
