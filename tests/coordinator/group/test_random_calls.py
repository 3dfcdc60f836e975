"""Any calls, in any order: both protocols on the same groups, members with arbitrary bytes, appends
that are refused, failovers.

For any input, a shard raises MqError or responds; every waiting request gets a response; no
partition has two owners; and a shard that reads the log has the state of its predecessor. `python
-m tests.coordinator.group.test_random_calls 0-500` tries more seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any
from uuid import UUID

import pytest

from mqd.coordinator.group.classic_group import EMPTY, ClassicGroup
from mqd.coordinator.group.classic_member import member_size
from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.coordinator.group.shard import GroupShard
from mqd.coordinator.shard import CoordinatorResult, Producer, Ticket
from mqd.errors import ErrorCode, MqError
from mqd.protocol.consumer_protocol import Subscription, encode_assignment, encode_subscription
from mqd.types import TopicPartition
from tests.coordinator.group.consumer_support import owners, rows
from tests.coordinator.group.support import Options, Topics
from tests.coordinator.harness import Harness
from tests.seeds import seeds

CALLS = 150
GROUPS = ("g", "h")
SOMEBODY = Producer(7, 0)
NO_TOPIC = UUID(int=99)
UNLIMITED = 2**31 - 1


class Refusing(Harness[GroupShard]):
    """Some appends are refused, as for too few replicas."""

    random: Random
    refused_part = 0.0

    def carry_out(self, decision: CoordinatorResult) -> None:
        if decision.records and self.refused_part and self.random.random() < self.refused_part:
            for ticket in dict.fromkeys(
                (*self.askers, *(ticket for ticket, _ in decision.responses))
            ):
                self._answer(ticket, MqError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            super().carry_out(decision)

    @contextmanager
    def refusing_nothing(self) -> Iterator[None]:
        part, self.refused_part = self.refused_part, 0.0
        yield
        self.refused_part = part


class Caller:
    """Generates calls.

    `known` and `epochs` are what the shard returned, so that some calls match.
    """

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.topics = Topics({"a": 4, "b": 3})
        options = Options(
            group_initial_rebalance_delay_ms=random.choice([0, 3000]),
            group_max_size=random.choice([2, UNLIMITED]),
            group_consumer_max_size=random.choice([3, UNLIMITED]),
        )
        ids = count()
        self.harness = Refusing(lambda: GroupShard(self.topics, options, lambda: f"id-{next(ids)}"))
        self.harness.random = random
        self.harness.refused_part = random.choice([0, 0, 0.1])
        self.known = [""]
        self.epochs = [0, 1, 2, 3, -1]
        self.group_id = "g"
        self.instance_id: str | None = None
        self.calls = {
            self.consumer_joins: 2,
            self.consumer_beats: 3,
            self.consumer_leaves: 1,
            self.classic_joins: 3,
            self.classic_syncs: 2,
            self.classic_beats: 1,
            self.classic_leaves: 1,
            self.commits: 1,
            self.commits_in_transaction: 1,
            self.deletes_offsets: 1,
            self.deletes_group: 1,
            self.looks: 1,
            self.time_passes: 1,
            self.topics_change: 1,
            self.fails_over: 1,
        }

    def step(self) -> None:
        self.group_id = self.random.choice(GROUPS) if self.random.random() < 0.2 else GROUPS[0]
        self.instance_id = self.random.choice([None, None, None, "i", "j"])
        (call,) = self.random.choices(list(self.calls), list(self.calls.values()))
        call()

    def ask(self, api: str, version: int, **body: Any) -> None:
        ticket = self.harness.ask(api, version, {"group_id": self.group_id, **body})
        answer = self.harness.answers.get(ticket)
        if isinstance(answer, Mapping):
            self.known += [answer["member_id"]] if answer.get("member_id") else []
            self.epochs += [
                answer[name]
                for name in ("generation_id", "member_epoch")
                if answer.get(name, 0) > 0
            ]

    # -- generated values

    def member_id(self) -> str:
        return self.random.choice([*self.known[-8:], "A", "B", "C"])

    def epoch(self) -> int:
        return self.random.choice(self.epochs[-6:])

    def places(self, topics: str, most: int) -> list[TopicPartition]:
        return [
            TopicPartition(self.random.choice(topics), self.random.randint(-1, 5))
            for _ in range(self.random.randint(0, most))
        ]

    def owned(self) -> list[dict[str, Any]]:
        choice = self.random.choice
        some = {
            (self.topics.topic_id(choice("ab")) or NO_TOPIC, choice(range(5)))
            for _ in range(choice(range(5)))
        }
        return rows(self.topics, some)

    def metadata(self) -> bytes:
        random = self.random
        if random.random() < 0.1:
            return random.randbytes(random.randint(0, 12))
        names = tuple(random.sample(["a", "b", "none"], random.randint(0, 3)))
        subscription = Subscription(
            names, tuple(self.places("ab", 4)), rack=random.choice([None, "r"])
        )
        return encode_subscription(subscription, random.randint(0, 3))

    def assignment(self) -> bytes:
        return self.random.choice(
            [b"", self.random.randbytes(5), encode_assignment(self.places("ab", 3))]
        )

    # -- the consumer protocol

    def consumer_joins(self) -> None:
        choice = self.random.choice
        self.ask(
            "ConsumerGroupHeartbeat",
            1,
            member_id=self.member_id() or "A",
            member_epoch=0,
            instance_id=self.instance_id,
            rack_id=choice([None, "r"]),
            rebalance_timeout_ms=choice([1000, 60000]),
            topic_partitions=[],
            subscribed_topic_names=self.random.sample(
                ["a", "b", "none"], self.random.randint(0, 3)
            ),
            subscribed_topic_regex=choice([None, None, "a|b", "[", "a.*", ""]),
            server_assignor=choice([None, "uniform", "range", "x"]),
        )

    def consumer_beats(self) -> None:
        group = self.harness.shard.state.get(self.group_id)
        if isinstance(group, ConsumerGroup) and group.members and self.random.random() < 0.7:
            member = self.random.choice(list(group.members.values()))
            assigned = [
                (topic, index) for topic, indexes in member.assigned.items() for index in indexes
            ]
            present = list(member.owned_partitions())
            owned = rows(self.topics, present if self.random.random() < 0.3 else assigned)
            self.ask(
                "ConsumerGroupHeartbeat", 1, member_id=member.member_id, member_epoch=member.epoch,
                instance_id=member.instance_id, topic_partitions=owned,
            )  # fmt: skip
        else:
            self.ask(
                "ConsumerGroupHeartbeat",
                1,
                member_id=self.member_id() or "A",
                member_epoch=self.epoch(),
                instance_id=self.instance_id,
                topic_partitions=self.random.choice([None, self.owned()]),
                subscribed_topic_names=self.random.choice([None, ["a"], []]),
            )

    def consumer_leaves(self) -> None:
        epoch = self.random.choice([-1, -2])
        self.ask(
            "ConsumerGroupHeartbeat",
            1,
            member_id=self.member_id() or "A",
            member_epoch=epoch,
            instance_id=self.instance_id,
        )

    # -- the classic protocol

    def classic_joins(self) -> None:
        choice = self.random.choice
        protocols = [
            {"name": name, "metadata": self.metadata()}
            for name in self.random.sample(["range", "coop", "x"], self.random.randint(0, 3))
        ]
        self.ask(
            "JoinGroup",
            choice([5, 9] if self.instance_id else [0, 3, 5, 9]),
            member_id=self.member_id(),
            session_timeout_ms=choice([6000, 10000, 1]),
            rebalance_timeout_ms=choice([5000, 20000, -5]),
            protocol_type=choice(["consumer"] * 8 + ["connect", ""]),
            protocols=protocols,
            group_instance_id=self.instance_id,
        )

    def classic_syncs(self) -> None:
        assignments = [
            {"member_id": member_id, "assignment": self.assignment()}
            for member_id in dict.fromkeys(self.known[-6:])
        ]
        group = self.harness.shard.state.get(self.group_id)
        if isinstance(group, ClassicGroup) and group.members and self.random.random() < 0.8:
            for member in [
                member for member in group.members.values() if self.random.random() < 0.8
            ]:
                own = {"member_id": member.member_id, "assignment": assignments[0]["assignment"]}
                self.ask(
                    "SyncGroup", 4, generation_id=group.generation, member_id=member.member_id,
                    group_instance_id=member.instance_id, assignments=[*assignments, own],
                )  # fmt: skip
        else:
            self.ask(
                "SyncGroup",
                4,
                generation_id=self.epoch(),
                member_id=self.member_id(),
                group_instance_id=self.instance_id,
                assignments=assignments,
            )

    def classic_beats(self) -> None:
        self.ask(
            "Heartbeat",
            4,
            generation_id=self.epoch(),
            member_id=self.member_id(),
            group_instance_id=self.instance_id,
        )

    def classic_leaves(self) -> None:
        choice = self.random.choice
        ids = [choice(["", self.member_id()]) for _ in range(choice(range(4)))]
        members = [
            {"member_id": member_id, "group_instance_id": choice([None, "i", "j"])}
            for member_id in ids
        ]
        self.ask("LeaveGroup", choice([4, 5]), members=members)

    # -- offsets, groups

    def _offsets(self) -> dict[str, Any]:
        partitions = [
            {
                "partition_index": self.random.randint(0, 4),
                "committed_offset": len(self.harness.log),
                "committed_metadata": None,
            }
            for _ in range(3)
        ]
        topics = [{"name": self.random.choice(["a", "b", "none"]), "partitions": partitions}]
        return {
            "member_id": self.member_id(),
            "group_instance_id": self.instance_id,
            "topics": topics,
        }

    def commits(self) -> None:
        epoch = self.random.choice([self.epoch(), -1])
        self.ask(
            "OffsetCommit",
            self.random.choice([7, 9]),
            generation_id_or_member_epoch=epoch,
            **self._offsets(),
        )

    def commits_in_transaction(self) -> None:
        epoch = self.random.choice([self.epoch(), -1])
        producer = {"producer_id": SOMEBODY.producer_id, "producer_epoch": SOMEBODY.producer_epoch}
        self.ask(
            "TxnOffsetCommit",
            3,
            transactional_id="x",
            generation_id=epoch,
            **producer,
            **self._offsets(),
        )
        if self.random.random() < 0.5:
            self.harness.mark(SOMEBODY, self.random.random() < 0.5)

    def deletes_offsets(self) -> None:
        partitions = [{"partition_index": index} for index in range(3)]
        self.ask(
            "OffsetDelete", 0, topics=[{"name": self.random.choice("ab"), "partitions": partitions}]
        )

    def deletes_group(self) -> None:
        self.harness.ask("DeleteGroups", 2, {"groups_names": [self.group_id]})

    def looks(self) -> None:
        self.harness.ask("DescribeGroups", 6, {"groups": [self.group_id]})
        self.harness.ask("ConsumerGroupDescribe", 1, {"group_ids": [self.group_id]})
        self.harness.ask("ListGroups", 5, {"states_filter": [], "types_filter": []})

    # -- the environment

    def time_passes(self) -> None:
        self.harness.advance(self.random.choice([0.01, 1.5, 4, 15, 61, 700]))

    def topics_change(self) -> None:
        if self.random.random() < 0.3:
            self.topics.create(self.random.choice(["a", "b", "ac"]), self.random.randint(1, 5))
        elif self.topics.topic_id("b") and self.random.random() < 0.3:
            self.topics.delete("b")
        self.harness.metadata_changed()

    def fails_over(self) -> None:
        assert written(self.harness.read_again()) == written(self.harness.shard)
        with self.harness.refusing_nothing():
            self.harness.fail_over()


def written(shard: GroupShard) -> dict[str, Any]:
    """What the records hold of the groups."""
    found: dict[str, Any] = {}
    for group_id, group in shard.state.by_id.items():
        if isinstance(group, ConsumerGroup):
            targets = {
                member_id: {topic: tuple(some) for topic, some in each.items()}
                for member_id, each in group.targets.items()
            }
            found[group_id] = (
                group.epoch,
                group.assignment_epoch,
                dict(group.members),
                targets,
                dict(group.subscriptions.expressions),
                dict(group.static),
            )
        else:
            found[group_id] = "classic"
    return found


def check(harness: Refusing) -> None:
    waits: set[Ticket] = set()
    for group in harness.shard.state.by_id.values():
        if isinstance(group, ConsumerGroup):
            owners(group)
            continue
        assert isinstance(group, ClassicGroup)
        waits |= {
            ticket
            for member in group.members.values()
            for ticket in (member.join_ticket, member.sync_ticket)
            if ticket
        }
        assert group.members.waiting_to_join == sum(
            member.join_ticket is not None for member in group.members.values()
        )
        assert (
            group.memory
            >= group.members.size
            == sum(member.size for member in group.members.values())
            + sum(member_size([member_id]) for member_id in group.members.pending)
        )
        assert set(group.members.not_synced) <= set(group.members) and not set(
            group.members.pending
        ) & set(group.members)
        if group.state is EMPTY:
            assert not group.members
        else:
            assert any(key[1:2] == (group.group_id,) for key in harness.shard.state.timers), (
                "no event will ever end its wait"
            )
    assert harness.waiting <= waits, "a waiting request was lost"


def run(seed: int) -> None:
    caller = Caller(seed)
    for _ in range(CALLS):
        caller.step()
        check(caller.harness)


@pytest.mark.parametrize("seed", seeds(10, range(20)))
def test_after_any_calls_no_request_is_lost_and_no_partition_has_two_owners(seed: int) -> None:
    run(seed)


if __name__ == "__main__":
    first, last = map(int, sys.argv[1].split("-"))
    for number in range(first, last + 1):
        run(number)
        print(number, "ok", flush=True)
