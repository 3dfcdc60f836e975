"""Markers reach their leaders despite failures, and shards get the results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from mqd.coordinator.shard import Producer
from mqd.coordinator.txn.marker_sender import REQUEST_SECONDS, MarkerSender
from mqd.coordinator.txn.operations import (
    AbortTimedOut,
    MarkersWritten,
    PartitionsSealed,
    SealPartitions,
    SpareProducerId,
    WriteMarkers,
)
from mqd.errors import ErrorCode, MqError
from mqd.io.clock import SystemClock
from mqd.io.entropy import RandomEntropy
from mqd.limits import MARKERS_PER_REQUEST
from mqd.protocol import apis
from mqd.types import NodeId, TopicPartition
from tests.coordinator.txn.transactions import A0, A1, B0

SHARD, EPOCH = 7, 3


def markers(
    id: str = "t", producer_id: int = 4000, *partitions: TopicPartition, committed: bool = True
) -> WriteMarkers:
    return WriteMarkers(id, Producer(producer_id, 1), committed, partitions or (A0, A1, B0), 2)


class Cluster:
    """Leaders, the requests that they received, and the shard."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, int | None] = {A0: 1, A1: 2, B0: 1}
        self.topics = {"a", "b"}
        self.received: list[tuple[int, int, TopicPartition, bool, int]] = []
        """Node, producer id, partition, outcome, coordinator epoch."""
        self.sealed: list[tuple[int, tuple[int, int], TopicPartition, int]] = []
        """Node, producer, partition, coordinator epoch."""
        self.requests: list[tuple[float, int]] = []
        self.markers_requested: list[int] = []
        """The number of markers in each request."""
        self.errors: dict[TopicPartition, list[ErrorCode]] = defaultdict(list)
        """The error codes that a partition returns before it accepts."""
        self.down: set[int] = set()
        self.silent: set[int] = set()
        self.bugs: dict[int, list[Exception]] = defaultdict(list)
        """The failures of requests to a node, in order."""
        self.shard_bugs: list[Exception] = []
        self.unheard_of: list[int] = []
        """Error codes of a later release, returned in place of others."""
        self.reports: list[MarkersWritten | PartitionsSealed] = []
        self.refusals: list[ErrorCode] = []
        """The errors that the shard returns before it accepts the report."""
        self.held = True
        """Whether the shard is led here in that epoch, serving or not."""
        self.left: dict[str, set[TopicPartition]] = {}
        self.aborts: list[AbortTimedOut] = []
        self.sender = MarkerSender(
            leader_of=lambda partition: (
                None if (leader := self.leaders.get(partition)) is None else NodeId(leader)
            ),
            exists=lambda partition: partition.topic in self.topics,
            send=self._send,
            seal=self._seal,
            transactions=self,
            new_producer_id=self._new_producer_id,
            clock=SystemClock(),
            entropy=RandomEntropy(),
        )

    def want(self, wanted: WriteMarkers | SealPartitions, epoch: int = EPOCH) -> None:
        self.left[wanted.transactional_id] = set(wanted.partitions)
        self.sender.perform(SHARD, epoch, wanted)

    async def _new_producer_id(self) -> int:
        await trio.lowlevel.checkpoint()
        return 5000

    async def _seal(self, node: NodeId, request: Mapping[str, Any]) -> Mapping[str, Any]:
        api = apis.by_name("seal_transactions")
        decoded = api.decode_request(0, api.encode_request(0, request))
        await trio.sleep(0.001)
        rows = []
        for one in decoded.seals:
            topics = []
            for topic in one.topics:
                partitions = []
                for index in topic.partition_indexes:
                    partition = TopicPartition(topic.name, index)
                    led = self.leaders[partition] == node
                    if led:
                        self.sealed.append(
                            (
                                node,
                                (one.producer_id, one.producer_epoch),
                                partition,
                                one.coordinator_epoch,
                            )
                        )
                    code = ErrorCode.NONE if led else ErrorCode.NOT_LEADER_OR_FOLLOWER
                    partitions.append({"partition_index": index, "error_code": code})
                topics.append({"name": topic.name, "partitions": partitions})
            rows.append({"producer_id": one.producer_id, "topics": topics})
        response: Mapping[str, Any] = api.decode_response(
            0, api.encode_response(0, {"seals": rows})
        )
        return response

    async def _send(self, node: NodeId, request: Mapping[str, Any]) -> Mapping[str, Any]:
        api = apis.by_name("write_txn_markers")
        assert api is not None
        decoded = api.decode_request(2, api.encode_request(2, request))
        self.requests.append((trio.current_time(), node))
        self.markers_requested.append(
            sum(
                len(topic.partition_indexes)
                for marker in decoded.markers
                for topic in marker.topics
            )
        )
        await trio.sleep(0.001)
        if node in self.silent:
            await trio.sleep_forever()
        if node in self.down:
            raise OSError("refused")
        if self.bugs[node]:
            raise self.bugs[node].pop(0)
        rows = []
        for marker in decoded.markers:
            topics = []
            for topic in marker.topics:
                partitions = []
                for index in topic.partition_indexes:
                    partition = TopicPartition(topic.name, index)
                    code = (
                        self.errors[partition].pop(0) if self.errors[partition] else ErrorCode.NONE
                    )
                    if self.leaders[partition] != node:
                        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                    if code is ErrorCode.NONE:
                        self.received.append(
                            (
                                node,
                                marker.producer_id,
                                partition,
                                marker.transaction_result,
                                marker.coordinator_epoch,
                            )
                        )
                    partitions.append(
                        {
                            "partition_index": index,
                            "error_code": self.unheard_of.pop() if self.unheard_of else code,
                        }
                    )
                topics.append({"name": topic.name, "partitions": partitions})
            rows.append({"producer_id": marker.producer_id, "topics": topics})
        response: Mapping[str, Any] = api.decode_response(
            2, api.encode_response(2, {"markers": rows})
        )
        return response

    async def call_shard(self, index: int, op: Any) -> Mapping[str, Any]:
        assert index == SHARD
        await trio.lowlevel.checkpoint()
        if self.shard_bugs:
            raise self.shard_bugs.pop(0)
        if self.refusals:
            raise MqError(self.refusals.pop(0))
        if isinstance(op, AbortTimedOut):
            self.aborts.append(op)
            return {}
        self.reports.append(op)
        left = self.left[op.transactional_id]
        left.difference_update(op.partitions)
        return {"pending": bool(left)}

    def holds(self, index: int, leader_epoch: int) -> bool:
        assert (index, leader_epoch) in ((SHARD, EPOCH), (SHARD, EPOCH + 1))
        return self.held

    def partitions_notified(self) -> list[TopicPartition]:
        return sorted(partition for _, _, partition, _, _ in self.received)


