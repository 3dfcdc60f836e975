"""A member with the consumer group protocol (KIP-848): one request, ConsumerGroupHeartbeat. The
coordinator assigns; the member reconciles its partitions with the target and acknowledges. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from mqd.client.group_member import (
    FOREVER,
    MISSING_TOPIC_LOOKUP_S,
    RETRY_LATER,
    AssignmentChange,
    BaseMember,
    CoordinatorRequest,
    FoundTopic,
    Step,
    TopicLookup,
    Wait,
)
from mqd.client.group_options import GroupOptions
from mqd.errors import ErrorCode
from mqd.types import TopicPartition

CONSUMER_GROUP_HEARTBEAT = 68

JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2


@dataclass(slots=True)
class _Target:
    """The target assignment of the coordinator, by topic id."""

    topics: dict[UUID, tuple[int, ...]] = field(default_factory=dict)

    def named(self, names: Mapping[UUID, str]) -> frozenset[TopicPartition] | None:
        """The target by topic name; None while a name is unknown."""
        if not all(topic_id in names for topic_id in self.topics):
            return None
        return frozenset(
            TopicPartition(names[topic_id], index)
            for topic_id, indexes in self.topics.items()
            for index in indexes
        )


class ConsumerMember(BaseMember):
    """A member with the consumer protocol. The client chooses `member_id` and keeps it."""

    def __init__(self, options: GroupOptions, now: float, member_id: str) -> None:
        super().__init__(options, now)
        self.member_id = member_id
        self.epoch = JOIN_EPOCH
        self._target: _Target | None = None
        self._names: dict[UUID, str] = {}
        self._owned_ids: dict[str, UUID] = {}
        """Topic -> its id, of the owned partitions: a topic that was deleted and created has a new
        one."""
        self._wanted_ids: dict[str, UUID] = {}
        """Topic -> its id, of the partitions in `change.assigned`."""
        self._interval_s = options.heartbeat_interval_s
        self._heartbeat_at = 0.0
        self._lookup_at = 0.0
        self._send_all = True
        """The coordinator may not know every field: send all of them."""
        self._acknowledgement_due = False
        """The owned partitions changed: the next heartbeat reports them."""
        self._loss_pending = False
        self._left = False
        self._sent: tuple[bool, bool] = (False, False)
        """Whether the last heartbeat had every field, and the owned partitions."""
        self.rebalances = 0
        """Assignments reconciled so far."""

    # -- membership

    @property
    def is_member(self) -> bool:
        """Whether this member may commit."""
        return self.epoch > 0 and not self._loss_pending

    @property
    def may_advance(self) -> bool:
        """Whether a newer epoch may come without the user: a commit waits for it."""
        return not self._loss_pending and not self._left

    def heartbeat_now(self) -> None:
        """Send the next heartbeat at once: a commit was refused because the epoch is old."""
        self._heartbeat_at = 0.0

    # -- the next step

    def next(self, now: float) -> Step:
        """The next step; the same until its result is reported."""
        if self.failure is not None:
            return Wait(FOREVER)
        if self._loss_pending:
            return Wait(FOREVER)
        if self._left:
            if not self._polls:
                return Wait(FOREVER)
            self._left = False
        if now < self._retry.retry_at:
            return Wait(self._retry.retry_at)
        if self.epoch > 0 and now >= self._poll_deadline:
            return CoordinatorRequest(CONSUMER_GROUP_HEARTBEAT, self._leave_body())
        if now >= self._heartbeat_at or self._acknowledgement_due:
            return CoordinatorRequest(CONSUMER_GROUP_HEARTBEAT, self._heartbeat_body())
        unnamed = self._target is not None and self._target.named(self._names) is None
        if unnamed and now >= self._lookup_at:
            return TopicLookup(
                tuple(self.options.topics), all_topics=self.options.pattern is not None
            )
        until = min(self._heartbeat_at, self._poll_deadline if self.epoch > 0 else FOREVER)
        return Wait(min(until, self._lookup_at) if unnamed else until)

    def _heartbeat_body(self) -> dict[str, Any]:
        options = self.options
        full = self._send_all or self.epoch == JOIN_EPOCH
        owned = full or self._acknowledgement_due
        rows: dict[UUID, list[int]] = {}
        for tp in sorted(self.owned):
            rows.setdefault(self._owned_ids[tp.topic], []).append(tp.partition)
        # Partitions of a waiting change count as owned: the user may take them at any time.
        for tp in self._assignable() if self.change is not None else ():
            rows.setdefault(self._wanted_ids[tp.topic], []).append(tp.partition)
        self._sent = full, owned
        body: dict[str, Any] = {
            "group_id": options.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
        }
        if options.instance_id is not None:
            body["instance_id"] = options.instance_id
        if full:
            body["rack_id"] = options.rack
            body["rebalance_timeout_ms"] = options.max_poll_interval_ms
            body["subscribed_topic_names"] = sorted(options.topics)
            body["subscribed_topic_regex"] = options.pattern
            body["server_assignor"] = options.server_assignor
        if owned:
            body["topic_partitions"] = [
                {"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in rows.items()
            ]
        return body

    def _leave_body(self) -> dict[str, Any]:
        epoch = LEAVE_EPOCH if self.options.instance_id is None else STATIC_LEAVE_EPOCH
        return {
            "group_id": self.options.group_id,
            "member_id": self.member_id,
            "member_epoch": epoch,
            "instance_id": self.options.instance_id,
        }

    def leave_request(self) -> CoordinatorRequest | None:
        """The last request: a dynamic member leaves, a static one announces its return (epoch
        -2)."""
        return (
            CoordinatorRequest(CONSUMER_GROUP_HEARTBEAT, self._leave_body())
            if self.failure is None
            else None
        )

    # -- results of steps

    def on_failure(self, step: CoordinatorRequest | TopicLookup, now: float, draw: float) -> None:
        """No response: retry after a backoff, with every field."""
        self._retry.fail(now, draw)
        if isinstance(step, CoordinatorRequest):
            self._send_all = True
            self._heartbeat_at = self._retry.retry_at

    def on_topics(self, found: Mapping[str, FoundTopic], now: float) -> None:
        """The topics that exist, by name, of a TopicLookup."""
        self._retry.succeed()
        owned_names = {topic_id: name for name, topic_id in self._owned_ids.items()}
        self._names = {topic.topic_id: name for name, topic in found.items()} | owned_names
        self._lookup_at = now + MISSING_TOPIC_LOOKUP_S
        self._reconcile()

    def on_response(
        self, request: CoordinatorRequest, response: Any, now: float, draw: float
    ) -> None:
        """The coordinator's response to a heartbeat."""
        code = response.error_code
        if request.body["member_epoch"] < 0:
            self._left = True
            self._leave_generation()
        elif code in RETRY_LATER:
            self.on_failure(request, now, draw)
        elif code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self._leave_generation()
        elif code:
            self._fail(code, response.error_message)
        else:
            self._retry.succeed()
            full, owned = self._sent
            self._send_all = self._send_all and not full
            self._acknowledgement_due = self._acknowledgement_due and not owned
            self.epoch = response.member_epoch
            self._metadata = self._metadata._replace(
                generation=self.epoch, member_id=self.member_id
            )
            self._interval_s = response.heartbeat_interval_ms / 1000
            self._heartbeat_at = now + self._interval_s
            if response.assignment is not None:
                self._target = _Target(
                    {
                        row.topic_id: tuple(row.partitions)
                        for row in response.assignment.topic_partitions
                    }
                )
                self._lookup_at = now
            self._reconcile()

    def _reconcile(self) -> None:
        """Begin a change if the target assignment differs from the owned partitions."""
        if self.change is not None or self._target is None:
            return
        wanted = self._target.named(self._names)
        if wanted is None:
            return
        self._wanted_ids = {self._names[topic_id]: topic_id for topic_id in self._target.topics}
        self._target = None
        same = {
            tp
            for tp in self.owned & wanted
            if self._owned_ids[tp.topic] == self._wanted_ids[tp.topic]
        }
        if not wanted == self.owned == same:
            self.rebalances += 1
            self.change = AssignmentChange(
                tuple(sorted(self.owned - same)), tuple(sorted(wanted - same))
            )

    def _leave_generation(self) -> None:
        """The membership ended and every owned partition is lost; the user's task processes that
        before the next join."""
        self.epoch = JOIN_EPOCH
        self._target = None
        self._send_all = True
        self._acknowledgement_due = False
        self._heartbeat_at = 0.0
        self._loss_pending = self.change is not None or bool(self.owned)
        if self.change is None and self.owned:
            self.change = AssignmentChange(tuple(sorted(self.owned)), lost=True)

    def _assignable(self) -> tuple[TopicPartition, ...]:
        """The assigned partitions of the change, without those that the coordinator has withdrawn
        since."""
        assert self.change is not None
        if self._loss_pending or self._target is None:
            return () if self._loss_pending else self.change.assigned
        wanted = self._target.topics
        return tuple(
            tp
            for tp in self.change.assigned
            if tp.partition in wanted.get(self._wanted_ids[tp.topic], ())
        )

    def change_done(self, change: AssignmentChange, now: float) -> tuple[TopicPartition, ...]:
        """The user has processed `change`. Returns the partitions assigned: those not withdrawn
        since."""
        assigned = self._assignable()
        self._apply(change, assigned)
        self._owned_ids = {} if change.lost else self._wanted_ids
        if change.lost:
            self._loss_pending = False
        elif self._loss_pending:
            self._leave_generation()
        else:
            self._acknowledgement_due = True
            self._reconcile()
        return assigned
