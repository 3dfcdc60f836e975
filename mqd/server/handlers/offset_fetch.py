"""OffsetFetch (key 9), versions 1 to 10: how far groups have read. Each group is asked of its own coordinator's shard.

v2 all of a group, and an error for it. v7 only what no open transaction may change. v8 several groups. v9 member epochs. v10 topics by id.
Who asks for it (v8 on, server/lag.py) is told beside each offset how much is left to read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mqd.coordinator.group.offsets import FetchOffsets
from mqd.errors import ErrorCode, MqError
from mqd.limits import FETCHED_OFFSETS_MAX
from mqd.protocol.apis.offset_fetch import LAG_TO_LAST_STABLE_OFFSET
from mqd.server.context import Context
from mqd.server.coordinators import call_of
from mqd.server.lag import tell_lag
from mqd.types import NO_EPOCH, NO_OFFSET

_SEVERAL_SINCE = 8
_GROUP_ERRORS_SINCE = 2


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    version = context.header.api_version
    if version < _SEVERAL_SINCE:
        found = await _fetch(context, FetchOffsets(request.group_id, request.topics, request.require_stable))
        if found["error_code"] and version < _GROUP_ERRORS_SINCE:
            return {"topics": _refused_rows(request.topics, found["error_code"])}
        return {"topics": found["topics"], "error_code": found["error_code"]}
    groups = []
    left = FETCHED_OFFSETS_MAX
    for group in request.groups:
        wanted = FetchOffsets(group.group_id, group.topics, request.require_stable, group.member_id, group.member_epoch)
        if left > 0:
            groups.append(await _fetch(context, wanted))
        else:  # which clients take for "not yet", and ask for these groups again
            groups.append(_refused(group.group_id, MqError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)))
        left -= sum(len(topic["partitions"]) for topic in groups[-1]["topics"])
    if request.lag_wanted:
        await tell_lag(context.node, groups, read_committed=request.lag_wanted == LAG_TO_LAST_STABLE_OFFSET)
    return {"groups": groups, "lag_told": bool(request.lag_wanted)}


async def _fetch(context: Context, wanted: FetchOffsets) -> Mapping[str, Any]:
    """One group's row of the answer."""
    try:
        return await context.node.groups.call(wanted.group_id, call_of(context, wanted))
    except MqError as error:
        return _refused(wanted.group_id, error)


def _refused(group_id: str, error: MqError) -> dict[str, Any]:
    """Clients do not expect COORDINATOR_NOT_AVAILABLE here, and give up: Kafka, too, says that it is another node then."""
    code = ErrorCode.NOT_COORDINATOR if error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE else error.code
    return {"group_id": group_id, "topics": [], "error_code": int(code)}


def _refused_rows(topics: Sequence[Any], code: int) -> list[dict[str, Any]]:
    """Version 1 has no error for a group: each partition tells it."""
    return [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": partition,
                    "committed_offset": NO_OFFSET,
                    "committed_leader_epoch": NO_EPOCH,
                    "metadata": "",
                    "error_code": code,
                }
                for partition in topic.partition_indexes
            ],
        }
        for topic in topics
    ]
