"""Records and offsets all or none: `async with open_transactional_producer(client, "copier-1") as producer`, then for each transaction
`async with producer.transaction()`: in it `enqueue` records, and `send_offsets(consumer.positions(), consumer.group_metadata())`.

A face over `txn_calls.py`. Whoever opens a transactional id ends what its predecessor left open and fences it, so a copy that reads
with a group and writes with one id a process does each record exactly once, as `read_committed` readers see it. The block of `transaction`
commits at its end and aborts when an exception leaves it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mqd import limits
from mqd.client.accumulator import Batch, Outcome, Sequences
from mqd.client.cluster import ClusterClient, api
from mqd.client.errors import ClientError, as_client_error
from mqd.client.group_member import GroupMetadata
from mqd.client.nurseries import lasting_nursery
from mqd.client.offsets import Offsets
from mqd.client.peer import PeerConnection
from mqd.client.producer import PRODUCE, Producer
from mqd.client.txn import PRODUCE_V2_FROM, Phase
from mqd.client.txn_calls import TransactionCalls
from mqd.errors import ErrorCode, MqError
from mqd.io.clock import Clock
from mqd.protocol.batch import Codec
from mqd.types import TopicPartition


class TransactionalProducer(Producer):
    """Made by `open_transactional_producer`. Any number of tasks may send; one begins and ends transactions."""

    def __init__(
        self,
        client: ClusterClient,
        nursery: trio.Nursery,
        transactional_id: str,
        *,
        transaction_timeout_ms: int,
        timeout_s: float,
        close_timeout_s: float,
        leave: bool,
        codec: Codec,
        linger_s: float,
        batch_bytes: int,
        buffer_bytes_max: int,
        delivery_timeout_s: float,
        unknown_topic_grace_s: float,
        clock: Clock,
    ) -> None:
        super().__init__(
            client,
            nursery,
            acks=-1,
            codec=codec,
            idempotent=False,  # we look after ids ourselves
            linger_s=linger_s,
            batch_bytes=batch_bytes,
            buffer_bytes_max=buffer_bytes_max,
            delivery_timeout_s=delivery_timeout_s,
            unknown_topic_grace_s=unknown_topic_grace_s,
            clock=clock,
        )
        self._sequences = Sequences(transactional=True)
        self._transactional_id = transactional_id
        self._calls = TransactionCalls(client, transactional_id, transaction_timeout_ms=transaction_timeout_ms, timeout_s=timeout_s)
        self._transactions = self._calls.state
        self._close_timeout_s = close_timeout_s
        self._leave = leave
        self._adding = False

    # -- for users

    async def begin(self) -> None:
        """Begin a transaction; records and offsets belong to it from here on."""
        super()._admit()
        await self._calls.begin()

    async def commit(self) -> None:
        """Wait for every record, then commit: all of the transaction is there for `read_committed`, or none.

        Raises TransactionBroken when something of it was refused (then abort), and DeadlineExceeded when the coordinator could not be
        asked in time: the outcome is open, and `commit` may be called again.
        """
        super()._admit()
        if self._transactions.phase is not Phase.COMMITTING:
            self._transactions.check_open()
            await self._hurry(lambda: not len(self._queue))  # also what other tasks send meanwhile
            self._transactions.end(commit=True)
        await self._end("committing")

    async def abort(self) -> None:
        """End the transaction without its records and offsets. May be called again after DeadlineExceeded."""
        self._transactions.end(commit=False)
        reason = ClientError(ErrorCode.OPERATION_NOT_ATTEMPTED, "the transaction was aborted")
        self._drop_waiting(reason)
        while self._queue.in_flight or self._adding:
            await self._changed.wait()
        self._drop_waiting(reason)  # the halves of a batch that was too large, and on its way until now
        await self._end("aborting")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[TransactionalProducer]:
        """One transaction for the length of a block: committed at its end, aborted when an exception or a cancellation leaves it."""
        await self.begin()
        try:
            yield self
            await self.commit()
        except BaseException:
            await self.finish()
            raise

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Let the group go on from these offsets if the transaction is committed (KIP-447).

        Raises CommitFailed when the group has gone on without the member, TransactionBroken after other refusals. Cancelled, it leaves
        a transaction that can only be aborted: nobody knows whether the offsets arrived.
        """
        try:
            await self._calls.send_offsets(offsets, group)
        finally:
            self._drop_if_broken()

    @property
    def phase(self) -> Phase:
        return self._transactions.phase

    @property
    def producer(self) -> tuple[int, int]:
        """Producer id and epoch, as the coordinator gave them."""
        return self._transactions.producer_id, self._transactions.producer_epoch

    # -- inside

    async def init(self) -> None:
        """Get the producer id: what our predecessor left open is ended, and it is fenced."""
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
                pass  # the coordinator ends it when transaction.timeout.ms is over, or our successor does

    def _admit(self) -> None:
        super()._admit()
        self._transactions.check_open()

    def _announce(self, tp: TopicPartition) -> None:
        self._transactions.want(tp)
        if self._transactions.wanted and not self._adding:
            self._adding = True
            self._nursery.start_soon(self._add_partitions)

    def _may_send(self, tp: TopicPartition) -> bool:
        return self._transactions.may_send(tp)

    async def _add_partitions(self) -> None:
        """Tell the coordinator of partitions, those that come meanwhile in the next request."""
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
            raise ClientError(ErrorCode.UNSUPPORTED_VERSION, f"{connection.peer} is too old for transactions of version 2")
        return version

    def _goes_again(self, batch: Batch, error: ClientError) -> bool:
        return error.retriable and self._transactions.phase is Phase.OPEN

    def _lose(self, batch: Batch, error: ClientError) -> None:
        if not batch.maybe_appended:
            self._sequences.give_back(batch)
        self._fail(error, doubtful=batch.maybe_appended)

    def _fail(self, error: ClientError, *, doubtful: bool) -> None:
        """The transaction is broken: what waits would only be thrown away later."""
        self._transactions.fail(error, doubtful=doubtful)
        self._drop_if_broken()

    def _drop_if_broken(self) -> None:
        if self._transactions.phase in (Phase.BROKEN, Phase.DEAD):
            assert self._transactions.error is not None
            self._drop_waiting(self._transactions.error)

    def _drop_waiting(self, reason: ClientError) -> None:
        for batch in self._queue.drop_waiting():
            if batch.maybe_appended:
                self._transactions.doubtful = True
            else:
                self._sequences.give_back(batch)
            self._finish(batch, Outcome(error=reason))
        self._wake()

    async def finish(self) -> None:
        """A transaction that is still open is not to be committed."""
        if not self._leave:
            return
        with trio.move_on_after(self._close_timeout_s, shield=True):
            await self._abort_quietly()


