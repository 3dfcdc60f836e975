"""Offsets of share groups on a node: described, set and deleted (KIP-932)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from mqd.client.peer import PeerConnection
from mqd.errors import ErrorCode
from mqd.testing import Cluster, simulated
from tests.log.support import wait_until
from tests.nodes import ask, connected, create_topic, one_node_peers
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


async def offsets(client: PeerConnection) -> dict[int, tuple[int, int]]:
    """Start offset and lag of the partitions of the topic."""
    request = {"groups": [{"group_id": GROUP, "topics": None}]}
    [group] = (await ask(client, "describe_share_group_offsets", 1, request)).groups
    assert group.error_code == 0, group
    return {
        row.partition_index: (row.start_offset, row.lag)
        for topic in group.topics
        for row in topic.partitions
    }


async def alter(client: PeerConnection, *offsets_: int, **more: Any) -> Any:
    rows = [{"partition_index": 0, "start_offset": one} for one in offsets_]
    request = {
        "group_id": GROUP,
        "topics": [{"topic_name": TOPIC, "partitions": rows}],
        **more,
    }
    return await ask(client, "alter_share_group_offsets", 0, request)


async def delete(client: PeerConnection, *names: str) -> Any:
    request = {"group_id": GROUP, "topics": [{"topic_name": name} for name in names]}
    return await ask(client, "delete_share_group_offsets", 0, request)


async def leave(client: PeerConnection, member: Member) -> None:
    request = {"group_id": GROUP, "member_id": member.member_id, "member_epoch": -1}
    answer = await ask(client, "share_group_heartbeat", 1, request)
    assert answer.error_code == 0


async def ready(client: PeerConnection, *values: bytes) -> None:
    await create_topic(client, TOPIC)
    await configure(client, share_auto_offset_reset="earliest")
    await write(client, *values)


async def test_the_lag_counts_what_is_not_done(tmp_path: Path) -> None:
    async with running(tmp_path, one_node_peers()) as one, connected(one) as client:
        await ready(client, b"0", b"1", b"2", b"3", b"4")
        member = Member(client, "m1")
        await member.join()
        assert await offsets(client) == {0: (-1, -1)}, "nobody has read yet"
        assert await member.fetch() == [(0, 4, 1)]
        assert await offsets(client) == {0: (0, 5)}
        await member.row((0, 1, ACCEPT), (3, 3, ACCEPT))
        assert await offsets(client) == {0: (2, 2)}
        await member.row((2, 2, ACCEPT))
        assert await offsets(client) == {0: (4, 1)}


async def test_offsets_of_a_group_with_members_stay(tmp_path: Path) -> None:
    async with running(tmp_path, one_node_peers()) as one, connected(one) as client:
        await ready(client, b"0")
        await Member(client, "m1").join()
        for answer in (await alter(client, 1), await delete(client, TOPIC)):
            found = answer.error_code, answer.error_message
            assert found == (ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")


async def test_a_group_reads_from_the_offsets_that_were_set(tmp_path: Path) -> None:
    """Also if the leader had its former state: that is dropped with the last session."""
    async with running(tmp_path, one_node_peers()) as one, connected(one) as client:
        await ready(client, b"0", b"1", b"2", b"3")
        async with connected(one) as its_own:
            member = Member(its_own, "m1")
            await member.join()
            assert await member.fetch() == [(0, 3, 1)]
            assert await member.fetch((0, 3, ACCEPT), wait_ms=0) == []
            await leave(client, member)
        answer = await alter(client, 3, 1)
        [topic] = answer.responses
        assert [(row.partition_index, row.error_code) for row in topic.partitions] == [
            (0, 0),
            (0, 0),
        ]
        assert await offsets(client) == {0: (1, 3)}, "the last row counts"
        second = Member(client, "m2")
        await second.join()
        assert await second.fetch() == [(1, 3, 1)]


async def test_a_session_that_outlives_its_membership_cannot_undo_an_alteration(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, one_node_peers()) as one,
        connected(one) as client,
        connected(one) as its_own,
    ):
        await ready(client, b"0", b"1")
        member = Member(its_own, "m1")
        await member.join()
        assert await member.fetch() == [(0, 1, 1)]
        await leave(client, member)
        assert (await alter(client, 0)).error_code == 0
        late = await member.row((0, 1, ACCEPT))
        assert late.acknowledge_error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await offsets(client) == {0: (0, 2)}


async def test_deleted_offsets_and_groups_begin_anew(tmp_path: Path) -> None:
    async with running(tmp_path, one_node_peers()) as one, connected(one) as client:
        await ready(client, b"0", b"1")
        for number, deletes_group in enumerate((False, True)):
            async with connected(one) as its_own:
                member = Member(its_own, f"m{number}")
                await member.join()
                assert await member.fetch() == [(0, 1, 1)]
                assert await member.fetch((0, 1, ACCEPT), wait_ms=0) == []
                await leave(client, member)
            assert one.daemon is not None
            sessions = one.daemon.coordinators.share.sessions
            await wait_until(lambda: not sessions.has_group(GROUP))  # noqa: B023
            if deletes_group:
                answer = await ask(client, "delete_groups", 2, {"groups_names": [GROUP, "none"]})
                assert [row.error_code for row in answer.results] == [
                    0,
                    ErrorCode.GROUP_ID_NOT_FOUND,
                ]
            else:
                answer = await delete(client, TOPIC, "none", TOPIC)
                found = {row.topic_name: row.error_code for row in answer.responses}
                assert found == {TOPIC: 0, "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
                [row] = (await delete(client, TOPIC)).responses
                assert row.error_message == "There is no offset information to delete."
            assert await offsets(client) == {}
        third = Member(client, "m3")
        await third.join()
        assert await third.fetch() == [(0, 1, 1)]


@simulated(seed=2)
async def test_any_node_coordinates_and_leads() -> None:
    async with Cluster(nodes=3, options=OPTIONS) as cluster:
        client = await cluster.connect(1)
        await create_topic(client, TOPIC, partitions=6)
        with trio.fail_after(SECONDS_MAX * 5):
            while True:
                request = {"key": GROUP, "key_type": 0}
                place = await ask(client, "find_coordinator", 3, request)
                if not place.error_code:
                    break
                await trio.sleep(0.1)
            coordinator = await cluster.connect(place.node_id)
            rows = [{"partition_index": one, "start_offset": one} for one in range(6)]
            topics = [{"topic_name": TOPIC, "partitions": rows}]
            while True:
                answer = await alter(coordinator, topics=topics)
                errors = {row.error_code for one in answer.responses for row in one.partitions}
                if not answer.error_code and errors == {0}:
                    break
                await trio.sleep(0.5)
            assert await offsets(coordinator) == {one: (one, 0) for one in range(6)}
            elsewhere = await cluster.connect(place.node_id % 3 + 1)
            request = {"groups": [{"group_id": GROUP, "topics": None}]}
            [group] = (await ask(elsewhere, "describe_share_group_offsets", 1, request)).groups
            assert group.error_code == ErrorCode.NOT_COORDINATOR
