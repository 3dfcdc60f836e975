"""What became of a proposal, told to whoever waits for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

logger = logging.getLogger(__name__)


class Fate(Enum):
    """What became of a proposal."""

    APPLIED = "applied"
    REFUSED = "refused"
    """Not the leader: it is in no log, or another entry took its place."""
    UNKNOWN = "unknown"


Settle = Callable[[int, Fate], None]
"""Called once with (index, fate); the index counts for APPLIED only."""


def tell(settle: Settle, index: int, fate: Fate) -> None:
    """One that raises must not stop the entry from being counted as applied: PySyncObj would apply it again."""
    try:
        settle(index, fate)
    except Exception:
        logger.exception("raft: whoever waited for entry %d failed to hear of it", index)
