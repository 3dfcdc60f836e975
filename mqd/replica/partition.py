"""One partition on this node: its role, epochs and high watermark, and the requests parked at it.

A core: no clock, no socket, no disk. Its inputs are the log's end offsets, the followers' fetches
and the controller's responses. Its outputs are the high watermark, ISR proposals and errors.

Invariants (docs/INVARIANTS.md):
- log start <= high watermark <= log end.                                  (I4)
- The high watermark does not decrease while this node leads. While it follows, the high watermark
  decreases only if its log is truncated. (I5)
- It increases only if the in-sync replicas are at least the effective minimum, and if no other
  replica may lead (the ELR, KIP-966, is empty). It never passes the log end of a member of the
  maximal ISR (isr.py). With `flush.before.ack`, it never passes what they have on stable storage.
  (I22)
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from mqd.errors import ErrorCode, MqError
from mqd.log.partition_log import PartitionLog
from mqd.replica.assignment import Assignment
from mqd.replica.fetch_session import PartitionWatch
from mqd.replica.isr_membership import IsrConditions, IsrMembership
from mqd.replica.progress import UsedSession
from mqd.replica.waiters import Append, FetchWaiter, ProduceTicket, until_durable
from mqd.types import INTERNAL_TOPICS, NO_EPOCH, IsrChange, NodeId, Offset

_MORE_THAN_ANY_FETCH = 1 << 62


class FollowerFetchResult(NamedTuple):
    """The effects of a follower's fetch."""

    high_watermark_moved: bool
    proposal: IsrChange | None
    """A proposal for the controller: the follower joins the ISR."""


