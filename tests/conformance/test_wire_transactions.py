"""The transaction coordinator on the wire: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn,
EndTxn, DescribeTransactions and ListTransactions in every version, and their errors.

Apache Kafka 4.3.1 returns the same responses (`make conformance-kafka`), except where a test
mentions it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from .conftest import Broker, known_everywhere
from .wire import Wire, create_topic, found_coordinator, until

(
    NONE,
    UNKNOWN_TOPIC,
    LOAD_IN_PROGRESS,
    NOT_AVAILABLE,
    NOT_COORDINATOR,
    TOPIC_AUTHORIZATION,
    INVALID_REQUEST,
) = 0, 3, 14, 15, 16, 29, 42
OLD_EPOCH, WRONG_STATE, NO_MAPPING, INVALID_TIMEOUT, CONCURRENT, NOT_ATTEMPTED, FENCED = (
    47,
    48,
    49,
    50,
    51,
    55,
    90,
)
NOT_FOUND, ABORTABLE, INVALID_EXPRESSION = 105, 120, 128
SOON = {LOAD_IN_PROGRESS, NOT_AVAILABLE, NOT_COORDINATOR}
INIT, ADD, ADD_OFFSETS, END = range(6), range(4), range(5), range(6)


class Who(NamedTuple):
    producer_id: int
    producer_epoch: int

    def next(self) -> Who:
        return Who(self.producer_id, self.producer_epoch + 1)

    def before(self) -> Who:
        return Who(self.producer_id, self.producer_epoch - 1)


class Transactions:
    """Requests of one transactional id; a request is retried when the coordinator is busy."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire, self.name = wire, name

    def settled(self, ask: Callable[[], tuple[int, Any]]) -> tuple[int, Any]:
        def answer() -> Any:
            code, rest = ask()
            return None if code == CONCURRENT or code in SOON else (code, rest)

        found: tuple[int, Any] = until(answer, "the coordinator has time", 30)
        return found

    def init(
        self,
        expected: Who | None = None,
        *,
        version: int = 4,
        timeout_ms: int = 60_000,
        wait: bool = True,
    ) -> tuple[int, Who]:
        who = (
            {"producer_id": expected.producer_id, "producer_epoch": expected.producer_epoch}
            if expected
            else {}
        )

        def ask() -> tuple[int, Who]:
            answer = self.wire.ask(
                "InitProducerId",
                version,
                transactional_id=self.name,
                transaction_timeout_ms=timeout_ms,
                **who,
            )
            return answer.error_code, Who(answer.producer_id, answer.producer_epoch)

        return self.settled(ask) if wait else ask()

    def begin(self) -> Who:
        code, who = self.init()
        assert code == NONE
        return who

    def add(self, who: Who, topic: str, *partitions: int, version: int = 3) -> set[int]:
        """The codes of all partitions."""
        return set(self.add_each(who, {topic: partitions or (0,)}, version=version).values())

    def add_each(
        self, who: Who, topics: dict[str, tuple[int, ...]], *, version: int = 3
    ) -> dict[tuple[str, int], int]:
        rows = [
            {"name": name, "partitions": list(partitions)} for name, partitions in topics.items()
        ]

        def ask() -> tuple[int, dict[tuple[str, int], int]]:
            answer = self.wire.ask(
                "AddPartitionsToTxn",
                version,
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=who.producer_id,
                v3_and_below_producer_epoch=who.producer_epoch,
                v3_and_below_topics=rows,
            )
            codes = {
                (topic.name, row.partition_index): row.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for row in topic.results_by_partition
            }
            return next(iter(codes.values())), codes

        found: dict[tuple[str, int], int] = self.settled(ask)[1]
        return found

    def batched(
        self, who: Who, topic: str, *partitions: int, verify: bool, version: int = 5
    ) -> set[int]:
        row = {
            "transactional_id": self.name,
            **who._asdict(),
            "verify_only": verify,
            "topics": [{"name": topic, "partitions": list(partitions or (0,))}],
        }

        def ask() -> tuple[int, set[int]]:
            answer = self.wire.ask("AddPartitionsToTxn", version, transactions=[row])
            assert answer.error_code == NONE
            (result,) = answer.results_by_transaction
            codes = {
                one.partition_error_code
                for topic in result.topic_results
                for one in topic.results_by_partition
            }
            return (next(iter(codes)) if len(codes) == 1 else NONE), codes

        found: set[int] = self.settled(ask)[1]
        return found

    def add_offsets(self, who: Who, group: str, *, version: int = 3) -> int:
        def ask() -> tuple[int, None]:
            fields = {"transactional_id": self.name, **who._asdict(), "group_id": group}
            return self.wire.ask("AddOffsetsToTxn", version, **fields).error_code, None

        return self.settled(ask)[0]

    def end(self, who: Who, *, commit: bool = True, version: int = 3) -> tuple[int, Who]:
        def ask() -> tuple[int, Who]:
            answer = self.wire.ask(
                "EndTxn", version, transactional_id=self.name, **who._asdict(), committed=commit
            )
            return answer.error_code, Who(answer.producer_id, answer.producer_epoch)

        return self.settled(ask)

    def described(self) -> Any:
        (row,) = self.wire.ask(
            "DescribeTransactions", 0, transactional_ids=[self.name]
        ).transaction_states
        return row

    def until_state(self, state: str) -> Any:
        return until(
            lambda: row if (row := self.described()).transaction_state == state else None,
            f"the state {state}",
            30,
        )


