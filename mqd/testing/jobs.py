"""Many seeds, over one or more processes; and the defects of tests/sim/bugs.py, planted in
the process that runs the seed.

This cannot stand in `__main__.py`: a process that multiprocessing spawns does not import that
module again.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from mqd.testing.runner import run_seed
from mqd.testing.settings import Result, Settings

BUGS = "tests.sim.bugs"
_GC_THRESHOLD = 50_000
"""Objects created between two collections of the youngest generation."""


def results(settings: Sequence[Settings], jobs: int, trace: Path | None = None) -> Iterator[Result]:
    """The result of each, in their order. Closing the iterator early ends the remaining runs."""
    if jobs == 1 or len(settings) == 1:
        yield from map(partial(run_with_bug, trace=trace), settings)
        return
    with ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent
    ) as pool:
        yield from pool.map(run_with_bug, settings)


def _end_with_parent() -> None:
    """Let this worker end when its parent is killed: its queue stays open then, because the
    other workers hold it too.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, name="parent", daemon=True).start()


def run_with_bug(settings: Settings, trace: Path | None = None) -> Result:
    """One seed, with the defect that its settings name planted for the time of the run."""
    # objects live until the end of a run: collecting garbage all the time costs a sixth
    gc.set_threshold(_GC_THRESHOLD)
    try:
        if settings.bug is None:
            return run_seed(settings, trace)
        bug = bugs()[settings.bug]
        with bug.planted():
            return run_seed(replace(settings, load=settings.load or bug.load), trace)
    finally:
        gc.collect()  # the nodes, disks and clients of the cluster refer to each other


def bugs() -> Any:
    """Name -> defect. SystemExit where there are no tests."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(BUGS).BUGS
    except ModuleNotFoundError:
        raise SystemExit(
            "planted defects are part of the tests: run this from the root of a source tree"
        ) from None
    finally:
        del sys.path[0]
