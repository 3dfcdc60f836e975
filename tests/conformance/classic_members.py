"""Classic group members, controlled by the test."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from typing import Any

from mqd.coordinator.partitioning import partition_for

from .wire import Ticket, Wire

NONE = 0
RANGE = (("range", b"r"),)
OFFSETS_PARTITIONS = 50
"""The number of partitions of `__consumer_offsets`, by default."""


class Members:
    """Connections to a group's coordinator: each member has its own, since a waiting JoinGroup
    delays later requests of its connection.
    """

    def __init__(self, group: str, address: tuple[str, int], stack: ExitStack) -> None:
        self.group = group
        self._address = address
        self._stack = stack
        self.admin = self.connect()

    def neighbour(self, stem: str) -> str:
        """The name of another group that has the same coordinator, for any number of nodes."""
        names = (f"{stem} {number}" for number in count())
        return next(
            name
            for name in names
            if partition_for(name, OFFSETS_PARTITIONS)
            == partition_for(self.group, OFFSETS_PARTITIONS)
        )

    def connect(self) -> Wire:
        return self._stack.enter_context(Wire(*self._address))

    def join(
        self,
        wire: Wire,
        version: int = 9,
        *,
        member: str = "",
        instance: str | None = None,
        **more: Any,
    ) -> Ticket:
        request = {
            "group_id": self.group,
            "session_timeout_ms": 10_000,
            "member_id": member,
            "protocol_type": "consumer",
        }
        if version >= 1:
            request["rebalance_timeout_ms"] = 20_000
        if version >= 5:
            request["group_instance_id"] = instance
        protocols = more.pop("protocols", RANGE)
        request["protocols"] = [
            {"name": name, "metadata": metadata} for name, metadata in protocols
        ]
        return wire.post("JoinGroup", version, **request | more)

    def joined(self, wire: Wire, version: int = 9, **more: Any) -> Any:
        return wire.answer(self.join(wire, version, **more))

    def sync(
        self,
        wire: Wire,
        member: str,
        generation: int,
        assigned: dict[str, bytes] | None = None,
        version: int = 4,
        **more: Any,
    ) -> Ticket:
        rows = [{"member_id": one, "assignment": what} for one, what in (assigned or {}).items()]
        request = {
            "group_id": self.group,
            "generation_id": generation,
            "member_id": member,
            "assignments": rows,
        }
        return wire.post("SyncGroup", version, **request | more)

    def synced(self, wire: Wire, *what: Any, **more: Any) -> Any:
        return wire.answer(self.sync(wire, *what, **more))

    def heartbeat(self, member: str, generation: int, version: int = 4, **more: Any) -> int:
        request = {"group_id": self.group, "member_id": member, "generation_id": generation}
        code: int = self.admin.ask("Heartbeat", version, **request | more).error_code
        return code

    def leave(self, *rows: tuple[str, str | None], group: str | None = None) -> list[int]:
        members = [
            {"member_id": member, "group_instance_id": instance} for member, instance in rows
        ]
        answer = self.admin.ask(
            "LeaveGroup", 5, group_id=self.group if group is None else group, members=members
        )
        assert answer.error_code == NONE
        return [row.error_code for row in answer.members]

    def described(self, version: int = 6, **more: Any) -> Any:
        (row,) = self.admin.ask("DescribeGroups", version, groups=[self.group], **more).groups
        return row

    def state(self) -> str:
        state: str = self.described().group_state
        return state

    def deleted(self, *names: str, version: int = 2) -> dict[str, int]:
        return {
            row.group_id: row.error_code
            for row in self.admin.ask("DeleteGroups", version, groups_names=list(names)).results
        }

    def alone(self, wire: Wire, assignment: bytes = b"all", **more: Any) -> str:
        """A group of one, in generation 1."""
        answer = self.joined(wire, 3 if "instance" not in more else 5, **more)
        assert (answer.error_code, answer.generation_id, answer.leader) == (
            NONE,
            1,
            answer.member_id,
        )
        assert (
            self.synced(wire, answer.member_id, 1, {answer.member_id: assignment}).assignment
            == assignment
        )
        member: str = answer.member_id
        return member
