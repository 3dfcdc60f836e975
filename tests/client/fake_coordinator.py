"""Models of the two coordinators, for FakeBroker: groups of both protocols, offsets, transactions.
One coordinator for everything: node `FakeCluster.coordinator`; any other broker responds with
NOT_COORDINATOR. Sessions do not end by themselves: tests call `expire`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import trio

from mqd.types import TopicPartition

Response = dict[str, Any]
FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH = 10, 8, 9
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
COORDINATOR_APIS = (8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 25, 26, 27, 28, 42, 47, 65, 66, 68, 69)
REBALANCE_TIMEOUT_S = 10.0


@dataclass
class FakeGroup:
    """A group of either protocol. `generation` is the group epoch in KIP-848."""

    type: str = "classic"
    state: str = "Empty"
    generation: int = 0
    members: dict[str, Any] = field(default_factory=dict)
    """member id -> its JoinGroup request, or its FakeMember"""
    joined: set[str] = field(default_factory=set)
    protocol: str = ""
    leader: str = ""
    assignments: dict[str, bytes] = field(default_factory=dict)
    changed: trio.Event = field(default_factory=trio.Event)
    offsets: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    pending: dict[int, dict[TopicPartition, tuple[int, str]]] = field(default_factory=dict)
    """producer id -> offsets that its transaction will commit"""
    joins: int = 0

    def wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def rebalance(self) -> None:
        self.state = "PreparingRebalance" if self.members else "Empty"
        self.joined &= set(self.members)
        self.wake()

    def expire(self, member_id: str) -> None:
        """End the member's session."""
        del self.members[member_id]
        if self.type == "classic":
            self.joined.discard(member_id)
            self.rebalance()
        else:
            self.generation += 1


@dataclass
class FakeMember:
    """A member of a KIP-848 group."""

    epoch: int = 0
    topics: list[str] = field(default_factory=list)
    owned: set[tuple[UUID, int]] = field(default_factory=set)
    sent_assignment: set[tuple[UUID, int]] | None = None
    instance_id: str | None = None


@dataclass
class FakeTransaction:
    """A transactional id."""

    producer_id: int
    epoch: int = -1
    state: str = "Empty"
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    last: tuple[int, bool] | None = None
    """(epoch, committed) of the last end"""
    bumped_from: int = -1
    """The previous epoch of the client that requested the current one; its retries have it
    (KIP-360).
    """


