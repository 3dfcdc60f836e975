"""A process of a node: after its end, its clock, disk and network refuse every call.

Trio ends the tasks of a dead node by cancelling them, and then their `finally` blocks run, which no
real crash allows. So from the moment of death every seam raises `Killed`: nothing that such a block
does reaches a disk or another host.
"""

from __future__ import annotations

import trio

from mqd.testing.scheduler import Timer, VirtualClock


class Killed(BaseException):
    """The calling process is dead. No `except Exception` catches this."""


class Process:
    """One life of a node, or of a client."""

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
        """Virtual seconds, whatever is cancelled meanwhile; death ends them at once."""
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
