"""DescribeShareGroupOffsets (key 90), versions 0 to 1: start offsets of share groups (KIP-932).
Served by the coordinator of each group.

v1 lag (KIP-1226). As in Apache Kafka, these are not errors: a partition without a known start
offset, a topic that does not exist, a group that does not exist.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any
from uuid import UUID

from mqd.errors import ErrorCode, MqError
from mqd.limits import SHARE_OFFSETS_ROWS_MAX
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import is_authorized, refusal
from mqd.server.context import Context
from mqd.server.share_offsets import SummaryRow, partitions_with_states, summaries
from mqd.server.share_requests import require_share_groups
from mqd.server.slices import KEY_CHARS_A_ROW, Pace, listed_in_slices
from mqd.share.sessions import Place

_NO_TOPIC = UUID(int=0)
_UNKNOWN = SummaryRow()
_Wanted = dict[str, dict[int, None]]
"""Partitions by topic."""
_NUMBERS_A_ROW = 20
"""So many partitions of a request take as long as one row."""


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_share_groups(context.node)
    rows: list[dict[str, Any]] = []
    described = 0
    pace = Pace()
    # a group may have many partitions: each gets one row, however often it is named
    for group_id, wanted in (await _by_group(request)).items():
        await pace.row(1 + len(group_id) // KEY_CHARS_A_ROW)
        try:
            if not is_authorized(context, Operation.DESCRIBE, ResourceType.GROUP, group_id):
                raise refusal(ResourceType.GROUP)
            if described > SHARE_OFFSETS_ROWS_MAX:
                raise MqError(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                    "The response has too many partitions of other groups. Request the offsets of "
                    "this group again.",
                )
            topics = await (
                _all(context, group_id, request.unaccepted_wanted)
                if wanted is None
                else _named(context, group_id, wanted, request.unaccepted_wanted)
            )
        except MqError as error:
            rows.append(_refused(group_id, error))
        else:
            rows.append({"group_id": group_id, "topics": topics, "error_code": ErrorCode.NONE})
            described += sum(len(topic["partitions"]) for topic in topics)
    return {"groups": rows}


async def _by_group(request: Any) -> dict[str, _Wanted | None]:
    """The partitions of each group by topic; None for all. A group may be named several times."""
    groups: dict[str, _Wanted | None] = {}
    pace = Pace()
    for group in request.groups:
        await pace.row()
        if group.topics is None:
            groups[group.group_id] = None
            continue
        wanted = groups.setdefault(group.group_id, {})
        if wanted is None:
            continue
        for topic in group.topics:
            wanted.setdefault(topic.topic_name, {}).update(dict.fromkeys(topic.partitions))
            await pace.row(1 + len(topic.partitions) // _NUMBERS_A_ROW)
    return groups


async def _all(context: Context, group_id: str, unaccepted_wanted: bool) -> list[Mapping[str, Any]]:
    """The topics that the client may describe."""
    names: dict[UUID, str] = {}
    places = []
    pace = Pace()
    for place in await partitions_with_states(context, group_id):
        await pace.row()
        topic = context.node.image.topics_by_id.get(place.topic_id)
        if place.topic_id not in names:
            if topic is None or not is_authorized(
                context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name, is_logged=False
            ):
                continue
            names[place.topic_id] = topic.name
        places.append(place)
    found = await summaries(context, group_id, places, unaccepted_wanted=unaccepted_wanted)
    topics: dict[UUID, list[Mapping[str, Any]]] = {topic_id: [] for topic_id in names}
    for place in places:
        topics[place.topic_id].append(_row(place.partition, found[place]))
        await pace.row()
    return [
        {"topic_name": names[topic_id], "topic_id": topic_id, "partitions": rows}
        for topic_id, rows in topics.items()
    ]


async def _named(
    context: Context, group_id: str, wanted: _Wanted, unaccepted_wanted: bool
) -> list[Mapping[str, Any]]:
    """The partitions of the request, each once."""
    await partitions_with_states(context, group_id)  # only the coordinator may respond
    pace = Pace()
    refused: dict[str, SummaryRow] = {}
    ids: dict[str, UUID] = {}
    for name in wanted:
        if not is_authorized(context, Operation.DESCRIBE, ResourceType.TOPIC, name):
            refused[name] = SummaryRow(error=refusal(ResourceType.TOPIC))
        elif (topic := context.node.image.topics.get(name)) is not None:
            ids[name] = topic.topic_id
        await pace.row()
    places = await listed_in_slices(
        Place(topic_id, one) for name, topic_id in ids.items() for one in wanted[name]
    )
    found = await summaries(context, group_id, places, unaccepted_wanted=unaccepted_wanted)
    topics: list[Mapping[str, Any]] = []
    for name, partitions in wanted.items():
        topic_id = ids.get(name, _NO_TOPIC)
        default = refused.get(name, _UNKNOWN)
        rows = []
        for one in partitions:
            rows.append(_row(one, found.get(Place(topic_id, one), default)))
            await pace.row()
        topics.append({"topic_name": name, "topic_id": topic_id, "partitions": rows})
        await pace.row()
    return topics


def _row(partition: int, summary: SummaryRow) -> dict[str, Any]:
    row: dict[str, Any] = {
        "partition_index": partition,
        "start_offset": summary.start_offset,
        "leader_epoch": summary.leader_epoch,
        "lag": summary.lag,
        **summary.unaccepted._asdict(),
        "error_code": ErrorCode.NONE,
    }
    if summary.error is not None:
        row["error_code"] = summary.error.code
        row["error_message"] = summary.error.message or None
    return row


def _refused(group_id: str, error: MqError) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "topics": [],
        "error_code": error.code,
        "error_message": error.message or None,
    }


def failed(request: Any, error: MqError) -> Generator[int, None, Mapping[str, Any]]:
    rows = []
    for group_id in dict.fromkeys(group.group_id for group in request.groups):
        rows.append(_refused(group_id, error))
        yield 1
    return {"groups": rows}
