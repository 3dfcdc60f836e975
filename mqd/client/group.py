"""A member of a group: what it has to say to the coordinator, and what its user must be told of. Pure: time and answers come in.

Two protocols, one conversation. `next` says what to do now: an `Ask` of the coordinator, a `Look` at the topics, or a `Pause`; its result
comes back by `on_answer`, `on_look` or `on_failure`. What changes the assignment becomes a `turn`: the user's task takes it (callbacks,
commits) and says `turn_done`; meanwhile heartbeats go on. `owned` changes in `turn_done` and nowhere else.

`ClassicMember` speaks JoinGroup and SyncGroup and, as leader, assigns (`assignors.py`). Eager assignors: all partitions are given up
before each join. Cooperative ones: only what is to go, and then one more round (KIP-429). `ConsumerMember` speaks
ConsumerGroupHeartbeat: the coordinator assigns, the member reconciles and acknowledges (KIP-848).

Invariants: one request at a time; no join while a revocation waits for the user; a turn that waits is never replaced by another,
but brings nothing that is somebody else's by the time that the user takes it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from mqd.client.assignors import ASSIGNORS, Assignor, Member, leaves_some
from mqd.client.backoff import backoff_s
from mqd.client.errors import ClientError, error_from_wire
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.protocol.consumer_protocol import (
    PROTOCOL_TYPE,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from mqd.types import TopicPartition

JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, CONSUMER_GROUP_HEARTBEAT = 11, 12, 13, 14, 68

NO_GENERATION = -1
JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
_JOIN_SLACK_S = 5.0
"""A join is answered when all members came or the rebalance timed out; how much longer we wait for that."""
_MISSING_TOPIC_LOOK_S = 1.0
_FOREVER = float("inf")

COORDINATOR_GONE = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
"""Answers after which the coordinator must be looked for again."""
_LATER = COORDINATOR_GONE | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT}


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """What a member is. `pattern` is a regular expression for whole names of topics: Python's for the classic protocol, RE2's else."""

    group_id: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    instance_id: str | None = None
    rack: str | None = None
    assignors: tuple[str, ...] = ("range", "cooperative-sticky")
    server_assignor: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    metadata_max_age_ms: int = 60_000

    @property
    def heartbeat_interval_s(self) -> float:
        return self.heartbeat_interval_ms / 1000

    @property
    def max_poll_interval_s(self) -> float:
        return self.max_poll_interval_ms / 1000


class Ask(NamedTuple):
    """A request to the coordinator. `timeout_s` is for answers that may take longer than any other."""

    key: int
    body: Mapping[str, Any]
    timeout_s: float | None = None


class Look(NamedTuple):
    """What topics there are now: those named, or with `everything` also all that are not internal."""

    names: tuple[str, ...]
    everything: bool = False


class Pause(NamedTuple):
    """Nothing to do before `until`, unless something changes."""

    until: float


Step = Ask | Look | Pause


class SeenTopic(NamedTuple):
    """A topic that exists."""

    topic_id: UUID
    partitions: int


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user is told: first what it gives up, then what it gets. `lost`: it is not the owner any more, commits come too late."""

    revoked: tuple[TopicPartition, ...] = ()
    assigned: tuple[TopicPartition, ...] = ()
    lost: bool = False


class GroupMetadata(NamedTuple):
    """Who commits, for `TransactionalProducer.send_offsets`. `generation` is the member epoch where KIP-848 is spoken."""

    group_id: str
    generation: int = NO_GENERATION
    member_id: str = ""
    instance_id: str | None = None


class _Phase(Enum):
    OUTSIDE = "not a member, or about to join again"
    LOOKING = "leads, and looks at the topics before it assigns"
    SYNCING = "joined, and waits for its assignment"
    STABLE = "has its assignment"
    AWAY = "left, because its user does not come for records; joins when it comes"


@dataclass(slots=True)
class _Patience:
    """When to try again."""

    failures: int = 0
    retry_at: float = 0.0

    def fail(self, now: float, draw: float) -> None:
        self.retry_at = now + backoff_s(self.failures, draw)
        self.failures += 1

    def succeed(self) -> None:
        self.failures, self.retry_at = 0, 0.0


