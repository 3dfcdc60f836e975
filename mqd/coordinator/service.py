"""The runtime of a coordinator: its shards, each where the partition of its internal topic is led.

A call runs without awaits through decide, append, replay and write. Its answer is sent when the
high watermark has passed everything that the shard had replayed. The state of a shard is the replay
of its log, so the next leader of the partition has the same state.

A new leader loads the partition first; clients get COORDINATOR_LOAD_IN_PROGRESS until then. When
the leadership ends, the shard is dropped, and waiting calls end with NOT_COORDINATOR.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import trio

from mqd.coordinator.append_errors import client_error
from mqd.coordinator.loading import SkippedRecords, replay_batches
from mqd.coordinator.partitioning import check_key, partition_for
from mqd.coordinator.shard import INTERNAL, NO_PRODUCER, Decision, Moment, Producer, Shard, Ticket
from mqd.errors import ErrorCode, MqError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.limits import COORDINATOR_LOAD_BYTES
from mqd.log.service import LogService
from mqd.protocol.batch_builder import build_batch
from mqd.replica import sealing
from mqd.replica.partition import Partition
from mqd.replica.service import ReplicaService
from mqd.replica.waiters import Append, ProduceTicket
from mqd.types import Offset

logger = logging.getLogger(__name__)

COMMIT_SECONDS = 5.0
"""Kafka's `offsets.commit.timeout.ms`: how long an answer waits for the replicas."""
RELOAD_SECONDS = 0.1
"""Between a failure and the next try to load."""
RELOAD_AFTER_BUG_SECONDS = 10.0
"""The same after an unexpected exception: the next try most likely fails too."""
_EFFECTS_CHECK_SECONDS = 0.5

Answer = Mapping[str, Any]
Outcome = Answer | MqError


