"""Tasks of mode exactly-once on real brokers: retries, speculation, zombies, expired markers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

from chaos.ensemble import Ensemble
from mqd.client.errors import ClientError
from mqd.client.sync import BlockingClient
from pyspark_mqd import exactly_once
from pyspark_mqd.exactly_once import (
    BatchPlan,
    ExactlyOnceWriter,
    TaskCommitted,
    check_plan,
    committed_rows,
    newest_markers,
    retention_ms,
    wall_ms,
)
from pyspark_mqd.markers import DEFAULT_RETENTION_MS, ExactlyOnceError
from pyspark_mqd.sink_options import columns_of
from pyspark_mqd.sink_tasks import Task
from pyspark_mqd.transaction_ids import batch_group, task_id
from tests.spark.reading import open_transactions, values_in
from tests.spark.sink_tasks import COLUMNS, Died, Query, rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

NewTopic = Callable[..., str]


@pytest.fixture
def query(client: BlockingClient, cluster: Ensemble, new_topic: NewTopic) -> Query:
    return Query(client, cluster, new_topic(3), "exactly-once")


def die() -> None:
    raise Died


def test_a_task_commits_its_rows_once(client: BlockingClient, query: Query) -> None:
    first = query.commit_rows(0, 0)
    again = query.again().commit_rows(0, 0)
    query.commit_rows(0, 1)

    assert (first.already, again.already) == (False, True)
    assert values_in(client, query.topic) == rows(0, 0) + rows(0, 1)


def test_a_task_that_dies_leaves_nothing(client: BlockingClient, query: Query) -> None:
    with pytest.raises(Died):
        query.commit_rows(0, 0, midway=die)
    assert values_in(client, query.topic) == []
    assert open_transactions(client, query.name) == []

    query.commit_rows(0, 0)
    assert values_in(client, query.topic) == rows(0, 0)


def test_of_two_attempts_at_the_same_time_one_commits(client: BlockingClient, query: Query) -> None:
    """A speculative copy begins while the first attempt writes: the first one is fenced."""
    with pytest.raises(ClientError) as caught:
        query.commit_rows(0, 0, midway=lambda: query.again().commit_rows(0, 0))

    assert "FENCED" in caught.value.code.name or "EPOCH" in caught.value.code.name
    assert values_in(client, query.topic) == rows(0, 0)


def test_a_zombie_of_an_older_batch_is_fenced(client: BlockingClient, query: Query) -> None:
    def meanwhile() -> None:
        for batch_id in (0, 1):
            query.again().commit_rows(0, batch_id)

    with pytest.raises(ClientError):
        query.commit_rows(0, 0, midway=meanwhile)

    assert values_in(client, query.topic) == rows(0, 0) + rows(0, 1)


def test_an_empty_task_leaves_a_marker(client: BlockingClient, query: Query) -> None:
    query.commit_rows(0, 0, values=[])
    query.commit_rows(0, 1)

    assert values_in(client, query.topic) == rows(0, 1)


def test_more_tasks_than_in_the_batch_before(client: BlockingClient, query: Query) -> None:
    query.commit_rows(0, 0)
    query.commit_rows(5, 1)  # the batch marker of 0 shows that markers have not expired
    query.commit_rows(0, 1)
    query.commit_rows(6, 2)

    assert values_in(client, query.topic) == sorted(
        rows(0, 0) + rows(0, 1) + rows(5, 1) + rows(6, 2)
    )


def expire(client: BlockingClient, groups: list[str]) -> None:
    """What the brokers do when retention is over."""
    assert set(client.admin.delete_groups(groups).values()) == {None}


def test_a_marker_that_expires_before_that_of_task_0_stops_the_query(
    client: BlockingClient, query: Query
) -> None:
    """Task 1 commits before task 0 does, and its marker expires before that of task 0."""
    for task in (0, 1):
        query.commit_rows(task, 0)
    query.commit_rows(1, 1)
    query.commit_rows(0, 1)
    expire(client, [batch_group(query.name, 0), task_id(query.name, 1)])

    with pytest.raises(ExactlyOnceError, match="the marker of batch 0 is missing"):
        query.again().commit_rows(1, 1)
    assert query.again().commit_rows(0, 1).already
    assert len(values_in(client, query.topic)) == 12


def test_an_old_batch_marker_stops_the_query(
    client: BlockingClient, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coordinators look for expired offsets at their own times: a younger marker may go first."""
    week_before = wall_ms() - DEFAULT_RETENTION_MS
    monkeypatch.setattr("pyspark_mqd.exactly_once.wall_ms", lambda: week_before)
    query.commit_rows(0, 0)
    monkeypatch.undo()

    with pytest.raises(ExactlyOnceError, match=r"'.*batch-even' is about to expire.*\(10080\)"):
        query.commit_rows(1, 1)
    assert values_in(client, query.topic) == rows(0, 0)
    query.commit_rows(0, 1)


