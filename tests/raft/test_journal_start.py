"""A directory is refused, with the remedy, if its files are incomplete, inconsistent, or belong to
another node.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from mqd.errors import StorageError
from mqd.raft import formats
from mqd.raft.journal_start import journal_exists, open_journal
from tests.raft.memory_disk import MemoryDisk, PowerCut
from tests.raft.test_journal import JOURNAL, SNAPSHOT, STATE, filled, opened, set_bytes


def test_missing_files_are_refused_with_file_and_remedy() -> None:
    for path, reason in [
        (
            JOURNAL,
            "raft/journal is missing, though raft/quorum-state shows that this node was formatted",
        ),
        (STATE, "raft/quorum-state is missing beside a log"),
        (SNAPSHOT, "raft/journal starts after entry 9, but raft/snapshot is missing"),
    ]:
        disk = MemoryDisk()
        journal = filled(disk)
        journal.compact(9, b"the state", entries_kept=0)
        journal.flush()
        disk.remove(path)
        with pytest.raises(StorageError, match=f"{reason}.*remove raft"):
            opened(disk)


def test_the_only_voter_gets_another_remedy_than_to_start_from_nothing() -> None:
    for path in (JOURNAL, STATE, SNAPSHOT):
        disk = MemoryDisk()
        journal = filled(disk)
        journal.compact(9, b"the state", entries_kept=0)
        journal.flush()
        assert journal_exists(disk, JOURNAL.parent)
        disk.remove(path)
        assert journal_exists(disk, JOURNAL.parent)
        with pytest.raises(StorageError, match="restore a backup: no other node") as refused:
            open_journal(
                disk,
                JOURNAL.parent,
                cluster_id="c",
                node_id=1,
                new_uuid=lambda: UUID(int=1),
                sole_voter=True,
            )
        assert "remove" not in str(refused.value)
    assert not journal_exists(MemoryDisk(), JOURNAL.parent)


def test_a_journal_beyond_its_snapshot_is_refused() -> None:
    disk = MemoryDisk()
    journal = filled(disk)
    journal.compact(6, b"older", entries_kept=0)
    journal.flush()
    older = disk.read_bytes(SNAPSHOT)
    journal.compact(9, b"newer", entries_kept=0)
    journal.flush()
    set_bytes(disk, SNAPSHOT, older)
    with pytest.raises(
        StorageError, match="starts after entry 9, but raft/snapshot ends at 6: entries are lost"
    ):
        opened(disk)


def test_other_owners_are_refused() -> None:
    disk = MemoryDisk()
    filled(disk)
    with pytest.raises(
        StorageError,
        match=r"quorum-state belongs to node 1 of cluster c, this is node 2 of cluster c",
    ):
        opened(disk, node=2)
    with pytest.raises(
        StorageError,
        match=r"belongs to node 1 of cluster c, this is node 1 of cluster d.*"
        r"correct the peers file",
    ):
        opened(disk, cluster="d")
    state = formats.decode_state(disk.read_bytes(STATE))
    other = formats.QuorumState("c", 1, UUID(int=8), state.term, state.vote)
    set_bytes(disk, STATE, formats.encode_state(other))
    with pytest.raises(StorageError, match="another instance of node 1"):
        opened(disk)


def test_an_interrupted_format_is_completed() -> None:
    for fuse in range(2):
        disk = MemoryDisk()
        disk.fuse = fuse
        with pytest.raises(PowerCut):
            opened(disk)
        disk.crash()
        assert opened(disk).last_index == 1
