"""The requests of one transactional id to its coordinators: init, begin, add, end, prepare.

`txn.py` decides which requests are valid and what a response means; this file sends them.
`coordinator.py` finds the broker and retries when the coordinator moves. Also `end_transaction`,
for an external coordinator that decides about a prepared transaction of another process (KIP-939).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import trio

from mqd.client.arguments import (
    INT16_MAX,
    INT64_MAX,
    check_above_zero,
    check_flag,
    check_id,
    check_whole,
)
from mqd.client.cluster import ClusterClient, check_client
from mqd.client.coordinator import Coordinator, KeyType
from mqd.client.errors import ClientError, CommitFailed, as_client_error, error_from_wire
from mqd.client.group_member import GroupMetadata
from mqd.client.offsets import COMMIT_CAME_TOO_LATE, Offsets
from mqd.client.peer import PeerConnection
from mqd.client.txn import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_CLIENTS_UP_TO,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    END_TXN_V2_FROM,
    FEATURE,
    INIT_PRODUCER_ID,
    TWO_PHASE_FROM,
    TWO_PHASE_REMEDY,
    TXN_OFFSET_COMMIT,
    TXN_OFFSET_COMMIT_V1_UP_TO,
    Phase,
    PreparedTransaction,
    Transactions,
)
from mqd.errors import ErrorCode, MqError
from mqd.types import NO_EPOCH, NO_PRODUCER_ID, TopicPartition

REFUSED_FOR_S = 2.0
REFUSED_PAUSE_S = 0.25
_REFUSALS = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""Errors of a coordinator about the owner of the id.

A deposed coordinator that does not know it returns them from old state: no record in its log proves
them.
"""


class EndedTransaction(NamedTuple):
    """The producer id and epoch to continue with after EndTxn; -1 if the broker does not
    return them.
    """

    producer_id: int
    producer_epoch: int


def speaks_version_2(connection: PeerConnection) -> bool:
    """Whether the broker supports `transaction.version` 2 (KIP-890)."""
    served = connection.versions.get(END_TXN, (0, 0))[1]
    return connection.features.get(FEATURE, 0) >= 2 and served >= END_TXN_V2_FROM