def test_a_first_batch_that_was_planned_before_markers_expired_stops(
    client: BlockingClient, query: Query
) -> None:
    options, task = query.parsed, Task(0, 0, 0, query.query_id)
    now_ms = wall_ms()
    assert committed_rows(client, options, query.name, task, BatchPlan(0, now_ms)) is None
    assert (
        committed_rows(client, options, query.name, task, BatchPlan(0, now_ms - 3_600_000)) is None
    )
    old_ms = now_ms - DEFAULT_RETENTION_MS
    with pytest.raises(ExactlyOnceError, match="Batch 0 was planned and not completed"):
        committed_rows(client, options, query.name, task, BatchPlan(0, old_ms))
    query.options["acceptMissingMarkers"] = "true"
    assert committed_rows(client, query.parsed, query.name, task, BatchPlan(0, old_ms)) is None


def test_the_retention_of_the_brokers(client: BlockingClient) -> None:
    assert retention_ms(client, None, 0) == DEFAULT_RETENTION_MS


def test_expired_markers_stop_the_query(client: BlockingClient, query: Query) -> None:
    for batch_id in (0, 1):
        for task in (0, 1):
            query.commit_rows(task, batch_id)
    expire(client, [task_id(query.name, task) for task in (0, 1)])
    expire(client, [batch_group(query.name, batch_id) for batch_id in (0, 1)])

    for task in (0, 1):
        with pytest.raises(ExactlyOnceError, match="the marker of batch 1 is missing"):
            query.commit_rows(task, 2)
    assert values_in(client, query.topic) == sorted(
        rows(0, 0) + rows(0, 1) + rows(1, 0) + rows(1, 1)
    )

    query.options["acceptMissingMarkers"] = "true"
    for task in (0, 1):
        query.commit_rows(task, 2)
    assert len(values_in(client, query.topic)) == 18


def test_other_rows_in_a_second_run_stop_the_query(client: BlockingClient, query: Query) -> None:
    query.commit_rows(0, 0)

    with pytest.raises(ExactlyOnceError, match="the plan is not deterministic"):
        query.again().commit_rows(0, 0, values=[b"other"])
    query.again().commit_rows(0, 0, values=rows(0, 0)[::-1])  # a shuffle changes the order
    assert values_in(client, query.topic) == rows(0, 0)


def test_rows_of_a_source_that_has_shrunk_are_accepted_for_one_start(
    client: BlockingClient, query: Query
) -> None:
    query.commit_rows(0, 0)
    left = rows(0, 0)[1:]
    with pytest.raises(ExactlyOnceError, match="by compaction or retention"):
        query.again().commit_rows(0, 0, values=left)

    query.options["acceptChangedRows"] = "true"
    again = query.again().commit_rows(0, 0, values=left)
    assert (again.already, again.rows, again.changed_rows) == (True, 3, 2)
    with pytest.raises(ExactlyOnceError, match="because 1 rows would be lost"):
        query.again().commit_rows(0, 0, values=[*rows(0, 0), b"more"])
    assert values_in(client, query.topic) == rows(0, 0)


def planned(client: BlockingClient, query: Query, batch_id: int, planned_ms: int) -> BatchPlan:
    """The plan of the first batch of a run, as a new process of the driver makes it."""
    exactly_once._planned_last.pop(query.name, None)
    newest = newest_markers(client, query.name, batch_id)
    return BatchPlan(batch_id, planned_ms, newest, alone=False)


