"""Commands of the members of one classic group: mqd/coordinator/group/classic.py, classic_group.py,
classic_members.py, classic_join.py, classic_rebalance.py. The leader assigns with
mqd/client/assignors.py.

A member has a short name; the coordinator makes its member id of that (client id and a number).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqd.client.assignors import ASSIGNORS, Member
from mqd.errors import MqError
from mqd.protocol.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from mqd.types import TopicPartition
from tests.coordinator.group.classic_support import Groups

_SESSION_MS = 10_000


class ClassicDriver:
    """Topic `orders`. After each command come the responses that it caused."""

    def __init__(self, directory: Path) -> None:
        self._groups = Groups()
        self._partitions = 0
        self._waiting: dict[int, str] = {}
        """Ticket of a request without a response -> the name of its sender."""
        self._joined: dict[str, Any] = {}
        """The newest response to JoinGroup."""
        self._instances: dict[str, str] = {}

    def topic(self, *, partitions: int) -> None:
        self._partitions = partitions

    def join(
        self,
        name: str,
        *,
        assignor: str = "range",
        member_id: str = "",
        static: str = "",
        owned: tuple[int, ...] = (),
        version: int = 0,
        rebalance_timeout: int = 60,
    ) -> list[str]:
        """JoinGroup; version 3 for dynamic members, 5 for static ones, unless another is given.

        `owned`: the partitions that a cooperative member keeps meanwhile.
        """
        kept = tuple(TopicPartition("orders", one) for one in owned)
        generation = self._joined[name]["generation_id"] if kept else -1
        metadata = encode_subscription(Subscription(("orders",), kept, generation))
        if static:
            self._instances[name] = static
        ticket = self._groups.join(
            member_id,
            protocols=[(assignor, metadata)],
            client_id=name,
            instance_id=static or None,
            version=version or (5 if static else 3),
            session_ms=_SESSION_MS,
            rebalance_ms=rebalance_timeout * 1000,
        )
        return self._sent(name, ticket)

    def rejoin(self, *names: str, owned: tuple[int, ...] = ()) -> list[str]:
        """JoinGroup of members with the protocol and the id that they have."""
        shown = []
        for name in names:
            before = self._joined[name]
            shown += self.join(
                name,
                assignor=before["protocol_name"],
                member_id=before["member_id"],
                static=self._instances.get(name, ""),
                owned=owned,
            )
        return shown

    def sync(self, name: str) -> list[str]:
        """SyncGroup; the leader brings the assignments that its assignor computes."""
        joined = self._joined[name]
        assignments = {}
        if joined["members"]:
            members = [
                Member(
                    row["member_id"],
                    decode_subscription(row["metadata"]),
                    row["group_instance_id"],
                )
                for row in joined["members"]
            ]
            assignor = ASSIGNORS[joined["protocol_name"]]
            made = assignor.assign(members, {"orders": self._partitions})
            assignments = {who: encode_assignment(given) for who, given in made.items()}
        ticket = self._groups.sync(
            joined["member_id"],
            joined["generation_id"],
            assignments,
            instance_id=self._instances.get(name),
        )
        return self._sent(name, ticket)

    def heartbeat(self, name: str, *, generation: int = -1) -> list[str]:
        """Heartbeat in the generation that the member knows, unless another one is given."""
        joined = self._joined[name]
        known = joined["generation_id"] if generation < 0 else generation
        instance = self._instances.get(name)
        try:
            code = self._groups.heartbeat(joined["member_id"], known, instance_id=instance)
        except MqError as refusal:
            code = refusal.code
        return [f"{name}: {code.name}"]

    def leave(self, name: str) -> list[str]:
        (code,) = self._groups.leave(self._joined[name]["member_id"])
        return [f"{name}: {code.name}", *self._responses()]

    def wait(self, seconds: int, *, heartbeats: tuple[str, ...] = ()) -> list[str]:
        """Time passes; these members send a heartbeat each second."""
        for _ in range(seconds):
            for name in heartbeats:
                joined = self._joined[name]
                try:
                    self._groups.heartbeat(joined["member_id"], joined["generation_id"])
                except MqError:
                    pass
            self._groups.advance(1.0)
        return self._responses()

    def group(self) -> str:
        row = self._groups.describe()
        members = ",".join(one["member_id"] for one in row["members"]) or "none"
        return (
            f"{row['group_state']} generation={self._groups.group().generation} members={members}"
        )

    def _sent(self, name: str, ticket: int) -> list[str]:
        self._waiting[ticket] = name
        shown = self._responses()
        return shown if ticket not in self._waiting else [*shown, f"{name}: waits"]

    def _responses(self) -> list[str]:
        """What is answered now, by the order of the requests."""
        shown = []
        for ticket in sorted(self._waiting):
            if ticket not in self._groups.answers:
                continue
            name = self._waiting.pop(ticket)
            outcome = self._groups.answers[ticket]
            if isinstance(outcome, MqError):
                shown.append(f"{name}: {outcome.code.name}")
            elif outcome["error_code"]:
                known = f" member={outcome['member_id']}" if outcome.get("member_id") else ""
                shown.append(f"{name}: {outcome['error_code'].name}{known}")
            elif "generation_id" in outcome:
                self._joined[name] = outcome
                shown.append(
                    f"{name}: joined generation={outcome['generation_id']} "
                    f"member={outcome['member_id']} leader={outcome['leader']}"
                )
            else:
                assigned = decode_assignment(outcome["assignment"])
                parts = ",".join(str(one.partition) for one in assigned) or "none"
                shown.append(f"{name}: assigned={parts}")
        return shown
