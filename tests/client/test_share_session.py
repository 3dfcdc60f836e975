"""The core of share sessions, and what a response has of one partition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mqd.client.share_member import Place, member_id_of
from mqd.client.share_records import decode
from mqd.client.share_session import (
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    Acknowledgement,
    AcknowledgeType,
    AcquiredRows,
    FetchOptions,
    Request,
    ShareSession,
)
from mqd.errors import ErrorCode
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.record_reader import Record

P0, P1 = Place(UUID(int=7), 0), Place(UUID(int=7), 1)
NOW_WAITING = FetchOptions(0, 1, 1000, 10, False)
WAITING = FetchOptions(500, 1, 1000, 10, False)


class Response(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


def row(index: int, *acquired: tuple[int, int], error: int = 0, refused: int = 0) -> Any:
    return SimpleNamespace(
        partition_index=index,
        error_code=error,
        error_message=None,
        acknowledge_error_code=refused,
        acknowledge_error_message=None,
        records=b"",
        acquired_records=[
            SimpleNamespace(first_offset=first, last_offset=last, delivery_count=1)
            for first, last in acquired
        ],
    )


def response(*rows: Any, code: int = 0) -> Response:
    topic = SimpleNamespace(topic_id=UUID(int=7), partitions=rows)
    return Response(
        error_code=code,
        error_message=None,
        acquisition_lock_timeout_ms=30_000,
        responses=[topic] if rows else [],
    )


def session_with(*acquired: tuple[int, int]) -> ShareSession:
    session = ShareSession(1, "g", "m")
    session.want([P0])
    request = session.next_request(0.0, fetch=WAITING, linger_s=0.1)
    assert request is not None
    session.on_response(request, response(row(0, *acquired)), 0.0, 0.5)
    return session


def acknowledge(session: ShareSession, kind: AcknowledgeType, *offsets: int) -> list[Any]:
    made = [Acknowledgement(P0, offset, kind) for offset in offsets]
    for one in made:
        session.acknowledge(one, session.generation, 0.0)
    return made


def rows_of(request: Request | None) -> list[tuple[int, int, list[int]]]:
    assert request is not None
    return [
        (each["first_offset"], each["last_offset"], each["acknowledge_types"])
        for topic in request.body["topics"]
        for one in topic["partitions"]
        for each in one["acknowledgement_batches"]
    ]


def test_a_request_has_each_offset_once_and_in_order() -> None:
    session = session_with((0, 9))
    acknowledge(session, AcknowledgeType.RENEW, 3)
    acknowledge(session, AcknowledgeType.ACCEPT, 5, 4, 3, 0, 1)
    acknowledge(session, AcknowledgeType.RELEASE, 2)
    session.is_urgent = True
    first = session.next_request(0.0, fetch=WAITING, linger_s=0.1)
    assert first is not None and (first.key, first.body["is_renew_ack"]) == (79, True)
    assert rows_of(first) == [(3, 3, [4]), (4, 5, [1])]
    assert session.next_request(0.0, fetch=WAITING, linger_s=0.1) is None, "one at a time"
    session.on_response(first, response(row(0)), 0.0, 0.5)
    second = session.next_request(0.0, fetch=WAITING, linger_s=0.1)
    assert rows_of(second) == [(0, 1, [1]), (2, 2, [2]), (3, 3, [1])]
    assert second is not None and second.body["share_session_epoch"] == 2


def test_acknowledgements_that_nobody_waits_for_go_with_a_fetch() -> None:
    session = session_with((0, 9))
    done = acknowledge(session, AcknowledgeType.ACCEPT, 0, 1)
    assert session.next_request(0.05, fetch=None, linger_s=0.1) is None
    assert session.next_deadline(0.05, 0.1) == 0.1
    request = session.next_request(0.05, fetch=WAITING, linger_s=0.1)
    assert request is not None and request.key == SHARE_FETCH
    assert rows_of(request) == [(0, 1, [1])]
    session.on_response(request, response(row(0)), 0.0, 0.5)
    assert [one.is_done and one.error is None for one in done] == [True, True]
    acknowledge(session, AcknowledgeType.ACCEPT, 2)
    request = session.next_request(0.1, fetch=None, linger_s=0.1)
    assert request is not None and request.key == SHARE_ACKNOWLEDGE


def test_partitions_come_and_go_with_the_next_fetch() -> None:
    session = session_with()
    session.want([P1])
    request = session.next_request(0.0, fetch=NOW_WAITING, linger_s=0.1)
    assert request is not None
    [named], [forgotten] = request.body["topics"], request.body["forgotten_topics_data"]
    assert [one["partition_index"] for one in named["partitions"]] == [1]
    assert forgotten["partitions"] == [0]
    session.on_response(request, response(), 0.0, 0.5)
    assert session.found_nothing
    session.want([])
    closing = session.next_request(0.0, fetch=WAITING, linger_s=0.1)
    assert closing is not None and closing.body["share_session_epoch"] == -1
    session.on_response(closing, response(), 0.0, 0.5)
    assert session.is_unused and not session.is_open


def test_a_partition_that_is_refused_is_fetched_later() -> None:
    session = session_with()
    session.want([P0, P1])
    request = session.next_request(0.0, fetch=NOW_WAITING, linger_s=0.1)
    assert request is not None
    moved = row(1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert session.on_response(request, response(moved), 0.0, 0.5).moved == [P1]
    request = session.next_request(0.0, fetch=NOW_WAITING, linger_s=0.1)
    assert request is not None
    assert request.body["topics"] == []
    assert request.body["forgotten_topics_data"] == [{"topic_id": UUID(int=7), "partitions": [1]}]
    session.on_response(request, response(), 0.0, 0.5)
    assert session.next_deadline(0.0, 0.1) == pytest.approx(0.04)
    request = session.next_request(1.0, fetch=NOW_WAITING, linger_s=0.1)
    assert request is not None and len(request.body["topics"]) == 1


def test_the_halves_of_a_refused_group_are_sent_again() -> None:
    session = session_with((0, 3))
    done = acknowledge(session, AcknowledgeType.ACCEPT, 0, 1, 2, 3)
    sent = []
    session.is_urgent = True
    while (request := session.next_request(0.0, fetch=None, linger_s=0.1)) is not None:
        [(first, last, _)] = rows_of(request)
        sent.append((first, last))
        refused = ErrorCode.INVALID_RECORD_STATE if first <= 2 <= last else 0
        session.on_response(request, response(row(0, error=refused)), 0.0, 0.5)
    assert sent == [(0, 3), (0, 1), (2, 3), (2, 2), (3, 3)]
    assert [one.error is None for one in done] == [True, True, False, True]


@pytest.mark.parametrize("code", [122, 123, 133, 3])
def test_a_lost_session_fails_what_was_acquired(code: int) -> None:
    session = session_with((0, 3))
    [sent] = acknowledge(session, AcknowledgeType.ACCEPT, 0)
    generation = session.generation
    request = session.next_request(0.0, fetch=WAITING, linger_s=0.1)
    assert request is not None
    [waits] = acknowledge(session, AcknowledgeType.ACCEPT, 1)
    outcome = session.on_response(request, response(code=code), 0.0, 0.5)
    assert outcome.failed == [sent, waits] and sent.error is not None
    late = Acknowledgement(P0, 2, AcknowledgeType.ACCEPT)
    assert not session.acknowledge(late, generation, 0.0) and late.error is not None
    assert session.next_request(0.0, fetch=WAITING, linger_s=0.1) is None, "after a pause"
    request = session.next_request(1.0, fetch=WAITING, linger_s=0.1)
    assert request is not None and request.body["share_session_epoch"] == 0


def rows_with(data: bytes, *acquired: tuple[int, int, int]) -> AcquiredRows:
    return AcquiredRows(P0, memoryview(data), list(acquired))


def batch_at(offset: int, count: int, **options: Any) -> bytes:
    records = [Record(0, 5, None, b"%d" % (offset + number)) for number in range(count)]
    return bytes(build_batch(records, base_offset=offset, **options))


def test_acquired_offsets_without_a_record_are_gaps() -> None:
    data = batch_at(10, 3) + batch_at(13, 1, control=True) + batch_at(20, 2)
    decoded = decode(rows_with(data, (11, 14, 2), (19, 20, 1)))
    assert [(record.offset, count) for record, count in decoded.records] == [
        *((11, 2), (12, 2), (20, 1))
    ]
    assert decoded.gaps == [13, 14, 19] and not decoded.damaged and decoded.error is None


def test_records_of_a_damaged_batch() -> None:
    damaged = bytearray(batch_at(10, 3))
    damaged[-2] ^= 1
    decoded = decode(rows_with(batch_at(0, 2) + bytes(damaged), (1, 1, 1), (10, 12, 1)))
    assert [record.offset for record, _ in decoded.records] == [1]
    assert decoded.damaged == [10, 11, 12] and decoded.error is not None


def test_the_id_of_a_member_is_a_uuid_as_kafka_writes_it() -> None:
    assert member_id_of(UUID(int=2**127 + 5)) == "gAAAAAAAAAAAAAAAAAAABQ"