@pytest.fixture
def txn(wire: Wire, new_name: Callable[[], str]) -> Iterator[Transactions]:
    name = new_name()
    with Wire(*found_coordinator(wire, name, 1)) as connection:
        transactions = Transactions(connection, name)
        until(
            lambda: transactions.described().error_code not in SOON,
            "the coordinator has loaded",
            30,
        )
        yield transactions


@pytest.fixture
def topic(broker: Broker, wire: Wire, new_name: Callable[[], str]) -> str:
    name = create_topic(wire, new_name(), partitions=3)
    known_everywhere(broker, name, 3)
    return name


# -- InitProducerId


@pytest.mark.parametrize("version", INIT)
def test_each_initialization_raises_the_epoch(txn: Transactions, version: int) -> None:
    code, first = txn.init(version=version)
    assert (code, first.producer_epoch) == (NONE, 0)
    assert txn.init(version=version) == (NONE, first.next())
    row = txn.described()
    assert (row.transaction_state, row.transaction_timeout_ms, row.transaction_start_time_ms) == (
        "Empty",
        60_000,
        -1,
    )
    assert (row.producer_id, row.producer_epoch, list(row.topics)) == (*first.next(), [])


@pytest.mark.parametrize(
    ("timeout_ms", "code"),
    [(0, INVALID_TIMEOUT), (-1, INVALID_TIMEOUT), (900_001, INVALID_TIMEOUT), (900_000, NONE)],
)
def test_timeouts_have_bounds(txn: Transactions, timeout_ms: int, code: int) -> None:
    assert txn.init(timeout_ms=timeout_ms)[0] == code


def test_a_transactional_id_is_not_empty(txn: Transactions) -> None:
    txn.name = ""
    assert txn.init()[0] == INVALID_REQUEST


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_producer_raises_its_own_epoch(txn: Transactions, version: int) -> None:
    fenced = FENCED if version >= 4 else OLD_EPOCH
    first = txn.begin()
    assert txn.init(first, version=version) == (NONE, first.next())
    assert txn.init(first, version=version) == (NONE, first.next()), "the response was lost"
    assert txn.init(first.next(), version=version) == (NONE, first.next().next())
    assert txn.init(first, version=version) == (fenced, Who(-1, -1))
    assert txn.init(Who(first.producer_id + 10**6, 0), version=version)[0] == fenced
    for half in (Who(first.producer_id, -1), Who(-1, 0)):
        assert txn.init(half, version=version)[0] == INVALID_REQUEST


def test_an_unknown_transactional_id_accepts_any_producer(txn: Transactions) -> None:
    code, who = txn.init(Who(123_456_789, 7))
    assert (code, who.producer_epoch) == (NONE, 0) and who.producer_id != 123_456_789


def test_an_open_transaction_is_aborted_first(txn: Transactions, topic: str) -> None:
    who = txn.begin()
    assert txn.add(who, topic) == {NONE}
    assert txn.init(wait=False) == (CONCURRENT, Who(-1, -1))
    txn.until_state("CompleteAbort")
    assert txn.init() == (NONE, who.next().next())
    assert txn.add(who, topic) == {FENCED}


def test_a_producer_that_recovers_within_its_transaction(txn: Transactions, topic: str) -> None:
    who = txn.begin()
    txn.add(who, topic)
    assert txn.init(who, wait=False)[0] == CONCURRENT
    txn.until_state("CompleteAbort")
    assert txn.init(who) == (NONE, who.next())


# -- AddPartitionsToTxn, AddOffsetsToTxn


