"""A voter's memory: the log since its last snapshot, its term and its vote.

Everything a turn does to it happens in memory; `flush` is the only writer, so that one call in a
worker thread makes a whole turn durable, in the order quorum-state, snapshot, entries. A crash
inside leaves files that `open_journal` accepts and whose difference no other node knows, because
messages and acknowledgements leave after `flush` returned.

Invariants:
- entries[0] is the base (no command of its own); entries are contiguous from it on; base_index <=
  snapshot_index or there is no snapshot and the base is the empty beginning (1, term 0).
- durable_index <= last_index: entries up to it are on disk here. Nothing beyond it is applied,
  acknowledged or counted.
- A write or fsync that failed is never tried again: every later `flush` raises StorageError. A disk
  without space is no failure: the reserve is given up step by step; beyond it `flush` raises
  StorageError(out_of_space=True), the file ends where it was durable, memory keeps what is due, and
  `flush` may be called again. To all other nodes that is a slow disk.

Disk calls go through the Disk that the service passes in; formats.py knows the bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from errno import EIO
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from mqd import limits
from mqd.errors import NO_DESCRIPTORS, PASSING_ERRNOS, StorageError
from mqd.raft import formats
from mqd.raft.codec import NO_OP, Entry
from mqd.raft.formats import Damaged, JournalHeader, QuorumState, Snapshot
from mqd.raft.reserve import Reserve
from mqd.raft.voters import CONFIGURATION, Forced, VoterSet, decode_entry

if TYPE_CHECKING:
    from mqd.io.disk import Disk, File

logger = logging.getLogger(__name__)

STATE_NAME = "quorum-state"
SNAPSHOT_NAME = "snapshot"
JOURNAL_NAME = "journal"
RESERVE_NAME = "reserve"

_BEGINNING = Entry(NO_OP, 1, 0)
_WIPE = (
    "Repair the disk, or let this node start empty, one voter at a time and never from an old "
    "copy: then remove"
)
_RESTORE = "Repair the disk, or restore a backup: no other node has the data in"
"""The remedy for lost files.

