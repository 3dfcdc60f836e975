"""Deletion of committed offsets: retention, deleted topics, whole groups.

An offset is deleted when its retention ends, when its topic is deleted, or with its group. The
retention (`offsets.retention.minutes`) depends on the state of the group (KIP-211). Groups of nodes
(mqd/relay/names.py) have none: their offsets are state. An empty group is deleted with its last
offset, but not a share group. The work is done in portions: each is one batch, and takes a few
milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from mqd.coordinator.group.offset_store import GroupOffsets, OffsetStore
from mqd.coordinator.group.part import Expire, Part
from mqd.coordinator.group.record_codec import tombstone
from mqd.coordinator.group.records import OffsetCommit, OffsetCommitKey
from mqd.coordinator.group.share_group import ShareGroup
from mqd.coordinator.group.state import Group, State
from mqd.coordinator.group.timers import TimerKey
from mqd.coordinator.shard import NOTHING, CoordinatorRecord, CoordinatorResult, Moment
from mqd.relay.names import is_reserved
from mqd.types import NO_TIMESTAMP, ZERO_UUID

_RETENTION: TimerKey = ("retention",)
_TOPICS: TimerKey = ("deleted topics",)
_PAUSE_SECONDS: Final = 0.005
"""Between two portions, for other requests."""
_CHECK_AGAIN_SECONDS: Final = 0.25
"""Until the next check whether the last portion was written."""
_PORTION_BYTES: Final = 256 * 1024
"""Bytes of tombstones in one portion."""
_PORTION_RECORDS: Final = 1_000
"""Tombstones: 5 us each, with their replay."""
_STEPS_A_ROW: Final = 7
"""Steps in which a group finds its subscribed topics, for the time of a row."""
_PORTION_ROWS: Final = 5_000
"""Offsets and groups that one portion checks."""


class Portion:
    """The tombstones of one portion of a search."""

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        self.bytes = 0
        self.rows = 0

    @property
    def is_full(self) -> bool:
        return not self.has_room or self.rows >= _PORTION_ROWS

    @property
    def has_room(self) -> bool:
        """For another tombstone."""
        return self.bytes < _PORTION_BYTES and len(self.records) < _PORTION_RECORDS

    def delete(self, key: OffsetCommitKey) -> None:
        self.extend((tombstone(key),))

    def extend(self, records: Iterable[CoordinatorRecord]) -> None:
        for record in records:
            self.records.append(record)
            self.bytes += len(record.key)

    def result(self) -> CoordinatorResult:
        return CoordinatorResult(self.records) if self.records else NOTHING


class OffsetDeletion(Part):
    """For all groups of a shard."""

    def __init__(self, state: State, store: OffsetStore) -> None:
        super().__init__(state)
        self._store = store
        self._groups_to_check: deque[str] = deque()
        """The rest of a search for expired offsets."""
        self._to_check: deque[tuple[str, str]] = deque()
        """(topic, group): the rest of a search for offsets of deleted topics."""
        self._checked: dict[str, UUID | None] = {}
        """The topic id of each name at the last search. No offsets of another topic were committed
        under the name since."""
        self._topics_version: int | None = None
        self._first_deleted: bytes | None = None
        """The first key of the last portion. It comes again if the append was refused."""

    def timers(self) -> Mapping[str, Expire]:
        return {_RETENTION[0]: self._on_retention, _TOPICS[0]: self._on_topics}

    def delete_all(self, group_id: str, portion: Portion) -> bool:
        """Delete all offsets of a group, also in open transactions. False if some are left."""
        group = self._store.group(group_id)
        for topic, partition in group.partitions() if group is not None else ():
            if not portion.has_room:
                return False
            portion.delete(OffsetCommitKey(group_id, topic, partition))
        return True

    # -- retention

    def on_loaded(self, now: Moment) -> CoordinatorResult:
        self._set_retention(now)
        return self.on_metadata(now)

    def _set_retention(self, now: Moment) -> None:
        self.state.timers.set(
            _RETENTION,
            now.seconds + self.state.options.node("offsets.retention.check.interval.ms") / 1000,
        )

    def _on_retention(self, key: TimerKey, now: Moment) -> CoordinatorResult:
        """A portion of the search for expired offsets, and for empty groups without offsets."""
        if not self._groups_to_check:
            self._groups_to_check.extend(self.state.by_id)
        portion = Portion()
        while self._groups_to_check and not portion.is_full:
            group = self.state.get(self._groups_to_check[0])
            if group is None or self._expire(group, now.wall_ms, portion):
                self._groups_to_check.popleft()
        if self._groups_to_check:
            self.state.timers.set(_RETENTION, now.seconds + _PAUSE_SECONDS)
        else:
            self._set_retention(now)
        return portion.result()

    def _expire(self, group: Group, wall_ms: int, portion: Portion) -> bool:
        """False if the portion was full before the end of the group. A share group is kept, as in
        Apache Kafka: the share coordinators have its offsets."""
        if isinstance(group, ShareGroup):
            portion.rows += 1
            return True
        retention_ms = self.state.options.node("offsets.retention.minutes") * 60_000
        offsets = self._store.group(group.group_id)
        portion.rows += 1
        keeps_offsets = is_reserved(group.group_id)
        has_offsets = False
        subscribed: frozenset[str] = frozenset()
        if offsets is not None and offsets.committed:
            in_use = group.subscribed(offsets.committed)
            subscribed = frozenset(in_use.topics)
            portion.rows += in_use.steps // _STEPS_A_ROW
        for topic, partitions in offsets.committed.items() if offsets else ():
            if topic in subscribed:
                has_offsets = True
                continue
            for partition, stored in partitions.items():
                portion.rows += 1
                assert offsets is not None
                if (
                    keeps_offsets
                    or not _is_expired(group, stored.commit, wall_ms, retention_ms)
                    or offsets.waiting(topic, partition)
                ):
                    has_offsets = True
                elif not portion.has_room:
                    return False
                else:
                    portion.delete(OffsetCommitKey(group.group_id, topic, partition))
        if not has_offsets and group.is_empty and not (offsets and offsets.pending):
            portion.extend(group.tombstones())
        return True

    # -- deleted topics

    def on_metadata(self, now: Moment) -> CoordinatorResult:
        view = self.state.topics
        if view.version == self._topics_version:
            return NOTHING
        self._topics_version = view.version
        ids = {topic: view.topic_id(topic) for topic in self._store.topics()}
        for topic, topic_id in ids.items():
            if self._checked.get(topic, ZERO_UUID) != topic_id:
                self._to_check.extend(
                    (topic, group_id) for group_id in self._store.groups_of(topic)
                )
        self._checked = ids
        return self._on_topics(_TOPICS, now)

    def _on_topics(self, key: TimerKey, now: Moment) -> CoordinatorResult:
        """A portion of the search for offsets of deleted topics, also of topics that were created
        again under the same name.

        A topic that does not exist was deleted: commits are accepted only for existing topics. A
        new leader of this partition has all the metadata that the former leader had. Offsets that
        were found are searched once more: for lack of replicas their deletion may have been
        refused."""
        portion = Portion()
        again = []
        while self._to_check and not portion.is_full:
            topic, group_id = self._to_check.popleft()
            if self._delete_stale(group_id, topic, self.state.topics.topic_id(topic), portion):
                again.append((topic, group_id))
        if self._to_check or again:
            first = portion.records[0].key if portion.records else None
            was_refused = first is not None and first == self._first_deleted
            more = self._to_check or (not portion.has_room and not was_refused)
            self._first_deleted = first
            self.state.timers.set(
                _TOPICS, now.seconds + (_PAUSE_SECONDS if more else _CHECK_AGAIN_SECONDS)
            )
        self._to_check.extend(again)
        return portion.result()

    def _delete_stale(
        self, group_id: str, topic: str, topic_id: UUID | None, portion: Portion
    ) -> bool:
        """`topic_id`: the id of the current topic with this name. Returns whether there are stale
        offsets; the portion deletes as many as fit.
        """
        offsets = self._store.group(group_id) or GroupOffsets()
        committed = offsets.committed.get(topic, {})
        waiting = offsets.pending.get(topic, {})
        portion.rows += 1
        found = False
        for partition in dict.fromkeys((*committed, *waiting)):
            portion.rows += 1
            known = [
                one.commit
                for transaction, one in offsets.waiting(topic, partition).items()
                if transaction.committed is not False
            ]
            if partition in committed:
                known.append(committed[partition].commit)
            if known and all(_is_stale(commit, topic_id) for commit in known):
                found = True
                if not portion.has_room:
                    break
                portion.delete(OffsetCommitKey(group_id, topic, partition))
        return found


def _is_expired(group: Group, commit: OffsetCommit, wall_ms: int, retention_ms: int) -> bool:
    since = group.offsets_expire_from(commit.commit_timestamp)
    if since is None:
        return False
    if commit.expire_timestamp != NO_TIMESTAMP:
        return wall_ms >= commit.expire_timestamp
    return wall_ms - since >= retention_ms


def _is_stale(commit: OffsetCommit, topic_id: UUID | None) -> bool:
    """Whether the topic was deleted. A commit without a topic id is for the present topic."""
    return topic_id is None or commit.topic_id not in (ZERO_UUID, topic_id)
