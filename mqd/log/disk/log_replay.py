"""The leader epochs and producers of a log, from their files and from the batches that recovery
reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mqd.log.disk.producer_snapshots import (
    batches_from,
    load_snapshot,
    note_unreplicated,
    replay_batch,
    snapshot_offsets,
)
from mqd.log.epochs import LeaderEpochs
from mqd.log.log_config import LogConfig
from mqd.log.producers import Producers
from mqd.log.recovery_report import REMEDY, LogDamaged, RecoveryReport
from mqd.log.segment import Segment
from mqd.protocol.batch import BatchHeader
from mqd.protocol.files import (
    LEADER_EPOCH_CHECKPOINT,
    AbortedTransaction,
    BadBatch,
    FileFormatError,
    decode_leader_epochs,
)
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk


class LogReplay:
    """See the head of this file. `path`: the directory of the log."""

    def __init__(self, disk: Disk, path: Path, config: LogConfig, report: RecoveryReport) -> None:
        self._disk = disk
        self._path = path
        self._config = config
        self._report = report
        self.producers = Producers()
        self.epochs = LeaderEpochs()
        self._snapshot_offset: Offset = 0
        self.has_gaps = False
        """Whether offsets are missing between batches that were read: the log was cleaned, here or
        at the leader that it was copied from."""

    def load_producers(self, scan_base: Offset | None) -> None:
        """Load the newest valid snapshot up to `scan_base`, where the scan begins, if any."""
        for offset in snapshot_offsets(self._disk, self._path):
            if scan_base is None or offset <= scan_base:
                snapshot = load_snapshot(self._disk, self._path, offset)
                if snapshot is not None:
                    self.producers, self._snapshot_offset = snapshot, offset
                    return
                self._report.note(f"producer snapshot {offset} is damaged and ignored")

    def load_epochs(self) -> None:
        """Load the epochs. If that fails, drop the snapshot, so that `replay_trusted` reads all
        batches: each contains its epoch.
        """
        try:
            self.epochs = LeaderEpochs(
                decode_leader_epochs(self._disk.read_bytes(self._path / LEADER_EPOCH_CHECKPOINT))
            )
        except (FileNotFoundError, FileFormatError) as error:
            if not isinstance(error, FileNotFoundError):
                self._report.note(f"{LEADER_EPOCH_CHECKPOINT} is rebuilt from the log: {error}")
            self.producers, self._snapshot_offset = Producers(), 0

    def complete_epochs(self, segments: list[Segment], log_start: Offset) -> None:
        """Add epochs from the batches that the checkpoint of a clean shutdown lacks. Raises
        LogDamaged, OSError.

        With metadata version 1, a stop during a sync could leave an outdated checkpoint. Such a
        replica would truncate committed records (I23).
        """
        filled = [segment for segment in segments if segment.size]
        try:
            # A log without records needs no epochs: its batches are below its start.
            if not filled or filled[-1].next_offset <= log_start:
                return
            if not self._lacks_epoch(filled[-1], filled[-1].next_offset - 1):
                return
            first = len(filled) - 1
            while first and self._lacks_epoch(filled[first], filled[first].base_offset):
                first -= 1
            due = filled[first].base_offset
            for header, _ in batches_from(
                self._disk, self._path, filled[first:], due, self._config
            ):
                if header.partition_leader_epoch > self.epochs.latest:
                    self.epochs.assign(header.partition_leader_epoch, min(due, header.base_offset))
                due = header.next_offset
        except BadBatch as bad:
            raise LogDamaged(f"{self._path} {bad}, although it was synced. {REMEDY}") from None
        self._report.note(f"{LEADER_EPOCH_CHECKPOINT} was outdated: completed from the log")

    def _lacks_epoch(self, segment: Segment, offset: Offset) -> bool:
        """Whether the checkpoint lacks the leader epoch of the batch with `offset`, or of the first
        one after it.
        """
        for header, _ in batches_from(self._disk, self._path, [segment], offset, self._config):
            return header.partition_leader_epoch > self.epochs.latest
        return False

    def replay(
        self, header: BatchHeader, view: memoryview, due: Offset
    ) -> AbortedTransaction | None:
        """Process the next batch. `due`: the offset after the batch before it. After a gap, the
        epoch begins at `due`, as on a follower. Returns the transaction that the batch aborts, if
        any.
        """
        if header.partition_leader_epoch > self.epochs.latest:
            self.epochs.assign(header.partition_leader_epoch, due)
        if header.base_offset < self._snapshot_offset:
            return None
        return replay_batch(self.producers, header, view)

    def replay_trusted(
        self, segments: list[Segment], end_offset: Offset, high_watermark: Offset
    ) -> None:
        """Process the batches of trusted segments from the snapshot to `end_offset`. Raises
        LogDamaged, OSError.
        """
        due = max(self._snapshot_offset, segments[0].base_offset)
        try:
            note_unreplicated(
                self._disk,
                self._path,
                segments,
                self._config,
                self.producers,
                self._snapshot_offset,
                high_watermark,
            )
            for header, view in batches_from(
                self._disk, self._path, segments, self._snapshot_offset, self._config
            ):
                if header.base_offset >= end_offset:
                    break
                self.replay(header, view, min(due, header.base_offset))
                due = header.next_offset
        except BadBatch as bad:
            raise LogDamaged(f"{self._path} {bad}, although it was synced. {REMEDY}") from None
