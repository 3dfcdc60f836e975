"""Administration of the start offsets and the lag of share groups (KIP-932).

`Admin` has these calls, with the names of Kafka's Admin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from mqd.client.arguments import check_ids, check_names, check_string, check_whole
from mqd.client.calls import Calls, Outcomes, by_topic, outcomes_of
from mqd.client.coordinator import KeyType
from mqd.client.errors import ClientError, error_from_wire
from mqd.client.peer import PeerConnection
from mqd.client.resource_arguments import check_by_partition
from mqd.types import NO_OFFSET, TopicPartition

DESCRIBE_SHARE_GROUP_OFFSETS, ALTER_SHARE_GROUP_OFFSETS, DELETE_SHARE_GROUP_OFFSETS = 90, 91, 92


class ShareOffset(NamedTuple):
    """The progress of a share group in one partition."""

    start_offset: int | None
    """The first record that is not done. None if no member has read the partition yet."""
    lag: int | None
    """Records that are not done. None if the broker does not know it."""
    expired: int | None = None
    """Expired records that the group did not get, since the leader of the partition began to lead.
    None if it is unknown, as on Apache Kafka."""
    given_up: int | None = None
    """The same for records that were given up without a dead letter: rejected, or delivered as
    often as the group allows."""


class ShareGroupAdmin(Calls):
    """Calls about share groups."""

    async def list_share_group_offsets(
        self, group_ids: Iterable[str]
    ) -> dict[str, dict[TopicPartition, ShareOffset] | ClientError]:
        """The start offset and lag of each initialized partition of each group; empty for a group
        that does not exist. Raises ClientError if a broker is older than share groups."""
        wanted = check_ids("group_ids", group_ids, "billing")

        async def request(connection: PeerConnection, keys: list[str]) -> Outcomes:
            body = {
                "groups": [{"group_id": key, "topics": None} for key in keys],
                "unaccepted_wanted": True,
            }
            response = await self._client.request(connection, DESCRIBE_SHARE_GROUP_OFFSETS, body)
            outcomes = Outcomes({}, {})
            for group in response.groups:
                if group.error_code:
                    subject = f"group {group.group_id!r}"
                    error = error_from_wire(group.error_code, subject, group.error_message)
                    self._note([group.group_id], error, outcomes)
                else:
                    outcomes.done[group.group_id] = _share_offsets(group)
            return outcomes

        return await self._each_coordinated(
            "listing offsets of share groups", wanted, KeyType.GROUP, request
        )

    async def alter_share_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ClientError | None]:
        """Reset start offsets of a share group, which is created if it does not exist.

        The group must have no members, else NON_EMPTY_GROUP.
        """
        check_string("group_id", group_id, "billing")
        check_by_partition("offsets", offsets, "42")
        for tp, offset in offsets.items():
            check_whole(f"the offset of {tp}", offset, 0)

        async def request(connection: PeerConnection, left: list[TopicPartition]) -> Outcomes:
            topics = by_topic(
                left,
                lambda tp: {"partition_index": tp.partition, "start_offset": offsets[tp]},
            )
            body = {
                "group_id": group_id,
                "topics": [
                    {"topic_name": name, "partitions": rows} for name, rows in topics.items()
                ],
            }
            response = await self._client.request(connection, ALTER_SHARE_GROUP_OFFSETS, body)
            return _of_group(
                group_id,
                response,
                (
                    (
                        TopicPartition(topic.topic_name, row.partition_index),
                        row,
                        row.error_message,
                        None,
                    )
                    for topic in response.responses
                    for row in topic.partitions
                ),
            )

        return await self._of_one_group(
            f"setting offsets of share group {group_id!r}", group_id, list(offsets), request
        )

    async def delete_share_group_offsets(
        self, group_id: str, topics: Iterable[str]
    ) -> dict[str, ClientError | None]:
        """Delete the start offsets of topics, in all of their partitions.

        The group must have no members, else NON_EMPTY_GROUP.
        """
        check_string("group_id", group_id, "billing")
        names = check_names("topics", topics, "orders")

        async def request(connection: PeerConnection, left: list[str]) -> Outcomes:
            body = {"group_id": group_id, "topics": [{"topic_name": name} for name in left]}
            response = await self._client.request(connection, DELETE_SHARE_GROUP_OFFSETS, body)
            return _of_group(
                group_id,
                response,
                ((row.topic_name, row, row.error_message, None) for row in response.responses),
            )

        return await self._of_one_group(
            f"deleting offsets of share group {group_id!r}", group_id, list(names), request
        )


def _of_group(
    group_id: str, response: Any, rows: Iterable[tuple[Any, Any, str | None, None]]
) -> Outcomes:
    """The outcomes of rows. Raises ClientError for an error of the whole group."""
    if response.error_code:
        raise error_from_wire(response.error_code, f"group {group_id!r}", response.error_message)
    return outcomes_of(rows)


def _share_offsets(group: Any) -> dict[TopicPartition, ShareOffset]:
    return {
        TopicPartition(topic.topic_name, row.partition_index): ShareOffset(
            None if row.start_offset == NO_OFFSET else row.start_offset,
            None if row.lag < 0 else row.lag,
            None if row.expired < 0 else row.expired,
            None if row.given_up < 0 else row.given_up,
        )
        for topic in group.topics
        for row in topic.partitions
        if not row.error_code
    }
