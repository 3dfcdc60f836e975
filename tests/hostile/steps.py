"""The longest step of the event loop: how long a node serves no other client."""

from __future__ import annotations

import gc
import time

import trio


class Steps(trio.abc.Instrument):
    """CPU seconds of this thread, so that other processes do not count.

    The task that creates it is left out: it is the client.
    """

    def __init__(self) -> None:
        self._client = trio.lowlevel.current_task()
        self._began = 0.0
        self.longest = 0.0
        self.of = ""

    def begin(self) -> None:
        """Measure from now on.

        Objects from before are not garbage: collections visit only the objects of the request.
        """
        gc.collect()
        gc.freeze()
        self.longest = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        seconds = time.thread_time() - self._began
        if seconds > self.longest and task is not self._client:
            self.longest, self.of = seconds, task.name
