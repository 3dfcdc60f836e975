"""What became of a proposal, told to whoever waits for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import Any

from pysyncobj.config import FAIL_REASON

logger = logging.getLogger(__name__)


class Fate(Enum):
    """What became of a proposal."""

    APPLIED = "applied"
    REFUSED = "refused"
    """Not the leader: it is in no log, or another entry took its place."""
    UNKNOWN = "unknown"


Settle = Callable[[int, Fate], None]
"""Called once with (index, fate); the index counts for APPLIED only."""


def pysyncobj_callback(settle: Settle) -> Callable[[Any, int], None]:
    def callback(result: Any, reason: int) -> None:
        if reason == FAIL_REASON.SUCCESS:
            tell(settle, result, Fate.APPLIED)
        else:
            tell(settle, 0, Fate.REFUSED if reason == FAIL_REASON.DISCARDED else Fate.UNKNOWN)

    return callback


def tell(settle: Settle, index: int, fate: Fate) -> None:
    """One that raises must not stop the entry from being counted as applied: PySyncObj would apply it again."""
    try:
        settle(index, fate)
    except Exception:
        logger.exception("raft: whoever waited for entry %d failed to hear of it", index)
