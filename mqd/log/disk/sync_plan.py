"""One sync of a log: the event loop plans it, a worker thread runs it.

Then `LogService.after_sync` processes the result on the event loop. A plan holds references to the
files that it syncs, so a segment that is deleted meanwhile stays open until the thread is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.errors import PASSING_ERRNOS, StorageError
from mqd.log.disk.segment_files import open_segment
from mqd.log.durability import NO_TRUNCATION
from mqd.log.partition_log import PartitionLog
from mqd.log.producer_state import ProducerSnapshot
from mqd.protocol.files import (
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    encode_leader_epochs,
    segment_file_name,
)
from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk, File
    from mqd.log.segment import Segment


@dataclass(slots=True)
class SyncPlan:
    """The work that makes one log durable up to `end_offset`."""

    log: PartitionLog
    end_offset: Offset
    truncations: int
    """The log's `truncations` when this was planned."""
    files: list[File] = field(default_factory=list)
    indexes: list[Path] = field(default_factory=list)
    """Small files beside the segments, synced if they exist."""
    writes: list[tuple[Path, bytes]] = field(default_factory=list)
    directories: list[Path] = field(default_factory=list)
    snapshots: list[tuple[Offset, ProducerSnapshot]] = field(default_factory=list)
    indexed: list[Segment] = field(default_factory=list)
    """Segments whose transaction index is among `writes`."""

    @property
    def includes_new_files(self) -> bool:
        """Whether the entries of the log's directory become durable, too."""
        return bool(self.directories)

    def add_transaction_index(self, segment: Segment) -> None:
        """Write the transaction index of a segment, if it has changed."""
        if segment.transaction_index is not None and segment.transaction_index.stale:
            self.indexed.append(segment)
            self.writes.append(
                (
                    self.log.path / segment_file_name(segment.base_offset, TXN_INDEX_SUFFIX),
                    segment.transaction_index.encode(),
                )
            )

    def run(self, disk: Disk) -> None:
        """Run in a worker thread. Raises OSError: it is unknown which data is durable. Raises
        StorageError: there was no space for the small files, and nothing else is wrong.
        """
        for file in self.files:
            file.sync()
        for path in self.indexes:
            with suppress(FileNotFoundError):
                disk.open(path).sync()
        for path, data in chain(self.writes, self._snapshots()):
            try:
                disk.write_atomic(path, data)
            except FileNotFoundError:
                pass  # the log was deleted or reset meanwhile; `after_sync` notices that, too
            except OSError as error:
                if error.errno not in PASSING_ERRNOS:
                    raise
                raise StorageError(
                    f"{path}: {error.strerror or error}", out_of_space=True
                ) from error
        for path in self.directories:
            with suppress(FileNotFoundError):
                disk.sync_directory(path)

    def _snapshots(self) -> Iterator[tuple[Path, bytes]]:
        """Snapshots with records that were truncated meanwhile are not written, because a start
        would trust them."""
        for offset, snapshot in self.snapshots:
            data = snapshot.encoded()  # slow: check for truncations after it
            if offset <= self.log.durability.lowest_truncation:
                yield self.log.path / segment_file_name(offset, SNAPSHOT_SUFFIX), data

    def outdated(self) -> list[Offset]:
        """Snapshots that may have been written although they are outdated. They must be removed."""
        return [
            offset for offset, _ in self.snapshots if offset > self.log.durability.lowest_truncation
        ]

    def give_back(self) -> None:
        """There was no space, or it was cancelled before it ran: the next plan includes this work
        again.
        """
        log, durability = self.log, self.log.durability
        log.epochs.dirty = True
        durability.has_new_files = durability.has_new_files or self.includes_new_files
        if self.truncations == log.truncations:
            durability.unwritten_snapshots[:0] = self.snapshots
        for segment in self.indexed:
            if segment.transaction_index is not None:
                segment.transaction_index.stale = True


def plan_sync(disk: Disk, log: PartitionLog, *, whole: bool) -> SyncPlan:
    """Sync everything that is written (`whole`), or only the full segments, as a roll requests.

    Includes epochs and producer snapshots: recovery needs them for records below the recovery
    point.
    """
    end = log.written_end_offset if whole else log.active.base_offset
    plan = SyncPlan(log, end, log.truncations)
    durability = log.durability
    durability.lowest_truncation = NO_TRUNCATION
    truncated_end = durability.unsynced_truncation
    if end > durability.synced_end_offset or (truncated_end is not None and end >= truncated_end):
        first_offset = durability.synced_end_offset - (1 if durability.write_was_undone else 0)
        for segment in log.segments_from(first_offset):
            if segment.base_offset >= end:
                break
            open_segment(disk, log.path, segment, log.config)
            assert segment.file is not None
            plan.files.append(segment.file)
            if segment is not log.active:
                for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                    plan.indexes.append(log.path / segment_file_name(segment.base_offset, suffix))
            # Also for the active segment: if nothing more is written to it, no later plan
            # includes it.
            plan.add_transaction_index(segment)
    if log.epochs.dirty:
        plan.writes.append(
            (log.path / LEADER_EPOCH_CHECKPOINT, encode_leader_epochs(log.epochs.entries()))
        )
        log.epochs.dirty = False
    plan.snapshots, durability.unwritten_snapshots = durability.unwritten_snapshots, []
    if durability.has_new_files:
        durability.has_new_files = False
        plan.indexes.append(log.path / PARTITION_METADATA)
        plan.directories = [log.path, log.directory]
    return plan
