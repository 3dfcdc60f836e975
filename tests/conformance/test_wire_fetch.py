"""Fetch: versions, positions, limits, long polls and sessions (KIP-227)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from .batches import CODECS, batch, parse
from .conftest import Broker
from .wire import (
    Wire,
    create_topic,
    fetch,
    fetch_fields,
    fetch_one,
    produce,
    produce_fields,
    topic_id,
)

NONE, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION = 0, 1, 3
(
    SESSION_NOT_FOUND,
    INVALID_SESSION_EPOCH,
    FENCED_LEADER_EPOCH,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_TOPIC_ID,
) = 70, 71, 74, 75, 100
LONG_MS = 10_000


def offsets(row: Any) -> list[tuple[int, int]]:
    """(first, last) of each batch in a partition's row."""
    return [(b.base_offset, b.last_offset) for b in parse(row.records)]


def partitions(answer: Any) -> dict[tuple[Any, int], Any]:
    """The rows of a response by (topic name or id, partition)."""
    rows = {}
    for topic in answer.responses:
        for row in topic.partitions:
            rows[topic.topic or topic.topic_id, row.partition_index] = row
    return rows


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version(wire: Wire, topic: str, version: int) -> None:
    address = topic_id(wire, topic) if version >= 13 else topic
    produce(wire, topic, batch(b"a", b"b"))
    row = fetch_one(wire, address, 0, version=version)
    assert (row.error_code, row.high_watermark, row.last_stable_offset) == (NONE, 2, 2)
    assert not row.aborted_transactions
    if version >= 5:
        assert row.log_start_offset == 0
    assert offsets(row) == [(0, 1)]
    end = fetch_one(wire, address, 2, version=version, max_wait_ms=0)
    assert (end.error_code, end.high_watermark, end.records or b"") == (NONE, 2, b"")


