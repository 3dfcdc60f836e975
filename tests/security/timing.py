"""Do logins of known and unknown users take the same time?

    python -m tests.security.timing --seconds 3600

measures the server's side of PLAIN and SCRAM with wrong passwords. `test_timing.py` does the same
for a moment. Known and unknown users alternate at random, so that a busy machine delays both alike.
The slowest quarter of each kind is dropped: it was interrupted.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from mqd.security.mechanism import LoginFailed, MechanismServer
from mqd.security.plain import PlainServer, PlainUsers, plain_token
from mqd.security.scram import FakeCredentials, ScramClient, ScramServer, new_credential
from mqd.security.scram_credentials import ScramMechanism
from mqd.security.scram_shapes import ScramShapes

USERS = 200
SHARE_KEPT = 0.75
TOLERANCE = 0.03
"""A difference of this part of the time is too small to see, and may come from memory caches."""
SIGMAS = 5.0

NewLogin = Callable[[str], Callable[[], None]]
"""For a user: prepares a login that fails, and returns the part to measure."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Nanoseconds."""

    known: float
    unknown: float
    error: float
    """Standard error of their difference."""

    @property
    def tells_users_apart(self) -> bool:
        """Whether the difference is certain, and larger than the tolerance."""
        difference = abs(self.known - self.unknown) - SIGMAS * self.error
        return difference > TOLERANCE * min(self.known, self.unknown)

    def __str__(self) -> str:
        return (
            f"known {self.known:.0f} ns, unknown {self.unknown:.0f} ns, "
            f"standard error {self.error:.1f} ns"
        )


def known_user(number: int) -> str:
    return f"user-{number:06d}"


def unknown_user(number: int) -> str:
    return f"usex-{number:06d}"


def plain_logins() -> NewLogin:
    passwords = {known_user(number): f"password-{number}" for number in range(USERS)}
    users = PlainUsers(passwords, b"k" * 32)

    def new_login(user: str) -> Callable[[], None]:
        server, token = PlainServer(users), plain_token(user, "wrong-password")
        return lambda: refused(server, token)

    return new_login


def scram_logins(mechanism: ScramMechanism) -> NewLogin:
    credential = new_credential(mechanism, "password", b"salt-of-26-characters-000")
    users = {known_user(number): credential for number in range(USERS)}
    shapes = ScramShapes()
    for each in users.values():
        shapes.append(mechanism, each)
    fakes = FakeCredentials(b"secret of the cluster", lambda: shapes)
    salted: dict[tuple[ScramMechanism, bytes, int], bytes] = {}

    def new_login(user: str) -> Callable[[], None]:
        """Both messages; the client's own work is outside of the measurement."""
        client = ScramClient(mechanism, user, "wrong", "client-nonce-0000000000", salted)
        first = client.first()
        server = ScramServer(mechanism, users.get, fakes, "server-nonce-0000000000")
        # an invalid proof of the right length: the client needs no PBKDF2 for each user
        size = 32 if mechanism is ScramMechanism.SHA_256 else 64
        proof = "A" * (4 * ((size + 2) // 3) - (-size % 3)) + "=" * (-size % 3)
        final = f"c=biws,r=client-nonce-0000000000server-nonce-0000000000,p={proof}".encode()

        def run() -> None:
            server.respond(first, 0)
            refused(server, final)

        return run

    return new_login


def refused(server: MechanismServer, token: bytes) -> None:
    try:
        server.respond(token, 0)
    except LoginFailed:
        return
    raise AssertionError("the login succeeded")


KINDS: dict[str, Callable[[], NewLogin]] = {
    "PLAIN": plain_logins,
    "SCRAM-SHA-256": lambda: scram_logins(ScramMechanism.SHA_256),
    "SCRAM-SHA-512": lambda: scram_logins(ScramMechanism.SHA_512),
}


def measure(new_login: NewLogin, attempts: int, seed: int = 1) -> Outcome:
    """The times of that many logins of each kind of user."""
    chance = random.Random(seed)
    times: tuple[list[int], list[int]] = ([], [])
    clock = time.perf_counter_ns
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(2 * attempts):
            is_known = chance.random() < 0.5
            number = chance.randrange(USERS)
            login = new_login(known_user(number) if is_known else unknown_user(number))
            begun = clock()
            login()
            times[is_known].append(clock() - begun)
    finally:
        if was_enabled:
            gc.enable()
    unknown, known = (_fastest(each) for each in times)
    error = math.sqrt(_variance(known) / len(known) + _variance(unknown) / len(unknown))
    return Outcome(_mean(known), _mean(unknown), error)


def _fastest(times: list[int]) -> list[int]:
    return sorted(times)[: int(SHARE_KEPT * len(times))]


def _mean(values: list[int]) -> float:
    return sum(values) / len(values)


def _variance(values: list[int]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the times of known and unknown users.")
    parser.add_argument("--seconds", type=float, default=60.0, help="[default: 60]")
    seconds = parser.parse_args().seconds
    ends_at = time.monotonic() + seconds
    seen: dict[str, int] = dict.fromkeys(KINDS, 0)
    rounds = 0
    while rounds == 0 or time.monotonic() < ends_at:
        rounds += 1
        for kind, make in KINDS.items():
            outcome = measure(make(), 20_000, seed=rounds)
            seen[kind] += outcome.tells_users_apart
            print(f"{kind}: {outcome}{' DIFFERS' if outcome.tells_users_apart else ''}", flush=True)
    print(f"{rounds} rounds; rounds that told users apart: {seen}")
    return int(any(count > max(1, rounds // 20) for count in seen.values()))


if __name__ == "__main__":
    sys.exit(main())
