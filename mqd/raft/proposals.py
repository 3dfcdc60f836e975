"""The proposals of this node that wait for their results."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import trio

from mqd import limits
from mqd.errors import ErrorCode, MqError
from mqd.raft.machine import OutcomeUnknown
from mqd.raft.proposal_results import OnResult, ProposalResult


class _Waiting:
    """One pending proposal."""

    __slots__ = ("done", "index", "result")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.index = 0
        self.result = ProposalResult.UNKNOWN

    def on_result(self, index: int, result: ProposalResult) -> None:
        self.index, self.result = index, result
        self.done.set()


class Proposals:
    def __init__(self) -> None:
        self._queue: deque[tuple[bytes, _Waiting]] = deque()
        self.count = 0
        """Proposals without a result, queued or in the log."""

    def add(self, entry: bytes) -> _Waiting:
        """Queue an entry for the next turn. Raises MqError if too many proposals are pending."""
        if self.count >= limits.RAFT_PROPOSALS_MAX:
            raise MqError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{self.count} metadata changes are pending; retry later",
            )
        waiting = _Waiting()
        self._queue.append((entry, waiting))
        return waiting

    async def wait_applied(self, waiting: _Waiting, timeout: float) -> int | None:
        """The index of the entry when it is applied; None if this node refused it. Raises
        OutcomeUnknown, also after `timeout` seconds.
        """
        self.count += 1
        try:
            with trio.move_on_after(timeout):
                await waiting.done.wait()
        finally:
            self.count -= 1
        if waiting.done.is_set() and waiting.result is not ProposalResult.UNKNOWN:
            return waiting.index if waiting.result is ProposalResult.APPLIED else None
        raise OutcomeUnknown(
            "leadership was lost, or the timeout passed, before the command was known to be applied"
        )

    def take(self) -> Iterator[tuple[bytes, OnResult]]:
        """Return each queued entry once."""
        while self._queue:
            entry, waiting = self._queue.popleft()
            yield entry, waiting.on_result

    def refuse_all(self) -> None:
        """Refuse the queued entries: they were never accepted."""
        for _entry, on_result in self.take():
            on_result(0, ProposalResult.REFUSED)
