"""ShareFetch on the wire (KIP-932): share sessions, what is acquired, and acknowledgements with a
fetch; in all versions.

Apache Kafka 4.3.1 returns the same responses (`make conformance-kafka`). Not compared, because
Kafka stumbles:

- UNKNOWN_SERVER_ERROR for an unknown topic id (mqd: UNKNOWN_TOPIC_ID of the partition), also for a
  deleted topic; for an empty group id (INVALID_GROUP_ID); for a partition whose state was not
  initialized (INVALID_REQUEST); for an unknown acquire mode (INVALID_REQUEST); for a negative
  maximum of bytes (no records).
- A batch size of 0: Kafka adds a row of acquired records that ends before it begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from .batches import TRANSACTIONAL, Batch, batch, records
from .share_exchanges import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledged,
    Plain,
    Sharing,
    acquired,
    group_here,
)
from .test_wire_transactions import Transactions, txn
from .wire import Wire, produce, produce_fields, until

__all__ = ["txn"]

VERSIONS = (1, 2)
INVALID_GROUP_ID, INVALID_REQUEST, UNKNOWN_TOPIC_ID, UNKNOWN_PARTITION = 24, 42, 100, 3
INVALID_RECORD_STATE, NO_SESSION, WRONG_SESSION_EPOCH = 121, 122, 123
LOCK_MS = 30_000
EMPTY: Plain = {"acquisition_lock_timeout_ms": LOCK_MS}
NOTHING: Plain = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
"""Limits of a request that renews locks."""


def response(sharing: Sharing, *partitions: Plain) -> Plain:
    return EMPTY | {"responses": sharing.rows(*partitions)}


def delivered(batches: list[tuple[int, int]], *rows: Plain) -> Plain:
    """The row of a partition with these batches of the log."""
    return {"records": batches, "acquired_records": list(rows)}


def refused(code: int, **more: Any) -> Plain:
    """The row of a partition whose acknowledgement fails."""
    return {"acknowledge_error_code": code, **more}


# -- sessions


@pytest.mark.parametrize("version", VERSIONS)
def test_invalid_ids(sharing: Sharing, version: int) -> None:
    for fields in ({"group_id": None}, {"member_id": ""}, {"member_id": None}):
        assert sharing.fetch(0, version=version, **fields) == {"error_code": INVALID_REQUEST}
    too_long = sharing.fetch(0, member="m" * 37, version=version)
    assert too_long == {"error_code": INVALID_REQUEST}


@pytest.mark.parametrize("version", VERSIONS)
def test_epochs_of_sessions(sharing: Sharing, version: int) -> None:
    def fetch(epoch: int, *acknowledged: Acknowledged) -> Plain:
        return sharing.fetch(epoch, *acknowledged, version=version)

    for epoch in (1, -1, -2):
        assert fetch(epoch) == {"error_code": NO_SESSION}
    assert fetch(0, (0, 0, ACCEPT)) == {"error_code": INVALID_REQUEST}
    sharing.open()
    for epoch in (0, 1, 2):
        assert fetch(epoch) == (response(sharing, {}) if epoch == 0 else EMPTY)
    for epoch in (2, 9, -2):
        assert fetch(epoch) == {"error_code": WRONG_SESSION_EPOCH}
    assert fetch(3) == EMPTY
    assert fetch(-1) == EMPTY
    assert fetch(4) == {"error_code": NO_SESSION}


@pytest.mark.parametrize("version", VERSIONS)
def test_unknown_partitions(sharing: Sharing, version: int) -> None:
    for index in (7, -1):
        topics = sharing.topics(partition=index)
        assert sharing.fetch(0, version=version, topics=topics) == response(
            sharing, {"partition_index": index, "error_code": UNKNOWN_PARTITION}
        )
    acknowledged = sharing.topics((0, 0, ACCEPT), partition=5)
    sharing.fetch(0, version=version, topics=[])
    row = refused(UNKNOWN_PARTITION, partition_index=5, error_code=UNKNOWN_PARTITION)
    assert sharing.fetch(1, version=version, topics=acknowledged) == response(sharing, row)
    assert sharing.fetch(-1, version=version) == EMPTY


def test_partitions_of_a_session(sharing: Sharing) -> None:
    """Forgotten ones are not fetched, and a session without partitions is empty."""
    sharing.join()
    assert sharing.fetch(0, topics=[]) == EMPTY
    assert sharing.fetch(1) == EMPTY
    sharing.write(1)
    assert sharing.fetch(2, topics=sharing.topics(), max_wait_ms=5000) == response(
        sharing, delivered([(0, 0)], acquired(0, 0))
    )
    sharing.write(1)
    for forgotten in ([0], [0, 9]):
        row = {"topic_id": sharing.topic_id, "partitions": forgotten}
        epoch = 2 + len(forgotten)
        assert sharing.fetch(epoch, max_wait_ms=100, forgotten_topics_data=[row]) == EMPTY
    # a record of a forgotten partition can be acknowledged
    row = {"topic_id": sharing.topic_id, "partitions": [0]}
    found = sharing.fetch(5, (0, 0, ACCEPT), forgotten_topics_data=[row])
    assert found == response(sharing, {})


def test_records_of_a_session_that_ends(sharing: Sharing) -> None:
    """Others get them, and the delivery has counted."""
    sharing.join()
    sharing.write(3)
    first = response(sharing, delivered([(0, 2)], acquired(0, 2)))
    assert sharing.fetch(0, max_wait_ms=5000) == first
    assert sharing.fetch(-1, (0, 0, ACCEPT)) == response(sharing, {})
    again = response(sharing, delivered([(0, 2)], acquired(1, 2, 2)))
    assert sharing.fetch(0, member="m2", max_wait_ms=1000) == again
    # a new session of the member takes the place of the former one, which keeps its records
    assert sharing.fetch(0, member="m2", max_wait_ms=300) == response(sharing, {})
    assert sharing.fetch(1, (1, 2, ACCEPT), member="m2") == response(sharing, {})


@pytest.mark.mqd_only("Apache Kafka returns UNKNOWN_SERVER_ERROR")
def test_where_apache_kafka_stumbles(sharing: Sharing) -> None:
    assert sharing.fetch(0, group_id="") == {"error_code": INVALID_GROUP_ID}
    uninitialized = sharing.fetch(0)
    assert uninitialized == response(sharing, {"error_code": INVALID_REQUEST})
    unknown = sharing.topics(topic_id=UUID(int=77))
    rows = [{"topic_id": UUID(int=77), "partitions": [{"error_code": UNKNOWN_TOPIC_ID}]}]
    assert sharing.fetch(0, topics=unknown) == EMPTY | {"responses": rows}
    for mode in (-1, 2):
        refusal = sharing.fetch(0, share_acquire_mode=mode)
        assert refusal == {"error_code": INVALID_REQUEST}
    sharing.join()
    sharing.write(1)
    assert sharing.fetch(0, max_bytes=-1) == EMPTY


# -- what is acquired


@pytest.mark.parametrize(
    "limits, first, second",
    [
        ({}, [(0, 11)], []),
        ({"max_records": 5}, [(0, 7)], [(8, 11)]),
        ({"max_records": 3}, [(0, 3)], [(4, 11)]),
        ({"max_records": 5, "batch_size": 2}, [(0, 3), (4, 7)], [(8, 11)]),
        ({"batch_size": 5}, [(0, 7), (8, 11)], []),
        ({"batch_size": 4}, [(0, 3), (4, 7), (8, 11)], []),
        ({"max_bytes": 1}, [(0, 3)], [(4, 11)]),
        ({"max_bytes": 100}, [(0, 3)], [(4, 11)]),
        ({"max_records": 0}, [], [(0, 11)]),
        ({"max_bytes": 0}, [], [(0, 11)]),
        ({"min_bytes": 1_000_000}, [(0, 11)], []),
        ({"max_wait_ms": -1}, [(0, 11)], []),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_limits(
    sharing: Sharing,
    limits: Plain,
    first: list[tuple[int, int]],
    second: list[tuple[int, int]],
    version: int,
) -> None:
    """The log has three batches of four records."""
    sharing.open()
    sharing.write(4, 4, 4)
    wait: Plain = {"max_wait_ms": 1000 if first else 0}
    found = sharing.fetch(1, version=version, **wait | limits)
    for rows, epoch in ((first, 2), (second, 3)):
        batches = [(at, at + 3) for low, high in rows for at in range(low, high, 4)]
        expected = response(sharing, delivered(batches, *(acquired(*row) for row in rows)))
        assert found == (expected if rows else EMPTY)
        found = sharing.fetch(epoch, version=version, max_wait_ms=1000 if second else 100)
    assert found == EMPTY


@pytest.mark.parametrize(
    "limits, first, batches",
    [
        ({"max_records": 1}, (0, 0), [(0, 3)]),
        ({"max_records": 5}, (0, 4), [(0, 3), (4, 7)]),
        ({"max_records": 5, "batch_size": 2}, (0, 4), [(0, 3), (4, 7)]),
        ({"max_records": 8}, (0, 7), [(0, 3), (4, 7)]),
    ],
)
def test_the_record_limit_mode(
    sharing: Sharing,
    limits: Plain,
    first: tuple[int, int],
    batches: list[tuple[int, int]],
) -> None:
    """Version 2 (KIP-1206): a fetch ends within a batch. Another member gets the rest."""
    sharing.join()
    sharing.write(4, 4)
    found = sharing.fetch(0, max_wait_ms=1000, share_acquire_mode=1, **limits)
    assert found == response(sharing, delivered(batches, acquired(*first)))
    rest = sharing.fetch(0, member="m2", max_wait_ms=100)
    assert offsets(rest) == list(range(first[1] + 1, 8))


def offsets(found: Plain) -> list[int]:
    """All acquired offsets: Apache Kafka may return neighbours in several rows."""
    return [
        offset
        for topic in found.get("responses", ())
        for partition in topic["partitions"]
        for row in partition.get("acquired_records", ())
        for offset in range(row.get("first_offset", 0), row.get("last_offset", 0) + 1)
    ]


def test_a_fetch_waits_for_records(sharing: Sharing, wire: Wire) -> None:
    sharing.open()
    sharing.post_fetch(1, max_wait_ms=10_000)
    assert produce(wire, sharing.topic, batch(b"0", b"1")).error_code == 0
    expected = response(sharing, delivered([(0, 1)], acquired(0, 1)))
    assert sharing.wire.finish() == expected


def test_only_committed_records(
    sharing: Sharing, txn: Transactions, new_name: Callable[[], str]
) -> None:
    """`share.isolation.level`: records of aborted transactions are not delivered, nor any behind
    the first open one."""
    other = Sharing(sharing.wire, group_here(sharing.wire, new_name), sharing.topic)
    other.wire.configure(other.group, share_auto_offset_reset="earliest")
    sharing.wire.configure(sharing.group, share_isolation_level="read_committed")
    for one in (sharing, other):
        one.open()
    who, sequence = txn.begin(), 0

    def write(count: int, *, commit: bool | None) -> None:
        """A batch of a transaction, which ends unless `commit` is None."""
        nonlocal sequence
        assert txn.add(who, sharing.topic) == {0}
        data = Batch(
            records=records(*[b"t"] * count),
            attributes=TRANSACTIONAL,
            base_sequence=sequence,
            **who._asdict(),
        ).encode()
        sequence += count
        fields = produce_fields(sharing.topic, data) | {"transactional_id": txn.name}
        (topic,) = sharing.wire.ask("Produce", 9, **fields).responses
        assert topic.partition_responses[0].error_code == 0
        if commit is not None:
            assert txn.end(who, commit=commit)[0] == 0

    sharing.write(2)  # 0 and 1
    write(3, commit=False)  # 2 to 4, and a marker
    sharing.write(1)  # 6
    write(2, commit=True)  # 7 and 8, and a marker
    write(2, commit=None)  # 10 and 11
    sharing.write(1)  # 12
    assert until_acquired(sharing, 8) == [0, 1, 6, 7, 8]
    assert until_acquired(other, 12) == [*range(5), *range(6, 9), *range(10, 13)]
    assert txn.end(who, commit=True)[0] == 0
    assert until_acquired(sharing, 12) == [10, 11, 12]


MARKERS = {5, 9, 13}


def until_acquired(one: Sharing, last: int) -> list[int]:
    """The offsets of records that are acquired, up to the last one. Markers are among them."""
    found: list[int] = []

    def is_there() -> bool:
        response = one.fetch(one.epoch, max_wait_ms=100)
        one.epoch += 1
        found.extend(offset for offset in offsets(response) if offset not in MARKERS)
        return last in found

    until(is_there, f"offset {last}")
    return found


# -- acknowledgements


@pytest.mark.parametrize("version", VERSIONS)
def test_acknowledgements(sharing: Sharing, version: int) -> None:
    sharing.wire.configure(sharing.group, share_delivery_count_limit="3")
    sharing.join()
    sharing.write(3, 3)
    nothing = response(sharing, {})

    def fetch(epoch: int, *acknowledged: Acknowledged, wait: int = 0) -> Plain:
        return sharing.fetch(epoch, *acknowledged, version=version, max_wait_ms=wait)

    found = fetch(0, wait=5000)
    assert found == response(sharing, delivered([(0, 2), (3, 5)], acquired(0, 5)))
    assert fetch(1, (0, 2, ACCEPT)) == nothing
    assert fetch(2, (0, 2, ACCEPT)) == nothing, "they are before the start offset"
    assert fetch(3, (0, 0, ACCEPT)) == nothing
    for epoch, first in ((4, 6), (5, 100)):
        past = fetch(epoch, (first, first, ACCEPT))
        assert past == response(sharing, refused(INVALID_REQUEST))
        assert sharing.wire.messages == [
            "Batch record not found. The first offset in request is past acquired records."
        ]
    assert fetch(6, (5, 6, ACCEPT)) == response(sharing, refused(INVALID_REQUEST))
    assert sharing.wire.messages == [
        "Batch record not found. The last offset in request is past acquired records."
    ]
    again = fetch(7, (3, 5, RELEASE, REJECT, GAP), wait=5000)
    assert again == response(sharing, delivered([(3, 5)], acquired(3, 3, 2)))
    again = fetch(8, (3, 3, RELEASE), wait=5000)
    assert again == response(sharing, delivered([(3, 5)], acquired(3, 3, 3)))
    assert fetch(9, (3, 3, RELEASE), wait=100) == nothing, "it was delivered as often as allowed"
    sharing.write(1)
    assert fetch(10, wait=5000) == response(sharing, delivered([(6, 6)], acquired(6, 6)))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "acknowledged",
    [
        [(0, 0, 5)],
        [(0, 0, -1)],
        [(0, 0, RENEW)],
        [(0, 2, ACCEPT, ACCEPT)],
        [(0, 2)],
        [(2, 0, ACCEPT)],
        [(2, 2, ACCEPT), (0, 0, ACCEPT)],
        [(0, 0, ACCEPT), (1, 1, 5)],
    ],
    ids=str,
)
def test_invalid_acknowledgements(
    sharing: Sharing, version: int, acknowledged: list[Acknowledged]
) -> None:
    """They change nothing. The session stays open."""
    sharing.join()
    sharing.write(3)
    sharing.fetch(0, version=version, max_wait_ms=5000)
    invalid = sharing.fetch(1, *acknowledged, version=version)
    assert invalid == response(sharing, refused(INVALID_REQUEST))
    assert sharing.fetch(2, (0, 2, ACCEPT), version=version) == response(sharing, {})


def test_a_record_that_is_acknowledged_twice(sharing: Sharing) -> None:
    sharing.join()
    sharing.write(3)
    sharing.fetch(0, max_wait_ms=5000)
    twice = sharing.fetch(1, (0, 1, ACCEPT), (1, 2, ACCEPT))
    assert twice == response(sharing, refused(INVALID_RECORD_STATE))
    assert sharing.fetch(2, (0, 2, ACCEPT)) == response(sharing, {})


def test_negative_offsets(sharing: Sharing) -> None:
    sharing.join()
    sharing.write(1)
    sharing.fetch(0, max_wait_ms=5000)
    assert sharing.fetch(1, (-5, 0, ACCEPT)) == response(sharing, refused(INVALID_REQUEST))
    assert sharing.fetch(2, (-1, 0, ACCEPT)) == response(sharing, {})


def test_records_of_another_member(sharing: Sharing) -> None:
    sharing.join()
    sharing.write(2)
    assert sharing.fetch(0, max_wait_ms=5000, max_records=2) == response(
        sharing, delivered([(0, 1)], acquired(0, 1))
    )
    sharing.open("m2")
    refusal = response(sharing, refused(INVALID_RECORD_STATE))
    assert sharing.fetch(1, (0, 1, ACCEPT), member="m2") == refusal
    assert sharing.fetch(1, (0, 1, ACCEPT)) == response(sharing, {})


def test_renewals(sharing: Sharing) -> None:
    """Version 2 (KIP-1222)."""
    sharing.join()
    sharing.write(6)
    sharing.fetch(0, max_wait_ms=5000)
    for name in NOTHING:
        limits = NOTHING | {name: 1}
        invalid = sharing.fetch(1, (0, 0, RENEW), is_renew_ack=True, **limits)
        assert invalid == {"error_code": INVALID_REQUEST}, name

    def renew(epoch: int, *acknowledged: Acknowledged) -> Plain:
        return sharing.fetch(epoch, *acknowledged, is_renew_ack=True, **NOTHING)

    assert renew(1, (0, 0, RENEW)) == response(sharing, {})
    assert renew(2, (0, 2, RENEW, ACCEPT, RELEASE)) == response(sharing, {})
    assert renew(3, (1, 1, RENEW)) == response(sharing, refused(INVALID_RECORD_STATE))
    assert renew(4) == EMPTY
    assert renew(5, (3, 3, ACCEPT)) == response(sharing, {})
    without_flag = sharing.fetch(6, (0, 0, RENEW), max_records=0)
    assert without_flag == response(sharing, refused(INVALID_REQUEST))
    sharing.wire.configure(sharing.group, share_renew_acknowledge_enable="false")
    assert renew(7, (0, 0, RENEW)) == response(sharing, refused(INVALID_RECORD_STATE))
    assert sharing.wire.messages == ["Renewing acquisition locks is not enabled for the group."]


def test_locks_end(sharing: Sharing) -> None:
    """The record is delivered again, until it was delivered as often as allowed."""
    sharing.wire.configure(
        sharing.group, share_record_lock_duration_ms="1000", share_delivery_count_limit="2"
    )
    sharing.join()
    sharing.write(2)
    lock = {"acquisition_lock_timeout_ms": 1000}
    for epoch, count in ((0, 1), (1, 2)):
        found = sharing.fetch(epoch, max_wait_ms=5000)
        rows = sharing.rows(delivered([(0, 1)], acquired(0, 1, count)))
        assert found == lock | {"responses": rows}
    assert sharing.fetch(2, max_wait_ms=2500) == lock
    late = sharing.fetch(3, (0, 0, ACCEPT))
    assert late == lock | {"responses": sharing.rows({})}, "it is before the start offset"


@pytest.mark.parametrize(
    "limit, acquired_in_turn",
    [
        (2, [(0, 7, 1), (0, 7, 2)]),
        (3, [(0, 7, 1), (0, 7, 2), *((offset, offset, 3) for offset in range(8))]),
        (5, [*((0, 7, count) for count in (1, 2, 3)), (0, 3, 4)]),
        (6, [*((0, 7, count) for count in (1, 2, 3)), (0, 3, 4)]),
    ],
)
def test_records_with_many_deliveries(
    sharing: Sharing, limit: int, acquired_in_turn: list[tuple[int, int, int]]
) -> None:
    """They are delivered in smaller parts, and the last time alone."""
    sharing.wire.configure(sharing.group, share_delivery_count_limit=str(limit))
    sharing.join()
    sharing.write(4, 4)
    found = sharing.fetch(0, max_wait_ms=5000)
    for epoch, (first, last, count) in enumerate(acquired_in_turn, 1):
        ((row,),) = [topic["partitions"] for topic in found["responses"]]
        assert row["acquired_records"] == [acquired(first, last, count)]
        found = sharing.fetch(epoch, (first, last, RELEASE), max_wait_ms=100)


def test_the_start_of_the_log_moves(sharing: Sharing) -> None:
    """Records that are deleted need no acknowledgement."""
    sharing.join()
    sharing.write(2, 2, 2)
    sharing.fetch(0, max_records=1, max_wait_ms=5000)
    partitions = [{"partition_index": 0, "offset": 3}]
    topics = [{"name": sharing.topic, "partitions": partitions}]
    sharing.wire.ask("DeleteRecords", 2, topics=topics, timeout_ms=10_000)

    def fetched() -> list[int]:
        found = offsets(sharing.fetch(sharing.epoch, max_wait_ms=100))
        sharing.epoch += 1
        return found

    found = until(fetched, "records behind the start")
    assert found[-3:] == [3, 4, 5]  # Apache Kafka acquires the whole batch of offset 3
    assert sharing.fetch(sharing.epoch, (0, 1, ACCEPT)) == response(sharing, {})
