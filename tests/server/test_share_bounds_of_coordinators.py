"""Requests about the states of share groups that name something thousands of times, or whose
response would be large."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqd.client.peer import PeerConnection
from mqd.errors import ErrorCode
from mqd.limits import MIB
from mqd.server import share_offsets, share_state_requests
from mqd.server.handlers import describe_share_group_offsets
from tests.nodes import ask, connected, node, one_node_peers
from tests.server.test_share_groups import GROUP, OPTIONS, TOPIC, Member, running
from tests.server.test_share_offsets import alter, leave, ready


async def described(client: PeerConnection, groups: list[dict[str, Any]]) -> list[Any]:
    answer = await ask(client, "describe_share_group_offsets", 1, {"groups": groups})
    return list(answer.groups)


async def test_a_group_is_described_once_however_often_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    original = share_offsets.at_shard

    async def counted(context: Any, request: Any) -> Any:
        calls.append(request)
        return await original(context, request)

    async with running(tmp_path, one_node_peers()) as one, connected(one) as client:
        await ready(client, b"0")
        await Member(client, "m1").join()
        monkeypatch.setattr(share_offsets, "at_shard", counted)
        every = {"group_id": GROUP, "topics": None}
        named = {"group_id": GROUP, "topics": [{"topic_name": TOPIC, "partitions": [0, 0, 7]}]}
        [row] = await described(client, [every] * 1000)
        assert [len(topic.partitions) for topic in row.topics] == [1] and len(calls) == 1
        [row] = await described(client, [named] * 1000)
        assert [one.partition_index for one in row.topics[0].partitions] == [0, 7]
        [row] = await described(client, [named, every, named])  # all of its partitions
        assert [one.partition_index for one in row.topics[0].partitions] == [0]
        assert len(calls) == 3
        monkeypatch.setattr(describe_share_group_offsets, "SHARE_OFFSETS_ROWS_MAX", 0)
        first, second = await described(client, [every, {**every, "group_id": "other"}])
        assert first.error_code == 0
        assert second.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_a_share_partition_has_one_row_in_a_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, one_node_peers()) as one, connected(one) as client:
        await ready(client, b"0")
        await Member(client, "m1").join()
        image = one.daemon.machine.image
        topic_id = image.topics[TOPIC].topic_id

        async def states(api: str, *rows: dict[str, Any]) -> list[Any]:
            topics = [{"topic_id": topic_id, "partitions": [row]} for row in rows]
            version = 1 if "write" in api or "summary" in api else 0
            answer = await ask(client, api, version, {"group_id": GROUP, "topics": topics})
            [topic] = answer.results
            return list(topic.partitions)

        batches = [
            {"first_offset": 2 * n, "last_offset": 2 * n, "delivery_state": 2, "delivery_count": 1}
            for n in range(1, 11)
        ]
        row = {"partition": 0, "state_epoch": -1, "leader_epoch": -1, "start_offset": 0}
        written = {**row, "delivery_complete_count": 0, "state_batches": batches}
        wrong = {**written, "state_batches": [{**batches[0], "delivery_state": 9}]}
        [found] = await states("write_share_group_state", wrong, written)
        assert found.error_code == 0, "the last one counts, as in Apache Kafka"
        [found] = await states("write_share_group_state", written, wrong)
        assert found.error_code == ErrorCode.INVALID_REQUEST
        read = {"partition": 0, "leader_epoch": -1}
        [found] = await states("read_share_group_state", *[read] * 1000)
        assert len(found.state_batches) == 10
        [_] = await states("read_share_group_state_summary", *[read] * 1000)
        monkeypatch.setattr(share_state_requests, "SHARE_RESPONSE_RANGES_MAX", 9)
        other = {"partition": 1, "leader_epoch": -1}
        first, second = await states("read_share_group_state", read, other)
        assert len(first.state_batches) == 10
        assert second.error_code == ErrorCode.INVALID_REQUEST
        assert "Request fewer share partitions" in second.error_message


async def test_the_last_offset_cannot_be_a_start_offset(tmp_path: Path) -> None:
    async with running(tmp_path, one_node_peers()) as one, connected(one) as client:
        await ready(client, b"0")
        member = Member(client, "m1")
        await member.join()
        await leave(client, member)
        answer = await alter(client, 2**63 - 1)
        [row] = answer.responses[0].partitions
        assert row.error_code == ErrorCode.INVALID_REQUEST


async def test_stored_states_have_a_bound_of_their_own(tmp_path: Path) -> None:
    options = {
        **OPTIONS,
        "share.coordinator.memory.bytes": str(MIB),
        "share.coordinator.state.topic.num.partitions": "1",
    }
    async with node(tmp_path, options=options) as one, connected(one) as client:
        await ready(client, b"0")
        await Member(client, "m1").join()
        assert one.daemon is not None
        topic_id = one.daemon.machine.image.topics[TOPIC].topic_id

        async def initialize(number: int) -> ErrorCode:
            rows = [{"partition": 0, "state_epoch": 0, "start_offset": 0}]
            body = {
                "group_id": f"{number}".ljust(4_000, "x"),
                "topics": [{"topic_id": topic_id, "partitions": rows}],
            }
            answer = await ask(client, "initialize_share_group_state", 0, body)
            return ErrorCode(answer.results[0].partitions[0].error_code)

        codes = [await initialize(number) for number in range(250)]
        refused = codes.index(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert 200 < refused < 230
        assert await initialize(0) is ErrorCode.NONE, "a state that is there"
        usage = (await ask(client, "describe_cluster", 2, {"usage_wanted": True})).usage
        [share] = [row for row in usage if row.bound == "__share_group_state-0"]
        assert 0.98 < share.used_bytes / share.bytes_max <= 1.0