@pytest.mark.parametrize("version", ADD)
def test_partitions_are_added(txn: Transactions, topic: str, version: int) -> None:
    who = txn.begin()
    before = int(time.time() * 1000)
    assert txn.add(who, topic, 0, 2, version=version) == {NONE}
    assert txn.add(who, topic, 2, 1, version=version) == {NONE}
    assert txn.add(who, topic, 1, version=version) == {NONE}
    row = txn.described()
    assert (row.transaction_state, row.producer_id, row.producer_epoch) == ("Ongoing", *who)
    assert before - 5000 <= row.transaction_start_time_ms <= int(time.time() * 1000) + 5000
    assert [(one.topic, sorted(one.partitions)) for one in row.topics] == [(topic, [0, 1, 2])]


@pytest.mark.parametrize("version", ADD)
def test_fenced_producers_cannot_add_partitions(
    txn: Transactions, topic: str, version: int
) -> None:
    fenced = FENCED if version >= 2 else OLD_EPOCH
    assert txn.add(Who(1, 0), topic, version=version) == {NO_MAPPING}
    who = txn.begin()
    assert txn.add(who.next(), topic, version=version) == {fenced}
    assert txn.add(Who(who.producer_id + 10**6, 0), topic, version=version) == {NO_MAPPING}
    second = txn.init()[1]
    assert txn.add(who, topic, version=version) == {fenced}
    assert txn.add(second, topic, version=version) == {NONE}
    txn.name = ""
    assert txn.add(who, topic, version=version) == {INVALID_REQUEST}


@pytest.mark.parametrize("version", ADD)
def test_all_partitions_are_added_or_none(txn: Transactions, topic: str, version: int) -> None:
    who = txn.begin()
    wanted = {topic: (0, 3), "no-such-topic": (0,)}
    assert txn.add_each(who, wanted, version=version) == {
        (topic, 0): NOT_ATTEMPTED,
        (topic, 3): UNKNOWN_TOPIC,
        ("no-such-topic", 0): UNKNOWN_TOPIC,
    }
    assert txn.described().transaction_state == "Empty"
    assert set(txn.add_each(who, {"__transaction_state": (0,)}, version=version).values()) == {
        TOPIC_AUTHORIZATION
    }


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_send_requests_for_clients(txn: Transactions, topic: str, version: int) -> None:
    assert txn.batched(Who(1, 0), topic, verify=True, version=version) == {NO_MAPPING}
    who = txn.begin()
    assert txn.batched(who, topic, verify=True, version=version) == {ABORTABLE}
    assert txn.described().transaction_state == "Empty"
    assert txn.batched(who, topic, 0, 1, verify=False, version=version) == {NONE}
    assert txn.batched(who, topic, 0, 1, verify=True, version=version) == {NONE}
    assert txn.batched(who, topic, 1, 2, verify=True, version=version) == {NONE, ABORTABLE}
    assert txn.batched(who.next(), topic, verify=True, version=version) == {FENCED}
    assert txn.batched(who, topic, 0, 7, verify=False, version=version) == {
        NOT_ATTEMPTED,
        UNKNOWN_TOPIC,
    }
    assert txn.end(who, version=5) == (NONE, who.next())
    txn.until_state("CompleteCommit")
    assert txn.batched(who.next(), topic, verify=True, version=version) == {ABORTABLE}


@pytest.mark.parametrize("version", ADD_OFFSETS)
def test_offsets_are_added(txn: Transactions, version: int) -> None:
    fenced = FENCED if version >= 2 else OLD_EPOCH
    assert txn.add_offsets(Who(1, 0), "some-group", version=version) == NO_MAPPING
    who = txn.begin()
    assert txn.add_offsets(who.next(), "some-group", version=version) == fenced
    found_coordinator(txn.wire, "some-group", 0)
    assert txn.add_offsets(who, "some-group", version=version) == NONE
    row = txn.described()
    assert [one.topic for one in row.topics] == ["__consumer_offsets"] and len(
        row.topics[0].partitions
    ) == 1


# -- EndTxn


@pytest.mark.parametrize("version", END[:5])
@pytest.mark.parametrize("commit", [True, False])
def test_the_first_protocol_keeps_the_epoch(
    txn: Transactions, topic: str, version: int, commit: bool
) -> None:
    fenced = FENCED if version >= 2 else OLD_EPOCH
    nobody = Who(-1, -1)
    assert txn.end(Who(1, 0), commit=commit, version=version)[0] == NO_MAPPING
    who = txn.begin()
    assert txn.end(who, commit=commit, version=version)[0] == WRONG_STATE
    for _ in range(2):
        txn.add(who, topic, 0, 1)
        assert txn.end(who.next(), commit=commit, version=version)[0] == fenced
        assert txn.end(who, commit=commit, version=version) == (NONE, nobody)
        txn.until_state("CompleteCommit" if commit else "CompleteAbort")
        assert txn.end(who, commit=commit, version=version) == (NONE, nobody), "repeated"
        assert txn.end(who, commit=not commit, version=version)[0] == WRONG_STATE
    assert list(txn.described().topics) == []


