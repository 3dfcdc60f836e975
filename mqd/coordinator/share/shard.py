"""The share coordinator of one partition of `__share_group_state` (KIP-932): the state of share
partitions, as their leaders have written it.

A write is stored as a ShareUpdate with the changed records only, and after some of them as a
ShareSnapshot with the whole state. The topic is not compacted. Instead, the shard begins a round
now and then: it writes a snapshot of every share partition, and then the log before the round is
deleted. A round begins when the log has grown by several times the size of the state.

Invariants: a leader epoch or state epoch never decreases, so a former leader cannot change the
state. A record that is done stays done until the state epoch changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mqd.coordinator.account import UNBOUNDED, Account, text_bytes
from mqd.coordinator.shard import (
    NO_PRODUCER,
    NOTHING,
    CoordinatorRecord,
    CoordinatorResult,
    GroupOptions,
    Moment,
    Producer,
    Ticket,
    TopicsView,
)
from mqd.coordinator.share.operations import (
    DeleteState,
    InitializeState,
    ListStates,
    PruneLog,
    ReadState,
    ReadSummary,
    WriteState,
)
from mqd.coordinator.share.records import (
    UNKNOWN_COUNT,
    ShareSnapshot,
    ShareUpdate,
    decode,
    encode,
    tombstone,
)
from mqd.errors import ErrorCode, MqError
from mqd.share.ports import ShareKey
from mqd.share.record_states import RANGE_BYTES, Batch, RecordState, RecordStates
from mqd.types import NO_EPOCH, NO_OFFSET, SHARE_STATE_TOPIC, Offset

_STATE_BYTES: Final = 800
"""Memory of a share partition without ranges and its group's name."""
_ROUND_BYTES_MIN: Final = 1 << 20
"""Bytes of records after which a round begins at the earliest."""
_ROUND_GROWTH: Final = 4
"""A round begins when the log has grown by so many times the size of the state."""
_PORTION_RECORDS: Final = 200
"""Snapshots that one call of a round writes."""
_PAUSE_SECONDS: Final = 0.05
"""Between two portions of a round."""


