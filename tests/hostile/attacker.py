"""The attacker's process: `python -m tests.hostile.attacker PORT ATTACK CONNECTIONS KNOWN`, until
it is killed.

It writes a line when all connections are open, or after BEGIN_SECONDS. A connection that the broker
closes is replaced.
"""

from __future__ import annotations

import sys
import threading
import time

from tests.hostile.attack import Attack
from tests.hostile.attacks import ATTACKS
from tests.hostile.wire import Wire

REOPEN_SECONDS = 0.05
BEGIN_SECONDS = 3.0
"""In a flood of connections some are opened only after seconds."""


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


def main() -> None:
    port, name, connections, known = (
        int(sys.argv[1]),
        sys.argv[2],
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
    attack = ATTACKS[name](known)
    begun = threading.Semaphore(0)
    ends_at = time.monotonic() + BEGIN_SECONDS
    for _ in range(connections):
        threading.Thread(target=run, args=(attack, port, begun), daemon=True).start()
    for _ in range(connections):
        begun.acquire(timeout=max(0.0, ends_at - time.monotonic()))
    print("begun", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
