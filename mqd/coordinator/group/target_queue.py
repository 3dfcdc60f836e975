"""Target assignments that take longer than one heartbeat may: computed and written in slices.

One computation runs at a time; other groups of the shard wait for their turn. All of this is soft
state. A new coordinator starts the computation with the next heartbeat, also if the log has only a
part of a target. The record with the new assignment epoch comes last.

A computation never starts over. Its target is for the group epoch at its start, also if the group
has changed meanwhile, as in Apache Kafka (KIP-1263). Members that have left get nothing. Members
that have joined get their part of the next target, which follows because the group epoch is ahead.
So a group whose members change all the time still gets targets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from mqd.coordinator.group.assignment import Assignment
from mqd.coordinator.group.part import Draft
from mqd.coordinator.group.state import Group, State
from mqd.coordinator.group.target_records import COMPARED_TOPIC_STEPS, record_steps
from mqd.coordinator.shard import Moment
from mqd.limits import ASSIGNMENT_STEPS_PER_PORTION, ASSIGNMENT_STEPS_PER_SLICE


class _Group(Group, Protocol):
    epoch: int
    assignment_epoch: int
    targets: dict[str, Assignment]

    @property
    def members(self) -> Mapping[str, Any]: ...


GroupT = TypeVar("GroupT", bound=_Group)


class Computation(Protocol):
    """The computation of a target."""

    assigned: dict[str, Assignment]
    """The result: a part for every member."""
    bytes: int
    """About its memory."""

    @property
    def members(self) -> Mapping[str, Any]:
        """The members at the start."""
        ...

    def advance(self, steps: int) -> bool:
        """Take about so many steps. True when `assigned` is complete."""
        ...


_Expected = TypeVar("_Expected", bound=_Group, contravariant=True)


class Timers(Protocol[_Expected]):
    """The timers that the queue needs."""

    def continue_target(self, now: Moment) -> None:
        """Call `advance` soon."""
        ...

    def expect_target(self, group: _Expected, now: Moment) -> None:
        """Members are on the way to a target."""
        ...


class TargetKind(NamedTuple):
    """A type of groups, and the records of its targets."""

    group: type
    member_key: Callable[[str, str], Any]
    member: Callable[[Assignment], Any]
    epoch_key: Callable[[str], Any]
    epoch: Callable[[int, int], Any]
    present_id: Callable[[Any, Any, str], str | None]
    """(group, computation, member id): the id of the member now; None if it has left."""


@dataclass
class _Running(Generic[GroupT]):
    group: GroupT
    epoch: int
    """The group epoch at the start."""
    computation: Computation
    reserved: int = 0
    """Bytes in the account of the shard."""
    unwritten: deque[str] | None = None
    """Members of the target that may not have their part yet. None during the computation."""


@dataclass
class TargetQueue(Generic[GroupT]):
    """For the groups of one type in a shard."""

    state: State
    kind: TargetKind
    timers: Timers[GroupT]
    start: Callable[[GroupT], Computation]
    _waiting: dict[str, None] = field(default_factory=dict)
    """Group ids, the first to come first."""
    _running: _Running[GroupT] | None = None

    def has(self, group: GroupT) -> bool:
        """Whether the group waits for a target."""
        running = self._running
        return group.group_id in self._waiting or (running is not None and running.group is group)

    def add(self, group_id: str, now: Moment) -> None:
        """Compute a target later, from the group as its records have it then."""
        self._waiting[group_id] = None
        self.timers.continue_target(now)

    @property
    def bytes(self) -> int:
        """Memory of the computation."""
        return 0 if self._running is None else self._running.reserved

    def advance(self, draft: Draft, now: Moment) -> None:
        """Take one slice: of the computation, or of writing its records."""
        running = self._next_group()
        if running is not None:
            if running.unwritten is None:
                self._compute(running)
            elif self._write(running, running.unwritten, draft, now):
                self._end(running)
        if self._running is not None or self._waiting:
            self.timers.continue_target(now)

    def _next_group(self) -> _Running[GroupT] | None:
        """The group whose turn it is. Groups that no longer need a target are dropped."""
        running = self._running
        if running is not None and not self._needs_target(running.group):
            self._end(running)
        while self._running is None and self._waiting:
            group_id = next(iter(self._waiting))
            del self._waiting[group_id]
            group: Any = self.state.get(group_id)
            is_one = isinstance(group, self.kind.group)
            if is_one and self._needs_target(group):
                self._running = _Running(group, group.epoch, self.start(group))
        return self._running

    def _needs_target(self, group: GroupT) -> bool:
        """Not if it was deleted, or became another group, or if its last member has left."""
        return (
            self.state.get(group.group_id) is group
            and bool(group.members)
            and group.epoch > group.assignment_epoch
        )

    def _end(self, running: _Running[GroupT]) -> None:
        self.state.account.reserve(-running.reserved)
        self._running = None

    def _compute(self, running: _Running[GroupT]) -> None:
        computation = running.computation
        if computation.advance(ASSIGNMENT_STEPS_PER_SLICE):
            running.unwritten = deque(computation.assigned)
        self.state.account.reserve(computation.bytes - running.reserved)
        running.reserved = computation.bytes

    def _write(
        self, running: _Running[GroupT], unwritten: deque[str], draft: Draft, now: Moment
    ) -> bool:
        """Write a portion. True with the last record: that of the assignment epoch.

        A member is done only when its part was replayed. A portion that could not be appended, for
        lack of replicas, is written again.
        """
        group = running.group
        steps = ASSIGNMENT_STEPS_PER_PORTION
        for _ in range(len(unwritten)):
            if steps <= 0:
                return False
            member_id = unwritten.popleft()
            present = self.kind.present_id(group, running.computation, member_id)
            if present is None:
                continue
            target = running.computation.assigned[member_id]
            steps -= COMPARED_TOPIC_STEPS * (1 + len(target))
            if group.targets.get(present) != target:
                draft.write(self.kind.member_key(group.group_id, present), self.kind.member(target))
                unwritten.append(member_id)
                steps -= record_steps(target)
        if unwritten:
            return False
        draft.write(
            self.kind.epoch_key(group.group_id), self.kind.epoch(running.epoch, now.wall_ms)
        )
        self.timers.expect_target(group, now)
        return True