@dataclass(slots=True)
class ShareState:
    """The state of one share partition."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: Offset
    """-1: not known yet."""
    states: RecordStates
    delivery_complete_count: int
    create_timestamp: int
    updates: int = 0
    """Since the last snapshot."""
    round: int = 0
    """The round in which the last snapshot was written."""

    def advance(self) -> None:
        """Move the start offset behind records that are done, which the count no longer has."""
        before = self.states.start_offset
        self.states.advance()
        self.start_offset = self.states.start_offset
        if self.delivery_complete_count != UNKNOWN_COUNT:
            passed = self.start_offset - before
            self.delivery_complete_count = max(0, self.delivery_complete_count - passed)

    def snapshot(self, now_ms: int) -> ShareSnapshot:
        return ShareSnapshot(
            self.snapshot_epoch + 1,
            self.state_epoch,
            self.leader_epoch,
            self.start_offset,
            self.delivery_complete_count,
            self.create_timestamp,
            now_ms,
            self.states.batches(),
        )


class ShareShard:
    """A Shard (mqd/coordinator/shard.py)."""

    def __init__(
        self,
        topics: TopicsView,
        options: GroupOptions,
        index: int,
        *,
        share: Callable[[], int] = lambda: UNBOUNDED,
    ) -> None:
        """`share()`: bytes that this shard may take (account.py)."""
        self.account = Account(f"{SHARE_STATE_TOPIC}-{index}", share, lambda: self._bytes)
        self._topics = topics
        self._options = options
        self._states: dict[ShareKey, ShareState] = {}
        self._bytes = 0
        self._written_bytes = 0
        """Since the last round began."""
        self._round = 0
        self._unfinished: list[ShareKey] = []
        """Share partitions that may need a snapshot in the present round."""
        self._deadline: float | None = None

    # -- the contract ------------------------------------------------------------------------------

    def handle(self, ticket: Ticket, op: Any, now: Moment) -> CoordinatorResult:
        match op:
            case InitializeState():
                return self._initialize(ticket, op, now)
            case ReadState():
                return self._read(ticket, op)
            case ReadSummary():
                return self._summary(ticket, op)
            case ListStates():
                found = [
                    (key, state.start_offset)
                    for key, state in self._states.items()
                    if key.topic_id in op.topic_ids
                ]
                return _response_only(ticket, {"states": found})
            case WriteState():
                return self._write(ticket, op, now)
            case DeleteState():
                return self._delete(ticket, op)
        raise AssertionError(op)

    def replay(self, record: CoordinatorRecord, producer: Producer = NO_PRODUCER) -> None:
        key, value = decode(record)
        size = len(record.key) + len(record.value or b"")
        self._written_bytes += size
        current = self._states.get(key)
        if current is not None:
            self._bytes -= _size_of(key, current)
        if value is None:
            self._states.pop(key, None)
            return
        if isinstance(value, ShareSnapshot):
            current = self._states[key] = ShareState(
                value.snapshot_epoch,
                value.state_epoch,
                value.leader_epoch,
                value.start_offset,
                RecordStates(max(0, value.start_offset)),
                value.delivery_complete_count,
                value.create_timestamp,
                round=self._round,
            )
        elif current is None or value.snapshot_epoch != current.snapshot_epoch:
            # The log before it was deleted, and a later snapshot has this change.
            if current is not None:
                self._bytes += _size_of(key, current)
            return
        else:
            current.updates += 1
            current.leader_epoch = value.leader_epoch
            current.delivery_complete_count = value.delivery_complete_count
            if value.start_offset != NO_OFFSET:
                if current.start_offset == NO_OFFSET:
                    current.states = RecordStates(value.start_offset)
                current.states.remove_before(value.start_offset)
        for batch in value.state_batches:
            current.states.store(batch)
        if current.start_offset != NO_OFFSET or value.start_offset != NO_OFFSET:
            current.advance()
        self._bytes += _size_of(key, current)

    def replay_end(self, producer: Producer, committed: bool) -> None:
        """No record of this topic is part of a transaction."""

    def recount(self) -> int:
        """The account from scratch, for tests and the simulation."""
        return sum(_size_of(key, state) for key, state in self._states.items())

    def on_loaded(self, now: Moment) -> CoordinatorResult:
        self.account.was_loaded()
        self._deadline = now.seconds + _PAUSE_SECONDS
        return NOTHING

    def on_metadata(self, now: Moment) -> CoordinatorResult:
        """Delete the state of partitions whose topic no longer exists."""
        gone = [key for key in self._states if self._topics.topic_name(key.topic_id) is None]
        return CoordinatorResult(records=[tombstone(key) for key in gone[:_PORTION_RECORDS]])

    def on_absence(self, seconds: float) -> None:
        """No deadline is of a client."""

    def next_deadline(self) -> float | None:
        return self._deadline

    def on_deadline(self, now: Moment) -> CoordinatorResult:
        """One portion of a round, or the check whether one begins."""
        self._deadline = None
        if not self._unfinished:
            if not self._round_is_due():
                return NOTHING
            self._round += 1
            self._written_bytes = 0
            self._unfinished = list(self._states)
            self._deadline = now.seconds + _PAUSE_SECONDS
            # without records: the log before this effect is what the round replaces
            return CoordinatorResult(effects=(PruneLog(self._round, begins=True),))
        effects: list[Hashable] = []
        records: list[CoordinatorRecord] = []
        while self._unfinished and len(records) < _PORTION_RECORDS:
            key = self._unfinished.pop()
            current = self._states.get(key)
            if current is not None and current.round != self._round:
                records.append(encode(key, current.snapshot(now.wall_ms)))
        if not self._unfinished:
            missing = [key for key, one in self._states.items() if one.round != self._round]
            written = len(records)
            if len(missing) == written:  # all others have their snapshot
                effects.append(PruneLog(self._round, begins=False))
            else:  # an append was refused
                self._unfinished = missing
        self._deadline = now.seconds + _PAUSE_SECONDS if self._unfinished else None
        return CoordinatorResult(records=records, effects=effects)

    def abandoned(self, tickets: Collection[Ticket]) -> None:
        """Each call gets its response from its own decision."""

    # -- operations --------------------------------------------------------------------------------

    def _initialize(self, ticket: Ticket, op: InitializeState, now: Moment) -> CoordinatorResult:
        self._check_partition(op.key)
        if op.start_offset < NO_OFFSET:
            raise MqError(ErrorCode.INVALID_REQUEST, f"Invalid start offset {op.start_offset}.")
        current = self._states.get(op.key)
        if current is not None and op.state_epoch < current.state_epoch:
            raise MqError(ErrorCode.FENCED_STATE_EPOCH)
        if current is not None and op.start_offset == NO_OFFSET:
            return _response_only(ticket, {})  # a repeated request: the state stays
        if current is None:
            self.account.make_room(
                _STATE_BYTES + text_bytes(op.key.group_id),
                f"share group {op.key.group_id}",
                now.seconds,
            )
        snapshot = ShareSnapshot(
            0 if current is None else current.snapshot_epoch + 1,
            op.state_epoch,
            NO_EPOCH if current is None else current.leader_epoch,
            op.start_offset,
            UNKNOWN_COUNT,
            now.wall_ms,
            now.wall_ms,
            (),
        )
        return CoordinatorResult((encode(op.key, snapshot),), ((ticket, {}),))

    def _read(self, ticket: Ticket, op: ReadState) -> CoordinatorResult:
        current = self._initialized(op.key, "Read")
        if op.leader_epoch < current.leader_epoch:
            raise MqError(ErrorCode.FENCED_LEADER_EPOCH)
        response = {
            "state_epoch": current.state_epoch,
            "start_offset": current.start_offset,
            "batches": current.states.batches(),
        }
        if op.leader_epoch == current.leader_epoch:
            return _response_only(ticket, response)
        # From now on, writes of the former leader are refused.
        fencing = ShareUpdate(
            current.snapshot_epoch, op.leader_epoch, NO_OFFSET, current.delivery_complete_count, ()
        )
        return CoordinatorResult((encode(op.key, fencing),), ((ticket, response),))

    def _summary(self, ticket: Ticket, op: ReadSummary) -> CoordinatorResult:
        current = self._states.get(op.key)
        if current is None:  # as Apache Kafka: not an error
            response = {
                "state_epoch": 0,
                "leader_epoch": 0,
                "start_offset": NO_OFFSET,
                "delivery_complete_count": UNKNOWN_COUNT,
            }
        else:
            response = {
                "state_epoch": current.state_epoch,
                "leader_epoch": current.leader_epoch,
                "start_offset": current.start_offset,
                "delivery_complete_count": current.delivery_complete_count,
            }
        return _response_only(ticket, response)

    def _write(self, ticket: Ticket, op: WriteState, now: Moment) -> CoordinatorResult:
        current = self._initialized(op.key, "Write")
        if op.start_offset < NO_OFFSET or not all(map(_is_valid, op.batches)):
            raise MqError(ErrorCode.INVALID_REQUEST, "An offset, state or count is invalid.")
        if op.leader_epoch != NO_EPOCH and op.leader_epoch < current.leader_epoch:
            raise MqError(ErrorCode.FENCED_LEADER_EPOCH)
        if op.state_epoch != NO_EPOCH and op.state_epoch < current.state_epoch:
            raise MqError(ErrorCode.FENCED_STATE_EPOCH)
        self.account.make_room(
            RANGE_BYTES * len(op.batches), f"share group {op.key.group_id}", now.seconds
        )
        update = ShareUpdate(
            current.snapshot_epoch,
            max(current.leader_epoch, op.leader_epoch),
            op.start_offset,
            op.delivery_complete_count,
            op.batches,
        )
        most: int = self._options.node("share.coordinator.snapshot.update.records.per.snapshot")
        value: ShareUpdate | ShareSnapshot = update
        if current.updates + 1 >= most:
            value = self._after(current, update).snapshot(now.wall_ms)
        if self._deadline is None and self._round_is_due():
            self._deadline = now.seconds
        return CoordinatorResult((encode(op.key, value),), ((ticket, {}),))

    def _delete(self, ticket: Ticket, op: DeleteState) -> CoordinatorResult:
        if op.key not in self._states:
            return _response_only(ticket, {})
        return CoordinatorResult((tombstone(op.key),), ((ticket, {}),))

    # -- internals

    def _check_partition(self, key: ShareKey) -> None:
        """Raises MqError UNKNOWN_TOPIC_OR_PARTITION for a partition that does not exist."""
        name = self._topics.topic_name(key.topic_id)
        if name is None or not 0 <= key.partition < self._topics.partitions(name):
            raise MqError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _initialized(self, key: ShareKey, what: str) -> ShareState:
        self._check_partition(key)
        current = self._states.get(key)
        if current is None:
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                f"{what} operation on uninitialized share partition not allowed.",
            )
        return current

    def _after(self, current: ShareState, update: ShareUpdate) -> ShareState:
        """A copy of the state after an update."""
        # The leader may not know yet that earlier records are done, and have moved the start (I62).
        start = max(current.start_offset, update.start_offset)
        states = RecordStates(max(0, start))
        for batch in (*current.states.batches(), *update.state_batches):
            states.store(batch)
        after = ShareState(
            current.snapshot_epoch,
            current.state_epoch,
            update.leader_epoch,
            start,
            states,
            update.delivery_complete_count,
            current.create_timestamp,
        )
        if start != NO_OFFSET:
            after.advance()
        return after

    def _round_is_due(self) -> bool:
        return self._written_bytes > max(_ROUND_BYTES_MIN, _ROUND_GROWTH * self._bytes)


def _is_valid(batch: Batch) -> bool:
    """Whether a leader may write this batch."""
    return (
        0 <= batch.first_offset <= batch.last_offset
        and batch.state not in (RecordState.ACQUIRED, RecordState.DELAYED)
        and batch.delivery_count >= 0
        and (batch.time_ms == 0 or _may_have_time(batch))
    )


def _may_have_time(batch: Batch) -> bool:
    return batch.time_ms > 0 and batch.state in (RecordState.AVAILABLE, RecordState.ARCHIVING)


def _size_of(key: ShareKey, state: ShareState) -> int:
    return _STATE_BYTES + text_bytes(key.group_id) + state.states.size


def _response_only(ticket: Ticket, response: Mapping[str, Any]) -> CoordinatorResult:
    return CoordinatorResult(responses=((ticket, response),))
