"""Tasks of the sink without Spark: a test decides which attempt runs when, and where it dies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from chaos.ensemble import Ensemble
from mqd.client.sync import BlockingClient
from pyspark_mqd.atomic_batch import TaskPrepared, prepare_rows
from pyspark_mqd.atomic_driver import Driver
from pyspark_mqd.decisions import NO_BATCH, Contents, Prepared
from pyspark_mqd.exactly_once import BatchPlan, TaskCommitted, commit_rows
from pyspark_mqd.markers import RowSum
from pyspark_mqd.sink_options import SinkOptions, columns_of, parse_sink_options
from pyspark_mqd.sink_tasks import Task

COLUMNS = (("key", "string"), ("value", "string"))
_numbers = itertools.count()


class Died(Exception):
    """A task or a driver dies here."""


def rows(task: int, batch_id: int, count: int = 3) -> list[bytes]:
    """The values of a task."""
    return [b"%d-%d-%d" % (batch_id, task, number) for number in range(count)]


def arrow(values: list[bytes]) -> pa.RecordBatch:
    """Values as the sink receives them."""
    strings = pa.array([value.decode() for value in values], pa.string())
    return pa.RecordBatch.from_pydict({"key": strings, "value": strings})


@dataclass
class Query:
    """A streaming query of one checkpoint."""

    client: BlockingClient
    cluster: Ensemble
    topic: str
    guarantee: str
    options: dict[str, str] = field(default_factory=dict)
    query_id: str = ""
    claim: str = ""
    decided: int = NO_BATCH
    planned_ms: int | None = None
    """When Spark planned the batch; None where the driver cannot read the checkpoint."""

    def __post_init__(self) -> None:
        self.query_id = self.query_id or f"id{next(_numbers)}of{self.topic}"

    @property
    def name(self) -> str:
        return self.parsed.identity or f"spark-{self.query_id}"

    @property
    def parsed(self) -> SinkOptions:
        given = {"kafka.bootstrap.servers": self.cluster.bootstrap, "topic": self.topic}
        return parse_sink_options(given | {"deliveryGuarantee": self.guarantee} | self.options)

    def _task(self, task: int, batch_id: int) -> Task:
        return Task(task, 0, batch_id, self.query_id)

    def commit_rows(
        self,
        task: int,
        batch_id: int,
        *,
        values: list[bytes] | None = None,
        midway: Callable[[], Any] = lambda: None,
        run: str | None = None,
        plan: BatchPlan | None = None,
    ) -> TaskCommitted:
        """A task of mode exactly-once. `midway` is called when its rows are sent in part."""
        batches = self._batches(task, batch_id, values, midway)
        options = self.parsed
        return commit_rows(
            options,
            columns_of(COLUMNS, options),
            self._task(task, batch_id),
            batches,
            run=run,
            plan=plan or BatchPlan(),
        )

    def plan(self) -> None:
        """Mode atomic-batch: the driver, before tasks."""
        driver = self.driver()
        self.claim = driver.plan(self.query_id)
        self.decided = driver.decided

    def prepare_rows(
        self,
        task: int,
        batch_id: int,
        *,
        values: list[bytes] | None = None,
        first: Callable[[], Any] = lambda: None,
        midway: Callable[[], Any] = lambda: None,
    ) -> TaskPrepared:
        """A task of mode atomic-batch. `first` is called when it has no transaction yet."""
        options = self.parsed
        return prepare_rows(
            options,
            columns_of(COLUMNS, options),
            self._batches(task, batch_id, values, midway, first),
            query=self.name,
            query_id=self.query_id,
            claim=self.claim,
            decided=self.decided,
            task=self._task(task, batch_id),
        )

    def driver(self, client: Any = None) -> Driver:
        """A driver; `client` may fail where a test wants it to."""
        return Driver(
            client or self.client,
            self.name,
            self.topic,
            accept_missing=self.parsed.accept_missing_markers,
            accept_changed=self.parsed.accept_changed_rows,
        )

    def commit(self, batch_id: int, tasks: list[TaskPrepared], client: Any = None) -> None:
        """Mode atomic-batch: commit() of the driver."""
        contents = Contents(sum((each.rows for each in tasks), RowSum()), self.planned_ms)
        ready = transactions(tasks)
        self.driver(client).commit(batch_id, self.query_id, self.claim, ready, contents)

    def abort(self, batch_id: int, tasks: list[TaskPrepared]) -> None:
        """Mode atomic-batch: abort() of the driver."""
        self.driver().abort(batch_id, self.claim, transactions(tasks))

    def again(self) -> Query:
        """The same query in another run."""
        return replace(self)

    def _batches(
        self,
        task: int,
        batch_id: int,
        values: list[bytes] | None,
        midway: Callable[[], Any],
        first: Callable[[], Any] = lambda: None,
    ) -> Iterator[pa.RecordBatch]:
        first()
        chosen = rows(task, batch_id) if values is None else values
        for value in chosen[:1]:
            yield arrow([value])
        midway()
        if chosen[1:]:
            yield arrow(chosen[1:])


def transactions(tasks: list[TaskPrepared]) -> list[Prepared]:
    """What tasks report to the driver."""
    return [each.transaction for each in tasks if each.transaction is not None]


class Failing:
    """A client whose `end_transaction` fails from the n-th call on."""

    def __init__(self, client: BlockingClient, after: int) -> None:
        self._client = client
        self._left = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def end_transaction(self, *args: Any) -> Any:
        """As the client's, until the driver dies."""
        self._left -= 1
        if self._left < 0:
            raise Died
        return self._client.end_transaction(*args)
