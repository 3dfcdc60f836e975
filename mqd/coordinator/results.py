"""Carries out what shards decide: appends and replays records, and responds after their commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from mqd.coordinator.append_errors import client_error
from mqd.coordinator.context import Contexts, CoordinatorContext
from mqd.coordinator.deadlines import Deadlines
from mqd.coordinator.shard import (
    INTERNAL,
    NO_PRODUCER,
    CoordinatorResult,
    Producer,
    Response,
    Ticket,
)
from mqd.errors import ErrorCode, MqError
from mqd.io.clock import Clock
from mqd.protocol.batch_builder import build_batch
from mqd.replica import sealing
from mqd.replica.partition import Partition
from mqd.replica.service import ReplicaService
from mqd.replica.waiters import Append, ProduceTicket
from mqd.types import Offset

logger = logging.getLogger(__name__)

COMMIT_SECONDS: Final = 5.0
"""Kafka's `offsets.commit.timeout.ms`: how long a response waits for the replicas."""


class _Commit(ProduceTicket[Partition]):
    """Responses that wait for the commit of the state that they show."""

    __slots__ = ("_context", "_responses", "_results", "error")

    def __init__(
        self,
        results: Results,
        context: CoordinatorContext,
        responses: Sequence[tuple[Ticket, Response]],
        deadline: float,
    ) -> None:
        super().__init__()
        self.appends = [(context.partition, context.end, [], 0)]
        self.deadline = deadline
        self.error: ErrorCode | None = None
        self._results = results
        self._context = context
        self._responses = responses

    def refuse(self, append: Append[Partition], code: ErrorCode) -> None:
        self.error = code

    def release(self) -> None:
        self._results.finish(self._context, self._responses, self.error)


class Results:
    """For the shards of one internal topic."""

    def __init__(
        self,
        contexts: Contexts,
        deadlines: Deadlines,
        *,
        reload: Callable[[CoordinatorContext], None],
        perform: Callable[[int, int, Hashable, Offset], None] | None,
        replica: ReplicaService,
        clock: Clock,
        commit_seconds: float,
    ) -> None:
        """`reload(context)`: the shard may differ from its log. `perform(partition, leader epoch,
        effect, log end before it)`: carries out the effects of committed results."""
        self._contexts = contexts
        self._deadlines = deadlines
        self._reload = reload
        self._perform = perform
        self._replica = replica
        self._clock = clock
        self._commit_seconds = commit_seconds

    def carry_out(
        self, context: CoordinatorContext, result: CoordinatorResult, caller: Ticket = INTERNAL
    ) -> None:
        """Append, replay and write without awaits; the rest follows after the commit. If the append
        is refused, `caller` and all receivers of responses get the error."""
        if result.records:
            try:
                self._append(context, result)
            except MqError as error:
                logger.warning(
                    "cannot append the records of a coordinator partition=%s reason=%s",
                    context.topic_partition,
                    error,
                )
                refused = (caller, *(ticket for ticket, _ in result.responses))
                context.respond([(ticket, client_error(error.code)) for ticket in refused])
                self._deadlines.note(context)
                return
            for record in result.records:
                context.shard.replay(record, result.producer)
        context.effects.extend((context.end, effect) for effect in result.effects)
        self.respond_when_committed(context, result.responses)
        self._deadlines.note(context)

    def _append(self, context: CoordinatorContext, result: CoordinatorResult) -> None:
        now_ms = self._clock.wall_ms()
        transactional = result.producer != NO_PRODUCER
        batch = build_batch(
            [(record.key, record.value) for record in result.records],
            timestamp=now_ms,
            producer_id=result.producer.producer_id,
            producer_epoch=result.producer.producer_epoch,
            transactional=transactional,
        )
        appended = self._replica.append_nowait(
            context.partition, memoryview(batch), -1, now_ms, client=False
        )
        context.end = appended.last_offset + 1

    def append_marker(
        self,
        context: CoordinatorContext,
        producer: Producer,
        coordinator_epoch: int,
        committed: bool,
        transaction_version: int,
    ) -> None:
        """Raises MqError, as `ReplicaService.append_marker_nowait` does."""
        appended = self._replica.append_marker_nowait(
            context.partition,
            producer,
            coordinator_epoch,
            committed,
            self._clock.wall_ms(),
            transaction_version,
        )
        context.end = appended.last_offset + 1

    def append_seal(
        self, context: CoordinatorContext, producer: Producer, coordinator_epoch: int
    ) -> None:
        """Raises MqError, as `sealing.append_seal_nowait` does."""
        context.end = sealing.append_seal_nowait(
            self._replica.append_nowait,
            context.partition,
            producer,
            coordinator_epoch,
            self._clock.wall_ms(),
        )

    def respond_when_committed(
        self, context: CoordinatorContext, responses: Sequence[tuple[Ticket, Response]]
    ) -> None:
        # The responses may show records that are not committed yet (I31).
        if context.end > context.partition.high_watermark:
            deadline = self._clock.monotonic() + self._commit_seconds
            self._replica.wait_committed(_Commit(self, context, responses, deadline))
            self._replica.end_of_turn()
        else:
            self.finish(context, responses, None)

    def finish(
        self,
        context: CoordinatorContext,
        responses: Sequence[tuple[Ticket, Response]],
        error: ErrorCode | None,
    ) -> None:
        """Send the responses: their state is committed. `error`: why the commit is unknown."""
        if error is None:
            context.respond(responses)
            self.perform_due(context)
            return
        context.respond([(ticket, client_error(error)) for ticket, _ in responses])
        if context.effects:
            self._deadlines.wake()  # it checks whether they are committed later
        if error is ErrorCode.KAFKA_STORAGE_ERROR:
            self._reload(context)  # the log lacks records that were replayed

    def perform_due(self, context: CoordinatorContext) -> None:
        """Carry out the effects whose records are committed."""
        if self._contexts.get(context.index) is not context:
            return
        while context.effects and context.effects[0][0] <= context.partition.high_watermark:
            end, effect = context.effects.popleft()
            assert self._perform is not None, effect
            self._perform(context.index, context.leader_epoch, effect, end)
