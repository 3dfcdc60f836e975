"""Committed offsets on the wire: requests and responses of OffsetCommit, OffsetFetch and
TxnOffsetCommit. Pure. Topics are identified by name: up to version 9 of the first two, and in every
version of the third.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mqd.client.arguments import (
    INT64_MAX,
    check_id,
    check_optional_text,
    check_string,
    check_whole,
    shown,
)
from mqd.client.calls import by_topic
from mqd.client.errors import ClientError, error_from_wire, invalid_type, invalid_value
from mqd.client.group_member import GroupMetadata
from mqd.client.resource_arguments import check_by_partition
from mqd.errors import ErrorCode
from mqd.types import NO_EPOCH, NO_OFFSET, TopicPartition

OFFSET_COMMIT, OFFSET_FETCH, TXN_OFFSET_COMMIT = 8, 9, 28
NAMES_UP_TO = 9
SEVERAL_GROUPS_SINCE = 8


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The next record to read, what the committer noted beside it, and the leader epoch of the
    record before it (-1: unknown)."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


Offsets = Mapping[TopicPartition, "int | CommittedOffset"]


def committed(place: int | CommittedOffset) -> CommittedOffset:
    """An offset alone as a CommittedOffset."""
    return place if isinstance(place, CommittedOffset) else CommittedOffset(place)


def commit_body(group: GroupMetadata, offsets: Offsets) -> dict[str, Any]:
    """OffsetCommit; TxnOffsetCommit takes the same with the producer's fields."""
    topics = by_topic(offsets, lambda tp: _row(tp, committed(offsets[tp])))
    return {
        "group_id": group.group_id,
        "generation_id_or_member_epoch": group.generation,
        "generation_id": group.generation,
        "member_id": group.member_id,
        "group_instance_id": group.instance_id,
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }


def check_offsets(name: str, offsets: object) -> None:
    """Offsets to commit, by partition. Raises InvalidType or InvalidValue."""
    check_by_partition(name, offsets, "42")
    assert isinstance(offsets, Mapping)
    for tp, place in offsets.items():
        row = committed(place)
        offset = row.offset
        is_int = isinstance(offset, int) and not isinstance(offset, bool)
        if not is_int or not 0 <= offset <= INT64_MAX:
            make = invalid_value if is_int else invalid_type
            remedy = "commit the offset of the next record to read, from 0 on"
            raise make(f"{shown(offset)} is no offset of {tp} to commit", remedy)
        check_string(f"the metadata of {tp}", row.metadata, "host-1")
        check_whole(f"the leader epoch of {tp}", row.leader_epoch, NO_EPOCH)


def check_group(group: object) -> None:
    """The identity of a member. Raises InvalidType or InvalidValue."""
    if not isinstance(group, GroupMetadata):
        remedy = "give group_metadata() of the consumer, or GroupMetadata('billing')"
        raise invalid_type(f"group is {shown(group)}", remedy)
    check_id("the group id", group.group_id, "billing")
    check_whole("the generation", group.generation, -1)
    check_string("the member id", group.member_id, "consumer-1")
    check_optional_text("the instance id", group.instance_id, "billing-1")


def _row(tp: TopicPartition, place: CommittedOffset) -> dict[str, Any]:
    return {
        "partition_index": tp.partition,
        "committed_offset": place.offset,
        "committed_leader_epoch": place.leader_epoch,
        "committed_metadata": place.metadata,
    }


def commit_errors(response: Any) -> dict[TopicPartition, ClientError]:
    """The partitions that were refused, in order."""
    return {
        tp: error_from_wire(row.error_code, f"committing {tp}")
        for topic in response.topics
        for row in topic.partitions
        if row.error_code and (tp := TopicPartition(topic.name, row.partition_index))
    }


def fetch_body(
    group: GroupMetadata, partitions: Iterable[TopicPartition] | None, *, stable: bool
) -> dict[str, Any]:
    """OffsetFetch for the partitions, None for all; with `stable`, offsets that a transaction may
    still change are waited for (KIP-447)."""
    topics = None
    if partitions is not None:
        indexes: dict[str, list[int]] = {}
        for tp in partitions:
            indexes.setdefault(tp.topic, []).append(tp.partition)
        topics = [{"name": name, "partition_indexes": each} for name, each in indexes.items()]
    one: dict[str, Any] = {"group_id": group.group_id, "topics": topics}
    if group.generation >= 0:
        one |= {"member_id": group.member_id, "member_epoch": group.generation}
    return {"group_id": group.group_id, "topics": topics, "groups": [one], "require_stable": stable}


class FetchedOffset(NamedTuple):
    """The OffsetFetch result of one partition.

    `start` and `end` of the log are None if the broker did not return them.
    """

    committed: CommittedOffset | None
    start: int | None
    end: int | None


def fetched(
    response: Any, subject: str
) -> dict[TopicPartition, CommittedOffset | ClientError | None]:
    """The committed offsets of one group by partition; None if there is none. Raises ClientError
    for a refusal of the whole."""
    one = response.groups[0] if response.groups else response
    if one.error_code:
        raise error_from_wire(one.error_code, subject)
    return {
        tp: row if isinstance(row, ClientError) else row.committed
        for tp, row in fetched_rows(one, has_log_ends=False).items()
    }


def fetch_several_body(
    group_ids: Iterable[str],
    partitions: Mapping[str, Iterable[TopicPartition]],
    *,
    stable: bool,
    lag_wanted: int,
) -> dict[str, Any]:
    """OffsetFetch for several groups (version 8 on): the partitions named for a group, or all of
    it."""
    groups = [
        fetch_body(GroupMetadata(group_id), partitions.get(group_id), stable=stable)["groups"][0]
        for group_id in group_ids
    ]
    return {"groups": groups, "require_stable": stable, "lag_wanted": lag_wanted}


def fetched_rows(
    group: Any, *, has_log_ends: bool
) -> dict[TopicPartition, FetchedOffset | ClientError]:
    """The rows of one group of a response."""
    found: dict[TopicPartition, FetchedOffset | ClientError] = {}
    for topic in group.topics or ():
        for row in topic.partitions:
            tp = TopicPartition(topic.name, row.partition_index)
            if row.error_code:
                found[tp] = error_from_wire(row.error_code, f"the committed offset of {tp}")
                continue
            start, end = (
                (row.log_start_offset, row.log_end_offset)
                if has_log_ends
                else (NO_OFFSET, NO_OFFSET)
            )
            found[tp] = FetchedOffset(
                _committed(row),
                None if start == NO_OFFSET else start,
                None if end == NO_OFFSET else end,
            )
    return found


def _committed(row: Any) -> CommittedOffset | None:
    if row.committed_offset == NO_OFFSET:
        return None
    return CommittedOffset(row.committed_offset, row.metadata or "", row.committed_leader_epoch)


def raise_most_severe(errors: Iterable[ClientError]) -> None:
    """Raise one of the errors: a final one if there is any, for then it is of no use to try
    again."""
    everything = sorted(errors, key=lambda each: each.retriable)
    if everything:
        raise everything[0]


COMMIT_CAME_TOO_LATE = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)
"""The group has gone on without the committer."""
