"""Members of consumer groups, for tests: single requests, and clients that behave as KIP-848
requires.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any
from uuid import UUID

from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.coordinator.group.consumer_member import JOINING, LEAVING
from mqd.coordinator.group.shard import GroupShard
from mqd.errors import ErrorCode, MqError
from mqd.protocol.slices import Rows
from tests.coordinator.group.support import Options, Topics, group_harness
from tests.coordinator.harness import Harness

GROUP = "g"
Places = frozenset[tuple[UUID, int]]


def rows(topics: Topics, places: Iterable[tuple[UUID | str, int]]) -> list[dict[str, Any]]:
    """Rows of a request; topics by id, or by name."""
    found: dict[UUID, list[int]] = {}
    for topic, partition in sorted(places):
        topic_id = topics.topic_id(topic) if isinstance(topic, str) else topic
        assert topic_id is not None
        found.setdefault(topic_id, []).append(partition)
    return [
        {"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in found.items()
    ]


def places(assignment: Any) -> Places | None:
    """The assignment in a response; None where the response has none."""
    if assignment is None:
        return None
    return frozenset(
        (row["topic_id"], p) for row in assignment["topic_partitions"] for p in row["partitions"]
    )


def complete(row: Any) -> Any:
    """A row of a response with its rows, which are made when it is encoded."""
    if isinstance(row, Mapping):
        return {name: complete(value) for name, value in row.items()}
    return [complete(one) for one in row] if isinstance(row, Rows) else row


class Group:
    """One consumer group on a shard, and what its members send."""

    def __init__(self, topics: Mapping[str, int] | None = None, **options: Any) -> None:
        self.topics = Topics(topics if topics is not None else {"a": 4})
        self.options = Options(**options)
        self.harness: Harness[GroupShard] = group_harness(self.topics, self.options)

    def beat(self, member_id: str, epoch: int, version: int = 1, **more: Any) -> dict[str, Any]:
        """One heartbeat; raises MqError when it is refused. `owned`: the partitions that the member
        reports.
        """
        owned = more.pop("owned", None)
        request = {"group_id": GROUP, "member_id": member_id, "member_epoch": epoch, **more}
        if owned is not None:
            request["topic_partitions"] = rows(self.topics, owned)
        return dict(self.harness.call("consumer_group_heartbeat", version, request))

    def join(
        self, member_id: str, topics: Collection[str] | None = ("a",), **more: Any
    ) -> dict[str, Any]:
        wanted = {
            "subscribed_topic_names": None if topics is None else list(topics),
            "rebalance_timeout_ms": 30_000,
            "owned": (),
            **more,
        }
        return self.beat(member_id, JOINING, **wanted)

    def leave(self, member_id: str, epoch: int = LEAVING, **more: Any) -> dict[str, Any]:
        return self.beat(member_id, epoch, **more)

    def assigned(self, answer: Mapping[str, Any]) -> list[int] | None:
        """Partition numbers in the assignment of a response."""
        found = places(answer.get("assignment"))
        return None if found is None else sorted(p for _, p in found)

    def described(self) -> dict[str, Any]:
        [row] = self.harness.call("consumer_group_describe", 1, {"group_ids": [GROUP]})["groups"]
        found = complete(row)
        assert isinstance(found, dict)
        return found

    @property
    def state(self) -> ConsumerGroup:
        group = self.harness.shard.state.get(GROUP)
        assert isinstance(group, ConsumerGroup), group
        return group

    def later(self, seconds: float = 1.1) -> None:
        """Advance the clock, by default by more than the interval between assignments."""
        self.harness.advance(seconds)

    def refusal(self, member_id: str, epoch: int, **more: Any) -> ErrorCode:
        try:
            answer = self.beat(member_id, epoch, **more)
        except MqError as error:
            return error.code
        raise AssertionError(answer)


def owners(group: ConsumerGroup) -> dict[tuple[UUID, int], str]:
    """The owner of each partition, computed from the members; a partition with two owners is an
    error.
    """
    found: dict[tuple[UUID, int], str] = {}
    for member in group.members.values():
        for owned in (member.assigned, member.revoking):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    assert (topic_id, partition) not in found, (
                        topic_id,
                        partition,
                        member.member_id,
                        found[topic_id, partition],
                    )
                    found[topic_id, partition] = member.member_id
    assert found == group.owners
    return found
