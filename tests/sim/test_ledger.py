"""The checks of transactions and copies: each anomaly is found, and valid histories have none."""

from __future__ import annotations

from mqd.testing.ledger import MEANINGS, Ledger, Transaction, copy_of
from mqd.types import TopicPartition

A, T = TopicPartition("a", 0), TopicPartition("t", 0)
U = TopicPartition("t", 1)


def written(
    ledger: Ledger, name: str, *values: tuple[TopicPartition, bytes], outcome: str
) -> Transaction:
    transaction = ledger.begin(name)
    for partition, value in values:
        ledger.write(transaction, partition, value)
    if outcome != "aborted":
        transaction.commit_requested()
    transaction.committed() if outcome == "committed" else transaction.given_up()
    return transaction


def kinds(
    ledger: Ledger,
    t: list[tuple[int, bytes]],
    u: list[tuple[int, bytes]],
    source: list[tuple[int, bytes]] | None = None,
) -> set[str]:
    committed = {T: t, U: u}
    everything = {T: t, U: u}
    found = ledger.check(committed, everything, {A: source} if source is not None else {})
    assert all(str(anomaly) for anomaly in found)
    return {anomaly.kind for anomaly in found}


def test_all_or_nothing() -> None:
    for outcome, t, u, expected in [
        ("committed", [(0, b"x")], [(0, b"y")], set()),
        ("committed", [(0, b"x")], [], {"txn-lost"}),
        ("unknown", [(0, b"x")], [(0, b"y")], set()),
        ("unknown", [], [], set()),
        ("unknown", [(0, b"x")], [], {"txn-torn"}),
        ("aborted", [], [], set()),
        ("aborted", [], [(0, b"y")], {"txn-aborted-read"}),
    ]:
        ledger = Ledger()
        written(ledger, "w.1", (T, b"x"), (U, b"y"), outcome=outcome)
        assert kinds(ledger, t, u) == expected, (outcome, t, u)


def test_a_replaced_producer_commits_nothing() -> None:
    ledger = Ledger()
    transaction = ledger.begin("w.1")
    ledger.write(transaction, T, b"x")
    transaction.replaced = True
    transaction.commit_requested()
    assert not transaction.requested and kinds(ledger, [(0, b"x")], []) == {"txn-aborted-read"}
    ledger.committed(transaction)
    assert kinds(ledger, [], []) == {"txn-aborted-read", "txn-zombie"}


def test_a_commit_that_was_requested_before_may_take_effect() -> None:
    ledger = Ledger()
    transaction = ledger.begin("w.1")
    ledger.write(transaction, T, b"x")
    transaction.commit_requested()
    transaction.replaced = True
    ledger.committed(transaction)
    assert kinds(ledger, [(0, b"x")], []) == set()


def test_records_are_stored_once_in_order_and_known() -> None:
    ledger = Ledger()
    written(ledger, "w.1", (T, b"x"), (T, b"y"), outcome="committed")
    assert kinds(ledger, [(0, b"y"), (1, b"x")], []) == {"txn-reordered"}
    assert kinds(ledger, [(0, b"x"), (1, b"y"), (2, b"y")], []) >= {"txn-duplicate"}
    assert kinds(ledger, [(0, b"x"), (1, b"y"), (2, b"z")], []) >= {"txn-unknown"}


def test_a_read_committed_reader_sees_a_subset_of_all_records() -> None:
    ledger = Ledger()
    written(ledger, "w.1", (T, b"x"), outcome="committed")
    assert {one.kind for one in ledger.check({T: [(0, b"x")]}, {T: [(1, b"x")]}, {})} == {
        "txn-ghost"
    }


def test_readers_got_the_final_records() -> None:
    ledger = Ledger()
    written(ledger, "w.1", (T, b"x"), (T, b"y"), outcome="committed")
    ledger.read("r", T, [(0, b"x")])
    assert kinds(ledger, [(0, b"x"), (1, b"y")], []) == set()
    assert ledger.unread("r", T, [(0, b"x"), (1, b"y")]) == [(1, b"y")]
    ledger.read("r", T, [(2, b"z")])
    assert kinds(ledger, [(0, b"x"), (1, b"y")], []) == {"txn-reader"}


def test_a_copy_is_complete_without_repetition_and_in_order() -> None:
    source = [(0, b"m"), (1, b"n")]
    first, second = copy_of(A, 0, b"m"), copy_of(A, 1, b"n")
    for t, expected in [
        ([(0, first), (1, second)], set()),
        ([(0, second), (1, first)], {"copy-reordered"}),
        ([(0, first)], {"copy-missing"}),
        ([(0, first), (1, first), (2, second)], {"copy-twice", "txn-duplicate"}),
        ([(0, first), (1, second), (2, copy_of(A, 2, b"o"))], {"copy-unknown", "txn-unknown"}),
        ([(0, first), (1, copy_of(A, 1, b"N"))], {"copy-unknown", "txn-unknown", "copy-missing"}),
    ]:
        ledger = Ledger()
        written(ledger, "c.1", (T, first), outcome="unknown")
        written(ledger, "c.2", (T, second), outcome="unknown")
        assert kinds(ledger, t, [], source) == expected, t


def test_a_repeated_copy_is_not_a_torn_transaction() -> None:
    """Its values are the same."""
    ledger = Ledger()
    first, second = copy_of(A, 0, b"m"), copy_of(A, 1, b"n")
    written(ledger, "c.1", (T, first), (T, second), outcome="unknown")
    written(ledger, "c.2", (T, first), outcome="committed")
    assert kinds(ledger, [(0, first)], [], [(0, b"m")]) == set()


def test_last_stable_offsets_do_not_decrease_under_one_leader() -> None:
    def report(
        ledger: Ledger, stable: int, *, node: int = 1, epoch: int = 3, newest: int = -1
    ) -> None:
        ledger.fetched(
            "r",
            T,
            node=node,
            leader_epoch=epoch,
            log_start=0,
            last_stable=stable,
            high_watermark=9,
            newest=newest,
        )

    ledger = Ledger()
    report(ledger, 5)
    report(ledger, 4, node=2)
    report(ledger, 4, epoch=4)
    ledger.restarted(1)
    report(ledger, 4)
    assert kinds(ledger, [], []) == set()
    report(ledger, 3)
    assert kinds(ledger, [], []) == {"stable-back"}
    report(ledger, 5, newest=5)
    report(ledger, 10)
    assert kinds(ledger, [], []) == {"stable-back", "beyond-stable", "stable-beyond-watermark"}


def test_every_kind_has_its_meaning() -> None:
    assert all(text and text[0].islower() for text in MEANINGS.values())


def test_broken_promises_of_a_prepared_transaction_are_reported() -> None:
    ledger = Ledger()
    transaction = ledger.begin("task0.1")
    ledger.write(transaction, T, b"x")
    ledger.broken("2pc-stolen", transaction, "PRODUCER_FENCED")
    (found,) = ledger.check({T: []}, {T: []}, {})
    assert (found.kind, found.count) == ("2pc-stolen", 1) and "task0.1: PRODUCER_FENCED" in str(
        found
    )
