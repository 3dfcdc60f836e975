"""Leader epochs of one log: which epoch begins at which offset (KIP-101, KIP-279, KIP-320). A core.

Invariants: epochs ascend strictly, start offsets do not descend. Each batch contains its epoch, so
recovery can rebuild the entries after the recovery point from the log. The file is made durable
before the recovery point passes an entry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from mqd.errors import ErrorCode, MqError
from mqd.types import NO_EPOCH, NO_OFFSET, Offset


class LeaderEpochs:
    """The content of `leader-epoch-checkpoint`. `dirty`: the file is outdated."""

    __slots__ = ("_epochs", "_starts", "dirty", "latest")

    def __init__(self, entries: Iterable[tuple[int, Offset]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[Offset] = []
        self.latest = NO_EPOCH
        """The epoch of the last entry; NO_EPOCH if there is none."""
        for epoch, start in entries:
            self.assign(epoch, start)
        self.dirty = False

    def entries(self) -> list[tuple[int, Offset]]:
        return list(zip(self._epochs, self._starts))

    def assign(self, epoch: int, start: Offset) -> None:
        """`epoch` begins at `start`. Does nothing for the latest epoch. An epoch below the latest
        is a bug.
        """
        if epoch == self.latest:
            return
        assert epoch > self.latest, (epoch, self.latest)
        # Epochs without a record are removed.
        while self._starts and self._starts[-1] >= start:
            self._starts.pop()
            self._epochs.pop()
        self._epochs.append(epoch)
        self._starts.append(start)
        self.latest = epoch
        self.dirty = True

    def truncate_from_end(self, end_offset: Offset) -> None:
        """Remove epochs that begin at or after `end_offset`."""
        if self._starts and self._starts[-1] >= end_offset:
            while self._starts and self._starts[-1] >= end_offset:
                self._starts.pop()
                self._epochs.pop()
            self.latest = self._epochs[-1] if self._epochs else NO_EPOCH
            self.dirty = True

    def clear(self) -> None:
        """The log was reset."""
        self._epochs, self._starts = [], []
        self.latest, self.dirty = NO_EPOCH, True

    def truncate_from_start(self, start_offset: Offset) -> None:
        """The log now begins at `start_offset`. The epoch that covers it begins there; older
        epochs are removed.
        """
        covering = bisect_right(self._starts, start_offset) - 1
        if covering >= 0 and (covering > 0 or self._starts[0] < start_offset):
            del self._epochs[:covering], self._starts[:covering]
            self._starts[0] = start_offset
            self.dirty = True

    def epoch_of(self, offset: Offset) -> int:
        """The epoch of the record at `offset`; NO_EPOCH before the first entry."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: Offset) -> tuple[int, Offset]:
        """The response of OffsetForLeaderEpoch: (the largest known epoch up to `epoch`, its end).

        The latest epoch ends at `log_end_offset`. An epoch older than the first entry ends where
        the first entry begins. (NO_EPOCH, NO_OFFSET) for NO_EPOCH and for an epoch above the
        latest.
        """
        if epoch == NO_EPOCH or epoch > self.latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        index = bisect_right(self._epochs, epoch)
        return (self._epochs[index - 1], self._starts[index]) if index else (epoch, self._starts[0])

    def divergence(
        self, last_epoch: int, offset: Offset, log_end_offset: Offset
    ) -> tuple[int, Offset] | None:
        """The diverging epoch of a Fetch response (KIP-595), for a log that ends at `offset` with
        a record of `last_epoch`. None if that log is a prefix of this one (I23).

        Raises MqError OFFSET_OUT_OF_RANGE for an epoch above the latest.
        """
        epoch, end_offset = self.end_offset_for(last_epoch, log_end_offset)
        if epoch == NO_EPOCH:
            raise MqError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"this log has no leader epoch {last_epoch}"
            )
        return (epoch, end_offset) if epoch < last_epoch or end_offset < offset else None
