"""Events in any order in a consumer group: members of both protocols join, leave, fall silent, lose
responses and delay; topics change; coordinators fail. The invariants are checked after each event,
and the group converges when the events end.

A member knows only its responses. It has a partition from the time it starts to read it until it
revokes it, whatever the coordinator's state. Two members with one partition are therefore detected.
"""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import pytest

from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.coordinator.group.consumer_member import LEAVING, LEAVING_FOR_NOW
from mqd.coordinator.shard import CoordinatorRecord
from mqd.errors import ErrorCode, MqError
from mqd.protocol.consumer_protocol import Subscription, decode_assignment, encode_subscription
from mqd.types import TopicPartition
from tests.coordinator.group.consumer_support import GROUP, Group, Places, owners, places
from tests.seeds import seeds

NAMES = ("a", "b", "c")
START_AGAIN = {
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.ILLEGAL_GENERATION,
}


class Consumer:
    """A member of the consumer protocol."""

    was_removed = False
    loss = 0.15
    """Share of responses that are lost."""

    def __init__(self, group: Group, name: str, chance: Random, *, static: bool) -> None:
        self.group = group
        self.name = name
        self.chance = chance
        self.instance = f"i-{name}" if static else None
        self.lives = 0
        self.subscribe()
        self.forget()
        self.is_in = False

    @property
    def member_id(self) -> str:
        return f"{self.name}.{self.lives}"

    def subscribe(self) -> None:
        self.topics = sorted(self.chance.sample(NAMES, self.chance.randrange(1, 4)))
        self.regex = self.chance.choice(["", "", "[ab]", "c.*"])
        self.tell_all = True

    def forget(self) -> None:
        self.epoch = 0
        self.held: Places = frozenset()
        self.wanted: Places | None = None
        """Its last assignment, where it has not applied it yet."""
        self.tell_all = True

    def step(self) -> None:
        """Revoke, then start to read, then report."""
        if self.wanted is not None and self.chance.random() < 0.7:
            if self.held <= self.wanted:
                self.held, self.wanted = self.wanted, None
            else:
                self.held &= self.wanted
        # A member that has not applied its assignment yet loses no response: KIP-848 cannot see
        # that it is about to (nor can Apache Kafka).
        self.beat(lost=self.wanted is None and self.chance.random() < self.loss)

    def beat(self, *, lost: bool) -> None:
        request: dict[str, Any] = {} if self.instance is None else {"instance_id": self.instance}
        if self.tell_all:
            request |= {
                "rebalance_timeout_ms": 20_000,
                "subscribed_topic_names": self.topics,
                "subscribed_topic_regex": self.regex,
            }
        try:
            answer = self.group.beat(self.member_id, self.epoch, **request, owned=self.existing())
        except MqError as error:
            if error.code is ErrorCode.UNRELEASED_INSTANCE_ID:
                return
            assert error.code in START_AGAIN, error
            self.forget()
            self.is_in = False
            return
        self.is_in = True
        if lost:
            self.tell_all = True
            return
        self.tell_all = False
        self.epoch = answer["member_epoch"]
        assignment = places(answer.get("assignment"))
        if assignment is not None:
            self.wanted = assignment

    def existing(self) -> Places:
        """Its partitions of topics that are not deleted."""
        return frozenset(
            place for place in self.held if self.group.topics.topic_name(place[0]) is not None
        )

    def leave(self) -> None:
        more = {} if self.instance is None else {"instance_id": self.instance}
        epoch = (
            LEAVING_FOR_NOW if self.instance is not None and self.chance.random() < 0.7 else LEAVING
        )
        self.held = frozenset()
        try:
            self.group.leave(self.member_id, epoch, **more)
        except MqError as error:
            assert error.code in START_AGAIN, error
        self.forget()
        self.is_in = False
        self.lives += 1

    def converged(self) -> bool:
        return self.is_in and self.wanted is None and not self.tell_all


