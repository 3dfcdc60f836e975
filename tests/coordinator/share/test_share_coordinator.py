"""The share coordinator: who may write, what a later leader reads, and how the log stays short."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import pytest

from mqd.coordinator.share import shard as share_shard
from mqd.coordinator.share.operations import (
    DeleteState,
    InitializeState,
    PruneLog,
    ReadState,
    ReadSummary,
    WriteState,
)
from mqd.coordinator.share.records import (
    ShareSnapshot,
    ShareUpdate,
    decode,
    encode,
    tombstone,
)
from mqd.coordinator.share.shard import ShareShard
from mqd.errors import ErrorCode, MqError
from mqd.share.ports import ShareKey
from mqd.share.record_states import Batch, RecordState
from tests.coordinator.group.support import Options, Topics
from tests.coordinator.harness import Harness

ACKNOWLEDGED, AVAILABLE = RecordState.ACKNOWLEDGED, RecordState.AVAILABLE


class Coordinator:
    """One shard with the topic `orders` of two partitions."""

    def __init__(self, **options: Any) -> None:
        self.topics = Topics({"orders": 2})
        topic_id = self.topics.topic_id("orders")
        assert topic_id is not None
        self.key = ShareKey("g", topic_id, 0)
        self.options = Options(**options)
        self.harness = Harness(self.shard)

    def shard(self) -> ShareShard:
        """An empty one."""
        return ShareShard(self.topics, self.options, 0)

    def __call__(self, op: Any) -> Any:
        return self.harness.answer(self.harness.operate(op))

    def initialize(self, start_offset: int = 0, epoch: int = 0) -> None:
        self(InitializeState(self.key, epoch, start_offset))

    def write(self, *batches: Batch, start: int = -1, leader: int = 1, state: int = 0) -> None:
        self(WriteState(self.key, state, leader, start, 7, batches))

    def read(self, leader: int = 1) -> tuple[int, tuple[Batch, ...]]:
        found = self(ReadState(self.key, leader))
        return found["start_offset"], found["batches"]

    def refused(self, op: Any) -> ErrorCode:
        with pytest.raises(MqError) as raised:
            self(op)
        return raised.value.code


def test_records_are_those_of_kafka() -> None:
    key = ShareKey("g", UUID(int=5), 3)
    batches = (Batch(1, 2, ACKNOWLEDGED, 1), Batch(4, 4, AVAILABLE, 2))
    snapshot = ShareSnapshot(1, 2, 3, 4, 5, 6, 7, batches)
    update = ShareUpdate(1, 2, -1, -1, batches)
    for value in (snapshot, update):
        assert decode(encode(key, value)) == (key, value)
    assert decode(tombstone(key)) == (key, None)
    # ShareUpdateKey, and ShareUpdateValue without the tag of an unknown count
    record = encode(key, ShareUpdate(1, 2, 9, -1, ()))
    assert record.key.hex() == "0001" + "000167" + UUID(int=5).hex + "00000003"
    assert record.value is not None
    assert record.value.hex() == "0000" + "00000001" + "00000002" + "0000000000000009" + "01" + "00"


def test_a_share_partition_is_created_once() -> None:
    coordinator = Coordinator()
    assert coordinator.refused(ReadState(coordinator.key, 1)) is ErrorCode.INVALID_REQUEST
    assert coordinator(ReadSummary(coordinator.key))["start_offset"] == -1
    coordinator.initialize(start_offset=-1)
    coordinator.write(start=5)
    coordinator.initialize(start_offset=-1)
    assert coordinator.read() == (5, ())
    unknown = coordinator.key._replace(partition=2)
    assert (
        coordinator.refused(InitializeState(unknown, 0, 0)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_a_former_leader_cannot_write() -> None:
    coordinator = Coordinator()
    coordinator.initialize()
    assert coordinator.read(leader=3) == (0, ())
    for _ in range(2):
        stale = WriteState(coordinator.key, 0, 2, -1, 0, (Batch(0, 0, ACKNOWLEDGED, 1),))
        assert coordinator.refused(stale) is ErrorCode.FENCED_LEADER_EPOCH
        assert coordinator.refused(ReadState(coordinator.key, 2)) is ErrorCode.FENCED_LEADER_EPOCH
        coordinator.harness.fail_over()


@pytest.mark.parametrize(
    "batch",
    [
        Batch(-1, 0, ACKNOWLEDGED, 1),
        Batch(3, 2, ACKNOWLEDGED, 1),
        Batch(0, 0, RecordState.ACQUIRED, 1),
        Batch(0, 0, AVAILABLE, -1),
    ],
)
def test_invalid_batches_are_refused(batch: Batch) -> None:
    coordinator = Coordinator()
    coordinator.initialize()
    write = WriteState(coordinator.key, 0, 1, -1, 0, (batch,))
    assert coordinator.refused(write) is ErrorCode.INVALID_REQUEST
    assert coordinator.refused(write._replace(batches=(), start_offset=-2)) is (
        ErrorCode.INVALID_REQUEST
    )
    unset = InitializeState(coordinator.key, 1, -2)
    assert coordinator.refused(unset) is ErrorCode.INVALID_REQUEST


def test_a_new_state_epoch_ends_the_former_state() -> None:
    coordinator = Coordinator()
    coordinator.initialize()
    coordinator.write(Batch(0, 4, ACKNOWLEDGED, 1))
    coordinator.initialize(start_offset=2, epoch=1)
    assert coordinator.read() == (2, ())
    stale = WriteState(coordinator.key, 0, 1, -1, 0, ())
    assert coordinator.refused(stale) is ErrorCode.FENCED_STATE_EPOCH
    assert (
        coordinator.refused(InitializeState(coordinator.key, 0, 0)) is ErrorCode.FENCED_STATE_EPOCH
    )


def test_the_start_offset_moves_behind_records_that_are_done() -> None:
    coordinator = Coordinator()
    coordinator.initialize()
    coordinator.write(Batch(2, 3, ACKNOWLEDGED, 1), Batch(5, 5, AVAILABLE, 2))
    assert coordinator.read() == (
        0,
        (Batch(2, 3, ACKNOWLEDGED, 0), Batch(5, 5, AVAILABLE, 2)),
    )
    coordinator.write(Batch(0, 1, ACKNOWLEDGED, 1))
    assert coordinator.read() == (4, (Batch(5, 5, AVAILABLE, 2),))
    coordinator.harness.fail_over()
    assert coordinator.read() == (4, (Batch(5, 5, AVAILABLE, 2),))


def test_a_snapshot_never_moves_the_start_offset_back() -> None:
    """The leader may have computed its start offset before it knew that other records are done."""
    coordinator = Coordinator(**{"share.coordinator.snapshot.update.records.per.snapshot": 2})
    coordinator.initialize()
    coordinator.write(Batch(0, 3, ACKNOWLEDGED, 1), start=0)
    coordinator.write(Batch(5, 5, AVAILABLE, 1), start=0)
    assert coordinator.read() == (4, (Batch(5, 5, AVAILABLE, 1),))


def test_a_deleted_state_and_that_of_a_deleted_topic_are_gone() -> None:
    coordinator = Coordinator()
    coordinator.initialize()
    coordinator(DeleteState(coordinator.key))
    coordinator(DeleteState(coordinator.key))
    assert coordinator.refused(ReadState(coordinator.key, 1)) is ErrorCode.INVALID_REQUEST
    coordinator.initialize()
    coordinator.topics.delete("orders")
    coordinator.harness.metadata_changed()
    assert coordinator.harness.shard.recount() == 0
    assert coordinator.harness.read_again().recount() == 0


def test_updates_become_a_snapshot() -> None:
    coordinator = Coordinator(**{"share.coordinator.snapshot.update.records.per.snapshot": 3})
    coordinator.initialize()
    for offset in range(10):
        coordinator.write(Batch(2 * offset + 1, 2 * offset + 1, ACKNOWLEDGED, 1))
    kinds = [
        type(decode(record)[1])
        for record, _ in coordinator.harness.log
        if not isinstance(record, bool)
    ]
    assert kinds.count(ShareSnapshot) == 4
    before = coordinator.read()
    coordinator.harness.fail_over()
    assert coordinator.read() == before


def test_a_round_replaces_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_shard, "_ROUND_BYTES_MIN", 1_000)
    monkeypatch.setattr(share_shard, "_ROUND_GROWTH", 0)
    coordinator = Coordinator()
    coordinator.initialize()
    other = coordinator.key._replace(partition=1)
    coordinator(InitializeState(other, 0, 3))
    for offset in range(50):
        coordinator.write(Batch(offset, offset, ACKNOWLEDGED, 1))
    harness = coordinator.harness
    end = len(harness.log)
    harness.advance(0.06)
    assert harness.effects == [PruneLog(1, begins=True)]
    assert len(harness.log) == end, "the round begins without records"
    coordinator.write(Batch(60, 60, AVAILABLE, 1))
    harness.advance(1.0)
    assert harness.effects == [PruneLog(1, begins=True), PruneLog(1, begins=False)]
    del harness.log[:end]
    harness.fail_over()
    assert coordinator.read() == (50, (Batch(60, 60, AVAILABLE, 1),))
    assert coordinator(ReadSummary(other))["start_offset"] == 3


@pytest.mark.parametrize("seed", range(10))
def test_the_state_is_the_replay_of_the_log(seed: int) -> None:
    dice = Random(seed)
    coordinator = Coordinator(**{"share.coordinator.snapshot.update.records.per.snapshot": 4})
    coordinator.initialize()
    done: set[int] = set()
    for _ in range(60):
        batches, offset = [], 0
        for _ in range(dice.randint(1, 4)):
            first = offset + dice.randint(0, 5)
            last = first + dice.randint(0, 4)
            offset = last + 1
            state = dice.choice((ACKNOWLEDGED, AVAILABLE, RecordState.ARCHIVED))
            if not done.isdisjoint(range(first, last + 1)):
                continue  # a leader does not write them again
            if state is not AVAILABLE:
                done.update(range(first, last + 1))
            batches.append(Batch(first, last, state, dice.randint(1, 5)))
        coordinator.write(*batches)
        start, stored = coordinator.read()
        found = {one for b in stored if b.state is not AVAILABLE for one in range(b[0], b[1] + 1)}
        assert found | set(range(start)) == done | set(range(start))
        again = coordinator.harness.read_again()
        assert again.recount() == coordinator.harness.shard.recount()
        shard = coordinator.harness.shard
        assert shard.account.exact == shard.recount()
        if dice.random() < 0.1:
            coordinator.harness.fail_over()
            assert coordinator.read() == (start, stored)
