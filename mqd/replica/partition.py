"""One partition as this node sees it: its role, epochs, in-sync replicas and high watermark.

A core: no clock, no socket, no disk. The log's end offsets, the followers' fetches and the
controller's answers come in; the high watermark, proposals for the ISR and refusals go out.

Invariants (docs/INVARIANTS.md):
- log start <= high watermark <= log end.                                  (I4)
- The high watermark never goes back while this node leads, nor while it follows without a cut of
  its log. (I5)
- It advances only while the in-sync replicas are at least the effective minimum and no replica
  outside of them is eligible to lead (the ELR, KIP-966), and never beyond what every member of the
  maximal ISR has (isr.py) - where `flush.before.ack` is set: has on stable storage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from uuid import UUID

from mqd.errors import ErrorCode, MqError
from mqd.log.partition_log import PartitionLog
from mqd.replica.isr import InSync
from mqd.replica.progress import Fetching, FollowerProgress
from mqd.replica.waiters import Append, FetchWaiter, ProduceTicket, until_durable
from mqd.types import INTERNAL_TOPICS, NO_EPOCH, IsrChange, NodeId, Offset, TopicPartition

_AS_MANY_AS_WANTED = 1 << 62


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the metadata says of one partition: who holds it, who leads it, since which epoch."""

    topic_partition: TopicPartition
    topic_id: UUID
    leader: NodeId
    """NO_NODE while nobody can lead."""
    leader_epoch: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    partition_epoch: int = 0
    elr: tuple[NodeId, ...] = ()
    """Eligible leader replicas (KIP-966)."""
    adding: tuple[NodeId, ...] = ()
    """Members of `replicas` that a reassignment is bringing in."""
    removing: tuple[NodeId, ...] = ()
    """Members of `replicas` that it will take out when those are in sync."""
    lost: tuple[NodeId, ...] = ()
    """Replicas whose logs were lost, and that were not in sync since."""
    is_new: bool = False
    """Whether the partition was made with this assignment."""


class Rules:
    """What all partitions of a node have in common. Changed in place by the service."""

    __slots__ = ("eligible", "lag_max")

    def __init__(
        self, lag_max: float = 30.0, eligible: Callable[[NodeId], int | None] = lambda node_id: None
    ) -> None:
        self.lag_max = lag_max
        """`replica.lag.time.max.ms`, in seconds."""
        self.eligible = eligible
        """The broker epoch of a node that is alive and not shutting down; None for any
        other, which joins no ISR.
        """


class Follows(Protocol):
    """Who fetches from leaders (replica/fetchers.py). Both calls are idempotent and do not wait."""

    def follow(self, partition: Partition) -> None:
        """Fetch this partition from its leader, in its leader epoch; called anew whenever
        either changes.
        """
        ...

    def unfollow(self, partition: Partition) -> None:
        """Fetch it no more: from here on nothing may be appended to or cut from its log by
        an answer that still comes.
        """
        ...


class Watch(Protocol):
    """One partition of a follower's fetch session (replica/fetch_session.py)."""

    def note(self) -> Wakes:
        """Something is new here: records, the high watermark, the log start, or who leads.

        Returns the session, to be woken.
        """
        ...


class Wakes(Protocol):
    def wake(self) -> None:
        """Answer the fetch that waits, if one does."""
        ...


class FetchNews(NamedTuple):
    """What a follower's fetch changed."""

    moved: bool
    """The high watermark."""
    proposal: IsrChange | None
    """To be sent to the controller: the follower joins the ISR."""