class Classic(Consumer):
    """A member of the classic protocol, cooperative, in the same group."""

    def __init__(self, group: Group, name: str, chance: Random, *, static: bool) -> None:
        super().__init__(group, name, chance, static=static)
        self.assigned_id = ""
        self.must_join = True

    was_removed = False
    """It joins under an id that the coordinator has removed. Only its next assignment shows that it
    lost its partitions.
    """

    @property
    def member_id(self) -> str:
        return self.assigned_id

    def forget(self) -> None:
        super().forget()
        self.assigned_id = ""
        self.must_join = True
        self.must_sync = False

    def ask(self, api: str, version: int, **request: Any) -> Any:
        more = {
            "group_id": GROUP,
            "member_id": self.assigned_id,
            "group_instance_id": self.instance,
            **request,
        }
        return self.group.harness.call(api, version, more)

    def step(self) -> None:
        present = self.group.harness.shard.state.get(GROUP)
        if not isinstance(present, ConsumerGroup) or present.is_empty:
            self.forget()
            self.is_in = False
            return  # alone it would form a classic group
        try:
            self._step()
        except MqError as error:
            if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                self.must_join, self.must_sync = True, False
                return
            if error.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
                return
            assert error.code in START_AGAIN, error
            self.is_in = False
            self.forget()

    def _step(self) -> None:
        topics = self.group.topics
        if self.wanted is not None:
            let_go = not self.held <= self.wanted
            self.held, self.wanted, self.was_removed = self.wanted, None, False
            self.must_join = self.must_join or let_go
        if self.must_join:
            self.was_removed = self.was_removed or self.assigned_id not in self.group.state.members
            owned = tuple(
                TopicPartition(str(topics.topic_name(topic_id)), partition)
                for topic_id, partition in sorted(self.existing())
            )
            metadata = encode_subscription(Subscription(tuple(self.topics), owned, self.epoch), 2)
            answer = self.ask(
                "join_group",
                9,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=20_000,
                protocol_type="consumer",
                protocols=[{"name": "cooperative-sticky", "metadata": metadata}],
            )
            if answer["error_code"] == ErrorCode.MEMBER_ID_REQUIRED:
                self.assigned_id = answer["member_id"]
                return
            if answer["error_code"]:
                raise MqError(answer["error_code"])
            self.is_in, self.tell_all = True, False
            self.assigned_id, self.epoch = answer["member_id"], answer["generation_id"]
            self.must_join, self.must_sync = False, True
        elif self.must_sync:
            answer = self.ask(
                "sync_group",
                5,
                generation_id=self.epoch,
                protocol_type="consumer",
                protocol_name="cooperative-sticky",
                assignments=[],
            )
            found = (
                (topics.topic_id(topic), partition)
                for topic, partition in decode_assignment(answer["assignment"])
            )
            self.wanted = frozenset(
                (topic_id, partition) for topic_id, partition in found if topic_id is not None
            )
            self.must_sync = False
        else:
            answer = self.ask("heartbeat", 4, generation_id=self.epoch)
            self.must_join = answer["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS

    def leave(self) -> None:
        self.held = frozenset()
        if self.assigned_id:
            self.group.harness.call(
                "leave_group",
                5,
                {
                    "group_id": GROUP,
                    "members": [
                        {"member_id": self.assigned_id, "group_instance_id": self.instance}
                    ],
                },
            )
        self.forget()
        self.is_in = False

    def converged(self) -> bool:
        return self.is_in and self.wanted is None and not self.must_join and not self.must_sync


class World:
    def __init__(self, seed: int, *, classic: bool) -> None:
        self.chance = Random(seed)
        self.group = Group({"a": 4, "b": 2}, group_consumer_migration_policy="upgrade")
        kinds = [Consumer, Classic] if classic else [Consumer]
        self.members = [
            self.chance.choice(kinds)(
                self.group, f"m{number}", self.chance, static=self.chance.random() < 0.3
            )
            for number in range(5)
        ]
        self.members[0] = Consumer(self.group, "m0", self.chance, static=False)
        self.silent: set[str] = set()

    def state(self) -> ConsumerGroup | None:
        found = self.group.harness.shard.state.get(GROUP)
        return found if isinstance(found, ConsumerGroup) else None

    def event(self) -> None:
        chance, group = self.chance, self.group
        member = chance.choice(self.members)
        match chance.choices(
            ("step", "leave", "fall silent", "subscribe", "time", "fail over", "topics"),
            (70, 4, 3, 4, 12, 4, 3),
        )[0]:
            case "step":
                self.silent.discard(member.name)
                member.step()
            case "leave":
                member.leave()
            case "fall silent":
                self.silent.add(member.name)
            case "subscribe":
                member.subscribe()
                if isinstance(member, Classic):
                    member.must_join = True
            case "time":
                group.later(chance.choice([0.2, 1.1, 3.0, 12.0]))
                if chance.random() < 0.05:
                    group.later(50)
            case "fail over":
                if chance.random() < 0.3:
                    self.compact()
                self.fail_over()
            case "topics":
                name = chance.choice(NAMES)
                if group.topics.topic_id(name) is None:
                    group.topics.create(name, chance.randrange(1, 5))
                else:
                    group.topics.delete(name)
                group.harness.metadata_changed()

    def described(self) -> dict[str, Any]:
        found = self.group.described()
        return {
            **found,
            "members": sorted(found.get("members", ()), key=lambda row: str(row["member_id"])),
        }

    def fail_over(self) -> None:
        before = self.state()
        described = self.described()
        self.group.harness.fail_over()
        after = self.state()
        assert (before is None) == (after is None)
        assert self.described() == described
        if before is not None and after is not None:
            for name in (
                "epoch",
                "assignment_epoch",
                "assignment_ms",
                "metadata_hash",
                "members",
                "targets",
                "static",
            ):
                assert getattr(before, name) == getattr(after, name), name
            assert before.owners == after.owners
            for name in ("names", "regexes", "expressions"):
                assert getattr(before.subscriptions, name) == getattr(after.subscriptions, name)

    def compact(self) -> None:
        """Compaction: the log loses, up to some record, the records that later ones replaced, and
        then some tombstones.
        """
        log = self.group.harness.log
        cut = self.chance.randrange(len(log) + 1)
        last = {
            entry.key: number
            for number, (entry, _) in enumerate(log[:cut])
            if isinstance(entry, CoordinatorRecord)
        }
        without_tombstones = self.chance.random() < 0.5
        kept = [
            (entry, producer)
            for number, (entry, producer) in enumerate(log[:cut])
            if isinstance(entry, CoordinatorRecord)
            and last[entry.key] == number
            and not (entry.value is None and without_tombstones)
        ]
        self.group.harness.log = kept + log[cut:]

    def check(self) -> None:
        state = self.state()
        if state is None:
            return
        assignment = owners(state)
        assert state.assignment_epoch <= state.epoch
        assert all(member.epoch <= state.assignment_epoch for member in state.members.values())
        has: dict[tuple[UUID, int], str] = {}
        for member in self.members:
            if member.member_id not in state.members or member.was_removed:
                continue  # its partitions are no longer its own, and its commits are refused
            for place in member.existing():
                assert place not in has, (place, member.name, has[place])
                has[place] = member.name
                assert assignment.get(place) == member.member_id, (place, member.name)

    def converge(self) -> None:
        """All members continue and no other event occurs: in the end each has its share, and every
        partition has an owner.
        """
        for member in self.members:
            member.loss = 0.0
        for number in range(80):
            self.group.later(1.1)
            for member in self.members:
                member.step()
                self.check()
            state = self.state()
            assert state is not None
            if (
                number > 12
                and state.state_name() == "Stable"
                and all(member.converged() for member in self.members)
            ):
                break  # after more than the ten seconds in which new topics may be undetected
        else:
            assert state is not None
            raise AssertionError(state.state_name(), [member.__dict__ for member in self.members])
        assert {member.member_id for member in self.members} == set(state.members)
        wanted = {name for member in state.members.values() for name in member.topic_names}
        wanted |= {
            name for value in state.subscriptions.expressions.values() for name in value.topics
        }
        everything = {
            (self.group.topics.topic_id(name), p)
            for name in wanted
            for p in range(self.group.topics.partitions(name))
        }
        assert {place for member in self.members for place in member.held} == everything


@pytest.mark.parametrize("classic", [False, True])
@pytest.mark.parametrize("seed", seeds(3, range(10)))
def test_a_partition_has_one_owner_after_any_events(seed: int, classic: bool) -> None:
    world = World(seed, classic=classic)
    for _ in range(250):
        world.event()
        world.check()
    world.converge()
    world.fail_over()
    world.compact()
    world.fail_over()
