"""The time of a failed login does not show whether the user exists (timing.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.security.timing import KINDS, USERS, NewLogin, known_user, measure

ATTEMPTS = 3_000
TRIES = 3
"""A busy machine may disturb one measurement, not three in a row."""


def tells_users_apart(new_login: NewLogin) -> bool:
    outcomes = [measure(new_login, ATTEMPTS, seed) for seed in range(1)]
    while outcomes[-1].tells_users_apart and len(outcomes) < TRIES:
        outcomes.append(measure(new_login, ATTEMPTS, len(outcomes)))
    return outcomes[-1].tells_users_apart


@pytest.mark.parametrize("kind", KINDS)
def test_known_and_unknown_users_take_the_same_time(kind: str) -> None:
    assert not tells_users_apart(KINDS[kind]())


def test_the_measurement_finds_a_difference() -> None:
    """A server that refuses an unknown user at once."""
    known = {known_user(number) for number in range(USERS)}
    honest = KINDS["SCRAM-SHA-256"]()

    def new_login(user: str) -> Callable[[], None]:
        return honest(user) if user in known else lambda: None

    assert tells_users_apart(new_login)
