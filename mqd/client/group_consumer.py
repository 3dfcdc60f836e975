"""Reading as a member of a group: `async with open_group_consumer(client, "billing", ["orders"])`.

One task runs the membership (`membership.py`). The user's task, while it is in `next`, carries out
changes of the assignment: partitions are revoked and assigned there and nowhere else. So no other
member reads a record that the user still processes. A user that does not call `next` within
`max_poll_interval_ms` loses its partitions, as in every Kafka client.

Offsets. `commit` commits what was delivered. With `auto_commit`, Kafka's default, a batch counts as
processed when the next one is requested. Processed batches are committed at intervals, before their
partition is revoked, and when the block ends. That is at-least-once delivery: after a crash, the
last batches are read again. For exactly-once delivery see `transactional.py`.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import trio

from mqd.client.arguments import shown
from mqd.client.cluster import ClusterClient, check_client
from mqd.client.consumer import ConsumedT, Consumer
from mqd.client.errors import ClientError, invalid_type
from mqd.client.fetched_batches import ConsumedBatch, FetchedBatch
from mqd.client.fetcher import Fetcher
from mqd.client.group_commits import GroupCommits
from mqd.client.group_member import AssignmentChange, GroupMetadata
from mqd.client.group_options import GroupOptions
from mqd.client.keyword_options import takes_options
from mqd.client.membership import Membership
from mqd.client.nurseries import lasting_nursery
from mqd.client.offset_specs import OffsetSpec, check_offset_spec, resolve_offsets
from mqd.client.offsets import CommittedOffset, Offsets, check_offsets
from mqd.client.producer import Producer
from mqd.client.resource_arguments import check_partitions
from mqd.client.retry import check_retrying, retry_topic_of
from mqd.errors import ErrorCode
from mqd.protocol.record_reader import Record
from mqd.types import TopicPartition


class GroupConsumer(Consumer):
    """Made by `open_group_consumer`. One task at a time reads from it."""

    def __init__(
        self,
        client: ClusterClient,
        nursery: trio.Nursery,
        fetcher: Fetcher,
        options: GroupOptions,
    ) -> None:
        super().__init__(
            client,
            nursery,
            fetcher,
            max_wait_ms=options.max_wait_ms,
            min_bytes=options.min_bytes,
            reset=options.reset,
            timeout_s=options.timeout_s,
        )
        self._options = options
        self._membership = Membership(client, options, on_step=self._wake)
        self._member = self._membership.member
        self._commits = GroupCommits(client, nursery, self._membership, options)
        self._delivered: ConsumedBatch | None = None
        """The batch that the user works on."""
        self._unresolved: dict[TopicPartition, object] = {}
        """Assigned partitions whose start offset is not known yet, each with a token: a partition
        that is revoked and assigned again has another one."""
        self._resolving: set[TopicPartition] = set()
        self._revoked_change: AssignmentChange | None = None
        """The change whose revocation the user's callback has processed."""
        self._to_announce: tuple[TopicPartition, ...] | None = None
        """Assigned partitions for which `on_assigned` must be called."""

    # -- for users

    async def next(self) -> FetchedBatch:
        """The next batch that has records; waits for one. Runs rebalances and their callbacks.

        Cancel-safe: no batch is lost, and a cancelled callback is called again by the next call.
        Raises ClientError. After an error of one partition, that partition is not read until
        `seek`, and others are. An error of the membership is final.
        """
        return await self._next_of(self._fetcher.take)

    async def _next_of(self, take: Callable[[], ConsumedT | None]) -> ConsumedT:
        """As `next`, of what `take` takes from the fetcher."""
        self._mark_processed()
        self._member.enter_poll(trio.current_time())
        self._membership.wake()
        try:
            while True:
                await trio.lowlevel.checkpoint()
                self._check_open()
                changed = self._changed
                if self._to_announce is not None:
                    await self._announce_assigned(self._to_announce)
                    continue
                if self._member.change is not None:
                    await self._carry_out(self._member.change)
                    continue
                if self._member.failure is not None:
                    raise self._member.failure.copy()
                if self._fetcher.failures:
                    raise self._fetcher.failures.popleft()
                self._commits.commit_if_due()
                self._resolve_starts()
                batch = take()
                if batch is not None or self._fetcher.chunk_given_back:
                    self._fetcher.chunk_given_back = False
                    self._wake()
                if batch is None:
                    await changed.wait()
                    continue
                self._delivered = batch
                if len(batch.records):
                    return batch
                self._mark_processed()
        finally:
            self._member.leave_poll(trio.current_time())

    async def __anext__(self) -> FetchedBatch:
        return await self.next()

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit what was delivered, or the given offsets of owned partitions.

        Raises CommitFailed when the partitions may have another owner already,
        REBALANCE_IN_PROGRESS when a rebalance waits for `next`, and DeadlineExceeded.
        """
        self._check_open()
        if offsets is not None:
            check_offsets("offsets", offsets)
        else:
            self._mark_processed()
            offsets = dict(self._commits.processed)
        deadline = trio.current_time() + self._timeout_s
        await self._commits.commit(lambda: offsets, deadline=deadline)

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """The group's committed offset of each partition; None without one."""
        self._check_open()
        wanted = check_partitions("partitions", partitions)
        return await self._commits.fetch(wanted, stable=self._options.read_committed)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member owns."""
        return sorted(self._member.owned)

    def group_metadata(self) -> GroupMetadata:
        """The identity of this member, for `TransactionalProducer.send_offsets`. Each rebalance
        changes it."""
        return self._member.metadata()

    def positions(self) -> dict[TopicPartition, int]:
        """Offsets to commit when everything that was delivered is processed."""
        processed, batch = self._commits.processed, self._delivered
        if batch is None:
            return processed
        return processed | {TopicPartition(batch.topic, batch.partition): batch.next_offset}

    async def seek(self, tp: TopicPartition, spec: OffsetSpec) -> None:
        """Read an owned partition from somewhere else. The position there is committed next."""
        self._check_open()
        self._check_read(tp)
        check_offset_spec(tp, spec)
        found = await resolve_offsets(self._client, {tp: spec}, timeout_s=self._timeout_s)
        self._check_read(tp)
        self._start_at(tp, found[tp])
        self._commits.processed[tp] = found[tp]
        self._drop_delivered(tp)

    async def rewind(self) -> None:
        """Read again from the committed offsets: after an aborted transaction with offsets of this
        consumer."""
        self._check_open()
        owned = self.assignment()
        self._delivered = None
        committed = await self._commits.fetch(owned, stable=True)
        for tp in owned:
            if tp not in self._member.owned:
                continue
            start = committed[tp]
            if start is not None:
                self._start_at(tp, start.offset)
                self._commits.processed[tp] = start.offset
            else:
                self._commits.processed.pop(tp, None)
                self._unresolved[tp] = object()
                self._unassign(tp)
        self._wake()

    async def consume_with_retry(
        self,
        producer: Producer,
        handler: Callable[[Record], Awaitable[object]],
        *,
        retry_topic: str | None = None,
        idle_s: float | None = None,
    ) -> None:
        """Call `handler` with each record. A record whose handler raises an Exception goes to the
        retry topic: `retry_topic`, or TOPIC.retry. Its offset is committed after that.

        Returns after `idle_s` seconds without a record; by default, never. Raises ClientError as
        `next`, `commit` and `Producer.retry`: let it leave the block, and the records since the
        last commit are read again.
        """
        if not isinstance(producer, Producer):
            raise invalid_type(f"producer is {shown(producer)}", "give one of open_producer")
        check_retrying(handler, retry_topic, idle_s)
        while True:
            batch = None
            with trio.move_on_after(math.inf if idle_s is None else idle_s):
                batch = await self.next()
            if batch is None:
                return
            for record in batch.records:
                try:
                    await handler(record)
                except Exception:
                    await producer.retry(
                        retry_topic or retry_topic_of(batch.topic),
                        record,
                        source=TopicPartition(batch.topic, batch.partition),
                        group=self.group_id,
                    )
            if not self.auto_commit:
                await self.commit()

    @property
    def group_id(self) -> str:
        return self._options.group_id

    @property
    def auto_commit(self) -> bool:
        """Whether delivered batches are committed without `commit`."""
        return self._options.auto_commit

    def rejoin_count(self) -> int:
        """The number of assignments that this member has received."""
        return self._member.rebalances

    # -- changes of the assignment

    async def _carry_out(self, change: AssignmentChange) -> None:
        """Commit, call the user's callback for revoked partitions, and adopt the assigned ones."""
        assert change is self._member.change
        if change.revoked and self._revoked_change is not change:
            if self._options.auto_commit and not change.lost:
                await self._commits.commit_before_revocation(change.revoked)
            await self._call_revoked(list(change.revoked), lost=change.lost)
        self._revoked_change = change
        for tp in change.revoked:
            self._forget(tp)
        assigned = self._member.change_done(change, trio.current_time())
        self._unresolved.update({tp: object() for tp in assigned})
        self._to_announce = assigned or None
        self._membership.wake()

    async def _call_revoked(self, partitions: list[TopicPartition], *, lost: bool) -> None:
        callback = self._options.on_revoked
        if lost and self._options.on_lost is not None:
            callback = self._options.on_lost
        if callback is not None:
            await callback(partitions)

    async def _announce_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        if self._options.on_assigned is not None:
            await self._options.on_assigned(list(partitions))
        self._to_announce = None

    def _forget(self, tp: TopicPartition) -> None:
        if self._fetcher.assignment_id(tp) is not None:
            self._fetcher.unassign(tp)
        self._fetcher.resume(tp)
        self._unresolved.pop(tp, None)
        self._commits.forget(tp)
        self._drop_delivered(tp)

    def _unassign(self, tp: TopicPartition) -> None:
        """Stop reading; a pause stays."""
        if self._fetcher.assignment_id(tp) is not None:
            is_paused = tp in self._fetcher.paused()
            self._fetcher.unassign(tp)
            if is_paused:
                self._fetcher.pause(tp)

    # -- positions

    def _mark_processed(self) -> None:
        """The user has processed the delivered batch."""
        batch, self._delivered = self._delivered, None
        if batch is not None:
            tp = TopicPartition(batch.topic, batch.partition)
            self._commits.processed[tp] = batch.next_offset

    def _drop_delivered(self, tp: TopicPartition) -> None:
        """The delivered batch, if it is of `tp`, does not count as processed later."""
        batch = self._delivered
        if batch is not None and (batch.topic, batch.partition) == tp:
            self._delivered = None

    def _start_at(self, tp: TopicPartition, offset: int) -> None:
        self._unresolved.pop(tp, None)
        self._fetcher.assign(tp, offset)
        self._wake()

    def _resolve_starts(self) -> None:
        wanted = {tp: token for tp, token in self._unresolved.items() if tp not in self._resolving}
        if wanted:
            self._resolving |= set(wanted)
            self._nursery.start_soon(self._resolve, wanted)

    async def _resolve(self, wanted: dict[TopicPartition, object]) -> None:
        """Find the start offset of each partition: the committed one, else according to `reset`.

        A failure is raised by `next`, and the call after that tries again.
        """
        try:
            starts = await self._find_starts(list(wanted))
        except ClientError as failure:
            self._fetcher.failures.append(failure)
            self._wake()
            return
        finally:
            self._resolving -= set(wanted)
        for tp, token in wanted.items():
            if self._unresolved.get(tp) is not token:
                continue  # revoked in the meantime, or the user called seek
            if tp in starts:
                self._start_at(tp, starts[tp])
                self._commits.on_start(tp, starts[tp])
            else:
                message = f"group {self._options.group_id!r} has no committed offset for {tp}"
                remedy = "call seek, or choose another reset"
                error = ClientError(ErrorCode.OFFSET_OUT_OF_RANGE, message, remedy=remedy)
                self._fetcher.failures.append(error)
        self._wake()

    async def _find_starts(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        committed = await self._commits.fetch(partitions, stable=self._options.read_committed)
        starts = {tp: found.offset for tp, found in committed.items() if found is not None}
        missing = [tp for tp in partitions if tp not in starts]
        if missing and self._reset != "error":
            specs: dict[TopicPartition, OffsetSpec] = dict.fromkeys(missing, self._reset)
            starts |= await resolve_offsets(self._client, specs, timeout_s=self._timeout_s)
        return starts

    # -- the end

    async def _run_member(self) -> None:
        """Take the member's steps until `_finish`."""
        await self._membership.run()

    async def _finish(self, *, orderly: bool) -> None:
        """Commit, call the user's callback and leave the group, within `close_timeout_s`.

        Without `orderly` (an exception left the block) the delivered batch is not processed, and
        the callback is not called.
        """
        options = self._options
        try:
            with trio.move_on_after(options.close_timeout_s, shield=True):
                if orderly:
                    self._mark_processed()
                else:
                    self._delivered = None
                owned = self.assignment()
                if options.auto_commit and self._member.is_member:
                    await self._commits.commit_before_revocation(owned)
                try:
                    if owned and orderly and options.on_revoked is not None:
                        await options.on_revoked(owned)
                finally:
                    self._membership.stop()
                    if options.leave:
                        await self._membership.leave(options.close_timeout_s)
        finally:
            self.close()
            self._membership.close_connections()


@takes_options(GroupOptions)
async def open_group_consumer(
    client: ClusterClient, options: GroupOptions
) -> AsyncIterator[GroupConsumer]:
    """A member of a group for the length of a block: `open_group_consumer(client, "billing",
    ["orders"], reset="beginning")`. Its arguments are the fields of GroupOptions.

    At the end of the block it commits (with `auto_commit`) and leaves. Raises ValueError or
    TypeError for a wrong argument.
    """
    check_client(client)
    fetcher = Fetcher(
        read_committed=options.read_committed,
        max_bytes=options.max_bytes,
        partition_max_bytes=options.partition_max_bytes,
        weights=options.weights,
    )
    async with lasting_nursery() as nursery:
        consumer = GroupConsumer(client, nursery, fetcher, options)
        nursery.start_soon(consumer._run)
        nursery.start_soon(consumer._run_member)
        orderly = False
        try:
            yield consumer
            orderly = True
        finally:
            await consumer._finish(orderly=orderly)
