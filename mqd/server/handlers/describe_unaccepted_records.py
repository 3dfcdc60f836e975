"""DescribeUnacceptedRecords (key 32023), version 0: counts of records of a share group that no
member accepted. Peer listener only, on the leaders of the partitions.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.server.context import Context
from mqd.server.unaccepted_records import counts_of
from mqd.share.sessions import Place


def handle(context: Context, request: Any) -> Generator[int, None, Mapping[str, Any]]:
    topics = []
    for topic in request.topics:
        rows = []
        for one in topic.partitions:
            counts = counts_of(context.node, request.group_id, Place(topic.topic_id, one))
            if counts is not None:
                rows.append({"partition": one, **counts._asdict()})
            yield 1
        topics.append({"topic_id": topic.topic_id, "partitions": rows})
        yield 1
    return {"error_code": ErrorCode.NONE, "topics": topics}


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"error_code": error.code, "topics": []}