class _Base:
    """What both protocols have in common: the user's presence, and what it owns."""

    def __init__(self, options: MemberOptions, now: float) -> None:
        self.options = options
        self.owned: frozenset[TopicPartition] = frozenset()
        self.turn: Turn | None = None
        self.failure: ClientError | None = None
        """Why this member cannot go on; nothing is asked any more."""
        self._polls = 0
        self._last_poll = now
        self._patience = _Patience()
        self._spoke_as = GroupMetadata(options.group_id, instance_id=options.instance_id)

    def metadata(self) -> GroupMetadata:
        """Who we are, or were when we were last a member: a coordinator refuses offsets from who has been replaced, but takes those of
        a transaction from who claims to be nobody."""
        return self._spoke_as

    def enter_poll(self, now: float) -> None:
        """The user's task came for records."""
        self._polls += 1
        self._last_poll = now

    def leave_poll(self, now: float) -> None:
        """It has got some, and works on them."""
        self._polls -= 1
        self._last_poll = now

    @property
    def _poll_deadline(self) -> float:
        """When a user who does not come back counts as stuck (max.poll.interval.ms)."""
        return _FOREVER if self._polls else self._last_poll + self.options.max_poll_interval_s

    def _fail(self, code: int, detail: str | None = None) -> None:
        self.failure = error_from_wire(code, f"group {self.options.group_id!r}", detail)

    def _apply(self, turn: Turn, assigned: Collection[TopicPartition]) -> None:
        assert turn is self.turn
        assert not set(assigned) & (self.owned - set(turn.revoked))
        self.owned = (self.owned - set(turn.revoked)) | set(assigned)
        self.turn = None


