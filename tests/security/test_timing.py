"""The time of a failed login does not show whether the user exists (timing.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.security.timing import KINDS, Kind, known_user, measure

PART = 3 / 20
"""The part of the attempts that a round of timing.py makes."""
TRIES = 3
"""A busy machine may disturb one measurement, not three in a row."""


def tells_users_apart(kind: Kind) -> bool:
    attempts = int(PART * kind.attempts)
    return all(measure(kind, attempts, seed).tells_users_apart for seed in range(TRIES))


@pytest.mark.parametrize("name", KINDS)
def test_known_and_unknown_users_take_the_same_time(name: str) -> None:
    assert not tells_users_apart(KINDS[name])


def test_the_measurement_finds_a_difference() -> None:
    """A server that refuses an unknown user at once."""
    kind = KINDS["SCRAM-SHA-256"]
    known = {known_user(number) for number in range(kind.users)}
    honest = kind.prepare()

    def new_login(user: str) -> Callable[[], None]:
        return honest(user) if user in known else lambda: None

    assert tells_users_apart(replace(kind, prepare=lambda: new_login))
