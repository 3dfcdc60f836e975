"""What ShareFetch and ShareAcknowledge have in common: sessions, acknowledgements, and the rows of
partitions (KIP-932).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import trio

from mqd.coordinator.group.requests import check_share_member
from mqd.errors import ErrorCode, MqError
from mqd.raft.versions import SHARE_FEATURE
from mqd.replica.partition import Partition
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import is_authorized, refusal
from mqd.server.context import Context, Node
from mqd.server.partitions import (
    current_leader,
    endpoints,
    no_such_partition,
    unknown_partition,
)
from mqd.server.slices import Pace
from mqd.share.led_partitions import LedSharePartition
from mqd.share.ports import ShareKey
from mqd.share.sessions import Place, SessionKey
from mqd.share.values import BY_BACK_OFF, Acknowledgement, AcknowledgeType
from mqd.types import NO_EPOCH, NO_NODE, TopicPartition

Batches = dict[Place, list[Acknowledgement]]

_TYPES_A_ROW: Final = 500
"""Checking so many acknowledge types takes as long as one row."""
_AT_ONCE: Final = 50
"""Partitions in which one request acknowledges records at once."""
UNSUPPORTED: Final = "The version of API is not supported."
_NO_LEADER: Final = {"leader_id": NO_NODE, "leader_epoch": NO_EPOCH}
_OTHER_ERROR: Final = {"leader_id": 0, "leader_epoch": 0}


def require_share_groups(node: Node, message: str = "") -> None:
    """Raises MqError UNSUPPORTED_VERSION if the feature share.version is 0. `message`: as Apache
    Kafka has it for this API."""
    if not node.image.features.get(SHARE_FEATURE, 0):
        raise MqError(ErrorCode.UNSUPPORTED_VERSION, message)


def session_key(request: Any) -> SessionKey:
    """Raises MqError: INVALID_GROUP_ID, INVALID_REQUEST."""
    if request.group_id is None:
        raise MqError(ErrorCode.INVALID_REQUEST, "GroupId can't be null.")
    if not request.group_id:
        raise MqError(ErrorCode.INVALID_GROUP_ID)
    check_share_member(request.member_id)
    return SessionKey(request.group_id, request.member_id)


class Acknowledgements(NamedTuple):
    """The acknowledgements of a request."""

    valid: Batches
    errors: dict[Place, MqError]
    """Errors of other partitions: none of their records is acknowledged."""


async def acknowledgements_of(context: Context, request: Any) -> Acknowledgements:
    """Checks each partition. Only a request with `is_renew_ack` may renew locks (KIP-1222)."""
    found: Batches = {}
    errors: dict[Place, MqError] = {}
    may_renew = context.node.share.options.renews(request.group_id)
    pace = Pace()
    for topic in request.topics:
        await pace.row()
        for one in topic.partitions:
            await pace.row()
            if not one.acknowledgement_batches:
                continue
            place = Place(topic.topic_id, one.partition_index)
            batches = found.setdefault(place, [])
            before = batches[-1].last_offset if batches else -1
            for row in one.acknowledgement_batches:
                await pace.row(1 + len(row.acknowledge_types) // _TYPES_A_ROW)
                error = _error_in(row, before, request.is_renew_ack, may_renew)
                if error is not None:
                    errors.setdefault(place, error)
                    break
                before = row.last_offset
                batches.append(
                    Acknowledgement(
                        row.first_offset,
                        row.last_offset,
                        list(row.acknowledge_types),
                        max(BY_BACK_OFF, row.retry_delay_ms),
                    )
                )
    for place in errors:
        del found[place]
    return Acknowledgements(found, errors)


def _error_in(row: Any, before: int, is_renewal: bool, may_renew: bool) -> MqError | None:
    """What is wrong with a batch of acknowledgements; None if it is valid."""
    count = row.last_offset - row.first_offset + 1
    types = row.acknowledge_types
    most = AcknowledgeType.RENEW if is_renewal else AcknowledgeType.REJECT
    if row.first_offset < before or count < 1:
        return MqError(
            ErrorCode.INVALID_REQUEST, "Acknowledgement batches overlap or are not in order."
        )
    if len(types) not in (1, count):
        return MqError(
            ErrorCode.INVALID_REQUEST,
            "A batch has one acknowledge type, or one for each of its records.",
        )
    if min(types) < AcknowledgeType.GAP or max(types) > most:
        return MqError(ErrorCode.INVALID_REQUEST, "An acknowledge type is unknown.")
    if max(types) == AcknowledgeType.RENEW and not may_renew:
        return MqError(
            ErrorCode.INVALID_RECORD_STATE,
            "Renewing acquisition locks is not enabled for the group.",
        )
    return None


class Leading:
    """The share partitions of one request, and the errors of others."""

    def __init__(self, context: Context, group_id: str) -> None:
        self._context = context
        self._group_id = group_id
        self._leaders: set[int] = set()

    async def led(self, place: Place) -> LedSharePartition:
        """Raises MqError."""
        return await self._context.node.share.led(
            ShareKey(self._group_id, *place), self._partition(place)
        )

    def exists(self, place: Place) -> bool:
        """Whether there is such a partition."""
        topic = self._context.node.image.topics_by_id.get(place.topic_id)
        return topic is not None and 0 <= place.partition < len(topic.partitions)

    def unknown(self, place: Place) -> MqError:
        """The error of a partition that does not exist."""
        try:
            self._partition(place)
        except MqError as error:
            return error
        return no_such_partition()  # it was created meanwhile

    def _partition(self, place: Place) -> Partition:
        node = self._context.node
        topic = node.image.topics_by_id.get(place.topic_id)
        if topic is None:
            raise MqError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        if not is_authorized(self._context, Operation.READ, ResourceType.TOPIC, topic.name):
            raise refusal(ResourceType.TOPIC)
        partition = node.replica.get(TopicPartition(topic.name, place.partition))
        if partition is None:
            raise unknown_partition(node, topic.name.encode(), None, place.partition)
        if not partition.serves:
            raise partition.not_leader()
        return partition

    def leader_of(self, place: Place, error: MqError) -> Mapping[str, Any]:
        """The current leader for the row of a partition with an error (KIP-951). As in Apache
        Kafka, the fields are 0 with other errors than of leaders."""
        if error.code not in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.FENCED_LEADER_EPOCH,
        ):
            return _OTHER_ERROR
        node = self._context.node
        topic = node.image.topics_by_id.get(place.topic_id)
        partition = None
        if topic is not None:
            partition = node.replica.get(TopicPartition(topic.name, place.partition))
        found = current_leader(
            node, partition, topic_id=place.topic_id.bytes, index=place.partition
        )
        if found is None:
            return _NO_LEADER
        self._leaders.add(found[0])
        return {"leader_id": found[0], "leader_epoch": found[1]}

    def endpoints(self) -> list[dict[str, Any]]:
        """The addresses of the leaders that the rows name."""
        found = endpoints(self._context.node, self._leaders, self._context.client_listener)
        return [
            {"node_id": node_id, "host": host, "port": port, "rack": rack}
            for node_id, host, port, rack in found
        ]

    async def acknowledge(
        self, member_id: str, wanted: Acknowledgements
    ) -> dict[Place, MqError | None]:
        """Acknowledge in all partitions at once. Returns the error of each."""
        batches, results = wanted.valid, dict[Place, MqError | None](wanted.errors)
        pace = Pace()
        waiting = iter(batches.items())

        async def acknowledge_some() -> None:
            for place, rows in waiting:
                await pace.row()
                try:
                    led = await self.led(place)
                    await self._context.node.share.acknowledge(led, member_id, rows)
                except MqError as error:
                    results[place] = client_error(error)
                else:
                    results[place] = None

        if len(batches) <= 1:
            await acknowledge_some()
            return results
        async with trio.open_nursery() as nursery:
            for _ in range(min(_AT_ONCE, len(batches))):
                nursery.start_soon(acknowledge_some)
        return {place: results[place] for place in (*wanted.errors, *batches)}


def client_error(error: MqError) -> MqError:
    """Errors of the share coordinator, as a client of the partition's leader gets them."""
    if error.code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH):
        return MqError(ErrorCode.NOT_LEADER_OR_FOLLOWER, error.message)
    if error.code in (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ):
        return MqError(ErrorCode.UNKNOWN_SERVER_ERROR, error.message)
    return error


async def by_topic(rows: Iterable[tuple[Place, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The topics of a response, each with the rows of its partitions."""
    topics: dict[Any, list[dict[str, Any]]] = {}
    pace = Pace()
    for place, row in rows:
        await pace.row()
        topics.setdefault(place.topic_id, []).append({"partition_index": place.partition, **row})
    return [{"topic_id": topic_id, "partitions": found} for topic_id, found in topics.items()]
