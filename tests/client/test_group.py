"""Members as pure state machines: their exchange with a coordinator, step by step."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from mqd.client.classic_member import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP, ClassicMember
from mqd.client.consumer_member import CONSUMER_GROUP_HEARTBEAT, ConsumerMember
from mqd.client.errors import ClientError
from mqd.client.group_member import (
    AssignmentChange,
    CoordinatorRequest,
    FoundTopic,
    GroupMetadata,
    TopicLookup,
    Wait,
)
from mqd.client.group_options import GroupOptions
from mqd.errors import ErrorCode
from mqd.protocol.apis import by_key
from mqd.protocol.consumer_protocol import (
    Subscription,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from mqd.types import TopicPartition

A = [TopicPartition("a", index) for index in range(4)]
ID = UUID(int=9)
SEEN = {"a": FoundTopic(ID, 4)}


def response(key: int, **fields: Any) -> Any:
    """A response with default values for missing fields, as if decoded."""
    api = by_key(key)
    assert api is not None
    version = api.versions[1]
    return api.decode_response(version, api.encode_response(version, fields))


class Classic:
    """A member, and its coordinator's responses."""

    def __init__(self, **options: Any) -> None:
        self.now = 100.0
        self.member = ClassicMember(GroupOptions("g", ("a",), **options), self.now)
        self.member.enter_poll(self.now)

    def requested(self, key: int) -> Any:
        step = self.member.next(self.now)
        assert isinstance(step, CoordinatorRequest) and step.key == key, step
        self.step = step
        return step.body

    def respond(self, **fields: Any) -> None:
        self.member.on_response(self.step, response(self.step.key, **fields), self.now, 0.5)

    def paused(self) -> float:
        step = self.member.next(self.now)
        assert isinstance(step, Wait), step
        return step.until

    def join(
        self,
        *,
        leader: str = "other",
        protocol: str = "range",
        generation: int = 1,
        members: Any = (),
    ) -> None:
        self.requested(JOIN_GROUP)
        self.respond(
            member_id="me",
            generation_id=generation,
            leader=leader,
            protocol_name=protocol,
            members=members,
        )

    def sync(self, *partitions: TopicPartition) -> None:
        self.requested(SYNC_GROUP)
        self.respond(assignment=encode_assignment(partitions))

    def take(self) -> AssignmentChange:
        change = self.member.change
        assert change is not None
        self.member.change_done(change, self.now)
        return change

    def beat(self, code: int = 0) -> None:
        self.now += 3.0
        self.requested(HEARTBEAT)
        self.respond(error_code=code)


def stable(*partitions: TopicPartition, **options: Any) -> Classic:
    it = Classic(**options)
    it.join(protocol=options.get("assignors", ("range",))[0])
    it.sync(*partitions)
    assert it.take() == AssignmentChange((), partitions)
    return it


def test_a_follower_joins_syncs_and_beats() -> None:
    it = Classic()
    body = it.requested(JOIN_GROUP)
    assert body["member_id"] == "" and [each["name"] for each in body["protocols"]] == [
        "range",
        "cooperative-sticky",
    ]
    assert it.step.timeout_s == 305.0 and body["rebalance_timeout_ms"] == 300_000
    it.respond(error_code=79, member_id="me")
    assert it.requested(JOIN_GROUP)["member_id"] == "me"
    it.respond(member_id="me", generation_id=5, leader="other", protocol_name="range")
    assert it.requested(SYNC_GROUP)["assignments"] == []
    it.respond(assignment=encode_assignment(A[:2]))
    assert it.member.owned == set() and it.member.change == AssignmentChange((), tuple(A[:2]))
    it.take()
    assert it.member.owned == set(A[:2]) and it.member.metadata().generation == 5
    assert it.paused() == 103.0
    it.beat()
    assert it.paused() == 106.0


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, None])
def test_a_replaced_member_keeps_using_its_id(code: ErrorCode | None) -> None:
    """Coordinators accept the offsets of a transaction from a client without a member id: a fenced
    member must not send it without.
    """
    it = stable(*A[:2])
    if code is None:
        it.member.leave_poll(it.now)
        it.now += 301.0
        it.requested(LEAVE_GROUP)
        it.respond()
    else:
        it.beat(code)
    assert not it.member.is_member and it.member.metadata() == GroupMetadata("g", 1, "me")
    assert it.take().lost and it.member.metadata() == GroupMetadata("g", 1, "me")
    if code is not None:
        it.join(generation=3)
        assert it.member.metadata() == GroupMetadata("g", 3, "me")


