"""The log as a leader sends it to one follower or observer (Raft, 5.3). Pure: `now` is a parameter.

Each of them has a next index (the first entry to send) and a match index (the last entry known to
equal the leader's). PySyncObj owns both and counts match indexes for its commit rule; its own
back-tracking and sending are replaced here (J, K and N in tests/raft/test_defects.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from mqd import limits
from mqd.raft.codec import AppendEntries, AppendReply, Entry, Message, SnapshotReply
from mqd.raft.followers import Followers
from mqd.raft.journal import Journal
from mqd.raft.leader_lease import LeaderLease
from mqd.raft.snapshot_transfer import SnapshotSender

logger = logging.getLogger(__name__)

_FIRST_INDEX = 2
"""The first index of an entry: index 1 is the empty beginning, the same on every node."""


@dataclass(frozen=True, slots=True)
class Indexes:
    """The next and match indexes by PySyncObj's node objects, whose `id` is the peer's. PySyncObj's
    own tables, not copies.
    """

    next: MutableMapping[Any, int]
    match: MutableMapping[Any, int]


class Replication:
    """The leader's state of its followers in its term, and the messages to them."""

    def __init__(
        self,
        journal: Journal,
        indexes: Indexes,
        followers: Followers,
        send: Callable[[int, Message], None],
        *,
        resend_after: float,
    ) -> None:
        """`send(peer, message)`. `resend_after`: see SnapshotSender."""
        self._journal = journal
        self._send = send
        self.indexes = indexes
        self.followers = followers
        self.lease = LeaderLease()
        self.snapshots = SnapshotSender(journal, resend_after=resend_after)

    def begin_term(self) -> None:
        self.snapshots.clear()
        self.followers.clear()
        self.lease.clear()

    def restarted(self, node: Any) -> None:
        """The node runs a new process: earlier acknowledgements may be lost."""
        self.snapshots.stop(node.id)
        self.indexes.match[node] = (
            0  # a match index is a lower bound, so a lower value is always correct
        )
        self.indexes.next[node] = self._journal.last_index + 1

    def on_reply(self, node: Any, now: float) -> None:
        """Process any reply to this leader in its term."""
        self.followers.on_reply(node.id, now)
        self.lease.replied(node.id)

    def on_append_reply(self, node: Any, reply: AppendReply, now: float) -> bool:
        """Process a reply. Returns whether to send to this follower again immediately."""
        indexes, last_index = self.indexes, self._journal.last_index
        before = indexes.next[node]
        if reply.next_index > last_index + 1:
            logger.error(
                "a follower claims entries that do not exist node=%d index=%d last_index=%d",
                node.id,
                reply.next_index - 1,
                last_index,
            )
            return False
        if reply.success:
            match = indexes.match[node] = max(indexes.match[node], reply.next_index - 1)
            self.lease.acknowledged(node.id, match)
            self.followers.on_success(node.id, match, last_index, now)
            indexes.next[node] = max(before, reply.next_index)  # never below entries in flight
            self.snapshots.matched(node.id, match)
        elif reply.reset:
            lowered = min(before, reply.next_index)
            indexes.next[node] = max(indexes.match[node] + 1, _FIRST_INDEX, lowered)
        return indexes.next[node] != before or (reply.success and before <= last_index)

    def on_snapshot_reply(self, node: Any, reply: SnapshotReply, term: int, now: float) -> None:
        message = self.snapshots.on_reply(node.id, reply, term=term, now=now)
        if message is not None:
            self._send_counted(node.id, message, now)

    def send_to(
        self, node: Any, *, term: int, commit_index: int, heartbeat: bool, now: float
    ) -> None:
        """Send the missing entries up to a limit; with `heartbeat`, at least one message."""
        journal = self._journal
        first = self.indexes.next[node]
        if first <= journal.base_index:
            message = self.snapshots.next_message(node.id, term=term, now=now)
            self._send_counted(node.id, message, now)
            return
        for _ in range(limits.RAFT_APPENDS_PER_ROUND):
            if first > journal.last_index and not heartbeat:
                break
            entries: tuple[Entry, ...] = ()
            if first <= journal.last_index:
                entries = journal.batch(first, limits.RAFT_BATCH_BYTES)
            previous = first - 1
            previous_term = journal.term_at(previous)
            append = AppendEntries(term, commit_index, previous, previous_term, entries)
            self._send_counted(node.id, append, now)
            first += len(entries)
            heartbeat = False
        self.indexes.next[node] = first

    def _send_counted(self, peer: int, message: Message, now: float) -> None:
        self.lease.sent(peer, now)
        self._send(peer, message)
