"""Committed offsets in memory, and offsets in open transactions, which wait for a marker.

Only the log changes them. A commit sets an offset, or waits for the marker of its transaction. A
tombstone removes the committed offset and the waiting ones. A marker commits the waiting offsets,
or drops them. The order of the commits in the log counts, not that of the markers. So an offset of
a transaction does not replace one that was committed after it (I34).

A marker takes effect at once, for any number of offsets. Each waiting offset refers to its
transaction, which has the outcome from then on. `apply_ended` later moves the offsets of ended
transactions to the committed ones, or drops them. No query of `GroupOffsets.get` or `is_unstable`
sees the difference.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from mqd.coordinator.account import text_bytes
from mqd.coordinator.group.records import OffsetCommit, OffsetCommitKey

OFFSET_BYTES: Final = 320
"""Memory of one offset, without its metadata."""
WAITING_BYTES: Final = 640
"""Further memory of an offset that waits for a marker: entries of two dictionaries, and one
dictionary."""
APPLIED_AT_ONCE: Final = 50
"""Offsets of an ended transaction that its marker moves itself: about as much work as the marker.
"""
TOPIC_BYTES: Final = 512
"""Memory of a topic in each group with offsets of it: two dictionaries, and entries of three."""


class Stored(NamedTuple):
    commit: OffsetCommit
    place: int
    """Grows with the offset in the log."""


@dataclass(eq=False, slots=True)
class OffsetTransaction:
    """The offsets of one transaction in this shard."""

    producer_id: int
    committed: bool | None = None
    """The outcome; None until its marker."""
    keys: dict[OffsetCommitKey, None] = field(default_factory=dict)
    """The keys of its waiting offsets."""


Waiting: TypeAlias = dict[OffsetTransaction, Stored]


@dataclass(slots=True)
class GroupOffsets:
    """The offsets of one group, by topic and partition. No entry is empty."""

    committed: dict[str, dict[int, Stored]] = field(default_factory=dict)
    pending: dict[str, dict[int, Waiting]] = field(default_factory=dict)
    """Offsets of transactions that are open, or that `apply_ended` has not reached yet."""
    bytes: int = 0

    def get(self, topic: str, partition: int) -> OffsetCommit | None:
        """The committed offset."""
        stored = self.committed.get(topic, _NONE).get(partition)
        if self.pending:
            stored = _standing(stored, self.waiting(topic, partition))
        return None if stored is None else stored.commit

    def waiting(self, topic: str, partition: int) -> Mapping[OffsetTransaction, Stored]:
        """Offsets of transactions that are open, or that `apply_ended` has not reached yet."""
        return self.pending.get(topic, _NOBODY).get(partition, _NO_TRANSACTION)

    def open_offset(self, topic: str, partition: int, producer_id: int) -> OffsetCommit | None:
        """The offset in the producer's open transaction."""
        for transaction, stored in self.waiting(topic, partition).items():
            if transaction.producer_id == producer_id and transaction.committed is None:
                return stored.commit
        return None

    def replaced_by(
        self, topic: str, partition: int, producer_id: int | None
    ) -> OffsetCommit | None:
        """The offset that a commit replaces at once. In a transaction, that is only an offset of
        the same transaction."""
        if producer_id is None:
            return self.get(topic, partition)
        return self.open_offset(topic, partition, producer_id)

    def is_unstable(self, topic: str, partition: int) -> bool:
        """Whether an open transaction may still change it."""
        waiting = self.waiting(topic, partition)
        return any(transaction.committed is None for transaction in waiting)

    def listed(self, topic: str) -> Iterator[tuple[int, OffsetCommit | None, bool]]:
        """All partitions of a topic with committed or waiting offsets, each with the results of
        `get` and `is_unstable`."""
        committed, pending = self.committed.get(topic, _NONE), self.pending.get(topic, _NOBODY)
        for partition, stored in committed.items():
            if partition not in pending:
                yield partition, stored.commit, False
        for partition, waiting in pending.items():
            standing, unstable = committed.get(partition), False
            for transaction in waiting:
                if transaction.committed is None:
                    unstable = True
                else:
                    standing = _standing(standing, waiting)
            yield partition, None if standing is None else standing.commit, unstable

    def partitions(self) -> Iterator[tuple[str, int]]:
        """All partitions with committed or waiting offsets."""
        for topic, partitions in self.committed.items():
            for partition in partitions:
                yield topic, partition
        for topic, waiting in self.pending.items():
            for partition in waiting:
                if partition not in self.committed.get(topic, _NONE):
                    yield topic, partition


def _standing(
    committed: Stored | None, waiting: Mapping[OffsetTransaction, Stored]
) -> Stored | None:
    """The committed offset, when ended transactions are applied."""
    for transaction, stored in waiting.items():
        # Only with the commit, and never over a later offset (I34).
        if transaction.committed and (committed is None or committed.place < stored.place):
            committed = stored
    return committed


_NONE: Final[dict[int, Stored]] = {}
_NOBODY: Final[dict[int, Waiting]] = {}
_NO_TRANSACTION: Final[Waiting] = {}


def weight(commit: OffsetCommit) -> int:
    """About how many bytes it takes in memory."""
    return OFFSET_BYTES + text_bytes(commit.metadata)


def topic_weight(topic: str) -> int:
    """Bytes that a topic takes in a group, without its offsets."""
    return TOPIC_BYTES + len(topic)