@pytest.mark.parametrize("commit", [True, False])
def test_the_second_protocol_raises_the_epoch(txn: Transactions, topic: str, commit: bool) -> None:
    who = txn.begin()
    assert txn.end(who, commit=True, version=5) == (WRONG_STATE, Who(-1, -1))
    for _ in range(2):
        txn.batched(who, topic, 0, 1, verify=False)
        assert txn.end(who.next(), commit=commit, version=5)[0] == FENCED
        assert txn.end(who, commit=commit, version=5) == (NONE, who.next())
        txn.until_state("CompleteCommit" if commit else "CompleteAbort")
        assert txn.end(who, commit=commit, version=5) == (NONE, who.next()), "repeated"
        assert txn.end(who, commit=not commit, version=5)[0] == WRONG_STATE
        assert txn.add(who, topic) == {FENCED}
        who = who.next()
    assert txn.end(who, commit=True, version=5)[0] == WRONG_STATE
    assert txn.end(who, commit=False, version=5) == (NONE, who.next()), (
        "nothing is aborted, and the epoch is raised"
    )
    row = txn.until_state("CompleteAbort")
    assert (row.producer_epoch, list(row.topics)) == (who.next().producer_epoch, [])


def test_nothing_is_aborted_by_the_second_protocol(txn: Transactions) -> None:
    who = txn.begin()
    assert txn.end(who, commit=False, version=5) == (NONE, who.next())
    assert txn.end(who, commit=False, version=5) == (NONE, who.next())
    assert txn.end(who.next(), commit=False, version=5) == (NONE, who.next().next())


def test_a_transaction_that_takes_too_long_is_aborted(txn: Transactions, topic: str) -> None:
    code, who = txn.init(timeout_ms=1000)
    assert code == NONE
    txn.add(who, topic, 0, 1, 2)
    row = txn.until_state("CompleteAbort")
    assert Who(row.producer_id, row.producer_epoch) == who.next()
    assert txn.end(who, commit=True)[0] == FENCED
    assert txn.end(who, commit=True, version=5)[0] == WRONG_STATE
    assert txn.end(who, commit=False, version=5) == (NONE, who.next())
    assert txn.add(who, topic) == {FENCED}


# -- DescribeTransactions, ListTransactions


def test_unknown_ids(txn: Transactions) -> None:
    row = txn.described()
    assert (row.error_code, row.transactional_id, row.transaction_state, row.producer_id) == (
        NOT_FOUND,
        txn.name,
        "",
        0,
    )
    txn.name = ""
    assert txn.described().error_code == INVALID_REQUEST


@pytest.mark.parametrize("version", range(3))
def test_transactions_are_listed(txn: Transactions, topic: str, version: int) -> None:
    who = txn.begin()

    def listed(**filters: Any) -> tuple[set[tuple[str, str]], list[str]]:
        answer = txn.wire.ask(
            "ListTransactions",
            version,
            **({"state_filters": [], "producer_id_filters": []} | filters),
        )
        assert answer.error_code == NONE
        rows = {
            (row.transactional_id, row.transaction_state)
            for row in answer.transaction_states
            if row.producer_id == who.producer_id
        }
        return rows, list(answer.unknown_state_filters)

    assert listed() == ({(txn.name, "Empty")}, [])
    txn.add(who, topic)
    assert listed(state_filters=["Ongoing", "NoSuch"]) == ({(txn.name, "Ongoing")}, ["NoSuch"])
    assert listed(state_filters=["Empty"]) == (set(), [])
    assert listed(producer_id_filters=[who.producer_id]) == ({(txn.name, "Ongoing")}, [])
    assert listed(producer_id_filters=[who.producer_id + 10**6]) == (set(), [])
    if version >= 1:
        assert listed(duration_filter=60_000) == (set(), [])
        assert listed(duration_filter=-1) == ({(txn.name, "Ongoing")}, [])
        until(lambda: listed(duration_filter=1)[0], "longer than a millisecond")
    if version >= 2:
        assert listed(transactional_id_pattern=f"{txn.name[:5]}.*") == ({(txn.name, "Ongoing")}, [])
        assert listed(transactional_id_pattern=txn.name[:5]) == (set(), [])
        assert listed(transactional_id_pattern="") == ({(txn.name, "Ongoing")}, [])
        refused = txn.wire.ask(
            "ListTransactions",
            2,
            state_filters=[],
            producer_id_filters=[],
            transactional_id_pattern="(",
        )
        assert refused.error_code == INVALID_EXPRESSION
    txn.end(who, commit=False)