class FakeCoordinator:
    """The responses of a FakeBroker as a coordinator. The state is the cluster's."""

    cluster: Any
    node_id: int

    # -- finding the coordinator

    async def _on_10(self, request: Any) -> Response:
        node = self.cluster.coordinator
        host, port = self.cluster.addresses[node]
        row = {"node_id": node, "host": host, "port": port}
        return row | {"coordinators": [{"key": key, **row} for key in request.coordinator_keys]}

    def _elsewhere(self) -> bool:
        return bool(self.cluster.coordinator != self.node_id)

    def _group(self, name: str, kind: str = "classic") -> FakeGroup:
        found: FakeGroup = self.cluster.groups.setdefault(name, FakeGroup(kind))
        return found

    # -- classic groups

    async def _on_11(self, request: Any) -> Response:
        if self._elsewhere():
            return {"error_code": 16, "protocol_name": ""}
        group = self._group(request.group_id)
        member_id = request.member_id
        if not member_id:
            group.joins += 1
            member_id = f"{request.group_instance_id or 'member'}-{group.joins}"
            if request.version >= 4 and request.group_instance_id is None:
                self.cluster.pending_members.add(member_id)
                return {"error_code": 79, "member_id": member_id, "protocol_name": ""}
        elif member_id not in group.members and member_id not in self.cluster.pending_members:
            return {"error_code": 25, "protocol_name": ""}
        group.members[member_id] = request
        group.joined.add(member_id)
        group.rebalance()
        with trio.move_on_after(REBALANCE_TIMEOUT_S):
            while group.state == "PreparingRebalance" and group.joined < set(group.members):
                await group.changed.wait()
        if group.state == "PreparingRebalance":
            for late in set(group.members) - group.joined:
                del group.members[late]
            names = [{each.name for each in one.protocols} for one in group.members.values()]
            first = next(iter(group.members.values()))
            group.protocol = next(
                each.name for each in first.protocols if all(each.name in one for one in names)
            )
            group.generation += 1
            group.leader = min(group.members)
            group.assignments = {}
            group.joined = set()
            group.state = "CompletingRebalance"
            group.wake()
        if member_id not in group.members:
            return {"error_code": 25, "protocol_name": ""}
        rows = []
        if member_id == group.leader:
            for one, requested in group.members.items():
                metadata = next(
                    each.metadata for each in requested.protocols if each.name == group.protocol
                )
                rows.append(
                    {
                        "member_id": one,
                        "group_instance_id": requested.group_instance_id,
                        "metadata": bytes(metadata),
                    }
                )
        return {
            "generation_id": group.generation,
            "protocol_type": "consumer",
            "protocol_name": group.protocol,
            "leader": group.leader,
            "member_id": member_id,
            "members": rows,
        }

    def _check(self, request: Any) -> int:
        group = self.cluster.groups.get(request.group_id)
        if self._elsewhere():
            return 16
        if group is None or request.member_id not in group.members:
            return 25
        return 22 if request.generation_id != group.generation else 0

    async def _on_14(self, request: Any) -> Response:
        code = self._check(request)
        if code:
            return {"error_code": code}
        group = self._group(request.group_id)
        if request.assignments:
            group.assignments = {
                row.member_id: bytes(row.assignment) for row in request.assignments
            }
            if group.state == "CompletingRebalance":
                group.state = "Stable"
            group.wake()
        while group.state == "CompletingRebalance" and group.generation == request.generation_id:
            await group.changed.wait()
        if group.state != "Stable" or group.generation != request.generation_id:
            return {"error_code": 27}
        return {"assignment": group.assignments.get(request.member_id, b"")}

    async def _on_12(self, request: Any) -> Response:
        code = self._check(request)
        return {
            "error_code": code
            or (27 if self._group(request.group_id).state == "PreparingRebalance" else 0)
        }

    async def _on_13(self, request: Any) -> Response:
        group = self._group(request.group_id)
        static = {
            getattr(requested, "group_instance_id", None): member_id
            for member_id, requested in group.members.items()
        }
        rows = []
        for row in request.members or [request]:
            instance_id = None if row is request else row.group_instance_id
            member_id = row.member_id or static.get(instance_id, "")
            there = member_id in group.members
            if there:
                group.expire(member_id)
            rows.append(
                {
                    "member_id": row.member_id,
                    "group_instance_id": instance_id,
                    "error_code": 0 if there or row is request else 25,
                }
            )
        return {"members": rows}

    # -- groups of KIP-848

    async def _on_68(self, request: Any) -> Response:
        if self._elsewhere():
            return {"error_code": 16}
        group = self._group(request.group_id, "consumer")
        if request.member_epoch < 0:
            if request.member_id in group.members:
                group.expire(request.member_id)
            return {"member_id": request.member_id, "member_epoch": request.member_epoch}
        member = group.members.get(request.member_id)
        if member is None and request.member_epoch:
            return {"error_code": 25}
        if member is None:
            member = group.members[request.member_id] = FakeMember(instance_id=request.instance_id)
            group.generation += 1
        elif request.member_epoch and request.member_epoch != member.epoch:
            return {"error_code": 110}
        if request.subscribed_topic_names is not None:
            member.topics = list(request.subscribed_topic_names)
        if request.topic_partitions is not None:
            member.owned = {
                (row.topic_id, index)
                for row in request.topic_partitions
                for index in row.partitions
            }
        target = self._target(group, request.member_id)
        others = {
            each
            for name, other in group.members.items()
            if name != request.member_id
            for each in (other.owned | (other.sent_assignment or set()))
            - (self._target(group, name) & (other.sent_assignment or set()))
        } | {
            each
            for name, other in group.members.items()
            if name != request.member_id
            for each in other.owned
        }
        given = (target & member.owned) if member.owned - target else target - others
        response: Response = {"member_id": request.member_id, "heartbeat_interval_ms": 1000}
        if given != member.sent_assignment or request.member_epoch == 0:
            member.sent_assignment = given
            rows: dict[UUID, list[int]] = {}
            for topic_id, index in sorted(given, key=str):
                rows.setdefault(topic_id, []).append(index)
            response["assignment"] = {
                "topic_partitions": [
                    {"topic_id": one, "partitions": each} for one, each in rows.items()
                ]
            }
        if not member.owned - target:
            member.epoch = group.generation
        return response | {"member_epoch": member.epoch}

    def _target(self, group: FakeGroup, member_id: str) -> set[tuple[UUID, int]]:
        order = sorted(group.members)
        mine = order.index(member_id)
        topics = sorted(
            {topic for member in group.members.values() for topic in member.topics}
            & set(self.cluster.topics)
        )
        return {
            (self.cluster.ids[topic], index)
            for topic in topics
            for index in range(len(self.cluster.topics[topic]))
            if index % len(order) == mine
        }

    # -- offsets

    def _commit_code(self, request: Any, generation: int) -> int:
        group: FakeGroup = self._group(request.group_id)
        if self._elsewhere():
            return 16
        if not request.member_id:
            return 25 if group.members else 0
        if request.member_id not in group.members:
            return 25
        if group.type == "consumer":
            return 0 if group.members[request.member_id].epoch == generation else 113
        if generation != group.generation:
            return 22
        return 27 if group.state == "CompletingRebalance" else 0

    async def _on_8(self, request: Any) -> Response:
        code = self._commit_code(request, request.generation_id_or_member_epoch)
        self.cluster.commits.append((request.group_id, code))
        return {"topics": self._store(request, code, self._group(request.group_id).offsets)}

    def _store(
        self, request: Any, code: int, into: dict[TopicPartition, tuple[int, str]]
    ) -> list[Response]:
        topics = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                if not code:
                    into[TopicPartition(topic.name, row.partition_index)] = (
                        row.committed_offset,
                        row.committed_metadata or "",
                    )
                rows.append({"partition_index": row.partition_index, "error_code": code})
            topics.append({"name": topic.name, "partitions": rows})
        return topics

    async def _on_9(self, request: Any) -> Response:
        groups = request.groups or [request]
        responses = []
        for requested in groups:
            group = self.cluster.groups.get(requested.group_id, FakeGroup())
            if requested.topics is None:
                wanted = sorted(group.offsets)
            else:
                wanted = [
                    TopicPartition(topic.name, index)
                    for topic in requested.topics
                    for index in topic.partition_indexes
                ]
            unstable = (
                {tp for offsets in group.pending.values() for tp in offsets}
                if request.require_stable
                else set()
            )
            topics: dict[str, list[Response]] = {}
            for tp in wanted:
                offset, metadata = group.offsets.get(tp, (-1, ""))
                row = {
                    "partition_index": tp.partition,
                    "committed_offset": offset,
                    "metadata": metadata,
                }
                topics.setdefault(tp.topic, []).append(
                    row | {"error_code": 88 if tp in unstable else 0}
                )
            rows = [{"name": name, "partitions": each} for name, each in topics.items()]
            responses.append(
                {
                    "group_id": requested.group_id,
                    "topics": rows,
                    "error_code": 16 if self._elsewhere() else 0,
                }
            )
        return responses[0] | {"groups": responses}

    async def _on_47(self, request: Any) -> Response:
        group = self.cluster.groups.get(request.group_id)
        if group is None:
            return {"error_code": 69}
        topics = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                code = 86 if group.members else 0
                if not code:
                    group.offsets.pop(TopicPartition(topic.name, row.partition_index), None)
                rows.append({"partition_index": row.partition_index, "error_code": code})
            topics.append({"name": topic.name, "partitions": rows})
        return {"topics": topics}

    # -- administration of groups

    async def _on_16(self, request: Any) -> Response:
        if self._elsewhere():
            return {"groups": []}
        rows = [
            {
                "group_id": name,
                "protocol_type": "consumer",
                "group_state": self._state(group),
                "group_type": group.type,
            }
            for name, group in self.cluster.groups.items()
        ]
        wanted = {each.lower() for each in request.states_filter}
        return {
            "groups": [row for row in rows if not wanted or row["group_state"].lower() in wanted]
        }

    def _state(self, group: FakeGroup) -> str:
        return ("Stable" if group.members else "Empty") if group.type == "consumer" else group.state

    async def _on_15(self, request: Any) -> Response:
        rows = []
        tells = self.cluster.tells_of_rebalances and request.awaited_wanted
        for name in request.groups:
            group = self.cluster.groups.get(name)
            if group is None:
                rows.append(
                    {
                        "group_id": name,
                        "error_code": 69 if request.version >= 6 else 0,
                        "group_state": "Dead",
                    }
                )
                continue
            members = [
                {
                    "member_id": member_id,
                    "client_id": "mqd",
                    "client_host": "/127.0.0.1",
                    "member_metadata": bytes(requested.protocols[0].metadata),
                    "member_assignment": group.assignments.get(member_id, b""),
                    "group_instance_id": requested.group_instance_id,
                    "awaited": group.state == "PreparingRebalance"
                    and member_id not in group.joined
                    and tells,
                }
                for member_id, requested in group.members.items()
            ]
            row = {
                "group_id": name,
                "group_state": group.state,
                "protocol_type": "consumer",
                "protocol_data": group.protocol,
            }
            if group.state == "PreparingRebalance" and tells:
                row["state_since_ms"] = 5000
            rows.append({**row, "members": members})
        return {"groups": rows}

    async def _on_69(self, request: Any) -> Response:
        names = {topic_id: name for name, topic_id in self.cluster.ids.items()}
        rows: list[Response] = []
        for name in request.group_ids:
            group = self.cluster.groups.get(name)
            if group is None or group.type != "consumer":
                rows.append({"group_id": name, "error_code": 69})
                continue
            members = []
            for member_id, member in group.members.items():
                topics: dict[UUID, list[int]] = {}
                for topic_id, index in sorted(member.owned, key=str):
                    topics.setdefault(topic_id, []).append(index)
                given = [
                    {"topic_id": one, "topic_name": names[one], "partitions": each}
                    for one, each in topics.items()
                ]
                members.append(
                    {
                        "member_id": member_id,
                        "member_epoch": member.epoch,
                        "client_id": "mqd",
                        "client_host": "/127.0.0.1",
                        "subscribed_topic_names": member.topics,
                        "assignment": {"topic_partitions": given},
                        "target_assignment": {"topic_partitions": given},
                    }
                )
            rows.append(
                {
                    "group_id": name,
                    "group_state": self._state(group),
                    "group_epoch": group.generation,
                    "assignor_name": "uniform",
                    "members": members,
                }
            )
        return {"groups": rows}

    async def _on_42(self, request: Any) -> Response:
        rows = []
        for name in request.groups_names:
            group = self.cluster.groups.get(name)
            code = 69 if group is None else 68 if group.members else 0
            if not code:
                del self.cluster.groups[name]
            rows.append({"group_id": name, "error_code": code})
        return {"results": rows}

    # -- transactions

    def _transaction(self, request: Any) -> tuple[FakeTransaction | None, int]:
        """The transaction of a producer, and the error of the producer, if any."""
        found = self.cluster.transactions.get(request.transactional_id)
        if self._elsewhere():
            return None, 16
        if found is None or found.producer_id != request.producer_id:
            return None, 49
        if request.producer_epoch != found.epoch:
            return found, 90 if request.producer_epoch < found.epoch else 47
        return found, 0

    def init_transactional(self, request: Any) -> Response:
        """InitProducerId with a transactional id."""
        if self._elsewhere():
            return {"error_code": 16, "producer_id": -1, "producer_epoch": -1}
        found = self.cluster.transactions.get(request.transactional_id)
        if found is None:
            self.cluster.next_producer_id += 1
            found = self.cluster.transactions[request.transactional_id] = FakeTransaction(
                self.cluster.next_producer_id
            )
        elif request.producer_id >= 0 and request.producer_epoch == found.bumped_from:
            return {"producer_id": found.producer_id, "producer_epoch": found.epoch}
        elif request.producer_id >= 0 and request.producer_epoch != found.epoch:
            return {"error_code": 90, "producer_id": -1, "producer_epoch": -1}
        if found.state == "Ongoing":
            self._end(found, False)
            # InitProducerId fences the producer that opened the transaction, whichever client sends
            # it
            if request.producer_id >= 0 and self.cluster.transaction_version < 2:
                found.epoch += 1
                found.bumped_from = -1
                return {"error_code": 51, "producer_id": -1, "producer_epoch": -1}
        found.epoch += 1
        found.bumped_from = request.producer_epoch if request.producer_id >= 0 else -1
        found.state = "Empty"
        return {"producer_id": found.producer_id, "producer_epoch": found.epoch}

    async def _on_24(self, request: Any) -> Response:
        requested = {
            "transactional_id": request.v3_and_below_transactional_id,
            "producer_id": request.v3_and_below_producer_id,
            "producer_epoch": request.v3_and_below_producer_epoch,
        }
        found, code = self._transaction(type("Asked", (), requested))
        topics = []
        for topic in request.v3_and_below_topics:
            rows = []
            for index in topic.partitions:
                if found is not None and not code:
                    found.state = "Ongoing"
                    found.partitions.add(TopicPartition(topic.name, index))
                rows.append({"partition_index": index, "partition_error_code": code})
            topics.append({"name": topic.name, "results_by_partition": rows})
        return {"results_by_topic_v3_and_below": topics}

    async def _on_25(self, request: Any) -> Response:
        found, code = self._transaction(request)
        if found is not None and not code:
            found.state = "Ongoing"
            found.groups.add(request.group_id)
        return {"error_code": code}

    async def _on_28(self, request: Any) -> Response:
        found, code = self._transaction(request)
        group = self._group(request.group_id)
        if found is not None and not code:
            code = self._commit_code(request, request.generation_id)
            code = 22 if code == 113 else code
            if request.version >= 5:
                found.state = "Ongoing"
                found.groups.add(request.group_id)
            elif request.group_id not in found.groups:
                code = 48
        return {
            "topics": self._store(request, code, group.pending.setdefault(request.producer_id, {}))
        }

    async def _on_26(self, request: Any) -> Response:
        found, code = self._transaction(request)
        new_epoch = request.version >= 5
        if (
            code
            and found is not None
            and new_epoch
            and found.last == (request.producer_epoch, request.committed)
        ):
            return {"producer_id": found.producer_id, "producer_epoch": found.epoch}  # a retry
        if found is None or code:
            return {"error_code": code}
        if found.state != "Ongoing" and request.committed and found.state != "CompleteCommit":
            return {"error_code": 48}
        if (
            found.state != "Ongoing"
            and not new_epoch
            and found.state != ("CompleteCommit" if request.committed else "CompleteAbort")
        ):
            return {"error_code": 48}
        found.last = request.producer_epoch, request.committed
        self._end(found, request.committed)
        found.epoch += new_epoch
        return (
            {"producer_id": found.producer_id, "producer_epoch": found.epoch} if new_epoch else {}
        )

    def _end(self, found: FakeTransaction, committed: bool) -> None:
        found.state = "CompleteCommit" if committed else "CompleteAbort"
        for name in found.groups:
            group = self._group(name)
            offsets = group.pending.pop(found.producer_id, {})
            if committed:
                group.offsets.update(offsets)
        for tp in sorted(found.partitions):
            self.cluster.partition(tp).end_transaction(found.producer_id, found.epoch, committed)
        found.partitions.clear()
        found.groups.clear()
        self._notify()

    _notify: Callable[[], None]

    async def _on_27(self, request: Any) -> Response:
        markers = []
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                rows = []
                for index in topic.partition_indexes:
                    partition = self.cluster.topics[topic.name][index]
                    partition.end_transaction(
                        marker.producer_id, marker.producer_epoch, marker.transaction_result
                    )
                    rows.append({"partition_index": index})
                topics.append({"name": topic.name, "partitions": rows})
            markers.append({"producer_id": marker.producer_id, "topics": topics})
        return {"markers": markers}

    async def _on_65(self, request: Any) -> Response:
        rows = []
        for name in request.transactional_ids:
            found = self.cluster.transactions.get(name)
            if found is None:
                rows.append({"transactional_id": name, "error_code": 105})
                continue
            topics: dict[str, list[int]] = {}
            for tp in sorted(found.partitions):
                topics.setdefault(tp.topic, []).append(tp.partition)
            rows.append(
                {
                    "transactional_id": name,
                    "transaction_state": found.state,
                    "transaction_timeout_ms": 60_000,
                    "transaction_start_time_ms": 1000 if found.state == "Ongoing" else -1,
                    "producer_id": found.producer_id,
                    "producer_epoch": found.epoch,
                    "topics": [
                        {"topic": topic, "partitions": indexes} for topic, indexes in topics.items()
                    ],
                }
            )
        return {"transaction_states": rows}

    async def _on_66(self, request: Any) -> Response:
        rows = [
            {
                "transactional_id": name,
                "producer_id": each.producer_id,
                "transaction_state": each.state,
            }
            for name, each in self.cluster.transactions.items()
            if not self._elsewhere()
            and (not request.state_filters or each.state in request.state_filters)
            and (not request.producer_id_filters or each.producer_id in request.producer_id_filters)
        ]
        return {"transaction_states": rows}
