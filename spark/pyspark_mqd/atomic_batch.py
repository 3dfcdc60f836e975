"""Delivery guarantee atomic-batch: tasks prepare transactions, the driver commits them all or none.

Tasks: each writes in a transaction of its own, under an id that its Python process owns, and
prepares it (KIP-939). `commit` decides: the decision record D lists the transactions, and is
written before the first of them is committed. The order of steps is the protocol
(tests/spark/atomic_batch_model.py):

1. Plan, on the driver. Fence older drivers. Read D, and commit what it lists, if that is not done.
   List orphans, write D with a new claim, abort the orphans.
2. Tasks: begin, send, prepare; then read D. In a second run of a decided batch, tasks sum their
   rows only. A task whose batch is decided, or whose claim is
   superseded, aborts: the driver may have listed orphans before the task began. The message for the
   driver names the transaction and the claim.
3. `commit(N)`: fence; read D, which must have the claim; write D = N; commit each. Then list
   orphans; write D = N, ended, without the claim; abort the orphans. In a second run of a decided
   batch the first write only removes the claim, so that tasks that are late notice it. A batch that
   has the id of D and other contents is refused: an older checkpoint was restored.
4. `abort(N)`: fence; read D; abort the transactions of N, unless D has decided N.

Orphans are transactions of attempts that died or that Spark superseded. They are listed before the
last write of D, which fails for a fenced driver. So no driver aborts what belongs to the next one.
A batch write is batch 0 of a query that has a name of its own.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from .checkpoint_files import planned_ms_of, query_id_of
from .connection import client_for
from .decisions import NO_BATCH, NO_ROWS, Contents, Prepared, Slots
from .errors import OptionError
from .markers import ExactlyOnceError, RowSum
from .sink_options import Columns, SinkOptions
from .transaction_ids import WORKER_DIGITS, identity_of, worker_id

if TYPE_CHECKING:
    import pyarrow as pa

    from .sink_tasks import Task

logger = logging.getLogger("pyspark_mqd")


@dataclass(slots=True)
class TaskPrepared(WriterCommitMessage):
    """What a task reports to the driver. `transaction` is None for a task without rows."""

    query: str
    query_id: str
    claim: str
    task: int
    rows: RowSum
    transaction: Prepared | None


# -- tasks


class _Process:
    """The transactional ids of this Python process. A forked process has others."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.worker = secrets.token_hex(WORKER_DIGITS // 2)
        self.slots = Slots()
        self.lock = threading.Lock()


_process = _Process()


def _this_process() -> _Process:
    global _process
    if _process.pid != os.getpid():
        _process = _Process()
    return _process


def prepare_rows(
    options: SinkOptions,
    columns: Columns,
    batches: Iterator[pa.RecordBatch],
    *,
    query: str,
    query_id: str,
    claim: str,
    decided: int,
    task: Task,
) -> TaskPrepared:
    """Write the rows of a task in a transaction, and prepare it.

    Of a batch that the plan found decided, rows are summed and not sent: `commit` compares the sum.
    """
    from .sink_tasks import count_rows, encoder_for, send_rows

    process = _this_process()
    client = client_for(options.connection)
    encoder = encoder_for(client, options, columns, task, summed=True)
    if task.batch_id <= decided:
        count_rows(encoder, batches)
        return TaskPrepared(query, query_id, claim, task.partition, encoder.sum, None)
    with process.lock:
        slot = process.slots.take(query, task.batch_id)
    try:
        with client.raw_producer(
            transactional_id=worker_id(query, process.worker, slot),
            transaction_timeout_ms=options.transaction_timeout_ms,
            two_phase=True,
            in_flight_per_partition=options.in_flight,
            buffer_bytes_max=options.buffer_bytes,
            delivery_timeout_s=options.delivery_timeout_ms / 1000,
        ) as producer:
            producer.begin()
            send_rows(producer, encoder, batches)
            ready = producer.prepare()
    finally:
        with process.lock:
            process.slots.give_back(query, slot)
    transaction = None
    if ready.producer_id >= 0:
        transaction = Prepared(ready.transactional_id, ready.producer_id, ready.producer_epoch)
        _driver(options, query).check_undecided(task.batch_id, claim, transaction)
    return TaskPrepared(query, query_id, claim, task.partition, encoder.sum, transaction)


