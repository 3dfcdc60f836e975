"""What a node fetches from one leader: the partitions, the next request, and the actions that a
response requires.

A core: `now` and responses come in, requests and actions go out. It reads positions from the logs,
and changes no log.

Fetches use an incremental session (KIP-227): a request names the partitions whose position changed
since they were last named. A partition that cannot be fetched now is removed from the session.

A log is truncated by leader epochs only (KIP-101, KIP-279; within Fetch: KIP-595; I23). Each
request contains the leader epoch of the last record. The leader's log may lack that epoch, or end
it earlier. Then the response has the leader's largest epoch that is not larger, with its end
offset. The follower truncates to the smaller end of that epoch in the two logs, and fetches again.
This repeats, epoch by epoch, until the logs agree. The high watermark does not matter here: a
follower's may be below or above the offset at which the logs diverge.

A response changes a partition only if it was followed in the same leader epoch since the request
(I24). At most one request is in flight, so the positions of a response are those of the logs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mqd.config import NodeConfig
from mqd.errors import ErrorCode, MqError
from mqd.protocol.hot_follower import (
    FetchedPartition,
    FetchedTopics,
    RequestedPartition,
    encode_fetch_request,
)
from mqd.replica.partition import Partition
from mqd.replica.throttle import Throttle
from mqd.types import NO_EPOCH, NodeId, Offset, TopicPartition

logger = logging.getLogger(__name__)

Key = tuple[bytes, int]
"""Topic id (16 bytes), partition index."""

FIRST_BACKOFF_SECONDS = 0.02
"""The pause after an error, doubled at each further one, up to `replica.fetch.backoff.ms`.

Short, because a new leader often applies the metadata a moment later than its followers.
"""
THROTTLED_SECONDS = 0.2
"""The pause before a throttled partition is considered again."""
_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


@dataclass(frozen=True, slots=True)
class FollowerOptions:
    """Kafka's `replica.fetch.*`; times in seconds."""

    partition_bytes_max: int = 1 << 20
    response_bytes_max: int = 10 << 20
    bytes_min: int = 1
    wait_seconds_max: float = 0.5
    backoff_seconds: float = 1.0
    timeout_seconds: float = 30.0

    @classmethod
    def from_config(cls, config: NodeConfig) -> FollowerOptions:
        return cls(
            partition_bytes_max=config.integer("replica.fetch.max.bytes"),
            response_bytes_max=config.integer("replica.fetch.response.max.bytes"),
            bytes_min=config.integer("replica.fetch.min.bytes"),
            wait_seconds_max=config.integer("replica.fetch.wait.max.ms") / 1000,
            backoff_seconds=config.integer("replica.fetch.backoff.ms") / 1000,
            timeout_seconds=config.integer("replica.socket.timeout.ms") / 1000,
        )


class PartitionFetchState:
    """One followed partition, in one leader epoch (Kafka's class of that name)."""

    __slots__ = ("_backoff", "is_behind", "key", "leader_epoch", "partition", "ready_at")

    def __init__(self, partition: Partition) -> None:
        assignment = partition.assignment
        self.partition = partition
        self.key: Key = (assignment.topic_id.bytes, assignment.topic_partition.partition)
        self.leader_epoch = partition.leader_epoch
        self.ready_at = -math.inf
        """It is not fetched before (monotonic seconds)."""
        self.is_behind = True
        """Whether the leader has more records, or this is not known yet: throttles apply."""
        self._backoff = 0.0

    def __repr__(self) -> str:
        topic_partition = self.partition.assignment.topic_partition
        return f"<PartitionFetchState {topic_partition} epoch={self.leader_epoch}>"

    def delay(self, now: float, longest: float) -> None:
        """After an error: do not fetch for a while."""
        self._backoff = min(longest, max(FIRST_BACKOFF_SECONDS, 2 * self._backoff))
        self.ready_at = now + self._backoff

    def succeeded(self) -> None:
        """A response was applied, with its records in the log."""
        self._backoff = 0.0

    def request_row(self, partition_bytes_max: int) -> RequestedPartition | None:
        """Its row of a request. None while it waits for a sync: the request would acknowledge its
        records (I1, I25).
        """
        if self.partition.waits_for_sync:
            return None
        log = self.partition.log
        _, index = self.key
        return (
            index,
            self.leader_epoch,
            log.log_end_offset,
            log.last_epoch,
            log.log_start_offset,
            partition_bytes_max,
        )


