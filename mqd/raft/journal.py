"""The journal of one node: its persistent state on disk.

A turn changes only memory. `flush` is the only writer, so one call in a worker thread makes a whole
turn durable, in the order quorum-state, snapshot, entries. A crash during a flush leaves files that
`open_journal` accepts. No other node notices the difference, because messages and acknowledgements
are sent after `flush` has returned.

Invariants:
- durable_index <= last_index: entries up to it are on this disk. No later entry is applied,
  acknowledged or counted (I11).
- A failed write or fsync is never retried: every later `flush` raises StorageError (I15). A full
  disk is no failure: the reserve is released step by step. When it is used up, `flush` raises
  StorageError(out_of_space=True). The file then ends at its durable position, memory keeps the
  pending data, and `flush` may be called again. For all other nodes, this is a slow disk.

The disk is a parameter. formats.py has the encoding, journal_start.py reads the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mqd import limits
from mqd.errors import NO_DESCRIPTORS, PASSING_ERRNOS, StorageError
from mqd.raft import formats
from mqd.raft.codec import Entry
from mqd.raft.formats import JournalHeader, QuorumState, Snapshot
from mqd.raft.journal_file import JournalFile
from mqd.raft.persistent_state import PersistentState
from mqd.raft.reserve import Reserve
from mqd.raft.snapshot_source import SnapshotSource

if TYPE_CHECKING:
    from mqd.io.disk import Disk

STATE_NAME = "quorum-state"
SNAPSHOT_NAME = "snapshot"
JOURNAL_NAME = "journal"
RESERVE_NAME = "reserve"


class Journal(PersistentState):
    """See the head of the file. Made by `open_journal`."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        state: QuorumState,
        *,
        file: JournalFile,
        base: Entry,
        entries: list[Entry],
        snapshot: Snapshot | None,
        reserve: Reserve | None = None,
    ) -> None:
        super().__init__(state, base, entries, snapshot)
        self._disk = disk
        self._directory = directory
        self._file = file
        self._reserve = reserve
        self._reserve_due = False
        self._boot_snapshot = snapshot
        self._snapshot_pending: Snapshot | None = None
        """Encoded by `flush`, off the event loop."""
        self.durable_index = self.last_index
        self._quiet = True
        self._failure: str | None = None
        self.flushes = 0

    @property
    def dirty(self) -> bool:
        """Whether a flush has something to write."""
        return (
            self._file.has_pending
            or self._state_dirty
            or self._file.rewrite_due
            or self._snapshot_pending is not None
            or self._reserve_due
        )

    @property
    def short_of_space(self) -> bool:
        """Whether a part of the reserve is in use: postpone everything that can wait."""
        return self._reserve is not None and self._reserve.short

    def has_room_for(self, snapshot_bytes: int) -> bool:
        """Whether a snapshot, and a journal with the remaining entries, can be written without the
        reserve.
        """
        try:
            free = self._disk.free_bytes(self._directory)
        except OSError:
            return False
        return (
            not self.short_of_space and free >= snapshot_bytes + limits.RAFT_JOURNAL_BYTES_MAX // 4
        )

    # -- changes, in memory

    def append(self, command: bytes, index: int, term: int) -> None:
        super().append(command, index, term)
        self._quiet = False
        if not self._file.rewrite_due:
            self._file.add(formats.KIND_LOG_ENTRY, index, term, command)

    def truncate_from(self, index: int) -> None:
        """Remove the entries from `index` on: they contradict the leader's entries, which are
        appended in the same turn.

        On disk they stay until then, which is safe because they were never committed.
        """
        super().truncate_from(index)
        self.durable_index = min(self.durable_index, index - 1)

    def compact(
        self, index: int, state: bytes, *, entries_kept: int = limits.RAFT_JOURNAL_ENTRIES_KEPT
    ) -> None:
        """The machine's state after applied entry `index` is `state`: keep it, and only the
        last entries before it.
        """
        assert self.snapshot_index <= index <= self.durable_index, (
            self.snapshot_index,
            index,
            self.durable_index,
        )
        voters = self._voters_of_snapshot(index)
        self._snapshot_pending = Snapshot(
            self._state.cluster_id, index, self.term_at(index), state, voters
        )
        self._file.discard_pending()
        self.cut_before(index, entries_kept=entries_kept)

    def install(self, snapshot: Snapshot) -> None:
        """Replace everything with a leader's snapshot."""
        assert snapshot.index > self.snapshot_index, (snapshot.index, self.snapshot_index)
        self._snapshot_pending = snapshot
        self.restart_behind(snapshot)

    def restart_behind(self, snapshot: Snapshot) -> None:
        """Remove every entry; the log continues after a snapshot that is already on disk."""
        self.begin_behind(snapshot.index, snapshot.term, snapshot.voters)
        self.durable_index = snapshot.index
        self._file.discard_pending()

    def distrust_page_cache(self) -> None:
        """The data that was read may be only in the page cache: a process was killed before its
        fsync, or an fsync failed. After a failed fsync, unwritten pages count as clean (Rebello et
        al., ATC 2020). So no data counts as durable before it is written again (I30).
        """
        self._file.rewrite_due = True
        self.durable_index = self.snapshot_index

    def on_timer(self) -> None:
        """Call it about once a second: if nothing was appended since the last call, it records that
        all data is durable.
        """
        if self._reserve is not None and self._reserve.may_grow():
            self._reserve_due = True
        if self._quiet and not self.short_of_space:
            self.mark()
        self._quiet = True

    def mark(self) -> None:
        """Let the next flush record that all data on disk is durable. Later damage to it is then
        distinct from a torn tail.
        """
        if not self._file.marked and not self.dirty:
            self._file.add(formats.KIND_DURABLE_MARK, self.last_index, 0, b"")

    # -- the disk

    def flush(self) -> None:
        """Make everything durable. Blocks: call it in a worker thread, and change nothing
        meanwhile.

        Raises StorageError. With `out_of_space`, the disk and the reserve are full, or no
        descriptor is free, and the call may be retried. Otherwise every later call fails, too.
        """
        if self._failure is not None:
            raise StorageError(self._failure)
        if self._reserve_due and self._reserve is not None:
            self._reserve_due = False
            self._reserve.grow()
        while True:
            try:
                self._flush_once()
                return
            except StorageError as error:
                no_space = (
                    error.out_of_space
                    and getattr(error.__cause__, "errno", 0) not in NO_DESCRIPTORS
                )
                if not no_space or self._reserve is None or not self._reserve.release():
                    raise

    def _flush_once(self) -> None:
        path = self._directory
        try:
            if self._state_dirty:
                path = self._directory / STATE_NAME
                self._disk.write_atomic(path, formats.encode_state(self._state))
                self._state_dirty = False
            if self._snapshot_pending is not None:
                path = self._directory / SNAPSHOT_NAME
                self._disk.write_atomic(path, formats.encode_snapshot(self._snapshot_pending))
                self._snapshot_pending = None
            path = self._file.path
            if self._file.rewrite_due:
                self._file.replace(self._header(), self.entries[1:])
            elif self._file.has_pending:
                self._file.append_pending()
        except OSError as error:
            if error.errno in PASSING_ERRNOS:
                raise StorageError(
                    f"{path}: {error.strerror or error}", out_of_space=True
                ) from error
            self._failure = (
                f"{path}: {error}; this node stops, because its quorum state is no longer reliable"
            )
            raise StorageError(self._failure) from error
        self.flushes += 1
        self._file.on_flushed()
        self.durable_index = self.last_index

    def _header(self) -> JournalHeader:
        state, base = self._state, self.entries[0]
        return JournalHeader(
            state.cluster_id, state.node_id, state.node_uuid, base.index, base.term
        )

    def take_boot_snapshot(self) -> Snapshot | None:
        """The snapshot found at start, returned once; it is not kept in memory."""
        snapshot, self._boot_snapshot = self._boot_snapshot, None
        return snapshot

    def snapshot_source(self) -> SnapshotSource:
        """The newest snapshot as it is on disk or about to be, for a follower.

        Raises StorageError.
        """
        if self._snapshot_pending is not None:
            return SnapshotSource(formats.encode_snapshot(self._snapshot_pending))
        path = self._directory / SNAPSHOT_NAME
        try:
            return SnapshotSource(self._disk.open(path))
        except OSError as error:
            raise StorageError(f"{path}: {error}") from error

    def close(self) -> None:
        """Close the file; unflushed data is lost, as in a crash. May be called twice."""
        self._failure = self._failure or f"{self._directory}: the journal is closed"
        self._file.close()
