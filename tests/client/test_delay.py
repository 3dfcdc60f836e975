"""The arguments of `send` that delay a record."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mqd.client import ClientError
from mqd.client.delay import delay_header


def test_headers() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    assert delay_header(moment, None) == ("mqd-deliver-at", b"1767323045678")
    assert delay_header(5, None) == ("mqd-deliver-at", b"5")
    assert delay_header(None, 1.5) == ("mqd-delay", b"1500")
    assert delay_header(None, 0) == ("mqd-delay", b"0")


@pytest.mark.parametrize(
    ("deliver_at", "delay", "problem"),
    [
        (1, 1, "deliver_at and delay"),
        (datetime(2026, 1, 1), None, "no time zone"),
        ("tomorrow", None, "deliver_at is 'tomorrow'"),
        (-1, None, "deliver_at is -1 milliseconds"),
        (None, "1s", "delay is '1s'"),
        (None, -1, "delay is -1"),
        (None, float("nan"), "delay is nan"),
        (None, True, "delay is True"),
        (None, 1e30, "delay is 1000000000000000"),
    ],
)
def test_wrong_arguments(deliver_at: Any, delay: Any, problem: str) -> None:
    with pytest.raises(ClientError, match=problem):
        delay_header(deliver_at, delay)
