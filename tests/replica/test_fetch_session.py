"""Fetch sessions: KIP-227's table of session ids and epochs, and what an incremental fetch
leaves out.
"""

from __future__ import annotations

import itertools

import pytest

from mqd.errors import ErrorCode, MqError
from mqd.limits import FETCH_SESSION_PARTITION_BYTES
from mqd.protocol.hot_fetch_request import FetchPartition
from mqd.replica.fetch_session import (
    EVICTION_SECONDS,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    CachedPartition,
    FetchSession,
    FetchSessions,
)


def wanted(topic: bytes, partition: int, offset: int = 0) -> CachedPartition:
    return CachedPartition(
        topic, FetchPartition(partition, -1, offset, -1, -1, 1 << 20, bytes(16), -1)
    )


def all_of(*rows: CachedPartition) -> dict[tuple[bytes, int], CachedPartition]:
    return {(one.topic, one.partition): one for one in rows}


def sessions(limit: int = 10) -> FetchSessions:
    numbers = itertools.count(100)
    return FetchSessions(lambda _: next(numbers), limit)


def names(found: list[CachedPartition]) -> list[tuple[bytes, int, int]]:
    return [(one.topic, one.partition, one.requested.fetch_offset) for one in found]


def test_without_a_session_everything_is_returned() -> None:
    session, found, incremental = sessions().resolve(
        0, FINAL_EPOCH, all_of(wanted(b"t", 0)), [], uses_topic_ids=False, now=0
    )
    assert session is None
    assert names(found) == [(b"t", 0, 0)]
    assert not incremental


def test_a_session_applies_changes_and_forgotten_topics() -> None:
    all_sessions = sessions()
    session, _, _ = all_sessions.resolve(
        0, INITIAL_EPOCH, all_of(wanted(b"t", 0), wanted(b"t", 1)), [], uses_topic_ids=False, now=0
    )
    assert session is not None
    _, found, incremental = all_sessions.resolve(
        session.id, 1, all_of(wanted(b"t", 1, 7)), [], uses_topic_ids=False, now=1
    )
    assert incremental
    assert names(found) == [(b"t", 0, 0), (b"t", 1, 7)]
    _, found, _ = all_sessions.resolve(session.id, 2, {}, [(b"t", 0)], uses_topic_ids=False, now=2)
    assert names(found) == [(b"t", 1, 7)]


def test_a_served_partition_is_last_the_next_time() -> None:
    all_sessions = sessions()
    session, found, _ = all_sessions.resolve(
        0, INITIAL_EPOCH, all_of(wanted(b"t", 0), wanted(b"t", 1)), [], uses_topic_ids=False, now=0
    )
    assert session is not None
    session.served(found[0])
    _, found, _ = all_sessions.resolve(session.id, 1, {}, [], uses_topic_ids=False, now=0)
    assert [one.partition for one in found] == [1, 0]


@pytest.mark.parametrize(
    ("id_offset", "epoch", "by_id", "code"),
    [
        (1, 1, False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (0, 2, False, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (0, 1, True, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_a_wrong_id_epoch_or_topic_is_refused(
    id_offset: int, epoch: int, by_id: bool, code: ErrorCode
) -> None:
    all_sessions = sessions()
    session, _, _ = all_sessions.resolve(
        0, INITIAL_EPOCH, all_of(wanted(b"t", 0)), [], uses_topic_ids=False, now=0
    )
    assert session is not None
    with pytest.raises(MqError) as refused:
        all_sessions.resolve(session.id + id_offset, epoch, {}, [], uses_topic_ids=by_id, now=0)
    assert refused.value.code is code


@pytest.mark.parametrize("epoch", [INITIAL_EPOCH, FINAL_EPOCH])
def test_a_full_fetch_ends_the_session_that_it_names(epoch: int) -> None:
    all_sessions = sessions()
    session, _, _ = all_sessions.resolve(
        0, INITIAL_EPOCH, all_of(wanted(b"t", 0)), [], uses_topic_ids=False, now=0
    )
    assert session is not None
    all_sessions.resolve(
        session.id, epoch, all_of(wanted(b"t", 0)), [], uses_topic_ids=False, now=0
    )
    with pytest.raises(MqError) as refused:
        all_sessions.resolve(session.id, 1, {}, [], uses_topic_ids=False, now=0)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_epochs_wrap_to_one() -> None:
    all_sessions = sessions()
    session, _, _ = all_sessions.resolve(
        0, INITIAL_EPOCH, all_of(wanted(b"t", 0)), [], uses_topic_ids=False, now=0
    )
    assert session is not None
    session.epoch = 0x7FFFFFFF
    all_sessions.resolve(session.id, 0x7FFFFFFF, {}, [], uses_topic_ids=False, now=0)
    assert session.epoch == 1


def test_a_full_cache_serves_new_clients_without_a_session() -> None:
    all_sessions = sessions(limit=2)
    for now in (0.0, 1.0):
        all_sessions.resolve(
            0, INITIAL_EPOCH, all_of(wanted(b"t", 0)), [], uses_topic_ids=False, now=now
        )
    session, found, incremental = all_sessions.resolve(
        0, INITIAL_EPOCH, all_of(wanted(b"t", 0)), [], uses_topic_ids=False, now=2
    )
    assert session is None
    assert found
    assert not incremental
    late, _, _ = all_sessions.resolve(
        0, INITIAL_EPOCH, all_of(wanted(b"t", 0)), [], uses_topic_ids=False, now=EVICTION_SECONDS
    )
    assert late is not None
    assert len(all_sessions) == 2


def test_a_name_that_no_topic_has_never_enters_a_session() -> None:
    all_sessions = sessions()
    long = all_of(wanted(b"x" * 250, 0), wanted(b"t", 0))
    session, found, incremental = all_sessions.resolve(
        0, INITIAL_EPOCH, long, [], uses_topic_ids=False, now=0
    )
    assert session is None and len(found) == 2 and not incremental, "a response without a session"
    session, _, _ = all_sessions.resolve(
        0, INITIAL_EPOCH, all_of(wanted(b"x" * 249, 0)), [], uses_topic_ids=False, now=0
    )
    assert session is not None
    with pytest.raises(MqError) as error:
        all_sessions.resolve(session.id, 1, long, [], uses_topic_ids=False, now=0)
    assert error.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(all_sessions) == all_sessions.bytes == 0


def test_the_bytes_of_all_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    one = FETCH_SESSION_PARTITION_BYTES + 100
    monkeypatch.setattr("mqd.replica.fetch_session.FETCH_SESSIONS_BYTES_MAX", 3 * one)
    all_sessions = sessions()

    def rows(*partitions: int) -> dict[tuple[bytes, int], CachedPartition]:
        return all_of(*(wanted(b"%0100d" % number, number) for number in partitions))

    def created(*partitions: int) -> FetchSession | None:
        return all_sessions.resolve(
            0, INITIAL_EPOCH, rows(*partitions), [], uses_topic_ids=False, now=0
        )[0]

    session = created(1, 2)
    assert session is not None and all_sessions.bytes == session.bytes == 2 * one
    assert created(3, 4) is None
    forgotten = [(b"%0100d" % 2, 2), (b"%0100d" % 2, 2)]
    all_sessions.resolve(session.id, 1, rows(1), forgotten, uses_topic_ids=False, now=0)
    assert all_sessions.bytes == one
    assert created(3, 4) is not None
    with pytest.raises(MqError) as error:
        all_sessions.resolve(session.id, 2, rows(5), [], uses_topic_ids=False, now=0)
    assert error.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert all_sessions.bytes == 2 * one, "the session that grew is closed"
