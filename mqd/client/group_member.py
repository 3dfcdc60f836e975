"""A member of a group: the steps that it takes, and the part that both group protocols share. Pure.

The protocols are in `classic_member.py` and `consumer_member.py`; time and responses are arguments.
`next` returns the next step: a `CoordinatorRequest`, a `TopicLookup`, or a `Wait`. Its result comes
back through `on_response`, `on_topics` or `on_failure`. A new assignment becomes a `change`: the
user's task runs callbacks and commits, then calls `change_done`. Heartbeats continue.

Invariants: one request at a time; no join while a revocation waits for the user. A waiting change
is never replaced by another, but it assigns only what the member may still own when the user takes
it. `owned` changes in `change_done` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from mqd.client.backoff import backoff_s
from mqd.client.errors import ClientError, error_from_wire
from mqd.client.group_options import GroupOptions
from mqd.errors import ErrorCode, MqError
from mqd.types import TopicPartition

NO_GENERATION = -1
MISSING_TOPIC_LOOKUP_S = 1.0
FOREVER = float("inf")

COORDINATOR_MOVED = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
"""Errors after which the client finds the coordinator again."""
RETRY_LATER = COORDINATOR_MOVED | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT,
}


class CoordinatorRequest(NamedTuple):
    """A request to the coordinator. `timeout_s` is set if the response may take long (a join)."""

    key: int
    body: Mapping[str, Any]
    timeout_s: float | None = None


class TopicLookup(NamedTuple):
    """Look up topics: those named, and with `everything` also all that are not internal."""

    names: tuple[str, ...]
    all_topics: bool = False


class Wait(NamedTuple):
    """Nothing to do before `until`, unless the member is woken."""

    until: float


Step = CoordinatorRequest | TopicLookup | Wait


class FoundTopic(NamedTuple):
    """A topic that exists."""

    topic_id: UUID
    partitions: int


@dataclass(frozen=True, slots=True)
class AssignmentChange:
    """A change of the owned partitions: `revoked` goes first, then `assigned` comes.

    `lost`: the partitions may have another owner already, so commits are refused.
    """

    revoked: tuple[TopicPartition, ...] = ()
    assigned: tuple[TopicPartition, ...] = ()
    lost: bool = False


class GroupMetadata(NamedTuple):
    """The identity of a member in commits, for `TransactionalProducer.send_offsets`.

    `generation` is the member epoch with KIP-848.
    """

    group_id: str
    generation: int = NO_GENERATION
    member_id: str = ""
    instance_id: str | None = None


@dataclass(slots=True)
class RetryTimer:
    """The time of the next attempt, by exponential backoff."""

    failures: int = 0
    retry_at: float = 0.0

    def fail(self, now: float, draw: float) -> None:
        self.retry_at = now + backoff_s(self.failures, draw)
        self.failures += 1

    def succeed(self) -> None:
        self.failures, self.retry_at = 0, 0.0


class BaseMember:
    """The part that both protocols share: the owned partitions, and when the user last polled."""

    def __init__(self, options: GroupOptions, now: float) -> None:
        self.options = options
        self.owned: frozenset[TopicPartition] = frozenset()
        self.change: AssignmentChange | None = None
        """Waits for the user's task, which reports `change_done`."""
        self.failure: ClientError | None = None
        """A final error: the member sends no more requests."""
        self._polls = 0
        self._last_poll = now
        self._retry = RetryTimer()
        self._metadata = GroupMetadata(options.group_id, instance_id=options.instance_id)

    def metadata(self) -> GroupMetadata:
        """The identity of the current or the last membership.

        A replaced member keeps its old identity, so that the coordinator refuses its offsets. It
        would accept offsets of a transaction from a client that claims no membership.
        """
        return self._metadata

    def enter_poll(self, now: float) -> None:
        """The user called `next`, and waits for records."""
        self._polls += 1
        self._last_poll = now

    def leave_poll(self, now: float) -> None:
        """`next` returned: the user works on records."""
        self._polls -= 1
        self._last_poll = now

    @property
    def _poll_deadline(self) -> float:
        """When a user without a call to `next` counts as stuck (max.poll.interval.ms)."""
        return FOREVER if self._polls else self._last_poll + self.options.max_poll_interval_s

    def _fail(self, code: int, detail: str | None = None) -> None:
        self.failure = error_from_wire(code, f"group {self.options.group_id!r}", detail)

    def _apply(self, change: AssignmentChange, assigned: Collection[TopicPartition]) -> None:
        assert change is self.change
        assert not set(assigned) & (self.owned - set(change.revoked))
        self.owned = (self.owned - set(change.revoked)) | set(assigned)
        self.change = None


def is_retriable(error: MqError) -> bool:
    """Whether a step may be repeated: the coordinator moves, or the network failed."""
    return error.code.retriable or error.code is ErrorCode.BROKER_NOT_AVAILABLE
