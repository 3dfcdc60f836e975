"""The decision on AppendEntries, case by case (Raft, figure 7)."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from mqd.errors import QuorumBroken
from mqd.raft.append_check import Match, Mismatch, check_append
from mqd.raft.codec import COMMAND, AppendEntries, Entry
from mqd.raft.journal import Journal
from mqd.raft.journal_start import open_journal
from tests.raft.memory_disk import MemoryDisk


def log_of(*terms: int) -> Journal:
    """A journal with one entry of each term, from index 2 on."""
    journal = open_journal(
        MemoryDisk(), Path("raft"), cluster_id="c", node_id=1, new_uuid=lambda: UUID(int=1)
    )
    for index, term in enumerate(terms, 2):
        journal.append(COMMAND, index, term)
    return journal


def append(previous: int, previous_term: int, *terms: int) -> AppendEntries:
    """Entries after `previous`, from a leader in term 9."""
    entries = tuple(Entry(COMMAND, index, term) for index, term in enumerate(terms, previous + 1))
    return AppendEntries(9, 1, previous, previous_term, entries)


def judge(journal: Journal, message: AppendEntries, committed: int = 1) -> Mismatch | Match:
    return check_append(journal, message, commit_index=committed, proven_commit=committed)


def test_entries_behind_a_gap_are_requested_from_the_end_of_the_log() -> None:
    assert judge(log_of(1, 1), append(7, 1, 1)) == Mismatch(4)


def test_a_conflicting_term_is_skipped_down_to_the_commit_index() -> None:
    journal = log_of(1, 2, 2, 2)
    assert judge(journal, append(5, 3, 3)) == Mismatch(3)
    assert judge(journal, append(5, 3, 3), committed=3) == Mismatch(4)


def test_existing_entries_are_not_appended_again() -> None:
    assert judge(log_of(1, 1, 1), append(2, 1, 1)) == Match(3, None, ())
    assert judge(log_of(1, 1), append(2, 1, 1, 1)) == Match(4, None, append(3, 1, 1).entries)


def test_conflicting_entries_are_truncated_first() -> None:
    assert judge(log_of(1, 2, 2), append(2, 1, 3, 3)) == Match(4, 3, append(2, 1, 3, 3).entries)


def test_a_conflict_with_a_committed_entry_is_an_error() -> None:
    journal = log_of(1, 2, 2)
    with pytest.raises(QuorumBroken, match="entry 3 is committed here in term 2, the leader has"):
        judge(journal, append(3, 3), committed=3)
    with pytest.raises(QuorumBroken, match="term 9 would replace committed entry 3"):
        judge(journal, append(2, 1, 3), committed=3)
    assert journal.last_index == 4, "the decision changes nothing"