class ClassicMember(_Base):
    """A member that speaks the classic protocol."""

    def __init__(self, options: MemberOptions, now: float) -> None:
        super().__init__(options, now)
        self.member_id = ""
        self.generation = NO_GENERATION
        self._phase = _Phase.OUTSIDE
        self._assignor: Assignor | None = None
        self._leads = False
        self._members: list[Member] = []
        self._assignments: list[dict[str, Any]] = []
        self._topics = options.topics
        self._counts: dict[str, int] = {}
        self._matched = options.pattern is None
        self._rejoin = False
        self._lost = False
        self._heartbeat_at = 0.0
        self._look_at = _FOREVER
        self._follow_up = False
        """As the leader: whether another round is to come, by whoever is to let go of something (KIP-429)."""
        self._follow_up_at = _FOREVER
        self.rebalances = 0
        """Assignments received so far."""

    # -- who we are

    @property
    def is_member(self) -> bool:
        """Whether commits may be made in our name."""
        return self.generation != NO_GENERATION and not self._lost

    @property
    def is_between(self) -> bool:
        """Whether the next generation is being made, without a need for the user: wait a little, and ask again."""
        return self.turn is None and self._phase in (_Phase.OUTSIDE, _Phase.LOOKING, _Phase.SYNCING)

    @property
    def _cooperative(self) -> bool:
        """Only if every offered assignor is: the group may choose any of them (KIP-429)."""
        return all(ASSIGNORS[name].cooperative for name in self.options.assignors)

    # -- what to do

    def next(self, now: float) -> Step:
        if self.failure is not None:
            return Pause(_FOREVER)
        if self._phase is _Phase.AWAY:
            if not self._polls or self.turn is not None:
                return Pause(_FOREVER)
            self._phase = _Phase.OUTSIDE
        if now < self._patience.retry_at:
            return Pause(self._patience.retry_at)
        if self._phase is _Phase.OUTSIDE:
            if self.turn is not None:
                return Pause(_FOREVER)
            return self._join() if self._matched else Look((), everything=True)
        if self._phase is _Phase.LOOKING:
            return self._look()
        if self._phase is _Phase.SYNCING:
            return self._sync()
        if now >= self._poll_deadline:
            return Ask(LEAVE_GROUP, self.leave_body("the user has not come for records within max.poll.interval.ms"))
        if now >= self._heartbeat_at:
            return Ask(HEARTBEAT, self._identity())
        if self.turn is not None:
            return Pause(min(self._heartbeat_at, self._poll_deadline))
        if now >= self._follow_up_at:
            self._follow_up_at = _FOREVER
            self._want_rejoin()
            return self.next(now)
        if now >= self._look_at:
            return self._look()
        return Pause(min(self._heartbeat_at, self._poll_deadline, self._follow_up_at, self._look_at))

    def _identity(self) -> dict[str, Any]:
        return {
            "group_id": self.options.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.options.instance_id,
        }

    def _join(self) -> Ask:
        protocols = []
        for name in self.options.assignors:
            generation = self.generation if self.owned else NO_GENERATION
            subscription = Subscription(
                self._topics, tuple(sorted(self.owned)), generation, self.options.rack, ASSIGNORS[name].user_data(generation)
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
        return Ask(JOIN_GROUP, body, self.options.max_poll_interval_s + _JOIN_SLACK_S)

    def _sync(self) -> Ask:
        name = None if self._assignor is None else self._assignor.name
        body = {**self._identity(), "protocol_type": PROTOCOL_TYPE, "protocol_name": name, "assignments": self._assignments}
        return Ask(SYNC_GROUP, body, self.options.max_poll_interval_s + _JOIN_SLACK_S)

    def _look(self) -> Look:
        names = {topic for member in self._members for topic in member.subscription.topics} | set(self._topics)
        return Look(tuple(sorted(names)), everything=self.options.pattern is not None)

    def leave_body(self, reason: str) -> dict[str, Any]:
        """LeaveGroup in our name."""
        one = {"member_id": self.member_id, "group_instance_id": self.options.instance_id, "reason": reason}
        return {"group_id": self.options.group_id, "member_id": self.member_id, "members": [one]}

    def goodbye(self) -> Ask | None:
        """What to say at the end. Static members say nothing: they come back, or their session ends (KIP-345)."""
        if not self.member_id or self.options.instance_id is not None or self.failure is not None:
            return None
        return Ask(LEAVE_GROUP, self.leave_body("the consumer is being closed"))

    # -- what came of it

    def on_failure(self, step: Ask | Look, now: float, draw: float) -> None:
        """No answer: again after a while. Joins begin anew; a heartbeat is due at once then."""
        self._patience.fail(now, draw)
        if isinstance(step, Ask) and step.key == SYNC_GROUP:
            self._phase = _Phase.OUTSIDE

    def on_look(self, found: Mapping[str, SeenTopic], now: float) -> None:
        """What topics there are."""
        self._patience.succeed()
        pattern = self.options.pattern
        if pattern is not None:
            matching = re.compile(pattern)
            topics = tuple(sorted(name for name in found if matching.fullmatch(name)))
            changed, self._topics, self._matched = topics != self._topics, topics, True
            if self._phase is _Phase.OUTSIDE:
                return
            if changed and self._phase is _Phase.STABLE:
                self._want_rejoin()
        wanted = self._look().names
        counts = {name: seen.partitions for name, seen in found.items() if name in wanted}
        missing = len(counts) < len(wanted)
        self._look_at = now + (_MISSING_TOPIC_LOOK_S if missing else self.options.metadata_max_age_ms / 1000)
        if self._phase is _Phase.LOOKING:
            assert self._assignor is not None
            made = self._assignor.assign(self._members, counts)
            self._follow_up = leaves_some(made, self._members, counts)
            self._assignments = [
                {"member_id": member.member_id, "assignment": encode_assignment(made[member.member_id])} for member in self._members
            ]
            self._phase = _Phase.SYNCING
        elif self._leads and counts != self._counts:
            self._want_rejoin()
        self._counts = counts

    def on_answer(self, ask: Ask, answer: Any, now: float, draw: float) -> None:
        """The coordinator's answer to what `next` asked."""
        code = answer.error_code
        if ask.key == LEAVE_GROUP:
            self._forget_generation(everything=True)
            self._lose()
            self._phase = _Phase.AWAY
        elif code in _LATER:
            self.on_failure(ask, now, draw)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._heartbeat_at = now + self.options.heartbeat_interval_s
            if ask.key == HEARTBEAT:
                self._patience.succeed()
                self._want_rejoin()
            else:
                self._patience.fail(now, draw)
                self._phase = _Phase.OUTSIDE
        elif code == ErrorCode.MEMBER_ID_REQUIRED and ask.key == JOIN_GROUP:
            self.member_id = answer.member_id
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._forget_generation(everything=code == ErrorCode.UNKNOWN_MEMBER_ID)
            self._lose()
            self._phase = _Phase.OUTSIDE
        elif code:
            self._fail(code)
        else:
            self._patience.succeed()
            self._heartbeat_at = now + self.options.heartbeat_interval_s
            if ask.key == JOIN_GROUP:
                self._on_joined(answer, now)
            elif ask.key == SYNC_GROUP:
                self._on_synced(answer, now)

    def _on_joined(self, answer: Any, now: float) -> None:
        self.member_id = answer.member_id
        self.generation = answer.generation_id
        self._spoke_as = self._spoke_as._replace(generation=self.generation, member_id=self.member_id)
        self._assignor = ASSIGNORS.get(answer.protocol_name or "")
        if self._assignor is None:
            self._fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group chose {answer.protocol_name!r}, which this client does not know")
            return
        self._rejoin = False
        self._leads = answer.leader == self.member_id
        # Who leads again (KIP-814) does not know what was assigned, and a static member that was to let go may have come back instead.
        self._follow_up = self._leads and self._assignor.cooperative
        self._assignments = []
        self._members = []
        self._phase = _Phase.SYNCING
        self._look_at = _FOREVER if self.options.pattern is None else now + self.options.metadata_max_age_ms / 1000
        if self._leads:
            try:
                self._members = [Member(row.member_id, decode_subscription(row.metadata), row.group_instance_id) for row in answer.members]
            except ProtocolError as error:
                self._fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"a member's subscription cannot be read: {error}")
                return
            self._look_at = now + self.options.metadata_max_age_ms / 1000
            if not answer.skip_assignment:
                self._phase = _Phase.LOOKING

    def _on_synced(self, answer: Any, now: float) -> None:
        try:
            given = frozenset(decode_assignment(answer.assignment))
        except ProtocolError as error:
            self._fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the assignment cannot be read: {error}")
            return
        self._phase = _Phase.STABLE
        self.rebalances += 1
        self._follow_up_at = now + self.options.session_timeout_ms / 1000 if self._follow_up else _FOREVER
        assert self.turn is None
        assert self._cooperative or not self.owned
        self.turn = Turn(tuple(sorted(self.owned - given)), tuple(sorted(given - self.owned)))

    # -- turns

    def turn_done(self, turn: Turn, now: float) -> tuple[TopicPartition, ...]:
        """The user has given up what goes; returns what it gets: nothing of a generation that is over."""
        again, assigned = bool(turn.revoked), () if self._lost else turn.assigned
        self._apply(turn, assigned)
        if self._lost and not turn.lost:
            self._lose()
        elif turn.lost:
            self._lost = False
        elif again or self._rejoin:
            self._phase = _Phase.STABLE
            self._want_rejoin(gave_up=again)
        return assigned

    def _want_rejoin(self, *, gave_up: bool = False) -> None:
        """Another round is due: at once for cooperative members, else when the user has given up everything."""
        self._rejoin = True
        if self.turn is not None:
            return
        if self.owned and not self._cooperative and not gave_up:
            self.turn = Turn(tuple(sorted(self.owned)))
        elif self._phase is _Phase.STABLE:
            self._rejoin = False
            self._phase = _Phase.OUTSIDE

    def _lose(self) -> None:
        """We are not the owner of anything any more; the user hears of it before we join again."""
        self._rejoin = False
        if self.turn is not None:
            self._lost = True
        elif self.owned:
            self._lost = True
            self.turn = Turn(tuple(sorted(self.owned)), lost=True)
        else:
            self._lost = False

    def _forget_generation(self, *, everything: bool) -> None:
        self.generation = NO_GENERATION
        self._assignor = None
        if everything:
            self.member_id = ""


