"""The followers of a partition, on its leader. The high watermark waits for some of them, some may
join the ISR, and others must leave it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mqd.log.partition_log import PartitionLog
from mqd.replica.assignment import Assignment
from mqd.replica.isr import InSync
from mqd.replica.progress import FollowerProgress
from mqd.types import NO_EPOCH, IsrChange, NodeId, Offset


def _no_broker(node_id: NodeId) -> int | None:
    return None


@dataclass(frozen=True, slots=True)
class IsrConditions:
    """The conditions of ISR membership, for all partitions of a node."""

    lag_time_max_seconds: float = 30.0
    """Kafka's `replica.lag.time.max.ms`."""
    eligible_epoch: Callable[[NodeId], int | None] = _no_broker
    """Returns the broker epoch of a node that is alive and not shutting down. None for any other
    node: it may not join an ISR.
    """


class IsrMembership:
    """The followers of one partition, on its leader. Empty on every other node."""

    __slots__ = ("_assignment", "_log", "conditions", "counted", "followers", "in_sync")

    def __init__(
        self, log: PartitionLog, assignment: Assignment, conditions: IsrConditions
    ) -> None:
        self._log = log
        self._assignment = assignment
        self.conditions = conditions
        self.in_sync = InSync(assignment.isr, assignment.partition_epoch)
        self.followers: dict[NodeId, FollowerProgress] = {}
        """The other replicas. Other objects refer to this dict, so it is never replaced."""
        self.counted: tuple[FollowerProgress, ...] = ()
        """The followers that the high watermark waits for."""

    # -- the metadata ------------------------------------------------------------------------------

    def clear(self) -> None:
        """This node does not lead, or no longer leads: forget the followers."""
        self.followers.clear()
        self.counted = ()

    def lead(
        self, assignment: Assignment, unknown: frozenset[NodeId], now: float, *, keep: bool
    ) -> None:
        """This node leads with `assignment`.

        With `keep`, what earlier fetches showed stays valid, except for the nodes in `unknown`.
        """
        self._assignment = assignment
        known = dict(self.followers) if keep else {}
        for node_id in unknown:
            known.pop(node_id, None)
        self.followers.clear()
        for node_id in assignment.replicas:
            if node_id != assignment.leader:
                self.followers[node_id] = known.get(node_id) or FollowerProgress(
                    node_id, now, in_sync=node_id in self.in_sync.committed
                )
        self.recount(now)

    # -- the counted followers ---------------------------------------------------------------------

    def recount(self, now: float) -> None:
        """Choose the followers that the high watermark waits for: the maximal ISR (I22), and those
        that are about to join it.

        Without the second group, the high watermark of an ISR of one would run ahead of a follower
        as long as producers write. Such a follower never reaches the high watermark, so it could
        never join (Apache Kafka waits for it, too).
        """
        end, maximal = self._log.written_end_offset, self.in_sync.maximal
        lag_max = self.conditions.lag_time_max_seconds
        self.counted = tuple(
            follower
            for follower in self.followers.values()
            if follower.node_id in maximal
            or (self._is_eligible(follower) and follower.is_caught_up(end, now, lag_max))
        )

    def _is_eligible(self, follower: FollowerProgress) -> bool:
        """Alive, not shutting down, and the broker epoch of its fetches is the registered one."""
        return (
            follower.broker_epoch != NO_EPOCH
            and self.conditions.eligible_epoch(follower.node_id) == follower.broker_epoch
        )

    def low_watermark(self) -> Offset:
        """The lowest log start offset of the in-sync replicas, by their last fetches. Below it,
        none of them has records.
        """
        low = self._log.log_start_offset
        for follower in self.followers.values():
            if follower.node_id in self.in_sync.committed:
                low = min(low, follower.log_start_offset)
        return low

    # -- fetches and writes ------------------------------------------------------------------------

    def before_write(self) -> None:
        """Call it before the first append of a turn: it records which followers are at the log
        end."""
        for follower in self.followers.values():
            follower.before_write(self._log.written_end_offset)

    def follower_stopped(self, node_id: NodeId) -> None:
        """This follower no longer fetches the partition, so its last fetch does not let it join."""
        follower = self.followers.get(node_id)
        if follower is not None:
            follower.stopped()

    # -- proposals ---------------------------------------------------------------------------------

    def may_join(self, follower: FollowerProgress, needed_offset: Offset) -> bool:
        """Whether a follower may join the ISR. `needed_offset`: it must have all records below."""
        return follower.end_offset >= needed_offset and self._is_eligible(follower)

    def expand(self, now: float, needed_offset: Offset) -> IsrChange | None:
        """Propose the ISR with all followers that may join.

        None if no follower may join, or if a change is in flight.
        """
        if self.in_sync.proposal is not None:
            return None
        committed, lag_max = self.in_sync.committed, self.conditions.lag_time_max_seconds
        joining = {
            follower.node_id
            for follower in self.followers.values()
            if follower.node_id not in committed
            and now - follower.last_session_fetch_at <= lag_max
            and self.may_join(follower, needed_offset)
        }
        return self._propose_and_recount(committed | joining, now) if joining else None

    def shrink(self, now: float) -> IsrChange | None:
        """Propose the ISR without the out-of-sync replicas.

        None if all members are in sync, or if a change is in flight.
        """
        if self.in_sync.proposal is not None:
            return None
        out_of_sync = self.out_of_sync_replicas(now)
        if not out_of_sync:
            return None
        return self._propose_and_recount(self.in_sync.committed - out_of_sync, now)

    def out_of_sync_replicas(self, now: float) -> frozenset[NodeId]:
        """Members of the ISR that were last caught up more than `replica.lag.time.max.ms` ago."""
        end, lag_max = self._log.written_end_offset, self.conditions.lag_time_max_seconds
        return frozenset(
            follower.node_id
            for follower in self.followers.values()
            if follower.node_id in self.in_sync.committed
            and not follower.is_caught_up(end, now, lag_max)
        )

    def _propose_and_recount(self, isr: frozenset[NodeId], now: float) -> IsrChange | None:
        change = self.propose(isr)
        if change is not None:
            self.recount(now)
        return change

    def propose(self, isr: frozenset[NodeId]) -> IsrChange | None:
        """Propose an ISR: its members in the order of the replicas. Each has the broker epoch under
        which it is known to be in sync (KIP-903, I24).

        None if this node knows that the controller would refuse it. A refusal raises the partition
        epoch. The metadata with the new epoch shows the leader the reason, so the leader does not
        repeat a refused proposal.
        """
        assignment = self._assignment
        members = []
        for node_id in assignment.replicas:
            if node_id in isr:
                follower = self.followers.get(node_id)
                epoch = follower.broker_epoch if follower is not None else NO_EPOCH
                registered = self.conditions.eligible_epoch(node_id)
                if registered is None or epoch not in (NO_EPOCH, registered):
                    return None
                members.append((node_id, registered))
        change = IsrChange(
            assignment.topic_partition,
            assignment.topic_id,
            assignment.leader_epoch,
            self.in_sync.partition_epoch,
            tuple(members),
        )
        self.in_sync.propose(change)
        return change