@asynccontextmanager
async def running() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cluster.sender.run)
        yield cluster
        nursery.cancel_scope.cancel()


async def test_each_leader_gets_one_request_for_all_its_partitions(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as cluster:
        cluster.want(markers(committed=False))
        await trio.sleep(1)
        assert sorted(cluster.received) == [
            (1, 4000, A0, False, EPOCH),
            (1, 4000, B0, False, EPOCH),
            (2, 4000, A1, False, EPOCH),
        ]
        assert sorted(node for _, node in cluster.requests) == [1, 2]
        assert not cluster.left["t"]
        assert not cluster.sender._pending and not cluster.sender._queues, "no state remains"


async def test_no_request_has_more_markers_than_the_bound(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as cluster:
        many = [TopicPartition("a", index) for index in range(2 * MARKERS_PER_REQUEST + 5)]
        cluster.leaders |= dict.fromkeys(many, 1)
        cluster.want(markers("t", 4000, *many))
        cluster.want(markers("u", 5000, B0))
        await trio.sleep(1)
        assert sorted(marker[1:3] for marker in cluster.received) == sorted(
            [*((4000, one) for one in many), (5000, B0)]
        )
        assert len(cluster.requests) == 3 and max(cluster.markers_requested) <= MARKERS_PER_REQUEST
        assert cluster.left == {"t": set(), "u": set()}


async def test_expired_requests_to_a_silent_node_are_not_sent_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """In the first version of the protocol, the next transaction has the same producer: the outcome
    of this one would end it.
    """
    async with running() as cluster:
        cluster.silent.add(1)
        cluster.want(markers("busy", 4001, A0))
        await trio.sleep(0.01)
        cluster.want(markers("t", 4000, B0))
        await trio.sleep(0.01)
        cluster.want(markers("t", 4000, A1, committed=False))
        await trio.sleep(0.01)
        cluster.silent.clear()
        await trio.sleep(REQUEST_SECONDS + 1)
        assert sorted(cluster.received) == [(1, 4001, A0, True, EPOCH), (2, 4000, A1, False, EPOCH)]
        assert not cluster.sender._queues


async def test_markers_that_arrive_during_a_request_are_in_the_next_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as cluster:
        for number in range(MARKERS_PER_REQUEST + 5):
            cluster.want(markers(f"t{number}", number, A0))
        await trio.sleep(1)
        assert len(cluster.received) == MARKERS_PER_REQUEST + 5
        assert len(cluster.requests) == 2
        assert not any(cluster.left.values())


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
async def test_a_partition_that_refuses_is_retried_until_it_accepts(
    error: ErrorCode, autojump_clock: trio.testing.MockClock
) -> None:
    async with running() as cluster:
        cluster.errors[A0] = [error] * 30
        cluster.want(markers())
        await trio.sleep(5)
        assert cluster.partitions_notified() == [A1, B0] and cluster.left["t"] == {A0}
        await trio.sleep(60)
        assert cluster.partitions_notified() == [A0, A1, B0], "the others received one request"
        assert not cluster.left["t"]


async def test_markers_follow_their_partition_to_its_next_leader(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as cluster:
        cluster.down.add(1)
        cluster.want(markers())
        await trio.sleep(3)
        assert cluster.partitions_notified() == [A1]
        cluster.leaders[A0] = cluster.leaders[B0] = None
        await trio.sleep(3)
        requests = len(cluster.requests)
        await trio.sleep(3)
        assert len(cluster.requests) == requests, "there is no leader"
        cluster.leaders[A0] = cluster.leaders[B0] = 3
        await trio.sleep(3)
        assert sorted(cluster.received) == [
            (2, 4000, A1, True, EPOCH),
            (3, 4000, A0, True, EPOCH),
            (3, 4000, B0, True, EPOCH),
        ]
        assert not cluster.left["t"]


async def test_a_node_that_does_not_respond_delays_no_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as cluster:
        cluster.silent.add(1)
        cluster.want(markers())
        await trio.sleep(1)
        assert cluster.partitions_notified() == [A1]
        cluster.silent.clear()
        await trio.sleep(REQUEST_SECONDS + 1)
        assert cluster.partitions_notified() == [A0, A1, B0]


async def test_deleted_partitions_need_no_marker(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as cluster:
        cluster.topics.remove("b")
        cluster.errors[A0] = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000
        cluster.want(markers())
        await trio.sleep(2)
        assert cluster.left["t"] == {A0}
        cluster.topics.remove("a")
        await trio.sleep(2)
        assert not cluster.left["t"] and cluster.partitions_notified() == [A1]


async def test_a_newer_coordinator_ends_the_sending(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as cluster:
        cluster.errors[A0] = [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
        cluster.errors[A1] = [ErrorCode.NOT_ENOUGH_REPLICAS] * 1000
        cluster.want(markers())
        await trio.sleep(5)
        requests = len(cluster.requests)
        await trio.sleep(60)
        assert len(cluster.requests) == requests
        assert A1 not in cluster.partitions_notified()


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
)
async def test_effects_of_a_removed_shard_are_dropped(
    code: ErrorCode, autojump_clock: trio.testing.MockClock
) -> None:
    async with running() as cluster:
        cluster.errors[A0] = [ErrorCode.NOT_ENOUGH_REPLICAS] * 1000
        cluster.refusals = [code] * 1000
        cluster.held = False
        cluster.want(markers())
        await trio.sleep(20)
        requests = len(cluster.requests)
        await trio.sleep(60)
        assert len(cluster.requests) == requests and not cluster.sender._pending


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
)
async def test_effects_of_a_paused_shard_are_kept(
    code: ErrorCode, autojump_clock: trio.testing.MockClock
) -> None:
    """A node out of contact with the controller refuses requests and stays leader: no shard is
    loaded that would request the marker again.
    """
    async with running() as cluster:
        cluster.errors[A0] = [ErrorCode.NOT_ENOUGH_REPLICAS] * 20
        cluster.refusals = [code] * 20
        cluster.want(markers())
        await trio.sleep(60)
        assert cluster.partitions_notified() == [A0, A1, B0] and not cluster.left["t"]


async def test_an_effect_requested_again_in_the_same_epoch_is_carried_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its append was refused, so that it was loaded again: its record of sent markers is lost."""
    async with running() as cluster:
        cluster.refusals = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 1000
        cluster.want(markers())
        await trio.sleep(1)
        assert cluster.left["t"]
        cluster.refusals.clear()
        cluster.want(markers())
        await trio.sleep(1)
        assert not cluster.left["t"]


async def test_a_report_that_is_not_committed_is_repeated(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as cluster:
        cluster.refusals = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 10
        cluster.want(markers())
        await trio.sleep(10)
        assert not cluster.left["t"] and len(cluster.requests) == 2


async def test_the_next_transaction_replaces_the_previous_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as cluster:
        cluster.errors[A0] = [ErrorCode.NOT_ENOUGH_REPLICAS] * 3
        cluster.want(markers("t", 4000, A0), EPOCH)
        await trio.sleep(0.01)
        cluster.want(markers("t", 4001, A0), EPOCH + 1)
        await trio.sleep(10)
        assert [(id_, epoch) for _, id_, _, _, epoch in cluster.received] == [(4001, EPOCH + 1)]


async def test_an_effect_without_partitions_completes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as cluster:
        nobody = WriteMarkers("t", Producer(4000, 1), False, (), 2)
        cluster.refusals = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
        cluster.want(nobody)
        await trio.sleep(5)
        assert [report.partitions for report in cluster.reports] == [()]
        assert not cluster.requests and not cluster.sender._pending


async def test_a_spare_producer_id_is_fetched(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as cluster:
        cluster.sender.perform(SHARD, EPOCH, SpareProducerId("t", Producer(4000, 32766)))
        await trio.sleep(1)
        assert cluster.aborts == [AbortTimedOut("t", Producer(4000, 32766), 5000)]


async def test_a_bug_at_one_node_delays_no_other_node(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as cluster:
        cluster.bugs[1] = [KeyError("topics"), ValueError("nonsense"), AssertionError("bug")]
        cluster.want(markers())
        await trio.sleep(30)
        assert cluster.partitions_notified() == [A0, A1, B0] and not cluster.left["t"]
        assert cluster.received[0][0] == 2, "at once"
    assert caplog.text.count("cannot send markers, will retry node=1 transactions=1") == 3


async def test_an_error_code_of_a_later_release_is_retried(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as cluster:
        cluster.unheard_of = [9999]
        cluster.want(markers())
        await trio.sleep(30)
        assert not cluster.left["t"] and not cluster.sender._pending


async def test_a_bug_in_a_shard_delays_no_other_shard(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as cluster:
        cluster.shard_bugs = [AssertionError("bug")] * 3
        cluster.want(markers("t"))
        cluster.sender.perform(SHARD, EPOCH, SpareProducerId("u", Producer(4000, 32766)))
        await trio.sleep(30)
        assert not cluster.left["t"]
        cluster.sender.perform(SHARD, EPOCH, SpareProducerId("u", Producer(4000, 32766)))
        await trio.sleep(1)
        assert cluster.aborts, "it continues"
    assert "cannot report markers to a shard, will retry transactional_id=t" in caplog.text


# -- seals (KIP-939)


def seals(id: str = "t", producer_id: int = 4000, *partitions: TopicPartition) -> SealPartitions:
    return SealPartitions(id, Producer(producer_id, 1), partitions or (A0, A1, B0))


async def test_seals_reach_their_leaders_and_the_shard_gets_the_results(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as cluster:
        cluster.leaders[A1] = None
        cluster.want(seals())
        await trio.sleep(1)
        assert cluster.left["t"] == {A1}
        cluster.leaders[A1] = 2
        await trio.sleep(10)
        producer = (4000, 1)
        assert sorted(cluster.sealed) == [
            (1, producer, A0, EPOCH),
            (1, producer, B0, EPOCH),
            (2, producer, A1, EPOCH),
        ]
        assert cluster.left["t"] == set() and all(
            isinstance(one, PartitionsSealed) for one in cluster.reports
        )
        assert not cluster.received


async def test_seals_and_markers_for_one_node_use_separate_requests(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as cluster:
        cluster.want(markers("busy", 4001, B0))
        await trio.sleep(0.0005)
        for number in range(4):
            cluster.want(seals(f"s{number}", 5000 + number, A0))
            cluster.want(markers(f"m{number}", 6000 + number, A0))
        await trio.sleep(5)
        assert [producer[0] for _, producer, _, _ in cluster.sealed] == [5000, 5001, 5002, 5003]
        assert [marker[1] for marker in cluster.received] == [4001, 6000, 6001, 6002, 6003]
        assert not any(cluster.left.values())


async def test_an_outcome_replaces_a_seal(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as cluster:
        cluster.leaders[A0] = None
        cluster.want(seals("t", 4000, A0))
        await trio.sleep(1)
        cluster.want(markers("t", 4000, A0))
        cluster.leaders[A0] = 1
        await trio.sleep(10)
        assert not cluster.sealed and [marker[1] for marker in cluster.received] == [4000]
        assert not cluster.sender._pending