def test_an_older_checkpoint_stops_before_a_task_writes(
    client: BlockingClient, query: Query
) -> None:
    """Batch 0 has tasks 0 and 1; batch 1 and batch 2 have task 0 only, with rows of both."""
    query.commit_rows(0, 0)
    query.commit_rows(1, 0)
    query.commit_rows(0, 1)
    query.commit_rows(0, 2, values=[b"again"])
    plan = planned(client, query, 1, 5_000)
    written = values_in(client, query.topic)

    for task in (1, 0):
        with pytest.raises(
            ExactlyOnceError,
            match=r"of batch 2: the checkpoint is older .*This run has written no row",
        ):
            query.again().commit_rows(task, 1, values=[b"again"], plan=plan)
    with pytest.raises(ExactlyOnceError, match="may have written rows a second time"):
        query.again().commit_rows(1, 1, values=[b"again"])  # the driver does not know the query
    assert values_in(client, query.topic) == written


def test_an_older_checkpoint_is_found_by_a_task_beside_task_0(
    client: BlockingClient, query: Query
) -> None:
    """Batch 2 was cut short: task 0 has committed no batch marker of it, and task 1 its rows."""
    for task in (0, 1, 2):
        query.commit_rows(task, 0)
    query.commit_rows(0, 1)
    query.commit_rows(1, 2, values=[b"again"])

    with pytest.raises(ExactlyOnceError, match=r"-1' has the marker of batch 2"):
        query.again().commit_rows(2, 1, values=[b"again"], plan=planned(client, query, 1, 5_000))
    assert values_in(client, query.topic).count(b"again") == 1


def test_a_batch_that_is_planned_again_stops_where_a_task_would_write(
    client: BlockingClient, query: Query
) -> None:
    """The rows of partition 1 are those of task 0 in batch 1. Then partition 0 has rows, too."""
    query.commit_rows(0, 0)
    query.commit_rows(1, 0)
    query.commit_rows(0, 1, values=[b"again"], plan=BatchPlan(1, 2_000))
    plan = planned(client, query, 1, 5_000)

    with pytest.raises(ExactlyOnceError, match="from before Spark planned it again"):
        query.again().commit_rows(1, 1, values=[b"again"], plan=plan)
    with pytest.raises(ExactlyOnceError, match="an older checkpoint was restored"):
        query.again().commit_rows(0, 1, values=[b"new"], plan=plan)
    assert query.again().commit_rows(0, 1, values=[b"again"], plan=plan).already
    query.again().commit_rows(1, 1, plan=planned(client, query, 1, 2_000))  # a crash
    assert values_in(client, query.topic).count(b"again") == 1


def test_the_first_plan_of_a_run_fences_tasks_of_earlier_runs(
    client: BlockingClient, query: Query
) -> None:
    """A task of batch 2 writes on while an older checkpoint is restored and batch 1 is planned."""
    for task in (0, 1, 2):
        query.commit_rows(task, 0)
    query.commit_rows(0, 1)
    with pytest.raises(ClientError) as caught:
        query.commit_rows(1, 2, midway=lambda: planned(client, query, 1, 5_000))

    assert "FENCED" in caught.value.code.name or "EPOCH" in caught.value.code.name


