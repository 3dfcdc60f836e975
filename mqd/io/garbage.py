"""Collects cyclic garbage in small steps, without long pauses.

A full collection of CPython visits every object in one step. On a node with 10,000 partitions that
takes 0.2 to 0.5 s, in which the node serves no client. Clients with large requests trigger it
repeatedly. So this module switches automatic full collections off. Instead, it collects all
unfrozen objects after a few collections of the younger generations, and freezes the survivors
(`gc.freeze`): later collections do not visit them. So a pause is proportional to the number of
objects created since the last one. Reference counts still free frozen objects; only a cycle that
becomes garbage after it was frozen stays. So when the number of frozen objects has become several
times as large, `run` unfreezes and collects everything.

The objects of mqd form hardly any cycles: 80 full collections under attack found 20 objects.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import trio

logger = logging.getLogger(__name__)

_MIDDLE_COLLECTIONS = 3
"""Collections of the middle generation before the next freeze. With CPython's default thresholds,
these leave about 30,000 objects, plus those that one task step creates: 10 to 15 ms in all.
"""
_NEVER = 1_000_000_000
_CHECK_INTERVAL_S = 60.0
_FROZEN_GROWTH_FACTOR = 4
_FROZEN_GROWTH_MIN = 2_000_000
"""The minimum growth, in frozen objects (about 200 MB), before everything is collected again: that
takes 0.5 s for each million objects.
"""


class Garbage(trio.abc.Instrument):
    """The garbage collector of this process, within `begun`, in its event loop."""

    def __init__(self) -> None:
        self._thaw_at = 0

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Replace the automatic full collections. A node does so before it loads its logs: it has
        made few objects then.
        """
        thresholds = gc.get_threshold()
        gc.set_threshold(thresholds[0], thresholds[1], _NEVER)
        self._collect_everything()
        trio.lowlevel.add_instrument(self)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(self)
            gc.set_threshold(*thresholds)
            gc.unfreeze()

    async def run(self) -> None:
        """Within `begun`: collect everything when very many objects are frozen."""
        while True:
            await trio.sleep(_CHECK_INTERVAL_S)
            if gc.get_freeze_count() > self._thaw_at:
                self._collect_everything()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Trio calls this after each step of a task."""
        if gc.get_count()[2] > _MIDDLE_COLLECTIONS:
            gc.collect()
            gc.freeze()

    def _collect_everything(self) -> None:
        began = time.monotonic()
        gc.unfreeze()
        collected = gc.collect()
        gc.freeze()
        frozen = gc.get_freeze_count()
        self._thaw_at = max(_FROZEN_GROWTH_FACTOR * frozen, frozen + _FROZEN_GROWTH_MIN)
        logger.debug(
            "collected objects=%d left=%d seconds=%.3f", collected, frozen, time.monotonic() - began
        )
