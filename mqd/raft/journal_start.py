"""Opens the journal of a node: reads its files, or formats an empty directory.

It repairs the effects of a crash: a torn tail, and a snapshot newer than the journal. It refuses
files that are damaged, do not fit together, or belong to another node (I16).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from mqd.errors import StorageError
from mqd.raft import formats
from mqd.raft.codec import NO_OP, Entry
from mqd.raft.formats import Damaged, JournalHeader, QuorumState
from mqd.raft.journal import JOURNAL_NAME, RESERVE_NAME, SNAPSHOT_NAME, STATE_NAME, Journal
from mqd.raft.journal_file import JournalFile
from mqd.raft.raft_log import BEGINNING
from mqd.raft.reserve import Reserve
from mqd.raft.voters import VoterSet

if TYPE_CHECKING:
    from mqd.io.disk import Disk

logger = logging.getLogger(__name__)

_WIPE = (
    "Repair the disk, or let this node start empty, one voter at a time and never from an old "
    "copy: then remove"
)
_RESTORE = "Repair the disk, or restore a backup: no other node has the data in"
"""The remedy for lost files.

A voter with an empty log recovers before it votes (voter_recovery.py). A voter with an old copy
does not know that it lacks entries, and could help to elect a leader without committed entries. A
quorum of one has no other voters: without its log it would delete every partition on its disks as
unknown.
"""


def journal_exists(disk: Disk, directory: Path) -> bool:
    """Whether a voter has ever completed the formatting of `directory`, or any file of a voter is
    left there. Changes nothing. Raises OSError.
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
    """Read a voter's directory, or format an empty one. Blocks (fsync). `reserve_bytes`: disk space
    to reserve for a full disk.

    Raises StorageError if the files belong to another node, are damaged, or do not fit together.
    The message has the file and the remedy. Repairs the effects of a crash: a torn tail, and a
    snapshot newer than the journal.
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
    """Writes quorum-state last: it shows that the other files are complete."""
    path = directory / JOURNAL_NAME
    if disk.exists(directory / SNAPSHOT_NAME) or (
        disk.exists(path) and not _is_blank(disk.read_bytes(path))
    ):
        raise StorageError(
            f"{directory / STATE_NAME} is missing beside a log that this node has written: "
            "its term and vote are lost, and"
            f" voting again could elect two leaders. {remedy}"
        )
    header = JournalHeader(cluster_id, node_id, node_uuid, BEGINNING.index, BEGINNING.term)
    disk.write_atomic(path, formats.encode_journal(header, []))
    disk.write_atomic(
        directory / STATE_NAME,
        formats.encode_state(QuorumState(cluster_id, node_id, node_uuid, 0, None, intact=False)),
    )


def _is_blank(data: bytes) -> bool:
    try:
        header, start = formats.decode_header(data)
        return (
            header.base_index == BEGINNING.index
            and not formats.scan_entries(data, start, BEGINNING).entries
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
        scan = formats.scan_entries(data, start, base)
    except Damaged as damage:
        raise StorageError(f"{path} is corrupt: {damage}. {remedy}") from damage
    if base.index > (snapshot.index if snapshot is not None else BEGINNING.index):
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
            "journal truncated at an incomplete entry file=%s bytes=%d last_index=%d",
            journal_path,
            cut,
            last,
        )
        file.truncate(scan.end)
        file.sync()
    journal = Journal(
        disk,
        directory,
        state,
        file=JournalFile(disk, journal_path, file, scan.end),
        base=base,
        entries=scan.entries,
        snapshot=snapshot,
        reserve=reserve,
    )
    if snapshot is not None and not journal.holds(snapshot.index, snapshot.term):
        # A crash occurred after the write of a leader's snapshot, and before that of its journal.
        # This journal lacks the snapshot's last entry, so its entries are outdated or contradict
        # the leader. A journal with that entry keeps the later ones.
        journal.restart_behind(snapshot)
    elif not scan.proven:
        journal.distrust_page_cache()
    return journal


def _check_owner(
    path: Path, found_cluster: str, found_node: int, *, cluster_id: str, node_id: int
) -> None:
    if (found_cluster, found_node) != (cluster_id, node_id):
        raise StorageError(
            f"{path} belongs to node {found_node} of cluster {found_cluster}, this is node "
            f"{node_id} of cluster {cluster_id}."
            " Give each node its own data directory, or correct the peers file"
        )
