"""Jumps of the wall clock are in the log."""

from __future__ import annotations

import logging

import pytest

from mqd.relay.service import JUMP_MS, ClockWatch


class JumpingClock:
    def __init__(self) -> None:
        self.seconds = 5.0
        self.jumped_ms = 0

    def monotonic(self) -> float:
        return self.seconds

    def wall_ms(self) -> int:
        return 1_000_000 + round(self.seconds * 1000) + self.jumped_ms


def test_a_jump_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = JumpingClock()
    watch = ClockWatch(clock)
    with caplog.at_level(logging.WARNING):
        clock.seconds += 3_600
        clock.jumped_ms = JUMP_MS
        watch.check()
        assert not caplog.messages
        clock.jumped_ms -= 60_000
        watch.check()
        watch.check()
    assert caplog.messages == ["wall clock jumped seconds=-60.000"]
