"""Tasks of mode exactly-once on real brokers: retries, speculation, zombies, expired markers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("pyspark")

from chaos.ensemble import Ensemble
from mqd.client.errors import ClientError
from mqd.client.sync import BlockingClient
from pyspark_mqd.exactly_once import ExactlyOnceWriter, TaskCommitted, check_plan
from pyspark_mqd.markers import ExactlyOnceError
from pyspark_mqd.sink_options import columns_of
from pyspark_mqd.transaction_ids import task_id
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
    query.commit_rows(0, 1)
    query.commit_rows(5, 1)  # task 0 shows that markers have not expired
    query.commit_rows(6, 2)

    assert values_in(client, query.topic) == sorted(
        rows(0, 0) + rows(0, 1) + rows(5, 1) + rows(6, 2)
    )


def test_expired_markers_stop_the_query(client: BlockingClient, query: Query) -> None:
    for task in (0, 1):
        query.commit_rows(task, 0)
        query.commit_rows(task, 1)
    groups = [task_id(query.name, task) for task in (0, 1)]
    assert set(client.admin.delete_groups(groups).values()) == {None}

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
    for messages in ([committed(0, 4), None], [committed(0, 3)]):
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


@pytest.mark.parametrize("settings", [{}, {"a": None, "b": "true"}])
def test_adaptive_execution_is_refused(settings: dict[str, str | None]) -> None:
    with pytest.raises(ExactlyOnceError, match="adaptive execution"):
        check_plan(settings)
    check_plan(settings | {"c": "false"})
