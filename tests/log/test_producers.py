"""The rules of idempotence, as observed on Apache Kafka 4.3.1."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from mqd.errors import ErrorCode, MqError
from mqd.limits import PRODUCERS_PER_PARTITION_MAX
from mqd.log.producer_expiry import expire
from mqd.log.producer_state import SEQUENCE_MAX, last_sequence
from mqd.log.producers import Producers
from mqd.protocol.batch import TRANSACTIONAL_MASK
from mqd.protocol.files import decode_producer_snapshot, encode_producer_snapshot

PID = 7


def after(*batches: tuple[int, int], epoch: int = 0) -> Producers:
    """(base sequence, records) of consecutive batches."""
    producers, offset = Producers(), 0
    for sequence, count in batches:
        producers.replay(PID, epoch, sequence, offset, count - 1, 1000 + offset, 0)
        offset += count
    return producers


def refused(producers: Producers, epoch: int, sequence: int, count: int = 1) -> ErrorCode:
    with pytest.raises(MqError) as caught:
        producers.check(PID, epoch, sequence, count - 1)
    return caught.value.code


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert Producers().check(PID, 3, 5, 0) is None


def test_a_gap_or_an_overlap_of_sequences_is_refused() -> None:
    producers = after((0, 5))
    assert producers.check(PID, 0, 5, 0) is None
    for sequence in (6, 4, 1):
        assert refused(producers, 0, sequence) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_retries_of_only_the_last_five_batches_are_known() -> None:
    producers = after(*((sequence, 2) for sequence in range(0, 12, 2)))
    for index in range(1, 6):
        assert producers.check(PID, 0, 2 * index, 1) == (2 * index, 2 * index + 1, 1000 + 2 * index)
    assert refused(producers, 0, 0, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(producers, 0, 2, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (
        "same start, different length"
    )


def test_epochs() -> None:
    producers = after((0, 1), epoch=4)
    assert refused(producers, 3, 0) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(producers, 5, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(PID, 5, 0, 0) is None
    producers.replay(PID, 5, 0, 1, 0, 0, 0)
    assert refused(producers, 4, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producers.check(PID, 5, 1, 0) is None


def test_sequences_wrap() -> None:
    assert last_sequence(SEQUENCE_MAX, 0) == SEQUENCE_MAX
    assert last_sequence(SEQUENCE_MAX, 1) == 0
    assert last_sequence(SEQUENCE_MAX - 1, 3) == 1
    producers = after((SEQUENCE_MAX - 1, 4))
    assert producers.check(PID, 0, 2, 0) is None
    assert producers.check(PID, 0, SEQUENCE_MAX - 1, 3) == (0, 3, 1000)
    assert Producers(producers.snapshot()).check(PID, 0, SEQUENCE_MAX - 1, 3) == (0, 3, 1000)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 4), st.booleans()), min_size=1, max_size=40
    )
)
def test_a_snapshot_has_the_last_five_batches_of_each_producer(
    batches: list[tuple[int, int, bool]],
) -> None:
    producers, epochs, sequences, offset = (
        Producers(),
        dict.fromkeys(range(4), 0),
        dict.fromkeys(range(4), 0),
        0,
    )
    written: dict[int, list[tuple[int, int, int]]] = {producer_id: [] for producer_id in range(4)}
    for producer_id, count, new_epoch in batches:
        if new_epoch and written[producer_id]:
            epochs[producer_id] += 1
            sequences[producer_id] = 0
            written[producer_id].clear()
        producers.replay(
            producer_id, epochs[producer_id], sequences[producer_id], offset, count - 1, offset, 0
        )
        written[producer_id].append((sequences[producer_id], offset, count))
        sequences[producer_id] += count
        offset += count
    again = Producers(decode_producer_snapshot(encode_producer_snapshot(producers.snapshot())))
    assert (
        list(again.entries()) == list(producers.entries())
        and again.snapshot() == producers.snapshot()
    )
    for producer_id, known in written.items():
        epoch = epochs[producer_id]
        for sequence, first, count in known[-5:]:
            assert again.check(producer_id, epoch, sequence, count - 1) == (
                first,
                first + count - 1,
                first,
            )
        for sequence, _first, count in known[:-5]:
            with pytest.raises(MqError):
                again.check(producer_id, epoch, sequence, count - 1)
        if known:
            assert again.check(producer_id, epoch, sequences[producer_id], 0) is None
            assert producer_id not in [
                row.producer_id for row in again.snapshot() if row.producer_epoch != epoch
            ]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=30))
def test_a_snapshot_of_apache_kafka_has_the_last_batch_of_each_producer(
    batches: list[tuple[int, int]],
) -> None:
    """Kafka's snapshot has only that row, and Kafka reads that row of an mqd snapshot."""
    producers, sequences, offset = Producers(), dict.fromkeys(range(4), 0), 0
    last: dict[int, tuple[int, int, int]] = {}
    for producer_id, count in batches:
        producers.replay(producer_id, 0, sequences[producer_id], offset, count - 1, offset, 0)
        last[producer_id] = (sequences[producer_id], offset, count)
        sequences[producer_id] += count
        offset += count
    assert list({row.producer_id: row for row in producers.snapshot()}.values()) == list(
        producers.entries()
    )
    again = Producers(producers.entries())
    assert list(again.entries()) == list(producers.entries())
    for producer_id, (sequence, first, count) in last.items():
        assert again.check(producer_id, 0, sequence, count - 1) == (first, first + count - 1, first)
        assert again.check(producer_id, 0, sequences[producer_id], 0) is None


