"""A follower's consistency check of an AppendEntries of its leader (Raft, 5.3). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mqd.errors import QuorumBroken
from mqd.raft.codec import AppendEntries, Entry
from mqd.raft.raft_log import RaftLog


@dataclass(frozen=True, slots=True)
class Mismatch:
    """This log lacks the entry before those of the message, or has it with another term."""

    next_index: int
    """The leader retries from this index."""


@dataclass(frozen=True, slots=True)
class Match:
    matched: int
    """The last index at which this log is known to equal the leader's."""
    truncate_from: int | None
    """First remove the entries from this index on; None: remove nothing."""
    entries: tuple[Entry, ...]
    """Entries to append."""


def check_append(
    log: RaftLog, message: AppendEntries, *, commit_index: int, proven_commit: int
) -> Mismatch | Match:
    """`commit_index`: committed, and durable on this node. `proven_commit`: committed according to
    leaders, at least `commit_index`. Raises QuorumBroken if the leader contradicts a committed
    entry.
    """
    previous, previous_term = message.previous_index, message.previous_term
    entries = message.entries
    if previous > log.last_index:
        return Mismatch(log.last_index + 1)
    if previous < log.base_index:  # that prefix is in the snapshot, so it is committed
        previous, previous_term = log.base_index, log.term_at(log.base_index)
        entries = tuple(entry for entry in entries if entry.index > previous)
    conflict = log.term_at(previous)
    if conflict != previous_term:
        if previous <= commit_index:
            raise QuorumBroken(
                f"entry {previous} is committed here in term {conflict},"
                f" the leader has it in {previous_term}"
            )
        while previous - 1 > commit_index and log.term_at(previous - 1) == conflict:
            previous -= 1  # skip all entries of the conflicting term
        return Mismatch(previous)
    matched = previous + len(entries)
    for position, entry in enumerate(entries):
        if entry.index > log.last_index:
            return Match(matched, None, entries[position:])
        if log.term_at(entry.index) != entry.term:
            if entry.index <= proven_commit:
                raise QuorumBroken(
                    f"the leader of term {message.term} would replace committed entry {entry.index}"
                )
            return Match(matched, entry.index, entries[position:])
    return Match(matched, None, ())  # this log has all of them, so nothing is truncated
