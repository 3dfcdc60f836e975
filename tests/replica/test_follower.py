"""What a follower requests from a leader, request by request, and how it applies the responses."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from mqd.errors import ErrorCode, MqError
from mqd.log.disk.sync_plan import plan_sync
from mqd.log.log_config import LogConfig
from mqd.protocol.hot_fetch_request import FetchPartition, FetchRequest
from mqd.protocol.hot_follower import FetchedPartition, FetchedTopics
from mqd.replica.assignment import Assignment
from mqd.replica.follower import (
    FIRST_BACKOFF_SECONDS,
    THROTTLED_SECONDS,
    AppendRecords,
    Follower,
    FollowerOptions,
    PartitionFetchState,
    Reset,
    Truncate,
)
from mqd.replica.partition import Partition
from mqd.replica.throttle import EVERY_PARTITION, Throttle
from mqd.types import NodeId, TopicPartition
from tests.log.support import TOPIC_ID, Harness, batch
from tests.replica.followers import request_of

LEADER, ME = NodeId(1), NodeId(2)
OPTIONS = FollowerOptions(
    partition_bytes_max=1000,
    response_bytes_max=5000,
    bytes_min=1,
    wait_seconds_max=0.5,
    backoff_seconds=0.1,
)


class Scripted:
    """Partitions that node 2 follows, and a leader whose responses the test defines."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.throttle = Throttle()
        self.core = Follower(LEADER, ME, OPTIONS, self.throttle)
        self.now = 0.0

    def partition(self, index: int, epoch: int = 3, config: LogConfig | None = None) -> Partition:
        log = self.harness.open(config, TopicPartition("orders", index))
        partition = Partition(ME, log, self.assignment(index, 0), 1)
        partition.assign(self.assignment(index, epoch), 1)
        return partition

    def assignment(self, index: int, epoch: int) -> Assignment:
        nodes = (LEADER, ME)
        return Assignment(
            TopicPartition("orders", index),
            TOPIC_ID,
            LEADER,
            epoch,
            nodes,
            nodes,
            partition_epoch=epoch,
        )

    def request(self) -> FetchRequest:
        body = self.core.next_request(77, self.now)
        assert body is not None
        return request_of(body)

    def requested(self) -> tuple[int, int, list[tuple[int, int, int]], list[int]]:
        """(session, epoch, [(partition, leader epoch, offset)], forgotten) of the next request."""
        request = self.request()
        requested = [
            (one.partition, one.current_leader_epoch, one.fetch_offset)
            for _, _, rows in request.topics
            for one in rows
        ]
        return (
            request.session_id,
            request.session_epoch,
            requested,
            [one for _, _, rows in request.forgotten for one in rows],
        )

    def answer(
        self, *rows: FetchedPartition, session: int = 9, error: int = 0
    ) -> list[AppendRecords | Truncate | Reset]:
        return self.core.on_response(
            FetchedTopics(0, error, session, [(TOPIC_ID.bytes, list(rows))] if rows else []),
            self.now,
        )


def row(
    partition: int = 0,
    error: int = 0,
    high_watermark: int = 0,
    start: int = 0,
    diverging: tuple[int, int] | None = None,
    data: bytes = b"",
) -> FetchedPartition:
    return FetchedPartition(partition, error, high_watermark, start, diverging, memoryview(data))


@pytest.fixture
async def scripted(tmp_path: Path) -> Scripted:
    harness = Harness(tmp_path)
    await harness.service.start()
    return Scripted(harness)


async def test_a_request_has_the_ends_of_the_log(scripted: Scripted) -> None:
    partition = scripted.partition(0)
    scripted.harness.write(partition.log, batch(b"a"), batch(b"b", b"c"), epoch=2)
    scripted.core.follow(partition)
    request = scripted.request()
    assert (request.replica_id, request.replica_epoch) == (ME, 77)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level) == (
        500,
        1,
        5000,
        0,
    )
    [(_, topic_id, [requested])] = request.topics
    assert topic_id == TOPIC_ID.bytes
    assert requested == FetchPartition(0, 3, 3, 2, 0, 1000, bytes(16), 2**63 - 1)


