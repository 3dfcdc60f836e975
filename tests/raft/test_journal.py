"""The journal accepts whatever a crash at any byte leaves, and refuses what no crash can leave."""

from __future__ import annotations

import errno
import logging
import random
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st

from mqd import limits
from mqd.errors import StorageError
from mqd.io.disk import OsDisk
from mqd.raft import formats
from mqd.raft.codec import COMMAND, Entry
from mqd.raft.formats import Snapshot
from mqd.raft.journal import Journal
from mqd.raft.journal_start import open_journal
from mqd.raft.snapshot_source import SnapshotSource
from tests.raft.memory_disk import MemoryDisk, PowerCut

RAFT = Path("raft")
JOURNAL, STATE, SNAPSHOT = RAFT / "journal", RAFT / "quorum-state", RAFT / "snapshot"


def opened(
    disk: MemoryDisk | OsDisk, directory: Path = RAFT, *, cluster: str = "c", node: int = 1
) -> Journal:
    return open_journal(
        disk, directory, cluster_id=cluster, node_id=node, new_uuid=lambda: UUID(int=7)
    )


def filled(disk: MemoryDisk, *, turns: int = 5, each: int = 2) -> Journal:
    """`turns` flushes of `each` entries."""
    journal = opened(disk)
    for _ in range(turns):
        for _ in range(each):
            journal.append(
                COMMAND + b"entry %d" % (journal.last_index + 1), journal.last_index + 1, 1
            )
        journal.flush()
    return journal


def set_bytes(disk: MemoryDisk, path: Path, data: bytes) -> None:
    content = disk.files[path]
    content.data, content.durable, content.pending = bytearray(data), data, []


def test_flushed_entries_are_read_back(tmp_path: Path) -> None:
    journal = opened(OsDisk(), tmp_path / "raft")
    journal.set_term(3, 2)
    journal.append(COMMAND + b"a", 2, 3)
    journal.append(COMMAND + b"b", 3, 3)
    assert journal.durable_index == 1
    journal.flush()
    assert journal.durable_index == 3 and not journal.dirty
    journal.append(COMMAND + b"lost", 4, 3)
    journal.close()
    again = opened(OsDisk(), tmp_path / "raft")
    assert [entry.command for entry in again.entries[1:]] == [COMMAND + b"a", COMMAND + b"b"]
    assert (again.term, again.vote, again._state.node_uuid) == (3, 2, UUID(int=7))
    # the entries were read, from the disk or only from the page cache
    assert again.durable_index == 1 and again.dirty
    again.flush()
    assert again.durable_index == 3
    again.mark()
    again.close()
    whole = opened(OsDisk(), tmp_path / "raft")
    assert whole.durable_index == 3 and not whole.dirty  # its mark proves that it was fsynced
    whole.close()


def test_entries_that_were_read_are_synced_before_use() -> None:
    """An fsync fails, and the page cache marks pages clean that are not on the disk. The next
    process reads them; then the power fails.
    """
    disk = MemoryDisk()
    journal = filled(disk)
    kept = journal.last_index
    journal.append(COMMAND + b"read from the cache", kept + 1, 1)
    disk.fail_with = OSError(errno.EIO, "no")
    with pytest.raises(StorageError):
        journal.flush()
    disk.fail_with = None
    content = disk.files[JOURNAL]
    lost = len(content.durable)
    content.data = bytearray(content.durable) + b"".join(journal._file._pending)
    # as far as later fsyncs can detect
    content.durable, content.pending = bytes(content.data), []
    journal.close()

    again = opened(disk)
    assert again.last_index == kept + 1 and again.durable_index < kept + 1
    again.flush()
    # a separate file, with every byte written and synced again
    assert disk.files[JOURNAL] is not content
    again.append(COMMAND + b"after", kept + 2, 1)
    again.flush()
    if disk.files[JOURNAL] is content:
        content.durable = content.durable[:lost] + bytes(len(content.durable) - lost)
    disk.crash()
    assert opened(disk).last_index == kept + 2


def test_truncation_is_an_append() -> None:
    disk = MemoryDisk()
    journal = filled(disk)
    before = disk.read_bytes(JOURNAL)
    journal.truncate_from(8)
    assert journal.durable_index == 7 and not journal.dirty
    journal.append(COMMAND + b"other", 8, 2)
    journal.flush()
    assert disk.read_bytes(JOURNAL).startswith(before)
    again = opened(disk)
    assert (again.last_index, again.term_at(8), again.term) == (8, 2, 2)


