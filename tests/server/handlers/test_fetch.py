"""Fetch through the whole server: bounds, epochs, sessions, and parked fetches."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from mqd.errors import ErrorCode
from tests.log.support import batch
from tests.server.rig import ME, OTHER, Client, Rig, rig, run_until_idle, values

VERSIONS = range(4, 19)
READ_COMMITTED = 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_reads_in_its_format(tmp_path: Path, version: int) -> None:
    async with rig(tmp_path) as node:
        topic_id = node.create("t")
        client = await node.connect()
        await client.produce("t", batch(b"a", b"b"))
        response = await client.request("fetch", version, node.fetch_body("t", 0, version=version))
        (topic,) = response.responses
        assert (topic.topic_id == topic_id) if version >= 13 else (topic.topic == "t")
        (row,) = topic.partitions
        assert (
            row.partition_index,
            row.error_code,
            row.high_watermark,
            row.last_stable_offset,
        ) == (0, 0, 2, 2)
        assert version < 5 or row.log_start_offset == 0
        assert version < 7 or (response.error_code, response.session_id) == (0, 0)
        assert version < 11 or row.preferred_read_replica == -1
        assert row.aborted_transactions is None
        assert values(row.records) == [b"a", b"b"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_refuses_in_its_format(tmp_path: Path, version: int) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        row = await client.fetch("t", 1, version=version)
        assert (row.error_code, row.high_watermark, row.last_stable_offset) == (
            ErrorCode.OFFSET_OUT_OF_RANGE,
            -1,
            -1,
        )
        assert values(row.records) == []


async def test_committed_reads_have_a_list_of_aborted_transactions(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        await client.produce("t", batch(b"a"))
        row = await client.fetch("t", 0, isolation_level=READ_COMMITTED)
        assert (list(row.aborted_transactions), row.last_stable_offset, values(row.records)) == (
            [],
            1,
            [b"a"],
        )


async def test_nothing_beyond_the_high_watermark_is_read(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", flush_before_ack="true")
        client, producer = await node.connect(), await node.connect()
        producer.post("produce", 9, node.produce_body("t", batch(b"a")))
        await run_until_idle()
        row = await client.fetch("t", 0)
        assert (row.error_code, row.high_watermark, values(row.records)) == (0, 0, [])
        # within the log, and not committed yet: not an error
        row = await client.fetch("t", 1)
        assert (row.error_code, values(row.records)) == (0, [])
        assert (await client.fetch("t", 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_offsets_below_the_start(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        for value in (b"a", b"b"):
            await client.produce("t", batch(value))
        node.logs.delete_records(node.partition("t").log, 1)
        assert (await client.fetch("t", 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await client.fetch("t", -1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        row = await client.fetch("t", 1)
        assert (row.log_start_offset, values(row.records)) == (1, [b"b"])


# -- bounds


async def test_an_offset_inside_a_batch_returns_the_whole_batch(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        await client.produce("t", batch(b"a", b"b", b"c"))
        await client.produce("t", batch(b"d"))
        assert values((await client.fetch("t", 1)).records) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize(
    "bounds",
    [
        {"max_bytes": 1},
        {"partition_max_bytes": 1},
        {"max_bytes": 0},
        {"partition_max_bytes": 0},
        {"max_bytes": -1},
    ],
)
async def test_the_first_batch_is_complete_whatever_the_bounds(
    tmp_path: Path, bounds: dict[str, int]
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        await client.produce("t", batch(b"a" * 500))
        await client.produce("t", batch(b"b" * 500))
        assert values((await client.fetch("t", 0, **bounds)).records) == [b"a" * 500]


def many(
    node: Rig,
    topic: str,
    partitions: int,
    *,
    offset: int = 0,
    partition_max_bytes: int = 1 << 20,
    **options: Any,
) -> dict[str, Any]:
    body = node.fetch_body(topic, offset, **options)
    body["topics"][0]["partitions"] = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": partition_max_bytes}
        for index in range(partitions)
    ]
    return body


async def test_max_bytes_is_shared_by_the_partitions_in_their_order(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", partitions=3)
        client = await node.connect()
        for index in range(3):
            for _ in range(3):
                await client.produce("t", batch(b"x" * 400), partition=index)
        size = node.partition("t").log.size_bytes // 3
        response = await client.request("fetch", 12, many(node, "t", 3, max_bytes=4 * size))
        assert [len(values(row.records)) for row in response.responses[0].partitions] == [3, 1, 0]
        response = await client.request(
            "fetch", 12, many(node, "t", 3, partition_max_bytes=2 * size)
        )
        assert [len(values(row.records)) for row in response.responses[0].partitions] == [2, 2, 2]
        # the first one complete, and no second one
        response = await client.request("fetch", 12, many(node, "t", 3, max_bytes=1))
        assert [len(values(row.records)) for row in response.responses[0].partitions] == [1, 0, 0]


async def test_the_broker_s_own_bound_holds(tmp_path: Path) -> None:
    async with rig(tmp_path, fetch_max_bytes="1024") as node:
        node.create("t")
        client = await node.connect()
        for _ in range(4):
            await client.produce("t", batch(b"x" * 400))
        assert len(values((await client.fetch("t", 0)).records)) == 2


# -- epochs


async def test_leader_epochs_fence(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(ME, OTHER))
        node.lead("t", ME)
        client = await node.connect()
        assert (await client.fetch("t", 0, current_leader_epoch=1)).error_code == 0
        assert (
            await client.fetch("t", 0, current_leader_epoch=2)
        ).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        response = await client.request(
            "fetch", 16, node.fetch_body("t", 0, version=16, current_leader_epoch=0)
        )
        row = response.responses[0].partitions[0]
        assert row.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (ME, 1)
        assert [(one.node_id, one.port) for one in response.node_endpoints] == [(ME, 9091)]


async def test_a_follower_names_the_leader(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(ME, OTHER))
        node.lead("t", OTHER)
        client = await node.connect()
        row = await client.fetch("t", 0, version=12, current_leader_epoch=0)
        assert (row.error_code, row.current_leader.leader_id) == (
            ErrorCode.FENCED_LEADER_EPOCH,
            OTHER,
        )
        # before KIP-392
        assert (
            await client.fetch("t", 0, version=10)
        ).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_diverging_logs_get_the_diverging_epoch(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        await client.produce("t", batch(b"a", b"b"))  # epoch 0: offsets 0 and 1
        node.lead("t", ME)
        node.lead("t", ME)
        await client.produce("t", batch(b"c"))  # epoch 2: offset 2
        agreeing = await client.fetch("t", 2, last_fetched_epoch=0)
        assert (agreeing.diverging_epoch.epoch, values(agreeing.records)) == (-1, [b"c"])
        for offset, epoch, expected in ((3, 0, (0, 2)), (2, 1, (0, 2))):
            row = await client.fetch("t", offset, last_fetched_epoch=epoch, max_wait_ms=1000)
            assert (row.error_code, values(row.records)) == (0, [])
            assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == expected


async def test_the_current_epoch_is_known_before_its_first_append(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        client.post("fetch", 12, node.fetch_body("t", 0, last_fetched_epoch=0, max_wait_ms=1000))
        await run_until_idle()
        assert client.responses() == []  # no divergence: it waits


async def test_an_unknown_epoch_is_out_of_range(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        await client.produce("t", batch(b"a"))
        assert (
            await client.fetch("t", 1, last_fetched_epoch=7)
        ).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# -- missing topics


async def test_unknown_topics_by_name_and_by_id(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        assert (
            await client.fetch("t", 0, partition=5)
        ).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await client.fetch("missing", 0)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        body = node.fetch_body("t", 0, version=13)
        node.delete("t")
        response = await client.request("fetch", 13, body)
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_partition_whose_log_could_not_be_opened(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.disk.write_error = errno.EIO
        node.create("t")
        client = await node.connect()
        assert (await client.fetch("t", 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await client.produce("t", batch())).error_code == ErrorCode.KAFKA_STORAGE_ERROR


# -- waiting


async def parked(
    node: Rig, client: Client, topic: str = "t", offset: int = 0, **options: Any
) -> None:
    """Send a fetch that is parked."""
    client.post(
        "fetch",
        options.get("version", 12),
        node.fetch_body(topic, offset, **{"max_wait_ms": 10_000, **options}),
    )
    await run_until_idle()
    assert client.responses() == []
    assert node.parked_fetches()


def only_row(client: Client) -> Any:
    (response,) = client.responses()
    return response.responses[0].partitions[0]


async def test_a_fetch_waits_for_its_bytes(tmp_path: Path, mock_clock: MockClock) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client, producer = await node.connect(), await node.connect()
        await parked(node, client, min_bytes=300)
        await producer.produce("t", batch(b"x" * 100))
        assert client.responses() == []
        await producer.produce("t", batch(b"y" * 100))
        assert len(values(only_row(client).records)) == 2
        assert node.parked_fetches() == 0


async def test_a_fetch_returns_available_records_at_its_deadline(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client, producer = await node.connect(), await node.connect()
        await parked(node, client, min_bytes=1000, max_wait_ms=500)
        await producer.produce("t", batch(b"few"))
        mock_clock.jump(0.49)
        await run_until_idle()
        assert client.responses() == []
        mock_clock.jump(0.02)
        await run_until_idle()
        assert values(only_row(client).records) == [b"few"]


async def test_an_earlier_deadline_behind_a_later_one_is_kept(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        late, early = await node.connect(), await node.connect()
        await parked(node, late, max_wait_ms=9000)
        await parked(node, early, max_wait_ms=1000)
        mock_clock.jump(1.001)
        await run_until_idle()
        assert len(early.responses()) == 1
        assert late.responses() == []


async def test_an_error_does_not_wait(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        body = many(node, "t", 2, max_wait_ms=10_000)  # partition 1 does not exist
        response = await client.request("fetch", 12, body)
        assert [row.error_code for row in response.responses[0].partitions] == [
            0,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]


async def test_a_fetch_without_partitions_does_not_wait(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        assert values((await client.fetch("t", 0, max_wait_ms=10_000, min_bytes=0)).records) == []
        response = await client.request(
            "fetch", 12, {**node.fetch_body("t", 0, max_wait_ms=10_000), "topics": []}
        )
        assert not response.responses


async def test_a_fetch_wakes_when_records_are_committed_not_before(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.create("t", flush_before_ack="true")
        client, producer = await node.connect(), await node.connect()
        await parked(node, client)
        producer.post("produce", 9, node.produce_body("t", batch(b"a")))
        await run_until_idle()
        assert client.responses() == []
        log = node.partition("t").log
        log.on_synced(log.written_end_offset)
        node.replica.on_durable(log)
        await run_until_idle()
        assert values(only_row(client).records) == [b"a"]


async def test_a_lost_leadership_wakes_parked_fetches(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(ME, OTHER))
        client = await node.connect()
        await parked(node, client, current_leader_epoch=0)
        node.lead("t", OTHER)
        await run_until_idle()
        row = only_row(client)
        assert (row.error_code, row.current_leader.leader_id) == (
            ErrorCode.FENCED_LEADER_EPOCH,
            OTHER,
        )


@pytest.mark.parametrize(
    ("version", "code"),
    [(12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (13, ErrorCode.UNKNOWN_TOPIC_ID)],
)
async def test_a_deleted_topic_wakes_parked_fetches(
    tmp_path: Path, mock_clock: MockClock, version: int, code: ErrorCode
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        await parked(node, client, version=version)
        node.delete("t")
        await run_until_idle()
        assert only_row(client).error_code == code
        assert node.parked_fetches() == 0


async def test_a_disconnected_client_removes_its_parked_fetch(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        await parked(node, client)
        client.reset()
        await run_until_idle()
        assert client.sock.closed
        assert node.parked_fetches() == 0
        assert not node.partition("t").fetches


async def test_a_client_that_half_closes_gets_its_response_first(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        await parked(node, client)
        client.half_close()
        await run_until_idle()
        assert only_row(client).error_code == 0
        assert client.sock.closed


async def test_any_request_except_a_fetch_wakes_the_fetch_before_it(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        for name, version, body in (
            ("produce", 9, node.produce_body("t", batch(b"a"))),
            ("list_offsets", 7, {"topics": []}),
        ):
            client = await node.connect()
            await parked(node, client, offset=node.partition("t").log.log_end_offset)
            client.post(name, version, body)
            await run_until_idle()
            assert len(client.responses()) == 2


@pytest.mark.parametrize("session_epoch", [0, -1])
async def test_a_fetch_waits_behind_a_parked_fetch(
    tmp_path: Path, mock_clock: MockClock, session_epoch: int
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        node.create("other")
        client, producer = await node.connect(), await node.connect()
        await producer.produce("other", batch(b"there"))
        await parked(node, client)
        client.post("fetch", 12, node.fetch_body("other", 0, session_epoch=session_epoch))
        await run_until_idle()
        assert client.responses() == []
        await producer.produce("t", batch(b"came"))
        first, second = client.responses()
        assert values(first.responses[0].partitions[0].records) == [b"came"]
        assert values(second.responses[0].partitions[0].records) == [b"there"]


# -- sessions


async def open_session(node: Rig, client: Client, partitions: int, version: int = 12) -> int:
    response = await client.request(
        "fetch", version, many(node, "t", partitions, version=version, session_epoch=0)
    )
    assert (response.error_code, response.session_id > 0) == (0, True)
    assert [row.partition_index for row in response.responses[0].partitions] == list(
        range(partitions)
    )
    return int(response.session_id)


async def go_on(
    client: Client, session_id: int, epoch: int, version: int = 12, **options: Any
) -> Any:
    body = {
        "session_id": session_id,
        "session_epoch": epoch,
        "max_bytes": 1 << 20,
        "min_bytes": 1,
        "topics": [],
        **options,
    }
    return await client.request("fetch", version, body)


def indexes(response: Any) -> list[int]:
    return [row.partition_index for topic in response.responses for row in topic.partitions]


@pytest.mark.parametrize("version", [7, 12, 13, 18])
async def test_a_session_returns_only_changes(tmp_path: Path, version: int) -> None:
    async with rig(tmp_path) as node:
        node.create("t", partitions=3)
        client, producer = await node.connect(), await node.connect()
        session_id = await open_session(node, client, 3, version)
        assert indexes(await go_on(client, session_id, 1, version)) == []
        await producer.produce("t", batch(b"a"), partition=1)
        response = await go_on(client, session_id, 2, version)
        assert (response.session_id, indexes(response)) == (session_id, [1])
        requested = {
            **node.name_of("t", 13, version),
            "partitions": [{"partition": 1, "fetch_offset": 1, "partition_max_bytes": 1 << 20}],
        }
        assert indexes(await go_on(client, session_id, 3, version, topics=[requested])) == []
        node.logs.delete_records(node.partition("t", 1).log, 1)
        # its start moved: a change without bytes
        assert indexes(await go_on(client, session_id, 4, version)) == [1]
        forgotten = {**node.name_of("t", 13, version), "partitions": [1, 2]}
        await producer.produce("t", batch(b"b"), partition=1)
        assert (
            indexes(await go_on(client, session_id, 5, version, forgotten_topics_data=[forgotten]))
            == []
        )


async def test_an_error_in_a_session_is_repeated_until_it_ends(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(ME, OTHER))
        client = await node.connect()
        session_id = await open_session(node, client, 1, 10)
        node.lead("t", OTHER)
        for epoch in (1, 2):
            response = await go_on(client, session_id, epoch, 10)
            assert (
                response.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
        node.lead("t", ME)
        assert indexes(await go_on(client, session_id, 3, 10)) == [0]
        assert indexes(await go_on(client, session_id, 4, 10)) == []


@pytest.mark.parametrize(
    ("id_offset", "epoch", "code"),
    [(0, 2, ErrorCode.INVALID_FETCH_SESSION_EPOCH), (1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)],
)
async def test_wrong_ids_and_epochs(
    tmp_path: Path, id_offset: int, epoch: int, code: ErrorCode
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        session_id = await open_session(node, client, 1)
        response = await go_on(client, session_id + id_offset, epoch)
        assert (response.error_code, response.session_id, list(response.responses)) == (code, 0, [])
        assert (await go_on(client, session_id, 1)).error_code == 0


async def test_a_session_names_its_topics_in_one_way(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        session_id = await open_session(node, client, 1, 12)
        assert (
            await go_on(client, session_id, 1, 13)
        ).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


async def test_a_client_closes_its_session_even_behind_a_parked_fetch(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        session_id = await open_session(node, client, 1)
        waiting = {
            "session_id": session_id,
            "session_epoch": 1,
            "max_wait_ms": 10_000,
            "min_bytes": 1,
            "topics": [],
        }
        client.post("fetch", 12, waiting)
        await run_until_idle()
        client.post(
            "fetch",
            12,
            {
                "session_id": session_id,
                "session_epoch": -1,
                "topics": [],
                "min_bytes": 1,
                "max_wait_ms": 10_000,
            },
        )
        await run_until_idle()
        assert [(one.error_code, indexes(one)) for one in client.responses()] == [(0, []), (0, [])]
        assert len(node.replica.sessions) == 0
        assert (
            await go_on(client, session_id, 2)
        ).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_served_partition_is_last_the_next_time(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", partitions=2)
        client = await node.connect()
        for index in (0, 1):
            await client.produce("t", batch(b"x" * 100), partition=index)
        response = await client.request(
            "fetch", 12, many(node, "t", 2, session_epoch=0, max_bytes=1)
        )
        assert [len(values(row.records)) for row in response.responses[0].partitions] == [1, 0]
        response = await go_on(client, response.session_id, 1, max_bytes=1)
        assert [
            (row.partition_index, len(values(row.records)))
            for row in response.responses[0].partitions
        ] == [(1, 1)]
