"""The attackers' process: `python -m tests.hostile.attacker`. It reads one line for each attack:
a list in JSON: the port, connections, known partitions, the name, and the login.

It forks, because the modules take more than a second to import. The child writes "begun" when all
connections are open, or after BEGIN_SECONDS. A connection that the broker closes is replaced. The
next line, END, ends the attack. So does the end of the input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from functools import lru_cache
from typing import NoReturn

from tests.hostile.attack import Attack
from tests.hostile.attacks import EVERY_ATTACK
from tests.hostile.login import use
from tests.hostile.wire import Wire

REOPEN_SECONDS = 0.05
BEGIN_SECONDS = 1.0
"""In a flood, some connections open only after seconds. The attack continues meanwhile."""
END = "end"


@lru_cache(maxsize=1)
def prepared(name: str, known: int) -> Attack:
    """One attack runs with different numbers of connections: its bytes are built once."""
    return EVERY_ATTACK[name](known)


def run(attack: Attack, port: int, begun: threading.Semaphore) -> None:
    first = True
    while True:
        wire = None
        try:
            wire = Wire(port, attack.opening)
            if first:
                begun.release()
                first = False
            while True:
                attack.round(wire)
        except OSError:
            time.sleep(REOPEN_SECONDS)
        finally:
            if wire is not None:
                wire.close()


def attack_until_killed(attack: Attack, port: int, connections: int) -> NoReturn:
    begun = threading.Semaphore(0)
    ends_at = time.monotonic() + BEGIN_SECONDS
    for _ in range(connections):
        threading.Thread(target=run, args=(attack, port, begun), daemon=True).start()
    for _ in range(connections):
        begun.acquire(timeout=max(0.0, ends_at - time.monotonic()))
    print("begun", flush=True)
    while True:
        signal.pause()


def main() -> None:
    while line := sys.stdin.readline():
        port, connections, known, name, login = json.loads(line)
        attack = prepared(name, known)
        child = os.fork()
        if child == 0:
            use(login)
            attack_until_killed(attack, port, connections)
        end = sys.stdin.readline()
        assert end in ("", END + "\n"), end
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
