"""Timers of consumer groups (KIP-848): sessions, revocations, long work. All are soft state.

A timer that is no longer needed may stay: its handler checks whether it still applies.
"""

from __future__ import annotations

from typing import Final

from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.coordinator.group.consumer_member import ConsumerGroupMember
from mqd.coordinator.group.state import State
from mqd.coordinator.shard import Moment

SESSION: Final = "consumer-session"
"""Timer of (group, member): the session ends."""
REBALANCE: Final = "consumer-rebalance"
"""Timer of (group, member): the time to revoke partitions ends."""
JOIN: Final = "consumer-join"
"""Timer of (group, member): the time to join again ends, for a member of the classic protocol."""
SYNC: Final = "consumer-sync"
"""Timer of (group, member): the time to send SyncGroup ends, for the same members."""
RESOLVE: Final = "consumer-resolve"
"""Timer of (group): the next slice of a search for the topics of expressions."""
ASSIGN: Final = "consumer-assign"
"""Timer without a subject: the next slice of a target assignment."""
SLICES: Final = frozenset((RESOLVE, ASSIGN))
"""Timers whose handlers take a slice of long work: one in each call of the shard."""
SLOW: Final = "consumer-slow"
"""Timer of (group): the log names the members for which a rebalance waits."""

SLICE_SECONDS: Final = 0.05
"""Between two slices of a search: at least as long as the slowest slice takes."""
_TARGET_SLICE_SECONDS: Final = 0.02
"""Between two slices of a target assignment. One takes 5 to 10 ms."""
_SLOW_HEARTBEATS: Final = 3
"""Members reach a new target within two heartbeats; after three, the log names the others."""


class ConsumerTimers:
    """Sets and cancels the timers of a shard's consumer groups."""

    def __init__(self, state: State) -> None:
        self._state = state

    def expect_heartbeat(
        self, group: ConsumerGroup, member: ConsumerGroupMember, now: Moment
    ) -> None:
        """A heartbeat must arrive before the session ends."""
        if member.classic is not None:
            session_ms = member.classic.session_timeout_ms
        else:
            session_ms = self._state.options.group(group.group_id, "consumer.session.timeout.ms")
        self._state.timers.set(
            (SESSION, group.group_id, member.member_id), now.seconds + session_ms / 1000
        )

    def expect_target(self, group: ConsumerGroup, now: Moment) -> None:
        """Members are on the way to a target."""
        key = SLOW, group.group_id
        if key not in self._state.timers:
            heartbeat_ms = self._state.options.group(
                group.group_id, "consumer.heartbeat.interval.ms"
            )
            self._state.timers.set(key, now.seconds + _SLOW_HEARTBEATS * heartbeat_ms / 1000)

    def limit_revocation(
        self, group: ConsumerGroup, member: ConsumerGroupMember, now: Moment
    ) -> None:
        self._state.timers.set(
            (REBALANCE, group.group_id, member.member_id),
            now.seconds + member.rebalance_timeout_ms / 1000,
        )

    def end_revocation(self, group: ConsumerGroup, member: ConsumerGroupMember) -> None:
        self._state.timers.cancel((REBALANCE, group.group_id, member.member_id))

    def continue_search(self, group: ConsumerGroup, now: Moment) -> None:
        self._state.timers.set((RESOLVE, group.group_id), now.seconds + SLICE_SECONDS)

    def continue_target(self, now: Moment) -> None:
        if (ASSIGN,) not in self._state.timers:
            self._state.timers.set((ASSIGN,), now.seconds + _TARGET_SLICE_SECONDS)
