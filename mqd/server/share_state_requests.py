"""What the handlers of states of share partitions have in common (KIP-932): an operation for each
row, in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from typing import Any
from uuid import UUID

from mqd.coordinator.share.operations import ReadState, ReadSummary
from mqd.coordinator.share.records import batch_row
from mqd.errors import ErrorCode, MqError
from mqd.limits import SHARE_RESPONSE_RANGES_MAX
from mqd.server.context import Context
from mqd.server.share_state import coordinator_key
from mqd.server.slices import KEY_CHARS_A_ROW, Pace
from mqd.share.ports import ShareKey
from mqd.share.record_states import Batch


async def results_of(
    context: Context, request: Any, operation_of: Callable[[ShareKey, Any], Any]
) -> dict[str, Any]:
    """The response to a request about states of share partitions: one operation for each row, in
    slices. A share partition has one row in the response, as in Apache Kafka: that of the last
    operation. It is read once, however often it is named."""
    shares = context.node.shares
    topics: dict[UUID, dict[int, dict[str, Any]]] = {}
    if not request.group_id or not all(topic.partitions for topic in request.topics):
        return {"results": []}  # as Apache Kafka
    pace = Pace()
    ranges = 0
    for topic in request.topics:
        rows = topics.setdefault(topic.topic_id, {})
        await pace.row()
        for one in topic.partitions:
            if not context.is_wanted():
                break
            await pace.row()
            key = ShareKey(request.group_id, topic.topic_id, one.partition)
            row: dict[str, Any] = {"partition": one.partition, "error_code": ErrorCode.NONE}
            try:
                operation = operation_of(key, one)
                if one.partition in rows and isinstance(operation, (ReadState, ReadSummary)):
                    continue
                if ranges > SHARE_RESPONSE_RANGES_MAX:
                    raise MqError(
                        ErrorCode.INVALID_REQUEST,
                        "The states of the request have too many batches for one response. "
                        "Request fewer share partitions.",
                    )
                index = shares.partition_of(coordinator_key(key))
                result = await shares.call_shard(index, operation)
            except MqError as error:
                row["error_code"] = error.code
                row["error_message"] = error.message or None
            except ValueError as error:  # an unknown state
                row["error_code"] = ErrorCode.INVALID_REQUEST
                row["error_message"] = str(error)
            else:
                row.update(result)
                if "batches" in result:
                    ranges += len(result["batches"])
                    row["state_batches"] = _BatchRows(row.pop("batches"))
            rows[one.partition] = row
            await pace.row(_weight_of(key))
    return {
        "results": [
            {"topic_id": topic_id, "partitions": list(rows.values())}
            for topic_id, rows in topics.items()
        ]
    }


class _BatchRows(Collection[dict[str, int]]):
    """The rows of batches, made when the response is encoded: all together take megabytes."""

    def __init__(self, batches: Collection[Batch]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, int]]:
        return map(batch_row, self._batches)

    def __contains__(self, row: object) -> bool:
        return any(row == one for one in self)


def _weight_of(key: ShareKey) -> int:
    """One operation, in rows: the group id is hashed, and is in the record."""
    return 5 + len(key.group_id) // KEY_CHARS_A_ROW


def failed_results(request: Any, error: MqError) -> Generator[int, None, dict[str, Any]]:
    """The response to such a request that is refused as a whole."""
    results = []
    for topic in request.topics:
        rows = []
        for one in topic.partitions:
            rows.append(
                {
                    "partition": one.partition,
                    "error_code": error.code,
                    "error_message": error.message or None,
                }
            )
            yield 1
        results.append({"topic_id": topic.topic_id, "partitions": rows})
        yield 1
    return {"results": results}
