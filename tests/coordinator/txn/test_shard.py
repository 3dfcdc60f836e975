"""The transaction coordinator, one transactional id at a time: responses, states and epochs are
those of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import pytest

from mqd.coordinator.shard import Moment, Producer
from mqd.coordinator.txn import records
from mqd.coordinator.txn.operations import (
    AbortTimedOut,
    InitializeProducer,
    MarkersWritten,
    SpareProducerId,
    WriteMarkers,
)
from mqd.coordinator.txn.transaction import EPOCH_MAX, Transaction
from mqd.errors import ErrorCode
from mqd.limits import TRANSACTIONS_PER_SEARCH
from mqd.types import TopicPartition
from tests.coordinator.txn.transactions import A0, A1, B0, OPTIONS, Transactions, refused

FENCED, NO_MAPPING, CONCURRENT, WRONG_STATE = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.INVALID_TXN_STATE,
)
NOBODY = Producer(-1, -1)


def at_epoch(epoch: int, version: int = 2) -> Transactions:
    """A coordinator whose id `t` has this epoch, as its log says."""
    txn = Transactions(version)
    record = records.encode(
        "t",
        Transaction(4000, epoch, 60_000, updated_ms=txn.now.wall_ms, previous_producer_id=4000),
        version=1,
    )
    txn.log.append((record, NOBODY))
    txn.spare_ids = iter(range(5000, 6000))
    txn.fail_over()
    return txn


# -- InitProducerId


def test_each_initialization_fences_the_previous_one() -> None:
    txn = Transactions()
    first = txn.init()
    assert first == (4000, 0)
    assert txn.init() == (4000, 1)
    with refused(FENCED):
        txn.add(first)
    assert txn.state() == "Empty"


@pytest.mark.parametrize(
    ("id", "timeout_ms", "code"), [("", 1, 42), ("t", 0, 50), ("t", 900_001, 50), ("t", -1, 50)]
)
def test_an_invalid_initialization_is_refused(id: str, timeout_ms: int, code: int) -> None:
    txn = Transactions()
    with refused(ErrorCode(code)):
        txn.init(id=id, timeout_ms=timeout_ms)
    assert txn.log == []


def test_a_producer_raises_its_own_epoch_and_may_retry() -> None:
    txn = Transactions()
    first = txn.init()
    second = txn.init(first)
    assert second == (4000, 1)
    assert txn.init(first) == second, "the response was lost"
    assert txn.init(second) == (4000, 2)
    with refused(FENCED):
        txn.init(first)
    with refused(FENCED):
        txn.init((3999, 2))


def test_initializations_that_the_log_refuses_take_no_memory() -> None:
    """As where fewer replicas than min.insync.replicas are in sync: the decision is not
    replayed.
    """
    txn = Transactions()
    first = txn.init()
    for number in range(100):
        decision = txn.shard.handle(
            number, InitializeProducer(f"refused-{number}", 60_000, None, 9000), txn.now
        )
        assert len(decision.records) == 1
    assert all(
        len(value) <= 1
        for value in vars(txn.shard).values()
        if isinstance(value, dict | set | list)
    )
    txn.shard.handle(100, InitializeProducer("t", 60_000, first), txn.now)
    second = txn.init(first)
    assert second == (4000, 1)
    assert txn.init(first) == second, (
        "the last epoch is that of the initialization that was written"
    )


def test_an_initialization_without_a_producer_fences_the_previous_epoch() -> None:
    txn = Transactions()
    first = txn.init()
    txn.init()
    with refused(FENCED):
        txn.init(first)


def test_a_new_transactional_id_accepts_any_producer_id() -> None:
    """The coordinator has removed its owner's expired id; the producer has not noticed
    (KIP-360).
    """
    txn = Transactions()
    assert txn.init((77, 5)) == (4000, 0)


def test_exhausted_epochs_yield_a_new_producer_id() -> None:
    txn = at_epoch(EPOCH_MAX - 1)
    assert txn.init() == (5000, 0)
    txn = at_epoch(EPOCH_MAX - 1)
    old = Producer(4000, EPOCH_MAX - 1)
    new = txn.init(old)
    assert new == (5000, 0)
    assert txn.init(old) == new, "the response was lost"
    assert txn.init() == (5000, 1)
    with refused(FENCED):
        txn.init(old)


def test_an_open_transaction_is_aborted_before_its_producer_is_replaced() -> None:
    txn = Transactions()
    first = txn.init()
    txn.add(first, A0, B0)
    with refused(CONCURRENT):
        txn.init()
    assert txn.state() == "PrepareAbort"
    with refused(CONCURRENT):
        txn.init()
    markers = txn.complete()
    assert markers == WriteMarkers("t", Producer(4000, 1), False, (A0, B0), 2)
    assert txn.init() == (4000, 2), "an epoch that no producer had lies between"
    with refused(FENCED):
        txn.add(first)


def test_before_the_second_protocol_a_fence_raises_the_epoch_too() -> None:
    txn = Transactions(version=1)
    first = txn.init()
    txn.add(first, version=0)
    with refused(CONCURRENT):
        txn.init()
    assert txn.complete() == WriteMarkers("t", Producer(4000, 1), False, (A0,), 0)
    with refused(FENCED):
        txn.init(first)
    assert txn.init() == (4000, 2)


def test_a_replaced_producer_does_not_abort_its_successors_transaction() -> None:
    txn = Transactions()
    first = txn.init()
    second = txn.init()
    txn.add(second)
    with refused(FENCED):
        txn.init(first)
    assert txn.state() == "Ongoing"


def test_a_producer_that_recovers_has_its_own_transaction_aborted() -> None:
    txn = Transactions()
    first = txn.init()
    txn.add(first)
    with refused(CONCURRENT):
        txn.init(first)
    txn.complete()
    assert txn.init(first) == (4000, 1), "the epoch that the abort gave it"


# -- AddPartitionsToTxn


def test_partitions_accumulate() -> None:
    txn = Transactions()
    producer = txn.init()
    txn.add(producer, B0, A1)
    began = txn.describe()["transaction_start_time_ms"]
    assert began == txn.now.wall_ms
    txn.advance(1)
    txn.add(producer, A0, A1)
    row = txn.describe()
    assert row["topics"] == [
        {"topic": "a", "partitions": [0, 1]},
        {"topic": "b", "partitions": [0]},
    ]
    assert (
        row["transaction_state"],
        row["transaction_start_time_ms"],
        row["transaction_timeout_ms"],
    ) == ("Ongoing", began, 60_000)
    assert (row["producer_id"], row["producer_epoch"]) == producer
    written = len(txn.log)
    txn.add(producer, A0, B0)
    assert len(txn.log) == written, "no new partition, no record"


def test_more_partitions_than_a_transaction_has_are_refused_before_any_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    txn = Transactions()
    producer = txn.init()
    monkeypatch.setattr("mqd.coordinator.txn.partitions._has", lambda *_: pytest.fail("looked up"))
    with refused(ErrorCode.POLICY_VIOLATION):
        txn.add(producer, *(TopicPartition("a", n) for n in range(20_001)))


def test_a_transaction_has_a_bounded_number_of_partitions() -> None:
    """Topics count, too. Committed offsets may always be added."""
    txn = Transactions()
    producer = txn.init()
    txn.add(producer, *(TopicPartition("a", n) for n in range(19_000)))
    with refused(ErrorCode.POLICY_VIOLATION):
        txn.add(producer, *(TopicPartition(f"b{n}", 0) for n in range(170)))
    txn.add(producer, *(TopicPartition(f"b{n}", 0) for n in range(165)))
    with refused(ErrorCode.POLICY_VIOLATION):
        txn.add(producer, *(TopicPartition("a", n) for n in range(20_000)))
    txn.add(producer, TopicPartition("__consumer_offsets", 3))
    txn.end(producer)
    assert len(txn.markers()[0].partitions) == 19_166


def test_only_the_current_producer_adds_partitions() -> None:
    txn = Transactions()
    with refused(NO_MAPPING):
        txn.add((4000, 0))
    producer = txn.init()
    with refused(NO_MAPPING):
        txn.add((4001, 0))
    for epoch in (producer.producer_epoch - 1, producer.producer_epoch + 1):
        with refused(FENCED):
            txn.add((4000, epoch))
    txn.add(producer)
    txn.end(producer, version=0)
    with refused(CONCURRENT):
        txn.add(producer)
    with refused(CONCURRENT):
        txn.add((1, 1))


def test_verification_returns_the_partitions_of_the_transaction() -> None:
    txn = Transactions()
    with refused(NO_MAPPING):
        txn.verify((4000, 0), A0)
    producer = txn.init()
    assert txn.verify(producer, A0) == {A0: ErrorCode.TRANSACTION_ABORTABLE}
    txn.add(producer, A0)
    assert txn.verify(producer, A0, B0) == {A0: 0, B0: ErrorCode.TRANSACTION_ABORTABLE}
    with refused(FENCED):
        txn.verify((4000, 1), A0)
    with refused(NO_MAPPING):
        txn.verify((1, 0), A0)
    txn.end(producer, version=0)
    with refused(CONCURRENT):
        txn.verify(producer, A0)
    txn.complete()
    assert txn.verify(producer, A0) == {A0: ErrorCode.TRANSACTION_ABORTABLE}, (
        "that transaction is over"
    )


# -- EndTxn, first protocol


@pytest.mark.parametrize("commit", [True, False])
def test_in_the_first_protocol_the_epoch_stays(commit: bool) -> None:
    txn = Transactions()
    producer = txn.init()
    txn.add(producer, A0, B0, version=0)
    assert txn.end(producer, commit=commit, version=0) == NOBODY
    assert txn.state() == ("PrepareCommit" if commit else "PrepareAbort")
    for again in (True, False):
        with refused(CONCURRENT):
            txn.end(producer, commit=again, version=0)
    assert txn.complete() == WriteMarkers("t", producer, commit, (A0, B0), 0)
    assert txn.state() == ("CompleteCommit" if commit else "CompleteAbort")
    txn.end(producer, commit=commit, version=0)
    with refused(WRONG_STATE):
        txn.end(producer, commit=not commit, version=0)
    with refused(FENCED):
        txn.end((4000, 1), commit=commit, version=0)
    txn.add(producer, A1, version=0)
    assert txn.describe()["topics"] == [{"topic": "a", "partitions": [1]}]


def test_in_the_first_protocol_ending_no_transaction_is_refused() -> None:
    txn = Transactions()
    with refused(NO_MAPPING):
        txn.end((4000, 0), version=0)
    producer = txn.init()
    for commit in (True, False):
        with refused(WRONG_STATE):
            txn.end(producer, commit=commit, version=0)
    with refused(NO_MAPPING):
        txn.end((1, 0), version=0)
    with refused(ErrorCode.INVALID_REQUEST):
        txn.end(producer, id="", version=0)


# -- EndTxn, second protocol


@pytest.mark.parametrize("commit", [True, False])
def test_in_the_second_protocol_each_end_raises_the_epoch(commit: bool) -> None:
    txn = Transactions()
    producer = txn.init()
    txn.add(producer)
    following = txn.end(producer, commit=commit)
    assert following == (4000, 1)
    with refused(CONCURRENT):
        txn.end(producer, commit=commit)
    with refused(CONCURRENT):
        txn.add(following)
    assert txn.complete() == WriteMarkers("t", Producer(4000, 1), commit, (A0,), 2)
    assert txn.end(producer, commit=commit) == following, "repeated"
    with refused(WRONG_STATE):
        txn.end(producer, commit=not commit)
    with refused(FENCED):
        txn.add(producer)
    txn.add(following)
    with refused(FENCED):
        txn.end(producer, commit=commit)
    assert txn.end(following) == (4000, 2)


E = "epoch is raised"
TABLE = [
    # state, repeated request, commit or abort, expected result: as in the comment before Kafka's
    # endTransaction
    ("Empty", True, False, FENCED),
    ("Empty", False, False, E),
    ("Empty", True, True, FENCED),
    ("Empty", False, True, WRONG_STATE),
    ("CompleteAbort", True, False, None),
    ("CompleteAbort", False, False, E),
    ("CompleteAbort", True, True, WRONG_STATE),
    ("CompleteAbort", False, True, WRONG_STATE),
    ("CompleteCommit", True, False, WRONG_STATE),
    ("CompleteCommit", False, False, E),
    ("CompleteCommit", True, True, None),
    ("CompleteCommit", False, True, WRONG_STATE),
]


@pytest.mark.parametrize("failed_over", [False, True])
@pytest.mark.parametrize(("state", "again", "commit", "outcome"), TABLE)
def test_ends_without_a_transaction(
    state: str, again: bool, commit: bool, outcome: ErrorCode | str | None, failed_over: bool
) -> None:
    txn = Transactions()
    txn.init()
    old = txn.init()
    present = old
    if state == "Empty":
        old = Producer(old.producer_id, old.producer_epoch - 1)
    else:
        txn.add(old)
        present = txn.end(old, commit=state == "CompleteCommit")
        txn.complete()
    assert txn.state() == state
    if failed_over:
        txn.fail_over()
    who = old if again else present
    if isinstance(outcome, ErrorCode):
        with refused(outcome):
            txn.end(who, commit=commit)
    else:
        raised = Producer(present.producer_id, present.producer_epoch + (outcome is E))
        assert txn.end(who, commit=commit) == raised
        assert txn.state() == (state if outcome is None else "CompleteAbort")
        assert not txn.markers(), "there is no partition to notify"
        txn.add(raised)


def test_an_end_with_exhausted_epochs_yields_a_new_producer_id() -> None:
    txn = at_epoch(EPOCH_MAX - 1)
    last = Producer(4000, EPOCH_MAX - 1)
    txn.add(last)
    following = txn.end(last)
    assert following == (5000, 0)
    assert txn.describe()["producer_id"] == 4000, "until the markers are written"
    assert txn.complete().producer == (4000, EPOCH_MAX)
    assert txn.end(last) == following, "repeated"
    with refused(WRONG_STATE):
        txn.end(last, commit=False)
    with refused(NO_MAPPING):
        txn.add(last)
    txn.fail_over()
    assert txn.end(last) == following
    txn.add(following)
    with refused(NO_MAPPING):
        txn.end(last)
    assert txn.end(following) == (5000, 1)


# -- markers


def test_a_transaction_is_complete_when_every_partition_has_its_marker() -> None:
    txn = Transactions()
    producer = txn.init()
    txn.add(producer, A0, A1, B0)
    txn.end(producer)
    (markers,) = txn.markers()
    assert txn.written(markers, A1)
    assert txn.describe()["topics"] == [
        {"topic": "a", "partitions": [0]},
        {"topic": "b", "partitions": [0]},
    ]
    assert txn.written(markers, A1)
    assert txn.state() == "PrepareCommit"
    assert not txn.written(markers, A0, B0)
    assert txn.state() == "CompleteCommit"
    written = len(txn.log)
    assert not txn.written(markers, A0, B0)
    assert len(txn.log) == written


def test_markers_of_an_earlier_transaction_do_not_end_this_one() -> None:
    txn = Transactions()
    producer = txn.init()
    txn.add(producer)
    following = txn.end(producer)
    old = txn.complete()
    txn.add(following)
    txn.end(following)
    assert not txn.written(old)
    assert txn.state() == "PrepareCommit"


@pytest.mark.parametrize("commit", [True, False])
def test_a_new_coordinator_rewrites_all_markers_of_a_decided_transaction(
    commit: bool,
) -> None:
    txn = Transactions()
    producer = txn.init()
    txn.add(producer, A0, B0)
    txn.end(producer, commit=commit)
    (markers,) = txn.markers()
    txn.written(markers, A0)
    txn.fail_over()
    assert txn.markers() == [markers]
    assert not txn.written(markers)
    txn.fail_over()
    assert txn.markers() == []
    assert txn.state() == ("CompleteCommit" if commit else "CompleteAbort")


def test_an_open_transaction_survives_its_coordinator() -> None:
    txn = Transactions()
    producer = txn.init()
    txn.add(producer, A0)
    txn.fail_over()
    assert txn.verify(producer, A0) == {A0: 0}
    txn.add(producer, B0)
    txn.end(producer)
    assert txn.complete().partitions == (A0, B0)


def test_a_half_written_decision_without_partitions_is_completed() -> None:
    """Kafka writes it in two batches."""
    txn = Transactions()
    producer = txn.init()
    txn.end(producer, commit=False)
    txn.log.pop()
    txn.fail_over()
    assert txn.state() == "PrepareAbort"
    assert txn.complete().partitions == ()
    assert txn.state() == "CompleteAbort"


def test_an_unwritable_completion_is_written_at_the_next_report() -> None:
    txn = Transactions()
    producer = txn.init()
    txn.add(producer, A0, B0)
    txn.end(producer)
    (markers,) = txn.markers()
    assert txn.written(markers, A0)
    report = MarkersWritten("t", markers.producer, (B0,))
    refused_append = txn.shard.handle(99, report, txn.now)
    assert len(refused_append.records) == 1
    assert txn.state() == "PrepareCommit"
    assert not txn.written(markers, B0)
    assert txn.state() == "CompleteCommit"


def test_a_late_report_does_not_count_for_the_next_transaction() -> None:
    txn = Transactions(version=1)
    producer = txn.init()
    txn.add(producer, A0, version=0)
    txn.end(producer, version=0)
    first = txn.complete()
    txn.advance(1)
    txn.add(producer, A0, version=0)
    txn.end(producer, version=0)
    (second,) = txn.markers()
    assert second.producer == first.producer  # the first protocol: one epoch for all transactions
    assert not txn.written(first) and txn.state() == "PrepareCommit"
    txn.fail_over()
    assert not txn.written(first) and txn.state() == "PrepareCommit"
    txn.complete()
    assert txn.state() == "CompleteCommit"


# -- time


def test_a_transaction_that_takes_too_long_is_aborted() -> None:
    txn = Transactions()
    producer = txn.init(timeout_ms=25_000)
    assert txn.shard.next_deadline() == txn.now.seconds + 3600
    txn.add(producer)
    txn.advance(25)
    assert txn.state() == "Ongoing"
    txn.advance(10)
    assert txn.complete() == WriteMarkers("t", Producer(4000, 1), False, (A0,), 2)
    with refused(WRONG_STATE):
        txn.end(producer)
    assert txn.end(producer, commit=False) == (4000, 1), "what it receives when it aborts as well"
    with refused(FENCED):
        txn.add(producer)


def test_timers_continue_at_the_next_coordinator() -> None:
    txn = Transactions()
    producer = txn.init(timeout_ms=30_000)
    txn.add(producer)
    txn.advance(25)
    txn.fail_over()
    assert txn.shard.next_deadline() == txn.now.seconds + 10
    txn.advance(10)
    assert txn.state() == "PrepareAbort"


def test_a_timeout_at_the_last_epoch_waits_for_a_producer_id() -> None:
    txn = at_epoch(EPOCH_MAX - 1)
    last = Producer(4000, EPOCH_MAX - 1)
    txn.add(last)
    txn.advance(70)
    wanted = SpareProducerId("t", last)
    assert set(txn.effects) == {wanted} and txn.state() == "Ongoing"
    txn.ask_now(AbortTimedOut("t", last, 5000))
    assert txn.complete().producer == (4000, EPOCH_MAX)
    assert txn.end(last, commit=False) == (5000, 0)
    txn.ask_now(AbortTimedOut("t", last, 5001))
    assert txn.init() == (5000, 1)


def test_many_timeouts_are_processed_in_portions() -> None:
    txn = Transactions()
    ids = [f"t{number}" for number in range(TRANSACTIONS_PER_SEARCH + 3)]
    for id in ids:
        txn.add(txn.init(id=id, timeout_ms=1), id=id)
    txn.advance(10)
    assert len(txn.markers()) == TRANSACTIONS_PER_SEARCH
    txn.advance(1)
    assert len(txn.markers()) == 3


def test_unused_ids_expire_and_used_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIONS, "transactional.id.expiration.ms", 7_200_000)
    txn = Transactions()
    for id in ("gone", "open", "ended"):
        producer = txn.init(id=id)
        if id != "gone":
            txn.add(producer, id=id)
        if id == "ended":
            txn.end(producer, id=id)
            txn.complete()
    txn.advance(3600)
    for _ in range(2):
        txn.advance(1800)
        producer = Producer(
            txn.describe("ended")["producer_id"], txn.describe("ended")["producer_epoch"]
        )
        txn.end(producer, commit=False, id="ended")
    txn.advance(1)
    assert txn.listed() == ["open", "ended"]
    with refused(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
        txn.describe("gone")
    txn.fail_over()
    assert sorted(txn.listed()) == ["ended", "open"]
    with refused(NO_MAPPING):
        txn.add((4000, 0), id="gone")


# -- queries


def test_transactions_are_listed_by_the_requested_filters() -> None:
    txn = Transactions()
    for id in ("orders-1", "orders-2", "pay"):
        txn.init(id=id)
    txn.add((4001, 0), id="orders-2")
    assert txn.listed() == ["orders-1", "orders-2", "pay"]
    assert txn.listed(states=frozenset({"Ongoing"})) == ["orders-2"]
    assert txn.listed(states=frozenset({"Ongoing", "Empty"})) == ["orders-1", "orders-2", "pay"]
    assert txn.listed(states=frozenset({"NoSuchState"})) == []
    assert txn.listed(producer_ids=frozenset({4000, 4002})) == ["orders-1", "pay"]
    txn.advance(5)
    assert txn.listed(duration_ms=5000, states=frozenset({"Ongoing"})) == []
    assert txn.listed(duration_ms=4999, states=frozenset({"Ongoing"})) == ["orders-2"]


def test_only_known_ids_are_described() -> None:
    txn = Transactions()
    with refused(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
        txn.describe("nobody")
    with refused(ErrorCode.INVALID_REQUEST):
        txn.describe("")
    txn.init()
    row = txn.describe()
    assert (row["transaction_state"], row["transaction_start_time_ms"], row["topics"]) == (
        "Empty",
        -1,
        [],
    )


def test_a_replaced_producer_does_not_get_its_successor_s_epoch() -> None:
    """When it repeats its own end, and the successor uses the first protocol."""
    txn = Transactions()
    old = txn.init()
    successor = txn.init()
    txn.add(successor, version=0)
    txn.end(successor, version=0)
    txn.complete()
    with refused(FENCED):
        txn.end(old)


# -- the level of the feature


def test_records_follow_the_level_of_the_feature() -> None:
    for level, version in ((0, b"\x00\x00"), (1, b"\x00\x01"), (2, b"\x00\x01")):
        txn = Transactions(level)
        txn.init()
        record, _ = txn.log[-1]
        assert (
            not isinstance(record, bool)
            and record.value is not None
            and record.value[:2] == version
        )


def test_a_client_may_change_the_protocol_between_two_transactions() -> None:
    txn = Transactions()
    producer = txn.init()
    txn.add(producer, version=0)
    txn.end(producer, version=0)
    txn.complete()
    txn.add(producer, TopicPartition("c", 0))
    following = txn.end(producer)
    assert (following, txn.complete().transaction_version) == ((4000, 1), 2)
    txn.add(following, version=0)
    assert txn.end(following, version=0) == NOBODY
    assert txn.complete().producer == following


def test_a_fast_clock_of_the_previous_coordinator_delays_no_timeout() -> None:
    """The previous coordinator's clock was hours ahead: its transaction times out after the
    duration that this coordinator measures.
    """
    txn = Transactions()
    producer = txn.init(timeout_ms=20_000)
    txn.now = Moment(txn.now.seconds, txn.now.wall_ms + 10_000_000)
    txn.add(producer, A0)
    txn.now = Moment(txn.now.seconds, txn.now.wall_ms - 10_000_000)
    txn.fail_over()
    txn.advance(20)
    txn.add(producer, A1)
    assert txn.state() == "Ongoing"
    txn.advance(21)
    assert not txn.complete().committed
