"""A process of a node. After its end, its clock, disk and network raise `Killed` for every call.

Trio ends the tasks of a killed node by cancelling them, so their `finally` blocks run, unlike in a
real crash. Because every seam raises `Killed`, these blocks cannot reach a disk or another host.
"""

from __future__ import annotations

import trio

from mqd.testing.scheduler import Timer, VirtualClock


class Killed(BaseException):
    """The calling process was killed. `except Exception` does not catch this."""


class Process:
    """One process of a node or of a client."""

    __slots__ = ("_sleeping", "alive", "clock", "name", "node_id")

    def __init__(self, node_id: int, name: str, clock: VirtualClock) -> None:
        self.node_id = node_id
        self.name = name
        self.clock = clock
        self.alive = True
        self._sleeping: dict[trio.lowlevel.Task, Timer] = {}

    def check(self) -> None:
        if not self.alive:
            raise Killed(self.name)

    async def sleep(self, seconds: float) -> None:
        """Sleep for virtual seconds, also if the task is cancelled. The end of the process ends the
        sleep at once.
        """
        self.check()
        task = trio.lowlevel.current_task()

        def wake() -> None:
            del self._sleeping[task]
            trio.lowlevel.reschedule(task)

        self._sleeping[task] = self.clock.after(seconds, wake)
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        self.check()

    def end(self) -> None:
        """From now on every seam raises `Killed`."""
        self.alive = False
        for task, timer in self._sleeping.items():
            timer.cancel()
            trio.lowlevel.reschedule(task)
        self._sleeping.clear()
