"""Wakes shards: at their deadlines, and when the metadata of topics has changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeAlias

import trio

from mqd.coordinator.context import Contexts, CoordinatorContext
from mqd.coordinator.shard import CoordinatorResult, Moment
from mqd.io.clock import Clock
from mqd.replica.service import ReplicaService

Decide: TypeAlias = Callable[[CoordinatorContext, Callable[[Moment], CoordinatorResult]], None]

_EFFECTS_CHECK_SECONDS: Final = 0.5


class Deadlines:
    """For the shards of one internal topic."""

    def __init__(self, contexts: Contexts, replica: ReplicaService, clock: Clock) -> None:
        self._contexts = contexts
        self._replica = replica
        self._clock = clock
        self._metadata_due: dict[CoordinatorContext, None] = {}
        """Contexts whose `on_metadata` is due."""
        self._earlier = trio.Event()
        self._sleeping_until = math.inf
        """Monotonic seconds. Infinite while the task examines the shards: any deadline wakes it
        then."""

    def wake(self) -> None:
        self._earlier.set()

    def note(self, context: CoordinatorContext) -> None:
        """The deadline of this shard may be earlier than before."""
        deadline = context.shard.next_deadline()
        if deadline is not None and deadline < self._sleeping_until:
            self.wake()

    def topics_changed(self) -> None:
        self._metadata_due.update(dict.fromkeys(self._contexts.values()))
        self.wake()

    def forget(self, context: CoordinatorContext) -> None:
        self._metadata_due.pop(context, None)

    def serves(self, context: CoordinatorContext) -> bool:
        """Whether this node still coordinates the partition, and may serve clients."""
        return self._contexts.get(context.index) is context and context.partition.serves

    async def run(self, decide: Decide, perform_due: Callable[[CoordinatorContext], None]) -> None:
        """Until cancelled. `decide(context, function)`: carries out the result of the function.

        `perform_due(context)`: carries out effects that were committed without a response.
        """
        while True:
            now = self._clock.monotonic()
            soonest = math.inf
            self._earlier = trio.Event()
            for context in list(self._contexts.values()):
                if not context.is_active or not self.serves(context):
                    continue
                if context.last_absence != self._replica.lost_contact_at:
                    context.last_absence = self._replica.lost_contact_at
                    context.shard.on_absence(now - context.last_absence)
                if context in self._metadata_due:
                    del self._metadata_due[context]
                    decide(context, context.shard.on_metadata)
                    await trio.lowlevel.checkpoint()
                    if not self.serves(context):
                        continue
                deadline = context.shard.next_deadline()
                if deadline is not None and deadline <= now:
                    decide(context, context.shard.on_deadline)
                    await trio.lowlevel.checkpoint()
                    deadline = context.shard.next_deadline()
                if deadline is not None:
                    soonest = min(soonest, max(deadline, now))
                if context.effects:
                    perform_due(context)
                    soonest = min(soonest, now + _EFFECTS_CHECK_SECONDS)
            if any(not context.partition.serves for context in self._contexts.values()):
                soonest = min(soonest, now + _EFFECTS_CHECK_SECONDS)
            self._sleeping_until = soonest
            with trio.move_on_after(max(0.0, soonest - self._clock.monotonic())):
                await self._earlier.wait()
            self._sleeping_until = math.inf
