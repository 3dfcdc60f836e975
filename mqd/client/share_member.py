"""A member of a share group (KIP-932): its heartbeats, and its assignment. Pure.

The coordinator assigns partitions, and nothing is revoked step by step: several members may have a
partition. So an assignment replaces the last one at once. A fenced member joins again with the same
id and keeps its assignment until the next response: records that it has acquired stay acquired.
"""

from __future__ import annotations

import base64
from typing import Any, NamedTuple
from uuid import UUID

from mqd.client.errors import ClientError, error_from_wire
from mqd.client.group_member import (
    FOREVER,
    RETRY_LATER,
    CoordinatorRequest,
    RetryTimer,
    TopicLookup,
    Wait,
)
from mqd.client.share_options import ShareOptions
from mqd.errors import ErrorCode

SHARE_GROUP_HEARTBEAT = 76
JOIN_EPOCH, LEAVE_EPOCH = 0, -1


class Place(NamedTuple):
    """A partition, as share groups name it."""

    topic_id: UUID
    partition: int


def member_id_of(uuid: UUID) -> str:
    """The id of a member: Kafka's text of a UUID."""
    return base64.urlsafe_b64encode(uuid.bytes).decode().rstrip("=")


class ShareMember:
    """See the head of this file. `next` returns the next step; its result comes back through
    `on_response` or `on_failure`."""

    def __init__(self, options: ShareOptions, member_id: str) -> None:
        self.member_id = member_id
        self.epoch = JOIN_EPOCH
        self.assignment: frozenset[Place] = frozenset()
        self.failure: ClientError | None = None
        """A final error: the member sends no more requests."""
        self._options = options
        self._retry = RetryTimer()
        self._heartbeat_at = 0.0

    def next(self, now: float) -> CoordinatorRequest | Wait:
        """The next step; the same until its result is reported."""
        if self.failure is not None:
            return Wait(FOREVER)
        due = max(self._heartbeat_at, self._retry.retry_at)
        if now < due:
            return Wait(due)
        return CoordinatorRequest(SHARE_GROUP_HEARTBEAT, self._body(self.epoch))

    def _body(self, epoch: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "group_id": self._options.group_id,
            "member_id": self.member_id,
            "member_epoch": epoch,
        }
        if epoch == JOIN_EPOCH:
            body["rack_id"] = self._options.rack
            body["subscribed_topic_names"] = list(self._options.topics)
        return body

    def leave_request(self) -> CoordinatorRequest | None:
        """The last request. None if there is nothing to leave."""
        if self.failure is not None:
            return None
        return CoordinatorRequest(SHARE_GROUP_HEARTBEAT, self._body(LEAVE_EPOCH))

    def on_failure(self, step: CoordinatorRequest | TopicLookup, now: float, draw: float) -> None:
        """No response: retry after a backoff."""
        self._retry.fail(now, draw)

    def on_response(
        self, request: CoordinatorRequest, response: Any, now: float, draw: float
    ) -> None:
        """The coordinator's response to a heartbeat."""
        code = response.error_code
        if code in RETRY_LATER:
            self.on_failure(request, now, draw)
        elif code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch = JOIN_EPOCH
            self._heartbeat_at = 0.0
            self._retry.fail(now, draw)
        elif code:
            subject = f"share group {self._options.group_id!r}"
            self.failure = error_from_wire(code, subject, response.error_message)
        else:
            self._retry.succeed()
            self.epoch = response.member_epoch
            self._heartbeat_at = now + response.heartbeat_interval_ms / 1000
            if response.assignment is not None:
                self.assignment = frozenset(
                    Place(row.topic_id, index)
                    for row in response.assignment.topic_partitions
                    for index in row.partitions
                )
