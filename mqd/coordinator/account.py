"""The memory of one shard, and its share of the bound of the node's coordinator.

The bound of a topic's coordinator (`group.coordinator.memory.bytes`,
`transaction.coordinator.memory.bytes`) is divided by the number of partitions of the topic. So a
node that leads all of them, and replays all of their logs, needs no more than the bound (I46). A
log is always loaded. Only growth is rejected: a record that replaces another of its size is none.

One part of the state is exact at any time. The other part is an estimate: reserved bytes are added
up, and a count over all groups corrects the sum. The count runs only if a request would be
rejected, and not more often than every `_COUNT_SECONDS`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from mqd.errors import ErrorCode, MqError
from mqd.usage import Usage, UsageWatch

logger = logging.getLogger(__name__)

_COUNT_SECONDS: Final = 1.0
UNBOUNDED: Final = 2**62

TEXT_BYTES: Final = 64
"""Memory of a text, without its characters."""


def text_bytes(text: str) -> int:
    """Characters of a text in memory: Python takes up to four bytes for each."""
    return len(text) if text.isascii() else 4 * len(text)


def texts_bytes(texts: Iterable[str | None]) -> int:
    """Characters of several texts in memory."""
    return sum(text_bytes(text or "") for text in texts)


def names_bytes(names: Collection[str]) -> int:
    """Texts in a list of names, with their characters."""
    return TEXT_BYTES * len(names) + sum(map(text_bytes, names))


class Account:
    """The account of one shard."""

    def __init__(
        self,
        name: str,
        share: Callable[[], int],
        exact: Callable[[], int],
        count: Callable[[], int] = lambda: 0,
    ) -> None:
        """`name`: of the shard's partition, for the log. `share()`: bytes that it may take.
        `exact()`, `count()`: bytes of the two parts; the first is called often, the second seldom.
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
        """About how many bytes the shard takes, and how many it may take."""
        return Usage(self._exact() + self._estimated, self._share())

    @property
    def exact(self) -> int:
        """Bytes of the exact part."""
        return self._exact()

    def was_loaded(self) -> None:
        """Count again before the next request: another state was loaded."""
        self._is_known = False

    def reserve(self, size: int) -> None:
        """Add to the estimate."""
        self._estimated += size

    def available(self, wanted: int, now_seconds: float) -> int:
        """Bytes that may be added. If `wanted` are more, they are counted again.

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
                "bytes_max=%d effect='above it new groups, members, offsets and transactional ids "
                "are rejected'",
                self.name,
                100 * usage.share,
                used,
                most,
            )
        return most - used

    def make_room(self, wanted: int, what: str, now_seconds: float) -> None:
        """Raises MqError COORDINATOR_NOT_AVAILABLE, which clients retry, if this size cannot be
        added."""
        # Only growth is refused: what is in the log is always loaded (I46).
        if wanted > 0 and wanted > self.available(wanted, now_seconds):
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
                f"The state of {self.name} uses all its memory. Retry later, or raise the memory "
                "bound of the coordinator.",
            )


def unbounded() -> Account:
    """For a shard without a node."""
    return Account("a shard", lambda: UNBOUNDED, lambda: 0)
