"""Fetches of followers through the whole server: who may send them, what advances the high
watermark, what is parked and what wakes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mqd.controller.records import UnregisterBroker
from mqd.errors import ErrorCode, MqError
from mqd.log.disk.segment_reading import seek
from mqd.server.context import CLIENT, PEER
from mqd.server.peer_requests import authenticated
from mqd.types import IsrChange, IsrOutcome, NodeId
from tests.log.support import batch
from tests.server.rig import ME, OTHER, Client, Rig, rig, run_until_idle, values

THIRD = NodeId(3)
VERSION = 17


class Follower:
    """A follower of one topic's partitions with an incremental session, as bytes on a
    connection.
    """

    def __init__(self, node: Rig, client: Client, node_id: NodeId = OTHER) -> None:
        self.node, self.client, self.node_id = node, client, node_id
        self.session_id, self.epoch = 0, 0

    @classmethod
    async def connect(cls, node: Rig, node_id: NodeId = OTHER, kind: str = PEER) -> Follower:
        client = await node.connect(kind)
        for connection in node.server._connections:
            if connection.sock is client.sock and kind == PEER:
                authenticated(connection, node_id)
        return cls(node, client, node_id)

    def body(
        self,
        *requested: tuple[str, int, int],
        epoch: int = 0,
        broker_epoch: int | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """`requested`: (topic, partition, offset)."""
        topics: dict[str, list[dict[str, int]]] = {}
        for topic, index, offset in requested:
            row = {
                "partition": index,
                "fetch_offset": offset,
                "partition_max_bytes": 1 << 20,
                "current_leader_epoch": epoch,
            }
            for name in (
                "last_fetched_epoch",
                "log_start_offset",
                "partition_max_bytes",
                "current_leader_epoch",
            ):
                if name in options:
                    row[name] = options[name]
            topics.setdefault(topic, []).append(row)
        known = (
            self.node.image.brokers[self.node_id].epoch if broker_epoch is None else broker_epoch
        )
        return {
            "replica_state": {"replica_id": self.node_id, "replica_epoch": known},
            "max_wait_ms": options.get("max_wait_ms", 0),
            "min_bytes": 1,
            "max_bytes": options.get("max_bytes", 10 << 20),
            "session_id": self.session_id,
            "session_epoch": self.epoch,
            "topics": [
                {**self.node.name_of(topic, 13, VERSION), "partitions": rows}
                for topic, rows in topics.items()
            ],
        }

    async def fetch(self, *requested: tuple[str, int, int], **options: Any) -> Any:
        """One round of the session, with an immediate response."""
        response = await self.client.request("fetch", VERSION, self.body(*requested, **options))
        self.received(response)
        return response

    def received(self, response: Any) -> None:
        if response.error_code == 0:
            self.session_id, self.epoch = response.session_id, self.epoch + 1

    async def park(self, *requested: tuple[str, int, int], **options: Any) -> None:
        self.client.post("fetch", VERSION, self.body(*requested, max_wait_ms=10_000, **options))
        await run_until_idle()
        assert self.client.responses() == []

    def response(self) -> Any:
        (response,) = self.client.responses()
        self.received(response)
        return response


def rows(response: Any) -> list[Any]:
    return [row for topic in response.responses for row in topic.partitions]


def row(response: Any) -> Any:
    (found,) = rows(response)
    return found


def replicated(
    node: Rig,
    name: str = "t",
    partitions: int = 1,
    isr: Sequence[NodeId] = (ME, OTHER),
    **configs: str,
) -> None:
    node.create(
        name, partitions=partitions, replicas=(ME, OTHER, THIRD), isr=isr, leader=None, **configs
    )


# -- who may fetch


@pytest.mark.parametrize(("kind", "authenticated_as"), [(CLIENT, OTHER), (PEER, THIRD)])
async def test_only_an_authenticated_node_is_a_replica(
    tmp_path: Path, kind: str, authenticated_as: NodeId
) -> None:
    async with rig(tmp_path) as node:
        replicated(node)
        follower = await Follower.connect(node, authenticated_as, kind)
        follower.node_id = OTHER
        response = await follower.client.request("fetch", VERSION, follower.body(("t", 0, 0)))
        assert (response.error_code, rows(response)) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
        assert node.partition("t").followers[OTHER].end_offset == -1


async def test_an_old_version_is_refused_partition_by_partition(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        replicated(node)
        client = await node.connect()
        assert (
            await client.fetch("t", 0, version=5, replica_id=OTHER)
        ).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_epochs_fence_followers(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        replicated(node)
        node.lead("t", ME)
        follower = await Follower.connect(node)
        fenced, unknown = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH
        for epoch, code in ((-1, fenced), (0, fenced), (2, unknown), (1, ErrorCode.NONE)):
            assert row(await follower.fetch(("t", 0, 0), epoch=epoch)).error_code == code
        stale = node.image.brokers[OTHER].epoch - 1
        node.partition("t").followers[OTHER].end_offset = -1
        follower.session_id = follower.epoch = 0
        assert (
            row(await follower.fetch(("t", 0, 0), epoch=1, broker_epoch=stale)).error_code
            == ErrorCode.STALE_BROKER_EPOCH
        )
        assert node.partition("t").followers[OTHER].end_offset == -1


async def test_a_fetch_of_an_earlier_registration_is_fenced(
    tmp_path: Path,
) -> None:
    """Although this node has not applied that registration yet: the records of the earlier process
    may be lost.
    """
    async with rig(tmp_path) as node:
        replicated(node, isr=(ME,))
        await produce_quietly(node, b"a")
        follower = await Follower.connect(node)
        known = node.image.brokers[OTHER].epoch
        assert (
            row(await follower.fetch(("t", 0, 1), broker_epoch=known)).error_code == ErrorCode.NONE
        )
        assert node.partition("t").followers[OTHER].end_offset == 1
        follower.session_id = follower.epoch = 0
        assert (
            row(await follower.fetch(("t", 0, 0), broker_epoch=known + 1)).error_code
            == ErrorCode.UNKNOWN_LEADER_EPOCH
        )
        follower.session_id = follower.epoch = 0
        assert (
            row(await follower.fetch(("t", 0, 1), broker_epoch=known)).error_code
            == ErrorCode.STALE_BROKER_EPOCH
        )
        assert node.partition("t").followers[OTHER].end_offset == -1


async def test_an_unknown_registration_acknowledges_nothing(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as node:
        replicated(node, isr=(ME, OTHER))
        await produce_quietly(node, b"a")
        follower = await Follower.connect(node)
        epoch = node.image.brokers[OTHER].epoch
        # the record of the next registration, after the record that removes this one
        later = node.changes + 2
        assert (
            row(await follower.fetch(("t", 0, 1), broker_epoch=later)).error_code
            == ErrorCode.UNKNOWN_LEADER_EPOCH
        )
        assert node.partition("t").high_watermark == 0
        node.change(UnregisterBroker(OTHER, epoch))
        assert (
            row(await follower.fetch(("t", 0, 1), broker_epoch=later)).error_code
            == ErrorCode.UNKNOWN_LEADER_EPOCH
        )
        node.register(OTHER)
        assert node.image.brokers[OTHER].epoch == later
        assert (
            row(await follower.fetch(("t", 0, 1), broker_epoch=later)).error_code == ErrorCode.NONE
        )
        assert node.partition("t").followers[OTHER].end_offset == 1


async def test_partitions_of_other_leaders_stay_in_no_session(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        replicated(node)
        follower = await Follower.connect(node)
        for begin in range(1, 30, 10):
            response = await follower.fetch(
                *(("t", index, 0) for index in range(begin, begin + 10))
            )
            assert {one.error_code for one in rows(response)} == {
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            }
        await follower.fetch(("t", 0, 0))
        session = node.replica.follower_sessions._sessions[OTHER]
        assert [partition for _, partition in session.partitions] == [0]
        assert not session.news


async def test_a_session_ends_with_the_registration_of_its_node(tmp_path: Path) -> None:
    """Otherwise idle partitions, which fetches need not name, would be known only under the earlier
    broker epoch.
    """
    async with rig(tmp_path) as node:
        replicated(node, partitions=2, isr=(ME,))
        partitions = [node.partition("t", index) for index in range(2)]
        follower = await Follower.connect(node)
        await follower.fetch(("t", 0, 0), ("t", 1, 0))
        node.change(UnregisterBroker(OTHER, node.image.brokers[OTHER].epoch))
        node.register(OTHER)
        assert (
            await follower.fetch(("t", 0, 0))
        ).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        follower.session_id = follower.epoch = 0
        await follower.fetch(("t", 0, 0), ("t", 1, 0))
        epoch = node.image.brokers[OTHER].epoch
        assert [partition.followers[OTHER].broker_epoch for partition in partitions] == [
            epoch,
            epoch,
        ]


async def test_a_follower_that_stopped_fetching_does_not_join_the_isr(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as node:
        replicated(node, isr=(ME,))
        follower = await Follower.connect(node)
        partition = node.partition("t")
        node.ports.eligible_epoch = lambda node_id: None
        await follower.fetch(("t", 0, 0))
        body = follower.body()
        body["forgotten_topics_data"] = [{**node.name_of("t", 13, VERSION), "partitions": [0]}]
        await follower.client.request("fetch", VERSION, body)
        node.ports.eligible_epoch = lambda node_id: node.image.brokers[node_id].epoch
        assert partition.expand_isr(node.clock.monotonic()) is None


@pytest.mark.parametrize("others_alive", [True, False])
async def test_a_damaged_batch_that_a_follower_cannot_copy_is_detected(
    tmp_path: Path, others_alive: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(tmp_path) as node:
        node.register(THIRD)
        replicated(node)
        partition = node.partition("t")
        node.ports.eligible_epoch = lambda node_id: 1 if others_alive else None
        for value in (b"a", b"b"):
            await produce_quietly(node, value)
        segment = partition.log.active
        position = seek(segment, 1)
        assert position and segment.file is not None
        segment.file.write_at(segment.size - 1, b"?")
        lost: list[Any] = []
        node.ports.on_offline = lambda topic_id, index: lost.append((topic_id, index))
        follower = await Follower.connect(node, THIRD)
        assert row(await follower.fetch(("t", 0, 0))).error_code == ErrorCode.NONE
        assert row(await follower.fetch(("t", 0, 1))).error_code == ErrorCode.NONE
        assert not lost
        follower.session_id = follower.epoch = 0  # as after a broken connection
        again = row(await follower.fetch(("t", 0, 1)))
        if others_alive:
            assert again.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert lost == [(partition.assignment.topic_id, 0)]
        else:
            assert again.error_code == ErrorCode.NONE and not lost
            assert "no other replica is in sync" in caplog.text
            sound = row(await follower.fetch(("t", 0, 0)))
            assert sound.error_code == ErrorCode.NONE


async def produce_quietly(node: Rig, value: bytes) -> None:
    producer = await node.connect()
    await producer.request("produce", 9, node.produce_body("t", batch(value), acks=1))


async def test_an_unknown_replica_gets_a_retriable_error(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t", replicas=(ME, THIRD), isr=(ME,))
        follower = await Follower.connect(node)
        assert row(await follower.fetch(("t", 0, 0))).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_a_follower_returns_nothing_to_other_followers(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.register(THIRD)
        replicated(node)
        node.lead("t", THIRD, isr=(ME, OTHER, THIRD))
        follower = await Follower.connect(node)
        assert (
            row(await follower.fetch(("t", 0, 0), epoch=1)).error_code
            == ErrorCode.NOT_LEADER_OR_FOLLOWER
        )


# -- the contents of a fetch


async def produce_without_response(
    node: Rig, value: bytes, acks: int = -1, partition: int = 0
) -> Client:
    """A produce request that waits for followers."""
    producer = await node.connect()
    producer.post(
        "produce",
        9,
        node.produce_body("t", batch(value), acks=acks, partition=partition, timeout_ms=10_000),
    )
    await run_until_idle()
    assert producer.responses() == []
    return producer


async def test_followers_read_to_the_end_and_their_next_fetch_commits(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        replicated(node, min_insync_replicas="2")
        follower, consumer = await Follower.connect(node), await node.connect()
        producer = await produce_without_response(node, b"a")
        got = row(await follower.fetch(("t", 0, 0)))
        assert (got.high_watermark, values(got.records)) == (0, [b"a"])
        assert producer.responses() == []
        consumer.post("fetch", 12, node.fetch_body("t", 0, max_wait_ms=10_000))
        await run_until_idle()
        assert consumer.responses() == []
        await follower.park(("t", 0, 1))
        (produced,) = producer.responses()
        assert produced.responses[0].partition_responses[0].error_code == 0
        (consumed,) = consumer.responses()
        assert values(row(consumed).records) == [b"a"]
        assert node.partition("t").high_watermark == 1


async def test_a_commit_of_earlier_records_wakes_a_parked_consumer(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        replicated(node)
        follower, consumer = await Follower.connect(node), await node.connect()
        await produce_without_response(node, b"a")
        await follower.fetch(("t", 0, 0))
        await produce_without_response(node, b"b")
        await follower.fetch(("t", 0, 1))  # commits the first of two
        for offset, value in enumerate((b"a", b"b")):
            consumer.post("fetch", 12, node.fetch_body("t", offset, max_wait_ms=10_000))
            await run_until_idle()
            if offset:
                assert consumer.responses() == []
                await follower.fetch(("t", 0, 2))
                await run_until_idle()
            (consumed,) = consumer.responses()
            assert values(row(consumed).records) == [value]


async def test_a_divergence_or_an_offset_out_of_range_acknowledges_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        replicated(node, isr=(ME,))
        client = await node.connect()
        await client.produce("t", batch(b"a", b"b"))
        node.lead("t", ME)
        await client.produce("t", batch(b"c"))
        node.logs.delete_records(node.partition("t").log, 1)
        follower = await Follower.connect(node)
        got = row(await follower.fetch(("t", 0, 3), epoch=1, last_fetched_epoch=0))
        assert (got.diverging_epoch.epoch, got.diverging_epoch.end_offset) == (0, 2)
        got = row(await follower.fetch(("t", 0, 9), epoch=1))
        assert (got.error_code, got.high_watermark, got.log_start_offset) == (
            ErrorCode.OFFSET_OUT_OF_RANGE,
            3,
            1,
        )
        assert (
            row(await follower.fetch(("t", 0, 0), epoch=1)).error_code
            == ErrorCode.OFFSET_OUT_OF_RANGE
        )
        assert node.partition("t").followers[OTHER].end_offset == -1


# -- parked fetches


async def test_an_append_wakes_a_follower_with_all_records_of_the_turn(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        replicated(node, partitions=3)
        follower = await Follower.connect(node)
        await follower.fetch(*(("t", index, 0) for index in range(3)))
        await follower.park()
        producer = await node.connect()
        for index in (0, 2):
            producer.post(
                "produce", 9, node.produce_body("t", batch(b"x"), partition=index, acks=1)
            )
        await run_until_idle()
        response = follower.response()
        assert [(one.partition_index, values(one.records)) for one in rows(response)] == [
            (0, [b"x"]),
            (2, [b"x"]),
        ]
        await follower.park(("t", 0, 1), ("t", 2, 1))


async def test_a_new_high_watermark_is_sent_at_the_deadline_at_the_latest(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        replicated(node)
        follower = await Follower.connect(node)
        await follower.fetch(("t", 0, 0))
        await produce_without_response(node, b"a")
        await follower.fetch()
        await follower.park(("t", 0, 1))
        mock_clock.jump(10.001)
        await run_until_idle()
        assert row(follower.response()).high_watermark == 1
        await follower.park()  # sent once


async def test_a_high_watermark_that_another_follower_moved_is_sent_too(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        node.register(THIRD)
        replicated(node, isr=(ME, OTHER, THIRD))
        first, second = await Follower.connect(node), await Follower.connect(node, THIRD)
        await produce_without_response(node, b"a")
        await first.fetch(("t", 0, 0))
        await first.park(("t", 0, 1))
        await second.fetch(("t", 0, 1))
        assert node.partition("t").high_watermark == 1
        mock_clock.jump(10.001)
        await run_until_idle()
        assert row(first.response()).high_watermark == 1


async def test_a_new_high_watermark_is_sent_at_once_with_follower_reads(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        replicated(node)
        node.replica.parked.consumers_read_from_followers = True
        follower = await Follower.connect(node)
        await follower.fetch(("t", 0, 0))
        await produce_without_response(node, b"a")
        await follower.fetch()
        assert row(await follower.fetch(("t", 0, 1), max_wait_ms=10_000)).high_watermark == 1


async def test_a_change_of_role_wakes_a_follower(tmp_path: Path, mock_clock: MockClock) -> None:
    async with rig(tmp_path) as node:
        replicated(node)
        follower = await Follower.connect(node)
        await follower.fetch(("t", 0, 0))
        await follower.park()
        node.lead("t", OTHER)
        await run_until_idle()
        got = row(follower.response())
        assert (got.error_code, got.current_leader.leader_id) == (
            ErrorCode.FENCED_LEADER_EPOCH,
            OTHER,
        )


async def test_partitions_without_room_come_next(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        replicated(node, partitions=3, isr=(ME,))
        client = await node.connect()
        for index in range(3):
            await client.produce("t", batch(b"x" * 100), partition=index)
        follower = await Follower.connect(node)
        response = await follower.fetch(*(("t", index, 0) for index in range(3)), max_bytes=1)
        assert [len(values(one.records)) for one in rows(response)] == [1, 0, 0]
        for index in (1, 2):
            response = await follower.fetch(("t", index - 1, 1), max_bytes=1)
            assert [one.partition_index for one in rows(response) if values(one.records)] == [index]


async def test_the_cost_of_a_session_depends_on_its_changes(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        replicated(node, partitions=20, isr=(ME,))
        follower = await Follower.connect(node)
        await follower.fetch(*(("t", index, 0) for index in range(20)))
        session = node.replica.follower_sessions._sessions[OTHER]
        assert [one.partition for one in session.news] == []
        client = await node.connect()
        await client.produce("t", batch(b"x"), partition=7)
        assert [one.partition for one in session.news] == [7]
        assert row(await follower.fetch()).partition_index == 7


@pytest.mark.parametrize(
    ("id_offset", "epoch", "code"),
    [(0, 2, ErrorCode.INVALID_FETCH_SESSION_EPOCH), (1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)],
)
async def test_wrong_sessions_of_followers(
    tmp_path: Path, id_offset: int, epoch: int, code: ErrorCode
) -> None:
    async with rig(tmp_path) as node:
        replicated(node)
        follower = await Follower.connect(node)
        await follower.fetch(("t", 0, 0))
        follower.session_id += id_offset
        follower.epoch = epoch
        response = await follower.client.request("fetch", VERSION, follower.body())
        assert (response.error_code, response.session_id) == (code, 0)


async def test_a_follower_that_reconnects_has_one_session(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        replicated(node)
        for _ in range(3):
            await (await Follower.connect(node)).fetch(("t", 0, 0))
        assert len(node.partition("t").watches) == 1


async def test_the_throttle_delays_followers_that_are_not_in_sync(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        replicated(node, isr=(ME,))
        client = await node.connect()
        await client.produce("t", batch(b"x" * 100))
        node.replica.leader_throttle.set_partitions("t", None)
        node.replica.leader_throttle.set_rate(10)
        follower = await Follower.connect(node)
        assert values(row(await follower.fetch(("t", 0, 0))).records) == [b"x" * 100]
        await client.produce("t", batch(b"y" * 100))
        assert not any(values(one.records) for one in rows(await follower.fetch(("t", 0, 1))))
        mock_clock.jump(30)
        assert values(row(await follower.fetch()).records) == [b"y" * 100]


# -- in-sync replicas


async def test_a_follower_that_caught_up_joins_by_the_controller(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        requested: list[IsrChange] = []

        async def alter(changes: Sequence[IsrChange]) -> list[IsrOutcome]:
            requested.extend(changes)
            if len(requested) == 1:
                raise MqError(ErrorCode.NOT_CONTROLLER)
            return [
                IsrOutcome(
                    one.topic_partition,
                    ErrorCode.NONE,
                    ME,
                    one.leader_epoch,
                    tuple(member for member, _ in one.isr),
                    1,
                )
                for one in changes
            ]

        node.ports.alter_partitions = alter
        node.ports.eligible_epoch = lambda node_id: node.image.brokers[node_id].epoch
        replicated(node, isr=(ME,))
        client = await node.connect()
        await client.produce("t", batch(b"a"))
        follower = await Follower.connect(node)
        await follower.fetch(("t", 0, 0))
        assert not requested
        await follower.fetch(("t", 0, 1))
        while len(requested) < 2:
            await run_until_idle()
        await run_until_idle()
        assert requested[0] is requested[1]
        assert requested[0].isr == (
            (ME, node.image.brokers[ME].epoch),
            (OTHER, node.image.brokers[OTHER].epoch),
        )
        assert node.partition("t").isr == {ME, OTHER}


# -- consumers at followers, and racks (KIP-392)


async def test_consumers_read_from_a_follower_up_to_its_high_watermark(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        replicated(node, isr=(ME,))
        client = await node.connect()
        for value in (b"a", b"b"):
            await client.produce("t", batch(value))
        node.partition("t").high_watermark = 1
        node.lead("t", OTHER, isr=(OTHER, ME))
        got = await client.fetch("t", 0, version=12)
        assert (got.error_code, got.high_watermark, values(got.records)) == (0, 1, [b"a"])
        assert (
            await client.fetch("t", 0, version=10)
        ).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await client.fetch("t", 3, version=12)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert (
            await client.fetch("t", 3, version=12, current_leader_epoch=1)
        ).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        client.post("fetch", 12, node.fetch_body("t", 1, max_wait_ms=10_000))
        await run_until_idle()
        assert client.responses() == []
        assert node.partition("t").follower_progress(2, 0)
        node.replica.follower_advanced(node.partition("t"))
        await run_until_idle()
        assert values(row(client.responses()[0]).records) == [b"b"]
        node.replica.set_in_contact(False)
        assert (
            await client.fetch("t", 0, version=12)
        ).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_leader_refers_consumers_to_their_rack(tmp_path: Path) -> None:
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    async with rig(tmp_path, replica_selector_class=selector) as node:
        replicated(node)
        node.set_rack(OTHER, "there")
        follower, client = await Follower.connect(node), await node.connect()
        # it has not fetched: its log end offset is unknown
        assert (await client.fetch("t", 0, rack_id="there")).preferred_read_replica == -1
        await follower.fetch(("t", 0, 0), log_start_offset=0)
        got = await client.fetch("t", 0, rack_id="there", max_wait_ms=10_000)
        assert (got.preferred_read_replica, values(got.records)) == (OTHER, [])
        for rack in ("elsewhere", ""):
            assert (await client.fetch("t", 0, rack_id=rack)).preferred_read_replica == -1


# -- out of contact


async def test_out_of_contact_only_clients_are_refused(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        replicated(node)
        follower, consumer = await Follower.connect(node), await node.connect()
        await follower.fetch(("t", 0, 0))
        consumer.post("fetch", 12, node.fetch_body("t", 0, max_wait_ms=10_000))
        producer = await produce_without_response(node, b"a")
        node.replica.set_in_contact(False)
        await run_until_idle()
        (produced,) = producer.responses()
        refused = produced.responses[0].partition_responses[0]
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert row(consumer.responses()[0]).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        response = await producer.request(
            "produce", 10, node.produce_body("t", batch(b"b"), version=10)
        )
        again = response.responses[0].partition_responses[0]
        assert (again.error_code, again.current_leader.leader_id) == (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            -1,
        )
        assert values(row(await follower.fetch()).records) == [b"a"]
        node.replica.set_in_contact(True)
        assert (await producer.produce("t", batch(b"c"), acks=1)).error_code == 0


# -- acks


async def test_waiting_produces_get_an_error_when_too_few_replicas_are_in_sync(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        replicated(node, min_insync_replicas="2")
        producer = await produce_without_response(node, b"a")
        node.lead("t", ME, isr=(ME,))
        await run_until_idle()
        (produced,) = producer.responses()
        assert (
            produced.responses[0].partition_responses[0].error_code
            == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        )
        assert (
            await producer.produce("t", batch(b"b"))
        ).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await producer.produce("t", batch(b"c"), acks=1)).error_code == 0
        assert node.partition("t").log.log_end_offset == 2


async def test_a_missing_commit_times_out(tmp_path: Path, mock_clock: MockClock) -> None:
    async with rig(tmp_path) as node:
        replicated(node)
        producer = await produce_without_response(node, b"a")
        mock_clock.jump(10.001)
        await run_until_idle()
        (produced,) = producer.responses()
        assert (
            produced.responses[0].partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        )


async def test_one_ack_waits_for_the_leader_s_own_sync_and_for_no_follower(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        replicated(node, flush_before_ack="true")
        producer = await produce_without_response(node, b"a", acks=1)
        log = node.partition("t").log
        log.on_synced(log.written_end_offset)
        node.replica.on_durable(log)
        await run_until_idle()
        assert len(producer.responses()) == 1
        assert node.partition("t").high_watermark == 0


# -- other requests


async def test_a_new_leader_returns_the_end_when_it_is_known(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        replicated(node, isr=(ME,))
        client = await node.connect()
        await client.produce("t", batch(b"a"))
        node.partition("t").high_watermark = 0  # as on a follower before its next fetch
        node.lead("t", OTHER, isr=(OTHER, ME))
        node.lead("t", ME)
        for version, code in (
            (5, ErrorCode.OFFSET_NOT_AVAILABLE),
            (4, ErrorCode.LEADER_NOT_AVAILABLE),
        ):
            for timestamp in (-1, 1 << 50):
                found = await latest(client, version, timestamp)
                assert found.error_code == code
        assert (await latest(client, 5, -2)).offset == 0
        follower = await Follower.connect(node)
        await follower.fetch(("t", 0, 1), epoch=2)
        assert (await latest(client, 5, -1)).offset == 1


async def latest(client: Client, version: int, timestamp: int) -> Any:
    wanted = {"name": "t", "partitions": [{"partition_index": 0, "timestamp": timestamp}]}
    response = await client.request("list_offsets", version, {"replica_id": -1, "topics": [wanted]})
    return response.topics[0].partitions[0]


async def test_delete_records_responds_after_every_replica_has_deleted(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with rig(tmp_path) as node:
        replicated(node)
        follower, client = await Follower.connect(node), await node.connect()
        await produce_without_response(node, b"a")
        await follower.fetch(("t", 0, 1), log_start_offset=0)
        await follower.park()
        wanted = {"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}
        client.post("delete_records", 2, {"topics": [wanted], "timeout_ms": 5000})
        await run_until_idle()
        assert client.responses() == []
        assert row(follower.response()).log_start_offset == 1
        follower.client.post("fetch", VERSION, follower.body(("t", 0, 1), log_start_offset=1))
        await run_until_idle()
        (response,) = client.responses()
        done = response.topics[0].partitions[0]
        assert (done.low_watermark, done.error_code) == (1, 0)
        wanted["partitions"][0]["offset"] = 1  # type: ignore[index]  # the body is a mapping of objects
        node.partition("t").followers[OTHER].log_start_offset = 0
        client.post("delete_records", 2, {"topics": [wanted], "timeout_ms": 5000})
        await run_until_idle()
        mock_clock.jump(5.001)
        await run_until_idle()
        (response,) = client.responses()
        late = response.topics[0].partitions[0]
        assert (late.low_watermark, late.error_code) == (0, ErrorCode.REQUEST_TIMED_OUT)


async def test_a_parked_follower_gets_the_log_start_after_retention(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        replicated(node)
        follower, log = await Follower.connect(node), node.partition("t").log
        await produce_without_response(node, b"a")
        await follower.fetch(("t", 0, 1), log_start_offset=0)
        await follower.park()
        node.logs.checkpoint_high_watermark(log.topic_partition, 1)
        log.config = replace(log.config, retention_ms=0)
        node.clock.now_ms += 1000
        await node.logs.retain()
        await run_until_idle()
        assert row(follower.response()).log_start_offset == 1


async def test_a_follower_gets_the_log_start_after_its_truncation(
    tmp_path: Path,
) -> None:
    """It applies no log start in a response with a divergence: the leader must not count it as
    sent.
    """
    async with rig(tmp_path) as node:
        replicated(node, isr=(ME,))
        client = await node.connect()
        await client.produce("t", batch(b"a", b"b"))
        node.lead("t", ME)
        await client.produce("t", batch(b"c"))
        node.logs.delete_records(node.partition("t").log, 2)
        follower = await Follower.connect(node)
        got = row(
            await follower.fetch(("t", 0, 3), epoch=1, last_fetched_epoch=0, log_start_offset=0)
        )
        assert got.diverging_epoch.end_offset == 2
        followed = next(
            one for one in node.replica.follower_sessions._sessions[OTHER].partitions.values()
        )
        assert followed.last_sent is None


# -- fetches of many partitions

MANY = 600


async def replicated_many(node: Rig, isr: Sequence[NodeId] = (ME, OTHER)) -> None:
    replicated(node, partitions=MANY, isr=isr)
    await node.publisher._drain(node.image)


async def test_a_large_fetch_acknowledges_and_returns_records(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        await replicated_many(node)
        written = [0, MANY // 2, MANY - 1]
        producers = [
            await produce_without_response(node, b"a", partition=index) for index in written
        ]
        follower = await Follower.connect(node)
        response = await follower.fetch(*(("t", index, 0) for index in range(MANY)))
        assert [one.partition_index for one in rows(response)] == list(range(MANY))
        assert [one.partition_index for one in rows(response) if one.records] == written
        await follower.park(*(("t", index, int(index in written)) for index in range(MANY)))
        assert [len(producer.responses()) for producer in producers] == [1, 1, 1]
        assert [node.partition("t", index).high_watermark for index in written] == [1, 1, 1]


async def test_appends_during_the_plan_of_a_large_fetch_are_returned(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """Written some steps of the event loop after the request, until it is parked; to the first and
    the last partition.
    """
    offsets = [0] * MANY
    edges = [0, MANY - 1]
    async with rig(tmp_path) as node:
        await replicated_many(node, isr=(ME,))
        producer = await node.connect()
        follower = await Follower.connect(node)
        await follower.fetch(*(("t", index, 0) for index in range(MANY)))
        (connection,) = (one for one in node.server._connections if one.peer_node is not None)
        for steps in range(100):
            requested = [("t", index, offsets[index]) for index in range(MANY)]
            follower.client.post("fetch", VERSION, follower.body(*requested, max_wait_ms=10_000))
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            parked = connection.parked is not None
            for index in edges:
                producer.post(
                    "produce", 9, node.produce_body("t", batch(b"a"), partition=index, acks=1)
                )
            await run_until_idle()
            given = [one.partition_index for one in rows(follower.response()) if one.records]
            while sorted(given) != edges:
                more = [one.partition_index for one in rows(await follower.fetch()) if one.records]
                assert more, (steps, given)
                given += more
            for index in edges:
                offsets[index] += 1
            if parked and steps > 5:
                return
        raise AssertionError("never parked")


async def test_a_high_watermark_that_advances_behind_the_plan_is_sent(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    requested = [("t", index, 0) for index in range(MANY)]
    async with rig(tmp_path) as node:
        node.register(THIRD)
        await replicated_many(node, isr=(ME, OTHER, THIRD))
        first, second = await Follower.connect(node), await Follower.connect(node, THIRD)
        await produce_without_response(node, b"a")
        await second.fetch(("t", 0, 0))
        requested[0] = ("t", 0, 1)
        partition = node.partition("t")
        first.client.post("fetch", VERSION, first.body(*requested))
        while partition.followers[OTHER].end_offset < 1:
            await trio.lowlevel.checkpoint()
        assert first.client.responses() == []
        await second.park(("t", 0, 1))
        assert partition.high_watermark == 1
        received = [
            one.high_watermark for one in rows(first.response()) if one.partition_index == 0
        ]
        if received == [0]:
            assert row(await first.fetch()).high_watermark == 1


async def test_a_large_fetch_ends_when_another_session_replaces_it(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    requested = [("t", index, 0) for index in range(MANY)]
    async with rig(tmp_path) as node:
        await replicated_many(node, isr=(ME,))
        first, second = await Follower.connect(node), await Follower.connect(node)
        first.client.post("fetch", VERSION, first.body(*requested))
        while OTHER not in node.replica.follower_sessions._sessions:
            await trio.lowlevel.checkpoint()
        replaced = node.replica.follower_sessions._sessions[OTHER]
        while not replaced.news:
            await trio.lowlevel.checkpoint()
        assert len(rows(await second.fetch(*requested[:1]))) == 1
        assert len(first.client.responses()) == 1
        assert not replaced.partitions and not replaced.news
        watches: list[Any] = [
            watch for index in range(MANY) for watch in node.partition("t", index).watches
        ]
        watching = {watch.session for watch in watches}
        assert watching == {node.replica.follower_sessions._sessions[OTHER]}


async def test_later_requests_of_the_connection_wait_for_a_large_fetch(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        await replicated_many(node)
        follower = await Follower.connect(node)
        follower.client.post(
            "fetch", VERSION, follower.body(*(("t", index, 0) for index in range(MANY)))
        )
        follower.client.post(
            "api_versions", 3, {"client_software_name": "a", "client_software_version": "1"}
        )
        await run_until_idle()
        first, second = follower.client.responses()
        assert len(rows(first)) == MANY
        assert second.error_code == 0