class _Waiting:
    """One call until it is answered."""

    __slots__ = ("_answered", "_outcome")

    def __init__(self) -> None:
        self._answered = trio.Event()
        self._outcome: Outcome | None = None

    def answer(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._answered.set()

    async def outcome(self) -> Answer:
        await self._answered.wait()
        assert self._outcome is not None
        if isinstance(self._outcome, MqError):
            raise self._outcome
        return self._outcome


@dataclass(eq=False)
class _Held:
    """One partition that is led here, and its shard."""

    partition: Partition
    leader_epoch: int
    shard: Shard
    last_absence: float
    """Monotonic seconds: the last loss of contact with the controller that the shard knows."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Of the task that loads it."""
    loading: bool = True
    failed: bool = False
    """Loading raised an unexpected exception, a bug.

    The shard is not served until a retry succeeds.
    """
    end: Offset = 0
    """Of what the shard has replayed: an answer waits until the high watermark is there."""
    waiting: dict[Ticket, _Waiting] = field(default_factory=dict)
    effects: deque[tuple[Offset, Hashable]] = field(default_factory=deque)
    """Each with the offset that must be committed before it."""


class _Commit(ProduceTicket[Partition]):
    """Answers that wait for what they saw to be committed."""

    __slots__ = ("_held", "_replies", "_service", "error")

    def __init__(
        self,
        service: CoordinatorService,
        held: _Held,
        replies: Sequence[tuple[Ticket, Outcome]],
        deadline: float,
    ) -> None:
        super().__init__()
        self.appends = [(held.partition, held.end, [], 0)]
        self.deadline = deadline
        self.error: ErrorCode | None = None
        self._service = service
        self._held = held
        self._replies = replies

    def refuse(self, append: Append[Partition], code: ErrorCode) -> None:
        self.error = code

    def release(self) -> None:
        self._service.finish_replies(self._held, self._replies, self.error)


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
        perform: Callable[[int, int, Hashable], None] | None = None,
        commit_seconds: float = COMMIT_SECONDS,
    ) -> None:
        """`make_shard(partition)`: an empty one. `partitions()`: of the topic, 0 before it exists.

        `check(op)`: MqError for calls that every shard refuses. As in Kafka, that error comes first
        also on a node that does not have the shard.
        `perform(partition, leader epoch, effect)`: carries out the effects of committed decisions.
        """
        self.topic = topic
        self._make_shard = make_shard
        self._check = check
        self._partitions = partitions
        self._replica = replica
        self._logs = logs
        self._clock = clock
        self._disk = disk
        self._perform = perform
        self._commit_seconds = commit_seconds
        self._held: dict[int, _Held] = {}
        self._metadata_due: dict[_Held, None] = {}
        """Shards whose `on_metadata` is due."""
        self._tickets = count(1)
        self._to_load: deque[_Held] = deque()
        self._load_wanted = trio.Event()
        self._load_turn = trio.Lock()
        """Shards are loaded one after the other, so that the first are ready early."""
        self._earlier = trio.Event()
        self._sleeping_until = math.inf
        """Monotonic seconds.

        Infinite while the task examines the shards: any deadline wakes it then.
        """

    # -- calls -------------------------------------------------------------------------------------

    def partition_of(self, key: str) -> int:
        """The shard of a group or a transactional id. MqError COORDINATOR_NOT_AVAILABLE before the
        topic exists, INVALID_REQUEST for a name that is too long."""
        check_key(key)
        partitions = self._partitions()
        if not partitions:
            raise MqError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic} does not exist yet.")
        return partition_for(key, partitions)

    async def call(self, key: str, op: Any, decided: Callable[[], None] = lambda: None) -> Answer:
        """Have the shard of `key` decide, and wait for its answer. `decided` is called in between,
        when nobody reads `op` any more.

        MqError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, and
        the errors of the shard.
        """
        try:
            held = self._usable(self.partition_of(key))
        except MqError:
            self._check(op)
            raise
        return await self._ask(held, op, decided)

    async def call_shard(self, index: int, op: Any) -> Answer:
        """As `call`, of the shard of one partition."""
        return await self._ask(self._usable(index), op)

    async def _ask(
        self, held: _Held, op: Any, decided: Callable[[], None] = lambda: None
    ) -> Answer:
        ticket = next(self._tickets)
        waiting = held.waiting[ticket] = _Waiting()
        try:
            with self._reload_after_bug(held):
                try:
                    decision = held.shard.handle(ticket, op, self._now())
                except MqError as refusal:  # it rests on what was replayed, as every answer does
                    decision = Decision(replies=((ticket, refusal),))
                self._carry_out(held, decision, ticket)
            decided()
            return await waiting.outcome()
        finally:
            if held.waiting.pop(ticket, None) is not None:
                held.shard.abandoned((ticket,))

    async def call_everywhere(self, op: Any) -> list[Answer]:
        """The answers of all shards that are led here. MqError COORDINATOR_LOAD_IN_PROGRESS while
        one is not loaded."""
        answers = []
        for index in sorted(self._held):
            try:
                answers.append(await self.call_shard(index, op))
            except MqError as error:
                if error.code is not ErrorCode.NOT_COORDINATOR:  # led elsewhere by now
                    raise
        return answers

    async def write_marker(
        self,
        index: int,
        producer: Producer,
        coordinator_epoch: int,
        committed: bool,
        transaction_version: int = 0,
    ) -> None:
        """Write a transaction marker to one partition of the topic, and wait for its commit.

        MqError as `call`, and those of `ReplicaService.append_marker_nowait`.
        """
        held = self._usable(index)
        ticket = next(self._tickets)
        waiting = held.waiting[ticket] = _Waiting()
        try:
            now = self._now()
            appended = self._replica.append_marker_nowait(
                held.partition,
                producer,
                coordinator_epoch,
                committed,
                now.wall_ms,
                transaction_version,
            )
            held.end = appended.last_offset + 1
            with self._reload_after_bug(held):
                held.shard.replay_end(producer, committed)
            self._answer_when_committed(held, ((ticket, {}),))
            await waiting.outcome()
        finally:
            held.waiting.pop(ticket, None)

    async def write_seal(self, index: int, producer: Producer, coordinator_epoch: int) -> None:
        """Seal a transaction in one partition of the topic (KIP-939), and wait for its commit.

        MqError as `call`, and those of `sealing.append_seal_nowait`.
        """
        held = self._usable(index)
        ticket = next(self._tickets)
        waiting = held.waiting[ticket] = _Waiting()
        try:
            held.end = sealing.append_seal_nowait(
                self._replica.append_nowait,
                held.partition,
                producer,
                coordinator_epoch,
                self._now().wall_ms,
            )
            self._answer_when_committed(held, ((ticket, {}),))
            await waiting.outcome()
        finally:
            held.waiting.pop(ticket, None)

    def shards(self) -> list[Shard]:
        """All that are here, those included that are being loaded."""
        return [held.shard for held in self._held.values()]

    def holds(self, index: int, leader_epoch: int) -> bool:
        """Whether this node leads the partition in this epoch, also while the shard loads or the
        node has no contact with the controller."""
        held = self._held.get(index)
        return held is not None and held.leader_epoch == leader_epoch

    def _usable(self, index: int) -> _Held:
        held = self._held.get(index)
        if held is None or not held.partition.serves:
            raise MqError(
                ErrorCode.NOT_COORDINATOR, f"This node does not lead {self.topic}-{index}."
            )
        if held.failed:
            raise MqError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{self.topic}-{index} was not loaded because of a bug. "
                "The log of this node has the stack trace.",
            )
        if held.loading:
            raise MqError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{index} is being loaded."
            )
        return held

    def _is_usable(self, held: _Held) -> bool:
        """Whether it still serves: it was not let go of while others were looked at."""
        return (
            self._held.get(held.partition.assignment.topic_partition.partition) is held
            and held.partition.serves
        )

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.wall_ms())

    # -- deciding ----------------------------------------------------------------------------------

    def _carry_out(self, held: _Held, decision: Decision, caller: Ticket = INTERNAL) -> None:
        """Append, replay and write without awaits; the rest follows after the commit. If the append
        is refused, `caller` and all receivers of replies get the error."""
        if decision.records:
            try:
                self._append(held, decision)
            except MqError as error:
                logger.warning(
                    "cannot write a decision partition=%s reason=%s",
                    held.partition.assignment.topic_partition,
                    error,
                )
                refused = (caller, *(ticket for ticket, _ in decision.replies))
                self._answer(held, [(ticket, client_error(error.code)) for ticket in refused])
                self._note_deadline(held)
                return
            for record in decision.records:
                held.shard.replay(record, decision.producer)
        held.effects.extend((held.end, effect) for effect in decision.effects)
        self._answer_when_committed(held, decision.replies)
        self._note_deadline(held)

    def _append(self, held: _Held, decision: Decision) -> None:
        now_ms = self._clock.wall_ms()
        transactional = decision.producer != NO_PRODUCER
        batch = build_batch(
            [(record.key, record.value) for record in decision.records],
            timestamp=now_ms,
            producer_id=decision.producer.producer_id,
            producer_epoch=decision.producer.producer_epoch,
            transactional=transactional,
        )
        appended = self._replica.append_nowait(
            held.partition, memoryview(batch), -1, now_ms, client=False
        )
        held.end = appended.last_offset + 1

    def _answer_when_committed(
        self, held: _Held, replies: Sequence[tuple[Ticket, Outcome]]
    ) -> None:
        # The response rests on records that are not committed yet (I31).
        if held.end > held.partition.high_watermark:
            self._replica.wait_committed(
                _Commit(self, held, replies, self._clock.monotonic() + self._commit_seconds)
            )
            self._replica.end_of_turn()
        else:
            self.finish_replies(held, replies, None)

    def finish_replies(
        self, held: _Held, replies: Sequence[tuple[Ticket, Outcome]], error: ErrorCode | None
    ) -> None:
        """Send the replies: what they rest on is committed, or `error` says why that is unknown."""
        if error is None:
            self._answer(held, replies)
            self._perform_due(held)
            return
        self._answer(held, [(ticket, client_error(error)) for ticket, _ in replies])
        if held.effects:
            self._earlier.set()  # nobody else looks whether they are committed some time
        if error is ErrorCode.KAFKA_STORAGE_ERROR:
            self._load_anew(held)  # what was replayed is not in the log

    @staticmethod
    def _answer(held: _Held, replies: Sequence[tuple[Ticket, Outcome]]) -> None:
        for ticket, outcome in replies:
            waiting = held.waiting.pop(ticket, None)
            if waiting is not None:
                waiting.answer(outcome)

    def _perform_due(self, held: _Held) -> None:
        if self._held.get(held.partition.assignment.topic_partition.partition) is not held:
            return
        while held.effects and held.effects[0][0] <= held.partition.high_watermark:
            _, effect = held.effects.popleft()
            assert self._perform is not None, effect
            self._perform(
                held.partition.assignment.topic_partition.partition, held.leader_epoch, effect
            )

    # -- who leads ---------------------------------------------------------------------------------

    def role_changed(self, partition: Partition) -> None:
        """The leadership of a partition on this node begins, ends, or gets another epoch."""
        topic, index = partition.assignment.topic_partition
        if topic != self.topic:
            return
        held = self._held.get(index)
        if held is not None and (
            not partition.is_leader
            or held.leader_epoch != partition.leader_epoch
            or held.partition is not partition
        ):
            self._let_go(held)
            held = None
        if partition.is_leader and held is None:
            self._hold(index, partition)

    def _hold(self, index: int, partition: Partition) -> None:
        held = self._held[index] = _Held(
            partition,
            partition.leader_epoch,
            self._make_shard(index),
            self._replica.lost_contact_at,
        )
        self._to_load.append(held)
        self._load_wanted.set()

    def _let_go(self, held: _Held) -> None:
        topic_partition = held.partition.assignment.topic_partition
        del self._held[topic_partition.partition]
        self._metadata_due.pop(held, None)
        held.scope.cancel()
        held.effects.clear()
        refusal = MqError(
            ErrorCode.NOT_COORDINATOR, f"This node no longer leads {topic_partition}."
        )
        self._answer(held, [(ticket, refusal) for ticket in list(held.waiting)])

    def _load_anew(self, held: _Held) -> None:
        """Drop the shard, whose state may differ from its log, and load it again."""
        # The state is the replay of the log, and nothing else (I32).
        index = held.partition.assignment.topic_partition.partition
        if self._held.get(index) is held:
            self._let_go(held)
            if held.partition.is_leader:
                self._hold(index, held.partition)

    @contextmanager
    def _reload_after_bug(self, held: _Held) -> Iterator[None]:
        """Around what changes the shard: after an exception its state may be anything."""
        try:
            yield
        except Exception:
            self._replica.end_of_turn()  # write the appended batch, so that loading reads it
            self._load_anew(held)
            raise

    def topics_changed(self) -> None:
        """The metadata of topics changed: `on_metadata` of every shard is due."""
        self._metadata_due.update(dict.fromkeys(self._held.values()))
        self._earlier.set()

    def _decide(self, held: _Held, decide: Callable[[Moment], Decision]) -> None:
        """What a shard decides by itself."""
        try:
            with self._reload_after_bug(held):
                self._carry_out(held, decide(self._now()))
        except Exception:  # a bug: this shard starts anew, and the node runs on
            logger.exception(
                "reloading a coordinator after an error partition=%s",
                held.partition.assignment.topic_partition,
            )

    # -- loading -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Load what comes to be led here, and wake shards at their deadlines; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_deadlines)
            while True:
                while self._to_load:
                    nursery.start_soon(self._load, self._to_load.popleft())
                await self._load_wanted.wait()
                self._load_wanted = trio.Event()

    async def _load(self, held: _Held) -> None:
        topic_partition = held.partition.assignment.topic_partition
        with held.scope:
            while True:
                began = self._clock.monotonic()
                try:
                    async with self._load_turn:
                        await self._replay_log(held)
                    decision = held.shard.on_loaded(self._now())
                except MqError as error:
                    logger.error(
                        "cannot load a coordinator, will retry partition=%s reason=%s",
                        topic_partition,
                        error,
                    )
                    pause = RELOAD_SECONDS
                except Exception:  # a bug: this partition has no coordinator, the others do
                    held.failed = True
                    logger.exception(
                        "bug: cannot load a coordinator, its requests fail partition=%s",
                        topic_partition,
                    )
                    pause = RELOAD_AFTER_BUG_SECONDS
                else:
                    break
                held.shard = self._make_shard(topic_partition.partition)
                await trio.sleep(pause)
            held.loading = held.failed = False
            seconds = self._clock.monotonic() - began
            if held.end:
                logger.info(
                    "coordinator loaded partition=%s end_offset=%d seconds=%.3f",
                    topic_partition,
                    held.end,
                    seconds,
                )
            self._decide(held, lambda _: decision)

    async def _replay_log(self, held: _Held) -> None:
        """Replay every record of the partition. Uncommitted ones too: this node leads, so they will
        be committed.

        A record that cannot be decoded is skipped: a later release wrote it, or a client that may
        write to internal topics. Any other exception is a bug and is raised: a shard that lacks a
        record would answer from half a state.
        """
        log, shard = held.partition.log, held.shard
        skipped = SkippedRecords()
        offset = log.log_start_offset
        while offset < log.written_end_offset:
            found = self._logs.reader.read(
                log,
                offset,
                max_bytes=COORDINATOR_LOAD_BYTES,
                limit_offset=log.written_end_offset,
                min_one=True,
            )
            for part in found.ranges:
                data = await self._disk.offload(part.file.read_at, part.position, part.size)
                replay_batches(shard, data, offset, skipped)
                await trio.lowlevel.checkpoint()
            if found.next_offset <= offset:
                raise MqError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{log.topic_partition} cannot be read at offset {offset}",
                )
            offset = found.next_offset
        held.end = offset
        if skipped.records:
            line = "skipped records that cannot be decoded partition=%s %s"
            # one a load, of fifty partitions
            logger.warning(line, log.topic_partition, skipped, extra={"always": True})

    # -- time --------------------------------------------------------------------------------------

    def _note_deadline(self, held: _Held) -> None:
        deadline = held.shard.next_deadline()
        if deadline is not None and deadline < self._sleeping_until:
            self._earlier.set()

    async def _run_deadlines(self) -> None:
        while True:
            now = self._clock.monotonic()
            soonest = math.inf
            self._earlier = trio.Event()
            for held in list(self._held.values()):
                if held.loading or not self._is_usable(held):
                    continue
                if held.last_absence != self._replica.lost_contact_at:
                    held.last_absence = self._replica.lost_contact_at
                    held.shard.on_absence(now - held.last_absence)
                if held in self._metadata_due:
                    del self._metadata_due[held]
                    self._decide(held, held.shard.on_metadata)
                    await trio.lowlevel.checkpoint()
                    if not self._is_usable(held):
                        continue
                deadline = held.shard.next_deadline()
                if deadline is not None and deadline <= now:
                    self._decide(held, held.shard.on_deadline)
                    await trio.lowlevel.checkpoint()
                    deadline = held.shard.next_deadline()
                if deadline is not None:
                    soonest = min(soonest, max(deadline, now))
                if held.effects:
                    self._perform_due(held)
                    soonest = min(soonest, now + _EFFECTS_CHECK_SECONDS)
            if any(not held.partition.serves for held in self._held.values()):
                soonest = min(soonest, now + _EFFECTS_CHECK_SECONDS)
            self._sleeping_until = soonest
            with trio.move_on_after(max(0.0, soonest - self._clock.monotonic())):
                await self._earlier.wait()
            self._sleeping_until = math.inf
