"""RelayProducer: a transactional producer inside the node. It writes records and the progress of
their owner atomically, so that each failover of the owner continues exactly once.

An owner is a part of the node that follows a leadership, such as one partition of a delay topic. It
has a transactional id and a group of its own, both with a reserved name (`mqd.relay.names`):

1. `begin_epoch` fences the producer of an earlier owner, and ends its open transaction.
2. `progress` returns what the last committed transaction wrote.
3. `write` writes records and the next progress in one transaction. It returns after the commit is
   decided. An exception means: unknown. Then begin at step 1 again.

So only step 2 tells what has happened, and no owner needs to know how a transaction ended (I54).

Kafka's first transaction protocol is used, which each level of `transaction.version` supports. In
it, transactions of one epoch cannot be told apart. An EndTxn or TxnOffsetCommit without a response
might arrive in the next one, so it ends the epoch. A late Produce is a duplicate by its sequence.

One task calls a producer at a time. Cancel-safe: after a cancellation, begin at step 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

import trio

from mqd.client.backoff import backoff_s
from mqd.errors import ErrorCode, MqError
from mqd.io.entropy import Entropy
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.record_reader import Record
from mqd.relay.ports import Calls, CommittedProgress
from mqd.types import NO_EPOCH, NO_OFFSET, NO_PRODUCER_ID, NodeId, TopicPartition

STEPS_SECONDS: Final = 30.0
"""For so long, a method repeats requests whose error may pass."""
TRANSACTION_TIMEOUT_MS: Final = 60_000
"""After this time, the coordinator aborts a transaction of a node that is gone. The next owner
aborts it sooner."""
REQUEST_SECONDS: Final = 10.0
"""The time for a response. After it, the request is sent again."""
_PRODUCE_TIMEOUT_MS: Final = 8_000
_SEQUENCE_MODULUS: Final = 1 << 31
_CONCURRENT_SECONDS: Final = 0.005
"""The first pause while the markers of the previous transaction are written. Each further one is
twice as long."""
_CONCURRENT_DOUBLINGS: Final = 5
_INIT, _ADD, _ADD_OFFSETS, _COMMIT, _END, _FETCH, _PRODUCE = (
    ("init_producer_id", 4),
    ("add_partitions_to_txn", 3),
    ("add_offsets_to_txn", 3),
    ("txn_offset_commit", 3),
    ("end_txn", 4),
    ("offset_fetch", 8),
    ("produce", 11),
)
"""APIs and versions: the last ones of the first transaction protocol."""

PASSING: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
"""Errors after which a request is repeated."""
REFUSED_RECORDS: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
"""Errors of a log that never accepts these records."""

ResultT = TypeVar("ResultT")


class RecordsRefused(MqError):
    """The leader of `topic_partition` never accepts these records, for the reason in `code`. With
    MESSAGE_TOO_LARGE, it may accept fewer of them."""

    def __init__(
        self, topic_partition: TopicPartition, error: MqError, indexes: Iterable[int] = ()
    ) -> None:
        """`indexes`: the first few refused records of the batch, if the leader names them."""
        super().__init__(error.code, error.message)
        self.topic_partition = topic_partition
        self.indexes = tuple(indexes)


class RelayProducer:
    """The producer of one owner. See the module."""

    def __init__(
        self,
        *,
        transactional_id: str,
        group_id: str,
        calls: Calls,
        entropy: Entropy,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        begins: Mapping[NodeId | None, trio.Semaphore] | None = None,
        on_retry: Callable[[MqError], None] | None = None,
    ) -> None:
        """`begins`: how many producers may begin an epoch at each coordinator at the same time.
        `on_retry(error)`: a request failed, and is repeated."""
        self.transactional_id = transactional_id
        self.group_id = group_id
        self._calls = calls
        self._entropy = entropy
        self._timeout_ms = transaction_timeout_ms
        self._begins = defaultdict(lambda: trio.Semaphore(1)) if begins is None else begins
        self._producer_id = NO_PRODUCER_ID
        self._epoch = NO_EPOCH
        self._sequences: defaultdict[TopicPartition, int] = defaultdict(int)
        self._is_usable = False
        """Whether an epoch has begun, and no write of it has failed."""
        self._on_retry = on_retry
        self._last_error: MqError | None = None
        """The one that was repeated last, until an epoch begins or a write ends."""

    def explained(self, error: MqError, topics: Iterable[str]) -> MqError:
        """The cause of an error, as far as it is known. The records go to these topics.

        CONCURRENT_TRANSACTIONS that stays: the markers of an earlier transaction cannot be written.
        """
        if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
            return error
        problems = (self._calls.problem_of(topic) for topic in topics)
        known = next((problem for problem in problems if problem is not None), self._last_error)
        return error if known is None else known

    async def begin_epoch(self) -> None:
        """Fence the earlier producers of this id. Their open transaction is aborted, or its commit
        completed, before this returns.

        Raises MqError: then call it again.
        """
        self._is_usable = False

        async def initialize() -> Mapping[str, Any]:
            node_id = self._calls.transaction_coordinator(self.transactional_id)
            async with self._begins[node_id]:
                return await self._at_transaction_coordinator(
                    _INIT,
                    {
                        "transactional_id": self.transactional_id,
                        "transaction_timeout_ms": self._timeout_ms,
                    },
                )

        with self._limited("no producer epoch began"):
            response = await self._repeated("begin a producer epoch", initialize)
        self._last_error = None
        self._producer_id = response["producer_id"]
        self._epoch = response["producer_epoch"]
        self._sequences.clear()
        self._is_usable = True

    async def progress(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedProgress]:
        """The progress that committed transactions wrote; without partitions that have none. Waits
        until no transaction is open that may change it.

        Raises MqError as `begin_epoch`.
        """
        topics: dict[str, list[int]] = {}
        for topic, index in topic_partitions:
            topics.setdefault(topic, []).append(index)
        body = {
            "groups": [
                {
                    "group_id": self.group_id,
                    "topics": [
                        {"name": name, "partition_indexes": indexes}
                        for name, indexes in topics.items()
                    ],
                }
            ],
            "require_stable": True,
        }

        async def fetch() -> dict[TopicPartition, CommittedProgress]:
            response = await self._at(self._calls.group_coordinator(self.group_id), _FETCH, body)
            [group] = response["groups"]
            _check(group["error_code"])
            found = {}
            for topic in group["topics"]:
                for row in topic["partitions"]:
                    _check(row["error_code"])
                    if row["committed_offset"] != NO_OFFSET:
                        topic_partition = TopicPartition(topic["name"], row["partition_index"])
                        found[topic_partition] = CommittedProgress(
                            row["committed_offset"], row["metadata"] or ""
                        )
            return found

        with self._limited("the progress was not read"):
            return await self._repeated("read the progress", fetch)

    async def write(
        self,
        records: Mapping[TopicPartition, Sequence[Record]],
        progress: Mapping[TopicPartition, CommittedProgress],
        build: Callable[..., Awaitable[bytearray]] | None = None,
    ) -> None:
        """Write the records and the progress in one transaction. The offsets of the records do not
        count. Each partition gets one batch: at most `max.message.bytes` of its topic. `build`
        makes the batches instead of `build_batch`.

        Raises MqError if the outcome is unknown: begin an epoch, and read the progress.
        PRODUCER_FENCED, INVALID_PRODUCER_EPOCH or INVALID_PRODUCER_ID_MAPPING: another node has
        become the owner. RecordsRefused: nothing was written, and these records never can be.
        """
        assert self._is_usable, "a write needs a producer epoch"
        assert progress, "records without progress would be written twice after a failover"
        self._is_usable = False
        wanted = {topic_partition: some for topic_partition, some in records.items() if some}
        with self._limited("the transaction did not end"):
            await self._add(wanted)
            await _all(
                [
                    *[
                        partial(self._produce, topic_partition, some, build)
                        for topic_partition, some in wanted.items()
                    ],
                    partial(self._commit, progress),
                ]
            )
            await self._end()
        self._last_error = None
        self._is_usable = True

    # -- steps of a transaction --------------------------------------------------------------------

    async def _add(self, wanted: Iterable[TopicPartition]) -> None:
        """Add partitions and the group to the transaction."""
        topics: dict[str, list[int]] = {}
        for topic, index in wanted:
            topics.setdefault(topic, []).append(index)

        async def add() -> None:
            response = await self._at_transaction_coordinator(
                _ADD,
                {
                    "v3_and_below_transactional_id": self.transactional_id,
                    "v3_and_below_producer_id": self._producer_id,
                    "v3_and_below_producer_epoch": self._epoch,
                    "v3_and_below_topics": [
                        {"name": name, "partitions": indexes} for name, indexes in topics.items()
                    ],
                },
            )
            codes = [
                row["partition_error_code"]
                for topic in response["results_by_topic_v3_and_below"]
                for row in topic["results_by_partition"]
            ]
            for code in sorted(codes, key=lambda code: code == ErrorCode.OPERATION_NOT_ATTEMPTED):
                _check(code)

        async def add_offsets() -> None:
            await self._at_transaction_coordinator(
                _ADD_OFFSETS, {**self._identity, "group_id": self.group_id}
            )

        if topics:
            await self._repeated("add partitions to a transaction", add)
        await self._repeated("add offsets to a transaction", add_offsets)

    async def _produce(
        self,
        topic_partition: TopicPartition,
        records: Sequence[Record],
        build: Callable[..., Awaitable[bytearray]] | None,
    ) -> None:
        first = self._sequences[topic_partition]
        self._sequences[topic_partition] = (first + len(records)) % _SEQUENCE_MODULUS
        identity: dict[str, Any] = {
            "producer_id": self._producer_id,
            "producer_epoch": self._epoch,
            "base_sequence": first,
            "transactional": True,
        }
        batch = (
            build_batch(records, **identity) if build is None else await build(records, **identity)
        )
        body = {
            "transactional_id": self.transactional_id,
            "acks": -1,
            "timeout_ms": _PRODUCE_TIMEOUT_MS,
            "topic_data": [
                {
                    "name": topic_partition.topic,
                    "partition_data": [{"index": topic_partition.partition, "records": batch}],
                }
            ],
        }

        async def produce() -> None:
            leader = self._calls.leader_of(topic_partition)
            if leader is None:
                raise MqError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic_partition} has no leader")
            response = await self._at(leader, _PRODUCE, body)
            [topic] = response["responses"]
            [row] = topic["partition_responses"]
            error = MqError(ErrorCode(row["error_code"]), row["error_message"] or "")
            if error.code in REFUSED_RECORDS:
                named = [one["batch_index"] for one in row["record_errors"]]
                raise RecordsRefused(topic_partition, error, named)
            if error.code:
                raise error

        await self._repeated(f"write to {topic_partition}", produce)

    async def _commit(self, progress: Mapping[TopicPartition, CommittedProgress]) -> None:
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, index), (offset, metadata) in progress.items():
            topics.setdefault(topic, []).append(
                {
                    "partition_index": index,
                    "committed_offset": offset,
                    "committed_metadata": metadata,
                }
            )
        body = {
            **self._identity,
            "group_id": self.group_id,
            "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        }

        async def commit() -> None:
            response = await self._at(self._calls.group_coordinator(self.group_id), _COMMIT, body)
            for topic in response["topics"]:
                for row in topic["partitions"]:
                    _check(row["error_code"])

        await self._repeated("commit the progress", commit, late_is_harmless=False)

    async def _end(self) -> None:
        async def end() -> None:
            await self._at_transaction_coordinator(_END, {**self._identity, "committed": True})

        await self._repeated("commit a transaction", end, late_is_harmless=False)

    # -- requests ----------------------------------------------------------------------------------

    @property
    def _identity(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self._producer_id,
            "producer_epoch": self._epoch,
        }

    async def _at_transaction_coordinator(
        self, api: tuple[str, int], body: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        node_id = self._calls.transaction_coordinator(self.transactional_id)
        response = await self._at(node_id, api, body)
        _check(response.get("error_code", 0))
        return response

    async def _at(
        self, node_id: NodeId | None, api: tuple[str, int], body: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The response of a node. Raises MqError if there is none."""
        name, version = api
        if node_id is None:
            raise MqError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the cluster has none now")
        with trio.move_on_after(REQUEST_SECONDS):
            try:
                return await self._calls.request(
                    node_id, self.transactional_id, name, version, body
                )
            except OSError as error:
                raise MqError(ErrorCode.NETWORK_EXCEPTION, str(error)) from error
        raise MqError(ErrorCode.NETWORK_EXCEPTION, f"node {node_id} does not respond")

    @contextmanager
    def _limited(self, what: str) -> Iterator[None]:
        """Raises MqError, with the last error of the steps, if they do not end in time."""
        with trio.move_on_after(STEPS_SECONDS) as scope:
            yield
        if scope.cancelled_caught:
            known = self._last_error
            code = ErrorCode.REQUEST_TIMED_OUT if known is None else known.code
            cause = "" if known is None else f": {known.message}"
            raise MqError(code, f"{what} within {STEPS_SECONDS:g} s{cause}")

    async def _repeated(
        self,
        what: str,
        attempt: Callable[[], Awaitable[ResultT]],
        *,
        late_is_harmless: bool = True,
    ) -> ResultT:
        """The result of the first attempt without an error that may pass.

        Without a response, the request may still arrive. If it would do harm in a later transaction
        of the same epoch, it is not repeated: the epoch is over, and fences it (I54).
        """
        attempts = concurrent = 0
        while True:
            try:
                return await attempt()
            except MqError as error:
                if error.code not in PASSING:
                    raise
                if error.code is ErrorCode.NETWORK_EXCEPTION and not late_is_harmless:
                    raise
                attempts += 1
                self._note(what, error)
                if error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
                    await trio.sleep(
                        _CONCURRENT_SECONDS * 2 ** min(concurrent, _CONCURRENT_DOUBLINGS)
                    )
                    concurrent += 1
                    continue
            await trio.sleep(backoff_s(attempts - 1, self._entropy.random()))

    def _note(self, what: str, error: MqError) -> None:
        why = f": {error.message}" if error.message else ""
        failed = MqError(error.code, f"cannot {what}{why}")
        known = self._last_error
        if known is None or error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
            self._last_error = failed
        if self._on_retry is not None:
            self._on_retry(failed)


def _check(code: int) -> None:
    if code:
        raise MqError(ErrorCode(code))


async def _all(steps: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Run the steps at once. Raises the first MqError; the other steps are cancelled."""
    errors: list[MqError] = []

    async def run(step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except MqError as error:
            errors.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for step in steps:
            nursery.start_soon(run, step)
    if errors:
        raise errors[0]
