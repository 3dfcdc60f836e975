"""What a node fetches from one leader: which partitions, from where on, what to ask next, and what
an answer asks it to do.

A core: `now` and answers come in, requests and actions go out; it reads the positions off the logs
and changes none of them.

Fetches go through an incremental session (KIP-227): a request names the partitions whose position
moved since they were last named, and those that are left out stand as they were said. A partition
that cannot be fetched for now is taken out of the session.

A log is cut by leader epochs only (KIP-101, KIP-279, within the fetch by KIP-595): each request
says of which epoch the last record is; a leader whose own log has no such epoch, or an end of it
before that, names the largest epoch it has that is not larger, and where that ends. The follower
cuts to the smaller of both logs' ends of that epoch and asks again; so epoch by epoch, until the
logs agree. The high watermark has no say: a follower's may be behind or ahead of what its log
shares with the leader's.

Invariants: an answer changes a partition only if it was followed since the request with the same
leader epoch; at most one request is under way, so each position in an answer is that of the log.
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
    AskedPartition,
    FetchAnswer,
    FetchedPartition,
    encode_fetch_request,
)
from mqd.replica.partition import Partition
from mqd.replica.throttle import Throttle
from mqd.types import NO_EPOCH, NodeId, Offset, TopicPartition

logger = logging.getLogger(__name__)

Key = tuple[bytes, int]
"""Topic id (16 bytes), partition index."""

FIRST_BACKOFF_SECONDS = 0.02
"""After a refusal; doubled at each further one, up to `replica.fetch.backoff.ms`.

A new leader is often a moment behind its followers.
"""
THROTTLED_SECONDS = 0.2
"""How often a throttled partition is looked at again."""
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


class Followed:
    """One partition, in one leader epoch."""

    __slots__ = ("_backoff", "behind", "key", "leader_epoch", "partition", "ready_at")

    def __init__(self, partition: Partition) -> None:
        assignment = partition.assignment
        self.partition = partition
        self.key: Key = (assignment.topic_id.bytes, assignment.topic_partition.partition)
        self.leader_epoch = partition.leader_epoch
        self.ready_at = -math.inf
        """Not asked for before (monotonic seconds)."""
        self.behind = True
        """Whether the leader is known to have more, or nothing is known: throttles apply."""
        self._backoff = 0.0

    def __repr__(self) -> str:
        return f"<Followed {self.partition.assignment.topic_partition} epoch={self.leader_epoch}>"

    def wait(self, now: float, longest: float) -> None:
        self._backoff = min(longest, max(FIRST_BACKOFF_SECONDS, 2 * self._backoff))
        self.ready_at = now + self._backoff

    def went_well(self) -> None:
        self._backoff = 0.0

    def asked(self, partition_bytes_max: int) -> AskedPartition | None:
        """What a request says of it; None while what it has is not yet as durable as its
        topic asks for.
        """
        log = self.partition.log
        if self.partition.local_end_offset() < log.log_end_offset:
            return None
        return (
            self.key[1],
            self.leader_epoch,
            log.log_end_offset,
            log.last_epoch,
            log.log_start_offset,
            partition_bytes_max,
        )


class Append(NamedTuple):
    """Append the records (there may be none), then take over the ends."""

    followed: Followed
    records: memoryview
    high_watermark: Offset
    log_start_offset: Offset


class Truncate(NamedTuple):
    """Cut the log to end at `offset`, or at the start of the batch that holds it."""

    followed: Followed
    offset: Offset


class Reset(NamedTuple):
    """Begin anew at `offset`, the leader's log start: the records up to there are deleted."""

    followed: Followed
    offset: Offset


Action = Append | Truncate | Reset


