"""How far a follower is, as its leader knows it from the follower's fetches. Pure.

A fetch says: up to this offset I have everything. It says nothing of the time in between, so a
follower counts as caught up as of its last fetch that reached what was then the end - or, where the
leader is written without pause, what had been the end at the fetch before (Kafka's
`Replica.updateFetchState`).
"""

from __future__ import annotations

import math
from typing import Protocol

from mqd.types import NO_EPOCH, NO_OFFSET, NodeId, Offset


class Fetching(Protocol):
    """The fetch session through which a follower asks for this partition, among others."""

    last_used: float
    """When its last fetch came, whether or not that named this partition."""


class FollowerProgress:
    """One follower of one partition. Times are monotonic seconds of the leader's clock."""

    __slots__ = (
        "_leader_end_at_last_fetch",
        "broker_epoch",
        "end_offset",
        "given_offset",
        "last_caught_up_at",
        "last_fetch_at",
        "log_start_offset",
        "node_id",
        "session",
    )

    def __init__(self, node_id: NodeId, now: float, *, in_sync: bool) -> None:
        """Nothing is known yet; a member of the ISR gets the benefit of the doubt for
        `replica.lag.time.max.ms` from now on.
        """
        self.node_id = node_id
        self.end_offset: Offset = NO_OFFSET
        """What the follower has, it has below here; NO_OFFSET until it has fetched from
        this leader.
        """
        self.log_start_offset: Offset = NO_OFFSET
        self.broker_epoch = NO_EPOCH
        """With which its last fetch came."""
        self.last_fetch_at = -math.inf
        self.last_caught_up_at = now if in_sync else -math.inf
        self._leader_end_at_last_fetch: Offset = NO_OFFSET
        self.session: Fetching | None = None
        self.given_offset: Offset = NO_OFFSET
        """From where on it was last given records.

        It asks from there again where it could not use them.
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
        """A fetch from `offset` on came at `now`, while the leader's log ended at `leader_end`."""
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

    def registered_anew(self, broker_epoch: int) -> None:
        """A later registration of its node was heard of, which the metadata does not show
        here yet: what it had, it may have lost.
        """
        self.end_offset = NO_OFFSET
        self.broker_epoch = broker_epoch

    def stopped(self) -> None:
        """It does not ask for this partition any more."""
        self.session = None
        self.last_fetch_at = -math.inf

    @property
    def heard_at(self) -> float:
        """When it fetched last.

        A fetch that leaves this partition out repeats what the one before said of it (KIP-227).
        """
        return (
            max(self.last_fetch_at, self.session.last_used)
            if self.session is not None
            else self.last_fetch_at
        )

    def before_write(self, leader_end: Offset) -> None:
        """The leader's log, which ends at `leader_end`, is about to grow: until its last
        fetch the follower may have been there.
        """
        if self.end_offset >= leader_end:
            self.last_caught_up_at = max(self.last_caught_up_at, self.heard_at)

    def is_caught_up(self, leader_end: Offset, now: float, lag_max: float) -> bool:
        """At the end, or there at most `lag_max` seconds ago."""
        return self.end_offset == leader_end or now - self.last_caught_up_at <= lag_max