async def test_a_session_names_only_changed_partitions(scripted: Scripted) -> None:
    first, second = scripted.partition(0), scripted.partition(1)
    scripted.core.follow(first)
    scripted.core.follow(second)
    assert scripted.requested() == (0, 0, [(0, 3, 0), (1, 3, 0)], [])
    actions = scripted.answer(row(0, data=b"x", high_watermark=5), row(1))
    assert [type(action) for action in actions] == [AppendRecords, AppendRecords]
    scripted.harness.write(first.log, batch(b"x"), epoch=3)
    assert scripted.requested() == (9, 1, [(0, 3, 1)], [])
    scripted.answer()
    assert scripted.requested() == (9, 2, [], [])
    scripted.answer(row(1, high_watermark=7))
    assert scripted.requested() == (9, 3, [], []), "a high watermark changes nothing in the request"
    scripted.answer()
    scripted.core.unfollow(first)
    assert scripted.requested() == (9, 4, [], [0])
    scripted.answer()
    scripted.harness.write(second.log, batch(b"x"), epoch=3)
    scripted.harness.service.delete_records(second.log, 1)
    scripted.answer(row(1, start=1))
    assert scripted.request().topics[0][2][0].log_start_offset == 1
    scripted.core.unfollow(second)
    assert scripted.core.next_request(77, 0.0) is None


@pytest.mark.parametrize(
    "code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH]
)
async def test_a_lost_session_is_opened_again(scripted: Scripted, code: ErrorCode) -> None:
    for index in range(2):
        scripted.core.follow(scripted.partition(index))
    scripted.requested()
    scripted.answer(row(0), row(1))
    assert scripted.requested() == (9, 1, [], [])
    assert scripted.answer(session=0, error=code) == []
    assert scripted.requested() == (0, 0, [(0, 3, 0), (1, 3, 0)], [])
    scripted.answer(row(0), session=10)
    scripted.core.disconnected()
    assert scripted.requested()[:2] == (0, 0)


async def test_without_a_session_every_request_is_complete(scripted: Scripted) -> None:
    scripted.core.follow(scripted.partition(0))
    for _ in range(3):
        assert scripted.requested() == (0, 0, [(0, 3, 0)], [])
        assert len(scripted.answer(row(0), session=0)) == 1


