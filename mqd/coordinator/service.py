"""The runtime of a coordinator: one shard for each partition of its internal topic that this node
leads.

A call runs without awaits through handle, append, replay and write (results.py). Its response is
sent when the high watermark has passed everything that the shard had replayed. The state of a shard
is the replay of its log, so the next leader of the partition has the same state.

A new leader loads the partition first (loader.py); clients get COORDINATOR_LOAD_IN_PROGRESS until
then. When the leadership ends, the shard is dropped, and waiting calls end with NOT_COORDINATOR.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import trio

from mqd.coordinator.context import Contexts, CoordinatorContext, WaitingCall
from mqd.coordinator.deadlines import Deadlines
from mqd.coordinator.loader import CoordinatorLoader
from mqd.coordinator.partitioning import check_key, partition_for
from mqd.coordinator.results import COMMIT_SECONDS, Results
from mqd.coordinator.shard import CoordinatorResult, Moment, Producer, Shard, Ticket
from mqd.errors import ErrorCode, MqError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.log.service import LogService
from mqd.replica.partition import Partition
from mqd.replica.service import ReplicaService
from mqd.types import Offset

logger = logging.getLogger(__name__)


class CoordinatorService:
    """The shards of one internal topic on this node."""

    def __init__(
        self,
        *,
        topic: str,
        make_shard: Callable[[int], Shard],
        check: Callable[[Any], None],
        partitions: Callable[[], int],
        replica: ReplicaService,
        logs: LogService,
        clock: Clock,
        disk: Disk,
        perform: Callable[[int, int, Hashable, Offset], None] | None = None,
        commit_seconds: float = COMMIT_SECONDS,
    ) -> None:
        """`make_shard(partition)`: an empty one. `partitions()`: of the topic, 0 before it exists.

        `check(op)`: raises MqError for calls that every shard refuses. As in Kafka, that error
        comes first also on a node that does not have the shard. `perform`: see results.py.
        """
        self.topic = topic
        self._make_shard = make_shard
        self._check = check
        self._partitions = partitions
        self._replica = replica
        self._clock = clock
        self._contexts: Contexts = {}
        self._tickets = count(1)
        self._deadlines = Deadlines(self._contexts, replica, clock)
        self._results = Results(
            self._contexts,
            self._deadlines,
            reload=self._reload,
            perform=perform,
            replica=replica,
            clock=clock,
            commit_seconds=commit_seconds,
        )
        self._loader = CoordinatorLoader(
            make_shard=make_shard, loaded=self._loaded, logs=logs, clock=clock, disk=disk
        )

    async def run(self) -> None:
        """Load the shards that are led here, and wake them at their deadlines; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._deadlines.run, self._decide, self._results.perform_due)
            await self._loader.run(nursery)

    # -- calls -------------------------------------------------------------------------------------

    def partition_of(self, key: str) -> int:
        """The shard of a group or a transactional id. Raises MqError COORDINATOR_NOT_AVAILABLE
        before the topic exists, INVALID_REQUEST for a name that is too long."""
        check_key(key)
        partitions = self._partitions()
        if not partitions:
            raise MqError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic} does not exist yet.")
        return partition_for(key, partitions)

    async def call(
        self, key: str, op: Any, decided: Callable[[], None] = lambda: None
    ) -> Mapping[str, Any]:
        """Have the shard of `key` handle the operation, and wait for its response. `decided` is
        called in between, when `op` is no longer read.

        Raises MqError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE,
        and the errors of the shard.
        """
        try:
            context = self._active(self.partition_of(key))
        except MqError:
            self._check(op)
            raise
        return await self._handle(context, op, decided)

    async def call_shard(self, index: int, op: Any) -> Mapping[str, Any]:
        """As `call`, for the shard of one partition."""
        return await self._handle(self._active(index), op)

    def led(self) -> list[int]:
        """The shards of this node, also those that are being loaded."""
        return sorted(self._contexts)

    async def call_everywhere(self, op: Any) -> list[Mapping[str, Any]]:
        """The responses of all shards that are led here. Raises MqError
        COORDINATOR_LOAD_IN_PROGRESS while one is not loaded."""
        responses = []
        for index in sorted(self._contexts):
            try:
                responses.append(await self.call_shard(index, op))
            except MqError as error:
                if error.code is not ErrorCode.NOT_COORDINATOR:  # led elsewhere by now
                    raise
        return responses

    async def _handle(
        self, context: CoordinatorContext, op: Any, decided: Callable[[], None] = lambda: None
    ) -> Mapping[str, Any]:
        ticket, waiting = self._wait(context)
        try:
            with self._reload_after_bug(context):
                try:
                    result = context.shard.handle(ticket, op, self._now())
                except MqError as error:  # it depends on replayed records, as every response does
                    result = CoordinatorResult(responses=((ticket, error),))
                self._results.carry_out(context, result, ticket)
            decided()
            return await waiting.response()
        finally:
            if context.waiting.pop(ticket, None) is not None:
                context.shard.abandoned((ticket,))

    async def write_marker(
        self,
        index: int,
        producer: Producer,
        coordinator_epoch: int,
        committed: bool,
        transaction_version: int = 0,
    ) -> None:
        """Write a transaction marker to one partition of the topic, and wait for its commit.

        Raises MqError as `call` does, and those of `ReplicaService.append_marker_nowait`.
        """
        context = self._active(index)
        ticket, waiting = self._wait(context)
        try:
            self._results.append_marker(
                context, producer, coordinator_epoch, committed, transaction_version
            )
            with self._reload_after_bug(context):
                context.shard.replay_end(producer, committed)
            self._deadlines.note(context)
            self._results.respond_when_committed(context, ((ticket, {}),))
            await waiting.response()
        finally:
            context.waiting.pop(ticket, None)

    async def write_seal(self, index: int, producer: Producer, coordinator_epoch: int) -> None:
        """Seal a transaction in one partition of the topic (KIP-939), and wait for its commit.

        Raises MqError as `call` does, and those of `sealing.append_seal_nowait`.
        """
        context = self._active(index)
        ticket, waiting = self._wait(context)
        try:
            self._results.append_seal(context, producer, coordinator_epoch)
            self._results.respond_when_committed(context, ((ticket, {}),))
            await waiting.response()
        finally:
            context.waiting.pop(ticket, None)

    def shards(self) -> list[Shard]:
        """All shards of this node, also those that are being loaded."""
        return [context.shard for context in self._contexts.values()]

    def holds(self, index: int, leader_epoch: int) -> bool:
        """Whether this node leads the partition in this epoch, also while the shard loads or the
        node has no contact with the controller."""
        context = self._contexts.get(index)
        return context is not None and context.leader_epoch == leader_epoch

    def _active(self, index: int) -> CoordinatorContext:
        context = self._contexts.get(index)
        if context is None or not context.partition.serves:
            raise MqError(
                ErrorCode.NOT_COORDINATOR, f"This node does not lead {self.topic}-{index}."
            )
        context.check_active()
        return context

    def _wait(self, context: CoordinatorContext) -> tuple[Ticket, WaitingCall]:
        ticket = next(self._tickets)
        waiting = context.waiting[ticket] = WaitingCall()
        return ticket, waiting

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.wall_ms())

    # -- what shards decide by themselves ----------------------------------------------------------

    def topics_changed(self) -> None:
        """The metadata of topics changed: `on_metadata` of every shard is due."""
        self._deadlines.topics_changed()

    def _decide(
        self, context: CoordinatorContext, decide: Callable[[Moment], CoordinatorResult]
    ) -> None:
        try:
            with self._reload_after_bug(context):
                self._results.carry_out(context, decide(self._now()))
        except Exception:  # a bug: this shard is loaded again, and the node keeps running
            logger.exception(
                "reloading a coordinator after an error partition=%s", context.topic_partition
            )

    def _loaded(self, context: CoordinatorContext, result: CoordinatorResult) -> None:
        self._decide(context, lambda _: result)

    # -- leadership --------------------------------------------------------------------------------

    def role_changed(self, partition: Partition) -> None:
        """The leadership of a partition on this node begins, ends, or gets another epoch."""
        topic, index = partition.assignment.topic_partition
        if topic != self.topic:
            return
        context = self._contexts.get(index)
        if context is not None and (
            not partition.is_leader
            or context.leader_epoch != partition.leader_epoch
            or context.partition is not partition
        ):
            self._unload(context)
            context = None
        if partition.is_leader and context is None:
            self._load(index, partition)

    def _load(self, index: int, partition: Partition) -> None:
        context = self._contexts[index] = CoordinatorContext(
            partition,
            partition.leader_epoch,
            self._make_shard(index),
            self._replica.lost_contact_at,
        )
        self._loader.load(context)

    def _unload(self, context: CoordinatorContext) -> None:
        del self._contexts[context.index]
        self._deadlines.forget(context)
        context.scope.cancel()
        context.effects.clear()
        error = MqError(
            ErrorCode.NOT_COORDINATOR, f"This node no longer leads {context.topic_partition}."
        )
        context.respond([(ticket, error) for ticket in list(context.waiting)])

    def _reload(self, context: CoordinatorContext) -> None:
        """Drop the shard, whose state may differ from its log, and load it again."""
        # The state is the replay of the log, and nothing else (I32).
        if self._contexts.get(context.index) is context:
            self._unload(context)
            if context.partition.is_leader:
                self._load(context.index, context.partition)

    @contextmanager
    def _reload_after_bug(self, context: CoordinatorContext) -> Iterator[None]:
        """Around what changes the shard: after an exception its state may be anything."""
        try:
            yield
        except Exception:
            self._replica.end_of_turn()  # write the appended batch, so that loading reads it
            self._reload(context)
            raise
