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

import logging
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from mqd.coordinator.share.stored_states import StoredStates, are_in_order, is_valid
from mqd.errors import ErrorCode, MqError
from mqd.limits import SHARE_CHANGE_BATCHES_MAX, SHARE_OFFSET_MAX, SHARE_STATE_RANGES_MAX
from mqd.share.ports import ShareKey
from mqd.share.record_states import RANGE_BYTES, Batch
from mqd.types import NO_EPOCH, NO_OFFSET, SHARE_STATE_TOPIC, Offset

logger = logging.getLogger(__name__)

_STATE_BYTES: Final = 800
"""Memory of a share partition without ranges and its group's name."""
_ROUND_BYTES_MIN: Final = 1 << 20
"""Bytes of records after which a round begins at the earliest."""
_ROUND_GROWTH: Final = 4
"""A round begins when the log has grown by so many times the size of the state."""
_PORTION_RECORDS: Final = 200
_PORTION_BYTES: Final = 64 << 10
"""Snapshots that one call of a round writes: no more than one after so many bytes."""
_PAUSE_SECONDS: Final = 0.05
"""Between two portions of a round."""
_PAUSE_AFTER_ERROR_SECONDS: Final = 1.0
"""The same if an append was refused, for lack of replicas."""
_COUNT_MAX: Final = 2**31 - 1