def test_the_leader_assigns_and_rejoins_when_a_topic_grows() -> None:
    it = Classic()
    rows = [
        {"member_id": name, "metadata": encode_subscription(Subscription(("a", "b")))}
        for name in ("me", "you")
    ]
    it.join(leader="me", members=rows)
    step = it.member.next(it.now)
    assert step == TopicLookup(("a", "b"))
    it.member.on_topics(SEEN, it.now)
    given = {row["member_id"]: row["assignment"] for row in it.requested(SYNC_GROUP)["assignments"]}
    assert given == {"me": encode_assignment(A[:2]), "you": encode_assignment(A[2:])}
    it.respond(assignment=given["me"])
    it.take()
    it.now += 1.0  # b is missing, so it is searched soon
    assert it.member.next(it.now) == TopicLookup(("a", "b"))
    it.member.on_topics(SEEN, it.now)
    assert it.member.change is None
    it.now += 1.0
    it.member.on_topics({**SEEN, "b": FoundTopic(ID, 1)}, it.now)
    assert it.take() == AssignmentChange(tuple(A[:2]))
    it.requested(JOIN_GROUP)


def test_a_leader_skips_the_assignment_when_requested() -> None:
    it = Classic(instance_id="s")
    it.requested(JOIN_GROUP)
    metadata = encode_subscription(Subscription(("a",)))
    members = [{"member_id": "me", "group_instance_id": "s", "metadata": metadata}]
    it.respond(
        member_id="me",
        generation_id=5,
        leader="me",
        protocol_name="range",
        skip_assignment=True,
        members=members,
    )
    assert it.requested(SYNC_GROUP)["assignments"] == []
    assert it.member.leave_request() is None


def quiet_for(it: Classic, seconds: float) -> None:
    """Only heartbeats are due."""
    for _ in range(int(seconds / 3)):
        it.member.enter_poll(it.now)
        it.beat()


@pytest.mark.parametrize("again", [False, True])
def test_a_leader_rejoins_for_partitions_that_it_left_unassigned(again: bool) -> None:
    """The member that should revoke it and then rejoin may have returned as a static member
    instead, without its earlier assignment.
    """
    it = Classic(assignors=("cooperative-sticky",), instance_id="s")
    mine, owned = (
        encode_subscription(Subscription(("a",))),
        encode_subscription(Subscription(("a",), tuple(A), 1)),
    )
    if again:  # it counts as a former owner, whatever members report
        it.requested(JOIN_GROUP)
        it.respond(
            member_id="me",
            generation_id=5,
            leader="me",
            protocol_name="cooperative-sticky",
            skip_assignment=True,
            members=[{"member_id": "me", "metadata": mine}],
        )
    else:
        rows = [{"member_id": "me", "metadata": mine}, {"member_id": "you", "metadata": owned}]
        it.join(leader="me", protocol="cooperative-sticky", members=rows)
        it.member.on_topics(SEEN, it.now)
    it.sync(*A[:2] if again else ())
    it.take()
    quiet_for(it, 45.0)
    assert len(decode_subscription(it.requested(JOIN_GROUP)["protocols"][0]["metadata"]).owned) == (
        2 if again else 0
    )
    rows = [{"member_id": "me", "metadata": mine}, {"member_id": "you", "metadata": mine}]
    it.respond(
        member_id="me",
        generation_id=6,
        leader="me",
        protocol_name="cooperative-sticky",
        members=rows,
    )
    it.member.on_topics(SEEN, it.now)
    it.sync(*A[:2])
    it.take()
    quiet_for(it, 60.0)


def test_the_assignment_of_an_ended_generation_is_discarded() -> None:
    it = Classic()
    it.join()
    it.sync(*A[:2])
    it.beat(25)
    change = it.member.change
    assert (
        change is not None and it.member.change_done(change, it.now) == () and not it.member.owned
    )
    it.requested(JOIN_GROUP)


def test_an_eager_member_revokes_everything_before_it_rejoins() -> None:
    it = stable(*A[:2])
    it.beat(27)
    assert it.member.change == AssignmentChange(tuple(A[:2]))
    it.beat(27)
    assert it.member.change == AssignmentChange(tuple(A[:2])) and it.member.owned == set(A[:2])
    it.take()
    body = it.requested(JOIN_GROUP)
    assert decode_subscription(body["protocols"][1]["metadata"]).owned == ()
    assert it.member.may_advance


