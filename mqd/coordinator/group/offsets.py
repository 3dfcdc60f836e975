"""Changes of committed offsets: OffsetCommit, TxnOffsetCommit and OffsetDelete.

The group decides whether a member may commit (state.py `Group`). The first offset under an unknown
group id creates an empty classic group: its client assigns partitions to itself.

offset_deletion.py deletes offsets whose retention is over, and those of deleted topics.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from mqd import limits
from mqd.coordinator.group.classic import Classic
from mqd.coordinator.group.offset_fetch import BY_ID_SINCE
from mqd.coordinator.group.offset_room import ShardRoom
from mqd.coordinator.group.offset_store import (
    GroupOffsets,
    OffsetStore,
    weight,
)
from mqd.coordinator.group.part import Expire, Handler, Part, Replay
from mqd.coordinator.group.record_codec import encode, tombstone
from mqd.coordinator.group.records import OffsetCommit, OffsetCommitKey
from mqd.coordinator.group.state import CheckPartition, State
from mqd.coordinator.group.timers import TimerKey
from mqd.coordinator.shard import (
    NO_PRODUCER,
    NOTHING,
    Call,
    CoordinatorRecord,
    CoordinatorResult,
    Moment,
    Producer,
    Ticket,
)
from mqd.errors import ErrorCode, MqError
from mqd.types import NO_TIMESTAMP, ZERO_UUID

logger = logging.getLogger(__name__)

_TIMESTAMP_MAX: Final = 2**63 - 1
ENDED: Final = "ended transactions"
"""Timer without a subject: the next portion of the offsets of ended transactions."""
_ENDED: TimerKey = (ENDED,)
_PORTION_OFFSETS: Final = 1_000
"""1 to 3 us each."""
_PAUSE_SECONDS: Final = 0.005
"""Between two portions, for other requests."""
_NO_SUCH_GROUP_SINCE: Final = 9
"""OffsetCommit from this version on can return GROUP_ID_NOT_FOUND."""


class _Wanted(NamedTuple):
    """One partition of a commit."""

    topic: str
    topic_id: UUID
    row: Any


class _Rows:
    """Error codes by topic and partition. A topic that is named twice has one row."""

    def __init__(self, *, by_id: bool = False) -> None:
        self._by_id = by_id
        self._topics: dict[str | UUID, dict[str, Any]] = {}

    def add(self, topic: str, topic_id: UUID, partition: int, code: ErrorCode) -> None:
        key = topic_id if self._by_id else topic
        row = self._topics.get(key)
        if row is None:
            row = self._topics[key] = {"name": topic, "topic_id": topic_id, "partitions": []}
        row["partitions"].append({"partition_index": partition, "error_code": int(code)})

    def response(self) -> dict[str, Any]:
        return {"topics": list(self._topics.values())}


class Offsets(Part):
    """The offsets of all groups of a shard."""

    def __init__(self, state: State, classic: Classic) -> None:
        super().__init__(state)
        self._classic = classic
        self.store = OffsetStore()

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "OffsetCommit": self.handle_offset_commit,
            "OffsetDelete": self.handle_offset_delete,
            "TxnOffsetCommit": self.handle_txn_offset_commit,
        }

    def replays(self) -> Mapping[type, Replay]:
        return {OffsetCommitKey: self.replay_offset_commit}

    def timers(self) -> Mapping[str, Expire]:
        return {_ENDED[0]: self._on_ended}

    # -- for the other parts

    def has_offsets(self, group_id: str) -> bool:
        """Also offsets that wait for the end of a transaction."""
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
        if self.store.has_ended and _ENDED not in self.state.timers:
            self.state.timers.set(_ENDED, 0.0)  # at once

    def _on_ended(self, key: TimerKey, now: Moment) -> CoordinatorResult:
        """Apply a portion of the offsets of ended transactions."""
        self.store.apply_ended(_PORTION_OFFSETS)
        if self.store.has_ended:
            self.state.timers.set(_ENDED, now.seconds + _PAUSE_SECONDS)
        return NOTHING

    # -- OffsetCommit and TxnOffsetCommit

    def handle_offset_commit(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        request = call.request
        rows = _Rows(by_id=call.version >= BY_ID_SINCE)
        wanted = self._existing(request.topics, rows, by_id=call.version >= BY_ID_SINCE)
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
        return CoordinatorResult(records, ((ticket, rows.response()),))

    def handle_txn_offset_commit(
        self, ticket: Ticket, call: Call, now: Moment
    ) -> CoordinatorResult:
        """The offsets are written now, and take effect if the transaction commits (I34)."""
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
                stale = error.code is ErrorCode.STALE_MEMBER_EPOCH  # which this API does not have
                _refuse(wanted, rows, ErrorCode.ILLEGAL_GENERATION if stale else error.code)
        return CoordinatorResult(
            records,
            ((ticket, rows.response()),),
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
        """The records of the accepted offsets; `rows` gets the error of each partition.

        MqError is the error of all partitions.
        """
        if len(wanted) > limits.COMMITTED_PARTITIONS_MAX:
            raise MqError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        group = self.store.group(group_id)
        room = limits.GROUP_OFFSETS_BYTES_MAX - (group.bytes if group else 0)
        shard_room = ShardRoom(
            self.state, self.store, group_id, transactional=producer_id is not None, now=now
        )
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

    # -- OffsetDelete

    def handle_offset_delete(self, ticket: Ticket, call: Call, now: Moment) -> CoordinatorResult:
        request = call.request
        group = self.state.group(request.group_id)
        group.check_offset_delete()
        offsets = self.store.group(request.group_id) or GroupOffsets()
        rows = _Rows()
        records = []
        subscribed = frozenset(group.subscribed({one.name for one in request.topics}).topics)
        for topic, topic_id, row in self._existing(request.topics, rows):
            partition = row.partition_index
            if topic in subscribed:
                rows.add(topic, topic_id, partition, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            rows.add(topic, topic_id, partition, ErrorCode.NONE)
            if offsets.get(topic, partition) is not None or offsets.is_unstable(topic, partition):
                records.append(tombstone(OffsetCommitKey(request.group_id, topic, partition)))
        return CoordinatorResult(records, ((ticket, {"error_code": 0, **rows.response()}),))


def _refuse(wanted: Iterable[_Wanted], rows: _Rows, code: ErrorCode) -> None:
    for one in wanted:
        rows.add(one.topic, one.topic_id, one.row.partition_index, code)


def _java_length(text: str) -> int:
    """In UTF-16 code units, as Kafka counts for `offset.metadata.max.bytes`."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