@dataclass(slots=True)
class ShareState:
    """The state of one share partition."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: Offset
    """-1: not known yet."""
    states: StoredStates
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
            tuple(self.states.batches),
        )


class _Record(CoordinatorRecord):
    """A record that this shard has made, with its content: `replay` need not decode thousands of
    batches."""

    content: tuple[ShareKey, ShareSnapshot | ShareUpdate]


def _record(key: ShareKey, value: ShareSnapshot | ShareUpdate) -> CoordinatorRecord:
    record = _Record(*encode(key, value))
    record.content = key, value
    return record


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
        self._failed = False
        """Whether a snapshot of the present round could not be made: the log is kept then."""
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
        key, value = record.content if isinstance(record, _Record) else decode(record)
        self._written_bytes += len(record.key) + len(record.value or b"")
        current = self._states.get(key)
        if current is not None:
            self._bytes -= _size_of(key, current)
        if value is None:
            self._states.pop(key, None)
            return
        start_offset = max(NO_OFFSET, value.start_offset)
        count = min(max(UNKNOWN_COUNT, value.delivery_complete_count), _COUNT_MAX)
        if isinstance(value, ShareSnapshot):
            current = self._states[key] = ShareState(
                value.snapshot_epoch,
                value.state_epoch,
                value.leader_epoch,
                start_offset,
                StoredStates(max(0, start_offset)),
                count,
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
        batches = value.state_batches
        if isinstance(record, _Record) and isinstance(value, ShareSnapshot):
            current.states.batches = list(batches)  # those of another StoredStates: in order
            batches = ()
        _change(current, value.leader_epoch, start_offset, count, batches)
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
            self._failed = False
            self._deadline = now.seconds + _PAUSE_SECONDS
            # without records: the log before this effect is what the round replaces
            return CoordinatorResult(effects=(PruneLog(self._round, begins=True),))
        effects: list[Hashable] = []
        records: list[CoordinatorRecord] = []
        size = 0
        while self._unfinished and len(records) < _PORTION_RECORDS and size < _PORTION_BYTES:
            key = self._unfinished.pop()
            current = self._states.get(key)
            if current is not None and current.round != self._round:
                record = self._snapshot(key, current, now)
                if record is None:
                    current.round = self._round
                    self._failed = True
                    continue
                records.append(record)
                size += len(record.value or b"")
        pause = _PAUSE_SECONDS
        if not self._unfinished:
            missing = [key for key, one in self._states.items() if one.round != self._round]
            if len(missing) > len(records):  # an append was refused
                self._unfinished = missing
                pause = _PAUSE_AFTER_ERROR_SECONDS
            elif not self._failed:  # all others have their snapshot
                effects.append(PruneLog(self._round, begins=False))
        self._deadline = now.seconds + pause if self._unfinished else None
        return CoordinatorResult(records=records, effects=effects)

    def abandoned(self, tickets: Collection[Ticket]) -> None:
        """Each call gets its response from its own decision."""

    # -- operations --------------------------------------------------------------------------------

    def _initialize(self, ticket: Ticket, op: InitializeState, now: Moment) -> CoordinatorResult:
        self._check_partition(op.key)
        _check_start_offset(op.start_offset)
        current = self._states.get(op.key)
        if current is not None and op.state_epoch < current.state_epoch:
            raise _fenced_state_epoch()
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
            0,
            now.wall_ms,
            now.wall_ms,
            (),
        )
        return CoordinatorResult((_record(op.key, snapshot),), ((ticket, {}),))

    def _read(self, ticket: Ticket, op: ReadState) -> CoordinatorResult:
        current = self._initialized(op.key, "Read")
        if op.leader_epoch != NO_EPOCH and op.leader_epoch < current.leader_epoch:
            raise _fenced_leader_epoch()
        response = {
            "state_epoch": current.state_epoch,
            "start_offset": current.start_offset,
            "batches": tuple(current.states.batches),
        }
        if op.leader_epoch in (NO_EPOCH, current.leader_epoch):
            return _response_only(ticket, response)
        # From now on, writes of the former leader are refused.
        fencing = ShareUpdate(
            current.snapshot_epoch, op.leader_epoch, NO_OFFSET, current.delivery_complete_count, ()
        )
        return CoordinatorResult((_record(op.key, fencing),), ((ticket, response),))

    def _summary(self, ticket: Ticket, op: ReadSummary) -> CoordinatorResult:
        self._check_partition(op.key)
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
        _check_start_offset(op.start_offset)
        batches = _checked(op.batches)
        if op.leader_epoch != NO_EPOCH and op.leader_epoch < current.leader_epoch:
            raise _fenced_leader_epoch()
        if op.state_epoch != NO_EPOCH and op.state_epoch < current.state_epoch:
            raise _fenced_state_epoch()
        update = ShareUpdate(
            current.snapshot_epoch,
            current.leader_epoch,
            op.start_offset,
            min(max(UNKNOWN_COUNT, op.delivery_complete_count), _COUNT_MAX),
            batches,
        )
        self._check_room(op.key, current, update, now)
        record = None
        most: int = self._options.node("share.coordinator.snapshot.update.records.per.snapshot")
        if current.updates + 1 >= most:
            record = self._snapshot(op.key, _after(current, update), now)
        if record is None:
            record = _record(op.key, update)
        if self._deadline is None and self._round_is_due():
            self._deadline = now.seconds
        return CoordinatorResult((record,), ((ticket, {}),))

    def _check_room(
        self, key: ShareKey, current: ShareState, update: ShareUpdate, now: Moment
    ) -> None:
        """Raises MqError: INVALID_REQUEST, COORDINATOR_NOT_AVAILABLE. A state that becomes no
        larger always has room."""
        before = len(current.states)
        # a batch may split another one
        if before + 2 * len(update.state_batches) > SHARE_STATE_RANGES_MAX:
            after = len(_after(current, update).states)
            if after > max(before, SHARE_STATE_RANGES_MAX):
                raise MqError(
                    ErrorCode.INVALID_REQUEST,
                    f"The state of the share partition would have {after} batches, more than "
                    f"{SHARE_STATE_RANGES_MAX}.",
                )
            growth = after - before
        else:
            growth = 2 * len(update.state_batches)
        self.account.make_room(RANGE_BYTES * growth, f"share group {key.group_id}", now.seconds)

    def _delete(self, ticket: Ticket, op: DeleteState) -> CoordinatorResult:
        self._check_partition(op.key)
        if op.key not in self._states:
            return _response_only(ticket, {})
        return CoordinatorResult((tombstone(op.key),), ((ticket, {}),))

    # -- internals

    def _check_partition(self, key: ShareKey) -> None:
        """Raises MqError UNKNOWN_TOPIC_OR_PARTITION for a partition that does not exist,
        INVALID_REQUEST for a negative one."""
        _check_number(key)
        name = self._topics.topic_name(key.topic_id)
        if name is None or key.partition >= self._topics.partitions(name):
            raise MqError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "This server does not host this topic-partition.",
            )

    def _initialized(self, key: ShareKey, what: str) -> ShareState:
        _check_number(key)
        current = self._states.get(key)
        if current is None:
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                f"{what} operation on uninitialized share partition not allowed.",
            )
        self._check_partition(key)
        return current

    def _snapshot(self, key: ShareKey, state: ShareState, now: Moment) -> CoordinatorRecord | None:
        """The record with the whole state. None after a bug: others go on, and the records of this
        state stay in the log."""
        try:
            return _record(key, state.snapshot(now.wall_ms))
        except Exception:
            logger.exception(
                "bug: cannot write the state of a share partition, its records stay in the log "
                "partition=%s group=%s topic_id=%s share_partition=%d",
                self.account.name,
                *key,
            )
            return None

    def _round_is_due(self) -> bool:
        return self._written_bytes > max(_ROUND_BYTES_MIN, _ROUND_GROWTH * self._bytes)


def _change(
    state: ShareState,
    leader_epoch: int,
    start_offset: Offset,
    delivery_complete_count: int,
    batches: Sequence[Batch],
) -> None:
    """Carry out a record. A start offset of -1 is as before. The leader may not know yet that
    earlier records are done, and have moved the start: it never goes back (I62)."""
    state.leader_epoch = leader_epoch
    state.delivery_complete_count = delivery_complete_count
    if start_offset != NO_OFFSET:
        if state.start_offset == NO_OFFSET:
            state.states = StoredStates(start_offset)
        state.states.remove_before(start_offset)
    state.states.store(batches)
    if state.start_offset != NO_OFFSET or start_offset != NO_OFFSET:
        state.advance()


def _after(current: ShareState, update: ShareUpdate) -> ShareState:
    """A copy of the state after an update."""
    after = replace(current, states=current.states.copy())
    _change(
        after,
        update.leader_epoch,
        update.start_offset,
        update.delivery_complete_count,
        update.state_batches,
    )
    return after


def _fenced_leader_epoch() -> MqError:
    return MqError(
        ErrorCode.FENCED_LEADER_EPOCH,
        "The leader epoch in the request is older than the epoch on the broker.",
    )


def _fenced_state_epoch() -> MqError:
    return MqError(
        ErrorCode.FENCED_STATE_EPOCH,
        "The share coordinator rejected the request because the share-group state epoch did not "
        "match.",
    )


def _check_number(key: ShareKey) -> None:
    if key.partition < 0:
        raise MqError(ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number.")


def _check_start_offset(offset: Offset) -> None:
    if not NO_OFFSET <= offset <= SHARE_OFFSET_MAX:
        raise MqError(ErrorCode.INVALID_REQUEST, f"Invalid start offset {offset}.")


def _checked(batches: Sequence[Batch]) -> tuple[Batch, ...]:
    """The batches of a request in order. Raises MqError INVALID_REQUEST."""
    if len(batches) > SHARE_CHANGE_BATCHES_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"One change has at most {SHARE_CHANGE_BATCHES_MAX} batches of a share partition.",
        )
    if not all(map(is_valid, batches)):
        raise MqError(ErrorCode.INVALID_REQUEST, "An offset, state or count of a batch is invalid.")
    # a leader joins the changes of several members
    ordered = sorted(batches)
    if not are_in_order(ordered):
        raise MqError(ErrorCode.INVALID_REQUEST, "Batches overlap.")
    return tuple(ordered)


def _size_of(key: ShareKey, state: ShareState) -> int:
    return _STATE_BYTES + text_bytes(key.group_id) + state.states.size


def _response_only(ticket: Ticket, response: Mapping[str, Any]) -> CoordinatorResult:
    return CoordinatorResult(responses=((ticket, response),))