def test_a_cooperative_member_rejoins_after_a_revocation() -> None:
    it = stable(*A, assignors=("cooperative-sticky",))
    it.beat(27)
    assert it.member.change is None
    said = decode_subscription(it.requested(JOIN_GROUP)["protocols"][0]["metadata"])
    assert said.owned == tuple(A) and said.generation == 1
    it.respond(member_id="me", generation_id=2, leader="other", protocol_name="cooperative-sticky")
    it.sync(*A[:2])
    assert it.take() == AssignmentChange(tuple(A[2:]))
    assert decode_subscription(it.requested(JOIN_GROUP)["protocols"][0]["metadata"]).owned == tuple(
        A[:2]
    )


def test_an_unknown_member_loses_everything_and_joins_anew() -> None:
    it = stable(*A[:2])
    it.beat(25)
    assert not it.member.is_member and it.paused() == float("inf")
    assert it.take() == AssignmentChange(tuple(A[:2]), lost=True)
    assert it.member.owned == set() and it.requested(JOIN_GROUP)["member_id"] == ""


def test_an_ended_generation_is_lost_but_not_the_member() -> None:
    it = stable(*A[:2])
    it.beat(22)
    assert it.take().lost and it.requested(JOIN_GROUP)["member_id"] == "me"


def test_a_member_that_exceeds_max_poll_interval_leaves_and_rejoins() -> None:
    it = stable(*A[:2], max_poll_interval_ms=10_000)
    it.member.leave_poll(it.now)
    for _ in range(3):
        it.beat()
    it.now += 2.0
    assert it.requested(LEAVE_GROUP)["members"][0]["member_id"] == "me"
    it.respond(members=[])
    assert it.paused() == float("inf")
    it.member.enter_poll(it.now)
    assert it.paused() == float("inf")
    assert it.take() == AssignmentChange(tuple(A[:2]), lost=True)
    it.requested(JOIN_GROUP)


@pytest.mark.parametrize("code", [14, 15, 16])
def test_a_moved_coordinator_gets_the_request_again_later(code: int) -> None:
    it = stable(*A[:2])
    it.beat(code)
    assert it.now < it.paused() < it.now + 0.1 and it.member.owned == set(A[:2])
    it.now = it.paused()
    it.requested(HEARTBEAT)
    it.respond()
    assert it.paused() == it.now + 3.0


def test_a_failed_or_late_sync_causes_a_rejoin() -> None:
    for fate in (27, 16, None):
        it = Classic()
        it.join()
        it.requested(SYNC_GROUP)
        if fate is None:
            it.member.on_failure(it.step, it.now, 0.5)
        else:
            it.respond(error_code=fate)
        it.now = it.paused()
        it.requested(JOIN_GROUP)


@pytest.mark.parametrize("code", [23, 24, 26, 30, 81, 82])
def test_fatal_errors_end_the_membership(code: int) -> None:
    it = Classic()
    it.requested(JOIN_GROUP)
    it.respond(error_code=code)
    assert it.member.failure is not None and it.member.failure.code == code
    assert it.paused() == float("inf") and it.member.leave_request() is None


def test_a_pattern_is_matched_before_the_join_and_on_new_topics() -> None:
    it = Classic(pattern="a|b.*")
    assert it.member.next(it.now) == TopicLookup((), all_topics=True)
    it.member.on_topics({**SEEN, "c": FoundTopic(ID, 1)}, it.now)
    assert decode_subscription(it.requested(JOIN_GROUP)["protocols"][0]["metadata"]).topics == (
        "a",
    )
    it.respond(member_id="me", generation_id=1, leader="other", protocol_name="range")
    it.sync(A[0])
    it.take()
    it.member.on_topics({**SEEN, "bb": FoundTopic(ID, 1)}, it.now)
    assert it.take() == AssignmentChange((A[0],))
    assert decode_subscription(it.requested(JOIN_GROUP)["protocols"][0]["metadata"]).topics == (
        "a",
        "bb",
    )


# -- KIP-848


