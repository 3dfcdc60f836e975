"""One warning a query: Spark makes readers and writers again for each plan and micro-batch."""

from __future__ import annotations

import logging
from collections import deque

logger = logging.getLogger("pyspark_mqd")

REMEMBERED_MAX = 1_000
_logged: deque[tuple[str, str]] = deque(maxlen=REMEMBERED_MAX)
"""(query, warning) pairs of this process; the oldest is forgotten first."""


def warn_once(query: str, warning: str) -> None:
    """Log a warning, unless this process has logged it for the query."""
    if (query, warning) not in _logged:
        _logged.append((query, warning))
        logger.warning("%s", warning)
