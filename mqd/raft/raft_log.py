"""The log of one node in memory: the entries since a base, and the voter sets in them. Pure.

Invariants: `entries[0]` is the base, which has no command of its own. Entries are contiguous from
it on. base_index <= snapshot_index, or there is no snapshot and the base is the empty beginning
(index 1, term 0).
"""

from __future__ import annotations

from mqd import limits
from mqd.raft.codec import NO_OP, Entry
from mqd.raft.voters import CONFIGURATION, VoterSet, decode_entry

BEGINNING = Entry(NO_OP, 1, 0)


class RaftLog:
    def __init__(
        self,
        base: Entry,
        entries: list[Entry],
        *,
        snapshot_index: int,
        snapshot_term: int,
        snapshot_voters: VoterSet | None,
    ) -> None:
        """`snapshot_...`: of the newest snapshot; without one, of the base."""
        self.entries: list[Entry] = [base, *entries]
        """The base, then the log. Other classes use the methods below, and do not change it."""
        self.snapshot_index = snapshot_index
        self.snapshot_term = snapshot_term
        self._voter_sets: list[tuple[int, VoterSet]] = []
        """(index, set) of the snapshot and of later configuration entries, ascending."""
        if snapshot_voters is not None:
            self._voter_sets.append((snapshot_index, snapshot_voters))
        for entry in entries:
            self._note_voters(entry.index, entry.command)

    @property
    def base_index(self) -> int:
        return self.entries[0].index

    @property
    def last_index(self) -> int:
        return self.entries[-1].index

    @property
    def last_term(self) -> int:
        return self.entries[-1].term

    @property
    def is_empty(self) -> bool:
        """Whether the log has no entry after the empty beginning."""
        return self.last_index <= BEGINNING.index

    def term_at(self, index: int) -> int:
        """The term of an entry from the base to the last entry."""
        assert self.base_index <= index <= self.last_index, (
            self.base_index,
            index,
            self.last_index,
        )
        return self.entries[index - self.base_index].term

    def holds(self, index: int, term: int) -> bool:
        """Whether the log has entry `index` with `term`."""
        return self.base_index <= index <= self.last_index and self.term_at(index) == term

    def batch(self, first: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries from `first` on with about `bytes_max` bytes of commands; at least one if there
        is one.
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

    # -- voter sets

    def logged_voter_set(self, index: int) -> tuple[int, VoterSet] | None:
        """The latest voter set up to entry `index`, and the index of its entry or snapshot."""
        return next((found for found in reversed(self._voter_sets) if found[0] <= index), None)

    def _note_voters(self, index: int, command: bytes) -> None:
        if command[:1] == CONFIGURATION and (
            not self._voter_sets or index > self._voter_sets[-1][0]
        ):
            self._voter_sets.append((index, decode_entry(command)))

    # -- changes

    def append(self, command: bytes, index: int, term: int) -> None:
        assert index == self.last_index + 1, (index, self.last_index)
        assert term >= self.last_term, (term, self.last_term)
        self.entries.append(Entry(command, index, term))
        self._note_voters(index, command)

    def truncate_from(self, index: int) -> None:
        """Remove the entries from `index` on. None of them was committed."""
        assert self.snapshot_index < index <= self.last_index, (
            self.snapshot_index,
            index,
            self.last_index,
        )
        del self.entries[index - self.base_index :]
        while self._voter_sets and self._voter_sets[-1][0] >= index:
            self._voter_sets.pop()

    def cut_before(self, index: int, *, entries_kept: int) -> None:
        """A snapshot ends with entry `index`: keep only the last entries up to it."""
        self.snapshot_index, self.snapshot_term = index, self.term_at(index)
        kept = size = 0
        for entry in reversed(self.entries[1 : index - self.base_index + 1]):
            size += len(entry.command)
            if kept == entries_kept or size > limits.RAFT_JOURNAL_BYTES_MAX // 4:
                break
            kept += 1
        base_index = index - kept
        base = Entry(NO_OP, base_index, self.term_at(base_index))
        self.entries[: base_index - self.base_index + 1] = [base]

    def begin_behind(self, index: int, term: int, voters: VoterSet | None) -> None:
        """Remove all entries; the log continues after a snapshot that ends with this entry."""
        self.entries = [Entry(NO_OP, index, term)]
        self._voter_sets = [(index, voters)] if voters is not None else []
        self.snapshot_index, self.snapshot_term = index, term
