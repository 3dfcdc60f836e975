"""Validates requests of groups without their state: any node does it, also for a group that another
node coordinates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from mqd.coordinator.group.consumer_member import JOINING, LEAVING, LEAVING_FOR_NOW
from mqd.coordinator.shard import Call, GroupOptions
from mqd.errors import ErrorCode, MqError
from mqd.limits import SHARE_MEMBER_ID_CHARS_MAX, SUBSCRIBED_NAMES_MAX, TOPIC_NAME_CHARS_MAX

_PROTOCOL_NAMED_FROM: Final = 5
"""Version of SyncGroup from which a member names its protocol."""


def check(call: Call, options: GroupOptions) -> None:
    """Raises MqError: INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, INCONSISTENT_GROUP_PROTOCOL,
    INVALID_REQUEST, UNSUPPORTED_ASSIGNOR.
    """
    check_api = _CHECKS.get(call.api)
    if check_api is not None:
        check_api(call, options)


def _check_id(call: Call, _: GroupOptions) -> None:
    if not call.request.group_id:
        raise MqError(ErrorCode.INVALID_GROUP_ID)


def _check_join(call: Call, options: GroupOptions) -> None:
    _check_id(call, options)
    shortest, longest = (
        options.node("group.min.session.timeout.ms"),
        options.node("group.max.session.timeout.ms"),
    )
    if not shortest <= call.request.session_timeout_ms <= longest:
        raise MqError(ErrorCode.INVALID_SESSION_TIMEOUT)


def _check_sync(call: Call, options: GroupOptions) -> None:
    if call.version >= _PROTOCOL_NAMED_FROM and (
        call.request.protocol_type is None or call.request.protocol_name is None
    ):
        raise MqError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    _check_id(call, options)


def _check_consumer_heartbeat(call: Call, options: GroupOptions) -> None:
    request, version, assignors = (
        call.request,
        call.version,
        options.node("group.consumer.assignors"),
    )

    def refuse(message: str) -> MqError:
        return MqError(ErrorCode.INVALID_REQUEST, message)

    if len(request.subscribed_topic_names or ()) > SUBSCRIBED_NAMES_MAX:
        raise refuse(
            f"A member subscribes to at most {SUBSCRIBED_NAMES_MAX} topics by their names."
        )
    epoch = request.member_epoch
    if (version >= 1 or epoch > JOINING or epoch == LEAVING) and not request.member_id.strip():
        raise refuse("MemberId can't be empty.")
    for value, name in (
        (request.group_id, "GroupId"),
        (request.instance_id, "InstanceId"),
        (request.rack_id, "RackId"),
    ):
        if value is not None and not value.strip():
            raise refuse(f"{name} can't be empty.")
    if epoch == JOINING:
        if request.rebalance_timeout_ms == -1:
            raise refuse("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise refuse("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise refuse(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
                "(re-)joining."
            )
    elif epoch == LEAVING_FOR_NOW:
        if request.instance_id is None:
            raise refuse("InstanceId can't be null.")
    elif epoch < LEAVING_FOR_NOW:
        raise refuse("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise MqError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: "
            f"{', '.join(assignors)}.",
        )


def check_names(names: Collection[str] | None) -> None:
    """The names of a share group's member. Raises MqError INVALID_REQUEST if they are too many, or
    too long for a topic."""
    if names is None:
        return
    if len(names) > SUBSCRIBED_NAMES_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"A member subscribes to at most {SUBSCRIBED_NAMES_MAX} topics by their names.",
        )
    if any(len(name) > TOPIC_NAME_CHARS_MAX for name in names):
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"The name of a topic has at most {TOPIC_NAME_CHARS_MAX} characters.",
        )


def check_share_member(member_id: str | None) -> None:
    """The id of a member of a share group. Raises MqError INVALID_REQUEST."""
    if not member_id:
        raise MqError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    if len(member_id) > SHARE_MEMBER_ID_CHARS_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"MemberId has more than {SHARE_MEMBER_ID_CHARS_MAX} characters.",
        )


def _check_share_heartbeat(call: Call, _: GroupOptions) -> None:
    request = call.request
    check_share_member(request.member_id)
    if not request.member_id.strip():
        raise MqError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    for value, name in ((request.group_id, "GroupId"), (request.rack_id, "RackId")):
        if value is not None and not value.strip():
            raise MqError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
    if request.member_epoch == JOINING and not request.subscribed_topic_names:
        raise MqError(
            ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request."
        )
    if request.member_epoch < LEAVING:
        raise MqError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
    check_names(request.subscribed_topic_names)


_CHECKS: Final[Mapping[str, Callable[[Call, GroupOptions], None]]] = {
    "JoinGroup": _check_join,
    "SyncGroup": _check_sync,
    "Heartbeat": _check_id,
    "LeaveGroup": _check_id,
    "OffsetDelete": _check_id,
    "TxnOffsetCommit": _check_id,
    "ConsumerGroupHeartbeat": _check_consumer_heartbeat,
    "ShareGroupHeartbeat": _check_share_heartbeat,
}
