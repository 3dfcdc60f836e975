"""Which part of a log survives a power cut, and what the next start may trust. A core.

The log is durable from its start up to `end_offset`: an fdatasync covers every record there.
Recovery trusts only the segments below the recovery point on disk.

Invariant (docs/INVARIANTS.md): synced_end <= end <= written end of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.log.producer_state import ProducerSnapshot

NO_TRUNCATION: Final[Offset] = 2**63 - 1
"""Beyond every offset."""
_ALL_TRUNCATED: Final[Offset] = -1
"""Below every offset."""


class Durability:
    """See the head of this file. `end_offset`: the log was loaded, and is durable up to there."""

    __slots__ = (
        "directory_is_durable",
        "end_offset",
        "has_new_files",
        "lowest_truncation",
        "recovery_point",
        "synced_end_offset",
        "unsynced_reset",
        "unsynced_truncation",
        "unwritten_snapshots",
        "write_was_undone",
    )

    def __init__(self, end_offset: Offset) -> None:
        self.end_offset: Offset = end_offset
        self.synced_end_offset: Offset = end_offset
        """The offset for the next recovery point. Below `end_offset` if the log start has moved
        past records that were never synced. A power cut may tear their segments, so recovery must
        not trust them."""
        self.recovery_point: Offset = 0
        """The largest offset that the recovery point on disk may have: recovery trusts the segments
        before it. It is above `synced_end_offset` after a truncation, until the checkpoint is
        written again."""
        self.unsynced_truncation: Offset | None = None
        """The old end of a truncated log, until the truncation is durable."""
        self.unsynced_reset = False
        """Whether the log was reset, and its new files are not durable. A power cut could leave a
        directory that is no log. Until then the replica must not acknowledge any record."""
        self.lowest_truncation: Offset = NO_TRUNCATION
        """The lowest end of a truncation since the last sync was planned. Producer snapshots above
        it are outdated.
        """
        self.write_was_undone = False
        """Whether a failed write was undone just after the durable end. The next sync includes
        that file, because a power cut could restore those bytes."""
        self.has_new_files = False
        """Whether the log's directory has entries that are not durable."""
        self.directory_is_durable = True
        """False until the first sync after the creation or a reset of the log. A power cut could
        leave a directory without the topic id, or none. Until then the checkpoint has no high
        watermark of this log: with one, the next start would miss acknowledged records."""
        self.unwritten_snapshots: list[tuple[Offset, ProducerSnapshot]] = []
        """Producer snapshots that the next sync writes, by their offset."""

    @property
    def may_roll(self) -> bool:
        """Whether a new segment may begin. A power cut may undo a truncation, and the new segment
        would then begin inside the old records."""
        return self.unsynced_truncation is None and not self.recovery_point_is_too_high

    @property
    def recovery_point_is_too_high(self) -> bool:
        """Whether the checkpoint on disk may name an offset that is no longer durable."""
        return self.recovery_point > self.synced_end_offset

    def on_synced(self, end_offset: Offset, written_end_offset: Offset) -> bool:
        """An fdatasync that began at the written end `end_offset` has returned. Returns whether
        the durable end moved. The log may have been truncated since."""
        if self.unsynced_truncation is not None and end_offset >= self.unsynced_truncation:
            self.unsynced_truncation = None
        end_offset = min(end_offset, written_end_offset)
        self.synced_end_offset = max(self.synced_end_offset, end_offset)
        if end_offset <= self.end_offset:
            return False
        self.end_offset = end_offset
        self.write_was_undone = False
        return True

    def on_truncated(self, end_offset: Offset) -> None:
        """The log ends at `end_offset` now."""
        self.has_new_files = True  # the removal of files must be durable, too
        self.unwritten_snapshots = [one for one in self.unwritten_snapshots if one[0] <= end_offset]
        self.lowest_truncation = min(self.lowest_truncation, end_offset)
        self.end_offset = min(self.end_offset, end_offset)
        self.synced_end_offset = min(self.synced_end_offset, end_offset)

    def on_reset(self, base_offset: Offset) -> None:
        """The log is empty and begins at `base_offset`, in new files."""
        self.end_offset = self.synced_end_offset = base_offset
        self.unsynced_truncation = None  # the truncated files are gone
        self.unsynced_reset = True
        self.directory_is_durable = False
        self.lowest_truncation = _ALL_TRUNCATED
        self.unwritten_snapshots.clear()

    def on_directory_synced(self) -> None:
        """A sync of the log's directory has returned. The log was not reset since it began."""
        self.unsynced_reset = False
        self.directory_is_durable = True

    def on_deleted(self) -> None:
        """A sync that is under way writes no producer snapshots for a deleted log."""
        self.lowest_truncation = _ALL_TRUNCATED

    def on_log_start_moved(self, log_start_offset: Offset) -> None:
        """Nothing below the log start needs to be durable."""
        self.end_offset = max(self.end_offset, log_start_offset)

    def on_closed(self, end_offset: Offset) -> None:
        """A clean shutdown has synced everything."""
        self.end_offset = self.synced_end_offset = end_offset
        self.directory_is_durable = True

    def on_loaded(self, end_offset: Offset, recovery_point: Offset) -> None:
        """Recovery could make the log durable only up to `end_offset`."""
        self.end_offset = self.synced_end_offset = min(self.end_offset, end_offset)
        self.recovery_point = recovery_point
