"""AddPartitionsToTxn: no step handles more than one slice of its partitions."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from types import SimpleNamespace
from typing import Any

from mqd.coordinator.shard import Producer
from mqd.coordinator.txn.operations import VerifyPartitions
from mqd.errors import ErrorCode
from mqd.server.handlers import add_partitions_to_txn as module
from mqd.server.slices import SLICE_ROWS
from mqd.types import TopicPartition

ROWS = 10 * SLICE_ROWS


def finished(work: Generator[int, None, Any]) -> tuple[Any, list[int]]:
    """The result, and the rows of each step."""
    steps = []
    while True:
        try:
            steps.append(next(work))
        except StopIteration as end:
            return end.value, steps


def node_with(partitions: int) -> Any:
    topic = SimpleNamespace(internal=False, partitions=range(partitions))
    return SimpleNamespace(image=SimpleNamespace(topics={"t": topic}))


def test_many_partitions_are_checked_and_answered_in_slices() -> None:
    topics = [{"name": "t", "partitions": [*range(ROWS), 0, 1]}, {"name": "u", "partitions": [0]}]
    partitions, steps = finished(module._partitions(topics))
    assert partitions == [*(TopicPartition("t", number) for number in range(ROWS)), ("u", 0)]
    assert sum(steps) > ROWS and max(steps) <= SLICE_ROWS

    errors, steps = finished(module._refused(node_with(ROWS), partitions, from_client=True))
    assert set(errors.values()) == {
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert errors["u", 0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert sum(steps) > 2 * ROWS and max(steps) <= SLICE_ROWS

    rows, steps = finished(module._by_topic(errors))
    assert [(row["name"], len(row["results_by_partition"])) for row in rows] == [
        ("t", ROWS),
        ("u", 1),
    ]
    assert sum(steps) > ROWS and max(steps) <= SLICE_ROWS


def test_partitions_that_exist_are_not_refused() -> None:
    partitions = [TopicPartition("t", number) for number in range(3)]
    assert finished(module._refused(node_with(3), partitions, from_client=True))[0] == {}


async def test_many_partitions_are_verified_in_portions() -> None:
    asked: list[int] = []

    async def call(_: str, op: VerifyPartitions) -> Mapping[str, Any]:
        asked.append(len(op.partitions))
        return {"errors": dict.fromkeys(op.partitions, ErrorCode.NONE)}

    node: Any = SimpleNamespace(transactions=SimpleNamespace(call=call))
    partitions = [TopicPartition("t", number) for number in range(2_500)]
    errors = await module._verified(node, "id", Producer(1, 0), partitions)
    assert list(errors) == partitions and asked == [1000, 1000, 500]
    assert await module._verified(node, "id", Producer(1, 0), []) == {} and asked[3:] == [0]
