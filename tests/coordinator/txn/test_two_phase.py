"""Prepared transactions (KIP-939): who may end one, what survives a failover, and the effect of
timeouts.
"""

from __future__ import annotations

from typing import Any

import pytest

from mqd.coordinator.shard import Producer
from mqd.coordinator.txn import records
from mqd.coordinator.txn.operations import (
    InitializeProducer,
    ListTransactions,
    PartitionsSealed,
    SealPartitions,
    check,
)
from mqd.coordinator.txn.transaction import (
    EPOCH_MAX,
    TWO_PHASE_TIMEOUT_MS,
    ProducerIdWanted,
    Transaction,
)
from mqd.errors import ErrorCode
from mqd.types import TopicPartition
from tests.coordinator.txn.transactions import A0, A1, B0, OPTIONS, Options, Transactions, refused

TIMEOUT_MS = 20_000
FOREVER = 50_000.0


class TwoPhase(Transactions):
    """Transactions, with a method for each step of a two-phase commit."""

    def keep(
        self, expected: tuple[int, int] | None = None, *, two_phase: bool = True, spare: int = -1
    ) -> Any:
        """One InitProducerId that keeps the open transaction."""
        who = Producer(*expected) if expected else None
        return self.ask_now(
            InitializeProducer("t", TIMEOUT_MS, who, spare, two_phase=two_phase, keep_prepared=True)
        )

    def seals(self) -> list[SealPartitions]:
        """The requested seals, which it removes."""
        wanted = [effect for effect in self.effects if isinstance(effect, SealPartitions)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, SealPartitions)]
        return wanted

    def seal(self) -> SealPartitions:
        """Each partition gets its only requested seal."""
        (wanted,) = self.seals()
        assert not self.sealed(wanted)
        return wanted

    def sealed(self, wanted: SealPartitions, *partitions: TopicPartition) -> bool:
        more: bool = self.ask_now(
            PartitionsSealed("t", wanted.producer, partitions or wanted.partitions)
        )["pending"]
        return more

    def prepared(
        self, *partitions: TopicPartition, two_phase: bool = True
    ) -> tuple[Producer, Producer]:
        """The producer of the records of a prepared transaction, and its owner."""
        writer = self.init(timeout_ms=TIMEOUT_MS)
        self.add(writer, *(partitions or (A0, A1)))
        with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
            self.keep(writer, two_phase=two_phase)
        self.seal()
        answer = self.keep(writer, two_phase=two_phase)
        found = Producer(answer["ongoing_txn_producer_id"], answer["ongoing_txn_producer_epoch"])
        assert found == writer
        return found, Producer(answer["producer_id"], answer["producer_epoch"])


@pytest.fixture(params=[0, 2])
def txn(request: pytest.FixtureRequest) -> TwoPhase:
    return TwoPhase(request.param)


def test_preparing_seals_first_and_then_returns_the_owner(txn: TwoPhase) -> None:
    writer = txn.init(timeout_ms=TIMEOUT_MS)
    txn.add(writer, A0, A1)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        txn.keep(writer)
    (wanted,) = txn.seals()
    assert wanted == SealPartitions(
        "t", Producer(writer.producer_id, writer.producer_epoch + 1), (A0, A1)
    )
    assert txn.sealed(wanted, A0), "another partition is not sealed yet"
    written = len(txn.log)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        txn.keep(writer)
    assert not txn.sealed(wanted, A1)
    for _ in range(2):
        assert txn.keep(writer) == {
            "producer_id": writer.producer_id,
            "producer_epoch": writer.producer_epoch + 1,
            "ongoing_txn_producer_id": writer.producer_id,
            "ongoing_txn_producer_epoch": writer.producer_epoch,
        }
    assert len(txn.log) == written and not txn.seals(), "repeats write nothing"
    assert txn.state() == "Ongoing"


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_only_the_owner_ends_it_and_may_retry(txn: TwoPhase, commit: bool, version: int) -> None:
    writer, owner = txn.prepared()
    for stranger in (writer, Producer(owner.producer_id, owner.producer_epoch + 1)):
        with refused(ErrorCode.PRODUCER_FENCED):
            txn.end(stranger, commit=commit, version=version)
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        txn.end(
            Producer(owner.producer_id + 77, owner.producer_epoch), commit=commit, version=version
        )
    after = txn.end(owner, commit=commit, version=version)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        txn.end(owner, commit=commit, version=version)
    markers = txn.complete()
    assert markers.committed == commit and markers.partitions == (A0, A1)
    assert markers.producer == (writer.producer_id, writer.producer_epoch + 1)
    assert markers.transaction_version < 2, "the partitions have this epoch since the seal"
    for _ in range(2):
        assert txn.end(owner, commit=commit, version=version) == after
        txn.fail_over()
    with refused(ErrorCode.INVALID_TXN_STATE):
        txn.end(owner, commit=not commit, version=version)
    with refused(ErrorCode.PRODUCER_FENCED):
        txn.end(writer, commit=commit, version=version)
    if version:
        assert after == (owner.producer_id, owner.producer_epoch + 1)
        txn.add(after, B0)