@pytest.mark.parametrize("version", range(4, 19))
def test_aborted_transactions_of_refused_partitions(
    wire: Wire, topic: str, new_name: Callable[[], str], version: int
) -> None:
    """Empty where the topic or partition is unknown, null where the broker has it and cannot serve
    it.
    """
    address: str | uuid.UUID = topic_id(wire, topic) if version >= 13 else topic
    nowhere: str | uuid.UUID = uuid.uuid4() if version >= 13 else new_name()
    unknown = [
        fetch_one(wire, address, 0, version=version, partition=9),
        fetch_one(wire, nowhere, 0, version=version),
    ]
    codes = [
        UNKNOWN_TOPIC_OR_PARTITION,
        UNKNOWN_TOPIC_ID if version >= 13 else UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert [(row.error_code, row.aborted_transactions) for row in unknown] == [
        (code, []) for code in codes
    ]
    row = fetch_one(wire, address, 5, version=version)
    assert (row.error_code, row.aborted_transactions) == (OFFSET_OUT_OF_RANGE, None)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_an_offset_inside_a_batch_returns_the_whole_batch(
    wire: Wire, topic: str, codec: int
) -> None:
    sent = batch(*[b"%d" % i * 50 for i in range(10)], codec=codec)
    for _ in range(3):
        produce(wire, topic, sent)
    assert offsets(fetch_one(wire, topic, 14)) == [(10, 19), (20, 29)]
    assert offsets(fetch_one(wire, topic, 19)) == [(10, 19), (20, 29)]
    (first, _) = parse(fetch_one(wire, topic, 14).records)
    assert first.payload == sent[61:], "batches are stored and served unchanged"


@pytest.mark.parametrize("offset", [-1, -2, 3, 2**63 - 1, -(2**63)])
def test_offsets_out_of_range(wire: Wire, topic: str, offset: int) -> None:
    produce(wire, topic, batch(b"a", b"b"))
    row = fetch_one(wire, topic, offset)
    assert row.error_code == OFFSET_OUT_OF_RANGE
    assert not row.records


def test_unknown_topics_and_partitions(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    assert fetch_one(wire, new_name(), 0).error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert fetch_one(wire, topic, 0, partition=5).error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert fetch_one(wire, topic, 0, partition=-1).error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert fetch_one(wire, uuid.uuid4(), 0, version=13).error_code == UNKNOWN_TOPIC_ID


def test_leader_epochs_fence(wire: Wire, topic: str) -> None:
    produce(wire, topic, batch(b"a"))
    assert fetch_one(wire, topic, 0, leader_epoch=0).error_code == NONE
    assert fetch_one(wire, topic, 0, leader_epoch=9).error_code == UNKNOWN_LEADER_EPOCH


def test_limits_never_withhold_the_first_batch(wire: Wire, new_name: Callable[[], str]) -> None:
    topic = create_topic(wire, new_name(), partitions=2)
    for partition in (0, 1):
        for _ in range(3):
            produce(wire, topic, batch(b"x" * 1000), partition=partition)
    assert offsets(fetch_one(wire, topic, 0, partition_max_bytes=1)) == [(0, 0)], (
        "one whole batch, however small the limit"
    )
    assert offsets(fetch_one(wire, topic, 0, partition_max_bytes=2500))[:2] == [(0, 0), (1, 1)]
    both = partitions(fetch(wire, {topic: {0: 0, 1: 0}}, max_bytes=1))
    assert sorted(len(row.records or b"") > 0 for row in both.values()) == [False, True], (
        "one batch in the whole response"
    )
    all_of_one = partitions(fetch(wire, {topic: {0: 0, 1: 0}}, partition_max_bytes=100_000))
    assert [offsets(all_of_one[topic, partition]) for partition in (0, 1)] == [
        [(0, 0), (1, 1), (2, 2)]
    ] * 2


def test_invalid_limits_are_clamped(wire: Wire, topic: str) -> None:
    produce(wire, topic, batch(b"a"))
    assert offsets(fetch_one(wire, topic, 0, min_bytes=10, max_bytes=1, max_wait_ms=100)) == [
        (0, 0)
    ]
    assert offsets(fetch_one(wire, topic, 0, min_bytes=1, max_wait_ms=2**31 - 1)) == [(0, 0)]
    assert fetch_one(wire, topic, 1, min_bytes=0, max_wait_ms=2**31 - 1).error_code == NONE, (
        "no partition requested, no wait"
    )
    assert fetch_one(wire, topic, 1, min_bytes=2**31 - 1, max_wait_ms=1).error_code == NONE


def test_a_long_poll_ends_at_its_deadline(wire: Wire, topic: str) -> None:
    began = time.monotonic()
    assert fetch_one(wire, topic, 0, max_wait_ms=200).error_code == NONE
    assert 0.15 < time.monotonic() - began < 5


def test_a_long_poll_ends_when_its_bytes_arrive(wire: Wire, broker: Broker, topic: str) -> None:
    began = time.monotonic()
    ticket = wire.post(
        "Fetch", 12, **fetch_fields({topic: {0: 0}}, max_wait_ms=LONG_MS, min_bytes=1000)
    )
    with Wire(broker.host, broker.port) as other:
        produce(other, topic, batch(b"x" * 500))
        produce(other, topic, batch(b"x" * 500))
    row = partitions(wire.answer(ticket))[topic, 0]
    assert offsets(row) == [(0, 0), (1, 1)], "not before there are 1000 bytes"
    assert time.monotonic() - began < LONG_MS / 1000


def test_an_error_is_returned_at_once(wire: Wire, topic: str) -> None:
    began = time.monotonic()
    assert fetch_one(wire, topic, 99, max_wait_ms=LONG_MS).error_code == OFFSET_OUT_OF_RANGE
    assert time.monotonic() - began < LONG_MS / 1000


@pytest.mark.mqd_only
def test_a_later_request_wakes_the_parked_fetch_before_it(wire: Wire, topic: str) -> None:
    """Kafka lets the later one wait for the whole long poll, which is why closing a consumer can
    take that long there.
    """
    began = time.monotonic()
    parked = wire.post("Fetch", 12, **fetch_fields({topic: {0: 0}}, max_wait_ms=LONG_MS))
    later = wire.post("ApiVersions", 0)
    assert partitions(wire.answer(parked))[topic, 0].error_code == NONE
    assert wire.answer(later).error_code == NONE
    assert time.monotonic() - began < LONG_MS / 1000 / 2


# -- sessions


class Session:
    """A fetch session, controlled by the test."""

    def __init__(self, wire: Wire, version: int, wanted: dict[Any, dict[int, int]]) -> None:
        self.wire, self.version = wire, version
        first = fetch(wire, wanted, version=version, session_epoch=0, max_wait_ms=0)
        assert first.error_code == NONE
        assert first.session_id > 0
        self.id, self.epoch, self.first = first.session_id, 0, first

    def next(self, wanted: dict[Any, dict[int, int]] | None = None, **options: Any) -> Any:
        """An incremental fetch."""
        self.epoch += 1
        return fetch(
            self.wire,
            wanted or {},
            version=self.version,
            **({"session_id": self.id, "session_epoch": self.epoch, "max_wait_ms": 0} | options),
        )


@pytest.fixture(params=[7, 12, 13, 17])
def session_version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def addresses(wire: Wire, session_version: int, new_name: Callable[[], str]) -> tuple[str, Any]:
    """A topic's name, and its name or id in a fetch of this version; three partitions."""
    name = create_topic(wire, new_name(), partitions=3)
    return name, topic_id(wire, name) if session_version >= 13 else name


def test_a_session_returns_only_changes(
    wire: Wire, session_version: int, addresses: tuple[str, Any]
) -> None:
    name, address = addresses
    session = Session(wire, session_version, {address: {0: 0, 1: 0}})
    assert set(partitions(session.first)) == {(address, 0), (address, 1)}, (
        "the first response names every partition"
    )
    assert partitions(session.next()) == {}
    produce(wire, name, batch(b"a"), partition=1)
    answer = session.next()
    assert answer.session_id == session.id
    assert {key: offsets(row) for key, row in partitions(answer).items()} == {
        (address, 1): [(0, 0)]
    }
    assert set(partitions(session.next())) == {(address, 1)}, "only the client changes the position"
    assert partitions(session.next({address: {1: 1}})) == {}
    produce(wire, name, batch(b"a"), partition=2)
    assert partitions(session.next()) == {}
    assert set(partitions(session.next({address: {2: 0}}))) == {(address, 2)}, "added"
    assert partitions(session.next(forgotten={address: [2]})) == {}, "forgotten"
    produce(wire, name, batch(b"a"), partition=2)
    assert partitions(session.next()) == {}


def test_a_session_waits_like_any_fetch(
    wire: Wire, broker: Broker, session_version: int, addresses: tuple[str, Any]
) -> None:
    name, address = addresses
    session = Session(wire, session_version, {address: {0: 0}})
    fields = fetch_fields({}, session_id=session.id, session_epoch=1, max_wait_ms=LONG_MS)
    began = time.monotonic()
    ticket = wire.post("Fetch", session_version, **fields)
    with Wire(broker.host, broker.port) as other:
        produce(other, name, batch(b"a"))
    assert set(partitions(wire.answer(ticket))) == {(address, 0)}
    assert time.monotonic() - began < LONG_MS / 1000


def test_session_epochs_and_ids(
    wire: Wire, session_version: int, addresses: tuple[str, Any]
) -> None:
    _, address = addresses
    session = Session(wire, session_version, {address: {0: 0}})
    assert session.next(session_epoch=5).error_code == INVALID_SESSION_EPOCH
    assert session.next(session_epoch=1).error_code == NONE, "a wrong epoch changes nothing"
    assert (
        session.next(session_id=session.id ^ 0x15A5A5A5, session_epoch=2).error_code
        == SESSION_NOT_FOUND
    )
    closing = fetch(
        wire, {}, version=session_version, session_id=session.id, session_epoch=-1, max_wait_ms=0
    )
    assert (closing.error_code, closing.session_id) == (NONE, 0)
    assert session.next(session_epoch=2).error_code == SESSION_NOT_FOUND


def test_an_error_in_a_session_is_returned_until_it_ends(
    wire: Wire, session_version: int, addresses: tuple[str, Any]
) -> None:
    name, address = addresses
    session = Session(wire, session_version, {address: {0: 7}})
    assert {row.error_code for row in partitions(session.first).values()} == {OFFSET_OUT_OF_RANGE}
    assert {row.error_code for row in partitions(session.next()).values()} == {OFFSET_OUT_OF_RANGE}
    produce(wire, name, batch(b"a"))
    assert {
        key: offsets(row) for key, row in partitions(session.next({address: {0: 0}})).items()
    } == {(address, 0): [(0, 0)]}


def test_a_full_fetch_without_session(wire: Wire, topic: str) -> None:
    answer = fetch(wire, {topic: {0: 0}}, session_epoch=-1, max_wait_ms=0)
    assert (answer.error_code, answer.session_id) == (NONE, 0)


def test_many_fetches_pipelined_while_producing(wire: Wire, broker: Broker, topic: str) -> None:
    """Every fetch returns consecutive batches from its offset on, whatever was appended
    meanwhile.
    """
    with Wire(broker.host, broker.port) as other:
        tickets = [
            other.post("Produce", 9, **produce_fields(topic, batch(b"%d" % i))) for i in range(100)
        ]
        position = 0
        while position < 100:
            for first, last in offsets(fetch_one(wire, topic, position)):
                assert first == position
                position = last + 1
        assert [
            other.answer(ticket).responses[0].partition_responses[0].base_offset
            for ticket in tickets
        ] == list(range(100))