class OffsetStore:
    """The offsets of all groups of one shard."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupOffsets] = {}
        self._of_topic: dict[str, dict[str, None]] = {}
        """The groups that have offsets of a topic, also waiting ones."""
        self._open: dict[int, OffsetTransaction] = {}
        """By producer id. None is empty."""
        self._ended: deque[OffsetTransaction] = deque()
        """Transactions that still have offsets in `pending`."""
        self._places = 0
        self.bytes = 0
        """Bytes in memory."""

    def group(self, group_id: str) -> GroupOffsets | None:
        """None for a group without any."""
        return self._groups.get(group_id)

    def topics(self) -> Collection[str]:
        """The topics of which any group has an offset."""
        return self._of_topic

    def groups_of(self, topic: str) -> Collection[str]:
        return self._of_topic.get(topic, ())

    def recount(self) -> int:
        """`bytes` from scratch, for tests and the simulation."""
        found = 0
        for group in self._groups.values():
            found += sum(map(topic_weight, {*group.committed, *group.pending}))
            found += sum(
                weight(one.commit)
                for partitions in group.committed.values()
                for one in partitions.values()
            )
            waiting = (
                one
                for partitions in group.pending.values()
                for producers in partitions.values()
                for one in producers.values()
            )
            found += sum(WAITING_BYTES + weight(one.commit) for one in waiting)
        return found

    # -- replay

    def put(self, key: OffsetCommitKey, commit: OffsetCommit, producer_id: int | None) -> None:
        """A commit. With a producer id it waits for the end of that producer's transaction."""
        self._places += 1
        stored = Stored(commit, self._places)
        group = self._groups.get(key.group)
        if group is None:
            group = self._groups[key.group] = GroupOffsets()
        groups = self._of_topic.setdefault(key.topic, {})
        if key.group not in groups:
            groups[key.group] = None
            self.bytes += topic_weight(key.topic)
        if producer_id is None:
            self._commit(group, key, stored)
        else:
            transaction = self._open.get(producer_id)
            if transaction is None:
                transaction = self._open[producer_id] = OffsetTransaction(producer_id)
            waiting = group.pending.setdefault(key.topic, {}).setdefault(key.partition, {})
            previous = waiting.get(transaction)
            self._grow(group, weight(commit) - (weight(previous.commit) if previous else 0))
            self.bytes += 0 if previous else WAITING_BYTES
            waiting[transaction] = stored
            transaction.keys[key] = None

    def remove(self, key: OffsetCommitKey) -> None:
        """A tombstone."""
        group = self._groups.get(key.group)
        if group is None or key.group not in self.groups_of(key.topic):
            return
        partitions = group.committed.get(key.topic)
        if partitions is not None:
            stored = partitions.pop(key.partition, None)
            if stored is not None:
                self._grow(group, -weight(stored.commit))
            if not partitions:
                del group.committed[key.topic]
        for transaction in list(group.waiting(key.topic, key.partition)):
            self._take_waiting(group, key, transaction)
            del transaction.keys[key]
            if transaction.committed is None and not transaction.keys:
                del self._open[transaction.producer_id]
        self._tidy(group, key)

    def end(self, producer_id: int, committed: bool) -> None:
        """The marker of a producer's transaction. See `apply_ended`."""
        transaction = self._open.pop(producer_id, None)
        if transaction is None:
            return
        transaction.committed = committed
        self._ended.append(transaction)
        if len(transaction.keys) <= APPLIED_AT_ONCE and len(self._ended) == 1:
            self.apply_ended()

    # -- soft state

    @property
    def has_ended(self) -> bool:
        """Whether `apply_ended` has more to do."""
        return bool(self._ended)

    def apply_ended(self, portion: int = APPLIED_AT_ONCE) -> None:
        """Move so many offsets of ended transactions to the committed ones, or drop them."""
        while self._ended and portion > 0:
            transaction = self._ended[0]
            if not transaction.keys:
                self._ended.popleft()
                continue
            key, _ = transaction.keys.popitem()
            portion -= 1
            group = self._groups[key.group]
            stored = self._take_waiting(group, key, transaction)
            present = group.committed.get(key.topic, _NONE).get(key.partition)
            if _standing(present, {transaction: stored}) is stored:
                self._commit(group, key, stored)
            self._tidy(group, key)
        if self._ended and not self._ended[0].keys:
            self._ended.popleft()

    def _grow(self, group: GroupOffsets, more: int) -> None:
        group.bytes += more
        self.bytes += more

    def _commit(self, group: GroupOffsets, key: OffsetCommitKey, stored: Stored) -> None:
        partitions = group.committed.setdefault(key.topic, {})
        previous = partitions.get(key.partition)
        self._grow(group, weight(stored.commit) - (weight(previous.commit) if previous else 0))
        partitions[key.partition] = stored

    def _take_waiting(
        self, group: GroupOffsets, key: OffsetCommitKey, transaction: OffsetTransaction
    ) -> Stored:
        partitions = group.pending[key.topic]
        waiting = partitions[key.partition]
        stored = waiting.pop(transaction)
        self._grow(group, -weight(stored.commit))
        self.bytes -= WAITING_BYTES
        if not waiting:
            del partitions[key.partition]
            if not partitions:
                del group.pending[key.topic]
        return stored

    def _tidy(self, group: GroupOffsets, key: OffsetCommitKey) -> None:
        """Drop what is left empty."""
        if key.topic in group.committed or key.topic in group.pending:
            return
        groups = self._of_topic[key.topic]
        if key.group in groups:
            del groups[key.group]
            self.bytes -= topic_weight(key.topic)
        if not groups:
            del self._of_topic[key.topic]
        if not group.committed and not group.pending:
            assert group.bytes == 0, (key.group, group.bytes)
            del self._groups[key.group]
