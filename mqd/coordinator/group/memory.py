"""How much all members of a node's groups may say of themselves together, in memory:
`group.members.memory.bytes`.

What was let in is added up; what has gone since is found by counting the groups, which is done only
where nobody else could be let in, and not more often than once a second. Who is already there may
always come again with as much as before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from mqd.coordinator.shard import GroupOptions, Moment
from mqd.errors import ErrorCode, MqError

logger = logging.getLogger(__name__)

_COUNT_SECONDS = 1.0


class _Sized(Protocol):
    @property
    def memory(self) -> int: ...


class Memory:
    """Shared by all shards of a node."""

    def __init__(self, groups: Callable[[], Iterable[_Sized]]) -> None:
        """`groups()`: all that there are, of all shards."""
        self._groups = groups
        self._used = 0
        """At least what the groups take, but for those that were loaded since the last count."""
        self._is_known = False
        self._counted_at = -_COUNT_SECONDS

    def groups_were_loaded(self) -> None:
        """There are more than what was let in."""
        self._is_known = False

    def make_room(self, group_id: str, size: int, options: GroupOptions, now: Moment) -> None:
        """For so many bytes more.

        MqError COORDINATOR_NOT_AVAILABLE, upon which clients try again, where there is none.
        """
        most = options.node("group.members.memory.bytes")
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
                "The members of all groups here take all the memory that they may have.",
            )
        self._used += size
