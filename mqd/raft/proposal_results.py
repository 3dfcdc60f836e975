"""The result of a proposal, and how it is reported to its proposer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

logger = logging.getLogger(__name__)


class ProposalResult(Enum):
    APPLIED = "applied"
    REFUSED = "refused"
    """Not the leader: no log contains the command, or another entry replaced it."""
    UNKNOWN = "unknown"
    """Leadership was lost first: the command may be applied, now or later."""


OnResult = Callable[[int, ProposalResult], None]
"""Called once with (index, result); the index counts for APPLIED only."""


def report_result(on_result: OnResult, index: int, result: ProposalResult) -> None:
    """Call `on_result`, and log an exception from it. PySyncObj would otherwise not count the entry
    as applied, and apply it again.
    """
    try:
        on_result(index, result)
    except Exception:
        logger.exception(
            "bug: a proposer failed on its result index=%d result=%s", index, result.value
        )