# -- writers


class AtomicStreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch. Spark pickles it before the tasks start: then the driver makes its plan."""

    def __init__(self, options: SinkOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._query = options.identity or ""
        self._claim = ""
        self._decided = NO_BATCH

    def __getstate__(self) -> dict[str, Any]:
        """Step 1. Spark calls it twice for each micro-batch; the second call finds it done."""
        if not self._claim:
            query_id = query_id_of(self._options.checkpoint)
            if query_id is None and self._options.identity is None:
                raise unknown_query(self._options.checkpoint)
            self._query = self._options.identity or identity_of(query_id or "")
            driver = _driver(self._options, self._query)
            self._claim = driver.plan(query_id)
            self._decided = driver.decided
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from .sink_tasks import current_task

        task = current_task()
        return prepare_rows(
            self._options,
            self._columns,
            iterator,
            query=self._query,
            query_id=task.query_id,
            claim=self._claim,
            decided=self._decided,
            task=task,
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _commit(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _abort(self._options, messages, batchId)


class AtomicWriter(DataSourceArrowWriter):
    """A batch write. With option `exactlyOnceId` a second run of the same job is refused."""

    def __init__(self, options: SinkOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._query = options.identity or f"spark-batch-{secrets.token_hex(8)}"
        self._claim = ""

    def __getstate__(self) -> dict[str, Any]:
        """Step 1. What Spark pickles for `commit` has the claim, too."""
        if not self._claim:
            driver = _driver(self._options, self._query)
            self._claim = driver.plan(self._query)
            if driver.decided > NO_BATCH:
                raise job_is_complete(self._query)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from .sink_tasks import current_task

        task = current_task().in_batch(0)
        return prepare_rows(
            self._options,
            self._columns,
            iterator,
            query=self._query,
            query_id=self._query,
            claim=self._claim,
            decided=NO_BATCH,
            task=task,
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages, 0)


# -- the driver


def _driver(options: SinkOptions, query: str) -> Any:
    from .atomic_driver import Driver

    assert options.marker_topic is not None
    return Driver(
        client_for(options.connection),
        query,
        options.marker_topic,
        accept_missing=options.accept_missing_markers,
        accept_changed=options.accept_changed_rows,
    )


def _tasks(messages: Sequence[WriterCommitMessage | None]) -> list[TaskPrepared]:
    return [each for each in messages if isinstance(each, TaskPrepared)]


def _commit(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int
) -> None:
    tasks = _tasks(messages)
    if not tasks or len(tasks) != len(messages):
        raise ExactlyOnceError(
            f"Spark completes batch {batch_id} with {len(messages)} tasks, but "
            f"{len(messages) - len(tasks)} of them have reported no transaction. Start the query "
            "again: the batch runs a second time."
        )
    transactions = [each.transaction for each in tasks if each.transaction is not None]
    first = tasks[0]
    rows = sum((each.rows for each in tasks), NO_ROWS)
    contents = Contents(rows, planned_ms_of(options.checkpoint, batch_id))
    _driver(options, first.query).commit(
        batch_id, first.query_id, first.claim, transactions, contents
    )


def _abort(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int
) -> None:
    tasks = _tasks(messages)
    transactions = [each.transaction for each in tasks if each.transaction is not None]
    if transactions:
        _driver(options, tasks[0].query).abort(batch_id, tasks[0].claim, transactions)


def job_is_complete(job: str) -> ExactlyOnceError:
    """A batch write runs a second time under the same name."""
    return ExactlyOnceError(
        f"A batch write with option 'exactlyOnceId' set to '{job}' is complete: its rows are in "
        "the topic, and this write was not started. If this is another write, for example another "
        "call of foreachBatch, set 'exactlyOnceId' to a name that was not used before."
    )


def unknown_query(checkpoint: str | None) -> OptionError:
    """The driver must know the query's identity before its tasks start."""
    return OptionError(
        f"Mode 'atomic-batch' cannot read the query's id from checkpoint '{checkpoint}', because "
        "it is not on the driver's file system. Set option 'exactlyOnceId' to a name that no other "
        "query uses, and keep it for the life of the checkpoint."
    )
