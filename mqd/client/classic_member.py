"""A member with the classic group protocol: JoinGroup, SyncGroup and heartbeats. The group's leader
makes the assignment with an assignor of the clients (`assignors.py`). Pure.

With an eager assignor the user revokes every partition before each join. With cooperative ones it
revokes only those that move, and the group joins once more (KIP-429).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from mqd.client.assignors import ASSIGNORS, Assignor, Member, leaves_some
from mqd.client.group_member import (
    FOREVER,
    MISSING_TOPIC_LOOKUP_S,
    NO_GENERATION,
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
from mqd.errors import ErrorCode, ProtocolError
from mqd.protocol.consumer_protocol import (
    PROTOCOL_TYPE,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from mqd.types import TopicPartition

JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14

_JOIN_SLACK_S = 5.0
"""The coordinator responds to a join within the rebalance timeout; the client waits this much
longer.
"""


class _Phase(Enum):
    UNJOINED = "not a member, or about to join again"
    ASSIGNING = "the group's leader: looks up topics before it assigns"
    SYNCING = "joined, and waits for its assignment"
    STABLE = "has its assignment"
    LEFT = "left because the user stopped polling; joins at the next poll"


class ClassicMember(BaseMember):
    """A member with the classic protocol."""

    def __init__(self, options: GroupOptions, now: float) -> None:
        super().__init__(options, now)
        self.member_id = ""
        self.generation = NO_GENERATION
        self._phase = _Phase.UNJOINED
        self._assignor: Assignor | None = None
        self._leads = False
        self._members: list[Member] = []
        self._assignments: list[dict[str, Any]] = []
        self._topics = tuple(options.topics)
        """The subscription: topics of the options, or those that match the pattern now."""
        self._counts: dict[str, int] = {}
        self._matched = options.pattern is None
        """Whether the pattern was matched against the topics."""
        self._rejoin_due = False
        self._loss_pending = False
        self._heartbeat_at = 0.0
        self._lookup_at = FOREVER
        self._second_round = False
        """As the leader: some members must revoke partitions first, then join once more
        (KIP-429)."""
        self._second_round_at = FOREVER
        self.rebalances = 0
        """Assignments received so far."""

    # -- membership

    @property
    def is_member(self) -> bool:
        """Whether this member may commit."""
        return self.generation != NO_GENERATION and not self._loss_pending

    @property
    def may_advance(self) -> bool:
        """Whether the next generation may come without the user: a commit waits for it."""
        return self.change is None and self._phase in (
            _Phase.UNJOINED,
            _Phase.ASSIGNING,
            _Phase.SYNCING,
        )

    @property
    def _cooperative(self) -> bool:
        """Whether every offered assignor is: the group may choose any of them (KIP-429)."""
        return all(ASSIGNORS[name].cooperative for name in self.options.assignors)

    # -- the next step

    def next(self, now: float) -> Step:
        """The next step; the same until its result is reported."""
        if self.failure is not None:
            return Wait(FOREVER)
        if self._phase is _Phase.LEFT:
            if not self._polls or self.change is not None:
                return Wait(FOREVER)
            self._phase = _Phase.UNJOINED
        if now < self._retry.retry_at:
            return Wait(self._retry.retry_at)
        if self._phase is _Phase.UNJOINED:
            if self.change is not None:
                return Wait(FOREVER)
            return self._join() if self._matched else TopicLookup((), all_topics=True)
        if self._phase is _Phase.ASSIGNING:
            return self._lookup()
        if self._phase is _Phase.SYNCING:
            return self._sync()
        if now >= self._poll_deadline:
            return CoordinatorRequest(
                LEAVE_GROUP,
                self._leave_body("the consumer did not poll within max.poll.interval.ms"),
            )
        if now >= self._heartbeat_at:
            return CoordinatorRequest(HEARTBEAT, self._identity())
        if self.change is not None:
            return Wait(min(self._heartbeat_at, self._poll_deadline))
        if now >= self._second_round_at:
            self._second_round_at = FOREVER
            self._request_rejoin()
            return self.next(now)
        if now >= self._lookup_at:
            return self._lookup()
        return Wait(
            min(self._heartbeat_at, self._poll_deadline, self._second_round_at, self._lookup_at)
        )

    def _identity(self) -> dict[str, Any]:
        return {
            "group_id": self.options.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.options.instance_id,
        }

    def _join(self) -> CoordinatorRequest:
        protocols = []
        for name in self.options.assignors:
            generation = self.generation if self.owned else NO_GENERATION
            subscription = Subscription(
                self._topics,
                tuple(sorted(self.owned)),
                generation,
                self.options.rack,
                ASSIGNORS[name].user_data(generation),
            )
            protocols.append({"name": name, "metadata": encode_subscription(subscription)})
        body = {
            "group_id": self.options.group_id,
            "session_timeout_ms": self.options.session_timeout_ms,
            "rebalance_timeout_ms": self.options.max_poll_interval_ms,
            "member_id": self.member_id,
            "group_instance_id": self.options.instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": protocols,
        }
        return CoordinatorRequest(
            JOIN_GROUP, body, self.options.max_poll_interval_s + _JOIN_SLACK_S
        )

    def _sync(self) -> CoordinatorRequest:
        name = None if self._assignor is None else self._assignor.name
        body = {
            **self._identity(),
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": name,
            "assignments": self._assignments,
        }
        return CoordinatorRequest(
            SYNC_GROUP, body, self.options.max_poll_interval_s + _JOIN_SLACK_S
        )

    def _lookup(self) -> TopicLookup:
        names = {topic for member in self._members for topic in member.subscription.topics} | set(
            self._topics
        )
        return TopicLookup(tuple(sorted(names)), all_topics=self.options.pattern is not None)

    def _leave_body(self, reason: str) -> dict[str, Any]:
        one = {
            "member_id": self.member_id,
            "group_instance_id": self.options.instance_id,
            "reason": reason,
        }
        return {"group_id": self.options.group_id, "member_id": self.member_id, "members": [one]}

    def leave_request(self) -> CoordinatorRequest | None:
        """The last request. None for a static member, which may return within its session
        (KIP-345)."""
        if not self.member_id or self.options.instance_id is not None or self.failure is not None:
            return None
        return CoordinatorRequest(LEAVE_GROUP, self._leave_body("the consumer is being closed"))

    # -- results of steps

    def on_failure(self, step: CoordinatorRequest | TopicLookup, now: float, draw: float) -> None:
        """No response: retry after a backoff. A SyncGroup begins again with a join."""
        self._retry.fail(now, draw)
        if isinstance(step, CoordinatorRequest) and step.key == SYNC_GROUP:
            self._phase = _Phase.UNJOINED

    def on_topics(self, found: Mapping[str, FoundTopic], now: float) -> None:
        """The topics that exist, by name, of a TopicLookup."""
        self._retry.succeed()
        pattern = self.options.pattern
        if pattern is not None:
            matching = re.compile(pattern)
            topics = tuple(sorted(name for name in found if matching.fullmatch(name)))
            changed = topics != self._topics
            self._topics = topics
            self._matched = True
            if self._phase is _Phase.UNJOINED:
                return
            if changed and self._phase is _Phase.STABLE:
                self._request_rejoin()
        wanted = self._lookup().names
        counts = {name: topic.partitions for name, topic in found.items() if name in wanted}
        missing = len(counts) < len(wanted)
        self._lookup_at = now + (
            MISSING_TOPIC_LOOKUP_S if missing else self.options.metadata_max_age_ms / 1000
        )
        if self._phase is _Phase.ASSIGNING:
            assert self._assignor is not None
            assignments = self._assignor.assign(self._members, counts)
            self._second_round = leaves_some(assignments, self._members, counts)
            self._assignments = [
                {
                    "member_id": member.member_id,
                    "assignment": encode_assignment(assignments[member.member_id]),
                }
                for member in self._members
            ]
            self._phase = _Phase.SYNCING
        elif self._leads and counts != self._counts:
            self._request_rejoin()
        self._counts = counts

    def on_response(
        self, request: CoordinatorRequest, response: Any, now: float, draw: float
    ) -> None:
        """The coordinator's response to a CoordinatorRequest."""
        code = response.error_code
        if request.key == LEAVE_GROUP:
            self._leave_generation(forget_member_id=True)
            self._report_loss()
            self._phase = _Phase.LEFT
        elif code in RETRY_LATER:
            self.on_failure(request, now, draw)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._heartbeat_at = now + self.options.heartbeat_interval_s
            if request.key == HEARTBEAT:
                self._retry.succeed()
                self._request_rejoin()
            else:
                self._retry.fail(now, draw)
                self._phase = _Phase.UNJOINED
        elif code == ErrorCode.MEMBER_ID_REQUIRED and request.key == JOIN_GROUP:
            self.member_id = response.member_id
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._leave_generation(forget_member_id=code == ErrorCode.UNKNOWN_MEMBER_ID)
            self._report_loss()
            self._phase = _Phase.UNJOINED
        elif code:
            self._fail(code)
        else:
            self._retry.succeed()
            self._heartbeat_at = now + self.options.heartbeat_interval_s
            if request.key == JOIN_GROUP:
                self._on_joined(response, now)
            elif request.key == SYNC_GROUP:
                self._on_synced(response, now)

    def _on_joined(self, response: Any, now: float) -> None:
        self.member_id = response.member_id
        self.generation = response.generation_id
        self._metadata = self._metadata._replace(
            generation=self.generation, member_id=self.member_id
        )
        self._assignor = ASSIGNORS.get(response.protocol_name or "")
        if self._assignor is None:
            detail = f"the group chose assignor {response.protocol_name!r}, unknown to this client"
            self._fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, detail)
            return
        self._rejoin_due = False
        self._leads = response.leader == self.member_id
        # A leader that rejoins (KIP-814) does not know the assignment. A static member that must
        # revoke partitions may have returned in the meantime. A second round is always safe.
        self._second_round = self._leads and self._assignor.cooperative
        self._assignments = []
        self._members = []
        self._phase = _Phase.SYNCING
        self._lookup_at = (
            FOREVER
            if self.options.pattern is None
            else now + self.options.metadata_max_age_ms / 1000
        )
        if self._leads:
            try:
                self._members = [
                    Member(row.member_id, decode_subscription(row.metadata), row.group_instance_id)
                    for row in response.members
                ]
            except ProtocolError as error:
                self._fail(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    f"a member's subscription is malformed: {error}",
                )
                return
            self._lookup_at = now + self.options.metadata_max_age_ms / 1000
            if not response.skip_assignment:
                self._phase = _Phase.ASSIGNING

    def _on_synced(self, response: Any, now: float) -> None:
        try:
            assigned = frozenset(decode_assignment(response.assignment))
        except ProtocolError as error:
            self._fail(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the assignment is malformed: {error}"
            )
            return
        self._phase = _Phase.STABLE
        self.rebalances += 1
        self._second_round_at = (
            now + self.options.session_timeout_ms / 1000 if self._second_round else FOREVER
        )
        assert self.change is None
        assert self._cooperative or not self.owned
        self.change = AssignmentChange(
            tuple(sorted(self.owned - assigned)), tuple(sorted(assigned - self.owned))
        )

    # -- changes of the assignment

    def change_done(self, change: AssignmentChange, now: float) -> tuple[TopicPartition, ...]:
        """The user has processed `change`. Returns the partitions assigned: none if the generation
        is over."""
        revoked = bool(change.revoked)
        assigned = () if self._loss_pending else change.assigned
        self._apply(change, assigned)
        if self._loss_pending and not change.lost:
            self._report_loss()
        elif change.lost:
            self._loss_pending = False
        elif revoked or self._rejoin_due:
            self._phase = _Phase.STABLE
            self._request_rejoin(revoked=revoked)
        return assigned

    def _request_rejoin(self, *, revoked: bool = False) -> None:
        """Join again: cooperative members at once, eager ones when the user has revoked
        everything."""
        self._rejoin_due = True
        if self.change is not None:
            return
        if self.owned and not self._cooperative and not revoked:
            self.change = AssignmentChange(tuple(sorted(self.owned)))
        elif self._phase is _Phase.STABLE:
            self._rejoin_due = False
            self._phase = _Phase.UNJOINED

    def _report_loss(self) -> None:
        """Every owned partition is lost; the user's task processes that before the next join."""
        self._rejoin_due = False
        if self.change is not None:
            self._loss_pending = True
        elif self.owned:
            self._loss_pending = True
            self.change = AssignmentChange(tuple(sorted(self.owned)), lost=True)
        else:
            self._loss_pending = False

    def _leave_generation(self, *, forget_member_id: bool) -> None:
        self.generation = NO_GENERATION
        self._assignor = None
        if forget_member_id:
            self.member_id = ""