def test_the_last_of_two_epochs_of_a_producer_in_a_snapshot_counts() -> None:
    older, newer = after((0, 1), (1, 1), epoch=3), after((0, 1), epoch=4)
    producers = Producers([*older.snapshot(), *newer.snapshot()])
    assert producers.snapshot() == newer.snapshot()
    assert refused(producers, 4, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(producers, 3, 2) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_transactions_keep_their_first_offset_until_the_marker() -> None:
    producers = Producers()
    producers.replay(PID, 0, 0, 10, 1, 5, TRANSACTIONAL_MASK)
    producers.replay(PID, 0, 2, 12, 0, 6, TRANSACTIONAL_MASK)
    assert next(iter(producers.entries())).current_txn_first_offset == 10
    for now_ms in (0, 1 << 50):
        list(expire(producers, now_ms, 10))
    assert len(producers) == 1, "an open transaction is not removed"
    producers.end_transaction(PID, 0, 3, 13, 7, committed=True)
    assert next(iter(producers.entries())).current_txn_first_offset == -1
    assert producers.check(PID, 0, 3, 0) is None


def test_expiry_and_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PRODUCERS_PER_PARTITION_MAX > 10
    monkeypatch.setattr("mqd.log.producers.PRODUCERS_PER_PARTITION_MAX", 3)
    producers = Producers()
    for producer_id in range(5):
        producers.replay(producer_id, 0, 0, producer_id, 0, 100 + producer_id, 0)
    assert [entry.producer_id for entry in producers.entries()] == [2, 3, 4]
    list(expire(producers, 1000, 10))
    producers.replay(3, 0, 1, 5, 0, 0, 0)
    list(expire(producers, 1010, 10))
    assert len(producers) == 3
    list(expire(producers, 1011, 10))
    assert [entry.producer_id for entry in producers.entries()] == [3], (
        "it has sent a batch since, whatever its timestamp"
    )


def test_a_snapshot_has_all_batches_of_the_latest_producers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For the others only the last one: the snapshot is bounded, and a producer that was silent for
    so long has nothing to retry.
    """
    monkeypatch.setattr("mqd.log.producer_state.PRODUCERS_REPEATING_MAX", 2)
    producers = Producers()
    for offset, producer_id in enumerate((1, 2, 3, 2, 1, 3)):
        producers.replay(producer_id, 0, offset // 3, offset, 0, 0, 0)
    assert [(row.producer_id, row.last_offset) for row in producers.snapshot()] == [
        (2, 3),
        (1, 0),
        (1, 4),
        (3, 2),
        (3, 5),
    ]


def test_an_invalid_epoch_of_an_unknown_producer_is_refused() -> None:
    producers = Producers()
    for epoch in (-2, -32768):
        with pytest.raises(MqError) as caught:
            producers.check(5, epoch, 0, 0)
        assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producers.check(5, -1, 0, 0) is None


def test_a_frozen_snapshot_is_unchanged_and_copies_no_producer() -> None:
    producers = Producers()
    for producer_id in range(3):
        producers.replay(producer_id, 0, 0, producer_id, 0, 1000, 0)
    producers.replay(2, 0, 1, 3, 0, 1000, TRANSACTIONAL_MASK)
    frozen, before = producers.freeze(), producers.snapshot()
    assert all(frozen._producers[one] is producers.states[one] for one in range(3))
    producers.replay(0, 0, 1, 4, 0, 2000, 0)  # the same epoch
    producers.replay(1, 1, 0, 5, 0, 2000, 0)  # a new epoch
    producers.seal(2, 1, 2000)
    producers.end_transaction(2, 1, 0, 6, 3000, False)
    producers.replay(9, 0, 0, 7, 0, 3000, 0)
    assert frozen.rows() == before != producers.snapshot()
    assert decode_producer_snapshot(frozen.encoded()) == before
    list(expire(producers, 0, 10))
    list(expire(producers, 100, 10))
    assert len(producers) == 0 and frozen.rows() == before