@dataclass(slots=True)
class _Target:
    """What the coordinator wants us to have, by topic ids."""

    topics: dict[UUID, tuple[int, ...]] = field(default_factory=dict)

    def named(self, names: Mapping[UUID, str]) -> frozenset[TopicPartition] | None:
        """The same by names; None while a name is missing."""
        if not all(topic_id in names for topic_id in self.topics):
            return None
        return frozenset(TopicPartition(names[topic_id], index) for topic_id, indexes in self.topics.items() for index in indexes)


class ConsumerMember(_Base):
    """A member that speaks KIP-848's protocol. `member_id` is ours to choose; it stays the same for life."""

    def __init__(self, options: MemberOptions, now: float, member_id: str) -> None:
        super().__init__(options, now)
        self.member_id = member_id
        self.epoch = JOIN_EPOCH
        self._target: _Target | None = None
        self._ids: dict[UUID, str] = {}
        self._owned_ids: dict[str, UUID] = {}
        """Topic -> its id, of what is owned: a topic that was made anew has the same name."""
        self._wanted_ids: dict[str, UUID] = {}
        """The same of what the turn brings."""
        self._interval_s = options.heartbeat_interval_s
        self._heartbeat_at = 0.0
        self._look_at = 0.0
        self._full = True
        """The coordinator may not know all of us: say everything."""
        self._acknowledge = False
        self._lost = False
        self._away = False
        self._said: tuple[bool, bool] = (False, False)
        self.rebalances = 0
        """Assignments reconciled so far."""

    # -- who we are

    @property
    def is_member(self) -> bool:
        """Whether commits may be made in our name."""
        return self.epoch > 0 and not self._lost

    @property
    def is_between(self) -> bool:
        """Whether a newer epoch may come without a need for the user."""
        return not self._lost and not self._away

    def hurry(self) -> None:
        """Say a heartbeat now: somebody was told that our epoch is old."""
        self._heartbeat_at = 0.0

    # -- what to do

    def next(self, now: float) -> Step:
        if self.failure is not None:
            return Pause(_FOREVER)
        if self._lost:
            return Pause(_FOREVER)
        if self._away:
            if not self._polls:
                return Pause(_FOREVER)
            self._away = False
        if now < self._patience.retry_at:
            return Pause(self._patience.retry_at)
        if self.epoch > 0 and now >= self._poll_deadline:
            return Ask(CONSUMER_GROUP_HEARTBEAT, self._leave_body())
        if now >= self._heartbeat_at or self._acknowledge:
            return Ask(CONSUMER_GROUP_HEARTBEAT, self._heartbeat_body())
        unnamed = self._target is not None and self._target.named(self._ids) is None
        if unnamed and now >= self._look_at:
            return Look(self.options.topics, everything=self.options.pattern is not None)
        until = min(self._heartbeat_at, self._poll_deadline if self.epoch > 0 else _FOREVER)
        return Pause(min(until, self._look_at) if unnamed else until)

    def _heartbeat_body(self) -> dict[str, Any]:
        options = self.options
        full = self._full or self.epoch == JOIN_EPOCH
        owned = full or self._acknowledge
        rows: dict[UUID, list[int]] = {}
        for tp in sorted(self.owned):
            rows.setdefault(self._owned_ids[tp.topic], []).append(tp.partition)
        for tp in self._brought() if self.turn is not None else ():  # the user may take it at any time: we have not let go of it
            rows.setdefault(self._wanted_ids[tp.topic], []).append(tp.partition)
        self._said = full, owned
        body: dict[str, Any] = {"group_id": options.group_id, "member_id": self.member_id, "member_epoch": self.epoch}
        if options.instance_id is not None:
            body["instance_id"] = options.instance_id
        if full:
            body["rack_id"] = options.rack
            body["rebalance_timeout_ms"] = options.max_poll_interval_ms
            body["subscribed_topic_names"] = sorted(options.topics)
            body["subscribed_topic_regex"] = options.pattern
            body["server_assignor"] = options.server_assignor
        if owned:
            body["topic_partitions"] = [{"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in rows.items()]
        return body

    def _leave_body(self) -> dict[str, Any]:
        epoch = LEAVE_EPOCH if self.options.instance_id is None else STATIC_LEAVE_EPOCH
        return {
            "group_id": self.options.group_id,
            "member_id": self.member_id,
            "member_epoch": epoch,
            "instance_id": self.options.instance_id,
        }

    def goodbye(self) -> Ask | None:
        """What to say at the end: dynamic members leave, static ones say that they will be back."""
        return Ask(CONSUMER_GROUP_HEARTBEAT, self._leave_body()) if self.failure is None else None

    # -- what came of it

    def on_failure(self, step: Ask | Look, now: float, draw: float) -> None:
        """No answer: again after a while, and then everything is said."""
        self._patience.fail(now, draw)
        if isinstance(step, Ask):
            self._full = True
            self._heartbeat_at = self._patience.retry_at

    def on_look(self, found: Mapping[str, SeenTopic], now: float) -> None:
        """What topics there are."""
        self._patience.succeed()
        kept = {topic_id: name for name, topic_id in self._owned_ids.items()}
        self._ids = {seen.topic_id: name for name, seen in found.items()} | kept
        self._look_at = now + _MISSING_TOPIC_LOOK_S
        self._reconcile()

    def on_answer(self, ask: Ask, answer: Any, now: float, draw: float) -> None:
        """The coordinator's answer to a heartbeat."""
        code = answer.error_code
        if ask.body["member_epoch"] < 0:
            self._away = True
            self._leave_generation()
        elif code in _LATER:
            self.on_failure(ask, now, draw)
        elif code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self._leave_generation()
        elif code:
            self._fail(code, answer.error_message)
        else:
            self._patience.succeed()
            full, owned = self._said
            self._full = self._full and not full
            self._acknowledge = self._acknowledge and not owned
            self.epoch = answer.member_epoch
            self._spoke_as = self._spoke_as._replace(generation=self.epoch, member_id=self.member_id)
            self._interval_s = answer.heartbeat_interval_ms / 1000
            self._heartbeat_at = now + self._interval_s
            if answer.assignment is not None:
                self._target = _Target({row.topic_id: tuple(row.partitions) for row in answer.assignment.topic_partitions})
                self._look_at = now
            self._reconcile()

    def _reconcile(self) -> None:
        """The next turn, if what we have is not what we are to have."""
        if self.turn is not None or self._target is None:
            return
        wanted = self._target.named(self._ids)
        if wanted is None:
            return
        self._wanted_ids = {self._ids[topic_id]: topic_id for topic_id in self._target.topics}
        self._target = None
        same = {tp for tp in self.owned & wanted if self._owned_ids[tp.topic] == self._wanted_ids[tp.topic]}
        if not wanted == self.owned == same:
            self.rebalances += 1
            self.turn = Turn(tuple(sorted(self.owned - same)), tuple(sorted(wanted - same)))

    def _leave_generation(self) -> None:
        """We are not a member any more, and own nothing; the user hears of it before we join again."""
        self.epoch = JOIN_EPOCH
        self._target = None
        self._full = True
        self._acknowledge = False
        self._heartbeat_at = 0.0
        self._lost = self.turn is not None or bool(self.owned)
        if self.turn is None and self.owned:
            self.turn = Turn(tuple(sorted(self.owned)), lost=True)

    def _brought(self) -> tuple[TopicPartition, ...]:
        """What the turn brings, but for what the coordinator wants back by now."""
        assert self.turn is not None
        if self._lost or self._target is None:
            return () if self._lost else self.turn.assigned
        wanted = self._target.topics
        return tuple(tp for tp in self.turn.assigned if tp.partition in wanted.get(self._wanted_ids[tp.topic], ()))

    def turn_done(self, turn: Turn, now: float) -> tuple[TopicPartition, ...]:
        """The user has given up what goes; returns what it gets, which is less than the turn said where it came too late."""
        assigned = self._brought()
        self._apply(turn, assigned)
        self._owned_ids = {} if turn.lost else self._wanted_ids
        if turn.lost:
            self._lost = False
        elif self._lost:
            self._leave_generation()
        else:
            self._acknowledge = True
            self._reconcile()
        return assigned


def check_options(options: MemberOptions, protocol: str) -> None:
    """Raises ClientError for what no broker could make sense of."""

    def refuse(message: str, remedy: str) -> None:
        raise ClientError(ErrorCode.INVALID_REQUEST, message, remedy=remedy)

    if not options.group_id:
        refuse("a group without a name", "name the group")
    if not options.topics and options.pattern is None:
        refuse(f"group {options.group_id!r} is to read nothing", "name topics, or give a pattern")
    if protocol not in ("classic", "consumer"):
        refuse(f"there is no group protocol {protocol!r}", "say classic or consumer")
    if protocol == "classic":
        for name in options.assignors:
            if name not in ASSIGNORS:
                refuse(f"there is no assignor {name!r}", f"choose among {', '.join(ASSIGNORS)}")
        if not options.assignors:
            refuse("no assignor is named", f"choose among {', '.join(ASSIGNORS)}")
        if options.heartbeat_interval_ms >= options.session_timeout_ms:
            refuse("heartbeats are rarer than a session is long", "let a session be three heartbeats long or more")
        if options.pattern is not None:
            try:
                re.compile(options.pattern)
            except re.error as error:
                refuse(f"{options.pattern!r} is no regular expression: {error}", "write it as Python's re module does")


def is_retriable(error: MqError) -> bool:
    """Whether a step may be tried again: the coordinator moves, or the network does."""
    return error.code.retriable or error.code is ErrorCode.BROKER_NOT_AVAILABLE
