"""The bound on the memory of all members of a node's groups: `group.members.memory.bytes`.

Accepted members are added up. A count over all groups finds those that have left. It runs only if a
member would be rejected, and not more often than once a second. A present member may always join
again with metadata of the same size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from mqd.coordinator.shard import GroupOptions, Moment
from mqd.errors import ErrorCode, MqError
from mqd.memory_plan import MEMBERS_BYTES_MAX

logger = logging.getLogger(__name__)

_COUNT_SECONDS = 1.0


class _Sized(Protocol):
    @property
    def memory(self) -> int: ...


class Memory:
    """Shared by all shards of a node."""

    def __init__(
        self, groups: Callable[[], Iterable[_Sized]], bytes_max: int | None = None
    ) -> None:
        """`groups()`: the groups of all shards. `bytes_max`: of all members. None: the option."""
        self._groups = groups
        self._bytes_max = bytes_max
        self._used = 0
        """An upper bound, without groups that were loaded since the last count."""
        self._is_known = False
        self._counted_at = -_COUNT_SECONDS

    def groups_were_loaded(self) -> None:
        """Count again: groups were loaded."""
        self._is_known = False

    def make_room(self, group_id: str, size: int, options: GroupOptions, now: Moment) -> None:
        """For `size` more bytes. Raises MqError COORDINATOR_NOT_AVAILABLE, which clients retry."""
        most = self._bytes_max
        if most is None:
            most = options.node("group.members.memory.bytes") or MEMBERS_BYTES_MAX
        if (
            self._used + size > most or not self._is_known
        ) and now.seconds - self._counted_at >= _COUNT_SECONDS:
            self._used = sum(group.memory for group in self._groups())
            self._is_known = True
            self._counted_at = now.seconds
        if self._used + size > most:
            logger.warning(
                "member rejected, the memory bound is reached group=%s bytes=%d "
                "group.members.memory.bytes=%d",
                group_id,
                size,
                most,
            )
            raise MqError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "The members of all groups of this node use group.members.memory.bytes. Retry "
                "later, or raise that option.",
            )
        self._used += size