@asynccontextmanager
async def open_transactional_producer(
    client: ClusterClient,
    transactional_id: str,
    *,
    transaction_timeout_ms: int = 60_000,
    timeout_s: float = 60.0,
    close_timeout_s: float = 5.0,
    leave: bool = True,
    codec: Codec = Codec.NONE,
    linger_ms: float = 0.0,
    batch_bytes: int = limits.PRODUCER_BATCH_BYTES,
    buffer_bytes_max: int = limits.PRODUCER_BUFFER_BYTES_MAX,
    delivery_timeout_s: float = 120.0,
    unknown_topic_grace_s: float = 5.0,
    clock: Clock | None = None,
) -> AsyncIterator[TransactionalProducer]:
    """A TransactionalProducer for the length of a block; what is still open at its end is aborted.

    The coordinator aborts a transaction that takes longer than `transaction_timeout_ms` (KIP-98). `timeout_s` bounds each talk with the
    coordinator, `close_timeout_s` the abort of a transaction that an exception or a cancellation leaves. Raises ClientError:
    INVALID_TRANSACTION_TIMEOUT, a refusal, DeadlineExceeded. `leave=False` aborts nothing: it goes without a word, as a crash would.
    """
    if not transactional_id:
        raise ClientError(ErrorCode.INVALID_REQUEST, "a transactional id without a name", remedy="name it, one for each copy that runs")
    async with lasting_nursery() as nursery:
        producer = TransactionalProducer(
            client,
            nursery,
            transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            timeout_s=timeout_s,
            close_timeout_s=close_timeout_s,
            leave=leave,
            codec=codec,
            linger_s=linger_ms / 1000,
            batch_bytes=batch_bytes,
            buffer_bytes_max=max(buffer_bytes_max, batch_bytes, limits.PRODUCER_REQUEST_BYTES),
            delivery_timeout_s=delivery_timeout_s,
            unknown_topic_grace_s=unknown_topic_grace_s,
            clock=clock if clock is not None else client.clock,
        )
        await producer.init()
        nursery.start_soon(producer.run)
        try:
            yield producer
        finally:
            await producer.finish()
            producer.close("the producer was closed")
