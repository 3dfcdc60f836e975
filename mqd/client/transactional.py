"""Records and offsets all or none: `async with open_transactional_producer(client, "copier-1") as producer`, then for each transaction
`async with producer.transaction()`: in it `enqueue` records, and `send_offsets(consumer.positions(), consumer.group_metadata())`.

A face over `txn.py`. Whoever opens a transactional id ends what its predecessor left open and fences it, so a copy that reads
with a group and writes with one id a process does each record exactly once, as `read_committed` readers see it. The block of `transaction`
commits at its end and aborts when an exception leaves it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from mqd import limits
from mqd.client.accumulator import Batch, Outcome, Sequences
from mqd.client.cluster import ClusterClient, api
from mqd.client.coordinator import Coordinator, KeyType
from mqd.client.errors import ClientError, CommitFailed
from mqd.client.group import GroupMetadata
from mqd.client.offsets import COMMIT_CAME_TOO_LATE, Offsets
from mqd.client.peer import PeerConnection, lasting_nursery
from mqd.client.producer import PRODUCE, Producer
from mqd.client.txn import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_CLIENTS_UP_TO,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    END_TXN_V2_FROM,
    FEATURE,
    INIT_PRODUCER_ID,
    PRODUCE_V2_FROM,
    TXN_OFFSET_COMMIT,
    TXN_OFFSET_COMMIT_V1_UP_TO,
    Phase,
    Transactions,
)
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
        self._transactions = Transactions(transactional_id, transaction_timeout_ms)
        self._coordinator = Coordinator(client, transactional_id, KeyType.TRANSACTION)
        self._groups: dict[str, Coordinator] = {}
        self._timeout_s = timeout_s
        self._close_timeout_s = close_timeout_s
        self._leave = leave
        self._adding = False

    # -- for users

    async def begin(self) -> None:
        """Begin a transaction; records and offsets belong to it from here on."""
        super()._admit()
        what = f"finding the coordinator of transactional id {self._transactional_id!r}"
        connection = await self._coordinator.wait_connection(what, timeout_s=self._timeout_s)
        served = connection.versions.get(END_TXN, (0, 0))[1]
        self._transactions.begin(version_2=connection.features.get(FEATURE, 0) >= 2 and served >= END_TXN_V2_FROM)

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
        state = self._transactions
        state.check_open()
        if not offsets:
            return
        what = f"offsets of group {group.group_id!r} for transactional id {self._transactional_id!r}"
        try:
            if not state.version_2 and group.group_id not in state.groups:
                await self._call(
                    what,
                    ADD_OFFSETS_TO_TXN,
                    lambda: state.add_offsets_body(group.group_id),
                    lambda answer: state.on_offsets_added(answer, group.group_id),
                )
            coordinator = self._groups.setdefault(group.group_id, Coordinator(self._client, group.group_id, KeyType.GROUP))
            state.touched |= state.version_2
            await coordinator.call(
                what,
                TXN_OFFSET_COMMIT,
                lambda: state.commit_offsets_body(group, offsets),
                lambda answer: state.on_offsets_committed(answer, group),
                deadline=trio.current_time() + self._timeout_s,
                at_most=None if state.version_2 else TXN_OFFSET_COMMIT_V1_UP_TO,
            )
        except MqError as error:
            failure = error if isinstance(error, ClientError) else ClientError(error.code, error.message)
            self._fail(failure, by_coordinator=True)
            if error.code in COMMIT_CAME_TOO_LATE and state.phase is not Phase.DEAD:
                raise CommitFailed(error.code, f"{what}: {failure.message}") from error
            state.check_open()
        except BaseException:
            self._fail(ClientError(ErrorCode.REQUEST_TIMED_OUT, f"sending {what} was cancelled"))
            raise

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
        state = self._transactions
        what = f"getting a producer id for transactional id {self._transactional_id!r}"
        await self._call(what, INIT_PRODUCER_ID, state.init_body, state.on_init)
        self._sequences.restart(state.producer_id, state.producer_epoch)

    async def _end(self, doing: str) -> None:
        state = self._transactions
        what = f"{doing} the transaction of {self._transactional_id!r}"
        if state.needs_epoch:
            # While it is open, InitProducerId would fence whoever opened it: us. First it must be over, if the coordinator knows of it.
            await self._call(what, END_TXN, state.end_body, state.on_ended_in_doubt, at_most=END_TXN_V2_FROM - 1)
            await self._call(what, INIT_PRODUCER_ID, state.init_body, state.on_init)
            self._sequences.restart(state.producer_id, state.producer_epoch)
        elif state.needs_end:
            at_most = None if state.version_2 else END_TXN_V2_FROM - 1
            if await self._call(what, END_TXN, state.end_body, state.on_ended, at_most=at_most):
                self._sequences.restart(state.producer_id, state.producer_epoch)
        state.over()

    async def _abort_quietly(self) -> None:
        if self._transactions.phase in (Phase.OPEN, Phase.BROKEN, Phase.ABORTING):
            try:
                await self.abort()
            except MqError:
                pass  # the coordinator ends it when transaction.timeout.ms is over, or our successor does

    async def _call(
        self, what: str, key: int, body: Callable[[], Mapping[str, Any]], accept: Callable[[Any], Any], *, at_most: int | None = None
    ) -> Any:
        deadline = trio.current_time() + self._timeout_s
        return await self._coordinator.call(what, key, body, accept, deadline=deadline, at_most=at_most)

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
        state = self._transactions
        what = f"adding partitions to the transaction of {self._transactional_id!r}"
        try:
            while state.wanted and state.phase is Phase.OPEN:
                asked = tuple(state.wanted)
                await self._call(
                    what,
                    ADD_PARTITIONS_TO_TXN,
                    lambda asked=asked: state.add_body(asked),  # type: ignore[misc]
                    state.on_added,
                    at_most=ADD_PARTITIONS_CLIENTS_UP_TO,
                )
                self._wake()
        except MqError as error:
            self._fail(error if isinstance(error, ClientError) else ClientError(error.code, error.message), by_coordinator=True)
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

    def _fail(self, error: ClientError, *, doubtful: bool = True, by_coordinator: bool = False) -> None:
        """The transaction is broken: what waits would only be thrown away later."""
        self._transactions.fail(error, doubtful=doubtful, by_coordinator=by_coordinator)
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
