"""Two processes with one node id: which is accepted, which is refused and why, and which may
reconnect.
"""

from __future__ import annotations

import math
from uuid import UUID

import pytest

from mqd.raft.incarnations import IncarnationRefused, Incarnations
from tests.raft.callers import Calling

FIRST, SECOND = UUID(int=1), UUID(int=2)
SILENCE = 1.4


@pytest.fixture
def incarnations() -> Incarnations:
    return Incarnations(silence=SILENCE)


def test_the_first_incarnation_is_accepted_and_continues(incarnations: Incarnations) -> None:
    assert incarnations.current(3) is None
    assert incarnations.admit(1.0, 3, FIRST, Calling(received_at=1.0), called_at=0.9)
    assert not incarnations.admit(2.0, 3, FIRST, Calling(received_at=2.0), called_at=1.9)
    assert incarnations.admit(2.0, 2, SECOND, Calling(received_at=2.0), called_at=1.9), (
        "another node"
    )
    assert (incarnations.current(3), incarnations.current(2)) == (FIRST, SECOND)


def test_the_active_process_stays_and_the_other_receives_the_reason(
    incarnations: Incarnations,
) -> None:
    """Otherwise one introduction in a node's name would keep that node out."""
    quiet, busy = Calling("10.0.0.3:1", received_at=1.0), Calling("10.0.0.3:2", received_at=1.0)
    for caller in (quiet, busy):
        incarnations.admit(1.0, 3, FIRST, caller, called_at=0.9)
    busy.received_at = 9.0
    why = (
        r"another process at 10\.0\.0\.3 runs under this id .* "
        r"two nodes run under id 3; stop the wrong one"
    )
    with pytest.raises(IncarnationRefused, match=why):
        incarnations.admit(8.9 + SILENCE, 3, SECOND, Calling(received_at=10.0), called_at=9.5)
    assert incarnations.current(3) == FIRST


def test_a_dead_process_is_replaced_at_once(incarnations: Incarnations) -> None:
    before = Calling(received_at=1.0)
    incarnations.admit(1.0, 3, FIRST, before, called_at=0.9)
    before.close()
    assert incarnations.admit(1.1, 3, SECOND, Calling(received_at=1.1), called_at=1.05)
    assert incarnations.current(3) == SECOND


def test_a_silent_process_is_replaced_after_an_election_timeout(
    incarnations: Incarnations, caplog: pytest.LogCaptureFixture
) -> None:
    before = Calling("10.0.0.3:1", received_at=1.0)
    incarnations.admit(1.0, 3, FIRST, before, called_at=0.9)
    assert incarnations.admit(1.1 + SILENCE, 3, SECOND, Calling(received_at=2.5), called_at=2.0)
    assert incarnations.current(3) == SECOND and before.received_at == -math.inf, (
        "messages that arrive late there are dropped"
    )
    assert "a node has a new process" in caplog.text and "node=3" in caplog.text
    assert "two nodes use the same id" in caplog.text


def test_a_displaced_process_is_accepted_when_the_other_has_ended(
    incarnations: Incarnations,
) -> None:
    incarnations.admit(1.0, 3, FIRST, Calling(received_at=1.0), called_at=0.9)
    other = Calling(received_at=5.0)
    assert incarnations.admit(5.0, 3, SECOND, other, called_at=4.9)
    with pytest.raises(IncarnationRefused):
        incarnations.admit(5.5, 3, FIRST, Calling(received_at=5.5), called_at=5.4)
    other.close()
    assert incarnations.admit(5.6, 3, FIRST, Calling(received_at=5.6), called_at=5.55), (
        "a new connection: the leader requests its position again"
    )


@pytest.mark.parametrize("called_at", [4.9, 5.0])
def test_messages_of_a_dead_process_are_dropped_after_its_replacement(
    incarnations: Incarnations, called_at: float
) -> None:
    """Its node may have restarted with an empty log, which does not hold what the earlier process
    acknowledged.
    """
    before, successor = Calling(received_at=1.0), Calling(received_at=5.0)
    incarnations.admit(1.0, 3, FIRST, before, called_at=0.9)
    before.close()
    incarnations.admit(5.0, 3, SECOND, successor, called_at=4.95)
    successor.close()
    with pytest.raises(
        IncarnationRefused,
        match="another process at a has completed a handshake under this id meanwhile",
    ):
        incarnations.admit(5.1, 3, FIRST, Calling(received_at=5.1), called_at=called_at)
    assert incarnations.current(3) == SECOND
