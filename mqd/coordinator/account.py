"""What the state of one shard takes in memory, and its share of what the coordinator of a node may
take.

The bound of a topic's coordinator (`group.coordinator.memory.bytes`,
`transaction.coordinator.memory.bytes`) is divided by the number of partitions of the topic. So a
node that comes to lead all of them, and replays all of their logs, needs no more than the bound. A
log is always loaded. Only growth is refused: a record in place of another one of its size is none.

Part of the state is exact at any time. The rest, which a count over all groups finds, is an
estimate in between: what was let in is added up, and counted anew where nothing else could be let
in, not more often than every `_COUNT_SECONDS`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from mqd.errors import ErrorCode, MqError
from mqd.usage import Usage, UsageWatch

logger = logging.getLogger(__name__)

_COUNT_SECONDS: Final = 1.0
UNBOUNDED: Final = 2**62

TEXT_BYTES: Final = 64
"""A text, without its characters."""


def text_bytes(text: str) -> int:
    """Characters of a text in memory: Python takes up to four bytes for each."""
    return len(text) if text.isascii() else 4 * len(text)


class Account:
    """Of one shard."""

    def __init__(
        self,
        name: str,
        share: Callable[[], int],
        exact: Callable[[], int],
        count: Callable[[], int] = lambda: 0,
    ) -> None:
        """`name`: of the shard's partition, for the log. `share()`: bytes that it may take.
        `exact()`, `count()`: bytes that it takes, as above; the first is called often, the second
        seldom.
        """
        self.name = name
        self._share = share
        self._exact = exact
        self._count = count
        self._estimated = 0
        self._is_known = False
        self._counted_at = -_COUNT_SECONDS
        self._watch = UsageWatch()

    def usage(self) -> Usage:
        """Bytes that the shard takes, about, and those that it may take."""
        return Usage(self._exact() + self._estimated, self._share())

    @property
    def exact(self) -> int:
        """The bytes that are known at any time."""
        return self._exact()

    def was_loaded(self) -> None:
        """The state is another: count it before anything is let in."""
        self._is_known = False

    def let_in(self, size: int) -> None:
        """So many bytes more are in the part that is counted seldom."""
        self._estimated += size

    def left(self, wanted: int, now_seconds: float) -> int:
        """Bytes that may be added; counted anew where `wanted` are more than that.

        `now_seconds`: monotonic."""
        used, most = self.usage()
        if not self._is_known or used + wanted > most:
            if now_seconds - self._counted_at >= _COUNT_SECONDS:
                self._estimated = self._count()
                self._is_known = True
                self._counted_at = now_seconds
            used = self._exact() + self._estimated
        usage = Usage(used, most)
        if self._watch.passed(usage) is not None:
            logger.warning(
                "the state of a coordinator is near its bound partition=%s share=%.0f%% bytes=%d "
                "bytes_max=%d: above it new groups, members, offsets and transactional ids are "
                "rejected",
                self.name,
                100 * usage.share,
                used,
                most,
            )
        return most - used

    def make_room(self, wanted: int, what: str, now_seconds: float) -> None:
        """Raise COORDINATOR_NOT_AVAILABLE, upon which clients try again until their own time is
        over, where so much cannot be added.
        """
        # Only growth is refused: what is in the log is always loaded (I46).
        if wanted > 0 and wanted > self.left(wanted, now_seconds):
            logger.warning(
                "the memory bound of a coordinator is reached partition=%s for=%s bytes=%d "
                "bytes_max=%d",
                self.name,
                what,
                wanted,
                self._share(),
            )
            raise MqError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"The state of {self.name} takes all the memory that it may have.",
            )


def unbounded() -> Account:
    """For a shard without a node."""
    return Account("a shard", lambda: UNBOUNDED, lambda: 0)
