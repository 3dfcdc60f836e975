"""Which open transactions of a query may be aborted, and which a decision record protects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mqd.client.group_descriptions import TransactionDescription
from mqd.types import TopicPartition
from pyspark_mqd.decisions import Decision, Prepared
from pyspark_mqd.pipelines import txn
from pyspark_mqd.transaction_ids import IdKind, task_id, worker_id

Q = "orders-enriched"
W0, W1 = worker_id(Q, "a" * 12, 0), worker_id(Q, "a" * 12, 1)


def described(
    name: str,
    state: str = "Ongoing",
    producer_id: int = 7,
    epoch: int = 3,
    timeout_ms: int = 60_000,
) -> TransactionDescription:
    return TransactionDescription(
        name, "b:9092", state, producer_id, epoch, timeout_ms, 1_000, (TopicPartition("t", 0),)
    )


def test_a_prepared_transaction_is_known_by_its_owner() -> None:
    decision = Decision(5, "id", (Prepared(W0, 7, 4),), ended=False)
    prepared = replace(described(W0, epoch=3), owner=(7, 4))
    assert ids(txn.plan(txn.transactions_of([prepared], Q), decision).decided) == [W0]
    assert ids(txn.plan(txn.transactions_of([described(W0, epoch=3)], Q), decision).abort) == [W0]


def ids(transactions: tuple[txn.Transaction, ...]) -> list[str]:
    return [each.about.transactional_id for each in transactions]


def test_transactions_belong_to_queries_by_name() -> None:
    names = [
        task_id(Q, 0),
        task_id(Q, 11),
        f"{Q}.driver",
        W0,
        "orders-3",
        "connect.worker",
        task_id(f"{Q}-b", 0),
    ]
    found = txn.transactions_of([described(name) for name in names], None)
    assert {(each.query, each.kind) for each in found} == {
        (Q, IdKind.TASK),
        (Q, IdKind.DRIVER),
        (Q, IdKind.WORKER),
        ("orders", IdKind.TASK),
        (f"{Q}-b", IdKind.TASK),
    }
    assert [
        each.about.transactional_id
        for each in txn.transactions_of([described(name) for name in names], Q)
    ] == sorted(names[:4])


def test_open_transactions_without_a_decision_are_aborted() -> None:
    rows = [
        described(task_id(Q, 0)),
        described(task_id(Q, 1), "CompleteCommit"),
        described(task_id(Q, 2), "PrepareCommit"),
    ]
    planned = txn.plan(txn.transactions_of(rows, Q), None)
    assert (ids(planned.abort), ids(planned.decided), ids(planned.ending)) == (
        [task_id(Q, 0)],
        [],
        [task_id(Q, 2)],
    )


def test_a_decided_transaction_is_never_aborted() -> None:
    decision = Decision(5, "id", (Prepared(W0, 7, 3), Prepared(W1, 8, 0)), ended=False)
    rows = [described(W0), described(W1, "CompleteCommit", 8), described(worker_id(Q, "b" * 12, 0))]
    planned = txn.plan(txn.transactions_of(rows, Q), decision)
    assert ids(planned.decided) == [W0]
    assert ids(planned.abort) == [worker_id(Q, "b" * 12, 0)]


@pytest.mark.parametrize("ended", [False, True])
def test_a_later_transaction_of_a_decided_id_is_aborted(ended: bool) -> None:
    decision = Decision(5, "id", (Prepared(W0, 7, 2),), ended=ended)
    planned = txn.plan(txn.transactions_of([described(W0, epoch=3)], Q), decision)
    assert (ids(planned.abort), ids(planned.decided)) == ([W0], [])


def test_a_record_that_has_ended_protects_nothing() -> None:
    decision = Decision(5, "id", (Prepared(W0, 7, 3),), ended=True)
    assert ids(txn.plan(txn.transactions_of([described(W0)], Q), decision).abort) == [W0]


def test_rows_show_age_time_out_and_fate() -> None:
    transactions = txn.transactions_of(
        [described(W0, timeout_ms=2**31 - 1), described(W1, "Empty")], Q
    )
    rows = txn.rows_of(transactions, txn.fates_of(txn.plan(transactions, None)), now_ms=61_000)
    assert [
        (row["open_seconds"], row["timeout_ms"], row["partitions"], row["fate"]) for row in rows
    ] == [
        (60.0, None, ["t-0"], "to abort"),
        (None, 60_000, [], ""),
    ]
