"""Defects that can be planted, each of which the simulation must find: a simulation that misses a
planted defect proves nothing.

The product has no code for them: each replaces a few methods while `planted` is entered. They are
common defects: acknowledgements before durability, truncation by high watermark (KIP-101), accepted
stale epochs, ISR members that are not in sync, lost producer state, commits of former members,
partial transactions. share_bugs.py has those of share groups, relay_bugs.py those of delay topics,
queue_bugs.py those of topics in memory and of access modes. Those in storage_bugs.py,
metadata_bugs.py and budget_bugs.py appear only in rare events. `FOUND` in found.py has the seed
that finds each one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mqd.controller import brokers, isr, operations, partition_state
from mqd.coordinator.group import consumer_steps
from mqd.coordinator.group.classic import Classic
from mqd.coordinator.group.classic_group import ClassicGroup
from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.coordinator.group.offset_store import OffsetStore
from mqd.coordinator.group.reconciliation import reconcile
from mqd.coordinator.results import Results
from mqd.coordinator.txn import ending
from mqd.coordinator.txn.marker_sender import MarkerSender
from mqd.coordinator.txn.operations import SealPartitions
from mqd.coordinator.txn.shard import TransactionShard
from mqd.coordinator.txn.transaction import ONGOING
from mqd.errors import ErrorCode, MqError
from mqd.log.appending import plan_append_as_follower
from mqd.log.disk.sync_plan import SyncPlan
from mqd.log.manager import writing
from mqd.log.manager.reading import Reader
from mqd.log.partition_log import PartitionLog
from mqd.log.producers import Producers
from mqd.raft.codec import AppendEntries
from mqd.raft.node import RaftNode
from mqd.raft.service import RaftService
from mqd.replica import sealing
from mqd.replica.assignments import Assignments
from mqd.replica.follower import Follower, PartitionFetchState, Truncate
from mqd.replica.isr_membership import IsrMembership
from mqd.replica.partition import Partition
from mqd.replica.turn import Turn
from mqd.server.follower_fetch import FollowerFetch
from mqd.types import NO_EPOCH
from tests.sim import (
    budget_bugs,
    metadata_bugs,
    queue_bugs,
    relay_bugs,
    share_bugs,
    storage_bugs,
    tls_bugs,
)
from tests.sim.planting import BUGS, Bug, Patches, bug

__all__ = [
    "BUGS",
    "Bug",
    "budget_bugs",
    "metadata_bugs",
    "queue_bugs",
    "relay_bugs",
    "share_bugs",
    "storage_bugs",
    "tls_bugs",
]

# -- Raft


@bug("a vote and entries are answered before they are on stable storage")
def raft_answers_before_fsync() -> Patches:
    original = RaftService._flush_and_send

    async def flush_and_send(self: RaftService, node: RaftNode, journal: Any) -> None:
        messages, node._outbox.messages = node._outbox.messages, []
        for peer, message in messages:
            self.peer_links.links[peer].queue.put(message)
        await original(self, node, journal)

    yield RaftService, "_flush_and_send", flush_and_send


@bug("a leader counts its own entries for the majority before they are durable")
def raft_counts_unsynced() -> Patches:
    yield RaftNode, "_durable_index", lambda self: self._journal.last_index


@bug("a follower appends without comparing the entry before (Raft's log matching)")
def raft_believes_previous() -> Patches:
    original = RaftNode._on_append

    def on_append(self: RaftNode, node: Any, message: AppendEntries) -> None:
        journal, previous = self._journal, message.previous_index
        if message.entries and journal.base_index <= previous <= journal.last_index:
            message = AppendEntries(
                message.term,
                message.commit_index,
                previous,
                journal.term_at(previous),
                message.entries,
            )
        original(self, node, message)

    yield RaftNode, "_on_append", on_append


# -- leaders


@bug("acks=all is answered when the leader has appended")
def acks_all_at_append() -> Patches:
    original = Turn.wait_committed

    def wait_committed(self: Turn, ticket: Any) -> None:
        ticket.appends = [(partition, -1, *rest) for partition, _, *rest in ticket.appends]
        original(self, ticket)

    yield Turn, "wait_committed", wait_committed


@bug("consumers are served beyond the high watermark")
def serves_uncommitted() -> Patches:
    original = Reader.read

    def read(
        self: Reader, log: PartitionLog, offset: int, *, limit_offset: int, **rest: Any
    ) -> Any:
        return original(self, log, offset, limit_offset=log.written_end_offset, **rest)

    yield Reader, "read", read


@bug("the high watermark does not wait for the slowest member of the ISR")
def high_watermark_ignores_a_member() -> Patches:
    original = IsrMembership.recount

    def recount(self: IsrMembership, now: float) -> None:
        original(self, now)
        self.counted = self.counted[:1]

    yield IsrMembership, "recount", recount


@bug("the high watermark moves while fewer replicas than min.insync.replicas are in sync (KIP-966)")
def high_watermark_moves_below_min_isr() -> Patches:
    def configure(self: Partition, min_insync_replicas: int) -> None:
        self.min_insync_replicas = min_insync_replicas
        self.short_of_replicas = self.frozen = False

    yield Partition, "configure", configure


@bug("a follower joins the ISR without having caught up")
def joins_without_catching_up() -> Patches:
    yield (
        IsrMembership,
        "may_join",
        lambda self, follower, needed_offset: self._is_eligible(follower),
    )


@bug("requests of a stale or an unknown leader epoch are accepted (KIP-320)")
def stale_leader_epoch_accepted() -> Patches:
    yield Partition, "fence", lambda self, current_leader_epoch: None


@bug("flush.before.ack waits for the write only")
def flush_before_ack_ignored() -> Patches:
    yield Partition, "local_end_offset", lambda self: self.log.written_end_offset


# -- followers


@bug("a new follower cuts its log to its high watermark (KIP-101)")
def truncates_to_high_watermark() -> Patches:
    original = Follower._action
    cut: list[Any] = []

    def action(self: Follower, followed: Any, row: Any, now: float) -> Any:
        partition = followed.partition
        if not any(followed is one for one in cut):
            cut.append(followed)
            if partition.high_watermark < partition.log.log_end_offset:
                self._name_again(followed.key)
                return Truncate(followed, partition.high_watermark)
        return original(self, followed, row, now)

    yield Follower, "_action", action


@bug(
    "a follower does not say in which epoch its log ends, so nobody notices that it differs "
    "(KIP-595)"
)
def keeps_what_differs() -> Patches:
    original = PartitionFetchState.request_row

    def request_row(self: PartitionFetchState, partition_bytes_max: int) -> Any:
        found = original(self, partition_bytes_max)
        return found and (*found[:3], -1, *found[4:])

    yield PartitionFetchState, "request_row", request_row


@bug("a follower says that it has what it has not synced, although its topic has flush.before.ack")
def follower_claims_what_is_not_synced() -> Patches:
    """Both its acknowledgement and the wait before it, each of which is enough."""

    def request_row(self: PartitionFetchState, partition_bytes_max: int) -> Any:
        log = self.partition.log
        return (
            self.key[1],
            self.leader_epoch,
            log.log_end_offset,
            log.last_epoch,
            log.log_start_offset,
            partition_bytes_max,
        )

    yield PartitionFetchState, "request_row", request_row
    yield Follower, "unsynced", lambda self: []


# -- the controller


@bug("AlterPartition without compare-and-set: a deposed leader's change is believed")
def alter_partition_without_comparing() -> Patches:
    yield isr, "_check_epochs", lambda op, change, partition: None


@bug("a node that lost power keeps its place in the ISR")
def unclean_registration_ignored() -> Patches:
    original = brokers.decide_register

    def decide(image: Any, op: Any, options: Any) -> Any:
        known = image.brokers.get(op.node_id)
        return original(
            image, op if known is None else replace(op, previous_broker_epoch=known.epoch), options
        )

    yield from _decides(brokers.Register, decide)


@bug("any living replica may lead, in sync or not")
def unclean_elections() -> Patches:
    original = partition_state.elect

    def elect(before: Any, conditions: Any, **how: Any) -> Any:
        return original(before, replace(conditions, unclean=True), **how)

    yield partition_state, "elect", elect


@bug(
    "nobody compares broker epochs: what an earlier life of a node said counts for this one "
    "(KIP-903)"
)
def old_broker_epoch_accepted() -> Patches:
    """At the leader, and at the controller: of the leader that sends the request, and of the
    members in it; each check covers for the others.
    """
    fetched, checked = FollowerFetch._read, isr._checked_isr

    def registered(image: Any, node_id: Any, broker_epoch: int) -> Any:
        return image.brokers[node_id]

    def read(
        self: FollowerFetch, partition: Any, followed: Any, pending: Any, budget: int, **how: Any
    ) -> Any:
        known = self._node.image.brokers.get(pending.request.replica_id)
        if known is not None:
            pending.request = pending.request._replace(
                replica_epoch=max(known.epoch, pending.request.replica_epoch)
            )
        return fetched(self, partition, followed, pending, budget, **how)

    def check(image: Any, op: Any, change: isr.IsrChangeRequest, partition: Any) -> Any:
        return checked(
            image,
            op,
            change._replace(isr=tuple((node_id, NO_EPOCH) for node_id, _ in change.isr)),
            partition,
        )

    yield brokers, "registered_broker", registered
    yield isr, "registered_broker", registered
    yield isr, "_checked_isr", check
    yield FollowerFetch, "_read", read
    yield (
        IsrMembership,
        "_is_eligible",
        lambda self, follower: self.rules.eligible_epoch(follower.node_id) is not None,
    )


def _decides(operation: type, decide: Callable[..., Any]) -> Patches:
    yield operations, "DECIDE", {**operations.DECIDE, operation: decide}


# -- logs


@bug("a batch that was appended before is appended again")
def no_deduplication() -> Patches:
    yield Producers, "check", lambda self, *batch: None


@bug("a follower does not learn the producers of what it appends")
def followers_forget_producers() -> Patches:
    def plan(log: PartitionLog, view: memoryview, **how: Any) -> int:
        known, log.producers = log.producers, Producers()
        try:
            return plan_append_as_follower(log, view, **how)
        finally:
            log.producers = known

    yield writing, "plan_append_as_follower", plan


@bug("logs of topics that were deleted while the node was down stay")
def deletion_not_carried_out() -> Patches:
    yield Assignments, "remove_strays", lambda self, assigned: []


# -- groups and transactions (docs/TESTING.md describes the clients' operations: `--load`)


@bug("commits of old generations and member epochs are accepted", load="groups")
def old_generation_accepted() -> Patches:
    yield ClassicGroup, "check_commit", lambda self, *who, **how: None
    yield ConsumerGroup, "check_commit", lambda self, *who, **how: None


@bug("generations of classic groups begin anew with another coordinator", load="groups")
def generations_begin_anew() -> Patches:
    original = Classic.on_loaded

    def on_loaded(self: Classic, now: Any) -> Any:
        for group in self.state.by_id.values():
            if isinstance(group, ClassicGroup):
                group.generation = 0
        return original(self, now)

    yield Classic, "on_loaded", on_loaded


@bug("a partition is given to a member before another has let go of it (KIP-848)", load="groups")
def revoked_partition_handed_out_early() -> Patches:
    def given_at_once(member: Any, **how: Any) -> Any:
        return reconcile(member, **{**how, "is_owned": lambda topic_id, partition: False})

    yield consumer_steps, "reconcile", given_at_once


@bug("coordinators answer before their records are committed", load="groups")
def coordinator_answers_before_the_commit() -> Patches:
    def respond(self: Results, context: Any, responses: Any) -> None:
        context.respond(responses)
        original(self, context, ())

    original = Results.respond_when_committed
    yield Results, "respond_when_committed", respond


@bug("offsets count although their transaction was aborted", load="copy")
def offsets_of_aborted_transactions_count() -> Patches:
    original = OffsetStore.end
    yield OffsetStore, "end", lambda self, producer_id, committed: original(self, producer_id, True)


@bug("of several partitions of a transaction one does not get its marker", load="copy")
def marker_left_out() -> Patches:
    original = MarkerSender._enqueue

    def enqueue(self: MarkerSender, nursery: Any, row: Any) -> None:
        if len(row.partitions) > 1:
            nursery.start_soon(self._report, row.pending, [row.partitions.pop()])
        original(self, nursery, row)

    yield MarkerSender, "_enqueue", enqueue


@bug("a transaction is complete before its markers are written", load="copy")
def marker_not_waited_for() -> Patches:
    original = MarkerSender._enqueue

    def enqueue(self: MarkerSender, nursery: Any, row: Any) -> None:
        nursery.start_soon(self._report, row.pending, list(row.partitions))
        original(self, nursery, row)

    yield MarkerSender, "_enqueue", enqueue


@bug(
    "a producer that was replaced may commit: nobody compares its epoch with the present one",
    load="copy",
)
def replaced_producer_may_commit() -> Patches:
    original = ending.end

    def end(current: Any, producer: Any, **how: Any) -> Any:
        if current is not None and producer.producer_id == current.producer_id:
            producer = current.producer
        return original(current, producer, **how)

    yield ending, "end", end


@bug("offsets within a transaction count before it is committed", load="copy")
def offsets_count_before_the_commit() -> Patches:
    original = OffsetStore.put
    yield (
        OffsetStore,
        "put",
        lambda self, key, commit, producer_id: original(self, key, commit, None),
    )


@bug("the last stable offset is the high watermark, whatever transactions are open", load="copy")
def stable_offset_ignores_transactions() -> Patches:
    yield Partition, "last_stable_offset", property(lambda self: self.high_watermark)


@bug(
    "the last stable offset overlooks the oldest open transaction where there are several",
    load="copy",
)
def stable_offset_overlooks_a_transaction() -> Patches:
    original = Producers.first_unstable_offset

    def first(self: Producers, high_watermark: int) -> Any:
        if len(self.open) < 2:
            return original(self, high_watermark)
        kept, self.open = self.open, dict(list(self.open.items())[1:])
        try:
            return original(self, high_watermark)
        finally:
            self.open = kept

    yield Producers, "first_unstable_offset", first


@bug("what was aborted in a segment is not on disk when the segment is durable", load="copy")
def aborted_transactions_not_synced() -> Patches:
    original = SyncPlan.add_transaction_index

    def add(self: SyncPlan, segment: Any) -> None:
        if segment is not self.log.active:
            original(self, segment)

    yield SyncPlan, "add_transaction_index", add


# -- prepared transactions (KIP-939)


@bug("the next coordinator does not know that a transaction is prepared", load="prepare")
def preparation_forgotten() -> Patches:
    original = TransactionShard.on_loaded

    def on_loaded(self: TransactionShard, now: Any) -> Any:
        for name, one in self.store.transactions.items():
            if one.is_prepared:
                self.store.transactions[name] = replace(
                    one, next_producer_id=-1, next_producer_epoch=NO_EPOCH
                )
        self.store.unsealed.clear()
        return original(self, now)

    yield TransactionShard, "on_loaded", on_loaded


@bug("a prepared transaction times out", load="prepare")
def prepared_transaction_times_out() -> Patches:
    yield (
        ending,
        "timed_out",
        lambda current, now_ms, *_: current.state is ONGOING and current.started_ms + 2500 < now_ms,
    )


@bug(
    "partitions of a prepared transaction are not sealed: the epoch of its records may write more",
    load="prepare",
)
def seal_left_out() -> Patches:
    original = MarkerSender._enqueue

    def enqueue(self: MarkerSender, nursery: Any, row: Any) -> None:
        if isinstance(row.pending.effect, SealPartitions):
            nursery.start_soon(self._report, row.pending, list(row.partitions))
        else:
            original(self, nursery, row)

    yield MarkerSender, "_enqueue", enqueue


@bug(
    "the leader of a partition alone knows that a transaction is sealed, and the next one does not",
    load="prepare",
)
def seal_not_replicated() -> Patches:
    original = sealing.append_seal_nowait

    def append(
        queue: Any, partition: Partition, producer: Any, coordinator_epoch: int, now_ms: int
    ) -> Any:
        if partition.log.producers.may_seal(producer[0], producer[1], coordinator_epoch):
            partition.log.producers.seal(producer[0], producer[1], now_ms)
        return original(queue, partition, producer, coordinator_epoch, now_ms)

    yield sealing, "append_seal_nowait", append


@bug("who wrote a prepared transaction may still end it", load="prepare")
def writer_ends_what_is_prepared() -> Patches:
    original = ending.end

    def end(current: Any, producer: Any, **how: Any) -> Any:
        if current is not None and current.is_prepared and producer == current.producer:
            producer = current.owner
        return original(current, producer, **how)

    yield ending, "end", end


@bug("a decision about a prepared transaction cannot be repeated", load="prepare")
def repeated_decision_refused() -> Patches:
    original = ending.end

    def end(current: Any, producer: Any, **how: Any) -> Any:
        ended = original(current, producer, **how)
        if ended is None:
            raise MqError(ErrorCode.INVALID_TXN_STATE, "It has ended.")
        return ended

    yield ending, "end", end


@bug("the commit of a transaction that is aborted is accepted", load="prepare")
def commit_of_an_aborted_transaction_accepted() -> Patches:
    original = ending.end

    def end(current: Any, producer: Any, **how: Any) -> Any:
        try:
            return original(current, producer, **how)
        except MqError as error:
            if error.code is not ErrorCode.INVALID_TXN_STATE or current.is_prepared:
                raise
            return None

    yield ending, "end", end


@bug("who initializes a transactional id to keep its transaction has it aborted", load="prepare")
def kept_transaction_is_aborted() -> Patches:
    original = TransactionShard._prepare

    def prepare(self: TransactionShard, ticket: Any, op: Any, current: Any, now: Any) -> Any:
        if current.is_prepared and op.expected is None:
            return self._initialize(ticket, replace(op, keep_prepared=False), now)
        return original(self, ticket, op, current, now)

    yield TransactionShard, "_prepare", prepare
