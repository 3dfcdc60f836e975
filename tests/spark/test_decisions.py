"""The decision record of mode atomic-batch, and the transactional ids of Python workers."""

from __future__ import annotations

import pytest

from pyspark_mqd.decisions import (
    ENTRY_CHARACTERS_MAX,
    NO_BATCH,
    NO_CONTENTS,
    CommitAction,
    Contents,
    Decision,
    Place,
    Prepared,
    Slots,
    commit_action_of,
    decision_of,
    entries_of,
    entry_count_of,
    orphans_of,
    places,
)
from pyspark_mqd.errors import OptionError
from pyspark_mqd.markers import ExactlyOnceError, RowSum
from pyspark_mqd.transaction_ids import (
    IdKind,
    Owner,
    check_identity,
    driver_id,
    identity_of,
    owner_of,
    task_id,
    worker_id,
    worker_pattern_of,
)

QUERY = "orders"
QUERY_ID = "1f0b3c0e-2f44-4b0e-9a52-0d7a3f7b2f10"
CLAIM = "0123456789abcdef"
CONTENTS = Contents(RowSum(10, 77), 1_795_420_344_914)
NOTHING = Decision(NO_BATCH, QUERY_ID, (), True, CLAIM)


def decision(batch_id: int, count: int = 2, *, ended: bool = False) -> Decision:
    rows = tuple(
        Prepared(worker_id(QUERY, f"{index:012x}", index % 3), 1000 + index, index % 50)
        for index in range(count)
    )
    return Decision(batch_id, QUERY_ID, rows, ended, CLAIM, CONTENTS)


def action(
    found: Decision | None,
    batch_id: int,
    *,
    accept: bool = False,
    contents: Contents = CONTENTS,
    accept_changed: bool = False,
) -> CommitAction:
    return commit_action_of(
        found,
        batch_id=batch_id,
        query_id=QUERY_ID,
        query=QUERY,
        claim=CLAIM,
        contents=contents,
        accept_missing=accept,
        accept_changed=accept_changed,
    )


@pytest.mark.parametrize("count", [0, 1, 32, 1000])
def test_a_decision_survives_its_entries(count: int) -> None:
    written = decision(7, count)
    entries = entries_of(written, QUERY)

    assert max(map(len, entries)) <= ENTRY_CHARACTERS_MAX
    assert entry_count_of(entries[0], "orders.driver") == len(entries)
    assert decision_of([written.offset] * len(entries), entries, QUERY) == written


def test_a_decision_of_many_tasks_takes_several_entries_and_groups() -> None:
    entries = entries_of(decision(7, 1000), QUERY)

    assert len(entries) > 6
    assert places(4, 3) == [Place(0, 0), Place(0, 1), Place(0, 2), Place(1, 0)]


def test_entries_that_do_not_fit_together_are_refused() -> None:
    entries = entries_of(decision(7, 1000), QUERY)
    older = entries_of(decision(6, 1000, ended=True), QUERY)

    for batch_ids, found in (
        ([7] * (len(entries) - 1), entries[:-1]),
        ([7] * (len(entries) - 1) + [6], entries),
        ([7] * len(entries), [entries[0], *older[1:-1], older[-1] + "1"]),
        ([7], ["{}"]),
        ([7], ["no json"]),
    ):
        with pytest.raises(ExactlyOnceError, match=r"'orders\.driver' cannot be read"):
            decision_of(batch_ids, found, QUERY)


def test_a_record_of_another_format_stops_the_query() -> None:
    head = '{"v":1,"query":"a","claim":"","ended":true,"entries":1,"crc":0}'

    with pytest.raises(
        ExactlyOnceError, match=r"'orders\.driver' has a decision record of format 1"
    ):
        decision_of([8], [head], QUERY)


@pytest.mark.parametrize(
    ("found", "batch_id", "expected"),
    [
        (NOTHING, 0, CommitAction.DECIDE),
        (decision(6).as_ended(), 7, CommitAction.DECIDE),
        (decision(7), 7, CommitAction.ROLL_FORWARD),
        (decision(7).as_ended(), 7, CommitAction.ALREADY_COMMITTED),
    ],
)
def test_what_commit_does(found: Decision | None, batch_id: int, expected: CommitAction) -> None:
    assert action(found, batch_id) is expected


PLANNED_MS = CONTENTS.planned_ms
DECIDED = [decision(7), decision(7).as_ended()]


@pytest.mark.parametrize("found", DECIDED, ids=["not ended", "ended"])
@pytest.mark.parametrize(
    "contents",
    [
        pytest.param(Contents(RowSum(90, 5), 1_795_420_399_999), id="planned again"),
        pytest.param(Contents(RowSum(90, 5)), id="without a local checkpoint"),
        pytest.param(Contents(RowSum(10, 78)), id="other rows"),
    ],
)
def test_the_same_id_with_other_contents_stops_the_query(
    found: Decision, contents: Contents
) -> None:
    """Spark plans an id again when an older checkpoint was restored: its rows are not in D."""
    with pytest.raises(
        ExactlyOnceError, match=r"10 rows \(hash 77\), but this run of the batch has"
    ):
        action(found, 7, contents=contents)