class Partition:
    """Leader or not; the state that Produce and Fetch of one partition meet."""

    __slots__ = (
        "_counted",
        "acks",
        "assignment",
        "epoch_start_offset",
        "fetches",
        "followers",
        "frozen",
        "held_back",
        "high_watermark",
        "in_contact",
        "in_sync",
        "is_internal",
        "is_leader",
        "leader_epoch",
        "leader_log_start_offset",
        "log",
        "min_insync_replicas",
        "news_bytes",
        "node_id",
        "rules",
        "serves",
        "short_of_replicas",
        "stable_offset",
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
        rules: Rules | None = None,
    ) -> None:
        self.node_id = node_id
        self.log = log
        self.assignment = assignment
        self.rules = rules if rules is not None else Rules()
        self.is_internal = assignment.topic_partition.topic in INTERNAL_TOPICS
        """Whether it is not for clients to write to."""
        self.leader_epoch = NO_EPOCH
        self.is_leader = False
        self.in_contact = True
        """Whether this node hears from the controller; without it a leader may have been
        replaced and not know.
        """
        self.serves = False
        """Leads, and is in contact: takes produces, and the fetches of consumers that want
        the leader.
        """
        self.min_insync_replicas = min_insync_replicas
        self.high_watermark: Offset = log.log_start_offset
        self.epoch_start_offset: Offset = log.log_end_offset
        """Of a leader: where its log ended when its epoch began.

        Below it not all may be committed yet (KIP-207).
        """
        self.leader_log_start_offset: Offset = log.log_start_offset
        """Of a follower: its leader's log start, as last heard."""
        self.in_sync = InSync(assignment.isr, assignment.partition_epoch)
        self.followers: dict[NodeId, FollowerProgress] = {}
        """Of a leader: the other replicas."""
        self._counted: tuple[FollowerProgress, ...] = ()
        """Those whose ends the high watermark waits for."""
        self.short_of_replicas = False
        """Fewer in-sync replicas than `min.insync.replicas` asks for: nothing is accepted
        with acks=all, nothing is committed.
        """
        self.frozen = False
        """The high watermark must not move: short of replicas, or others out of the ISR are
        eligible to lead because it did not.
        """
        self.acks: deque[tuple[Append, ProduceTicket]] = deque()
        """Produce requests that wait for the high watermark, in the order of their offsets."""
        self.syncs: deque[tuple[Append, ProduceTicket]] = deque()
        """Produce requests with acks=1 that wait for this replica's own fdatasync, in the
        order of their offsets.
        """
        self.fetches: dict[FetchWaiter, None] = {}
        """Consumers' requests parked here until the high watermark has moved far enough.

        A dict for its order: a set's differs by run.
        """
        self.watches: dict[Watch, None] = {}
        """Followers' fetch sessions that have this partition in them: they are told of
        whatever is new here.
        """
        self.touched = False
        """Whether this turn of the loop appended here; reset when the turn ends."""
        self.news_bytes = 0
        """Bytes appended since parked fetches were last looked at, and those that were not
        committed then.
        """
        self.stable_offset: Offset = 0
        """The last stable offset when a parked fetch was last planned or looked at that
        reads committed records only.
        """
        self.held_back = False
        """Whether that was below the high watermark."""

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
        """The ISR that was proposed and not decided yet."""
        proposal = self.in_sync.proposal
        return frozenset(node_id for node_id, _ in proposal.isr) if proposal is not None else None

    # -- what the metadata says --------------------------------------------------------------------

    def assign(self, assignment: Assignment, min_insync_replicas: int, now: float = 0.0) -> bool:
        """Take a newer assignment; tells whether the high watermark moved. Where the leadership
        went, the caller sends clients away.

        An assignment that is older than what the controller has answered to this leader's last
        proposal changes nothing.
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
        lost = self.lost_since(assignment)
        self.assignment = assignment
        self.leader_epoch = assignment.leader_epoch
        self.is_leader = assignment.leader == self.node_id
        self.serves = self.is_leader and self.in_contact
        if epochs_passed or assignment.partition_epoch > self.in_sync.partition_epoch:
            self.in_sync.commit(assignment.isr, assignment.partition_epoch)
        else:
            self.in_sync.told()
        self.configure(min_insync_replicas)
        if not self.is_leader:
            self.followers, self._counted = {}, ()
            return False
        if epochs_passed:
            self.log.epochs.assign(assignment.leader_epoch, self.log.log_end_offset)
            self.epoch_start_offset = self.log.log_end_offset
        # Of two epochs of this leader in a row the first one's fetches still count: nobody else has
        # led in between. But whom the controller has taken out may have lost its log since it
        # fetched: it says anew what it has.
        known = self.followers if epochs_passed in (0, 1) else {}
        for node_id in (in_sync_before - self.in_sync.committed) | lost:
            known.pop(node_id, None)
        self.followers = {
            node_id: known.get(node_id)
            or FollowerProgress(node_id, now, in_sync=node_id in self.in_sync.committed)
            for node_id in assignment.replicas
            if node_id != self.node_id
        }
        self.count(now)
        return self.advance()

    def lost_since(self, assignment: Assignment) -> frozenset[NodeId]:
        """Replicas that a newer assignment calls lost.

        One that was lost before may have lost its new copy, too: nobody can tell.
        """
        return frozenset(
            assignment.lost if assignment.partition_epoch > self.assignment.partition_epoch else ()
        )

    def configure(self, min_insync_replicas: int) -> None:
        self.min_insync_replicas = min_insync_replicas
        self.short_of_replicas = len(self.in_sync.committed) < self.effective_min_insync_replicas
        # The answer to a proposal does not tell the ELR. Where members left with it, also such as
        # had joined by another answer, the metadata does, a moment later; until then this node does
        # not know either which minimum the controller went by.
        elr_is_unknown = not self.in_sync.committed.issuperset(self.in_sync.recent)
        self.frozen = self.short_of_replicas or elr_is_unknown or bool(self.assignment.elr)

    def set_in_contact(self, in_contact: bool) -> None:
        self.in_contact = in_contact
        self.serves = self.is_leader and in_contact

    @property
    def effective_min_insync_replicas(self) -> int:
        """`min.insync.replicas`, but never more than there are replicas (KIP-966)."""
        return min(self.min_insync_replicas, len(self.assignment.replicas))

    # -- the high watermark ------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> Offset:
        """Below it every transaction has ended, and its marker is committed.

        Without transactions: the high watermark.
        """
        log = self.log
        return (
            log.last_stable_offset(self.high_watermark)
            if log.producers.unstable
            else self.high_watermark
        )

    def note_stable_offset(self) -> Offset:
        """The last stable offset, up to where a fetch is planned that may be parked then."""
        self.stable_offset = stable = self.last_stable_offset
        self.held_back = stable < self.high_watermark
        return stable

    def stable_news(self) -> int:
        """What of `news_bytes` counts for a parked fetch that reads committed records only.

        Nothing while a transaction holds it back; when that ends, as many bytes as anybody may
        want: the fetch is planned anew.
        """
        before, held_back = self.stable_offset, self.held_back
        stable = self.note_stable_offset()
        if not held_back and not self.held_back:
            return self.news_bytes
        return _AS_MANY_AS_WANTED if stable > before else 0

    def uncommitted_bytes(self) -> int:
        """What of `news_bytes` is still to be committed: fetches that are parked from now
        on wait for it. Never too few.
        """
        place = self.log.positions.get(self.high_watermark)
        active = self.log.active
        return (
            active.size - place[1] if place is not None and place[0] is active else self.news_bytes
        )

    def local_end_offset(self) -> Offset:
        """End of what this replica may count as its own: written, or on stable storage
        where the topic asks for it.
        """
        log = self.log
        return log.durability.end_offset if log.config.flush_before_ack else log.written_end_offset

    def advance(self) -> bool:
        """Move the high watermark to where the in-sync replicas allow it; tells whether it
        moved.
        """
        if not self.is_leader or self.frozen:
            return False
        end = self.local_end_offset()
        for follower in self._counted:
            if follower.end_offset < end:
                end = follower.end_offset
        # Only upwards (I5), and not beyond a replica that may lead next (I22).
        moved = end > self.high_watermark
        if moved:
            self.high_watermark = end
        assert self.log.log_start_offset <= self.high_watermark <= self.log.log_end_offset, self
        return moved

    def count(self, now: float) -> None:
        """Choose anew whom the high watermark waits for: the maximal ISR, and who is about to join
        it.

        Without the latter the high watermark of an ISR of one would run ahead of a follower for as
        long as producers write, and the follower, never at the high watermark, could never join (as
        Apache Kafka does).
        """
        end, maximal = self.log.written_end_offset, self.in_sync.maximal
        self._counted = tuple(
            follower
            for follower in self.followers.values()
            if follower.node_id in maximal
            or (self._is_eligible(follower) and follower.is_caught_up(end, now, self.rules.lag_max))
        )

    def _is_eligible(self, follower: FollowerProgress) -> bool:
        """Alive, not shutting down, and the incarnation that fetched is the one that is
        registered.
        """
        return (
            follower.broker_epoch != NO_EPOCH
            and self.rules.eligible(follower.node_id) == follower.broker_epoch
        )

    # -- leading -----------------------------------------------------------------------------------

    def follower_fetched(
        self,
        node_id: NodeId,
        broker_epoch: int,
        offset: Offset,
        log_start_offset: Offset,
        now: float,
        session: Fetching | None = None,
    ) -> FetchNews:
        """A follower's fetch from `offset` was found in order: it has everything below that."""
        follower = self.followers[node_id]
        follower.session = session
        follower.fetched(offset, log_start_offset, self.log.written_end_offset, broker_epoch, now)
        in_sync = self.in_sync
        proposal = None
        if node_id not in in_sync.maximal:
            if in_sync.proposal is None and self._may_join(follower):
                proposal = self._propose(in_sync.committed | {node_id})
            self.count(now)
        return FetchNews(self.advance(), proposal)

    def follower_stopped(self, node_id: NodeId) -> None:
        """It fetches this partition no more, if others still: what it had when it did is no
        reason to let it join.
        """
        follower = self.followers.get(node_id)
        if follower is not None:
            follower.stopped()

    def _may_join(self, follower: FollowerProgress) -> bool:
        return follower.end_offset >= max(
            self.high_watermark, self.epoch_start_offset
        ) and self._is_eligible(follower)

    def expand(self, now: float) -> IsrChange | None:
        """The proposal to go on with those that could not join when they fetched; None
        where there is none or a change is in flight.
        """
        if not self.is_leader or self.in_sync.proposal is not None:
            return None
        committed, lag_max = self.in_sync.committed, self.rules.lag_max
        joining = {
            follower.node_id
            for follower in self.followers.values()
            if follower.node_id not in committed
            and now - follower.heard_at <= lag_max
            and self._may_join(follower)
        }
        if not joining:
            return None
        change = self._propose(committed | joining)
        if change is not None:
            self.count(now)
        return change

    def before_write(self) -> None:
        """The first append of a turn is about to be made."""
        for follower in self.followers.values():
            follower.before_write(self.log.written_end_offset)

    def shrink(self, now: float) -> IsrChange | None:
        """The proposal to go on without those that are behind for too long; None where
        nobody is or a change is in flight.
        """
        if not self.is_leader or self.in_sync.proposal is not None:
            return None
        behind = self.shrink_candidates(now)
        if not behind:
            return None
        change = self._propose(self.in_sync.committed - behind)
        if change is not None:
            self.count(now)
        return change

    def shrink_candidates(self, now: float) -> frozenset[NodeId]:
        """Members of the ISR that have not been at the end for longer than
        `replica.lag.time.max.ms`.
        """
        end, lag_max = self.log.written_end_offset, self.rules.lag_max
        return frozenset(
            follower.node_id
            for follower in self.followers.values()
            if follower.node_id in self.in_sync.committed
            and not follower.is_caught_up(end, now, lag_max)
        )

    def _propose(self, isr: frozenset[NodeId]) -> IsrChange | None:
        """Members in the order of the replicas, each with the broker epoch under which it is known
        to be in sync (KIP-903).

        None where that cannot be taken, for all that this node knows. A refusal raises the
        partition epoch: whoever hears of that knows why, too, and so does not ask again for what is
        refused again.
        """
        assignment = self.assignment
        members = []
        for node_id in assignment.replicas:
            if node_id in isr:
                follower = self.followers.get(node_id)
                epoch = follower.broker_epoch if follower is not None else NO_EPOCH
                registered = self.rules.eligible(node_id)
                if registered is None or epoch not in (NO_EPOCH, registered):
                    return None
                members.append((node_id, registered))
        change = IsrChange(
            assignment.topic_partition,
            assignment.topic_id,
            self.leader_epoch,
            self.in_sync.partition_epoch,
            tuple(members),
        )
        self.in_sync.propose(change)
        return change

    def isr_settled(self, now: float) -> bool:
        """The controller has answered a proposal, and `in_sync` knows; tells whether the
        high watermark moved.
        """
        self.configure(self.min_insync_replicas)
        self.count(now)
        return self.advance()

    # -- following ---------------------------------------------------------------------------------

    def follower_progress(
        self, leader_high_watermark: Offset, leader_log_start_offset: Offset
    ) -> bool:
        """What the leader's answer says of committed offsets, after its records were
        appended; tells whether anything is news.
        """
        if self.is_leader:
            return False
        high_watermark = max(
            self.high_watermark, min(leader_high_watermark, self.log.written_end_offset)
        )
        news = (
            high_watermark > self.high_watermark
            or leader_log_start_offset > self.log.log_start_offset
        )
        self.high_watermark = high_watermark
        self.leader_log_start_offset = leader_log_start_offset
        return news

    def log_replaced(self) -> None:
        """The log was cut at its end or begun anew elsewhere: the high watermark stays
        within it.
        """
        self.high_watermark = min(
            max(self.high_watermark, self.log.log_start_offset), self.log.log_end_offset
        )

    # -- looking -----------------------------------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        """Whether the log is of no use any more; one that only lacks space is."""
        return not self.log.is_readable

    def is_settled(self, wanted: Offset) -> bool:
        """Whether what an `Append` waits for has come."""
        if wanted < -1:
            return self.log.durability.end_offset >= until_durable(wanted)
        return self.high_watermark >= wanted

    @property
    def low_watermark(self) -> Offset:
        """Of a leader: below it the records are gone from every in-sync replica, as their
        fetches have told.
        """
        low = self.log.log_start_offset
        for follower in self.followers.values():
            if follower.node_id in self.in_sync.committed:
                low = min(low, follower.log_start_offset)
        return low

    # -- judging requests --------------------------------------------------------------------------

    def check_append(self, acks: int) -> None:
        """Raises MqError when a produce with `acks` cannot be accepted here now."""
        if not self.serves:
            raise self.not_leader()
        if acks == -1 and self.short_of_replicas:
            raise MqError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr)} replicas in sync, {self.effective_min_insync_replicas} "
                "needed by min.insync.replicas",
            )

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Refuse whom this node does not serve as the leader, and fence by the epoch that the
        sender believes in (KIP-320).

        -1 means that it does not say.
        """
        self.fence(current_leader_epoch)
        if not self.serves:
            raise self.not_leader()

    def fence(self, current_leader_epoch: int) -> None:
        """Raises MqError where the sender believes in another leader epoch than this node."""
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
                    f"this node knows leader epoch {self.leader_epoch} only: try again",
                )

    def not_leader(self) -> MqError:
        if self.is_leader:
            return MqError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "this node does not hear from the controller and may lead no more",
            )
        return MqError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"node {self.assignment.leader} leads {self.assignment.topic_partition}",
        )
