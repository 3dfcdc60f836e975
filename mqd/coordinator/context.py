"""One partition of an internal topic that this node leads: its shard and its waiting calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, TypeAlias

import trio

from mqd.coordinator.shard import Response, Shard, Ticket
from mqd.errors import ErrorCode, MqError
from mqd.replica.partition import Partition
from mqd.types import Offset, TopicPartition


class ContextState(Enum):
    """The state of a shard while this node leads its partition (Kafka: CoordinatorState)."""

    LOADING = auto()
    """The log is being replayed."""
    FAILED = auto()
    """Loading raised an unexpected exception, a bug. It is retried."""
    ACTIVE = auto()
    """The shard serves requests."""


_ERRORS: Final[Mapping[ContextState, tuple[ErrorCode, str]]] = {
    ContextState.LOADING: (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        "{partition} is being loaded. Retry.",
    ),
    ContextState.FAILED: (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        "{partition} was not loaded because of a bug. The log of this node has the stack trace.",
    ),
}
"""The error that requests get in every other state than ACTIVE."""


class WaitingCall:
    """One call until its response."""

    __slots__ = ("_responded", "_response")

    def __init__(self) -> None:
        self._responded = trio.Event()
        self._response: Response | None = None

    def respond(self, response: Response) -> None:
        self._response = response
        self._responded.set()

    async def response(self) -> Mapping[str, Any]:
        await self._responded.wait()
        assert self._response is not None
        if isinstance(self._response, MqError):
            raise self._response
        return self._response


@dataclass(eq=False)
class CoordinatorContext:
    """Kafka's name. It lives as long as this node leads the partition in one leader epoch."""

    partition: Partition
    leader_epoch: int
    shard: Shard
    last_absence: float
    """Monotonic seconds: the last loss of contact with the controller that the shard knows."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    """The scope of the task that loads the shard."""
    state: ContextState = ContextState.LOADING
    end: Offset = 0
    """After the last record that the shard has replayed. A response waits until the high watermark
    is there."""
    waiting: dict[Ticket, WaitingCall] = field(default_factory=dict)
    effects: deque[tuple[Offset, Hashable]] = field(default_factory=deque)
    """Each with the offset that must be committed before it."""

    @property
    def topic_partition(self) -> TopicPartition:
        return self.partition.assignment.topic_partition

    @property
    def index(self) -> int:
        return self.topic_partition.partition

    @property
    def is_active(self) -> bool:
        return self.state is ContextState.ACTIVE

    def check_active(self) -> None:
        """Raises MqError COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE."""
        if not self.is_active:
            code, message = _ERRORS[self.state]
            raise MqError(code, message.format(partition=self.topic_partition))

    def respond(self, responses: Sequence[tuple[Ticket, Response]]) -> None:
        for ticket, response in responses:
            waiting = self.waiting.pop(ticket, None)
            if waiting is not None:
                waiting.respond(response)


Contexts: TypeAlias = dict[int, CoordinatorContext]
"""The contexts of one topic on this node, by partition."""
