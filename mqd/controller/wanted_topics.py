"""Topics that come into being because someone asked about them: who wants them asks again
until they are there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import trio

from mqd.errors import ErrorCode
from mqd.limits import TOPICS_CREATED_SOON_MAX

logger = logging.getLogger(__name__)


class WantedTopics:
    """Iterated over by the one task that has them made: all names that are wanted at that
    time; they are wanted until it comes back.
    """

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._wanted = trio.Event()
        self._taken: tuple[str, ...] = ()

    def want(self, name: str) -> None:
        """Have it made in the background.

        Quiet where too many wait already: asking again is a new try.
        """
        if len(self._names) < TOPICS_CREATED_SOON_MAX:
            self._names[name] = None
            self._wanted.set()

    def __aiter__(self) -> WantedTopics:
        return self

    async def __anext__(self) -> tuple[str, ...]:
        for name in self._taken:
            del self._names[name]
        await self._wanted.wait()
        self._wanted = trio.Event()
        self._taken = tuple(self._names)
        return self._taken


def tell_refused(rows: Iterable[Mapping[str, Any]]) -> None:
    """Why topics are not made (rows of CreateTopics' answer): to the operator, for nobody
    reads the answer.
    """
    for row in rows:
        if row["error_code"] not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            logger.warning(
                "cannot create a requested topic topic=%s reason=%s",
                row["name"],
                row["error_message"],
            )
