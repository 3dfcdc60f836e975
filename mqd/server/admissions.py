"""The admissions of transactional ids to topics that one producer at a time may write to
(producer_access.py): which are under way, and what they found.

A request for a partition never waits for an admission: it would delay other requests of its
connection, such as heartbeats of nodes. It gets a retriable error, and the client repeats it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import trio

from mqd.errors import MqError

ADMISSIONS_MAX: Final = 100
"""The number of admissions at the same time. Others are begun by later requests."""
VERDICT_SECONDS: Final = 2.0
"""How long a refusal is returned to requests, before the owner is looked at again."""


class Admission(NamedTuple):
    transactional_id: str
    topic: str


class Admissions:
    """The admissions of one node, as the coordinator of these ids."""

    def __init__(self) -> None:
        self._running: dict[Admission, None] = {}
        self._refusals: dict[Admission, tuple[float, MqError]] = {}
        """Until when (monotonic seconds) a refusal holds."""
        self._begun: list[Admission] = []
        self._has_begun = trio.Event()

    def refusal(self, admission: Admission, now: float) -> MqError | None:
        """Why it was refused. None if it was not refused lately: begins it."""
        until, error = self._refusals.get(admission, (now, None))
        if error is not None and now < until:
            # A new one each time: an exception keeps the frames through which it was raised.
            return MqError(error.code, error.message)
        self._refusals.pop(admission, None)
        if admission not in self._running and len(self._running) < ADMISSIONS_MAX:
            self._running[admission] = None
            self._begun.append(admission)
            self._has_begun.set()
        return None

    async def begun(self) -> list[Admission]:
        """Wait for admissions that were begun since the last call."""
        await self._has_begun.wait()
        self._has_begun = trio.Event()
        begun, self._begun = self._begun, []
        return begun

    def ended(self, admission: Admission, refusal: MqError | None, now: float) -> None:
        """An admission has ended, with a refusal that retries must get, or without."""
        del self._running[admission]
        if refusal is not None:
            if len(self._refusals) >= ADMISSIONS_MAX:
                del self._refusals[next(iter(self._refusals))]
            self._refusals[admission] = now + VERDICT_SECONDS, refusal