class Modern:
    """A member of KIP-848 and its coordinator's responses."""

    def __init__(self, **options: Any) -> None:
        self.now = 100.0
        self.member = ConsumerMember(GroupOptions("g", ("a",), **options), self.now, "me")
        self.member.enter_poll(self.now)

    def beat(
        self,
        epoch: int | None = None,
        given: list[int] | None = None,
        code: int = 0,
        topic_id: UUID = ID,
    ) -> dict[str, Any]:
        step = self.member.next(self.now)
        assert isinstance(step, CoordinatorRequest) and step.key == CONSUMER_GROUP_HEARTBEAT, step
        fields: dict[str, Any] = {
            "error_code": code,
            "member_id": "me",
            "member_epoch": epoch or self.member.epoch,
            "heartbeat_interval_ms": 5000,
        }
        if given is not None:
            fields["assignment"] = {
                "topic_partitions": [{"topic_id": topic_id, "partitions": given}] if given else []
            }
        self.member.on_response(step, response(step.key, **fields), self.now, 0.5)
        return dict(step.body)

    def look(self) -> None:
        assert self.member.next(self.now) == TopicLookup(("a",))
        self.member.on_topics(SEEN, self.now)

    def take(self) -> AssignmentChange:
        change = self.member.change
        assert change is not None
        self.member.change_done(change, self.now)
        return change


def joined(*given: int, **options: Any) -> Modern:
    it = Modern(**options)
    it.beat(1, list(given))
    it.look()
    it.take()
    it.beat(1)
    return it


def test_a_member_sends_everything_at_first_and_then_only_changes() -> None:
    it = Modern(rack="r", server_assignor="uniform")
    first = it.beat(1, [0, 1])
    assert (
        first["member_epoch"] == 0
        and first["subscribed_topic_names"] == ["a"]
        and first["topic_partitions"] == []
    )
    assert (
        first["rack_id"] == "r"
        and first["server_assignor"] == "uniform"
        and first["rebalance_timeout_ms"] == 300_000
    )
    it.look()
    assert it.take() == AssignmentChange((), (A[0], A[1]))
    acknowledged = it.beat(1)
    assert (
        acknowledged["topic_partitions"] == [{"topic_id": ID, "partitions": [0, 1]}]
        and "subscribed_topic_names" not in acknowledged
    )
    assert it.member.next(it.now) == Wait(it.now + 5.0)
    it.now += 5.0
    assert it.beat() == {"group_id": "g", "member_id": "me", "member_epoch": 1}


def test_a_recreated_topic_is_another_one() -> None:
    it = joined(0, 1)
    it.now += 5.0
    anew = UUID(int=10)
    it.beat(2, [0, 1], topic_id=anew)
    assert it.member.next(it.now) == TopicLookup(("a",)) and it.member.change is None
    it.member.on_topics({"a": FoundTopic(anew, 4)}, it.now)
    assert it.take() == AssignmentChange((A[0], A[1]), (A[0], A[1])) and it.member.owned == {
        A[0],
        A[1],
    }
    assert it.beat(2)["topic_partitions"] == [{"topic_id": anew, "partitions": [0, 1]}]


def test_a_revocation_is_acknowledged_after_the_user_s_callback() -> None:
    it = joined(0, 1)
    it.now += 5.0
    it.beat(1, [0])
    assert it.member.change == AssignmentChange((A[1],)) and it.member.owned == {A[0], A[1]}
    it.now += 5.0
    assert "topic_partitions" not in it.beat(1)
    it.take()
    assert it.beat(2)["topic_partitions"] == [{"topic_id": ID, "partitions": [0]}]
    assert it.member.metadata().generation == 2


def test_a_partition_revoked_before_its_assignment_is_not_assigned() -> None:
    """By then another member may read it: for the coordinator, this member does not own it."""
    it = joined(0)
    it.now += 5.0
    it.beat(2, [0, 1, 2])
    change = it.member.change
    assert change == AssignmentChange((), (A[1], A[2]))
    step = it.member.next(it.now + 5.0)
    assert isinstance(step, CoordinatorRequest)
    it.member.on_failure(step, it.now, 0.5)
    it.now += 6.0
    assert it.beat(2)["topic_partitions"] == [{"topic_id": ID, "partitions": [0, 1, 2]}], (
        "the user may take them at any time"
    )
    it.now += 5.0
    it.beat(2, [0, 2])
    assert (it.member.change, it.member.change_done(change, it.now)) == (change, (A[2],))
    assert it.member.owned == {A[0], A[2]} and it.member.change is None
    assert it.beat(3)["topic_partitions"] == [{"topic_id": ID, "partitions": [0, 2]}]


@pytest.mark.parametrize("code", [110, 25])
def test_a_member_fenced_before_its_assignment_assigns_nothing(code: int) -> None:
    it = joined(0)
    it.now += 5.0
    it.beat(2, [0, 1])
    it.now += 5.0
    it.beat(code=code)
    change = it.member.change
    assert (
        change is not None
        and it.member.change_done(change, it.now) == ()
        and it.member.change == AssignmentChange((A[0],), lost=True)
    )