class Follower:
    """The partitions that one node leads and this one follows."""

    def __init__(
        self, leader: NodeId, node_id: NodeId, options: FollowerOptions, throttle: Throttle
    ) -> None:
        self.leader = leader
        self.followed: dict[Key, Followed] = {}
        self._node_id = node_id
        self._options = options
        self._throttle = throttle
        self._session_id = 0
        self._epoch = 0
        self._named: dict[Key, AskedPartition | None] = {}
        """What the session has, as it was last named; None: to be named again whatever it says."""
        self._look: dict[Key, None] = {}
        """What may have changed since: a request costs what it says, and not what is followed."""
        self._refused: dict[ErrorCode, tuple[int, TopicPartition]] = {}
        """By what, how many partitions of this answer, and one of them."""

    def follow(self, partition: Partition) -> bool:
        """From its log's end on, in its leader epoch; False when that is so already."""
        fresh = Followed(partition)
        known = self.followed.get(fresh.key)
        if (
            known is not None
            and known.partition is partition
            and known.leader_epoch == fresh.leader_epoch
        ):
            return False
        self.followed[fresh.key] = fresh
        self._name_again(fresh.key)
        return True

    def unfollow(self, partition: Partition) -> bool:
        """What an answer still says of it does not count."""
        key = (partition.assignment.topic_id.bytes, partition.assignment.topic_partition.partition)
        self._look[key] = None
        return self.followed.pop(key, None) is not None

    def is_current(self, followed: Followed) -> bool:
        return self.followed.get(followed.key) is followed

    def disconnected(self) -> None:
        """The session is gone; the next request opens one."""
        self._session_id = self._epoch = 0
        self._named.clear()
        self._look = dict.fromkeys(self.followed)

    # -- asking ------------------------------------------------------------------------------------

    def next_request(self, replica_epoch: int, now: float) -> bytearray | None:
        """The body of the next fetch; None while no partition can be fetched."""
        topics: dict[bytes, list[AskedPartition]] = {}
        forgotten: dict[bytes, list[int]] = {}
        options, named = self._options, self._named
        look, self._look = self._look, {}
        for key in look:
            followed = self.followed.get(key)
            asked = None
            if followed is not None:
                if followed.ready_at <= now and not self._is_throttled(followed, now):
                    asked = followed.asked(options.partition_bytes_max)
                    if asked is None:
                        followed.ready_at = now + FIRST_BACKOFF_SECONDS
                if asked is None:
                    self._look[key] = None
            if asked is not None:
                if named.get(key) != asked:
                    named[key] = asked
                    topics.setdefault(key[0], []).append(asked)
            elif key in named:
                del named[key]
                forgotten.setdefault(key[0], []).append(key[1])
        if not named:
            self.disconnected()  # rather than an empty session
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

    def _is_throttled(self, followed: Followed, now: float) -> bool:
        """`follower.replication.throttled.rate`, for replicas that are behind; looked at
        again in a moment.
        """
        throttle = self._throttle
        if (
            not followed.behind
            or not throttle.is_throttled(followed.partition.assignment.topic_partition)
            or throttle.allows(now)
        ):
            return False
        followed.ready_at = now + THROTTLED_SECONDS
        return True

    def next_ready_at(self) -> float:
        """When a partition is to be asked for that the last request left out; infinity when
        there is none.
        """
        left_out = (
            self.followed[key]
            for key in self._look
            if key in self.followed and self._named.get(key) is None
        )
        return min((followed.ready_at for followed in left_out), default=math.inf)

    def unsynced(self) -> list[Partition]:
        """Those that wait to be asked for until their topic's `flush.before.ack` is done
        with what they have.
        """
        found = [self.followed[key].partition for key in self._look if key in self.followed]
        return [
            partition
            for partition in found
            if partition.local_end_offset() < partition.log.log_end_offset
        ]

    # -- what comes back ---------------------------------------------------------------------------

    def on_answer(self, answer: FetchAnswer, now: float) -> list[Action]:
        """What to do, partition by partition.

        MqError when the leader refuses the request as a whole.
        """
        if answer.error_code:
            self.disconnected()
            code = ErrorCode(answer.error_code)
            if code in _SESSION_ERRORS:
                return []
            raise MqError(code, f"node {self.leader} refuses fetches")
        self._refused.clear()
        actions = list(self._actions(answer, now))
        for refusal, refused in self._refused.items():
            logger.log(
                logging.INFO if refusal in _PASSING else logging.WARNING,
                "fetch rejected, will retry leader=%d error=%s partitions=%d for_example=%s",
                self.leader,
                refusal.name,
                *refused,
            )
        self._session_id = answer.session_id
        if answer.session_id:
            self._epoch = self._epoch + 1 if self._epoch < 0x7FFFFFFF else 1
        else:
            self.disconnected()
        return actions

    def _actions(self, answer: FetchAnswer, now: float) -> Iterator[Action]:
        for topic_id, rows in answer.topics:
            for row in rows:
                followed = self.followed.get((topic_id, row.partition))
                if followed is None or self._named.get(followed.key) is None:
                    continue  # it is no longer followed, or anew: the answer is about what was
                self._look[followed.key] = None
                action = self._action(followed, row, now)
                if action is not None:
                    yield action

    def _action(self, followed: Followed, row: FetchedPartition, now: float) -> Action | None:
        log = followed.partition.log
        if not row.error_code:
            followed.went_well()
            if row.diverging_epoch is not None:
                self._name_again(followed.key)
                return Truncate(
                    followed, truncation_offset(followed.partition, *row.diverging_epoch)
                )
            return Append(followed, row.records, row.high_watermark, row.log_start_offset)
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and row.log_start_offset >= 0:
            empty = log.log_start_offset == log.log_end_offset
            if log.log_end_offset < row.log_start_offset or (
                empty and log.log_end_offset != row.log_start_offset
            ):
                self._name_again(followed.key)
                return Reset(followed, row.log_start_offset)
        self.postpone(followed, now)
        refusal = ErrorCode(row.error_code)
        count, example = self._refused.get(
            refusal, (0, followed.partition.assignment.topic_partition)
        )
        self._refused[refusal] = count + 1, example
        return None

    def postpone(self, followed: Followed, now: float) -> None:
        """It did not work: ask again after a pause, which grows."""
        followed.wait(now, self._options.backoff_seconds)
        self._name_again(followed.key)

    def _name_again(self, key: Key) -> None:
        self._look[key] = None
        if key in self._named:
            self._named[key] = None


_PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""One of the two has not yet seen the newest metadata: told every time, and no cause for worry."""


def truncation_offset(partition: Partition, epoch: int, end_offset: Offset) -> Offset:
    """Where to cut a log that the leader's leaves in `epoch`, which ends there at `end_offset`
    (KIP-279).

    The own log may not know that epoch: then its largest smaller one decides, and the next fetch
    goes on from there.
    """
    log = partition.log
    own_epoch, own_end = log.epochs.end_offset_for(epoch, log.log_end_offset)
    if own_epoch == NO_EPOCH:
        return max(0, min(end_offset, log.log_end_offset))
    return min(own_end, end_offset) if own_epoch == epoch else own_end
