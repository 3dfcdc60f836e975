"""The state of one follower, as its leader knows it from the follower's fetches. Pure.

A fetch acknowledges all records below its offset. The leader does not know the state between two
fetches. So the time at which a follower was last caught up is the time of a fetch from the leader's
log end. With constant writes, if this fetch reaches the log end of the previous fetch, it is the
time of that fetch (Kafka's `Replica.updateFetchState`).
"""

from __future__ import annotations

import math
from typing import Protocol

from mqd.types import NO_EPOCH, NO_OFFSET, NodeId, Offset


class UsedSession(Protocol):
    """The fetch session in which a follower fetches this partition."""

    last_used: float
    """The time of its last fetch, also if that did not name this partition."""


class FollowerProgress:
    """One follower of one partition. Times are monotonic seconds of the leader's clock."""

    __slots__ = (
        "_leader_end_at_last_fetch",
        "broker_epoch",
        "end_offset",
        "last_caught_up_at",
        "last_fetch_at",
        "last_sent_offset",
        "log_start_offset",
        "node_id",
        "session",
    )

    def __init__(self, node_id: NodeId, now: float, *, in_sync: bool) -> None:
        """No fetch has arrived yet. A member of the ISR counts as caught up now, so it has
        `replica.lag.time.max.ms` for its first fetch.
        """
        self.node_id = node_id
        self.end_offset: Offset = NO_OFFSET
        """The follower has all records below it. NO_OFFSET: it did not fetch from this leader."""
        self.log_start_offset: Offset = NO_OFFSET
        self.broker_epoch = NO_EPOCH
        """The broker epoch of its last fetch."""
        self.last_fetch_at = -math.inf
        self.last_caught_up_at = now if in_sync else -math.inf
        self._leader_end_at_last_fetch: Offset = NO_OFFSET
        self.session: UsedSession | None = None
        self.last_sent_offset: Offset = NO_OFFSET
        """The first offset of the last response with records.

        A second fetch from this offset means that the follower could not use the records.
        """

    def __repr__(self) -> str:
        return (
            f"<FollowerProgress node={self.node_id} end={self.end_offset} "
            f"caught_up_at={self.last_caught_up_at}>"
        )

    def fetched(
        self,
        offset: Offset,
        log_start_offset: Offset,
        leader_end: Offset,
        broker_epoch: int,
        now: float,
    ) -> None:
        """A fetch from `offset` arrived at `now`, while the leader's log ended at `leader_end`."""
        if offset >= leader_end:
            self.last_caught_up_at = max(self.last_caught_up_at, now)
        elif (
            self._leader_end_at_last_fetch != NO_OFFSET and offset >= self._leader_end_at_last_fetch
        ):
            self.last_caught_up_at = max(self.last_caught_up_at, self.last_fetch_at)
        self.end_offset = offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self._leader_end_at_last_fetch = max(leader_end, self._leader_end_at_last_fetch)
        self.last_fetch_at = now

    def on_new_registration(self, broker_epoch: int) -> None:
        """A fetch has a broker epoch that the metadata of this node does not show yet. The
        restarted node may have lost its records (I25).
        """
        self.end_offset = NO_OFFSET
        self.broker_epoch = broker_epoch

    def stopped(self) -> None:
        """The follower no longer fetches this partition."""
        self.session = None
        self.last_fetch_at = -math.inf

    @property
    def last_session_fetch_at(self) -> float:
        """The time of the last fetch of its session.

        A fetch that does not name this partition repeats the offset of the fetch before (KIP-227).
        """
        return (
            max(self.last_fetch_at, self.session.last_used)
            if self.session is not None
            else self.last_fetch_at
        )

    def before_write(self, leader_end: Offset) -> None:
        """The leader's log ends at `leader_end` and is about to grow. A follower at the end was
        caught up until the last fetch of its session.
        """
        if self.end_offset >= leader_end:
            self.last_caught_up_at = max(self.last_caught_up_at, self.last_session_fetch_at)

    def is_caught_up(self, leader_end: Offset, now: float, lag_max: float) -> bool:
        """At the leader's log end now, or at most `lag_max` seconds ago."""
        return self.end_offset == leader_end or now - self.last_caught_up_at <= lag_max
