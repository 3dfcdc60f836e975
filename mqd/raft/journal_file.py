"""The file `journal` of one node: what was appended to it, and what of that is durable.

Entries wait in memory until the next flush appends and syncs all of them, or replaces the file as a
whole. Every method but `add` and `discard_pending` blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from errno import EIO
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.errors import PASSING_ERRNOS
from mqd.raft import formats
from mqd.raft.codec import Entry
from mqd.raft.formats import JournalHeader

if TYPE_CHECKING:
    from mqd.io.disk import Disk, File


class JournalFile:
    def __init__(self, disk: Disk, path: Path, file: File, end: int) -> None:
        """`file` is open at `path`, and its last complete entry ends at byte `end`."""
        self.path = path
        self._disk = disk
        self._file = file
        self._pending: list[bytes] = []
        self._end = end
        """The end of the file, with pending entries."""
        self._durable_end = end
        self.marked = False
        """Whether the last entry is a durable mark."""
        self.rewrite_due = False
        """Whether the next flush must replace the file as a whole."""

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def add(self, kind: int, index: int, term: int, payload: bytes) -> None:
        """Append an entry at the next flush."""
        encoded = formats.encode_entry(self._end, kind, index, term, self._durable_end, payload)
        self._pending.append(encoded)
        self._end += len(encoded)
        self.marked = kind == formats.KIND_DURABLE_MARK

    def discard_pending(self) -> None:
        """Replace the file at the next flush, and append nothing to it before."""
        self.rewrite_due = True
        self._pending.clear()

    def append_pending(self) -> None:
        """Raises OSError. If there is no space, the file is truncated to its durable part, and the
        call may be retried. After a failed fsync the file must be replaced (I15).
        """
        written = False
        try:
            self._file.append(self._pending)
            written = True
            self._file.sync()
        except OSError as error:
            if error.errno in PASSING_ERRNOS:
                self.rewrite_due = written
                self._truncate_to_durable()
            raise
        self._pending = []

    def _truncate_to_durable(self) -> None:
        """If this fails, a retry would append after an incomplete entry."""
        try:
            self._file.truncate(self._durable_end)
        except OSError as error:
            raise OSError(
                EIO,
                "no space, and an incomplete write cannot be truncated "
                f"({error.strerror or error})",
            ) from error

    def replace(self, header: JournalHeader, entries: Sequence[Entry]) -> None:
        """Raises OSError."""
        data = formats.encode_journal(header, entries)
        self._disk.write_atomic(self.path, data)
        self._file.close()
        self._file = self._disk.open(self.path)
        self._pending = []
        self._end = len(data)
        self.marked = True
        self.rewrite_due = False

    def on_flushed(self) -> None:
        self._durable_end = self._end

    def close(self) -> None:
        self._file.close()
