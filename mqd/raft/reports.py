"""Log lines for the operator, repeated while a problem lasts: no leader, or a peers file that
cannot take effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import trio

from mqd.io.clock import Clock
from mqd.raft.leaderless import (
    NO_LEADER_YET,
    Link,
    MissingVoters,
    find_missing_voters,
    is_leaderless,
)
from mqd.raft.machine import RaftStatus

logger = logging.getLogger(__name__)

LEADERLESS_GRACE_SECONDS = 2.0
"""The log reports the missing voters after this time without a leader; elections are shorter."""
LEADERLESS_LOG_SECONDS = 5.0
PEERS_FILE_LOG_SECONDS = 10.0


class LeaderlessReport:
    """A node without a leader cannot work, so the log reports the missing voters every few
    seconds.
    """

    def __init__(
        self,
        node_id: int,
        links: Mapping[int, Link],
        clock: Clock,
        *,
        silence: float,
        status: Callable[[], RaftStatus],
        voters: Callable[[], frozenset[int]],
    ) -> None:
        """`silence`: the longest election timeout. `status()`, `voters()`: the current values of
        this node.
        """
        self._node_id = node_id
        self._links = links
        self._clock = clock
        self._silence = silence
        self._status = status
        self._voters = voters
        self._was_leaderless = True
        self._changed = trio.Event()

    @property
    def _leaderless(self) -> bool:
        return is_leaderless(self._node_id, self._voters(), self._status())

    def on_status(self) -> None:
        """The status has changed."""
        if self._leaderless is not self._was_leaderless:
            self._was_leaderless = not self._was_leaderless
            self._changed.set()
            self._changed = trio.Event()

    async def run(self) -> None:
        while True:
            while not self._leaderless:
                await self._changed.wait()
            since = self._clock.monotonic()
            with trio.move_on_after(LEADERLESS_GRACE_SECONDS):
                while self._leaderless:
                    await self._changed.wait()
            lines = 0
            while self._leaderless:
                missing = self._missing_voters(since)
                is_normal = missing.reason == NO_LEADER_YET and not lines  # at a start
                lines += 1
                logger.log(
                    logging.INFO if is_normal else logging.WARNING,
                    "waiting for a leader voters=%d reachable=%d majority=%s reason=%s",
                    missing.voters,
                    missing.reachable,
                    missing.reachable * 2 > missing.voters,
                    missing.reason,
                )
                with trio.move_on_after(LEADERLESS_LOG_SECONDS):
                    while self._leaderless:
                        await self._changed.wait()

    def _missing_voters(self, since: float) -> MissingVoters:
        return find_missing_voters(
            self._node_id,
            self._voters(),
            self._status(),
            self._links,
            since=since,
            now=self._clock.monotonic(),
            silence=self._silence,
        )


async def report_peers_file_problem(problem: Callable[[], str | None]) -> None:
    """Report a peers file that cannot take effect: only the operator can correct it."""
    while True:
        await trio.sleep(PEERS_FILE_LOG_SECONDS)
        why = problem()
        if why is not None:
            logger.warning("the peers file has no effect reason=%s", why)
