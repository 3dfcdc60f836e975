"""Transactions: `async with open_transactional_producer(client, "copier-1") as producer`, then for
each transaction `async with producer.transaction()`. In it, `enqueue` records and call
`send_offsets(consumer.positions(), consumer.group_metadata())`.

To open a transactional id fences the producer that had it before and ends its open transaction. So
a copier that reads with a group, and writes with one transactional id for each process, copies each
record exactly once for `read_committed` readers. The block of `transaction` commits at its end and
aborts when an exception leaves it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mqd.client.accumulator import Batch, Outcome, Sequences
from mqd.client.arguments import check_above_zero, check_choice, check_topic
from mqd.client.batch_sender import PRODUCE
from mqd.client.claims import Access, check_access, refusal_of
from mqd.client.cluster import ClusterClient, api, check_client
from mqd.client.errors import ClientError, as_client_error
from mqd.client.group_member import GroupMetadata
from mqd.client.keyword_options import takes_options
from mqd.client.nurseries import lasting_nursery
from mqd.client.offsets import Offsets, check_group, check_offsets
from mqd.client.peer import PeerConnection
from mqd.client.producer import Producer
from mqd.client.producer_options import TransactionalOptions
from mqd.client.txn import PRODUCE_V2_FROM, Phase
from mqd.client.txn_calls import TransactionCalls
from mqd.errors import ErrorCode, MqError
from mqd.types import EXCLUSIVE, WAIT, TopicPartition


class TransactionalProducer(Producer):
    """Made by `open_transactional_producer`. Any number of tasks may send; one begins and ends
    transactions."""

    def __init__(
        self, client: ClusterClient, nursery: trio.Nursery, options: TransactionalOptions
    ) -> None:
        super().__init__(client, nursery, options)
        self._sequences = Sequences(transactional=True)
        self._transactional_id = options.transactional_id
        self._calls = TransactionCalls(
            client,
            options.transactional_id,
            transaction_timeout_ms=options.transaction_timeout_ms,
            timeout_s=options.timeout_s,
        )
        self._transactions = self._calls.state
        self._close_timeout_s = options.close_timeout_s
        self._leave = options.leave
        self._adding = False
        self._sending_offsets = 0
        """Calls of `send_offsets` that have not returned. The end of the transaction waits for
        them: otherwise their requests could arrive in the next one."""

    # -- for users

    async def begin(self) -> None:
        """Begin a transaction; records and offsets belong to it from here on."""
        super()._check_accepts_records()
        await self._calls.begin()

    async def commit(self) -> None:
        """Wait for every record and every `send_offsets`, then commit: `read_committed` readers see
        all of the transaction.

        Raises TransactionBroken if a record or an offset was refused: then abort. Raises
        DeadlineExceeded if the coordinator did not respond in time: the outcome is unknown, and
        `commit` may be called again.
        """
        super()._check_accepts_records()
        if self._transactions.phase is not Phase.COMMITTING:
            self._transactions.check_open()
            # also for those of other tasks
            await self._flush_until(lambda: not len(self._queue) and not self._sending_offsets)
            self._transactions.end(commit=True)
        await self._end("committing")

    async def abort(self) -> None:
        """End the transaction without its records and offsets. May be called again after
        DeadlineExceeded."""
        self._transactions.end(commit=False)
        reason = ClientError(ErrorCode.OPERATION_NOT_ATTEMPTED, "the transaction was aborted")
        self._drop_waiting(reason)
        while self._queue.in_flight or self._adding or self._sending_offsets:
            await self._changed.wait()
        self._drop_waiting(reason)  # halves of a batch that was in flight and too large
        await self._end("aborting")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[TransactionalProducer]:
        """One transaction for the length of a block: committed at its end, aborted when an
        exception or a cancellation leaves it."""
        await self.begin()
        try:
            yield self
            await self.commit()
        except BaseException:
            await self._finish()
            raise

    async def claim(
        self, topic: str, access: Access = "exclusive", *, timeout_s: float = 60.0
    ) -> None:
        """Become the owner of a topic with this `mqd.producer.access`: no other transactional id
        can write to it, until this one had no transaction for `mqd.producer.lease.ms`. Call it
        between transactions.

        With `access="exclusive"`, raises ClaimRefused if another id owns the topic. With
        `access="wait"`, waits until that id is idle, and raises ClaimRefused after `timeout_s`.
        Raises ClientError INVALID_CONFIG if the topic has another access mode, and
        DeadlineExceeded. After a refused claim the producer can be used. Cancel-safe: no
        transaction stays open.
        """
        check_topic(topic)
        check_choice("access", access, (EXCLUSIVE, WAIT))
        check_above_zero("timeout_s", timeout_s)
        super()._check_accepts_records()
        deadline = trio.current_time() + timeout_s
        await check_access(self._client, topic, access, timeout_s=timeout_s)
        self._transactions.begin(version_2=False)  # its partitions are added before any record
        try:
            await self._calls.claim(TopicPartition(topic, 0), deadline=deadline)
            await self.abort()
        except MqError as error:
            failure = as_client_error(error)
            # Then nothing was added. Any other error may hide that it was.
            if failure.code is not ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                self._transactions.fail(failure, by_coordinator=True)
            await self._finish()
            id_, bound_s = self._transactions.transactional_id, self._close_timeout_s
            raise await refusal_of(self._client, topic, id_, failure, timeout_s=bound_s) from error
        except BaseException:
            reason = ClientError(ErrorCode.REQUEST_TIMED_OUT, f"claiming {topic!r} was cancelled")
            self._transactions.fail(reason)
            await self._finish()
            raise

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit these offsets of the group with the transaction (KIP-447).

        Raises CommitFailed if the partitions may have another owner already, and TransactionBroken
        after other refusals. After a cancellation the transaction can only be aborted: the offsets
        may have arrived.
        """
        check_offsets("offsets", offsets)
        check_group(group)
        self._sending_offsets += 1
        try:
            await self._calls.send_offsets(offsets, group)
        finally:
            self._sending_offsets -= 1
            self._drop_if_broken()
            self._wake()

    @property
    def phase(self) -> Phase:
        return self._transactions.phase

    @property
    def producer(self) -> tuple[int, int]:
        """The producer id and epoch from the coordinator."""
        return self._transactions.producer_id, self._transactions.producer_epoch

    # -- inside

    async def _init(self) -> None:
        """Get the producer id. The coordinator fences the previous owner and ends its
        transaction."""
        await self._calls.init()
        self._sequences.restart(*self.producer)

    async def _end(self, doing: str) -> None:
        before = self.producer
        await self._calls.end(doing)
        if self.producer != before:
            self._sequences.restart(*self.producer)

    async def _abort_quietly(self) -> None:
        if self._transactions.phase in (Phase.OPEN, Phase.BROKEN, Phase.ABORTING):
            try:
                await self.abort()
            except MqError:
                pass  # the coordinator aborts it after transaction.timeout.ms, or for our successor

    def _check_accepts_records(self) -> None:
        super()._check_accepts_records()
        self._transactions.check_open()

    def _on_queued(self, tp: TopicPartition) -> None:
        self._transactions.add_partition(tp)
        if self._transactions.partitions_to_add and not self._adding:
            self._adding = True
            self._nursery.start_soon(self._add_partitions)

    def _may_send(self, tp: TopicPartition) -> bool:
        return self._transactions.may_send(tp)

    async def _add_partitions(self) -> None:
        """Add partitions at the coordinator; those used in the meantime are in the next request."""
        try:
            while await self._calls.add_partitions():
                self._wake()
        except MqError as error:
            self._transactions.fail(as_client_error(error), by_coordinator=True)
            self._drop_if_broken()
        finally:
            self._adding = False
            self._wake()

    def _version(self, connection: PeerConnection, *, at_most: int | None) -> int:
        if not self._transactions.version_2:
            return connection.version_of(api(PRODUCE), at_most=PRODUCE_V2_FROM - 1)
        version = connection.version_of(api(PRODUCE), at_most=at_most)
        if version < PRODUCE_V2_FROM:
            raise ClientError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{connection.peer} is too old for transactions of version 2",
            )
        return version

    def _should_retry(self, batch: Batch, error: ClientError) -> bool:
        return error.retriable and self._transactions.phase is Phase.OPEN

    def _on_batch_failed(self, batch: Batch, error: ClientError) -> None:
        if not batch.maybe_appended:
            self._sequences.release(batch)
        self._fail(error, outcome_uncertain=batch.maybe_appended)

    def _fail(self, error: ClientError, *, outcome_uncertain: bool) -> None:
        """The transaction is broken: drop the records that wait, since no commit can follow."""
        self._transactions.fail(error, outcome_uncertain=outcome_uncertain)
        self._drop_if_broken()

    def _drop_if_broken(self) -> None:
        if self._transactions.phase in (Phase.BROKEN, Phase.DEAD):
            assert self._transactions.error is not None
            self._drop_waiting(self._transactions.error)

    def _drop_waiting(self, reason: ClientError) -> None:
        for batch in self._queue.drop_waiting():
            if batch.maybe_appended:
                self._transactions.outcome_uncertain = True
            else:
                self._sequences.release(batch)
            self._set_outcome(batch, Outcome(error=reason))
        self._wake()

    async def _finish(self) -> None:
        """Abort a transaction that is still open."""
        if not self._leave:
            return
        with trio.move_on_after(self._close_timeout_s, shield=True):
            await self._abort_quietly()


@takes_options(TransactionalOptions)
async def open_transactional_producer(
    client: ClusterClient, options: TransactionalOptions
) -> AsyncIterator[TransactionalProducer]:
    """A TransactionalProducer for the length of a block: `open_transactional_producer(client,
    "copier-1")`. Its arguments are the fields of TransactionalOptions.

    A transaction that is open at the end of the block is aborted. Raises ClientError:
    INVALID_TRANSACTION_TIMEOUT, another refusal, DeadlineExceeded; ValueError or TypeError for a
    wrong argument.
    """
    check_client(client)
    async with lasting_nursery() as nursery:
        producer = TransactionalProducer(client, nursery, options)
        await producer._init()
        nursery.start_soon(producer._run)
        try:
            yield producer
        finally:
            await producer._finish()
            producer.close("the producer was closed")
