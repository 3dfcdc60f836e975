"""Commands on three replicas of one partition: mqd/replica/follower.py, mqd/log/epochs.py and
mqd/log/manager/truncation.py, with logs on a disk.
"""

from __future__ import annotations

from pathlib import Path

from mqd.replica.follower import Action, Reset, Truncate
from tests.replica.followers import Replica, assignment_of


class TruncationDriver:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._replicas: dict[int, Replica] = {}

    def metadata(
        self, *, leader: int, epoch: int, isr: tuple[int, ...], reaches: tuple[int, ...] = ()
    ) -> None:
        """The metadata names a leader. `reaches`: the only nodes that learn of it now."""
        for node in (1, 2):
            if node in reaches or not reaches:
                self._at(node).assign(assignment_of(leader, epoch, isr, (1, 2, 3)))

    def append(self, node: int, *values: str) -> None:
        """The leader writes a batch for each record."""
        for value in values:
            self._at(node).append(value.encode())

    def fetch(self, node: int, *, leader: int) -> list[str]:
        """One fetch of a follower, and what it does with the response."""
        follower = self._at(node)
        before = follower.log.log_end_offset
        actions = follower.fetch(self._at(leader), now=1e9)
        return [_shown(action, before, follower.log.log_end_offset) for action in actions]

    def fetch_until_equal(self, node: int, *, leader: int) -> list[str]:
        """Fetches until one brings nothing; ten at most."""
        shown: list[str] = []
        for _ in range(10):
            lines = self.fetch(node, leader=leader)
            if "nothing new" in lines:
                return shown
            shown += lines
        return [*shown, "and does not come to rest"]

    def lose_response(self, node: int, *, leader: int) -> None:
        """The leader reads the follower's fetch, but the response is lost."""
        self._at(leader).row(self._at(node).requested(), node)

    def crash(self, node: int) -> None:
        """kill -9 and a restart; the checkpoint of the high watermark may be old."""
        self._at(node).note_high_watermark()
        self._at(node).kill()

    # -- what it shows

    def log(self, node: int) -> str:
        values = [
            f"{offset}:{(value or b'').decode()}" for offset, value in self._at(node).values()
        ]
        return " ".join(values) or "empty"

    def epochs(self, node: int) -> str:
        """The leader epoch cache."""
        entries = self._at(node).log.epochs.entries()
        return " ".join(f"epoch={epoch}@{start}" for epoch, start in entries) or "none"

    def high_watermark(self, node: int) -> str:
        return f"hw={self._at(node).partition.high_watermark}"

    def offset_for_leader_epoch(self, node: int, *, epoch: int) -> str:
        """OffsetForLeaderEpoch, as the handler reads it."""
        log = self._at(node).log
        known, end = log.epochs.end_offset_for(epoch, log.written_end_offset)
        return f"epoch={known} end={end}"

    def fetch_response(self, node: int, *, offset: int, last_epoch: int) -> str:
        """The diverging epoch of the leader's response to a fetch."""
        log = self._at(node).log
        diverging = log.epochs.divergence(last_epoch, offset, log.written_end_offset)
        return (
            "records" if diverging is None else f"diverging epoch={diverging[0]} end={diverging[1]}"
        )

    def _at(self, node: int) -> Replica:
        if node not in self._replicas:
            self._replicas[node] = Replica(node, self._directory / str(node))
        return self._replicas[node]


def _shown(action: Action, before: int, after: int) -> str:
    if isinstance(action, Truncate):
        return f"truncates from {before} to {after}"
    if isinstance(action, Reset):
        return f"starts anew at {action.offset}"
    if after == before:
        return "nothing new"
    return f"appends offset {before}" + (f" to {after - 1}" if after - 1 > before else "")
