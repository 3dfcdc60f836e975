"""Transactions as a pure state machine."""

from __future__ import annotations

from typing import Any

import pytest

from mqd.client.errors import ClientError, TransactionBroken
from mqd.client.group_member import GroupMetadata
from mqd.client.txn import TRANSITIONS, Phase, Transactions
from mqd.errors import ErrorCode
from mqd.types import TopicPartition
from tests.client.test_group import response

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def ready() -> Transactions:
    it = Transactions("t", 60_000)
    assert it.init_body() == {
        "transactional_id": "t",
        "producer_id": -1,
        "producer_epoch": -1,
        "transaction_timeout_ms": 60_000,
    }
    it.on_init(response(22, producer_id=7, producer_epoch=3))
    return it


def opened(*, version_2: bool) -> Transactions:
    it = ready()
    it.begin(version_2=version_2)
    return it


def added(it: Transactions, codes: dict[int, int]) -> None:
    rows = [
        {"partition_index": index, "partition_error_code": code} for index, code in codes.items()
    ]
    it.on_added(
        _v3({"results_by_topic_v3_and_below": [{"name": "a", "results_by_partition": rows}]})
    )


def _v3(fields: dict[str, Any]) -> Any:
    from mqd.protocol.apis import by_key

    api = by_key(24)
    assert api is not None
    return api.decode_response(3, api.encode_response(3, fields))


def test_version_1_adds_partitions_before_records_are_sent() -> None:
    it = opened(version_2=False)
    it.add_partition(A0)
    assert not it.may_send(A0) and list(it.partitions_to_add) == [A0]
    body = it.add_body([A0])
    assert (
        body["v3_and_below_topics"] == [{"name": "a", "partitions": [0]}]
        and body["v3_and_below_producer_epoch"] == 3
    )
    added(it, {0: 0})
    assert it.may_send(A0) and not it.may_send(A1) and not it.partitions_to_add
    it.end(commit=True)
    assert it.needs_end and it.end_body() == {
        "transactional_id": "t",
        "producer_id": 7,
        "producer_epoch": 3,
        "committed": True,
    }
    assert not it.on_ended(response(26))
    it.complete()
    assert it.phase is Phase.READY and it.producer_epoch == 3 and not it.partitions


def test_version_2_adds_no_partitions_and_takes_a_new_epoch_at_each_end() -> None:
    it = opened(version_2=True)
    it.add_partition(A0)
    assert it.may_send(A0) and not it.partitions_to_add
    it.end(commit=False)
    assert it.needs_end and not it.end_body()["committed"]
    assert it.on_ended(response(26, producer_id=7, producer_epoch=4))
    it.complete()
    assert it.producer_epoch == 4


def test_an_empty_transaction_needs_no_end() -> None:
    for version_2 in (False, True):
        it = opened(version_2=version_2)
        it.end(commit=True)
        assert not it.needs_end and not it.needs_epoch


def test_offsets_alone_need_an_end() -> None:
    it = opened(version_2=False)
    it.on_offsets_added(response(25), "g")
    assert "g" in it.groups
    body = it.commit_offsets_body(GroupMetadata("g", 4, "me", None), {A0: 10})
    assert body["generation_id"] == 4 and body["member_id"] == "me" and body["producer_id"] == 7
    it.end(commit=True)
    assert it.needs_end


def test_an_end_in_doubt_requests_an_epoch_only_in_version_1() -> None:
    for version_2 in (False, True):
        it = opened(version_2=version_2)
        it.add_partition(A0)
        if not version_2:
            added(it, {0: 0})
        it.fail(ClientError(ErrorCode.REQUEST_TIMED_OUT, "late"))
        assert it.phase is Phase.BROKEN and not it.may_send(A0)
        it.end(commit=False)
        assert (it.needs_epoch, it.needs_end) == ((False, True) if version_2 else (True, False))
        assert it.init_body()["producer_id"] == 7


