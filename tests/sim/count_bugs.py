"""Find the first seed, from 0 on, that finds each planted defect, and rewrite tests/sim/found.py.

    python -m tests.sim.count_bugs                    all of them, up to seed 99; minutes
    python -m tests.sim.count_bugs NAME ... --jobs 2  these only; the others keep their seeds

Ends with exit code 1 when one is not found: the load is too small for it, or a probe is missing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from mqd.testing.jobs import run_with_bug
from mqd.testing.settings import Settings
from tests.sim.bugs import BUGS
from tests.sim.found import FOUND

TABLE = Path(__file__).with_name("found.py")
HEAD = '''"""The first seed, from 0 on, in which the simulation finds each planted defect.

`make simulate-bugs-count` writes this file.
"""

FOUND: dict[str, int] = {
'''


def first_seed(name: str, last: int) -> int | None:
    """The first seed of 0 to `last` with a violation, with the load and the nodes of this
    defect.
    """
    bug = BUGS[name]
    settings = (
        Settings(seed, bug=name, load=bug.load, nodes=bug.nodes, security=bug.security)
        for seed in range(last + 1)
    )
    return next((one.seed for one in settings if run_with_bug(one).violations), None)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.count_bugs")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--last", type=int, default=99, help="seed [default: 99]")
    parser.add_argument("--jobs", type=int, default=2, help="processes [default: 2]")
    options = parser.parse_args(arguments)
    names = options.names or sorted(BUGS)
    missing = []
    counted = {name: seed for name, seed in FOUND.items() if name in BUGS}
    # The slowest ones come first, so that no process waits for one of them at the end.
    names.sort(key=lambda name: -counted.get(name, options.last))
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        counting = {pool.submit(first_seed, name, options.last): name for name in names}
        for done in as_completed(counting):
            name, seed = counting[done], done.result()
            before = counted.pop(name, None)
            print(f"{name}: {seed} (before: {before})", flush=True)
            if seed is None:
                missing.append(name)
            else:
                counted[name] = seed
            rows = "".join(f'    "{one}": {counted[one]},\n' for one in sorted(counted))
            TABLE.write_text(f"{HEAD}{rows}}}\n")
    if missing:
        print(f"not found up to seed {options.last}: {', '.join(missing)}", file=sys.stderr)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