class Partition:
    """The state that produces and fetches of one partition share, on a leader or a follower."""

    __slots__ = (
        "acks",
        "assignment",
        "epoch_start_offset",
        "fetches",
        "followers",
        "frozen",
        "high_watermark",
        "in_contact",
        "in_sync",
        "is_internal",
        "is_leader",
        "is_restricted",
        "is_shared",
        "leader_epoch",
        "leader_log_start_offset",
        "log",
        "lso_below_high_watermark",
        "membership",
        "min_insync_replicas",
        "new_bytes",
        "node_id",
        "planned_stable_offset",
        "serves",
        "short_of_replicas",
        "syncs",
        "touched",
        "watches",
    )

    def __init__(
        self,
        node_id: NodeId,
        log: PartitionLog,
        assignment: Assignment,
        min_insync_replicas: int,
        conditions: IsrConditions | None = None,
    ) -> None:
        self.node_id = node_id
        self.log = log
        self.assignment = assignment
        self.is_shared = True
        """Whether any producer may write. Otherwise only the owner of the topic."""
        self.is_internal = assignment.topic_partition.topic in INTERNAL_TOPICS
        self.is_restricted = self.is_internal
        """Whether produce requests need further checks: one test on the hot path."""
        """Whether clients must not write to it."""
        self.leader_epoch = NO_EPOCH
        self.is_leader = False
        self.in_contact = True
        """Whether this node is in contact with the controller. Without contact, a leader may have
        been replaced without knowing it (I26).
        """
        self.serves = False
        """Leads and is in contact: accepts produces, and fetches of consumers that read from the
        leader.
        """
        self.min_insync_replicas = min_insync_replicas
        self.high_watermark: Offset = log.log_start_offset
        """On a leader: the current one. On a follower: the last one that its leader sent. The log's
        `checkpointed_high_watermark` is an older value, which survives a restart.
        """
        self.epoch_start_offset: Offset = log.log_end_offset
        """On a leader: its log end when its epoch began. Below it, records may be uncommitted
        (KIP-207).
        """
        self.leader_log_start_offset: Offset = log.log_start_offset
        """On a follower: the last log start that its leader sent."""
        self.membership = IsrMembership(
            log, assignment, conditions if conditions is not None else IsrConditions()
        )
        self.in_sync = self.membership.in_sync
        """The committed and the proposed ISR."""
        self.followers = self.membership.followers
        """On a leader: the other replicas."""
        self.short_of_replicas = False
        """Fewer in-sync replicas than `min.insync.replicas`: produces with acks=all are refused,
        and nothing is committed.
        """
        self.frozen = False
        """The high watermark must not move: the partition is short of replicas, or replicas outside
        of the ISR are eligible to lead.
        """
        self.acks: deque[tuple[Append[Partition], ProduceTicket[Partition]]] = deque()
        """Batches that wait for the high watermark, in the order of offsets."""
        self.syncs: deque[tuple[Append[Partition], ProduceTicket[Partition]]] = deque()
        """Batches with acks=1 that wait for this replica's fdatasync, in the order of offsets."""
        self.fetches: dict[FetchWaiter, None] = {}
        """Fetches of consumers that are parked here. A dict, because the order of a set differs
        from run to run.
        """
        self.watches: dict[PartitionWatch, None] = {}
        """The fetch sessions of followers that contain this partition. Each change here is reported
        to them.
        """
        self.touched = False
        """Whether the current turn has appended here."""
        self.new_bytes = 0
        """Bytes that parked fetches do not count yet: those that were uncommitted when the high
        watermark last moved, and those appended since.
        """
        self.planned_stable_offset: Offset = 0
        """The last stable offset when a fetch was last planned, or parked fetches were last woken.
        """
        self.lso_below_high_watermark = False
        """Whether `planned_stable_offset` was below the high watermark when it was taken."""

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else "not leader"
        return (
            f"<Partition {self.assignment.topic_partition} {role} "
            f"epoch={self.leader_epoch} hw={self.high_watermark}>"
        )

    @property
    def isr(self) -> frozenset[NodeId]:
        """The committed ISR."""
        return self.in_sync.committed

    @property
    def pending_isr(self) -> frozenset[NodeId] | None:
        """The proposed ISR, while the change is in flight."""
        proposal = self.in_sync.proposal
        return frozenset(node_id for node_id, _ in proposal.isr) if proposal is not None else None

    # -- the metadata ------------------------------------------------------------------------------

    def assign(self, assignment: Assignment, min_insync_replicas: int, now: float = 0.0) -> bool:
        """Take a newer assignment. Returns whether the high watermark moved. If the leader changed,
        the caller rejects the parked requests.

        An assignment that is older than the controller's last response to this leader changes
        nothing.
        """
        assert assignment.topic_id == self.assignment.topic_id, (assignment, self.assignment)
        assert assignment.leader_epoch >= self.assignment.leader_epoch, (
            assignment,
            self.assignment,
        )
        epochs_passed = assignment.leader_epoch - self.leader_epoch if self.is_leader else -1
        if not epochs_passed and assignment.partition_epoch < self.in_sync.partition_epoch:
            return False
        in_sync_before = self.in_sync.committed
        lost = assignment.lost_since(self.assignment)
        self.assignment = assignment
        self.leader_epoch = assignment.leader_epoch
        self.is_leader = assignment.leader == self.node_id
        self.serves = self.is_leader and self.in_contact
        if epochs_passed or assignment.partition_epoch > self.in_sync.partition_epoch:
            self.in_sync.commit(assignment.isr, assignment.partition_epoch)
        else:
            self.in_sync.metadata_caught_up()
        self.configure(min_insync_replicas)
        if not self.is_leader:
            self.membership.clear()
            return False
        if epochs_passed:
            self.log.epochs.assign(assignment.leader_epoch, self.log.log_end_offset)
            self.epoch_start_offset = self.log.log_end_offset
        # Fetches of the previous epoch still count if this node led in it, because no other node
        # has led in between. But a replica that the controller removed may have lost its log since
        # its last fetch, so it must fetch again before it counts.
        removed = in_sync_before - self.in_sync.committed
        self.membership.lead(assignment, removed | lost, now, keep=epochs_passed in (0, 1))
        return self.advance()

    def configure(self, min_insync_replicas: int) -> None:
        """Apply `min.insync.replicas` to the committed ISR."""
        self.min_insync_replicas = min_insync_replicas
        self.short_of_replicas = len(self.in_sync.committed) < self.effective_min_insync_replicas
        # The controller's response to a proposal does not contain the ELR. If a response removed a
        # member, even one that an earlier response added, the ELR arrives later, with the metadata.
        # Until then, this node does not know which minimum the controller applied.
        elr_is_unknown = not self.in_sync.committed.issuperset(self.in_sync.since_metadata)
        self.frozen = self.short_of_replicas or elr_is_unknown or bool(self.assignment.elr)

    def set_shared(self, is_shared: bool) -> None:
        """Whether any producer may write (`mqd.producer.access`)."""
        self.is_shared = is_shared
        self.is_restricted = self.is_internal or not is_shared

    def set_in_contact(self, in_contact: bool) -> None:
        self.in_contact = in_contact
        self.serves = self.is_leader and in_contact

    def close(self) -> None:
        """This node no longer serves the partition."""
        self.is_leader = self.serves = False

    @property
    def effective_min_insync_replicas(self) -> int:
        """`min.insync.replicas`, but at most the number of replicas (KIP-966)."""
        return min(self.min_insync_replicas, len(self.assignment.replicas))

    # -- the high watermark ------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> Offset:
        """Below it, each transaction has ended and its marker is committed.

        Without open transactions: the high watermark.
        """
        log = self.log
        return (
            log.last_stable_offset(self.high_watermark)
            if log.producers.unstable
            else self.high_watermark
        )

    def plan_stable_offset(self) -> Offset:
        """The last stable offset, remembered for a fetch that may be parked with this plan."""
        self.planned_stable_offset = stable = self.last_stable_offset
        self.lso_below_high_watermark = stable < self.high_watermark
        return stable

    def new_stable_bytes(self) -> int:
        """The part of `new_bytes` that counts for a parked read_committed fetch.

        0 while an open transaction blocks the last stable offset. When that offset moves, the
        result exceeds the minimum of any fetch, so each of these fetches is planned again.
        """
        before, was_below = self.planned_stable_offset, self.lso_below_high_watermark
        stable = self.plan_stable_offset()
        if not was_below and not self.lso_below_high_watermark:
            return self.new_bytes
        return _MORE_THAN_ANY_FETCH if stable > before else 0

    def uncommitted_bytes(self) -> int:
        """The part of `new_bytes` that is not committed yet, or more. Parked fetches count it when
        the high watermark moves next.
        """
        segment_and_position = self.log.positions.get(self.high_watermark)
        if segment_and_position is None:
            return self.new_bytes
        segment, position = segment_and_position
        active = self.log.active
        return active.size - position if segment is active else self.new_bytes

    def local_end_offset(self) -> Offset:
        """The end of the records that count as this replica's own: written, or on stable storage
        with `flush.before.ack` (I1).
        """
        log = self.log
        return log.durability.end_offset if log.config.flush_before_ack else log.written_end_offset

    @property
    def waits_for_sync(self) -> bool:
        """Whether this replica may acknowledge its records to the leader only after a sync: the
        topic has `flush.before.ack` (I1), or the log was reset (I25).
        """
        return (
            self.local_end_offset() < self.log.log_end_offset or self.log.durability.unsynced_reset
        )

    def advance(self) -> bool:
        """Move the high watermark as far as the replicas permit. Returns whether it moved."""
        if not self.is_leader or self.frozen:
            return False
        end = self.local_end_offset()
        for follower in self.membership.counted:
            if follower.end_offset < end:
                end = follower.end_offset
        # It only increases (I5), and never passes a replica that may lead next (I22).
        moved = end > self.high_watermark
        if moved:
            self.high_watermark = end
        # (I4)
        assert self.log.log_start_offset <= self.high_watermark <= self.log.log_end_offset, self
        return moved

    def has_reached(self, required_offset: Offset) -> bool:
        """Whether a batch with this required offset (see `Append`) need not wait any longer."""
        if required_offset < -1:
            return self.log.durability.end_offset >= until_durable(required_offset)
        return self.high_watermark >= required_offset

    # -- leading -----------------------------------------------------------------------------------

    def follower_fetched(
        self,
        node_id: NodeId,
        broker_epoch: int,
        offset: Offset,
        log_start_offset: Offset,
        now: float,
        session: UsedSession | None = None,
    ) -> FollowerFetchResult:
        """A follower sent a valid fetch from `offset`: it has all records below it."""
        membership, in_sync = self.membership, self.in_sync
        follower = self.followers[node_id]
        follower.session = session
        follower.fetched(offset, log_start_offset, self.log.written_end_offset, broker_epoch, now)
        proposal = None
        if node_id not in in_sync.maximal:
            if in_sync.proposal is None and membership.may_join(
                follower, max(self.high_watermark, self.epoch_start_offset)
            ):
                proposal = membership.propose(in_sync.committed | {node_id})
            membership.recount(now)
        return FollowerFetchResult(self.advance(), proposal)

    def expand_isr(self, now: float) -> IsrChange | None:
        """Propose to add the followers that could not join the ISR when they fetched."""
        if not self.is_leader:
            return None
        return self.membership.expand(now, max(self.high_watermark, self.epoch_start_offset))

    def shrink_isr(self, now: float) -> IsrChange | None:
        """Propose that the out-of-sync replicas leave."""
        return self.membership.shrink(now) if self.is_leader else None

    def isr_decided(self, now: float) -> bool:
        """The controller has decided a proposal, and `in_sync` has its response. Returns whether
        the high watermark moved.
        """
        self.configure(self.min_insync_replicas)
        self.membership.recount(now)
        return self.advance()

    # -- following ---------------------------------------------------------------------------------

    def follower_progress(
        self, leader_high_watermark: Offset, leader_log_start_offset: Offset
    ) -> bool:
        """Take the offsets of the leader's response, after its records were appended. Returns
        whether one of them is new.
        """
        if self.is_leader:
            return False
        high_watermark = max(
            self.high_watermark, min(leader_high_watermark, self.log.written_end_offset)
        )
        is_news = (
            high_watermark > self.high_watermark
            or leader_log_start_offset > self.log.log_start_offset
        )
        self.high_watermark = high_watermark
        self.leader_log_start_offset = leader_log_start_offset
        return is_news

    def log_replaced(self) -> None:
        """The log was truncated or reset: keep the high watermark within it (I4)."""
        self.high_watermark = min(
            max(self.high_watermark, self.log.log_start_offset), self.log.log_end_offset
        )

    @property
    def is_lost(self) -> bool:
        """Whether the log can no longer be used. A log that only lacks disk space is not lost."""
        return not self.log.is_readable

    # -- the checks of requests --------------------------------------------------------------------

    def check_append(self, acks: int) -> None:
        """Raises MqError if this node cannot accept a produce with `acks` now."""
        if not self.serves:
            raise self.not_leader()
        if acks == -1 and self.short_of_replicas:
            raise MqError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr)} replicas in sync, {self.effective_min_insync_replicas} "
                "needed by min.insync.replicas",
            )

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Raises MqError if this node does not lead, or if the sender knows another leader epoch
        (KIP-320). -1: the sender names no epoch.
        """
        self.fence(current_leader_epoch)
        if not self.serves:
            raise self.not_leader()

    def fence(self, current_leader_epoch: int) -> None:
        """Raises MqError if the sender knows another leader epoch than this node."""
        # A replaced leader or follower changes nothing (I24).
        if current_leader_epoch != NO_EPOCH:
            if current_leader_epoch < self.leader_epoch:
                raise MqError(
                    ErrorCode.FENCED_LEADER_EPOCH,
                    f"the leader epoch is {self.leader_epoch}: refresh the metadata",
                )
            if current_leader_epoch > self.leader_epoch:
                raise MqError(
                    ErrorCode.UNKNOWN_LEADER_EPOCH,
                    f"this node knows leader epoch {self.leader_epoch} only: retry later",
                )

    def not_leader(self) -> MqError:
        if self.is_leader:
            return MqError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "this node is not in contact with the controller, so another node may lead: "
                "refresh the metadata",
            )
        return MqError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"node {self.assignment.leader} leads {self.assignment.topic_partition}",
        )