def test_later_plans_of_a_run_read_no_markers(
    client: BlockingClient, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[str] = []
    monkeypatch.setattr(
        "pyspark_mqd.exactly_once.fence_further_tasks",
        lambda client, name, count: searches.append(name),
    )
    query.commit_rows(0, 0)
    for batch_id in (1, 2, 3):
        newest_markers(client, query.name, batch_id)
    assert len(searches) == 1
    for batch_id in (3, 1):  # a start after a crash, and after an older checkpoint was restored
        assert [
            each.batch_id for each in newest_markers(client, query.name, batch_id).values()
        ] == [0]
    assert len(searches) == 3
    for _ in range(2):
        newest_markers(client, query.name, None)
    assert len(searches) == 3, "without a batch id the first plan of a process fences"


def test_another_checkpoint_under_the_same_name_stops(
    client: BlockingClient, cluster: Ensemble, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    options = {"exactlyOnceId": f"{topic[-8:]}-orders"}
    Query(client, cluster, topic, "exactly-once", options).commit_rows(0, 0)

    with pytest.raises(ExactlyOnceError, match="the checkpoint is another one"):
        Query(client, cluster, topic, "exactly-once", options).commit_rows(0, 0)


def test_the_driver_checks_that_every_task_has_committed(query: Query) -> None:
    options = query.parsed
    writer = ExactlyOnceWriter(options, columns_of(COLUMNS, options))

    def committed(task: int, batch_id: int) -> TaskCommitted:
        return TaskCommitted(task, batch_id, 10, task == 1, query.name, "an id")

    writer.commit([committed(0, 4), committed(1, 4)], 4)
    incomplete: list[list[Any]] = [[committed(0, 4), None], [committed(0, 3)]]
    for messages in incomplete:
        with pytest.raises(ExactlyOnceError, match="have reported no commit"):
            writer.commit(messages, 4)


def test_a_second_run_with_fewer_tasks_stops_the_query(query: Query) -> None:
    """Four tasks, of which 1 to 3 commit; then one task, which writes the rows of all."""
    options = query.parsed
    writer = ExactlyOnceWriter(options, columns_of(COLUMNS, options))
    for task in (1, 2, 3):
        query.commit_rows(task, 0)
    alone = query.again().commit_rows(0, 0)

    with pytest.raises(ExactlyOnceError, match="committed before with more tasks: this run has 1"):
        writer.commit([alone], 0)


def test_far_fewer_tasks_than_in_the_first_run_stop_the_query(query: Query) -> None:
    """A thousand tasks, of which the last one commits; then ten, in a new run."""
    options = query.parsed
    writer = ExactlyOnceWriter(options, columns_of(COLUMNS, options))
    tasks = [query.commit_rows(task, 0, run="first") for task in range(10)]
    writer.commit([*tasks], 0)
    query.commit_rows(999, 1, run="first")
    tasks = [query.again().commit_rows(task, 1, run="second") for task in range(10)]

    with pytest.raises(ExactlyOnceError, match=r"group '.*-999' has a marker of the batch"):
        writer.commit([*tasks], 1)


def test_a_task_of_an_earlier_run_that_is_still_alive_commits_nothing(
    client: BlockingClient, query: Query
) -> None:
    """Task 7 writes while a run with one task completes the batch: it is fenced."""
    options = query.parsed
    writer = ExactlyOnceWriter(options, columns_of(COLUMNS, options))
    query.commit_rows(0, 0, run="first")

    def meanwhile() -> None:
        writer.commit([query.again().commit_rows(0, 1, run="second")], 1)

    with pytest.raises(ClientError) as caught:
        query.commit_rows(7, 1, run="first", midway=meanwhile)

    assert "FENCED" in caught.value.code.name or "EPOCH" in caught.value.code.name
    assert values_in(client, query.topic) == rows(0, 0) + rows(0, 1)


def test_later_batches_of_a_run_read_a_few_markers_only(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = query.parsed
    writer = ExactlyOnceWriter(options, columns_of(COLUMNS, options))
    searches: list[str] = []
    monkeypatch.setattr(
        "pyspark_mqd.exactly_once.fence_further_tasks",
        lambda client, name, count: searches.append(name),
    )
    for batch_id, run in enumerate([None, None, "first", "first", "first", "second", "second"]):
        writer.commit([query.commit_rows(0, batch_id, run=run)], batch_id)
    assert len(searches) == 4  # twice without a run, once in the first, once in the second

    query.commit_rows(3, 7, run="second")
    with pytest.raises(ExactlyOnceError, match="committed before with more tasks"):
        writer.commit([query.commit_rows(0, 7, run="second")], 7)


@pytest.mark.parametrize("settings", [{}, {"a": None, "b": "true"}])
def test_adaptive_execution_is_refused(settings: dict[str, str | None]) -> None:
    with pytest.raises(ExactlyOnceError, match="Adaptive execution"):
        check_plan(settings)
    check_plan(settings | {"c": "false"})