A voter with an empty log recovers before it votes (voter_recovery.py). One with an old copy does
not know that it lacks entries, and could help to elect a leader that lacks committed ones. A quorum
of one has no others: without its log it would take every partition on its disks for a deleted one.
"""


@dataclass(frozen=True, slots=True)
class Compaction:
    """When the journal is cut off behind a snapshot of the metadata."""

    entries_max: int = limits.RAFT_JOURNAL_ENTRIES_MAX
    """Applied entries since the last snapshot that make the next one due."""
    bytes_max: int = limits.RAFT_JOURNAL_BYTES_MAX
    """Bytes of such entries that do so, too."""
    entries_kept: int = limits.RAFT_JOURNAL_ENTRIES_KEPT
    """Entries that stay behind a snapshot: a follower that lacks no more than these needs
    no snapshot.
    """


class Source:
    """The bytes of one snapshot, read in parts: of a file, which stays this snapshot when a
    newer one takes its name, or in memory.
    """

    __slots__ = ("_bytes", "_file", "size")

    def __init__(self, found: File | bytes) -> None:
        self._bytes = found if isinstance(found, bytes) else b""
        self._file = None if isinstance(found, bytes) else found
        self.size = len(self._bytes) if self._file is None else self._file.size()

    def read_at(self, position: int, size: int) -> bytes:
        """Raises StorageError."""
        if self._file is None:
            return self._bytes[position : position + size]
        try:
            return self._file.read_at(position, size)
        except OSError as error:
            raise StorageError(f"{self._file.path}: {error}") from error


class Journal:
    """See the head of the file. Made by `open_journal`."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        state: QuorumState,
        *,
        file: File,
        base: Entry,
        entries: list[Entry],
        snapshot: Snapshot | None,
        end: int,
        reserve: Reserve | None = None,
    ) -> None:
        self._disk = disk
        self._reserve = reserve
        self._reserve_due = False
        self._directory = directory
        self._file = file
        self._state = state
        self._state_dirty = False
        self.entries: list[Entry] = [base, *entries]
        """Base, then the log.

        Read by index through the methods below; changed by this class only.
        """
        self._voter_sets: list[tuple[int, VoterSet]] = []
        """Of the snapshot and of configuration entries behind it: (index, set), ascending."""
        if snapshot is not None and snapshot.voters is not None:
            self._voter_sets.append((snapshot.index, snapshot.voters))
        for entry in entries:
            self._note_voters(entry.index, entry.command)
        self._boot_snapshot = snapshot
        self.snapshot_index = snapshot.index if snapshot is not None else base.index
        self.snapshot_term = snapshot.term if snapshot is not None else base.term
        self._snapshot_pending: Snapshot | None = None
        """Encoded by `flush`, off the event loop."""
        self._rewrite = False
        self._records: list[bytes] = []
        self._end = end
        self._durable_end = end
        self.durable_index = self.last_index
        self._marked = False
        self._quiet = True
        self._failure: str | None = None
        self.flushes = 0

    # -- who and what

    @property
    def node_uuid(self) -> UUID:
        return self._state.node_uuid

    @property
    def term(self) -> int:
        """The highest term that this node knows: never behind its own log."""
        return max(self._state.term, self.entries[-1].term)

    @property
    def vote(self) -> int | None:
        """The node that this one voted for in `term`."""
        return self._state.vote if self._state.term == self.term else None

    @property
    def formed(self) -> bool:
        """False: this node starts from nothing, see elections.py."""
        return self._state.formed

    @property
    def metadata_version(self) -> int | None:
        """The highest finalized one that this node has ever applied (versions.py)."""
        return self._state.metadata_version

    @property
    def voter_set(self) -> VoterSet | None:
        """The latest in the log, committed or not; None where this node has neither one nor
        answered anybody (voters.py).
        """
        return self.voter_set_at(self.last_index)

    def voter_set_at(self, index: int) -> VoterSet | None:
        """As far as entry `index`, which is not before the snapshot."""
        at, found = next(
            ((at, voter_set) for at, voter_set in reversed(self._voter_sets) if at <= index),
            (0, None),
        )
        forced = self._state.forced
        if forced is not None and (found is None or self.term_at(at) <= forced.term):
            return forced.voter_set
        if found is None and self._state.voters is not None:
            found = VoterSet(0, self._state.voters)
        return found

    @property
    def records_voters(self) -> bool:
        """Whether the set in force is in the log, and not only in the state of this node."""
        return bool(self._voter_sets) and self._voter_sets[-1][1] == self.voter_set

    def _note_voters(self, index: int, command: bytes) -> None:
        if command[:1] == CONFIGURATION and (
            not self._voter_sets or index > self._voter_sets[-1][0]
        ):
            self._voter_sets.append((index, decode_entry(command)))

    @property
    def base_index(self) -> int:
        return self.entries[0].index

    @property
    def last_index(self) -> int:
        return self.entries[-1].index

    @property
    def is_empty(self) -> bool:
        """No entry behind the empty beginning."""
        return self.last_index <= _BEGINNING.index

    @property
    def dirty(self) -> bool:
        """Whether a flush has something to do."""
        return (
            bool(self._records)
            or self._state_dirty
            or self._rewrite
            or self._snapshot_pending is not None
            or self._reserve_due
        )

    @property
    def short_of_space(self) -> bool:
        """Whether some of the reserve is used up: nothing that can wait should be written."""
        return self._reserve is not None and self._reserve.short

    def has_room_for(self, snapshot_bytes: int) -> bool:
        """Whether a snapshot, and a journal of what it leaves, can be written without the
        reserve.
        """
        try:
            free = self._disk.free_bytes(self._directory)
        except OSError:
            return False
        return (
            not self.short_of_space and free >= snapshot_bytes + limits.RAFT_JOURNAL_BYTES_MAX // 4
        )

    def term_at(self, index: int) -> int:
        """Term of an entry from the base to the last."""
        assert self.base_index <= index <= self.last_index, (
            self.base_index,
            index,
            self.last_index,
        )
        return self.entries[index - self.base_index].term

    def holds(self, index: int, term: int) -> bool:
        """Whether entry `index` is here, and of `term`."""
        return self.base_index <= index <= self.last_index and self.term_at(index) == term

    def batch(self, first: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries from `first` on, about `bytes_max` bytes of commands, at least one if
        there is one.
        """
        assert first > self.base_index, (first, self.base_index)
        size = 0
        last = start = first - self.base_index
        while (
            last < len(self.entries)
            and (size := size + len(self.entries[last].command)) <= bytes_max
        ):
            last += 1
        return tuple(self.entries[start : max(last, start + 1)])

    # -- changes, in memory

    def set_term(self, term: int, vote: int | None) -> None:
        assert term >= self.term, (term, self.term)
        self._state = replace(self._state, term=term, vote=vote)
        self._state_dirty = True

    def set_formed(self) -> None:
        """This voter is intact: it keeps every vote and entry from now on (voter_recovery.py)."""
        self._state = replace(self._state, formed=True)
        self._state_dirty = True

    def set_metadata_version(self, version: int) -> None:
        """It never falls: entries of earlier commands are applied again after a restart."""
        if version > (self._state.metadata_version or 0):
            self._state = replace(self._state, metadata_version=version)
            self._state_dirty = True

    def set_first_voters(self, voters: frozenset[int]) -> None:
        """The set of epoch 0, for good."""
        assert self._state.voters is None, self._state.voters
        self._state = replace(self._state, voters=voters)
        self._state_dirty = True

    def force_voters(self, voters: frozenset[int]) -> VoterSet:
        """An operator puts this set in force (voters.py)."""
        before = self.voter_set
        forced = Forced(VoterSet(before.epoch + 1 if before is not None else 1, voters), self.term)
        self._state = replace(self._state, forced=forced, formed=True)
        self._state_dirty = True
        return forced.voter_set

    def append(self, command: bytes, index: int, term: int) -> None:
        assert index == self.last_index + 1, (index, self.last_index)
        assert term >= self.entries[-1].term, (term, self.entries[-1].term)
        self.entries.append(Entry(command, index, term))
        self._note_voters(index, command)
        self._quiet = False
        if not self._rewrite:
            self._record(formats.KIND_ENTRY, index, term, command)

    def truncate_from(self, index: int) -> None:
        """Remove the entries from `index` on: they contradict the leader, so the leader's follow in
        the same turn.

        On disk they stay until those replace them, which is as good: they were never committed.
        """
        assert self.snapshot_index < index <= self.last_index, (
            self.snapshot_index,
            index,
            self.last_index,
        )
        del self.entries[index - self.base_index :]
        while self._voter_sets and self._voter_sets[-1][0] >= index:
            self._voter_sets.pop()
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
        snapshot = Snapshot(
            self._state.cluster_id,
            index,
            self.term_at(index),
            state,
            self._voters_of_snapshot(index),
        )
        self._snapshot_pending = snapshot
        self.snapshot_index, self.snapshot_term = snapshot.index, snapshot.term
        self._rewrite = True
        self._records.clear()
        kept = size = 0
        for entry in reversed(self.entries[1 : index - self.base_index + 1]):
            size += len(entry.command)
            if kept == entries_kept or size > limits.RAFT_JOURNAL_BYTES_MAX // 4:
                break
            kept += 1
        base_index = index - kept
        base = Entry(NO_OP, base_index, self.term_at(base_index))
        self.entries[: base_index - self.base_index + 1] = [base]

    def _voters_of_snapshot(self, index: int) -> VoterSet | None:
        """None before any is in the log: the previous release cannot read such a snapshot,
        and may have to.
        """
        voter_set = self.voter_set_at(index)
        return (
            voter_set
            if self._voter_sets and voter_set is not None and voter_set.epoch > 0
            else None
        )

    def install(self, snapshot: Snapshot) -> None:
        """A leader's snapshot replaces everything here."""
        assert snapshot.index > self.snapshot_index, (snapshot.index, self.snapshot_index)
        self._snapshot_pending = snapshot
        self.restart_at(snapshot)

    def restart_at(self, snapshot: Snapshot) -> None:
        """Remove every entry; the log continues behind a snapshot that is already on disk."""
        self.entries = [Entry(NO_OP, snapshot.index, snapshot.term)]
        self._voter_sets = (
            [(snapshot.index, snapshot.voters)] if snapshot.voters is not None else []
        )
        self.snapshot_index, self.snapshot_term = snapshot.index, snapshot.term
        self.durable_index = snapshot.index
        self._rewrite = True
        self._records.clear()

    def write_anew(self) -> None:
        """What was read may be in the page cache only: a process was killed before its fsync, or an
        fsync failed, after which the cache calls pages clean that no disk has (Rebello et al., ATC
        2020). Nothing of it counts as durable before it is written again.
        """
        self._rewrite = True
        self.durable_index = self.snapshot_index

    def _record(self, kind: int, index: int, term: int, payload: bytes) -> None:
        record = formats.encode_record(self._end, kind, index, term, self._durable_end, payload)
        self._records.append(record)
        self._end += len(record)
        self._marked = kind == formats.KIND_MARK

    def on_timer(self) -> None:
        """About once a second: when nothing was appended since the last time, note that all
        of it is durable.
        """
        if self._reserve is not None and self._reserve.may_grow():
            self._reserve_due = True
        if self._quiet and not self.short_of_space:
            self.mark()
        self._quiet = True

    def mark(self) -> None:
        """Let the next flush note that what is on disk now is durable: later damage to it
        is distinct from a torn tail.
        """
        if not self._marked and not self.dirty:
            self._record(formats.KIND_MARK, self.last_index, 0, b"")

    # -- the disk

    def flush(self) -> None:
        """Make everything durable. Blocks: call it in a worker thread, and change nothing
        meanwhile.

        Raises StorageError: with `out_of_space` when the disk and the reserve are full, or a file
        cannot be opened for want of descriptors, and calling again may succeed; else now and for
        ever after.
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
            path = self._directory / JOURNAL_NAME
            if self._rewrite:
                self._replace_file(path)
                self._rewrite = False
            elif self._records:
                self._append_records()
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
        self._durable_end = self._end
        self.durable_index = self.last_index

    def _append_records(self) -> None:
        """Where there is no space, the file is cut back to what is durable; what a failed
        fsync left is replaced as a whole.
        """
        written = False
        try:
            self._file.append(self._records)
            written = True
            self._file.sync()
        except OSError as error:
            if error.errno in PASSING_ERRNOS:
                self._rewrite = written
                self._cut_back()
            raise
        self._records = []

    def _cut_back(self) -> None:
        """Where that fails, another try would append behind what is half written."""
        try:
            self._file.truncate(self._durable_end)
        except OSError as error:
            raise OSError(
                EIO,
                "no space, and an incomplete write cannot be truncated "
                f"({error.strerror or error})",
            ) from error

    def _replace_file(self, path: Path) -> None:
        state, base = self._state, self.entries[0]
        header = JournalHeader(
            state.cluster_id, state.node_id, state.node_uuid, base.index, base.term
        )
        data = formats.encode_journal(header, self.entries[1:])
        self._disk.write_atomic(path, data)
        self._file.close()
        self._file = self._disk.open(path)
        self._records = []
        self._end = len(data)
        self._marked = True

    def take_boot_snapshot(self) -> Snapshot | None:
        """The snapshot found at start, once; it is not kept in memory."""
        snapshot, self._boot_snapshot = self._boot_snapshot, None
        return snapshot

    def snapshot_source(self) -> Source:
        """The newest snapshot as it is on disk or about to be, for a follower.

        Raises StorageError.
        """
        if self._snapshot_pending is not None:
            return Source(formats.encode_snapshot(self._snapshot_pending))
        path = self._directory / SNAPSHOT_NAME
        try:
            return Source(self._disk.open(path))
        except OSError as error:
            raise StorageError(f"{path}: {error}") from error

    def close(self) -> None:
        """Close the file; whatever was not flushed is lost, as in a crash. Quiet when closed."""
        self._failure = self._failure or f"{self._directory}: the journal is closed"
        self._file.close()


# -- start


def journal_exists(disk: Disk, directory: Path) -> bool:
    """Whether a voter has ever finished formatting `directory`, or anything of what it
    wrote there is left. Changes nothing. OSError.
    """
    if any(disk.exists(directory / name) for name in (STATE_NAME, SNAPSHOT_NAME)):
        return True
    return disk.exists(directory / JOURNAL_NAME) and not _is_blank(
        disk.read_bytes(directory / JOURNAL_NAME)
    )


def open_journal(
    disk: Disk,
    directory: Path,
    *,
    cluster_id: str,
    node_id: int,
    new_uuid: Callable[[], UUID],
    sole_voter: bool = False,
    reserve_bytes: int = 0,
) -> Journal:
    """Read a voter's directory, or format an empty one. Blocks (fsync). `reserve_bytes`: what to
    hold back for when the disk is full.

    Raises StorageError when the files are another node's, damaged, or do not fit together: the
    message names the file and what to do. Repairs what a crash leaves: a torn tail, a snapshot
    newer than the journal beside it.
    """
    remedy = f"{_RESTORE if sole_voter else _WIPE} {directory}"
    try:
        disk.make_directory(directory)
        if not disk.exists(directory / STATE_NAME):
            _format(
                disk,
                directory,
                cluster_id=cluster_id,
                node_id=node_id,
                node_uuid=new_uuid(),
                remedy=remedy,
            )
        reserve = Reserve(disk, directory / RESERVE_NAME, reserve_bytes) if reserve_bytes else None
        return _open(
            disk, directory, cluster_id=cluster_id, node_id=node_id, remedy=remedy, reserve=reserve
        )
    except OSError as error:
        raise StorageError(f"{directory}: {error}") from error


def force_voters(
    data_directory: Path, *, cluster_id: str, node_id: int, voters: frozenset[int]
) -> VoterSet:
    """Put a set in force on a node that is stopped; returns it.

    Raises StorageError: see `open_journal`, or the node runs.
    """
    from mqd.io.disk import OsDisk

    disk, directory = OsDisk(), data_directory / "metadata"
    if not journal_exists(disk, directory):
        raise StorageError(
            f"{directory} has no metadata: specify the directory of a former voter with --data"
        )
    try:
        lock = disk.lock(data_directory / ".lock")
    except BlockingIOError:
        raise StorageError(
            f"another mqd process uses {data_directory}: stop all nodes first"
        ) from None
    journal = open_journal(disk, directory, cluster_id=cluster_id, node_id=node_id, new_uuid=uuid4)
    forced = journal.force_voters(voters)
    journal.flush()
    journal.close()
    lock.close()
    return forced


def _format(
    disk: Disk, directory: Path, *, cluster_id: str, node_id: int, node_uuid: UUID, remedy: str
) -> None:
    """quorum-state comes last: it shows that the rest was written."""
    path = directory / JOURNAL_NAME
    if disk.exists(directory / SNAPSHOT_NAME) or (
        disk.exists(path) and not _is_blank(disk.read_bytes(path))
    ):
        raise StorageError(
            f"{directory / STATE_NAME} is missing beside a log that this node has written: "
            "its term and vote are lost, and"
            f" voting again could elect two leaders. {remedy}"
        )
    header = JournalHeader(cluster_id, node_id, node_uuid, _BEGINNING.index, _BEGINNING.term)
    disk.write_atomic(path, formats.encode_journal(header, []))
    disk.write_atomic(
        directory / STATE_NAME,
        formats.encode_state(QuorumState(cluster_id, node_id, node_uuid, 0, None, formed=False)),
    )


def _is_blank(data: bytes) -> bool:
    try:
        header, start = formats.decode_header(data)
        return (
            header.base_index == _BEGINNING.index
            and not formats.scan_records(data, start, _BEGINNING).entries
        )
    except Damaged:
        return False


def _open(
    disk: Disk,
    directory: Path,
    *,
    cluster_id: str,
    node_id: int,
    remedy: str,
    reserve: Reserve | None,
) -> Journal:
    state_path, journal_path, snapshot_path = (
        directory / name for name in (STATE_NAME, JOURNAL_NAME, SNAPSHOT_NAME)
    )
    path = state_path
    try:
        state = formats.decode_state(disk.read_bytes(path))
        _check_owner(path, state.cluster_id, state.node_id, cluster_id=cluster_id, node_id=node_id)
        path = snapshot_path
        snapshot = formats.decode_snapshot(disk.read_bytes(path)) if disk.exists(path) else None
        if snapshot is not None and snapshot.cluster_id != cluster_id:
            raise StorageError(
                f"{path} belongs to cluster {snapshot.cluster_id}, this is {cluster_id}: use a "
                "separate directory for each cluster"
            )
        path = journal_path
        if not disk.exists(path):
            raise StorageError(
                f"{path} is missing, though {state_path} shows that this node was formatted: "
                "its votes and entries are"
                f" lost. {remedy}"
            )
        data = disk.read_bytes(path)
        header, start = formats.decode_header(data)
        _check_owner(
            path, header.cluster_id, header.node_id, cluster_id=cluster_id, node_id=node_id
        )
        if header.node_uuid != state.node_uuid:
            raise StorageError(
                f"{path} was written by another instance of node {node_id} than {state_path}. "
                f"{remedy}"
            )
        base = Entry(NO_OP, header.base_index, header.base_term)
        scan = formats.scan_records(data, start, base)
    except Damaged as damage:
        raise StorageError(f"{path} is corrupt: {damage}. {remedy}") from damage
    if base.index > (snapshot.index if snapshot is not None else _BEGINNING.index):
        found = (
            f"{snapshot_path} ends at {snapshot.index}"
            if snapshot is not None
            else f"{snapshot_path} is missing"
        )
        raise StorageError(
            f"{journal_path} starts after entry {base.index}, but {found}: entries are lost. "
            f"{remedy}"
        )
    file = disk.open(journal_path)
    if scan.end < len(data):
        cut, last = len(data) - scan.end, base.index + len(scan.entries)
        logger.warning(
            "%s: truncated %d bytes of an incomplete entry after entry %d", journal_path, cut, last
        )
        file.truncate(scan.end)
        file.sync()
    journal = Journal(
        disk,
        directory,
        state,
        file=file,
        base=base,
        entries=scan.entries,
        snapshot=snapshot,
        end=scan.end,
        reserve=reserve,
    )
    if snapshot is not None and not journal.holds(snapshot.index, snapshot.term):
        # A crash came between a leader's snapshot and the journal that goes with it: the journal's
        # tail was contradicted or overtaken. One that holds the snapshot's last entry keeps what
        # follows it instead.
        journal.restart_at(snapshot)
    elif not scan.proven:
        journal.write_anew()
    return journal


def _check_owner(
    path: Path, found_cluster: str, found_node: int, *, cluster_id: str, node_id: int
) -> None:
    if (found_cluster, found_node) != (cluster_id, node_id):
        raise StorageError(
            f"{path} belongs to node {found_node} of cluster {found_cluster}, this is node "
            f"{node_id} of cluster {cluster_id}:"
            " give each node its own data directory, or correct the peers file"
        )