@pytest.mark.parametrize("code", [110, 25])
def test_a_fenced_member_loses_everything_and_joins_with_epoch_0(code: int) -> None:
    it = joined(0, 1)
    it.now += 5.0
    it.beat(code=code)
    assert not it.member.is_member and it.member.next(it.now) == Wait(float("inf"))
    assert it.member.metadata() == GroupMetadata("g", 1, "me"), (
        "a replaced member keeps using its id"
    )
    assert it.take() == AssignmentChange((A[0], A[1]), lost=True)
    again = it.beat(7, [2])
    assert (
        again["member_epoch"] == 0
        and again["topic_partitions"] == []
        and again["member_id"] == "me"
    )


def test_after_a_failure_everything_is_sent_again() -> None:
    it = joined(0)
    it.now += 5.0
    step = it.member.next(it.now)
    assert isinstance(step, CoordinatorRequest)
    it.member.on_failure(step, it.now, 0.5)
    it.now += 1.0
    body = it.beat()
    assert body["subscribed_topic_names"] == ["a"] and body["topic_partitions"] == [
        {"topic_id": ID, "partitions": [0]}
    ]


def test_members_leave_permanently_or_temporarily() -> None:
    farewell = joined(0).member.leave_request()
    assert farewell is not None and farewell.body["member_epoch"] == -1
    farewell = joined(0, instance_id="s").member.leave_request()
    assert farewell is not None and farewell.body["member_epoch"] == -2


def test_a_member_that_exceeds_max_poll_interval_leaves_here_too() -> None:
    it = joined(0, max_poll_interval_ms=7_000)
    it.member.leave_poll(it.now)
    it.now += 7.0
    assert it.beat()["member_epoch"] == -1
    assert it.take().lost and it.member.next(it.now) == Wait(float("inf"))
    it.member.enter_poll(it.now)
    assert it.beat(3, [0])["member_epoch"] == 0


def test_a_stale_epoch_causes_an_immediate_heartbeat() -> None:
    it = joined(0)
    assert isinstance(it.member.next(it.now), Wait)
    it.member.heartbeat_now()
    assert it.beat(2)["member_epoch"] == 1
    assert it.member.epoch == 2


@pytest.mark.parametrize(
    ("kind", "sentence", "arguments"),
    [
        (ValueError, "group_id is empty: give a name", {"group_id": ""}),
        (TypeError, "group_id is 7: give a str", {"group_id": 7}),
        (ValueError, "has nothing to read: give topics, or a pattern", {"topics": ()}),
        (TypeError, r"topics is 'abc': give a list: \['abc'\]", {"topics": "abc"}),
        (ValueError, "the empty string is not allowed", {"topics": [""]}),
        (ValueError, "group_protocol is 'modern': choose one of", {"group_protocol": "modern"}),
        (ValueError, "assignor 'best' is unknown: choose among", {"assignors": ("best",)}),
        (ValueError, "assignors is empty: choose among", {"assignors": ()}),
        (ValueError, "let a session be three heartbeats long", {"session_timeout_ms": 3000}),
        (ValueError, "which is no regular expression", {"pattern": "("}),
        (ValueError, "reset is 'earliest': choose one of 'beginning'", {"reset": "earliest"}),
        (TypeError, "auto_commit is 'no': give True or False", {"auto_commit": "no"}),
        (TypeError, "max_wait_ms is 0.5: give a whole number", {"max_wait_ms": 0.5}),
        (ValueError, "max_wait_ms is -1: give a whole number from 0", {"max_wait_ms": -1}),
        (TypeError, "on_lost is 1: give a function", {"on_lost": 1}),
        (ValueError, "timeout_s is 0: give a number above 0", {"timeout_s": 0}),
        (ValueError, "close_timeout_s is nan: give a number", {"close_timeout_s": float("nan")}),
        (TypeError, "unexpected keyword argument 'rest'", {"rest": "end"}),
    ],
)
def test_an_error_for_a_wrong_option_lists_allowed_values(
    kind: type[Exception], sentence: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(kind, match=sentence) as caught:
        GroupOptions(**{"group_id": "g", "topics": ("a",), **arguments})
    if "unexpected" not in sentence:
        assert isinstance(caught.value, ClientError) and caught.value.remedy
