"""The driver and the tasks of mode atomic-batch on real brokers, with deaths at every step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from chaos.ensemble import Ensemble
from mqd.client.errors import ClientError
from mqd.client.sync import BlockingClient
from pyspark_mqd.decisions import Decision, Prepared
from pyspark_mqd.markers import ExactlyOnceError
from pyspark_mqd.transaction_ids import driver_id
from tests.spark.reading import ends_of, open_transactions, values_in, wait_stable
from tests.spark.sink_tasks import Died, Failing, Query, rows, transactions

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

NewTopic = Callable[..., str]


@pytest.fixture
def query(client: BlockingClient, cluster: Ensemble, new_topic: NewTopic) -> Iterator[Query]:
    made = Query(client, cluster, new_topic(3), "atomic-batch")
    yield made
    made.plan()
    assert open_transactions(client, made.name) == []
    wait_stable(client, made.topic)


def die() -> None:
    raise Died


def both(batch_id: int) -> list[bytes]:
    return sorted(rows(0, batch_id) + rows(1, batch_id))


def test_a_batch_is_visible_at_once(client: BlockingClient, query: Query) -> None:
    for batch_id in range(3):
        query.plan()
        wait_stable(client, query.topic)
        tasks = [query.prepare_rows(task, batch_id) for task in (0, 1)]
        assert len(values_in(client, query.topic, stable=False)) == 6 * batch_id
        query.commit(batch_id, tasks)

    assert values_in(client, query.topic) == sorted(both(0) + both(1) + both(2))
    names = {each.transactional_id for each in client.admin.list_transactions()}
    names = {name for name in names if name.startswith(query.name)}
    assert len(names) == 3, "two tasks and the driver: ids are used again by the next batch"


def test_a_task_without_rows_has_no_transaction(client: BlockingClient, query: Query) -> None:
    query.plan()
    tasks = [query.prepare_rows(0, 0), query.prepare_rows(1, 0, values=[])]
    query.commit(0, tasks)

    assert len(transactions(tasks)) == 1
    assert values_in(client, query.topic) == rows(0, 0)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_driver_that_dies_after_its_decision(
    client: BlockingClient, query: Query, after: int
) -> None:
    """Spark calls abort(), which must not abort; the next run completes the batch."""
    query.plan()
    tasks = [query.prepare_rows(task, 0) for task in (0, 1)]
    dead = [query.prepare_rows(0, 0)] if after == 2 else []  # dies in the sweep
    with pytest.raises(Died):
        query.commit(0, tasks, Failing(client, after))
    query.abort(0, tasks)

    run = query.again()
    run.plan()
    assert values_in(client, query.topic) == both(0)
    again = [run.prepare_rows(task, 0) for task in (0, 1)]
    run.commit(0, again)
    assert values_in(client, query.topic) == both(0)
    assert open_transactions(client, query.name) == []
    assert len(dead) <= 1


def test_a_driver_that_dies_before_its_decision(client: BlockingClient, query: Query) -> None:
    query.plan()
    for task in (0, 1):
        query.prepare_rows(task, 0)

    run = query.again()
    run.plan()
    assert open_transactions(client, query.name) == [], "the plan aborts orphans"
    run.commit(0, [run.prepare_rows(task, 0) for task in (0, 1)])
    assert values_in(client, query.topic) == both(0)


def test_a_commit_whose_plan_is_superseded_decides_nothing(
    client: BlockingClient, query: Query
) -> None:
    """The Python worker of a killed driver calls commit() when the next run has begun."""
    query.plan()
    zombie = [query.prepare_rows(task, 0) for task in (0, 1)]
    run = query.again()
    run.plan()
    tasks = [run.prepare_rows(task, 0) for task in (0, 1)]

    with pytest.raises(ExactlyOnceError, match="another run of this query has started"):
        query.commit(0, zombie)
    query.abort(0, zombie)
    run.commit(0, tasks)

    assert values_in(client, query.topic) == both(0)


def test_a_driver_is_fenced_between_its_two_writes(client: BlockingClient, query: Query) -> None:
    query.plan()
    tasks = [query.prepare_rows(task, 0) for task in (0, 1)]
    run, once = query.again(), threading.Lock()

    class Planning(Failing):
        """The next run begins while this one ends its transactions."""

        def end_transaction(self, *args: Any) -> Any:
            with once:
                if run.claim == query.claim:
                    run.plan()
            return self._client.end_transaction(*args)

    with pytest.raises(ClientError):
        query.commit(0, tasks, Planning(client, 0))
    run.commit(0, [run.prepare_rows(task, 0) for task in (0, 1)])
    run.plan()
    run.commit(1, [run.prepare_rows(task, 1) for task in (0, 1)])

    assert values_in(client, query.topic) == sorted(both(0) + both(1))


def test_failed_tasks_are_aborted_and_orphans_swept(client: BlockingClient, query: Query) -> None:
    query.plan()
    with pytest.raises(Died):
        query.prepare_rows(0, 0, midway=die)
    loser = query.prepare_rows(0, 0)  # a speculative copy that Spark did not choose
    winner = query.prepare_rows(0, 0)
    assert loser.transaction and winner.transaction
    assert loser.transaction.transactional_id != winner.transaction.transactional_id
    query.commit(0, [winner])

    assert values_in(client, query.topic) == rows(0, 0)
    assert open_transactions(client, query.name) == []


def test_an_attempt_that_prepares_after_the_decision_aborts_itself(
    client: BlockingClient, query: Query
) -> None:
    """A copy that is slower than the first attempt, and than the driver's list of orphans."""
    query.plan()
    winner = query.prepare_rows(0, 0)
    with pytest.raises(ExactlyOnceError, match="Another attempt was faster"):
        query.prepare_rows(0, 0, first=lambda: query.commit(0, [winner]))

    assert open_transactions(client, query.name) == []
    assert values_in(client, query.topic) == rows(0, 0)