def test_cut_at_every_byte_of_the_last_turn_leaves_a_prefix() -> None:
    disk = MemoryDisk()
    journal = filled(disk, turns=3)
    synced = len(disk.read_bytes(JOURNAL))
    last = journal.last_index
    for k in range(3):
        journal.append(COMMAND + b"unsynced %d" % k, last + 1 + k, 1)
    journal.flush()
    whole = disk.read_bytes(JOURNAL)
    seen = set()
    for end in range(synced, len(whole) + 1):
        for tail in (b"", bytes(50), b"\xff" * 50):
            set_bytes(disk, JOURNAL, whole[:end] + (tail if end < len(whole) else b""))
            again = opened(disk)
            assert last <= again.last_index <= last + 3
            assert again.entries == journal.entries[: len(again.entries)]
            seen.add(again.last_index)
            again.append(COMMAND + b"goes on", again.last_index + 1, 2)
            again.flush()
            assert opened(disk).last_index == again.last_index
    assert seen == {last, last + 1, last + 2, last + 3}


def test_blocks_of_the_last_turn_in_any_order_are_a_torn_tail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = MemoryDisk()
    journal = filled(disk, turns=2)
    synced = len(disk.read_bytes(JOURNAL))
    journal.append(COMMAND + b"first" * 20, 6, 1)
    journal.append(COMMAND + b"second", 7, 1)
    journal.flush()
    data = bytearray(disk.read_bytes(JOURNAL))
    # the second record is complete, the first never reached the disk
    data[synced + 10 : synced + 60] = bytes(50)
    set_bytes(disk, JOURNAL, bytes(data))
    with caplog.at_level(logging.WARNING):
        assert opened(disk).last_index == 5
    assert "truncated" in caplog.text and "last_index=5" in caplog.text


