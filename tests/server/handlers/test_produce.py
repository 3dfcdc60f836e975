"""Produce through the whole server: each error in each format, acks, timeouts, failed writes, lost
leadership.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mqd.errors import ErrorCode
from mqd.protocol.batch import iterate_batches, write_crc
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.record_scan import KEYS_AT_ONCE
from tests.log.support import NOW, batch, wait_until
from tests.server.rig import ME, OTHER, Client, Rig, rig, run_until_idle, values

VERSIONS = range(3, 14)


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_appends_and_responds_in_its_format(
    tmp_path: Path, version: int
) -> None:
    async with rig(tmp_path) as node:
        topic_id = node.create("t")
        client = await node.connect()
        await client.produce("t", batch(b"first"))
        response = await client.request(
            "produce", version, node.produce_body("t", batch(b"a", b"b"), version=version)
        )
        (topic,) = response.responses
        assert (topic.topic_id == topic_id) if version >= 13 else (topic.name == "t")
        (row,) = topic.partition_responses
        assert (row.index, row.error_code, row.base_offset, row.log_append_time_ms) == (0, 0, 1, -1)
        assert version < 5 or row.log_start_offset == 0
        assert version < 8 or (list(row.record_errors), row.error_message) == ([], None)
        assert values((await client.fetch("t", 0)).records) == [b"first", b"a", b"b"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_refuses_in_its_format(tmp_path: Path, version: int) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        row = await client.produce("t", None, version=version)
        assert (row.index, row.error_code, row.base_offset, row.log_append_time_ms) == (
            0,
            ErrorCode.INVALID_RECORD,
            -1,
            -1,
        )
        assert version < 5 or row.log_start_offset == -1
        assert version < 8 or row.error_message
        assert node.partition("t").log.log_end_offset == 0


async def test_the_response_has_the_append_time(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", message_timestamp_type="LogAppendTime")
        client = await node.connect()
        assert (await client.produce("t", batch(timestamp=NOW - 5))).log_append_time_ms == NOW


def damaged() -> bytearray:
    data = batch(b"x")
    data[-1] ^= 1
    return data


@pytest.mark.parametrize(
    ("records", "options", "code"),
    [
        (None, {}, ErrorCode.INVALID_RECORD),
        (b"", {}, ErrorCode.INVALID_RECORD),
        (batch(b"a") + batch(b"b"), {}, ErrorCode.INVALID_RECORD),
        (damaged(), {}, ErrorCode.CORRUPT_MESSAGE),
        (batch(b"x" * 2000), {}, ErrorCode.MESSAGE_TOO_LARGE),
        (batch(control=True), {}, ErrorCode.INVALID_RECORD),
        (batch(timestamp=NOW + 7_200_000), {}, ErrorCode.INVALID_TIMESTAMP),
        (batch(producer_id=9, sequence=-1), {}, ErrorCode.INVALID_RECORD),
        (batch(), {"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (batch(), {"partition": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (batch(), {"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS),
        (batch(), {"acks": -2}, ErrorCode.INVALID_REQUIRED_ACKS),
        (batch(), {"transactional_id": "tx"}, ErrorCode.NONE),
        (
            batch(producer_id=9, sequence=0, transactional=True),
            {},
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        (batch(codec=Codec.ZSTD), {"version": 6}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch(codec=Codec.ZSTD), {"version": 7}, ErrorCode.NONE),
    ],
)
async def test_refusals(
    tmp_path: Path, records: bytes | None, options: dict[str, int], code: ErrorCode
) -> None:
    async with rig(tmp_path) as node:
        node.create("t", max_message_bytes="1000")
        client = await node.connect()
        row = await client.produce("t", records, **options)
        assert row.error_code == code
        assert node.partition("t").log.log_end_offset == (code is ErrorCode.NONE)


async def test_keyless_records_of_a_compacted_topic_are_named(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", cleanup_policy="compact")
        client = await node.connect()
        row = await client.produce("t", batch(b"a", keyed=False))
        assert (row.error_code, [one.batch_index for one in row.record_errors]) == (
            ErrorCode.INVALID_RECORD,
            [0],
        )


def large_batch(keyless: int | None = None, **options: Any) -> bytearray:
    """A batch whose records the broker inspects in slices."""
    records = [
        (None if index == keyless else b"k%d" % index, b"v") for index in range(3 * KEYS_AT_ONCE)
    ]
    return build_batch(records, codec=Codec.GZIP, timestamp=NOW, **options)


async def test_a_large_batch_for_a_compacted_topic_is_inspected_in_slices(tmp_path: Path) -> None:
    """In order with the requests of its connection; a retry is not a second append."""
    async with rig(tmp_path) as node:
        node.create("t", cleanup_policy="compact")
        client, other = await node.connect(), await node.connect()
        producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
        second = batch(b"b", producer_id=7, sequence=3 * KEYS_AT_ONCE)
        client.post("produce", 9, node.produce_body("t", large_batch(**producer, base_sequence=0)))
        client.post("produce", 9, node.produce_body("t", second))
        client.post("produce", 9, node.produce_body("t", large_batch(**producer, base_sequence=0)))
        for _ in range(4):
            await trio.lowlevel.checkpoint()
        assert client.responses() == []
        assert (await other.produce("t", batch(b"c"))).error_code == ErrorCode.NONE
        await run_until_idle()
        rows = [response.responses[0].partition_responses[0] for response in client.responses()]
        assert [row.error_code for row in rows] == [ErrorCode.NONE] * 3
        assert rows[0].base_offset == rows[2].base_offset < rows[1].base_offset
        assert node.partition("t").log.log_end_offset == 3 * KEYS_AT_ONCE + 2
        assert not node.logs.inspection._inspected


async def received(client: Client, count: int) -> list[Any]:
    """That many responses, once they are there: threads have worked for them."""
    found: list[Any] = []

    def all_there() -> bool:
        found.extend(client.responses())
        return len(found) >= count

    await wait_until(all_there)
    return found


async def test_a_large_batch_of_another_codec_is_recompressed_in_a_thread(
    tmp_path: Path,
) -> None:
    """In order with the requests of its connection.

    A batch that cannot be decompressed is refused, without effect on others.
    """
    async with rig(tmp_path) as node:
        node.create("t", compression_type="zstd", partitions=2)
        client = await node.connect()
        damaged = memoryview(batch(b"x" * 50_000, codec=Codec.GZIP))
        damaged[61:70] = bytes(9)
        write_crc(damaged)
        body = node.produce_body("t", batch(*[b"v" * 100] * 300, codec=Codec.GZIP))
        body["topic_data"][0]["partition_data"].append({"index": 1, "records": bytes(damaged)})
        client.post("produce", 9, body)
        client.post("produce", 9, node.produce_body("t", batch(b"small")))
        rows = [
            row
            for response in await received(client, 2)
            for row in response.responses[0].partition_responses
        ]
        assert [(row.error_code, row.base_offset) for row in rows] == [
            (0, 0),
            (ErrorCode.CORRUPT_MESSAGE, -1),
            (0, 300),
        ]
        stored = bytes((await client.fetch("t", 0)).records)
        assert [header.codec for _, _, header in iterate_batches(stored)] == [
            Codec.ZSTD,
            Codec.ZSTD,
        ]
        assert values(stored) == [b"v" * 100] * 300 + [b"small"]


async def test_the_batches_of_closed_connections_are_not_recompressed(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", compression_type="zstd")
        client, other = await node.connect(), await node.connect()
        large = batch(b"x" * 1_000_000, codec=Codec.GZIP)
        for _ in range(3):
            client.post("produce", 9, node.produce_body("t", large))
        await trio.lowlevel.checkpoint()
        client.reset()
        other.post("produce", 9, node.produce_body("t", batch(b"small", codec=Codec.GZIP)))
        await received(other, 1)
        assert node.partition("t").log.log_end_offset <= 2
        assert not node.node.batch_work._waiting and not node.node.batch_work._begun


async def test_a_compacted_topic_inspects_recompressed_batches(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", cleanup_policy="compact", compression_type="zstd")
        client = await node.connect()
        for records in (large_batch(keyless=KEYS_AT_ONCE), large_batch()):
            client.post("produce", 9, node.produce_body("t", records))
        rows = [
            response.responses[0].partition_responses[0] for response in await received(client, 2)
        ]
        assert [row.error_code for row in rows] == [ErrorCode.INVALID_RECORD, ErrorCode.NONE]
        assert [one.batch_index for one in rows[0].record_errors] == [KEYS_AT_ONCE]
        assert not node.logs.inspection._inspected


@pytest.mark.parametrize("keyless", [0, 2 * KEYS_AT_ONCE + 5])
async def test_a_keyless_record_of_a_large_batch_is_named(tmp_path: Path, keyless: int) -> None:
    async with rig(tmp_path) as node:
        node.create("t", cleanup_policy="compact")
        client = await node.connect()
        row = await client.produce("t", large_batch(keyless))
        assert (row.error_code, [one.batch_index for one in row.record_errors]) == (
            ErrorCode.INVALID_RECORD,
            [keyless],
        )
        assert node.partition("t").log.log_end_offset == 0
        damaged = large_batch()
        damaged[-1] ^= 1
        assert (await client.produce("t", damaged)).error_code == ErrorCode.CORRUPT_MESSAGE
        assert not node.logs.inspection._inspected


async def test_unknown_topics_by_name_and_by_id(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        body = node.produce_body("t", batch(), version=13)
        assert (
            await client.produce("missing", batch())
        ).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        node.delete("t")
        response = await client.request("produce", 13, body)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_stale_client_gets_the_leader_from_v10_on(tmp_path: Path, version: int) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(ME, OTHER))
        node.lead("t", OTHER)
        client = await node.connect()
        response = await client.request(
            "produce", version, node.produce_body("t", batch(), version=version)
        )
        row = response.responses[0].partition_responses[0]
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        if version >= 10:
            assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (OTHER, 1)
            assert [(one.node_id, one.host, one.port) for one in response.node_endpoints] == [
                (OTHER, "host2", 9092)
            ]


async def test_a_partition_on_another_node_is_not_unknown(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(OTHER,))
        client = await node.connect()
        assert (
            await client.produce("t", batch(), version=12)
        ).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_the_same_partition_twice_is_appended_twice_and_has_two_rows(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        body = node.produce_body("t", None)
        body["topic_data"][0]["partition_data"] = [
            {"index": 0, "records": batch(b"a", b"b")},
            {"index": 0, "records": batch(b"c")},
        ]
        response = await client.request("produce", 9, body)
        rows = response.responses[0].partition_responses
        assert [(row.index, row.error_code, row.base_offset) for row in rows] == [
            (0, 0, 0),
            (0, 0, 2),
        ]
        assert values((await client.fetch("t", 0)).records) == [b"a", b"b", b"c"]


async def test_a_refused_partition_does_not_affect_the_others(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", partitions=2)
        client = await node.connect()
        body = node.produce_body("t", None)
        body["topic_data"][0]["partition_data"] = [
            {"index": 0, "records": None},
            {"index": 1, "records": batch()},
        ]
        response = await client.request("produce", 9, body)
        assert [row.error_code for row in response.responses[0].partition_responses] == [
            ErrorCode.INVALID_RECORD,
            0,
        ]


# -- acks


async def test_acks_0_gets_no_response_and_the_next_request_gets_its_own(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        client.post("produce", 9, node.produce_body("t", batch(b"a"), acks=0), responds=False)
        row = await client.produce("t", batch(b"b"))
        assert row.base_offset == 1


@pytest.mark.parametrize(
    ("topic", "records"), [("missing", batch()), ("t", None), ("t", damaged())]
)
async def test_a_refusal_with_acks_0_closes_the_connection(
    tmp_path: Path, topic: str, records: bytes | None
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        client.post("produce", 9, node.produce_body(topic, records, acks=0), responds=False)
        await run_until_idle()
        assert client.sock.closed
        assert not client.sock.sent


async def test_only_acks_all_needs_the_minimum_of_replicas(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(ME, OTHER), isr=(ME,), min_insync_replicas="2")
        client = await node.connect()
        assert (
            await client.produce("t", batch(), acks=-1)
        ).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await client.produce("t", batch(), acks=1)).error_code == 0
        assert node.partition("t").high_watermark == 0  # written, and not committed
        assert values((await client.fetch("t", 0)).records) == []


def synced(node: Rig, topic: str, index: int = 0) -> None:
    """The report of a finished fdatasync."""
    log = node.partition(topic, index).log
    assert log.on_synced(log.written_end_offset)
    node.replica.on_durable(log)


@pytest.mark.parametrize("acks", [1, -1])
async def test_flush_before_ack_responds_only_after_the_sync(tmp_path: Path, acks: int) -> None:
    async with rig(tmp_path) as node:
        node.create("t", flush_before_ack="true")
        client = await node.connect()
        client.post("produce", 9, node.produce_body("t", batch(b"a"), acks=acks))
        await run_until_idle()
        assert client.responses() == []
        assert node.partition("t").high_watermark == 0
        synced(node, "t")
        await run_until_idle()
        (response,) = client.responses()
        assert response.responses[0].partition_responses[0].error_code == 0


async def test_records_not_committed_in_time_time_out(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.create("t", flush_before_ack="true")
        client = await node.connect()
        client.post("produce", 9, node.produce_body("t", batch(b"a"), timeout_ms=1500))
        await run_until_idle()
        mock_clock.jump(1.4)
        await run_until_idle()
        assert client.responses() == []
        mock_clock.jump(0.2)
        await run_until_idle()
        (response,) = client.responses()
        row = response.responses[0].partition_responses[0]
        assert (row.error_code, row.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        synced(node, "t")  # later it is committed anyway, and there is no second response
        await run_until_idle()
        assert client.responses() == []
        assert values((await client.fetch("t", 0)).records) == [b"a"]


async def test_only_uncommitted_partitions_time_out(tmp_path: Path, mock_clock: MockClock) -> None:
    async with rig(tmp_path) as node:
        node.create("t", partitions=2, flush_before_ack="true")
        client = await node.connect()
        body = node.produce_body("t", None)
        body["topic_data"][0]["partition_data"] = [
            {"index": index, "records": batch()} for index in (0, 1)
        ]
        client.post("produce", 9, body)
        await run_until_idle()
        synced(node, "t", 1)
        mock_clock.jump(2)
        await run_until_idle()
        (response,) = client.responses()
        assert [row.error_code for row in response.responses[0].partition_responses] == [
            ErrorCode.REQUEST_TIMED_OUT,
            0,
        ]


async def test_a_lost_leadership_fails_waiting_producers(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(ME, OTHER), flush_before_ack="true")
        client = await node.connect()
        client.post("produce", 10, node.produce_body("t", batch(), version=10))
        await run_until_idle()
        node.lead("t", OTHER)
        await run_until_idle()
        (response,) = client.responses()
        row = response.responses[0].partition_responses[0]
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (OTHER, 1)


async def test_a_deleted_topic_fails_its_waiting_producers(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", flush_before_ack="true")
        client = await node.connect()
        client.post("produce", 9, node.produce_body("t", batch()))
        await run_until_idle()
        node.delete("t")
        await run_until_idle()
        (response,) = client.responses()
        assert (
            response.responses[0].partition_responses[0].error_code
            == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )


async def test_an_error_is_not_overwritten_by_another_partition_s_timeout(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.create("t", partitions=2, replicas=(ME, OTHER), flush_before_ack="true")
        client = await node.connect()
        body = node.produce_body("t", None)
        body["topic_data"][0]["partition_data"] = [
            {"index": index, "records": batch()} for index in (0, 1)
        ]
        client.post("produce", 9, body)
        await run_until_idle()
        node.lead("t", OTHER)
        mock_clock.jump(2)
        await run_until_idle()
        (response,) = client.responses()
        codes = [row.error_code for row in response.responses[0].partition_responses]
        assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT]


# -- disks


async def test_a_full_disk_refuses_only_what_it_could_not_write(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("full", partitions=2)
        client = await node.connect()
        assert (await client.produce("full", batch(b"kept"))).base_offset == 0
        body = node.produce_body("full", None)
        rows = [(0, batch(b"lost")), (1, batch(b"y" * 100_000)), (0, batch(b"lost"))]
        body["topic_data"][0]["partition_data"] = [
            {"index": index, "records": data} for index, data in rows
        ]
        node.disk.free = 50_000
        response = await client.request("produce", 9, body)
        codes = [row.error_code for row in response.responses[0].partition_responses]
        assert codes == [0, ErrorCode.KAFKA_STORAGE_ERROR, 0]
        assert values((await client.fetch("full", 0, partition=1)).records) == []
        partition = node.partition("full", 1)
        assert (partition.high_watermark, partition.log.log_end_offset) == (0, 0)
        node.disk.free = 1 << 40
        assert (await client.produce("full", batch(b"again"), partition=1)).base_offset == 0


async def test_every_row_of_a_log_that_could_not_be_written_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", partitions=2)
        one, other = await node.connect(), await node.connect()
        node.disk.free = 0
        one.post("produce", 9, node.produce_body("t", batch(b"a"), acks=1))
        other.post("produce", 9, node.produce_body("t", batch(b"b"), acks=-1))
        await run_until_idle()
        for client in (one, other):
            (response,) = client.responses()
            row = response.responses[0].partition_responses[0]
            assert (row.error_code, row.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


async def test_a_failed_disk_refuses_produce_and_fetch(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        await client.produce("t", batch(b"a"))
        node.disk.write_error = errno.EIO
        assert (await client.produce("t", batch(b"b"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        node.disk.write_error = 0
        assert (await client.produce("t", batch(b"c"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await client.fetch("t", 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert node.directory_failures == [tmp_path]


async def test_records_of_one_turn_keep_the_order_of_requests(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        clients = [await node.connect() for _ in range(3)]
        for number, client in enumerate(clients):
            client.post("produce", 9, node.produce_body("t", batch(b"%d" % number)))
        await run_until_idle()
        offsets = [
            client.responses()[0].responses[0].partition_responses[0].base_offset
            for client in clients
        ]
        stored = values((await clients[0].fetch("t", 0)).records)
        assert sorted(offsets) == [0, 1, 2]
        assert [stored[offset] for offset in offsets] == [b"0", b"1", b"2"]


async def test_a_node_without_a_replica_names_the_leader_from_the_metadata(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(OTHER,))
        client = await node.connect()
        response = await client.request(
            "produce", 10, node.produce_body("t", batch(b"a"), version=10)
        )
        row = response.responses[0].partition_responses[0]
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (OTHER, 0)
        assert [(one.node_id, one.port) for one in response.node_endpoints] == [(OTHER, 9092)]
        found = (
            (await client.request("fetch", 16, node.fetch_body("t", 0, version=16)))
            .responses[0]
            .partitions[0]
        )
        assert (found.error_code, found.current_leader.leader_id) == (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            OTHER,
        )