class AppendRecords(NamedTuple):
    """Append the records (there may be none), then take the leader's offsets."""

    state: PartitionFetchState
    records: memoryview
    high_watermark: Offset
    log_start_offset: Offset


class Truncate(NamedTuple):
    """Truncate the log to `offset`, or to the start of the batch that contains it."""

    state: PartitionFetchState
    offset: Offset


class Reset(NamedTuple):
    """Delete all records and start the log at `offset`, the leader's log start."""

    state: PartitionFetchState
    offset: Offset


Action = AppendRecords | Truncate | Reset


class Follower:
    """The partitions that one node leads and this node follows."""

    def __init__(
        self, leader: NodeId, node_id: NodeId, options: FollowerOptions, throttle: Throttle
    ) -> None:
        self.leader = leader
        self.followed: dict[Key, PartitionFetchState] = {}
        self._node_id = node_id
        self._options = options
        self._throttle = throttle
        self._session_id = 0
        self._epoch = 0
        self._in_session: dict[Key, RequestedPartition | None] = {}
        """The partitions of the session, with the rows that last named them. None: the next request
        must name the partition again, also if its row is the same.
        """
        self._changed: dict[Key, None] = {}
        """The partitions that the next request considers. So a request costs as much as it
        contains, and not as much as all followed partitions.
        """
        self._errors: dict[ErrorCode, tuple[int, TopicPartition]] = {}
        """The errors of a response: how many partitions have each of them, and one of these."""

    def follow(self, partition: Partition) -> bool:
        """Follow a partition from its log end, in its leader epoch. False: this is so already."""
        new_state = PartitionFetchState(partition)
        old_state = self.followed.get(new_state.key)
        if (
            old_state is not None
            and old_state.partition is partition
            and old_state.leader_epoch == new_state.leader_epoch
        ):
            return False
        self.followed[new_state.key] = new_state
        self._name_again(new_state.key)
        return True

    def unfollow(self, partition: Partition) -> bool:
        """A response that is still on its way does not count for this partition (I24)."""
        key = (partition.assignment.topic_id.bytes, partition.assignment.topic_partition.partition)
        self._changed[key] = None
        return self.followed.pop(key, None) is not None

    def is_current(self, state: PartitionFetchState) -> bool:
        return self.followed.get(state.key) is state

    def disconnected(self) -> None:
        """The session has ended. The next request opens another."""
        self._session_id = self._epoch = 0
        self._in_session.clear()
        self._changed = dict.fromkeys(self.followed)

    # -- requests ----------------------------------------------------------------------------------

    def next_request(self, replica_epoch: int, now: float) -> bytearray | None:
        """The body of the next fetch. None while no partition can be fetched."""
        topics: dict[bytes, list[RequestedPartition]] = {}
        forgotten: dict[bytes, list[int]] = {}
        options, in_session = self._options, self._in_session
        changed, self._changed = self._changed, {}
        for key in changed:
            topic_id, index = key
            state = self.followed.get(key)
            row = None
            if state is not None:
                if state.ready_at <= now and not self._is_throttled(state, now):
                    row = state.request_row(options.partition_bytes_max)
                    if row is None:
                        state.ready_at = now + FIRST_BACKOFF_SECONDS
                if row is None:
                    self._changed[key] = None
            if row is not None:
                if in_session.get(key) != row:
                    in_session[key] = row
                    topics.setdefault(topic_id, []).append(row)
            elif key in in_session:
                del in_session[key]
                forgotten.setdefault(topic_id, []).append(index)
        if not in_session:
            self.disconnected()  # instead of an empty session
            return None
        return encode_fetch_request(
            replica_id=self._node_id,
            replica_epoch=replica_epoch,
            max_wait_ms=round(options.wait_seconds_max * 1000),
            min_bytes=options.bytes_min,
            max_bytes=options.response_bytes_max,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=list(topics.items()),
            forgotten=list(forgotten.items()),
        )

    def _is_throttled(self, state: PartitionFetchState, now: float) -> bool:
        """Whether `follower.replication.throttled.rate` delays a replica that is behind."""
        throttle = self._throttle
        if (
            not state.is_behind
            or not throttle.is_throttled(state.partition.assignment.topic_partition)
            or throttle.allows(now)
        ):
            return False
        state.ready_at = now + THROTTLED_SECONDS
        return True

    def next_ready_at(self) -> float:
        """The time from which a partition can be fetched that the last request omitted. Infinity if
        there is none.
        """
        omitted = (
            self.followed[key]
            for key in self._changed
            if key in self.followed and self._in_session.get(key) is None
        )
        return min((state.ready_at for state in omitted), default=math.inf)

    def unsynced(self) -> list[Partition]:
        """Partitions that are not fetched until a sync of their log has ended."""
        found = [self.followed[key].partition for key in self._changed if key in self.followed]
        return [partition for partition in found if partition.waits_for_sync]

    # -- responses ---------------------------------------------------------------------------------

    def on_response(self, response: FetchedTopics, now: float) -> list[Action]:
        """The actions for the partitions of a response.

        Raises MqError if the leader rejected the whole request.
        """
        if response.error_code:
            self.disconnected()
            code = ErrorCode(response.error_code)
            if code in _SESSION_ERRORS:
                return []
            raise MqError(code, f"node {self.leader} rejects fetches")
        self._errors.clear()
        actions = list(self._actions(response, now))
        for error, (count, example) in self._errors.items():
            logger.log(
                logging.INFO if error in _TRANSIENT else logging.WARNING,
                "fetch rejected, will retry leader=%d error=%s partitions=%d for_example=%s",
                self.leader,
                error.name,
                count,
                example,
            )
        self._session_id = response.session_id
        if response.session_id:
            self._epoch = self._epoch + 1 if self._epoch < 0x7FFFFFFF else 1
        else:
            self.disconnected()
        return actions

    def _actions(self, response: FetchedTopics, now: float) -> Iterator[Action]:
        for topic_id, rows in response.topics:
            for row in rows:
                state = self.followed.get((topic_id, row.partition))
                if state is None or self._in_session.get(state.key) is None:
                    # No longer followed, or in another leader epoch since the request (I24).
                    continue
                self._changed[state.key] = None
                action = self._action(state, row, now)
                if action is not None:
                    yield action

    def _action(
        self, state: PartitionFetchState, row: FetchedPartition, now: float
    ) -> Action | None:
        log = state.partition.log
        if not row.error_code:
            if not row.records:
                state.succeeded()
            if row.diverging_epoch is not None:
                self._name_again(state.key)
                return Truncate(state, truncation_offset(state.partition, *row.diverging_epoch))
            return AppendRecords(state, row.records, row.high_watermark, row.log_start_offset)
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and row.log_start_offset >= 0:
            is_empty = log.log_start_offset == log.log_end_offset
            if log.log_end_offset < row.log_start_offset or (
                is_empty and log.log_end_offset != row.log_start_offset
            ):
                self._name_again(state.key)
                return Reset(state, row.log_start_offset)
        self.postpone(state, now)
        error = ErrorCode(row.error_code)
        count, example = self._errors.get(error, (0, state.partition.assignment.topic_partition))
        self._errors[error] = count + 1, example
        return None

    def postpone(self, state: PartitionFetchState, now: float) -> None:
        """After an error: fetch it again after a pause, which grows."""
        state.delay(now, self._options.backoff_seconds)
        self._name_again(state.key)

    def _name_again(self, key: Key) -> None:
        self._changed[key] = None
        if key in self._in_session:
            self._in_session[key] = None


_TRANSIENT = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""One of the two nodes has not applied the newest metadata yet: expected, so logged as INFO."""


def truncation_offset(partition: Partition, epoch: int, end_offset: Offset) -> Offset:
    """The offset to which a follower truncates, if the leader's log ends `epoch` at `end_offset`
    (KIP-279, I23).

    If the follower's log does not contain that epoch, the end of its largest smaller epoch counts.
    Then the next fetch continues from there.
    """
    log = partition.log
    own_epoch, own_end = log.epochs.end_offset_for(epoch, log.log_end_offset)
    if own_epoch == NO_EPOCH:
        return max(0, min(end_offset, log.log_end_offset))
    return min(own_end, end_offset) if own_epoch == epoch else own_end
