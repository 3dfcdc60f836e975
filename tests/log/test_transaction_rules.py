"""The rules of transactions in one partition: what begins one, what ends it, which offsets are
stable (KIP-98, KIP-890).
"""

from __future__ import annotations

from typing import Any

import pytest

from mqd.errors import ErrorCode, MqError
from mqd.log.producer_expiry import expire
from mqd.log.producer_state import ProducerState
from mqd.log.producers import Producers
from mqd.protocol.batch import TRANSACTIONAL_MASK
from mqd.protocol.files import AbortedTransaction

PID = 7


def begun(*, at: int = 10, epoch: int = 0, count: int = 1) -> Producers:
    """A producer in a transaction, with its first batch at `at` and sequence 0."""
    producers = Producers()
    producers.replay(PID, epoch, 0, at, count - 1, 1000, TRANSACTIONAL_MASK)
    return producers


def confirmed(
    producers: Producers, *, epoch: int = 0, sequence: int = 0, bumps: bool = False
) -> None:
    guard = producers.guard(PID, epoch, sequence, bumps, 0)
    assert guard is not None
    guard.confirmed = True


def code_of(
    producers: Producers, epoch: int, sequence: int, *, transactional: bool = True
) -> ErrorCode:
    try:
        producers.check_with_transactions(PID, epoch, sequence, 0, transactional)
    except MqError as error:
        return error.code
    return ErrorCode.NONE


def marker_code(
    producers: Producers, epoch: int, coordinator_epoch: int = 3, version: int = 0
) -> ErrorCode:
    try:
        producers.check_marker(PID, epoch, coordinator_epoch, version)
    except MqError as error:
        return error.code
    return ErrorCode.NONE


def test_a_transaction_begins_only_after_a_confirmed_verification() -> None:
    producers = Producers()
    assert code_of(producers, 0, 0) is ErrorCode.INVALID_TXN_STATE
    guard = producers.guard(PID, 0, 0, False, 0)
    assert code_of(producers, 0, 0) is ErrorCode.INVALID_TXN_STATE, (
        "no coordinator has confirmed it"
    )
    confirmed(producers)
    assert producers.guard(PID, 0, 0, False, 0) is guard
    assert code_of(producers, 0, 0) is ErrorCode.NONE
    producers.replay(PID, 0, 0, 10, 0, 0, TRANSACTIONAL_MASK)
    assert not producers.guards and producers.guard(PID, 0, 1, False, 0) is None, "it is open"
    assert code_of(producers, 0, 1) is ErrorCode.NONE


def test_a_marker_removes_the_verification() -> None:
    producers = Producers()
    confirmed(producers)
    producers.end_transaction(PID, 0, 3, 10, 0, committed=False)
    assert not producers.guards
    assert code_of(producers, 0, 0) is ErrorCode.INVALID_TXN_STATE


