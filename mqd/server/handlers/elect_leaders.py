"""ElectLeaders (key 43), versions 0 to 2: elect the preferred replica, or any live replica
(unclean election). Runs on the controller.

v1 the type of election; an error for the request as a whole. v2 flexible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from mqd.controller.elections import Elected, ElectionType, ElectLeaders
from mqd.controller.request_limits import check_partition_count
from mqd.errors import MqError
from mqd.limits import REFUSED_PARTITIONS_NAMED_MAX
from mqd.security.acls import Operation
from mqd.server.authorization import require_cluster
from mqd.server.context import Context
from mqd.server.handlers.admin import at_controller
from mqd.types import TopicPartition


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_cluster(context, Operation.ALTER)
    kind = request.election_type if context.header.api_version >= 1 else ElectionType.PREFERRED
    topics = request.topic_partitions or ()
    check_partition_count(len(topics))  # here as well, before it is passed on
    check_partition_count(sum(len(row.partitions) for row in topics))
    op = ElectLeaders(
        kind, None if request.topic_partitions is None else tuple(_requested(request))
    )

    async def here() -> Mapping[str, Any]:
        results = await context.node.controller.submit(op)
        return _response(
            results, () if op.partitions is not None else tuple(context.node.image.topics)
        )

    return await at_controller(context, request, here, request.timeout_ms)


def _requested(request: Any) -> Iterator[TopicPartition]:
    return (
        TopicPartition(row.topic, partition)
        for row in request.topic_partitions or ()
        for partition in row.partitions
    )


def _first_requested(request: Any) -> Iterator[TopicPartition]:
    """The first partitions, as many as a refusal names."""
    topics = (request.topic_partitions or ())[:REFUSED_PARTITIONS_NAMED_MAX]
    return islice(
        (TopicPartition(row.topic, partition) for row in topics for partition in row.partitions),
        REFUSED_PARTITIONS_NAMED_MAX,
    )


def _response(results: Iterable[Elected], listed: Iterable[str] = ()) -> dict[str, Any]:
    """`listed`: topics to name in any case. Kafka names every topic if the request is for all of
    them.
    """
    topics: dict[str, list[dict[str, Any]]] = {topic: [] for topic in listed}
    for (topic, partition), code, message in results:
        topics.setdefault(topic, []).append(
            {"partition_id": partition, "error_code": code, "error_message": message}
        )
    return {
        "error_code": 0,
        "replica_election_results": [
            {"topic": topic, "partition_result": rows} for topic, rows in topics.items()
        ],
    }


def failed(request: Any, error: MqError) -> dict[str, Any]:
    """Version 0 has no error for the whole request: the rows of the first partitions have it. The
    response must not be larger than the request.
    """
    rows = _response(
        Elected(one, error.code, error.message or None) for one in _first_requested(request)
    )
    return {**rows, "error_code": error.code}