def test_a_broken_transaction_can_only_be_aborted() -> None:
    it = opened(version_2=True)
    it.add_partition(A0)
    it.fail(ClientError(ErrorCode.MESSAGE_TOO_LARGE, "too large"), outcome_uncertain=False)
    for refused in (it.check_open, lambda: it.end(commit=True), lambda: it.begin(version_2=True)):
        with pytest.raises(TransactionBroken, match="only be aborted: too large"):
            refused()
    it.end(commit=False)
    it.on_ended(response(26, producer_id=7, producer_epoch=4))
    it.complete()
    it.begin(version_2=True)


def test_the_worst_of_several_responses_counts() -> None:
    it = opened(version_2=False)
    it.add_partition(A0)
    it.add_partition(A1)
    with pytest.raises(ClientError) as caught:
        added(it, {0: 55, 1: 29})
    assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(ClientError) as caught:
        added(it, {0: 55, 1: 51})
    assert caught.value.retriable and not it.known_to_brokers


@pytest.mark.parametrize("code", [90, 47])
def test_a_newer_epoch_at_the_coordinator_ends_the_producer(code: int) -> None:
    it = opened(version_2=True)
    it.add_partition(A0)
    it.end(commit=True)
    with pytest.raises(ClientError):
        it.on_ended(response(26, error_code=code))
    assert it.phase is Phase.DEAD
    with pytest.raises(ClientError) as caught:
        it.begin(version_2=True)
    assert "another producer uses this transactional id" in caught.value.remedy


def test_a_newer_epoch_at_a_leader_breaks_only_the_transaction() -> None:
    it = opened(version_2=True)
    it.add_partition(A0)
    it.fail(ClientError(ErrorCode.INVALID_PRODUCER_EPOCH, "old"))
    assert it.phase is Phase.BROKEN


@pytest.mark.parametrize("fatal", [False, True])
def test_a_commit_that_fails_during_retries_raises_the_cause(fatal: bool) -> None:
    it = opened(version_2=True)
    it.add_partition(TopicPartition("a", 0))
    it.end(commit=True)
    it.fail(
        ClientError(
            ErrorCode.INVALID_TXN_STATE if fatal else ErrorCode.REQUEST_TIMED_OUT,
            "a late batch was refused",
        )
    )
    with pytest.raises(ClientError, match="a late batch was refused"):
        it.end_body()


def test_a_commit_that_must_be_aborted_is_aborted() -> None:
    it = opened(version_2=True)
    it.add_partition(A0)
    it.end(commit=True)
    with pytest.raises(ClientError):
        it.on_ended(response(26, error_code=int(ErrorCode.TRANSACTION_ABORTABLE)))
    assert it.phase is Phase.BROKEN
    it.end(commit=False)
    assert it.needs_end


@pytest.mark.parametrize("code", [14, 15, 16, 51])
def test_transient_errors_are_retried(code: int) -> None:
    it = opened(version_2=True)
    it.add_partition(A0)
    it.end(commit=True)
    with pytest.raises(ClientError) as caught:
        it.on_ended(response(26, error_code=code))
    assert caught.value.retriable and it.phase is Phase.COMMITTING
    it.end(commit=True)


def test_calls_in_the_wrong_phase_are_refused() -> None:
    it = ready()
    for refused in (it.check_open, lambda: it.end(commit=True), lambda: it.end(commit=False)):
        with pytest.raises(ClientError) as caught:
            refused()
        assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    it.begin(version_2=False)
    with pytest.raises(ClientError, match="in a transaction"):
        it.begin(version_2=False)


def test_a_refused_id_makes_the_producer_unusable() -> None:
    it = Transactions("t", 60_000)
    phases = []
    for code in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TRANSACTION_TIMEOUT):
        with pytest.raises(ClientError):
            it.on_init(response(22, error_code=int(code)))
        phases.append(it.phase)
    assert phases == [Phase.NEW, Phase.DEAD]


def test_every_phase_is_in_the_table_and_dead_is_final() -> None:
    assert set(TRANSITIONS) == set(Phase) and not TRANSITIONS[Phase.DEAD]
    assert all(
        Phase.DEAD in goals for phase, goals in TRANSITIONS.items() if phase is not Phase.DEAD
    )