async def test_a_refused_request_is_an_error(scripted: Scripted) -> None:
    scripted.core.follow(scripted.partition(0))
    scripted.requested()
    with pytest.raises(MqError) as caught:
        scripted.answer(session=0, error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert caught.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
async def test_after_an_error_a_partition_pauses_outside_the_session(
    scripted: Scripted, code: ErrorCode
) -> None:
    scripted.core.follow(scripted.partition(0))
    scripted.core.follow(scripted.partition(1))
    scripted.requested()
    pauses = []
    for _ in range(5):
        assert scripted.answer(row(0, error=code)) == []
        assert scripted.requested()[2:] == ([], [0])
        pauses.append(scripted.core.next_ready_at() - scripted.now)
        scripted.now = scripted.core.next_ready_at()
        scripted.answer()
        assert scripted.requested()[2:] == ([(0, 3, 0)], [])
    assert pauses == pytest.approx(
        [FIRST_BACKOFF_SECONDS, 2 * FIRST_BACKOFF_SECONDS, 4 * FIRST_BACKOFF_SECONDS, 0.1, 0.1]
    )
    scripted.answer(row(0, high_watermark=1))
    scripted.requested()
    scripted.answer(row(0, error=code))
    assert scripted.core.next_ready_at() - scripted.now == pytest.approx(FIRST_BACKOFF_SECONDS), (
        "a fetch succeeded in between"
    )


async def test_newer_metadata_ends_the_pause(scripted: Scripted) -> None:
    partition = scripted.partition(0)
    scripted.core.follow(partition)
    scripted.requested()
    scripted.answer(row(0, error=ErrorCode.UNKNOWN_LEADER_EPOCH))
    assert scripted.core.next_request(77, scripted.now) is None
    assert not scripted.core.follow(partition), "the same assignment again changes nothing"
    partition.assign(scripted.assignment(0, 4), 1)
    assert scripted.core.follow(partition)
    assert scripted.core.next_ready_at() == -math.inf
    assert scripted.requested()[2] == [(0, 4, 0)]


async def test_responses_for_partitions_followed_before_are_dropped(scripted: Scripted) -> None:
    partition, other = scripted.partition(0), scripted.partition(1)
    scripted.core.follow(partition)
    scripted.core.follow(other)
    scripted.requested()
    partition.assign(scripted.assignment(0, 4), 1)
    scripted.core.follow(partition)
    scripted.core.unfollow(other)
    assert (
        scripted.answer(row(0, data=b"old"), row(1, data=b"old"), row(5, data=b"never asked")) == []
    )
    assert scripted.requested()[2:] == ([(0, 4, 0)], [1])


async def test_offsets_that_the_leader_has_deleted_reset_the_log(scripted: Scripted) -> None:
    partition = scripted.partition(0)
    scripted.harness.write(partition.log, batch(b"a"), epoch=2)
    scripted.core.follow(partition)
    scripted.requested()
    [action] = scripted.answer(
        row(0, error=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=20, start=10)
    )
    assert isinstance(action, Reset) and action.offset == 10
    service = scripted.harness.service
    service.reset(partition.log, 10)
    assert scripted.core.unsynced() == [partition]
    assert scripted.core.next_request(77, scripted.now) is None, (
        "a power cut could leave a directory without its files"
    )
    plan = plan_sync(scripted.harness.disk, partition.log, whole=True)
    plan.run(scripted.harness.disk)
    service.after_sync(plan)
    scripted.now = scripted.core.next_ready_at()
    assert scripted.core.unsynced() == []
    assert scripted.requested()[2] == [(0, 3, 10)]
    assert scripted.answer(row(0, error=ErrorCode.OFFSET_OUT_OF_RANGE, start=-1)) == [], (
        "the response has no log start"
    )
    assert scripted.core.next_ready_at() > scripted.now


async def test_a_divergence_is_truncated_at_the_smaller_end_offset(
    scripted: Scripted,
) -> None:
    partition = scripted.partition(0, epoch=9)
    for epoch, count in ((1, 3), (4, 2), (6, 2)):
        for _ in range(count):
            scripted.harness.write(partition.log, batch(b"a"), epoch=epoch)
    scripted.core.follow(partition)
    for diverging, offset in [
        ((6, 6), 6),
        ((5, 9), 5),
        ((4, 4), 4),
        ((3, 9), 3),
        ((1, 2), 2),
        ((0, 0), 0),
    ]:
        scripted.requested()
        [action] = scripted.answer(row(0, diverging=diverging))
        assert isinstance(action, Truncate) and action.offset == offset, diverging
        assert scripted.requested()[2], "named again, though nothing changed"
        scripted.answer()


async def test_an_unusable_response_is_requested_again(scripted: Scripted) -> None:
    partition = scripted.partition(0)
    scripted.core.follow(partition)
    scripted.requested()
    [action] = scripted.answer(row(0, data=b"damaged"))
    assert isinstance(action, AppendRecords)
    scripted.core.postpone(action.state, scripted.now)
    scripted.now = scripted.core.next_ready_at()
    assert scripted.requested()[2] == [(0, 3, 0)], (
        "the offset is unchanged, and a session would leave it out"
    )


async def test_the_next_records_are_fetched_after_the_required_sync(
    scripted: Scripted,
) -> None:
    partition = scripted.partition(0, config=LogConfig(flush_before_ack=True))
    scripted.core.follow(partition)
    assert scripted.requested()[2] == [(0, 3, 0)]
    scripted.answer(row(0, data=b"x"))
    scripted.harness.write(partition.log, batch(b"a"), epoch=3)
    assert scripted.core.unsynced() == [partition]
    assert scripted.core.next_request(77, scripted.now) is None
    partition.log.on_synced(1)
    scripted.now = scripted.core.next_ready_at()
    assert scripted.core.unsynced() == []
    assert scripted.requested()[2] == [(0, 3, 1)]


async def test_a_throttled_replica_that_lags_waits(scripted: Scripted) -> None:
    partition, other = scripted.partition(0), scripted.partition(1)
    scripted.throttle.set_rate(10)
    scripted.throttle.set_partitions("orders", frozenset({0}))
    scripted.core.follow(partition)
    scripted.core.follow(other)
    assert scripted.requested()[2] == [(0, 3, 0), (1, 3, 0)]
    [action] = scripted.answer(row(0, data=b"x", high_watermark=9))
    scripted.throttle.record(1000, scripted.now)
    assert scripted.requested()[2:] == ([], [0])
    assert scripted.core.next_ready_at() == scripted.now + THROTTLED_SECONDS
    action.state.is_behind = False
    scripted.now += THROTTLED_SECONDS
    scripted.answer()
    assert scripted.requested()[2] == [(0, 3, 0)], "a replica in the ISR is not throttled"
    scripted.throttle.set_partitions("orders", EVERY_PARTITION)


async def test_the_cost_of_a_request_depends_on_its_rows(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(20):
        scripted.core.follow(scripted.partition(index))
    scripted.requested()
    scripted.answer(*(row(index) for index in range(20)))
    scripted.requested()
    scripted.answer(row(7))
    looked: list[int] = []

    def note(followed: PartitionFetchState, partition_bytes_max: int) -> None:
        looked.append(followed.key[1])

    monkeypatch.setattr("mqd.replica.follower.PartitionFetchState.request_row", note)
    scripted.core.next_request(77, 0.0)
    assert looked == [7]
