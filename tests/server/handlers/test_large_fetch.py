"""Fetches of many partitions: decoded, planned and encoded in slices, with the same results as
small ones.
"""

from __future__ import annotations

from pathlib import Path
from struct import pack
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mqd.errors import ErrorCode
from mqd.limits import DECODED_AT_ONCE_ROWS, FETCH_SESSION_UNKNOWN_MAX
from mqd.protocol import hot_fetch_request, hot_fetch_response
from mqd.server import consumer_fetch, fetch_run
from tests.log.support import batch
from tests.server.rig import ME, OTHER, Client, Rig, rig, run_until_idle, values

AT_ONCE = 40
MANY = 130


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch of more than `AT_ONCE` partitions is large: creating thousands of partitions would be
    slow.
    """
    for codec in (hot_fetch_request, hot_fetch_response):
        monkeypatch.setattr(codec, "SLICE_ROWS", AT_ONCE)
    monkeypatch.setattr(fetch_run, "DECODED_AT_ONCE_ROWS", AT_ONCE)
    monkeypatch.setattr(consumer_fetch.ConsumerFetch, "slice_items", AT_ONCE)


async def create_many(node: Rig, **options: Any) -> None:
    node.create("t", partitions=MANY, **options)
    await node.publisher._drain(node.image)


async def delete_many(node: Rig) -> None:
    node.delete("t")
    await node.publisher._drain(node.image)


def fetch_of(indexes: Any, **options: Any) -> dict[str, Any]:
    rows = [
        {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for index in indexes
    ]
    body = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, **options}
    return {**body, "topics": [{"topic": "t", "partitions": rows}]}


def found(response: Any) -> dict[int, list[bytes]]:
    return {
        row.partition_index: values(row.records)
        for topic in response.responses
        for row in topic.partitions
        if row.records
    }


def rows_of(response: Any) -> list[Any]:
    return [row for topic in response.responses for row in topic.partitions]


async def until_planned(node: Rig) -> None:
    """Run the node until a plan has processed the first partition and not the last."""
    with trio.fail_after(5):
        while not node.partition("t", 0).fetches:
            await trio.lowlevel.checkpoint()
    assert not node.partition("t", MANY - 1).fetches


async def parked(node: Rig, client: Client, **options: Any) -> None:
    client.post("fetch", 11, fetch_of(range(MANY), **{"max_wait_ms": 10_000, **options}))
    await run_until_idle()
    assert client.responses() == []
    assert node.parked_fetches()


def nothing_is_parked(node: Rig) -> bool:
    return not any(partition.fetches for partition in node.replica.partitions())


@pytest.mark.parametrize("version", [4, 11, 12])
async def test_every_partition_has_a_row(tmp_path: Path, version: int) -> None:
    async with rig(tmp_path) as node:
        await create_many(node)
        client = await node.connect()
        for index in (0, MANY - 1):
            await client.produce("t", batch(b"%d" % index), partition=index)
        response = await client.request("fetch", version, fetch_of(range(MANY)))
        assert [row.partition_index for row in rows_of(response)] == list(range(MANY))
        assert found(response) == {0: [b"0"], MANY - 1: [b"%d" % (MANY - 1)]}
        assert nothing_is_parked(node)


@pytest.mark.parametrize("count", [2, MANY], ids=["small", "large"])
async def test_a_partition_named_twice_has_one_row_from_its_last_position(
    tmp_path: Path, count: int
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        for value in (b"a", b"b"):
            await client.produce("t", batch(value))
        body = fetch_of([0] * count)
        body["topics"][0]["partitions"][-1]["fetch_offset"] = 1
        response = await client.request("fetch", 12, body)
        assert found(response) == {0: [b"b"]}
        assert len(rows_of(response)) == 1


async def test_other_requests_are_served_between_two_slices(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        await create_many(node)
        client, other = await node.connect(), await node.connect()
        client.post("fetch", 12, fetch_of(range(MANY), max_wait_ms=1000))
        await until_planned(node)
        other.post("api_versions", 0, {})
        while not other.responses():
            assert not client.sock.sent
            await trio.lowlevel.checkpoint()


async def test_later_requests_wait_for_the_plan_and_keep_their_order(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        await create_many(node)
        client = await node.connect()
        client.post("fetch", 12, fetch_of(range(MANY), max_wait_ms=10_000))
        client.post("produce", 9, node.produce_body("t", batch(b"late")))
        client.post("fetch", 12, fetch_of(range(MANY)))
        client.post("metadata", 12, {"topics": [{"name": "t"}]})
        node.node.controller.controller_id = 1
        await run_until_idle()
        first, produced, second, metadata = client.responses()
        assert (found(first), found(second)) == ({}, {0: [b"late"]})
        assert produced.responses[0].partition_responses[0].error_code == 0
        assert len(metadata.topics[0].partitions) == MANY
        assert nothing_is_parked(node)


# -- parked fetches


async def test_a_large_fetch_waits_for_its_bytes(tmp_path: Path, mock_clock: MockClock) -> None:
    async with rig(tmp_path) as node:
        await create_many(node)
        client, producer = await node.connect(), await node.connect()
        await parked(node, client, min_bytes=300)
        await producer.produce("t", batch(b"x" * 100), partition=3)
        assert client.responses() == []
        await producer.produce("t", batch(b"y" * 100), partition=MANY - 1)
        (response,) = client.responses()
        assert sorted(found(response)) == [3, MANY - 1]
        assert nothing_is_parked(node)


async def test_a_large_fetch_responds_at_its_deadline(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        await create_many(node)
        client = await node.connect()
        await parked(node, client, max_wait_ms=500)
        mock_clock.jump(0.51)
        await run_until_idle()
        (response,) = client.responses()
        assert len(rows_of(response)) == MANY
        assert nothing_is_parked(node)


async def test_records_appended_behind_the_plan_are_returned(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        await create_many(node)
        client, producer = await node.connect(), await node.connect()
        client.post("fetch", 12, fetch_of(range(MANY), max_wait_ms=10_000))
        await until_planned(node)
        await producer.produce("t", batch(b"news"))
        (response,) = client.responses()
        assert found(response) == {0: [b"news"]}
        assert nothing_is_parked(node)


async def test_records_behind_the_plan_without_room_do_not_end_the_wait(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        await create_many(node)
        client, *producers = [await node.connect() for _ in range(4)]
        body = fetch_of(range(MANY), max_wait_ms=500, min_bytes=300)
        body["topics"][0]["partitions"][0]["partition_max_bytes"] = 1
        client.post("fetch", 12, body)
        await until_planned(node)
        for producer in producers:
            producer.post("produce", 9, node.produce_body("t", batch(b"x" * 100)))
        await run_until_idle()
        assert client.responses() == []
        assert node.parked_fetches()
        mock_clock.jump(0.51)
        await run_until_idle()
        (response,) = client.responses()
        assert found(response) == {0: [b"x" * 100]}
        assert nothing_is_parked(node)


async def test_a_leadership_lost_behind_the_plan_is_sent_at_once(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        await create_many(node, replicas=(ME, OTHER))
        client = await node.connect()
        client.post("fetch", 10, fetch_of(range(MANY), max_wait_ms=10_000))
        await until_planned(node)
        node.lead("t", OTHER)
        await run_until_idle()
        (response,) = client.responses()
        assert [row.error_code for row in rows_of(response)] == [
            ErrorCode.NOT_LEADER_OR_FOLLOWER
        ] + [0] * (MANY - 1)
        assert nothing_is_parked(node)


async def test_one_append_wakes_every_parked_fetch(tmp_path: Path, mock_clock: MockClock) -> None:
    async with rig(tmp_path) as node:
        await create_many(node)
        clients = [await node.connect() for _ in range(5)]
        producer = await node.connect()
        for client in clients:
            await parked(node, client)
        await producer.produce("t", batch(b"news"), partition=7)
        for client in clients:
            (response,) = client.responses()
            assert found(response) == {7: [b"news"]}
        assert nothing_is_parked(node)


async def test_a_woken_fetch_leaves_its_partitions(tmp_path: Path, mock_clock: MockClock) -> None:
    async with rig(tmp_path) as node:
        await create_many(node)
        client, producer = await node.connect(), await node.connect()
        response = await client.request("fetch", 12, fetch_of(range(MANY), session_epoch=0))
        forgotten = [{"topic": "t", "partitions": list(range(1, MANY))}]
        body = fetch_of([0] * MANY, session_id=response.session_id, session_epoch=1)
        client.post(
            "fetch", 12, {**body, "max_wait_ms": 10_000, "forgotten_topics_data": forgotten}
        )
        await run_until_idle()
        assert node.partition("t", 0).fetches
        await producer.produce("t", batch(b"news"))
        (response,) = client.responses()
        assert found(response) == {0: [b"news"]}
        assert nothing_is_parked(node)


@pytest.mark.parametrize("behind", ["produce", "metadata", "final fetch"])
async def test_a_later_request_wakes_a_large_fetch(
    tmp_path: Path, mock_clock: MockClock, behind: str
) -> None:
    async with rig(tmp_path) as node:
        await create_many(node)
        node.node.controller.controller_id = 1
        client = await node.connect()
        await parked(node, client)
        if behind == "produce":
            client.post("produce", 9, node.produce_body("t", batch(b"a")))
        elif behind == "metadata":
            client.post("metadata", 12, {"topics": []})
        else:
            client.post(
                "fetch", 12, {**fetch_of([]), "session_id": 7, "session_epoch": -1, "topics": []}
            )
        await run_until_idle()
        first, _ = client.responses()
        assert len(rows_of(first)) == MANY


@pytest.mark.parametrize("when", ["while it is decoded", "while it is planned", "while it waits"])
@pytest.mark.parametrize("how", ["half close", "reset"])
async def test_a_disconnected_client_removes_its_large_fetch(
    tmp_path: Path, mock_clock: MockClock, when: str, how: str
) -> None:
    async with rig(tmp_path) as node:
        await create_many(node)
        client = await node.connect()
        client.post("fetch", 11, fetch_of(range(MANY), max_wait_ms=10_000))
        if when == "while it is planned":
            await until_planned(node)
        elif when == "while it waits":
            await run_until_idle()
            assert not nothing_is_parked(node)
        (client.half_close if how == "half close" else client.reset)()
        await run_until_idle()
        if how == "half close":
            (response,) = client.responses()
            assert len(rows_of(response)) == MANY
        assert client.sock.closed
        assert nothing_is_parked(node)
        assert node.server.memory.request_bytes == 0


async def test_a_damaged_large_fetch_closes_its_connection(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        client, other = await node.connect(), await node.connect()
        rows = pack(">iqi", 0, 0, 1) * MANY
        head = (
            pack(">hhih", 1, 4, 1, -1) + pack(">iiiib", -1, 0, 0, 1, 0) + pack(">ih1s", 1, 1, b"t")
        )
        client.send_frame(head + pack(">i", MANY + 1) + rows)
        await run_until_idle()
        assert client.sock.closed
        assert (await other.request("api_versions", 0, {})).error_code == 0
        assert node.server.memory.request_bytes == 0


# -- sessions


@pytest.mark.parametrize(
    "unknown", [FETCH_SESSION_UNKNOWN_MAX, FETCH_SESSION_UNKNOWN_MAX + 1, 10 * DECODED_AT_ONCE_ROWS]
)
async def test_a_session_of_many_unknown_partitions_ends_with_the_response(
    tmp_path: Path, unknown: int
) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        response = await client.request(
            "fetch", 12, fetch_of(range(1, 1 + unknown), session_epoch=0)
        )
        assert [row.error_code for row in rows_of(response)] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ] * unknown
        lives = unknown <= FETCH_SESSION_UNKNOWN_MAX
        assert (response.session_id != 0, len(node.replica.sessions)) == (lives, lives)


async def test_a_session_whose_partitions_become_unknown_is_closed(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        await create_many(node)
        client = await node.connect()
        response = await client.request("fetch", 11, fetch_of(range(MANY), session_epoch=0))
        session_id = response.session_id
        assert session_id
        again = {**fetch_of([], session_id=session_id, session_epoch=1), "topics": []}
        assert rows_of(await client.request("fetch", 11, again)) == []
        await delete_many(node)
        response = await client.request("fetch", 11, {**again, "session_epoch": 2})
        assert (response.session_id, len(rows_of(response))) == (0, MANY)
        response = await client.request("fetch", 11, {**again, "session_epoch": 3})
        assert (response.error_code, rows_of(response)) == (
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            [],
        )
