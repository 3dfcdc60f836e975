"""What does a `users_file` of PLAIN cost?

    python -m bench.users_file [--rounds N] [--json FILE]

measures on a node of mqd, in milliseconds:

    configuration   logins of users in the configuration
    first           first logins with a password of the file
    later           later logins with the same passwords
    wrong           logins with wrong passwords, of known and of unknown users
    first behind    first logins while 100 clients send wrong passwords
    later behind    later logins at that time
    others behind   requests on another listener at that time
    change          from a change of the file until a new password is accepted

The time of a login is that from the user's token to its response. For wrong passwords, this
contains the delay of `connection.failed.authentication.delay.ms`, here 0; it is the default while
the 100 clients send. CPU is that of the node; unlike a time, it does not depend on other processes.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench import floors
from bench.brokers import Broker, responds_to_api_versions
from chaos.login_times import AUTHENTICATION_FAILED, compared, timed_login, write_users
from chaos.node import LOOPBACK, Node, end_on_sigterm, free_ports

USERS = 20
PASSWORD = "password of the benchmark"
ATTACKERS = 100
WRONG_LOGINS = 400
_JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_CHANGE_SECONDS_MAX = 30.0


class Bench:
    def __init__(self, directory: Path, delay_ms: int | None = None) -> None:
        """`delay_ms`: until the response to a failed login. None: the default."""
        plain, self.configured, self.hashed = free_ports(3)
        self.users = [f"user-{number:03}" for number in range(USERS)]
        self.file = directory / "users"
        write_users(self.file, self.users, PASSWORD)
        users = " ".join(f'user_{user}="{PASSWORD}"' for user in self.users)
        options = [
            f"listeners=PLAINTEXT://{LOOPBACK}:{plain},SASL://{LOOPBACK}:{self.configured},"
            f"FILE://{LOOPBACK}:{self.hashed}",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,"
            "FILE:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms=PLAIN",
            f"listener.name.sasl.plain.sasl.jaas.config={_JAAS} {users};",
            f'listener.name.file.plain.sasl.jaas.config={_JAAS} users_file="{self.file}";',
        ]
        if delay_ms is not None:
            options.append(f"connection.failed.authentication.delay.ms={delay_ms}")
        self.node = Node(directory / "node", tuple(options), port=plain)

    def cpu_seconds(self) -> float:
        found = Broker("mqd", (LOOPBACK, self.node.port), self.node.pid).cpu_seconds()
        assert found is not None
        return found


@contextmanager
def running(delay_ms: int | None = None) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="mqd-bench-") as directory:
        bench = Bench(Path(directory), delay_ms)
        bench.node.start()
        try:
            yield bench
        finally:
            if bench.node.running:
                bench.node.stop()


def accepted(port: int, user: str, password: str = PASSWORD) -> float:
    """Milliseconds of a login."""
    login = timed_login(port, user, password)
    assert login.error_code == 0, login
    return login.nanoseconds / 1e6


Rows = dict[str, list[float]]
"""Name -> milliseconds."""


def measure_right_passwords(bench: Bench, rows: Rows) -> None:
    for name, port, times in (
        ("configuration", bench.configured, 10),
        ("first", bench.hashed, 1),
        ("later", bench.hashed, 10),
    ):
        cpu = bench.cpu_seconds()
        found = [accepted(port, user) for _ in range(times) for user in bench.users]
        rows.setdefault(name, []).extend(found)
        cpu_ms = (bench.cpu_seconds() - cpu) / len(found) * 1000
        rows.setdefault(f"{name}: CPU of a login", []).append(cpu_ms)


def measure_wrong_passwords(bench: Bench, rows: Rows, chance: random.Random) -> None:
    cpu = bench.cpu_seconds()
    for number in range(WRONG_LOGINS):
        is_known = chance.random() < 0.5
        user = bench.users[number % USERS] if is_known else f"usex-{number % USERS:03}"
        login = timed_login(bench.hashed, user, "wrong")
        assert login.error_code == AUTHENTICATION_FAILED, login
        name = "wrong, known" if is_known else "wrong, unknown"
        rows.setdefault(name, []).append(login.nanoseconds / 1e6)
    cpu_ms = (bench.cpu_seconds() - cpu) / WRONG_LOGINS * 1000
    rows.setdefault("wrong: CPU of a login", []).append(cpu_ms)


def measure_behind_attackers(bench: Bench, rows: Rows) -> None:
    """The users must not have logged in yet."""
    ended = threading.Event()

    def attack() -> None:
        while not ended.is_set():
            with suppress(OSError):  # a login has little time
                timed_login(bench.hashed, "nobody", "wrong")

    attackers = [threading.Thread(target=attack) for _ in range(ATTACKERS)]
    for each in attackers:
        each.start()
    try:
        time.sleep(3.0)  # until all of them wait
        for user in bench.users[:10]:
            cpu = bench.cpu_seconds()
            rows.setdefault("first behind", []).append(accepted(bench.hashed, user))
            cpu_ms = 1000 * (bench.cpu_seconds() - cpu)
            rows.setdefault("first behind: CPU until its end", []).append(cpu_ms)
            for _ in range(5):
                rows.setdefault("later behind", []).append(accepted(bench.hashed, user))
                rows.setdefault("others behind", []).append(time_of_request(bench.node.port))
    finally:
        ended.set()
        for each in attackers:
            each.join()


def time_of_request(port: int) -> float:
    """Milliseconds of ApiVersions, with a new connection."""
    begun = time.perf_counter()
    assert responds_to_api_versions((LOOPBACK, port))
    return (time.perf_counter() - begun) * 1000


def measure_changes(bench: Bench, rows: Rows, changes: int = 5) -> None:
    user = bench.users[0]
    for number in range(changes):
        password = f"new {number}"
        time.sleep(random.random() * 2)  # the node looks at the file at regular times
        write_users(bench.file, [user], password)
        begun = time.monotonic()
        while timed_login(bench.hashed, user, password).error_code:
            assert time.monotonic() - begun < _CHANGE_SECONDS_MAX, "the file is not read again"
        rows.setdefault("change", []).append((time.monotonic() - begun) * 1000)


def main() -> int:
    end_on_sigterm()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="[default: 3]")
    parser.add_argument("--json", metavar="FILE", help="write all figures there, too")
    given = parser.parse_args()
    machine = floors.machine(Path(tempfile.gettempdir()))
    print(*(f"{key}: {value}" for key, value in machine.items()), sep="\n")
    rows: Rows = {}
    chance = random.Random(1)
    for _ in range(given.rounds):
        with running(delay_ms=0) as bench:
            measure_right_passwords(bench, rows)
            measure_wrong_passwords(bench, rows, chance)
            measure_changes(bench, rows)
        with running() as bench:
            measure_behind_attackers(bench, rows)
    print(f"{'ms':32} {'median':>9} {'p99':>9} {'count':>6}")
    for name, values in rows.items():
        p99 = sorted(values)[int(0.99 * (len(values) - 1))]
        print(f"{name:32} {statistics.median(values):9.3f} {p99:9.3f} {len(values):6}")
    known, unknown = (
        [int(1e6 * ms) for ms in rows[name]] for name in ("wrong, known", "wrong, unknown")
    )
    print("wrong passwords:", compared(known, unknown))
    if given.json:
        found: dict[str, Any] = {"machine": machine, "milliseconds": rows}
        Path(given.json).write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