def test_a_task_that_prepares_after_the_next_plan_aborts_itself(
    client: BlockingClient, query: Query
) -> None:
    """A Python worker of a killed driver writes on while the next run makes its plan."""
    query.plan()
    run = query.again()
    with pytest.raises(ExactlyOnceError, match="another run of the query has started"):
        query.prepare_rows(0, 0, first=run.plan)

    assert open_transactions(client, query.name) == []
    run.commit(0, [run.prepare_rows(0, 0)])
    assert values_in(client, query.topic) == rows(0, 0)


def test_abort_of_an_undecided_batch(client: BlockingClient, query: Query) -> None:
    query.plan()
    tasks = [query.prepare_rows(task, 0) for task in (0, 1)]
    query.abort(0, tasks)

    assert open_transactions(client, query.name) == []
    query.plan()
    query.commit(0, [query.prepare_rows(task, 0) for task in (0, 1)])
    assert values_in(client, query.topic) == both(0)


def test_an_expired_record_stops_the_query(client: BlockingClient, query: Query) -> None:
    query.plan()
    query.commit(0, [query.prepare_rows(0, 0)])
    query.plan()
    query.commit(1, [query.prepare_rows(0, 1)])
    group = driver_id(query.name)
    assert client.admin.delete_groups([group]) == {group: None}

    query.plan()
    tasks = [query.prepare_rows(0, 2)]
    with pytest.raises(ExactlyOnceError, match="the record of batch 1 is missing"):
        query.commit(2, tasks)
    query.abort(2, tasks)
    query.options["acceptMissingMarkers"] = "true"
    query.plan()
    query.commit(2, [query.prepare_rows(0, 2)])
    assert values_in(client, query.topic) == sorted(rows(0, 0) + rows(0, 1) + rows(0, 2))