@pytest.mark.parametrize("found", DECIDED, ids=["not ended", "ended"])
@pytest.mark.parametrize(
    "contents",
    [
        pytest.param(Contents(RowSum(10, 78), PLANNED_MS), id="a plan that is not deterministic"),
        pytest.param(Contents(RowSum(10, 77), 1_795_420_399_999), id="planned again, same offsets"),
        pytest.param(Contents(RowSum(10, 77)), id="without a local checkpoint"),
    ],
)
def test_the_same_batch_is_committed_already(found: Decision, contents: Contents) -> None:
    assert action(found, 7, contents=contents) is not CommitAction.DECIDE


def test_changed_rows_are_accepted_where_none_is_lost() -> None:
    found = decision(7).as_ended()

    fewer = Contents(RowSum(9, 5))
    assert action(found, 7, contents=fewer, accept_changed=True) is CommitAction.ALREADY_COMMITTED
    with pytest.raises(ExactlyOnceError, match="set option 'acceptChangedRows' to 'true'"):
        action(found, 7, contents=fewer)
    for accept_changed in (True, False):
        with pytest.raises(ExactlyOnceError, match="does not apply, because 1 rows would be lost"):
            action(found, 7, contents=Contents(RowSum(11, 5)), accept_changed=accept_changed)


def test_no_contents_are_those_of_no_rows() -> None:
    assert NO_CONTENTS.is_same(Contents(RowSum(), 5))
    assert not Contents(RowSum(1, 5)).is_same(Contents(RowSum(1, 6)))


@pytest.mark.parametrize("found", [NOTHING, decision(5).as_ended()])
def test_an_expired_record_stops_the_query(found: Decision | None) -> None:
    with pytest.raises(ExactlyOnceError, match=r"record of batch 6 is missing.*acceptMissing"):
        action(found, 7)
    assert action(found, 7, accept=True) is CommitAction.DECIDE


def test_an_older_checkpoint_and_another_one_stop_the_query() -> None:
    with pytest.raises(ExactlyOnceError, match="The checkpoint is older"):
        action(decision(8).as_ended(), 7)
    with pytest.raises(ExactlyOnceError, match="the checkpoint is another"):
        action(Decision(6, "another", (), True, CLAIM), 7)


@pytest.mark.parametrize("found", [None, Decision(6, QUERY_ID, (), True, "another")])
def test_a_commit_without_the_newest_claim_stops(found: Decision | None) -> None:
    with pytest.raises(ExactlyOnceError, match="another run of this query has started"):
        action(found, 7, accept=True)


def test_a_batch_is_not_decided_before_the_one_before_has_ended() -> None:
    with pytest.raises(ExactlyOnceError, match="decided but not ended"):
        action(decision(6), 7)


def test_orphans_are_open_and_not_decided() -> None:
    decided = decision(7, 2)
    kept = [each.transactional_id for each in decided.transactions]

    assert orphans_of([*kept, "orders.b.0", "orders.a.0"], decided.transactions) == [
        "orders.a.0",
        "orders.b.0",
    ]


def test_a_slot_is_used_again_by_a_later_batch_only() -> None:
    slots = Slots()
    first = slots.take(QUERY, 7)
    slots.give_back(QUERY, first)

    again = slots.take(QUERY, 7)
    assert again != first, "its transaction may be decided"
    slots.give_back(QUERY, again)

    later = {slots.take(QUERY, 8), slots.take(QUERY, 8)}
    assert later == {first, again}
    assert slots.take(QUERY, 9) not in later, "both are in use"
    assert slots.take("another", 7) == 0


def test_ids_belong_to_their_query() -> None:
    worker = worker_id(QUERY, "0123456789ab", 4)

    assert owner_of(task_id(QUERY, 12)) == Owner(QUERY, IdKind.TASK)
    assert owner_of(driver_id(QUERY)) == Owner(QUERY, IdKind.DRIVER)
    assert owner_of(driver_id(QUERY, 3)) == Owner(QUERY, IdKind.DRIVER)
    assert owner_of(worker) == Owner(QUERY, IdKind.WORKER)
    assert owner_of(task_id(identity_of(QUERY_ID), 0)) == Owner(f"spark-{QUERY_ID}", IdKind.TASK)
    assert owner_of("orders") is None
    assert owner_of("orders.x.1") is None


def test_the_pattern_of_workers_matches_the_ids_of_one_query() -> None:
    import re2

    own = [task_id(QUERY, 0), driver_id(QUERY), worker_id(QUERY, "0123456789ab", 4)]
    foreign = ["orders", "orders2-0", "my-orders-0", "ordersxdriver", "orders-0-0"]

    assert [name for name in own + foreign if re2.fullmatch(worker_pattern_of(QUERY), name)] == [
        own[2]
    ]


@pytest.mark.parametrize("identity", ["", "a b", "a.b", "orders-1", "x" * 201, "é"])
def test_identities_that_make_ambiguous_ids_are_refused(identity: str) -> None:
    with pytest.raises(OptionError, match="exactlyOnceId"):
        check_identity(identity)


def test_other_identities_are_taken() -> None:
    assert [check_identity(name) for name in ("orders", "a-1b", QUERY_ID)]