def test_the_lowest_confirmed_sequence_begins_the_transaction() -> None:
    producers = Producers()
    confirmed(producers, sequence=3)
    confirmed(producers, sequence=0)
    assert code_of(producers, 0, 3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(producers, 0, 0) is ErrorCode.NONE
    confirmed(producers, epoch=1, sequence=5)
    assert producers.guards[PID].lowest_sequence == 5, "a new epoch has its own"


def test_an_unknown_producer_with_a_new_epoch_begins_at_sequence_zero() -> None:
    producers = Producers()
    confirmed(producers, sequence=4, bumps=True)
    assert code_of(producers, 0, 4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producers = Producers()
    confirmed(producers, sequence=4)
    assert code_of(producers, 0, 4) is ErrorCode.NONE


def test_a_retry_is_known_only_within_its_transaction() -> None:
    producers = begun()
    assert producers.check_with_transactions(PID, 0, 0, 0, True) == (10, 10, 1000)
    producers.end_transaction(PID, 0, 3, 11, 0, committed=True)
    assert code_of(producers, 0, 0) is ErrorCode.INVALID_TXN_STATE
    confirmed(producers)
    assert code_of(producers, 0, 0) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (
        "librdkafka restarts with a sequence that it abandoned"
    )
    confirmed(producers, sequence=1)
    assert code_of(Producers(producers.entries()), 0, 0) is ErrorCode.INVALID_TXN_STATE
    again = Producers(producers.entries())
    confirmed(again, sequence=1)
    assert code_of(again, 0, 0) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(again, 0, 1) is ErrorCode.NONE


def test_a_snapshot_has_only_the_batches_of_the_open_transaction() -> None:
    producers = begun()
    producers.replay(PID, 0, 1, 11, 0, 1001, TRANSACTIONAL_MASK)
    again = Producers(producers.snapshot())
    assert again.check_with_transactions(PID, 0, 0, 0, True) == (10, 10, 1000)
    assert again.check_with_transactions(PID, 0, 1, 0, True) == (11, 11, 1001)
    assert again.open == {10: PID} and again.snapshot() == producers.snapshot()
    for one in (producers, again):
        one.end_transaction(PID, 0, 3, 12, 0, committed=True)
        for later in (one, Producers(one.snapshot())):
            assert len(later.snapshot()) == 1
            confirmed(later, sequence=2)
            for sequence in (0, 1):
                assert code_of(later, 0, sequence) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            for sequence in (2, 3):
                later.replay(PID, 0, sequence, 11 + sequence, 0, 0, TRANSACTIONAL_MASK)
            latest = Producers(later.snapshot())
            codes = [code_of(latest, 0, sequence) for sequence in range(5)]
            assert codes == 2 * [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] + 3 * [ErrorCode.NONE]
            assert latest.snapshot() == later.snapshot() and len(latest.snapshot()) == 2


def test_a_producer_in_a_transaction_writes_nothing_outside_it() -> None:
    producers = begun()
    assert code_of(producers, 0, 1, transactional=False) is ErrorCode.INVALID_TXN_STATE
    assert code_of(producers, 0, 0, transactional=False) is ErrorCode.NONE, (
        "a retry is not a new record"
    )
    producers.end_transaction(PID, 0, 3, 11, 0, committed=True)
    assert code_of(producers, 0, 1, transactional=False) is ErrorCode.NONE


def test_an_older_epoch_is_refused_before_any_request() -> None:
    producers = begun(epoch=4)
    producers.end_transaction(PID, 5, 3, 11, 0, committed=True)
    assert code_of(producers, 4, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(MqError) as caught:
        producers.check_coordinator_batch(PID, 4)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_offsets_of_a_transaction_need_verification_and_no_sequence() -> None:
    producers = Producers()
    with pytest.raises(MqError) as caught:
        producers.check_coordinator_batch(PID, 0)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    confirmed(producers, sequence=-1)
    producers.check_coordinator_batch(PID, 0)
    producers.replay(PID, 0, -1, 10, 0, 0, TRANSACTIONAL_MASK)
    producers.check_coordinator_batch(PID, 0)


@pytest.mark.parametrize(
    ("version", "epoch", "code"),
    [
        (0, 3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (0, 4, ErrorCode.NONE),
        (0, 5, ErrorCode.NONE),
        (2, 4, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, 5, ErrorCode.NONE),
    ],
)
def test_the_epochs_of_markers(version: int, epoch: int, code: ErrorCode) -> None:
    assert marker_code(begun(epoch=4), epoch, version=version) is code


@pytest.mark.parametrize("version", [0, 2])
def test_a_marker_may_be_repeated(version: int) -> None:
    producers = begun(epoch=4)
    producers.end_transaction(PID, 5, 3, 11, 0, committed=True)
    assert marker_code(producers, 5, version=version) is ErrorCode.NONE
    assert producers.end_transaction(PID, 5, 3, 12, 0, committed=True) is None


def test_a_replaced_coordinator_is_fenced() -> None:
    producers = begun()
    producers.end_transaction(PID, 0, 3, 11, 0, committed=True)
    assert marker_code(producers, 0, 2) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert marker_code(producers, 0, 3) is marker_code(producers, 0, 4) is ErrorCode.NONE
    assert (
        marker_code(Producers(producers.entries()), 0, 2)
        is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    )


def test_a_marker_sets_the_producer_s_epoch() -> None:
    producers = begun(epoch=4)
    producers.end_transaction(PID, 5, 3, 11, 2000, committed=True)
    confirmed(producers, epoch=5, bumps=True)
    assert code_of(producers, 5, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(producers, 5, 0) is ErrorCode.NONE
    (entry,) = list(producers.entries())
    assert (
        entry.producer_epoch,
        entry.last_sequence,
        entry.timestamp,
        entry.coordinator_epoch,
    ) == (5, -1, 2000, 3)


def test_stable_offsets() -> None:
    producers = Producers()
    for producer_id, offset in ((1, 10), (2, 20), (3, 30)):
        producers.replay(producer_id, 0, 0, offset, 0, 0, TRANSACTIONAL_MASK)
    assert producers.first_unstable_offset(31) == 10
    assert producers.end_transaction(1, 0, 3, 40, 0, committed=False) == AbortedTransaction(
        1, 10, 40, 20
    )
    assert producers.first_unstable_offset(40) == 10, "its marker is not committed"
    assert producers.first_unstable_offset(41) == 20
    assert producers.end_transaction(3, 0, 3, 41, 0, committed=False) == AbortedTransaction(
        3, 30, 41, 20
    )
    assert producers.end_transaction(2, 0, 3, 42, 0, committed=True) is None
    assert producers.first_unstable_offset(42) == 20
    assert producers.first_unstable_offset(43) is None and not producers.unstable
    producers.replay(2, 0, 1, 50, 0, 0, TRANSACTIONAL_MASK)
    assert producers.end_transaction(2, 0, 3, 51, 0, committed=False) == AbortedTransaction(
        2, 50, 51, 52
    )


def test_a_snapshot_keeps_open_transactions_in_the_order_of_their_offsets() -> None:
    producers = Producers()
    for producer_id, offset in ((1, 10), (2, 20), (3, 30)):
        producers.replay(producer_id, 0, 0, offset, 0, 0, TRANSACTIONAL_MASK)
    producers.replay(1, 0, 1, 40, 0, 0, TRANSACTIONAL_MASK)  # last seen now
    again = Producers(producers.entries())
    assert list(again.open.items()) == [(10, 1), (20, 2), (30, 3)]
    assert again.first_unstable_offset(41) == 10


def test_a_producer_in_a_transaction_never_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqd.log.producers.PRODUCERS_PER_PARTITION_MAX", 2)
    producers = begun(at=0)
    for producer_id in (1, 2, 3):
        producers.replay(producer_id, 0, 0, producer_id, 0, 100, 0)
    assert producers.in_transaction(PID, 0)
    producers.end_transaction(4, 0, 3, 9, 0, committed=True)
    assert producers.in_transaction(PID, 0)
    producers.guard(8, 0, 0, False, 5)
    for now_ms in (0, 1 << 40):
        list(expire(producers, now_ms, 10))
    assert [entry.producer_id for entry in producers.entries()] == [PID] and not producers.guards


def test_open_transactions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqd.log.producers.PRODUCERS_PER_PARTITION_MAX", 2)
    producers = begun(at=0)
    producers.replay(1, 0, 0, 1, 0, 100, TRANSACTIONAL_MASK)
    producers.guard(2, 0, 0, False, 0)
    with pytest.raises(MqError) as refused:
        producers.check_coordinator_batch(2, 0)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE, "first, its own mistakes"
    producers.guards[2].confirmed = True
    with pytest.raises(MqError) as refused:
        producers.check_coordinator_batch(2, 0)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR, "a code that clients retry"
    with pytest.raises(MqError) as refused:
        producers.check_with_transactions(2, 0, 0, 0, True)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert producers.check_with_transactions(1, 0, 1, 0, True) is None, "its transaction is open"
    assert producers.check_with_transactions(3, 0, 0, 0, False) is None, "it begins none"
    producers.end_transaction(1, 0, 3, 2, 0, committed=True)
    producers.check_coordinator_batch(2, 0)
    assert producers.check_with_transactions(2, 0, 0, 0, True) is None


class CountingItems(dict[int, ProducerState]):
    """Counts the items that a loop looks at."""

    looked_at = 0

    def items(self) -> Any:
        for item in super().items():
            self.looked_at += 1
            yield item


def test_a_new_producer_looks_at_few_of_those_in_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most, in_transaction = 2_000, 1_990
    monkeypatch.setattr("mqd.log.producers.PRODUCERS_PER_PARTITION_MAX", most)
    producers = Producers()
    producers.states = states = CountingItems()
    for producer_id in range(in_transaction):
        producers.replay(producer_id, 0, 0, producer_id, 0, 0, TRANSACTIONAL_MASK)
    largest = 0
    for producer_id in range(in_transaction, 3 * most):
        states.looked_at = 0
        producers.replay(producer_id, 0, 0, producer_id, 0, 0, 0)
        assert states.looked_at <= 200
        largest = max(largest, len(producers))
    assert largest <= most + 20
    assert list(producers.open.values()) == list(range(in_transaction))
    assert all(producers.in_transaction(one, 0) for one in range(in_transaction))
