"""Runs many seeds in one or more processes, and plants bugs of tests/sim/bugs.py in the process of
a seed.

This code is not in `__main__.py`, because a process that multiprocessing spawns does not import
that module.
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
"""The number of new objects between two garbage collections of the youngest generation."""


def results(settings: Sequence[Settings], jobs: int, trace: Path | None = None) -> Iterator[Result]:
    """The results of all settings, in order. If the iterator is closed early, the remaining runs
    end.
    """
    if jobs == 1 or len(settings) == 1:
        yield from map(partial(run_with_bug, trace=trace), settings)
        return
    with ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent
    ) as pool:
        yield from pool.map(run_with_bug, settings)


def _end_with_parent() -> None:
    """Let this worker end if its parent is killed. The queue does not show this: the other workers
    keep it open.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, name="parent", daemon=True).start()


def run_with_bug(settings: Settings, trace: Path | None = None) -> Result:
    """Run one seed, with the bug of its settings planted for the duration of the run."""
    # objects live until the end of a run: frequent collections cost a sixth of the time
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
    """Name -> bug. Raises SystemExit if there is no folder of tests."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(BUGS).BUGS
    except ModuleNotFoundError:
        raise SystemExit(
            "planted defects are part of the tests: run this from the root of a source tree"
        ) from None
    finally:
        del sys.path[0]
