"""Do logins of known and unknown users take the same time?

    python -m tests.security.timing --seconds 3600

measures the server's side of PLAIN and SCRAM with wrong passwords, and compares both kinds of users
(chaos/login_times.py). `test_timing.py` does the same for a moment. `chaos.sasl_fuzz` measures
logins to a node.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from chaos.login_times import Outcome, compared
from mqd.security.hashed_users import DEFAULT_ITERATIONS, HashedUsers
from mqd.security.mechanism import LoginFailed, MechanismServer, PendingResponse
from mqd.security.plain import PlainServer, PlainUsers, plain_token
from mqd.security.scram import FakeCredentials, ScramClient, ScramServer, new_credential
from mqd.security.scram_credentials import ScramMechanism
from mqd.security.scram_shapes import ScramShapes

USERS = 200
HASHED_USERS = 4
"""In a file: to hash a password takes milliseconds."""

NewLogin = Callable[[str], Callable[[], None]]
"""For a user: prepares a login that fails, and returns the part to measure."""


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


def hashed_logins(iterations: int) -> NewLogin:
    """PLAIN with a `users_file`. Half of the known users have logged in before."""
    users = HashedUsers(b"k" * 32, b"secret of the cluster")
    salts = {known_user(number): b"salt-%d" % number for number in range(HASHED_USERS)}
    users.replace(
        {
            user: new_credential(ScramMechanism.SHA_256, "password", salt, iterations)
            for user, salt in salts.items()
        }
    )
    for user in list(salts)[: HASHED_USERS // 2]:
        accepted(PlainServer(users), plain_token(user, "password"))

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
        respond(server, token)
    except LoginFailed:
        return
    raise AssertionError("the login succeeded")


def accepted(server: MechanismServer, token: bytes) -> None:
    respond(server, token)
    assert server.is_complete


def respond(server: MechanismServer, token: bytes) -> bytes:
    """With the work that a node does in a thread."""
    response = server.respond(token, 0)
    if isinstance(response, PendingResponse):
        return response.conclude(response.work())
    return response


@dataclass(frozen=True, slots=True)
class Kind:
    """How passwords are checked."""

    prepare: Callable[[], NewLogin]
    users: int = USERS
    attempts: int = 20_000
    """Attempts for each kind of user, in a round of `main`."""
    clock: Callable[[], int] = time.perf_counter_ns


KINDS: dict[str, Kind] = {
    "PLAIN": Kind(plain_logins),
    # CPU time: other processes interrupt most of such long logins
    "PLAIN, users_file": Kind(
        lambda: hashed_logins(DEFAULT_ITERATIONS), HASHED_USERS, 500, time.thread_time_ns
    ),
    "SCRAM-SHA-256": Kind(lambda: scram_logins(ScramMechanism.SHA_256)),
    "SCRAM-SHA-512": Kind(lambda: scram_logins(ScramMechanism.SHA_512)),
}


def measure(kind: Kind, attempts: int, seed: int = 1) -> Outcome:
    """The times of that many logins of each kind of user."""
    chance = random.Random(seed)
    times: tuple[list[int], list[int]] = ([], [])
    new_login, clock = kind.prepare(), kind.clock
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(2 * attempts):
            is_known = chance.random() < 0.5
            number = chance.randrange(kind.users)
            login = new_login(known_user(number) if is_known else unknown_user(number))
            begun = clock()
            login()
            times[is_known].append(clock() - begun)
    finally:
        if was_enabled:
            gc.enable()
    unknown, known = times
    return compared(known, unknown)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the times of known and unknown users.")
    parser.add_argument("--seconds", type=float, default=60.0, help="[default: 60]")
    seconds = parser.parse_args().seconds
    ends_at = time.monotonic() + seconds
    seen: dict[str, int] = dict.fromkeys(KINDS, 0)
    rounds = 0
    while rounds == 0 or time.monotonic() < ends_at:
        rounds += 1
        for name, kind in KINDS.items():
            outcome = measure(kind, kind.attempts, seed=rounds)
            seen[name] += outcome.tells_users_apart
            print(f"{name}: {outcome}{' DIFFERS' if outcome.tells_users_apart else ''}", flush=True)
    print(f"{rounds} rounds; rounds that told users apart: {seen}")
    return int(any(count > max(1, rounds // 20) for count in seen.values()))


if __name__ == "__main__":
    sys.exit(main())
