"""Values that no leader writes: refused in requests, capped in logs. The state is always encodable,
and its size has a bound (I67)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from mqd.coordinator.shard import Moment
from mqd.coordinator.share import shard as share_shard
from mqd.coordinator.share.operations import (
    InitializeState,
    PruneLog,
    ReadSummary,
    WriteState,
)
from mqd.coordinator.share.records import ShareSnapshot, ShareUpdate, decode, encode
from mqd.coordinator.share.shard import ShareShard
from mqd.errors import ErrorCode
from mqd.limits import SHARE_CHANGE_BATCHES_MAX, SHARE_OFFSET_MAX, SHARE_STATE_RANGES_MAX
from mqd.share.ports import ShareKey
from mqd.share.record_states import Batch, RecordState
from tests.coordinator.share.test_share_coordinator import Coordinator

ACKNOWLEDGED, AVAILABLE = RecordState.ACKNOWLEDGED, RecordState.AVAILABLE
MOST = 2**63 - 1


def write(key: ShareKey, *batches: Batch, start: int = -1, done: int = 0) -> WriteState:
    return WriteState(key, 0, 1, start, done, batches)


@pytest.mark.parametrize(
    "batches",
    [
        (Batch(MOST, MOST, ACKNOWLEDGED, 1),),
        (Batch(-1, 3, ACKNOWLEDGED, 1),),
        (Batch(4, 3, ACKNOWLEDGED, 1),),
        (Batch(0, 3, RecordState.ACQUIRED, 1),),
        (Batch(0, 3, AVAILABLE, -1),),
        (Batch(0, 3, AVAILABLE, 2**15),),
        (Batch(0, 3, RecordState.DELAYED, 1, 5),),
        (Batch(0, 3, AVAILABLE, 1, -5),),
        (Batch(0, 3, ACKNOWLEDGED, 1, 5),),
        (Batch(0, 9, ACKNOWLEDGED, 1), Batch(5, 12, AVAILABLE, 1)),
        (Batch(5, 12, AVAILABLE, 1), Batch(0, 9, ACKNOWLEDGED, 1)),
    ],
)
def test_impossible_batches_are_refused(batches: tuple[Batch, ...]) -> None:
    coordinator = Coordinator()
    coordinator.initialize(0)
    assert coordinator.refused(write(coordinator.key, *batches)) is ErrorCode.INVALID_REQUEST
    assert coordinator.read() == (0, ())


@pytest.mark.parametrize("offset", [-2, MOST])
def test_impossible_start_offsets_are_refused(offset: int) -> None:
    coordinator = Coordinator()
    refused = coordinator.refused(InitializeState(coordinator.key, 0, offset))
    assert refused is ErrorCode.INVALID_REQUEST
    coordinator.initialize(0)
    refused = coordinator.refused(write(coordinator.key, start=offset))
    assert refused is ErrorCode.INVALID_REQUEST


def test_batches_of_several_members_need_not_be_in_order() -> None:
    coordinator = Coordinator()
    coordinator.initialize(0)
    coordinator.write(Batch(20, 29, ACKNOWLEDGED, 1), Batch(5, 9, ACKNOWLEDGED, 1))
    found = (Batch(5, 9, ACKNOWLEDGED, 0), Batch(20, 29, ACKNOWLEDGED, 0))
    assert coordinator.read() == (0, found)


@pytest.mark.parametrize(("done", "stored"), [(2**40, 2**31 - 1), (-5, -1)])
def test_the_count_of_done_records_is_capped(done: int, stored: int) -> None:
    coordinator = Coordinator()
    coordinator.initialize(0)
    coordinator(write(coordinator.key, done=done))
    assert coordinator(ReadSummary(coordinator.key))["delivery_complete_count"] == stored


def test_the_last_offsets_can_be_acknowledged_and_snapshotted() -> None:
    coordinator = Coordinator()
    coordinator.initialize(SHARE_OFFSET_MAX)
    last = Batch(SHARE_OFFSET_MAX, SHARE_OFFSET_MAX, ACKNOWLEDGED, 1)
    for _ in range(3):
        coordinator(write(coordinator.key, last))
    assert coordinator.read() == (MOST, ())


def poisoned(key: ShareKey) -> list[Any]:
    """A log of an earlier release."""
    last = Batch(MOST, MOST, ACKNOWLEDGED, 1)
    return [
        encode(key, ShareSnapshot(0, 0, 0, 0, -1, 0, 0, ())),
        encode(key, ShareUpdate(0, 1, MOST, 2**31 - 1, (last,))),
        encode(key, ShareUpdate(0, 1, -1, -7, (Batch(-9, -3, RecordState.ACQUIRED, -1), last))),
    ]


def rounds_of(shard: ShareShard) -> list[PruneLog]:
    """Let the shard do what is due for a minute. Returns its effects."""
    effects: list[Any] = []
    now = 0.0
    shard.on_loaded(Moment(now, 0))
    while shard.next_deadline() is not None and now < 60:
        now = max(now, shard.next_deadline() or 0)
        result = shard.on_deadline(Moment(now, 0))
        for record in result.records:
            shard.replay(record)
        effects += result.effects
    return effects


def test_a_log_with_impossible_values_is_snapshotted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_shard, "_ROUND_BYTES_MIN", 1)
    monkeypatch.setattr(share_shard, "_ROUND_GROWTH", 0)
    coordinator = Coordinator()
    shard = coordinator.shard()
    for record in poisoned(coordinator.key):
        shard.replay(record)
    assert rounds_of(shard)[:2] == [PruneLog(1, True), PruneLog(1, False)]


def test_a_state_without_a_snapshot_does_not_stop_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(share_shard, "_ROUND_BYTES_MIN", 1)
    monkeypatch.setattr(share_shard, "_ROUND_GROWTH", 0)
    coordinator = Coordinator()
    other = coordinator.key._replace(partition=1)
    shard = coordinator.shard()
    for key in (coordinator.key, other):
        shard.replay(encode(key, ShareSnapshot(0, 0, 0, 0, -1, 0, 0, ())))
    shard._states[coordinator.key].start_offset = 2**70
    with caplog.at_level(logging.ERROR):
        effects = rounds_of(shard)
    assert effects[0] == PruneLog(1, True)
    assert not any(effect == PruneLog(1, False) for effect in effects)  # its records stay
    assert shard._states[other].round >= 1 and shard.next_deadline() is None
    assert "bug: cannot write the state of a share partition" in caplog.text
    # a write that would make a snapshot is stored as an update
    monkeypatch.setattr(shard._options, "node", lambda name: 1)
    shard._states[coordinator.key].start_offset = -1
    monkeypatch.setattr(share_shard.ShareState, "snapshot", lambda *_: 1 / 0)
    result = shard.handle(1, write(coordinator.key), Moment(0, 0))
    assert isinstance(decode(result.records[0])[1], ShareUpdate)


# -- the size of a state


def gapped(count: int, first: int = 0) -> tuple[Batch, ...]:
    return tuple(
        Batch(first + 10 * number + 5, first + 10 * number + 8, ACKNOWLEDGED, 0)
        for number in range(count)
    )


def test_the_batches_of_a_state_have_a_bound() -> None:
    coordinator = Coordinator()
    coordinator.initialize(0)
    step = SHARE_CHANGE_BATCHES_MAX // 2
    for begin in range(0, SHARE_STATE_RANGES_MAX, step):
        coordinator.write(*gapped(step, first=10 * begin))
    assert len(coordinator.read()[1]) == SHARE_STATE_RANGES_MAX
    more = write(coordinator.key, *gapped(1, first=10 * SHARE_STATE_RANGES_MAX))
    assert coordinator.refused(more) is ErrorCode.INVALID_REQUEST
    # what makes it no larger is stored
    coordinator.write(Batch(9, 14, ACKNOWLEDGED, 1))
    assert len(coordinator.read()[1]) == SHARE_STATE_RANGES_MAX - 1
    refused = coordinator.refused(write(coordinator.key, *gapped(SHARE_CHANGE_BATCHES_MAX + 1)))
    assert refused is ErrorCode.INVALID_REQUEST


def test_replayed_records_of_a_decision_are_those_that_are_decoded() -> None:
    """`replay` need not decode what the shard has just encoded."""
    coordinator = Coordinator()
    coordinator.initialize(3)
    shard = coordinator.harness.shard
    most = coordinator.options.node("share.coordinator.snapshot.update.records.per.snapshot")
    kinds = set()
    for number in range(most + 2):
        batch = Batch(10 * number, 10 * number + 5, AVAILABLE, 2)
        result = shard.handle(number, write(coordinator.key, batch), Moment(0, 0))
        for record in result.records:
            assert isinstance(record, share_shard._Record)
            assert decode(record) == record.content
            kinds.add(type(record.content[1]))
            shard.replay(record)
    assert kinds == {ShareUpdate, ShareSnapshot}