def test_a_prepared_transaction_accepts_no_records(txn: TwoPhase) -> None:
    writer, owner = txn.prepared()
    for version in (0, 2):
        with refused(ErrorCode.PRODUCER_FENCED):
            txn.add(writer, A0, version=version)
        with refused(ErrorCode.INVALID_TXN_STATE):
            txn.add(owner, A0, version=version)
    with refused(ErrorCode.PRODUCER_FENCED):
        txn.verify(writer, A0)
    with refused(ErrorCode.INVALID_TXN_STATE):
        txn.verify(owner, A0)


def test_a_prepared_transaction_never_times_out_and_another_does(txn: TwoPhase) -> None:
    writer, owner = txn.prepared()
    txn.advance(FOREVER)
    txn.fail_over()
    txn.advance(FOREVER)
    assert txn.state() == "Ongoing" and not txn.markers()
    assert txn.describe()["transaction_timeout_ms"] == TWO_PHASE_TIMEOUT_MS
    txn.end(owner)
    txn.complete()
    writer = txn.init(timeout_ms=TIMEOUT_MS)
    txn.add(writer, A0)
    txn.advance(TIMEOUT_MS / 1000 + 11)
    assert not txn.complete().committed
    assert "ongoing_txn_producer_id" not in txn.keep(None if txn.version < 2 else writer), (
        "there is no transaction left to prepare"
    )


def test_preparing_without_enable_2pc_keeps_the_timeout(txn: TwoPhase) -> None:
    _, owner = txn.prepared(two_phase=False)
    txn.advance(TIMEOUT_MS / 1000 + 11)
    assert not txn.complete().committed
    with refused(ErrorCode.PRODUCER_FENCED if txn.version < 2 else ErrorCode.INVALID_TXN_STATE):
        txn.end(owner)


def test_enable_2pc_without_prepare_ignores_the_timeout_like_kafka(txn: TwoPhase) -> None:
    producer = Producer(
        *txn.ask_now(InitializeProducer("t", 0, spare_producer_id=4000, two_phase=True)).values()
    )
    txn.add(producer, A0)
    txn.advance(FOREVER)
    assert txn.state() == "Ongoing" and not txn.markers()
    txn.end(producer)
    assert txn.complete().committed


def test_the_preparation_survives_the_coordinator(txn: TwoPhase) -> None:
    writer, owner = txn.prepared()
    txn.fail_over()
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        txn.keep(writer)
    txn.seal()
    assert txn.keep(writer)["producer_epoch"] == owner.producer_epoch
    with refused(ErrorCode.PRODUCER_FENCED):
        txn.end(writer)
    txn.fail_over()
    txn.end(owner)
    txn.fail_over()
    assert txn.complete().producer == (writer.producer_id, writer.producer_epoch + 1)
    txn.end(owner)


def test_recovery_makes_a_new_owner_and_fences_the_previous_one(txn: TwoPhase) -> None:
    writer, owner = txn.prepared()
    answer = txn.keep()
    found = Producer(answer["ongoing_txn_producer_id"], answer["ongoing_txn_producer_epoch"])
    assert found == writer
    newest = Producer(answer["producer_id"], answer["producer_epoch"])
    assert newest == (owner.producer_id, owner.producer_epoch + 1)
    for stranger in (writer, owner):
        with refused(ErrorCode.PRODUCER_FENCED):
            txn.end(stranger)
        with refused(ErrorCode.PRODUCER_FENCED):
            txn.keep(stranger)
    txn.end(newest)
    assert txn.complete().producer == (writer.producer_id, writer.producer_epoch + 1)
    txn.end(newest)


def test_initializing_without_keeping_aborts_it(txn: TwoPhase) -> None:
    writer, owner = txn.prepared()
    with refused(ErrorCode.PRODUCER_FENCED):
        txn.init(writer)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        txn.init()
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        txn.end(owner)
    assert not txn.complete().committed
    with refused(ErrorCode.INVALID_TXN_STATE if txn.version >= 2 else ErrorCode.PRODUCER_FENCED):
        txn.end(owner)
    following = txn.init()
    assert following == (owner.producer_id, owner.producer_epoch + 2)
    for stranger in (writer, owner):
        with refused(ErrorCode.PRODUCER_FENCED):
            txn.end(stranger)


def test_the_owner_may_abort_by_initializing(txn: TwoPhase) -> None:
    _, owner = txn.prepared()
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        txn.init(owner)
    assert not txn.complete().committed


