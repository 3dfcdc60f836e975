"""A shard with classic groups, and short methods for the requests of its members."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from mqd.coordinator.group.classic_group import ClassicGroup
from mqd.coordinator.group.classic_rebalance import JOIN, MEMBER, SYNC
from mqd.coordinator.group.record_codec import decode
from mqd.coordinator.group.records import GroupMetadata, GroupMetadataKey
from mqd.coordinator.group.shard import GroupShard
from mqd.coordinator.group.timers import TimerKey
from mqd.errors import ErrorCode
from mqd.protocol.consumer_protocol import Subscription, encode_subscription
from tests.coordinator.group.support import Options, Topics
from tests.coordinator.harness import Harness

GROUP = "orders"
RANGE = (("range", b"r"),)


class Groups(Harness[GroupShard]):
    """`join`, `sync` and so on return tickets; methods that end in _now return the response, which
    must be there at once.
    """

    def __init__(self, **options: Any) -> None:
        self.options = Options(**options)
        self.topics = Topics({"t": 1})
        numbers = count(1)
        super().__init__(lambda: GroupShard(self.topics, self.options, lambda: f"{next(numbers)}"))

    def group(self, group_id: str = GROUP) -> ClassicGroup:
        group = self.shard.state.by_id[group_id]
        assert isinstance(group, ClassicGroup)
        return group

    def classic_timers(self) -> list[TimerKey]:
        return [key for key in self.shard.state.timers if key[0] in (MEMBER, JOIN, SYNC)]

    def join(
        self,
        member_id: str = "",
        *,
        version: int = 3,
        group_id: str = GROUP,
        protocols: Iterable[tuple[str, bytes]] = RANGE,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        instance_id: str | None = None,
        protocol_type: str = "consumer",
        client_id: str = "client",
    ) -> int:
        request = {
            "group_id": group_id,
            "session_timeout_ms": session_ms,
            "rebalance_timeout_ms": rebalance_ms,
            "member_id": member_id,
            "group_instance_id": instance_id,
            "protocol_type": protocol_type,
            "protocols": [{"name": name, "metadata": metadata} for name, metadata in protocols],
        }
        return self.ask("JoinGroup", version, request, client_id=client_id)

    def join_now(self, member_id: str = "", **more: Any) -> Any:
        return self.answer(self.join(member_id, **more))

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        version: int = 4,
        group_id: str = GROUP,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> int:
        request = {
            "group_id": group_id,
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": instance_id,
            "protocol_type": protocol_type,
            "protocol_name": protocol_name,
            "assignments": [
                {"member_id": who, "assignment": what} for who, what in (assignments or {}).items()
            ],
        }
        return self.ask("SyncGroup", version, request)

    def sync_now(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        **more: Any,
    ) -> Any:
        return self.answer(self.sync(member_id, generation, assignments, **more))

    def heartbeat(
        self,
        member_id: str,
        generation: int,
        *,
        group_id: str = GROUP,
        instance_id: str | None = None,
    ) -> ErrorCode:
        request = {
            "group_id": group_id,
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": instance_id,
        }
        code: ErrorCode = self.call("Heartbeat", 4, request)["error_code"]
        return code

    def leave(
        self, *member_ids: str, group_id: str = GROUP, instance_id: str | None = None
    ) -> list[ErrorCode]:
        rows = [
            {"member_id": one, "group_instance_id": instance_id, "reason": None}
            for one in member_ids
        ]
        answer = self.call("LeaveGroup", 5, {"group_id": group_id, "members": rows})
        assert answer["error_code"] == ErrorCode.NONE
        return [row["error_code"] for row in answer["members"]]

    def describe(self, group_id: str = GROUP, version: int = 6) -> Any:
        (row,) = self.call("DescribeGroups", version, {"groups": [group_id]})["groups"]
        return row

    def form(self, *instance_ids: str | None, **more: Any) -> list[str]:
        """A Stable group of that many members, in generation 1; each is assigned its own id.

        Returns member ids, the leader's first.
        """
        tickets = [
            self.join(instance_id=one, version=5 if one else 3, **more) for one in instance_ids
        ]
        self.advance(
            self.options.node("group.initial.rebalance.delay.ms")
            / 1000
            * (2 if len(tickets) > 1 else 1)
        )
        members = [self.answer(ticket)["member_id"] for ticket in tickets]
        self.synchronize(members, 1)
        return members

    def synchronize(self, members: list[str], generation: int) -> None:
        """The leader, who is first, assigns to each member its own id."""
        waiting = [self.sync(one, generation) for one in members[1:]]
        assigned = self.sync_now(members[0], generation, {one: one.encode() for one in members})
        assert [
            assigned["assignment"],
            *(self.answer(ticket)["assignment"] for ticket in waiting),
        ] == [one.encode() for one in members]

    def written(self, group_id: str = GROUP) -> list[GroupMetadata | None]:
        """What the log holds of the group."""
        found: list[GroupMetadata | None] = []
        for record, _ in self.log:
            assert not isinstance(record, bool)
            entry = decode(record)
            if entry.key == GroupMetadataKey(group_id):
                assert entry.value is None or isinstance(entry.value, GroupMetadata)
                found.append(entry.value)
        return found


def subscribed(*topics: str) -> bytes:
    return encode_subscription(Subscription(topics))
