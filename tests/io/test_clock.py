"""The real clock: one scale with Trio's deadlines, and milliseconds for records."""

from __future__ import annotations

import time

from trio.testing import MockClock

from mqd.io.clock import SystemClock


async def test_monotonic_time_is_trio_s_so_that_a_virtual_clock_moves_it(
    mock_clock: MockClock,
) -> None:
    clock = SystemClock()
    before = clock.monotonic()
    mock_clock.jump(12.5)
    assert clock.monotonic() == before + 12.5


async def test_wall_time_is_in_milliseconds_and_not_virtual(mock_clock: MockClock) -> None:
    before = time.time() * 1000
    mock_clock.jump(1e6)
    now = SystemClock().wall_ms()
    assert isinstance(now, int)
    assert before - 1 <= now <= time.time() * 1000
