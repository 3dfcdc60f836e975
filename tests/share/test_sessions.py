"""Share sessions, and what bounds them."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    COORDINATOR_KEY_BYTES_MAX,
    SHARE_SESSION_PARTITION_BYTES,
    SHARE_SESSION_PARTITIONS_MAX,
    SHARE_SESSIONS_BYTES_MAX,
    SHARE_SESSIONS_PER_CONNECTION_MAX,
)
from mqd.share.sessions import Place, SessionKey, ShareSessions

TOPIC = UUID(int=1)


def refused(action: Callable[[], object]) -> ErrorCode:
    with pytest.raises(MqError) as raised:
        action()
    return raised.value.code


def test_the_sessions_of_a_connection_are_bounded() -> None:
    sessions = ShareSessions(10_000)
    for number in range(SHARE_SESSIONS_PER_CONNECTION_MAX):
        sessions.open(SessionKey("g", str(number)), "127.0.0.1:1")
    one_more = SessionKey("g", "more")
    code = refused(lambda: sessions.open(one_more, "127.0.0.1:1"))
    assert code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    sessions.open(one_more, "127.0.0.1:2")
    assert len(sessions.end_of_peer("127.0.0.1:1")) == SHARE_SESSIONS_PER_CONNECTION_MAX
    assert len(sessions) == 1


def test_one_address_does_not_use_up_all_sessions() -> None:
    sessions = ShareSessions(4)
    for number in range(2):
        sessions.open(SessionKey("g", str(number)), f"10.0.0.1:{number}")
    one_more = SessionKey("g", "more")
    code = refused(lambda: sessions.open(one_more, "10.0.0.1:9"))
    assert code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    sessions.open(one_more, "10.0.0.2:1")
    sessions.end(SessionKey("g", "0"))
    sessions.open(SessionKey("g", "0"), "10.0.0.1:9")


def test_clients_of_this_machine_have_no_bound_of_their_address() -> None:
    sessions = ShareSessions(4)
    for number in range(4):
        sessions.open(SessionKey("g", str(number)), f"127.0.0.1:{number}")
    assert (
        refused(lambda: sessions.open(SessionKey("g", "4"), "10.0.0.1:9"))
        is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    )


@pytest.mark.parametrize("key", [("x", ""), ("", "x")])
def test_ids_are_bounded(key: tuple[str, str]) -> None:
    sessions = ShareSessions(4)
    group_id, member_id = (one * (COORDINATOR_KEY_BYTES_MAX + 1) or "a" for one in key)
    code = refused(lambda: sessions.open(SessionKey(group_id, member_id), "10.0.0.1:1"))
    assert code is ErrorCode.INVALID_REQUEST
    assert sessions.bytes == len(sessions) == 0


def test_the_partitions_of_a_session_and_of_all_are_bounded() -> None:
    sessions = ShareSessions(1_000)
    counts = []
    while sessions.bytes + SHARE_SESSION_PARTITION_BYTES <= SHARE_SESSIONS_BYTES_MAX:
        key = SessionKey("g", str(len(sessions)))
        try:
            session = sessions.open(key, f"10.0.0.1:{len(sessions)}")
        except MqError:
            break
        with pytest.raises(MqError) as raised:
            for index in range(SHARE_SESSION_PARTITIONS_MAX + 1):
                sessions.add(session, Place(TOPIC, index))
        assert raised.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
        counts.append(len(session.places))
    assert counts[0] == SHARE_SESSION_PARTITIONS_MAX
    assert sum(counts) <= SHARE_SESSIONS_BYTES_MAX // SHARE_SESSION_PARTITION_BYTES
    sessions.remove(session, Place(TOPIC, 0))
    sessions.add(session, Place(TOPIC, 0))
    for number in range(len(counts)):
        sessions.end(SessionKey("g", str(number)))
    assert sessions.bytes == len(sessions) == 0


def test_a_session_that_ends_wakes_its_fetch() -> None:
    sessions, woken = ShareSessions(1), []
    session = sessions.open(SessionKey("g", "m"), "10.0.0.1:1")
    session.wake = lambda: woken.append(True)
    sessions.end_of_peer("10.0.0.1:1")
    assert woken == [True]
    assert not session.is_open
