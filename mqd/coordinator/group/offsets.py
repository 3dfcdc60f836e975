"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete and TxnOffsetCommit.

The group decides whether a member may commit (state.py `Group`). The first offset under an unknown
group id creates an empty classic group, as for clients that assign partitions to themselves.

offset_deletion.py deletes offsets whose retention is over, and those of deleted topics.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from mqd import limits
from mqd.coordinator.group.classic import Classic
from mqd.coordinator.group.offset_store import (
    WAITING_BYTES,
    GroupOffsets,
    OffsetStore,
    topic_weight,
    weight,
)
from mqd.coordinator.group.record_codec import encode, tombstone
from mqd.coordinator.group.records import OffsetCommit, OffsetCommitKey
from mqd.coordinator.group.state import CheckPartition, Handler, Part, Replay, State, group_bytes
from mqd.coordinator.shard import (
    NO_PRODUCER,
    Call,
    CoordinatorRecord,
    CoordinatorResult,
    Moment,
    Producer,
    Ticket,
)
from mqd.errors import ErrorCode, MqError
from mqd.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, ZERO_UUID

logger = logging.getLogger(__name__)

_TIMESTAMP_MAX: Final = 2**63 - 1
_BY_ID_SINCE: Final = 10
"""OffsetCommit and OffsetFetch from this version on name topics by their ids."""
_NO_SUCH_GROUP_SINCE: Final = 9
"""OffsetCommit from this version on can return GROUP_ID_NOT_FOUND."""


class FetchOffsets(NamedTuple):
    """One group of an OffsetFetch, as the request of a `Call`; the answer is one row of the
    response's `groups`.
    """

    group_id: str
    topics: Sequence[Any] | None
    """With a name or a topic id, and partition_indexes; None: all that the group has."""
    require_stable: bool = False
    member_id: str | None = None
    member_epoch: int = -1


class _Wanted(NamedTuple):
    """One partition of a commit."""

    topic: str
    topic_id: UUID
    row: Any


class _Rows:
    """Error codes by topic and partition.

    A topic that is named twice has one row; those come first that were refused first.
    """

    def __init__(self, *, by_id: bool = False) -> None:
        self._by_id = by_id
        self._topics: dict[str | UUID, dict[str, Any]] = {}

    def add(self, topic: str, topic_id: UUID, partition: int, code: ErrorCode) -> None:
        key = topic_id if self._by_id else topic
        row = self._topics.get(key)
        if row is None:
            row = self._topics[key] = {"name": topic, "topic_id": topic_id, "partitions": []}
        row["partitions"].append({"partition_index": partition, "error_code": int(code)})

    def answer(self) -> dict[str, Any]:
        return {"topics": list(self._topics.values())}


