"""OffsetFetch (key 9), versions 1 to 10: committed offsets of groups, from the coordinator's shard
of each group.

v2 all offsets of a group, and an error for it. v7 only offsets that no open transaction may change.
v8 several groups. v9 member epochs. v10 topics by id. On request (v8 on, server/lag.py) the
response has the lag of each partition.

For a group of another coordinator, or one that is loading, Kafka returns an error since v2 and no
rows. Two stock clients mishandle that. aiokafka 0.14 (up to v3) ignores the error, assumes a group
without offsets and reads from the beginning. librdkafka 2.16 (v9) searches for the coordinator, but
never queries it (its issue 5586). So mqd also returns rows for the requested partitions, each with
an error that makes these two retry. Clients that check the group's error first, such as Java's, do
not see them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any

from mqd.coordinator.group.offset_fetch import FetchOffsets
from mqd.errors import ErrorCode, MqError
from mqd.limits import DECODED_AT_ONCE_ROWS, FETCHED_OFFSETS_MAX
from mqd.protocol.apis.offset_fetch import LAG_TO_LAST_STABLE_OFFSET
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import is_authorized, split, topic_name_of
from mqd.server.context import Context
from mqd.server.coordinators import call_of
from mqd.server.lag import add_lag
from mqd.server.portions import in_portions, merge
from mqd.server.slices import KEY_CHARS_A_ROW, Pace, finished_in_slices, others_first
from mqd.types import NO_EPOCH, NO_OFFSET

_SEVERAL_SINCE = 8
_BY_ID_SINCE = 10
_GROUP_ERRORS_SINCE = 2
_UNSTABLE_IS_KNOWN_SINCE = 7
_RETRIED = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)


def has_many_rows(request: Any) -> bool:
    """Whether the request names more than 500 partitions, or asks for all offsets of a group."""
    groups = request.groups or (request,)  # before version 8 the request names one group
    wanted = 0
    for group in groups:
        if group.topics is None:
            return True
        wanted += sum(len(topic.partition_indexes) for topic in group.topics)
    return wanted > DECODED_AT_ONCE_ROWS


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    version = context.header.api_version
    if version < _SEVERAL_SINCE:
        found = await _fetch(
            context, FetchOffsets(request.group_id, request.topics, request.require_stable)
        )
        return {"topics": found["topics"], "error_code": found["error_code"]}
    groups = []
    pace = Pace()
    left = FETCHED_OFFSETS_MAX
    for group in request.groups:
        await pace.row(1 + len(group.group_id) // KEY_CHARS_A_ROW)
        wanted = FetchOffsets(
            group.group_id,
            group.topics,
            request.require_stable,
            group.member_id,
            group.member_epoch,
        )
        if left > 0:
            groups.append(await _fetch(context, wanted))
        else:  # clients retry these groups
            groups.append(
                {
                    "group_id": group.group_id,
                    "topics": [],
                    "error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                }
            )
        left -= sum(len(topic["partitions"]) for topic in groups[-1]["topics"])
    if request.lag_wanted:
        await add_lag(
            context.node, groups, read_committed=request.lag_wanted == LAG_TO_LAST_STABLE_OFFSET
        )
    return {"groups": groups, "has_log_ends": bool(request.lag_wanted)}


async def _fetch(context: Context, wanted: FetchOffsets) -> Mapping[str, Any]:
    """The row of one group. Topics that the client may not DESCRIBE have an error; they are left
    out if it requested all.
    """
    if not is_authorized(context, Operation.DESCRIBE, ResourceType.GROUP, wanted.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return await finished_in_slices(refusal(wanted, code, context.header.api_version))
    name_of = topic_name_of(context, context.header.api_version >= _BY_ID_SINCE)
    if wanted.topics is None:
        response = await _fetch_authorized(context, wanted)
        topics, _ = await finished_in_slices(
            split(context, Operation.DESCRIBE, ResourceType.TOPIC, response["topics"], name_of)
        )
        return {**response, "topics": topics}
    topics, denied = await finished_in_slices(
        split(context, Operation.DESCRIBE, ResourceType.TOPIC, wanted.topics, name_of)
    )
    if not denied:
        return await _fetch_authorized(context, wanted)
    response = await _fetch_authorized(context, wanted._replace(topics=topics))
    if response["error_code"]:
        return response
    refused = await finished_in_slices(
        _refused_topics(denied, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    )
    return {**response, "topics": [*response["topics"], *refused]}


async def _fetch_authorized(context: Context, wanted: FetchOffsets) -> Mapping[str, Any]:
    try:
        if wanted.topics is None:
            return await context.node.groups.call(wanted.group_id, call_of(context, wanted))
        portions = list(in_portions(wanted.topics, "partition_indexes")) or [[]]
        response = await context.node.groups.call(
            wanted.group_id, call_of(context, wanted._replace(topics=portions[0]))
        )
        if len(portions) == 1:
            return response
        topics: dict[Any, dict[str, Any]] = {}
        key = "topic_id" if context.header.api_version >= _BY_ID_SINCE else "name"
        merge(topics, response["topics"], key)
        for portion in portions[1:]:
            await others_first()
            found = await context.node.groups.call(
                wanted.group_id, call_of(context, wanted._replace(topics=portion))
            )
            merge(topics, found["topics"], key)
        return {**response, "topics": list(topics.values())}
    except MqError as error:
        return await finished_in_slices(refusal(wanted, error.code, context.header.api_version))


def _refused_topics(
    topics: Iterable[Any], code: ErrorCode
) -> Generator[int, None, list[dict[str, Any]]]:
    """Topics of a response whose partitions have an error."""
    found = []
    for topic in topics:
        rows = []
        for partition in topic.partition_indexes:
            rows.append(
                {
                    "partition_index": partition,
                    "committed_offset": NO_OFFSET,
                    "committed_leader_epoch": NO_EPOCH,
                    "metadata": "",
                    "error_code": code,
                }
            )
            yield 1
        found.append(
            {key: topic[key] for key in ("name", "topic_id") if key in topic} | {"partitions": rows}
        )
        yield 1
    return found


def refusal(
    wanted: FetchOffsets, code: ErrorCode, version: int
) -> Generator[int, None, dict[str, Any]]:
    """Clients do not expect COORDINATOR_NOT_AVAILABLE here, and give up. Kafka returns
    NOT_COORDINATOR too.
    """
    code = ErrorCode.NOT_COORDINATOR if code is ErrorCode.COORDINATOR_NOT_AVAILABLE else code
    topics: list[dict[str, Any]] = []
    if version < _GROUP_ERRORS_SINCE or code in _RETRIED:
        of_rows = code if version < _UNSTABLE_IS_KNOWN_SINCE else ErrorCode.UNSTABLE_OFFSET_COMMIT
        topics = yield from _refused_topics(wanted.topics or (), of_rows)
    return {"group_id": wanted.group_id, "topics": topics, "error_code": code}