def test_an_older_checkpoint_with_a_source_that_has_grown_stops(
    client: BlockingClient, query: Query
) -> None:
    """Batch 1 is planned again with more rows. Nothing is lost silently, and nothing stays open."""
    for batch_id, planned_ms in ((0, 1_000), (1, 2_000)):
        query.planned_ms = planned_ms
        query.plan()
        query.commit(batch_id, [query.prepare_rows(task, batch_id) for task in (0, 1)])

    query.planned_ms = 3_000
    query.plan()
    more = [query.prepare_rows(0, 1, values=[*rows(0, 1), b"more"]), query.prepare_rows(1, 1)]
    with pytest.raises(ExactlyOnceError, match=r"with 6 rows .* has 7 rows .*restore the newest"):
        query.commit(1, more)
    query.abort(1, more)
    with pytest.raises(ExactlyOnceError, match="The checkpoint is older"):
        query.commit(0, [query.prepare_rows(0, 0)])
    assert values_in(client, query.topic) == sorted(both(0) + both(1))
    query.plan()
    query.commit(2, [query.prepare_rows(0, 2)])  # the newest checkpoint is restored
    assert values_in(client, query.topic) == sorted(both(0) + both(1) + rows(0, 2))


def test_a_batch_that_is_refused_leaves_no_transaction_open(
    client: BlockingClient, query: Query
) -> None:
    """Prepared transactions do not time out, and readers would wait for them."""
    query.plan()
    query.commit(0, [query.prepare_rows(0, 0)])
    query.plan()
    tasks = [query.prepare_rows(task, 2) for task in (0, 1)]
    with pytest.raises(ExactlyOnceError, match="the record of batch 1 is missing"):
        query.commit(2, tasks)

    assert open_transactions(client, query.name) == []
    assert values_in(client, query.topic) == rows(0, 0)


@pytest.mark.parametrize("planned_ms", [None, 1_000])
def test_a_second_run_of_a_decided_batch_sends_nothing(
    client: BlockingClient, query: Query, planned_ms: int | None
) -> None:
    query.planned_ms = planned_ms
    query.plan()
    query.commit(0, [query.prepare_rows(task, 0) for task in (0, 1)])
    ends = ends_of(client, query.topic, committed=False)

    query.plan()
    again = [query.prepare_rows(0, 0, values=both(0)), query.prepare_rows(1, 0, values=[])]
    assert transactions(again) == [], "a shuffle moved rows between tasks: the sum is the same"
    query.commit(0, again)
    query.plan()
    other = [query.prepare_rows(0, 0, values=[b"other"])]
    if planned_ms is None:
        with pytest.raises(ExactlyOnceError, match="not on the driver's file system"):
            query.commit(0, other)
        query.options["acceptChangedRows"] = "true"
        query.plan()
    query.commit(0, other)
    assert ends_of(client, query.topic, committed=False) == ends
    assert values_in(client, query.topic) == both(0)


def test_a_lost_transaction_stops_the_query(client: BlockingClient, query: Query) -> None:
    query.plan()
    tasks = [query.prepare_rows(task, 0) for task in (0, 1)]
    for each in transactions(tasks)[1:]:
        client.end_transaction(*each, False)

    with pytest.raises(ExactlyOnceError, match="decided transaction"):
        query.commit(0, tasks)
    driver = query.driver()
    found = driver.read()
    assert found is not None and not found.ended
    _forget(client, query)


def test_a_record_of_many_tasks(client: BlockingClient, query: Query) -> None:
    query.plan()
    many = tuple(Prepared(f"{query.name}.{n:012x}.{n % 7}", 10**6 + n, n % 99) for n in range(900))
    decision = Decision(5, query.query_id, many, ended=False, claim=query.claim)
    driver = query.driver()
    with driver._fencing() as producer:
        driver._write(producer, decision)
        assert driver.read() == decision
        driver._write(producer, decision.as_ended())

    assert driver.read() == decision.as_ended()


def _forget(client: BlockingClient, query: Query) -> None:
    group = driver_id(query.name)
    assert client.admin.delete_groups([group]) == {group: None}