def test_every_flipped_bit_of_synced_data_is_detected() -> None:
    disk = MemoryDisk()
    journal = filled(disk, turns=2)
    journal.mark()
    journal.flush()
    whole = disk.read_bytes(JOURNAL)
    mark = whole.rindex(b"\xd3mqR")
    for bit in range(len(whole) * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        set_bytes(disk, JOURNAL, bytes(data))
        if bit // 8 >= mark:  # the mark itself: no entry is lost with it
            assert opened(disk).entries == journal.entries
        else:
            with pytest.raises(StorageError, match=r"raft/journal (is corrupt|belongs to)"):
                opened(disk)


@pytest.mark.parametrize("path", [STATE, SNAPSHOT])
def test_every_flipped_bit_of_the_small_files_is_detected(path: Path) -> None:
    disk = MemoryDisk()
    journal = filled(disk)
    journal.compact(6, b"the state")
    journal.flush()
    whole = disk.read_bytes(path)
    for bit in range(len(whole) * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        set_bytes(disk, path, bytes(data))
        with pytest.raises(StorageError, match=f"{path} is corrupt"):
            opened(disk)
    for end in range(len(whole)):
        set_bytes(disk, path, whole[:end])
        with pytest.raises(StorageError, match=f"{path} is corrupt"):
            opened(disk)


def test_an_entry_in_the_wrong_place_is_invalid() -> None:
    record = formats.encode_entry(100, formats.KIND_LOG_ENTRY, 2, 1, 50, b"\x00x")
    assert formats.read_entry(bytes(100) + record, 100) is not None
    assert formats.read_entry(bytes(101) + record, 101) is None
    assert formats.read_entry(bytes(4096), 0) is None  # zeros are not an entry


def all_of(source: SnapshotSource) -> bytes:
    return source.read_at(0, source.size)


def test_a_snapshot_in_transfer_outlives_a_newer_one(tmp_path: Path) -> None:
    """A follower gets the parts of one snapshot, read one at a time."""
    disk = OsDisk()
    journal = open_journal(disk, tmp_path, cluster_id="c", node_id=1, new_uuid=lambda: UUID(int=1))
    for state, index in ((b"a" * 5000, 3), (b"b" * 7000, 6)):
        while journal.last_index < index:
            journal.append(COMMAND + b"x", journal.last_index + 1, 1)
        journal.flush()
        journal.compact(index, state, entries_kept=1)
        source = journal.snapshot_source()
        pending = all_of(source)
        journal.flush()
        if index == 3:
            first = journal.snapshot_source()
            assert all_of(first) == pending
    parts = [first.read_at(position, 1000) for position in range(0, first.size, 1000)]
    assert all(len(part) <= 1000 for part in parts)
    assert formats.decode_snapshot(b"".join(parts)).state == b"a" * 5000
    assert formats.decode_snapshot(all_of(journal.snapshot_source())).state == b"b" * 7000


def test_compaction_keeps_what_followers_may_lack() -> None:
    disk = MemoryDisk()
    journal = filled(disk, turns=10)
    journal.compact(15, b"the state", entries_kept=4)
    assert (journal.base_index, journal.snapshot_index, journal.last_index) == (11, 15, 21)
    journal.append(COMMAND + b"after", 22, 1)
    journal.flush()
    again = opened(disk)
    assert again.entries == journal.entries
    assert again.take_boot_snapshot() == Snapshot("c", 15, 1, b"the state")
    assert again.take_boot_snapshot() is None
    assert formats.decode_snapshot(all_of(again.snapshot_source())).state == b"the state"
    assert again.batch(12, 1) == tuple(journal.entries[1:2])
    assert len(again.batch(12, 1 << 20)) == 11


@pytest.mark.parametrize("installs", [False, True])
def test_power_cut_in_any_write_of_a_turn(installs: bool) -> None:
    """A turn that changes everything: term, snapshot, entries.

    The term never decreases, and the entries are either the old or the new ones.
    """
    for seed in range(30):
        for fuse in range(5):
            disk = MemoryDisk(seed)
            journal = filled(disk)
            journal.set_term(4, 3)
            if installs:
                journal.install(Snapshot("c", 40, 3, b"from the leader"))
            else:
                journal.compact(9, b"the state", entries_kept=2)
            journal.append(COMMAND + b"new", journal.last_index + 1, 4)
            disk.fuse = fuse
            try:
                journal.flush()
                flushed = True
            except PowerCut:
                flushed = False
            disk.crash()
            again = opened(disk)
            snapshot = again.take_boot_snapshot()
            old_end, new_end = 11, journal.last_index
            assert again.last_index in (old_end, new_end, 40)
            if again.last_index == 40:
                assert snapshot is not None and snapshot.index == 40
            if flushed:
                assert again.entries == journal.entries and (again.term, again.vote) == (4, 3)
            again.append(COMMAND + b"goes on", again.last_index + 1, 9)
            again.flush()
            assert opened(disk).entries == again.entries


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_flushed_entries_survive_random_power_cuts(seed: int) -> None:
    dice, disk = random.Random(seed), MemoryDisk(seed)
    journal = opened(disk)
    durable: list[Entry] = list(journal.entries)
    for _ in range(12):
        for _ in range(dice.randrange(4)):
            journal.append(
                COMMAND + bytes(dice.choice([1, 500])), journal.last_index + 1, max(journal.term, 1)
            )
        if dice.random() < 0.2 and journal.last_index > 3:
            journal.truncate_from(journal.last_index)
            journal.append(COMMAND + b"other", journal.last_index + 1, journal.term + 1)
            durable = durable[: len(journal.entries) - 1]
        if dice.random() < 0.3:
            disk.fuse = dice.randrange(3)
        try:
            journal.flush()
            durable = list(journal.entries)
        except PowerCut:
            disk.crash()
            journal = opened(disk)
            assert journal.entries[: len(durable)] == durable
            durable = list(journal.entries)
        disk.fuse = None


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_write_is_never_retried(code: int) -> None:
    disk = MemoryDisk()
    journal = filled(disk)
    journal.append(COMMAND + b"x", journal.last_index + 1, 1)
    disk.fail_with = OSError(code, "no")
    with pytest.raises(StorageError, match=r"raft/journal: .*this node stops") as caught:
        journal.flush()
    assert not caught.value.out_of_space, "the incomplete write could not be truncated either"
    disk.fail_with = None
    with pytest.raises(StorageError, match="this node stops"):
        journal.flush()
    assert journal.durable_index == 11


def test_a_vote_for_a_term_before_the_log_s_does_not_count() -> None:
    """Entries of a new term reached the disk, the term did not: an earlier vote does not count."""
    disk = MemoryDisk()
    journal = opened(disk)
    journal.set_term(2, 3)
    journal.flush()
    journal.append(COMMAND + b"x", 2, 5)
    journal.flush()
    again = opened(disk)
    assert (again.term, again.vote) == (5, None)


def test_quiet_journals_are_marked_once() -> None:
    disk = MemoryDisk()
    journal = filled(disk)
    dirty = []
    for _ in range(2):
        journal.on_timer()
        dirty.append(journal.dirty)
    assert dirty == [False, True]
    journal.flush()
    for _ in range(3):
        journal.on_timer()
        assert not journal.dirty


def test_entries_hold_the_largest_command() -> None:
    disk = MemoryDisk()
    journal = opened(disk)
    journal.append(COMMAND + bytes(limits.RAFT_COMMAND_BYTES_MAX), 2, 1)
    journal.flush()
    assert opened(disk).entries == journal.entries
