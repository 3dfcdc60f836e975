"""The interface of a node's partitions to other parts of the node."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from mqd.errors import ErrorCode, MqError
from mqd.replica.partition import Partition
from mqd.types import IsrChange, IsrOutcome, NodeId


async def _no_controller(changes: Sequence[IsrChange]) -> list[IsrOutcome]:
    raise MqError(ErrorCode.NOT_CONTROLLER, "no controller is connected")


@dataclass(frozen=True, slots=True)
class ReplicaPorts:
    """Calls into other parts of the node. The defaults suit a node without any other node."""

    alter_partitions: Callable[[Sequence[IsrChange]], Awaitable[list[IsrOutcome]]] = _no_controller
    """Sends ISR changes to the controller. Raises MqError if the outcome is unknown."""
    eligible_epoch: Callable[[NodeId], int | None] = lambda node_id: None
    """The broker epoch of a node that is alive and not shutting down, None for any other node."""
    contact_until: Callable[[], float] = lambda: math.inf
    """The monotonic time at which contact with the controller ends. From then on, other nodes may
    lead the partitions of this node (I26).
    """
    follow: Callable[[Partition], None] = lambda partition: None
    """Fetch this partition from its leader in its leader epoch. Idempotent; called again when the
    leader or the leader epoch changes.
    """
    unfollow: Callable[[Partition], None] = lambda partition: None
    """Stop fetching this partition: a response that is still on its way must not append to its log
    or truncate it. Idempotent.
    """
    on_offline: Callable[[UUID, int], None] = lambda topic_id, partition: None
    """Called once with the topic id and the index of a partition whose log on this node cannot be
    used. Called again only after the log was opened again.
    """
    on_role_changed: Callable[[Partition], None] = lambda partition: None
    """Called when this node begins or ends to lead a partition, or its leader epoch changes. The
    partition shows which.
    """