class Offsets(Part):
    """Those of all groups of a shard."""

    def __init__(self, state: State, classic: Classic) -> None:
        super().__init__(state)
        self._classic = classic
        self.store = OffsetStore()

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "OffsetCommit": self.handle_offset_commit,
            "OffsetFetch": self.handle_offset_fetch,
            "OffsetDelete": self.handle_offset_delete,
            "TxnOffsetCommit": self.handle_txn_offset_commit,
        }

    def replays(self) -> Mapping[type, Replay]:
        return {OffsetCommitKey: self.replay_offset_commit}

    # -- for the other parts

    def has_offsets(self, group_id: str) -> bool:
        """Also such as only wait for a transaction to end."""
        return self.store.group(group_id) is not None

    # -- replay

    def replay_offset_commit(
        self, key: OffsetCommitKey, value: OffsetCommit | None, producer: Producer
    ) -> None:
        if value is None:
            self.store.remove(key)
            return
        if self.state.get(key.group) is None:
            self._classic.replay_first_offset(key.group)
        self.store.put(key, value, None if producer == NO_PRODUCER else producer.producer_id)

    def replay_end(self, producer: Producer, committed: bool) -> None:
        self.store.end(producer.producer_id, committed)

    # -- OffsetCommit and TxnOffsetCommit

    def handle_offset_commit(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        request = call.request
        rows = _Rows(by_id=call.version >= _BY_ID_SINCE)
        wanted = self._existing(request.topics, rows, by_id=call.version >= _BY_ID_SINCE)
        expire_timestamp = NO_TIMESTAMP
        if request.retention_time_ms != -1:
            expire_timestamp = min(now.wall_ms + request.retention_time_ms, _TIMESTAMP_MAX)
        records: list[CoordinatorRecord] = []
        if wanted:
            try:
                check = self._may_commit(request, call.version, now)
                records = self._commit(
                    request.group_id, wanted, rows, now, check, expire_timestamp=expire_timestamp
                )
            except MqError as error:
                _refuse(wanted, rows, error.code)
        return CoordinatorResult(records, ((ticket, rows.answer()),))

    def handle_txn_offset_commit(
        self, ticket: Ticket, call: Call, now: Moment
    ) -> CoordinatorResult:
        """The offsets are written now and stand when the transaction's marker says so."""
        request = call.request
        if request.producer_id < 0:
            raise MqError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if request.producer_epoch < 0:
            raise MqError(ErrorCode.INVALID_PRODUCER_EPOCH)
        rows = _Rows()
        wanted = self._existing(request.topics, rows)
        records: list[CoordinatorRecord] = []
        if wanted:
            try:
                check = self._may_commit_in_transaction(request, call.version)
                records = self._commit(
                    request.group_id, wanted, rows, now, check, producer_id=request.producer_id
                )
            except MqError as error:
                stale = error.code is ErrorCode.STALE_MEMBER_EPOCH  # which this API does not know
                _refuse(wanted, rows, ErrorCode.ILLEGAL_GENERATION if stale else error.code)
        return CoordinatorResult(
            records,
            ((ticket, rows.answer()),),
            Producer(request.producer_id, request.producer_epoch),
        )

    def _existing(
        self, topics: Iterable[Any], rows: _Rows, *, by_id: bool = False
    ) -> list[_Wanted]:
        """The partitions that exist; the others are refused."""
        view = self.state.topics
        wanted = []
        for topic in topics:
            name: str | None = topic.name
            if by_id:
                name = view.topic_name(topic.topic_id)
            topic_id = None if name is None else view.topic_id(name)
            count = 0 if name is None or topic_id is None else view.partitions(name)
            missing = (
                ErrorCode.UNKNOWN_TOPIC_ID
                if by_id and name is None
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            for row in topic.partitions:
                if 0 <= row.partition_index < count:
                    assert name is not None and topic_id is not None
                    wanted.append(_Wanted(name, topic_id, row))
                else:
                    rows.add(
                        topic.name,
                        topic.topic_id if by_id else ZERO_UUID,
                        row.partition_index,
                        missing,
                    )
        return wanted

    def _may_commit(self, request: Any, version: int, now: Moment) -> CheckPartition | None:
        generation = request.generation_id_or_member_epoch
        group = self.state.get(request.group_id)
        if group is None:
            if generation < 0:
                return None
            raise MqError(
                ErrorCode.GROUP_ID_NOT_FOUND
                if version >= _NO_SUCH_GROUP_SINCE
                else ErrorCode.ILLEGAL_GENERATION
            )
        check = group.check_commit(
            request.member_id,
            generation,
            request.group_instance_id,
            transactional=False,
            version=version,
        )
        if group.type_name == "classic":  # a member that commits is alive
            self._classic.extend_session(group, request.member_id, now)
        return check

    def _may_commit_in_transaction(self, request: Any, version: int) -> CheckPartition | None:
        group = self.state.get(request.group_id)
        if group is None:
            if request.generation_id < 0:
                return None
            raise MqError(ErrorCode.ILLEGAL_GENERATION)
        return group.check_commit(
            request.member_id,
            request.generation_id,
            request.group_instance_id,
            transactional=True,
            version=version,
        )

    def _commit(
        self,
        group_id: str,
        wanted: Sequence[_Wanted],
        rows: _Rows,
        now: Moment,
        check: CheckPartition | None,
        *,
        expire_timestamp: int = NO_TIMESTAMP,
        producer_id: int | None = None,
    ) -> list[CoordinatorRecord]:
        """The records of what may be committed; the rows tell of each partition.

        MqError refuses all of them.
        """
        if len(wanted) > limits.COMMITTED_PARTITIONS_MAX:
            raise MqError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        group = self.store.group(group_id)
        room = limits.GROUP_OFFSETS_BYTES_MAX - (group.bytes if group else 0)
        shard_room = _ShardRoom(self, group_id, transactional=producer_id is not None, now=now)
        metadata_max = self.state.options.node("offset.metadata.max.bytes")
        records = []
        codes = []
        for topic, topic_id, row in wanted:
            metadata = row.committed_metadata or ""
            if _java_length(metadata) > metadata_max:
                codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            if check is not None:
                check(topic, topic_id, row.partition_index)
            commit = OffsetCommit(
                row.committed_offset,
                row.committed_leader_epoch,
                metadata,
                now.wall_ms,
                expire_timestamp,
                topic_id,
            )
            replaced = group.replaced_by(topic, row.partition_index, producer_id) if group else None
            more = weight(commit) - (weight(replaced) if replaced else 0)
            if more > max(0, room):
                codes.append(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
                continue
            if (
                code := shard_room.take(topic, more, is_new=replaced is None)
            ) is not ErrorCode.NONE:
                codes.append(code)
                continue
            room -= max(0, more)
            records.append(encode(OffsetCommitKey(group_id, topic, row.partition_index), commit))
            codes.append(ErrorCode.NONE)
        for one, code in zip(wanted, codes, strict=True):
            rows.add(one.topic, one.topic_id, one.row.partition_index, code)
        return records

    # -- OffsetFetch

    def handle_offset_fetch(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        """`call.request` is a FetchOffsets."""
        request: FetchOffsets = call.request
        by_id = call.version >= _BY_ID_SINCE
        group = self.state.get(request.group_id)
        if group is not None:
            group.check_fetch(request.member_id, request.member_epoch)
        offsets = self.store.group(request.group_id) or GroupOffsets()
        if request.topics is None:
            topics = list(self._all_of(offsets, request.require_stable, by_id))
        else:
            topics = self._requested(request.topics, offsets, request.require_stable, by_id)
        return CoordinatorResult(
            (), ((ticket, {"group_id": request.group_id, "topics": topics, "error_code": 0}),)
        )

    def _all_of(
        self, offsets: GroupOffsets, require_stable: bool, by_id: bool
    ) -> Iterator[dict[str, Any]]:
        """All partitions with a committed offset. With `require_stable` also those whose first
        offset waits for the end of its transaction: they are UNSTABLE_OFFSET_COMMIT.
        """
        listed: dict[str, list[int]] = {}
        for name, partition in offsets.partitions():
            if require_stable or offsets.get(name, partition) is not None:
                listed.setdefault(name, []).append(partition)
        for name, partitions in listed.items():
            topic_id = self.state.topics.topic_id(name) if by_id else ZERO_UUID
            if topic_id is not None:  # else the version has no way to name it
                rows = [
                    _fetched(offsets, name, partition, topic_id, require_stable)
                    for partition in partitions
                ]
                yield {"name": name, "topic_id": topic_id, "partitions": rows}

    def _requested(
        self, topics: Iterable[Any], offsets: GroupOffsets, require_stable: bool, by_id: bool
    ) -> list[dict[str, Any]]:
        found = []
        unknown = []
        for topic in topics:
            name = self.state.topics.topic_name(topic.topic_id) if by_id else topic.name
            topic_id = topic.topic_id if by_id else ZERO_UUID
            if name is None:
                rows = [
                    _row(partition, ErrorCode.UNKNOWN_TOPIC_ID)
                    for partition in topic.partition_indexes
                ]
                unknown.append({"name": "", "topic_id": topic_id, "partitions": rows})
            else:
                rows = [
                    _fetched(offsets, name, partition, topic_id, require_stable)
                    for partition in topic.partition_indexes
                ]
                found.append({"name": name, "topic_id": topic_id, "partitions": rows})
        return found + unknown

    # -- OffsetDelete

    def handle_offset_delete(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        request = call.request
        group = self.state.group(request.group_id)
        group.check_offset_delete()
        offsets = self.store.group(request.group_id) or GroupOffsets()
        rows = _Rows()
        records = []
        for topic, topic_id, row in self._existing(request.topics, rows):
            partition = row.partition_index
            if group.is_subscribed(topic):
                rows.add(topic, topic_id, partition, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            rows.add(topic, topic_id, partition, ErrorCode.NONE)
            if offsets.get(topic, partition) is not None or offsets.is_unstable(topic, partition):
                records.append(tombstone(OffsetCommitKey(request.group_id, topic, partition)))
        return CoordinatorResult(records, ((ticket, {"error_code": 0, **rows.answer()}),))


class _ShardRoom:
    """What one commit may add to the shard (account.py): the offset, and where they are new
    its topic in the group and the group.
    """

    def __init__(
        self, offsets: Offsets, group_id: str, *, transactional: bool, now: Moment
    ) -> None:
        self._state = offsets.state
        self._store = offsets.store
        self._group_id = group_id
        self._transactional = transactional
        self._now = now
        self._topics: set[str] = set()
        self._taken = 0

    def take(self, topic: str, more: int, *, is_new: bool) -> ErrorCode:
        """NONE, or the code of the refusal: a transaction is tried again, as any other code
        would be the end of its producer.
        """
        if more <= 0:
            return ErrorCode.NONE
        if is_new and self._transactional:
            more += WAITING_BYTES
        if topic not in self._topics and self._group_id not in self._store.groups_of(topic):
            more += topic_weight(topic)
        if not self._taken and self._group_id not in self._state.by_id:
            more += group_bytes(self._group_id)
        if self._taken + more > self._state.account.left(self._taken + more, self._now.seconds):
            logger.warning(
                "offset rejected, the memory bound is reached group=%s topic=%s",
                self._group_id,
                topic,
            )
            return (
                ErrorCode.COORDINATOR_NOT_AVAILABLE
                if self._transactional
                else ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            )
        self._taken += more
        self._topics.add(topic)
        return ErrorCode.NONE


def _refuse(wanted: Iterable[_Wanted], rows: _Rows, code: ErrorCode) -> None:
    for one in wanted:
        rows.add(one.topic, one.topic_id, one.row.partition_index, code)


def _fetched(
    offsets: GroupOffsets, topic: str, partition: int, topic_id: UUID, require_stable: bool
) -> dict[str, Any]:
    if require_stable and offsets.is_unstable(topic, partition):
        return _row(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    commit = offsets.get(topic, partition)
    if commit is None or (
        ZERO_UUID not in (commit.topic_id, topic_id) and commit.topic_id != topic_id
    ):
        return _row(partition, ErrorCode.NONE)
    return {
        "partition_index": partition,
        "committed_offset": commit.offset,
        "committed_leader_epoch": commit.leader_epoch,
        "metadata": commit.metadata,
        "error_code": 0,
    }


def _row(partition: int, code: ErrorCode) -> dict[str, Any]:
    """No offset: because there is none, or because of an error."""
    return {
        "partition_index": partition,
        "committed_offset": NO_OFFSET,
        "committed_leader_epoch": NO_EPOCH,
        "metadata": "",
        "error_code": int(code),
    }


def _java_length(text: str) -> int:
    """In UTF-16 code units, as Kafka counts what `offset.metadata.max.bytes` limits."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