def test_without_an_open_transaction_keeping_only_initializes(txn: TwoPhase) -> None:
    first = txn.init(timeout_ms=TIMEOUT_MS)
    assert txn.keep(first) == {
        "producer_id": first.producer_id,
        "producer_epoch": first.producer_epoch + 1,
    }
    assert txn.describe()["transaction_timeout_ms"] == TWO_PHASE_TIMEOUT_MS


def test_another_producer_prepares_nothing(txn: TwoPhase) -> None:
    txn.init(timeout_ms=TIMEOUT_MS)
    writer = txn.init(timeout_ms=TIMEOUT_MS)
    txn.add(writer, A0)
    for stranger in (
        (writer.producer_id, writer.producer_epoch - 1),
        (writer.producer_id + 5, writer.producer_epoch),
    ):
        with refused(ErrorCode.PRODUCER_FENCED):
            txn.keep(stranger)
    assert not txn.seals()


def near_the_end_of_epochs(txn: TwoPhase, epoch: int) -> Producer:
    record = records.encode(
        "t",
        Transaction(3000, epoch - 1, TIMEOUT_MS, updated_ms=0, previous_producer_id=3000),
        version=1,
    )
    txn.log.append((record, Producer(-1, -1)))
    txn.fail_over()
    writer = txn.init(timeout_ms=TIMEOUT_MS)
    assert writer == (3000, epoch)
    txn.add(writer, A0)
    return writer


def test_with_exhausted_epochs_the_owner_has_a_new_producer_id(txn: TwoPhase) -> None:
    writer = near_the_end_of_epochs(txn, EPOCH_MAX - 1)
    with pytest.raises(ProducerIdWanted):
        txn.keep(writer)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        txn.keep(writer, spare=5000)
    assert txn.seal().producer == (3000, EPOCH_MAX)
    answer = txn.keep(writer)
    assert (answer["producer_id"], answer["producer_epoch"]) == (5000, 0)
    txn.fail_over()
    with refused(ErrorCode.PRODUCER_FENCED):
        txn.end(writer)
    after = txn.end(Producer(5000, 0))
    assert after == (5000, 1)
    assert txn.complete().producer == (3000, EPOCH_MAX)
    assert txn.end(Producer(5000, 0)) == after


def test_exhausted_owner_epochs_give_the_next_transaction_a_new_id(
    txn: TwoPhase,
) -> None:
    writer = near_the_end_of_epochs(txn, EPOCH_MAX - 2)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        txn.keep(writer)
    txn.seal()
    owner = Producer(3000, EPOCH_MAX - 1)
    assert txn.keep(writer)["producer_epoch"] == owner.producer_epoch
    after = txn.end(owner)
    assert after.producer_epoch == 0 and after.producer_id >= 4000
    assert txn.complete().producer == owner, "the seal"
    assert txn.end(owner) == after
    with refused(ErrorCode.INVALID_TXN_STATE):
        txn.end(owner, commit=False)


def test_seals_of_an_earlier_transaction_are_ignored(txn: TwoPhase) -> None:
    writer = txn.init(timeout_ms=TIMEOUT_MS)
    txn.add(writer, A0)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        txn.keep(writer)
    (wanted,) = txn.seals()
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        txn.init()
    txn.complete()
    assert not txn.sealed(wanted)


def test_an_older_reader_sees_a_transaction_that_never_times_out() -> None:
    """Apache Kafka's schema represents it: an open transaction with Kafka's mark of two-phase
    commit.
    """
    txn = TwoPhase()
    txn.prepared()
    last = txn.log[-1][0]
    assert isinstance(last, tuple)
    decoded = records.decode(last)
    assert decoded is not None and decoded[1] is not None
    assert decoded[1].state.label == "Ongoing" and decoded[1].timeout_ms == TWO_PHASE_TIMEOUT_MS


@pytest.mark.parametrize(
    "change",
    [{"two_phase": True}, {"keep_prepared": True}, {"two_phase": True, "keep_prepared": True}],
)
def test_without_the_option_it_is_refused_as_apache_kafka_does(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    options: Any = Options()
    monkeypatch.setitem(OPTIONS, "transaction.two.phase.commit.enable", False)
    with refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
        check(InitializeProducer("t", TIMEOUT_MS, **change), options)
    check(InitializeProducer("t", TIMEOUT_MS), options)


def test_administrators_see_prepared_transactions_and_their_owners(txn: TwoPhase) -> None:
    _, owner = txn.prepared()
    described = txn.describe()
    assert (described["owner_producer_id"], described["owner_producer_epoch"]) == owner
    assert txn.ask_now(ListTransactions())["transaction_states"][0]["prepared"]
    txn.end(owner)
    assert (
        txn.describe()["owner_producer_epoch"],
        txn.ask_now(ListTransactions())["transaction_states"][0]["prepared"],
    ) == (-1, False)
