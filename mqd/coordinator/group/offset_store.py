"""Committed offsets in memory, and offsets in open transactions, which wait for a marker.

Only the log changes them. A commit sets an offset, or waits for the marker of its transaction. A
tombstone removes the committed offset and the waiting ones. A marker commits the waiting offsets,
or drops them. The order of the commits in the log counts, not that of the markers. So an offset of
a transaction does not replace one that was committed after it (I34).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mqd.coordinator.account import text_bytes
from mqd.coordinator.group.records import OffsetCommit, OffsetCommitKey

OFFSET_BYTES: Final = 320
"""Memory of one offset, without its metadata."""
WAITING_BYTES: Final = 640
"""Further memory of an offset that waits for a marker: entries of two dictionaries, and one
dictionary."""
TOPIC_BYTES: Final = 512
"""Memory of a topic in each group with offsets of it: two dictionaries, and entries of three."""


class Stored(NamedTuple):
    commit: OffsetCommit
    place: int
    """Grows with the offset in the log."""


@dataclass(slots=True)
class GroupOffsets:
    """Of one group, by topic and partition. No entry is empty."""

    committed: dict[str, dict[int, Stored]] = field(default_factory=dict)
    pending: dict[str, dict[int, dict[int, Stored]]] = field(default_factory=dict)
    """Of open transactions: by topic, partition and producer id."""
    bytes: int = 0

    def get(self, topic: str, partition: int) -> OffsetCommit | None:
        """The committed offset."""
        stored = self.committed.get(topic, _NONE).get(partition)
        return None if stored is None else stored.commit

    def replaced_by(
        self, topic: str, partition: int, producer_id: int | None
    ) -> OffsetCommit | None:
        """The offset that a commit replaces at once. In a transaction, that is only an offset of
        the same transaction."""
        if producer_id is None:
            return self.get(topic, partition)
        stored = self.pending.get(topic, _NOBODY).get(partition, _NONE).get(producer_id)
        return None if stored is None else stored.commit

    def is_unstable(self, topic: str, partition: int) -> bool:
        """Whether an open transaction may still change it."""
        return partition in self.pending.get(topic, _NOBODY)

    def partitions(self) -> Iterator[tuple[str, int]]:
        """All partitions with offsets: first those with a committed offset."""
        for topic, partitions in self.committed.items():
            for partition in partitions:
                yield topic, partition
        for topic, waiting in self.pending.items():
            for partition in waiting:
                if partition not in self.committed.get(topic, _NONE):
                    yield topic, partition


_NONE: Final[dict[int, Stored]] = {}
_NOBODY: Final[dict[int, dict[int, Stored]]] = {}


def weight(commit: OffsetCommit) -> int:
    """About how many bytes it takes in memory."""
    return OFFSET_BYTES + text_bytes(commit.metadata)


def topic_weight(topic: str) -> int:
    """Bytes that a topic takes in a group, without its offsets."""
    return TOPIC_BYTES + len(topic)


class OffsetStore:
    """Of all groups of one shard."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupOffsets] = {}
        self._of_topic: dict[str, dict[str, None]] = {}
        """The groups that have offsets of a topic, also waiting ones."""
        self._of_producer: dict[int, dict[OffsetCommitKey, None]] = {}
        """The offsets that wait for this producer's marker."""
        self._places = 0
        self.bytes = 0
        """Bytes in memory."""

    def group(self, group_id: str) -> GroupOffsets | None:
        """None for a group without any."""
        return self._groups.get(group_id)

    def topics(self) -> Collection[str]:
        """Of which any group has an offset."""
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
            waiting = group.pending.setdefault(key.topic, {}).setdefault(key.partition, {})
            previous = waiting.get(producer_id)
            self._grow(group, weight(commit) - (weight(previous.commit) if previous else 0))
            self.bytes += 0 if previous else WAITING_BYTES
            waiting[producer_id] = stored
            self._of_producer.setdefault(producer_id, {})[key] = None

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
        for producer_id in list(group.pending.get(key.topic, _NOBODY).get(key.partition, ())):
            self._take_waiting(group, key, producer_id)
            keys = self._of_producer[producer_id]
            del keys[key]
            if not keys:
                del self._of_producer[producer_id]
        self._tidy(group, key)

    def end(self, producer_id: int, committed: bool) -> None:
        """The marker of a producer's transaction."""
        for key in self._of_producer.pop(producer_id, ()):
            group = self._groups[key.group]
            stored = self._take_waiting(group, key, producer_id)
            # Only with the commit, and never over a later offset (I34).
            if committed:
                present = group.committed.get(key.topic, _NONE).get(key.partition)
                if present is None or present.place < stored.place:
                    self._commit(group, key, stored)
            self._tidy(group, key)

    def _grow(self, group: GroupOffsets, more: int) -> None:
        group.bytes += more
        self.bytes += more

    def _commit(self, group: GroupOffsets, key: OffsetCommitKey, stored: Stored) -> None:
        partitions = group.committed.setdefault(key.topic, {})
        previous = partitions.get(key.partition)
        self._grow(group, weight(stored.commit) - (weight(previous.commit) if previous else 0))
        partitions[key.partition] = stored

    def _take_waiting(self, group: GroupOffsets, key: OffsetCommitKey, producer_id: int) -> Stored:
        partitions = group.pending[key.topic]
        waiting = partitions[key.partition]
        stored = waiting.pop(producer_id)
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
