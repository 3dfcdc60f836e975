"""The attackers' process: `python -m tests.hostile.attacker`. It reads one line for each attack:
PORT CONNECTIONS KNOWN NAME.

It forks, because the modules take more than a second to import. The child writes "begun" when all
connections are open, or after BEGIN_SECONDS. A connection that the broker closes is replaced. The
next line, END, ends the attack. So does the end of the input.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import lru_cache
from typing import NoReturn

from tests.hostile.attack import Attack
from tests.hostile.attacks import ATTACKS
from tests.hostile.wire import Wire

REOPEN_SECONDS = 0.05
BEGIN_SECONDS = 3.0
"""In a flood of connections some are opened only after seconds."""
END = "end"


@lru_cache(maxsize=1)
def prepared(name: str, known: int) -> Attack:
    """One attack runs with different numbers of connections: its bytes are built once."""
    return ATTACKS[name](known)


def run(attack: Attack, port: int, begun: threading.Semaphore) -> None:
    first = True
    while True:
        wire = None
        try:
            wire = Wire(port)
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
        port, connections, known, name = line.rstrip("\n").split(" ", 3)
        attack = prepared(name, int(known))
        child = os.fork()
        if child == 0:
            attack_until_killed(attack, int(port), int(connections))
        end = sys.stdin.readline()
        assert end in ("", END + "\n"), end
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
