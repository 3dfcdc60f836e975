"""What clients can do to the share partitions and share sessions of a node, and what bounds it."""

from __future__ import annotations

import logging
import struct
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio

from mqd.errors import ErrorCode
from mqd.limits import LARGE_REQUESTS_AT_ONCE, MIB, SHARE_SESSION_UNKNOWN_MAX
from mqd.protocol import apis
from mqd.protocol.batch import iterate_batches
from mqd.protocol.record_reader import Record, iterate_records
from mqd.server.context import CLIENT
from mqd.server.memory import PARKED_ROW_BYTES
from tests.nodes import ask, connected, create_topic, node, one_node_peers
from tests.server.test_share_groups import (
    ACCEPT,
    GROUP,
    OPTIONS,
    SECONDS_MAX,
    TOPIC,
    Member,
    configure,
    running,
    write,
)


async def test_an_unexpected_exception_drops_one_share_partition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def fail(*args: Any, **kwargs: Any) -> None:
        raise struct.error("argument out of range")

    async with running(tmp_path, one_node_peers()) as one, connected(one) as client:
        await create_topic(client, TOPIC)
        await configure(client, share_auto_offset_reset="earliest")
        await write(client, b"0", b"1")
        member = Member(client, "m1")
        await member.join()
        assert await member.fetch() == [(0, 1, 1)]
        assert one.daemon is not None
        persister = one.daemon.coordinators.share_state
        with monkeypatch.context() as patch:
            patch.setattr(persister, "write", fail)
            row = await member.row((0, 0, ACCEPT))
        assert row.acknowledge_error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert one.daemon.server.statistics().bugs == 1
        [acquired] = row.acquired_records  # it was loaded again
        assert (acquired.first_offset, acquired.last_offset) == (0, 1)
        assert await member.fetch((0, 1, ACCEPT), wait_ms=0) == []


def fetch_body(member: Member, epoch: int, topics: Any = (), **more: Any) -> dict[str, Any]:
    return {
        "group_id": GROUP,
        "member_id": member.member_id,
        "share_session_epoch": epoch,
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_records": 500,
        "batch_size": 500,
        "topics": topics,
        **more,
    }


def partitions(topic_id: UUID, *indexes: int) -> list[dict[str, Any]]:
    rows = [{"partition_index": index, "acknowledgement_batches": []} for index in indexes]
    return [{"topic_id": topic_id, "partitions": rows}]


async def test_fetches_that_wait_leave_their_place_to_other_large_requests(tmp_path: Path) -> None:
    """And the connection of such a fetch may end: the fetch ends with it."""
    async with running(tmp_path, one_node_peers()) as one, connected(one) as client:
        await create_topic(client, TOPIC)
        member = Member(client, "m0")
        await member.join()
        api = apis.by_name("share_fetch")
        assert api is not None
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(connected(one))
                for _ in range(LARGE_REQUESTS_AT_ONCE)
            ]
            nursery = await stack.enter_async_context(trio.open_nursery())
            for number, waiting in enumerate(clients):
                topics = partitions(member.topic_id, 0, *[0] * 3_000)
                other = Member(waiting, f"w{number}")
                body = fetch_body(other, 0, topics, max_wait_ms=3_600_000)
                nursery.start_soon(partial(waiting.request, api, body, 2, timeout_s=100))
            assert one.daemon is not None
            share = one.daemon.coordinators.share
            with trio.fail_after(SECONDS_MAX):
                while len(share.sessions) < LARGE_REQUESTS_AT_ONCE or not all(  # noqa: ASYNC110
                    len(led.waiters) == LARGE_REQUESTS_AT_ONCE for led in share.partitions
                ):
                    await trio.sleep(0.01)
            names = [{"name": f"{number:05}"} for number in range(1_000)]
            with trio.fail_after(SECONDS_MAX):
                await ask(client, "delete_topics", 6, {"timeout_ms": 5_000, "topics": names})
            pool = one.daemon.server.memory.request_pools[CLIENT]
            assert pool._parked >= LARGE_REQUESTS_AT_ONCE * PARKED_ROW_BYTES
            nursery.cancel_scope.cancel()
        with trio.fail_after(SECONDS_MAX):
            while pool._parked or len(share.partitions):  # noqa: ASYNC110
                await trio.sleep(0.01)


async def test_a_session_keeps_few_unknown_partitions(tmp_path: Path) -> None:
    async with running(tmp_path, one_node_peers()) as one, connected(one) as client:
        await create_topic(client, TOPIC)
        member = Member(client, "m1")
        await member.join()
        few = partitions(UUID(int=7), *range(SHARE_SESSION_UNKNOWN_MAX))
        answer = await ask(client, "share_fetch", 2, fetch_body(member, 0, few))
        assert len(answer.responses[0].partitions) == SHARE_SESSION_UNKNOWN_MAX
        answer = await ask(client, "share_fetch", 2, fetch_body(member, 1))
        codes = {row.error_code for row in answer.responses[0].partitions}
        assert codes == {ErrorCode.UNKNOWN_TOPIC_ID}
        more = partitions(member.topic_id, *range(200))
        answer = await ask(client, "share_fetch", 2, fetch_body(member, 2, more))
        rows = {topic.topic_id: topic.partitions for topic in answer.responses}
        codes = {row.error_code for row in rows[member.topic_id]}
        assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION in codes
        answer = await ask(client, "share_fetch", 2, fetch_body(member, 3))
        assert answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND, "the member opens another"
        assert one.daemon is not None
        assert one.daemon.coordinators.share.sessions.bytes == 0


async def test_records_come_from_the_file(tmp_path: Path) -> None:
    """Also those of a batch that is larger than one read."""
    value = bytes(2_000_000)
    async with running(tmp_path, one_node_peers()) as one, connected(one) as client:
        await create_topic(client, TOPIC, max_message_bytes="4000000")
        await configure(client, share_auto_offset_reset="earliest")
        await write(client, b"0", b"1")
        await write(client, value)
        await write(client, b"3")
        member = Member(client, "m1")
        await member.join()
        records: list[Record] = []
        for _ in range(3):
            row = await member.row(wait_ms=5_000)
            for position, _, header in iterate_batches(row.records):
                records += iterate_records(row.records, position, header=header)
            if len(records) >= 4:
                break
        assert [one.value for one in records] == [b"0", b"1", value, b"3"]


async def test_unfinished_records_take_no_more_than_the_bound_of_the_node(tmp_path: Path) -> None:
    """A share partition that is alone may have 1,310 ranges with it, and twice as many for
    acknowledgements."""
    options = {**OPTIONS, "group.share.partition.memory.bytes": str(MIB)}
    async with node(tmp_path, options=options) as one, connected(one) as client:
        await create_topic(client, TOPIC)
        await configure(client, share_auto_offset_reset="earliest")
        await write(client, *[b""] * 3_000)
        await write(client, b"later")
        member = Member(client, "m1")
        await member.join()
        assert sum(last - first + 1 for first, last, _ in await member.fetch()) == 3_000
        row = await member.row(*[(offset, offset, ACCEPT) for offset in range(1, 3_000, 2)])
        assert row.acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE
        assert await member.fetch(*[(n, n, ACCEPT) for n in range(1, 2_400, 2)], wait_ms=0) == []
        assert await member.fetch(*[(n, n, ACCEPT) for n in range(0, 2_400, 2)]) == [
            (3_000, 3_000, 1)
        ]