class TransactionCalls:
    """The calls of one transactional id; `state` is its state machine."""

    def __init__(
        self,
        client: ClusterClient,
        transactional_id: str,
        *,
        transaction_timeout_ms: int,
        timeout_s: float,
        two_phase: bool = False,
    ) -> None:
        self.state = Transactions(transactional_id, transaction_timeout_ms, two_phase=two_phase)
        self._client = client
        self._coordinator = Coordinator(client, transactional_id, KeyType.TRANSACTION)
        self._groups: dict[str, Coordinator] = {}
        self._timeout_s = timeout_s

    async def init(self) -> None:
        """Get the producer id. This fences the previous producer and ends its open transaction."""
        state = self.state
        what = f"getting a producer id for transactional id {state.transactional_id!r}"
        if state.two_phase:
            connection = await self._connection()
            served = connection.versions.get(INIT_PRODUCER_ID, (0, 0))[1]
            if served < TWO_PHASE_FROM:
                raise ClientError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"{connection.peer} has no two-phase commit: it serves InitProducerId up to"
                    f" version {served}, and version {TWO_PHASE_FROM} is needed",
                    remedy=TWO_PHASE_REMEDY,
                )
        try:
            await self._call(what, INIT_PRODUCER_ID, state.init_body, state.on_init)
            if state.two_phase and state.supports_keep_prepared is None:
                await self._call(
                    what, INIT_PRODUCER_ID, state.detect_keep_body, state.on_keep_detected
                )
                if not state.supports_keep_prepared:
                    # Then transactions have no timeout from their beginning.
                    await self._call(what, INIT_PRODUCER_ID, state.init_body, state.on_init)
        except ClientError as error:
            if (
                state.two_phase
                and error.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                and TWO_PHASE_REMEDY not in error.remedy
            ):
                error.remedy = f"{error.remedy}; or {TWO_PHASE_REMEDY}"
            raise

    async def begin(self) -> None:
        """Begin a transaction in the version that the cluster has finalized."""
        connection = await self._connection()
        self.state.begin(version_2=speaks_version_2(connection))

    async def add_partitions(self) -> bool:
        """Add the partitions that wait for it to the transaction. False if none do."""
        state = self.state
        to_add = tuple(state.partitions_to_add)
        if not to_add or state.phase is not Phase.OPEN:
            return False
        what = f"adding partitions to the transaction of {state.transactional_id!r}"
        await self._call(
            what,
            ADD_PARTITIONS_TO_TXN,
            lambda: state.add_body(to_add),
            state.on_added,
            at_most=ADD_PARTITIONS_CLIENTS_UP_TO,
        )
        return True

    async def claim(self, tp: TopicPartition, *, deadline: float) -> None:
        """Add a partition to the empty transaction, which makes its id the owner of the topic.
        Retries until the deadline while a topic with `mqd.producer.access=wait` has another owner.
        """
        state = self.state
        what = f"claiming the topic {tp.topic!r} for {state.transactional_id!r}"
        await self._coordinator.call(
            what,
            ADD_PARTITIONS_TO_TXN,
            lambda: state.add_body([tp]),
            state.on_added,
            deadline=deadline,
            at_most=ADD_PARTITIONS_CLIENTS_UP_TO,
        )

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Add offsets of a group to the transaction. Raises CommitFailed, or the error of a
        transaction that failed.

        If it is cancelled, the transaction can only be aborted.
        """
        state = self.state
        state.check_open()
        if not offsets:
            return
        name = group.group_id
        what = f"offsets of group {name!r} for transactional id {state.transactional_id!r}"
        try:
            if not state.version_2 and name not in state.groups:
                await self._call(
                    what,
                    ADD_OFFSETS_TO_TXN,
                    lambda: state.add_offsets_body(name),
                    lambda response: state.on_offsets_added(response, name),
                )
            coordinator = self._groups.setdefault(
                name, Coordinator(self._client, name, KeyType.GROUP)
            )
            state.known_to_brokers |= state.version_2
            await coordinator.call(
                what,
                TXN_OFFSET_COMMIT,
                lambda: state.commit_offsets_body(group, offsets),
                lambda response: state.on_offsets_committed(response, group),
                deadline=trio.current_time() + self._timeout_s,
                at_most=None if state.version_2 else TXN_OFFSET_COMMIT_V1_UP_TO,
            )
        except MqError as error:
            failure = as_client_error(error)
            state.fail(failure, by_coordinator=True)
            if error.code in COMMIT_CAME_TOO_LATE and state.phase is not Phase.DEAD:
                raise CommitFailed(error.code, f"{what}: {failure.message}") from error
            state.check_open()
        except BaseException:
            state.fail(ClientError(ErrorCode.REQUEST_TIMED_OUT, f"sending {what} was cancelled"))
            raise

    async def end(self, doing: str) -> None:
        """Complete what `Transactions.end` began; this may change the producer epoch. Raises
        ClientError if the producer is DEAD since then.
        """
        state = self.state
        state.check_ending()
        what = f"{doing} the transaction of {state.transactional_id!r}"
        if state.epoch_uncertain:
            # `prepare` had no response: a retry returns the epoch that may end the transaction.
            await self._call(what, INIT_PRODUCER_ID, state.prepare_body, state.on_prepared)
        if state.needs_epoch:
            # While it is open, InitProducerId would fence its producer: this one.
            # So abort it first, if the coordinator knows of it.
            at_most = END_TXN_V2_FROM - 1
            await self._call(
                what, END_TXN, state.end_body, state.on_aborted_if_open, at_most=at_most
            )
            await self._call(what, INIT_PRODUCER_ID, state.init_body, state.on_init)
        elif state.needs_end:
            limit = None if state.version_2 else END_TXN_V2_FROM - 1
            await self._call(what, END_TXN, state.end_body, state.on_ended, at_most=limit)
            if state.timeout_removed:
                await self._call(what, INIT_PRODUCER_ID, state.init_body, state.on_init)
        state.complete()

    async def prepare(self) -> PreparedTransaction:
        """Prepare the open transaction for an external coordinator (KIP-939). May be called again
        after DeadlineExceeded.
        """
        state = self.state
        if state.two_phase and state.phase is Phase.OPEN and not state.known_to_brokers:
            state.check_open()
            state.end(commit=True)
            state.complete()
            return PreparedTransaction(
                state.transactional_id, NO_PRODUCER_ID, NO_EPOCH, prepared=False
            )
        state.prepare()
        if not state.supports_keep_prepared:
            state.epoch_uncertain = False
            return PreparedTransaction(
                state.transactional_id, state.producer_id, state.producer_epoch, prepared=False
            )
        what = f"preparing the transaction of {state.transactional_id!r}"
        prepared: PreparedTransaction = await self._call(
            what, INIT_PRODUCER_ID, state.prepare_body, state.on_prepared
        )
        return prepared

    async def _connection(self) -> PeerConnection:
        what = f"finding the coordinator of transactional id {self.state.transactional_id!r}"
        return await self._coordinator.wait_connection(what, timeout_s=self._timeout_s)

    async def _call(
        self,
        what: str,
        key: int,
        body: Callable[[], Mapping[str, Any]],
        accept: Callable[[Any], Any],
        *,
        at_most: int | None = None,
    ) -> Any:
        deadline = trio.current_time() + self._timeout_s
        return await self._coordinator.call(
            what, key, body, accept, deadline=deadline, at_most=at_most
        )


async def end_transaction(
    client: ClusterClient,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    commit: bool,
    *,
    timeout_s: float = 60.0,
) -> EndedTransaction:
    """Commit or abort a transaction by its ids, from any connection (KIP-939).

    The same decision may be repeated until a new transaction begins under the id. Errors are
    ClientErrors: INVALID_TXN_STATE if the transaction has the other outcome, PRODUCER_FENCED or
    INVALID_PRODUCER_EPOCH if another producer has the id. They are raised only after two seconds of
    retries, because a deposed coordinator rejects what it does not know. A producer id of -1 means
    that nothing was written: no request is sent. After DeadlineExceeded the outcome is unknown:
    call again.
    """
    check_client(client)
    check_id("transactional_id", transactional_id, "writer-1")
    check_whole("producer_id", producer_id, NO_PRODUCER_ID, INT64_MAX)
    check_whole("producer_epoch", producer_epoch, NO_EPOCH, INT16_MAX)
    check_flag("commit", commit)
    check_above_zero("timeout_s", timeout_s)
    if producer_id == NO_PRODUCER_ID:
        return EndedTransaction(NO_PRODUCER_ID, NO_EPOCH)
    doing = "committing" if commit else "aborting"
    who = f"{transactional_id!r} (producer id {producer_id}, epoch {producer_epoch})"
    what = f"{doing} the transaction of {who}"
    coordinator = Coordinator(client, transactional_id, KeyType.TRANSACTION)
    deadline = trio.current_time() + timeout_s
    body = {
        "transactional_id": transactional_id,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "committed": commit,
    }

    def accept(response: Any) -> EndedTransaction:
        if response.error_code:
            raise error_from_wire(response.error_code, what)
        return EndedTransaction(response.producer_id, response.producer_epoch)

    refused_at = None
    while True:
        left_s = deadline - trio.current_time()
        connection = await coordinator.wait_connection(what, timeout_s=left_s)
        at_most = None if speaks_version_2(connection) else END_TXN_V2_FROM - 1
        try:
            return await coordinator.call(
                what, END_TXN, lambda: body, accept, deadline=deadline, at_most=at_most
            )
        except ClientError as error:
            now = trio.current_time()
            refused_at = now if refused_at is None else refused_at
            last_retry = min(refused_at + REFUSED_FOR_S, deadline - REFUSED_PAUSE_S)
            if error.code not in _REFUSALS or now >= last_retry:
                raise
        coordinator.forget()
        await trio.sleep(REFUSED_PAUSE_S)
