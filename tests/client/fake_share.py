"""A model of share groups for FakeBroker: every member gets every partition that exists. A record
is available, acquired by one member, or done. Locks do not end by themselves: tests call `expire`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import trio

from mqd.protocol.batch import parse_header
from mqd.types import TopicPartition

Response = dict[str, Any]
SHARE_APIS = (76, 78, 79)
_INVALID_RECORD_STATE, _SESSION_NOT_FOUND, _INVALID_EPOCH, _NOT_LEADER = 121, 122, 123, 6


@dataclass
class FakeShare:
    """One share group."""

    epoch: int = 0
    members: dict[str, int] = field(default_factory=dict)
    """member id -> its epoch"""
    topics: dict[str, list[str]] = field(default_factory=dict)
    sessions: dict[tuple[int, str], int] = field(default_factory=dict)
    """(node, member id) -> epoch of the next request"""
    places: dict[tuple[int, str], set[tuple[UUID, int]]] = field(default_factory=dict)
    acquired: dict[TopicPartition, dict[int, str]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """offset -> member id"""
    done: dict[TopicPartition, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """offset -> acknowledge type"""
    counts: dict[TopicPartition, dict[int, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )
    acknowledged: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(first offset, last offset, type, delay) of each stored row"""
    requests: list[tuple[int, int, int]] = field(default_factory=list)
    """(API key, session epoch, rows of acknowledgements)"""

    def expire(self, tp: TopicPartition, *offsets: int) -> None:
        for offset in offsets:
            del self.acquired[tp][offset]

    def end_sessions(self) -> None:
        self.sessions.clear()
        self.acquired.clear()


class FakeShareBroker:
    """The responses of a FakeBroker about share groups."""

    cluster: Any
    node_id: int
    changed: trio.Event

    def _share(self, group_id: str) -> FakeShare:
        found: FakeShare = self.cluster.shares.setdefault(group_id, FakeShare())
        return found

    async def _on_76(self, request: Any) -> Response:
        if self.cluster.coordinator != self.node_id:
            return {"error_code": 16}
        group, member = self._share(request.group_id), request.member_id
        if request.member_epoch == -1:
            group.members.pop(member, None)
            return {"member_id": member, "member_epoch": -1}
        if request.member_epoch == 0:
            group.epoch += 1
            group.topics[member] = list(request.subscribed_topic_names)
        elif member not in group.members:
            return {"error_code": 25}
        elif request.member_epoch > group.members[member]:
            return {"error_code": 110}
        group.members[member] = group.epoch
        rows = [
            {
                "topic_id": self.cluster.ids[name],
                "partitions": list(range(len(self.cluster.topics[name]))),
            }
            for name in group.topics[member]
            if name in self.cluster.topics
        ]
        return {
            "member_id": member,
            "member_epoch": group.epoch,
            "heartbeat_interval_ms": 1000,
            "assignment": {"topic_partitions": rows},
        }

    async def _on_78(self, request: Any) -> Response:
        group, key = self._share(request.group_id), (self.node_id, request.member_id)
        code = self._use(group, key, request, 78)
        if code:
            return {"error_code": code}
        places = group.places.setdefault(key, set())
        for topic in request.topics:
            places |= {(topic.topic_id, one.partition_index) for one in topic.partitions}
        for topic in request.forgotten_topics_data:
            places -= {(topic.topic_id, index) for index in topic.partitions}
        rows: dict[tuple[UUID, int], Response] = {}
        for place, found in self._acknowledged(group, request).items():
            rows[place] = {"partition_index": place[1], "acknowledge_error_code": found}
        with trio.move_on_after(request.max_wait_ms / 1000):
            while not self._acquire(group, request, places, rows):
                await self.cluster.share_changed.wait()
        topics: dict[UUID, list[Response]] = {}
        for place, row in rows.items():
            topics.setdefault(place[0], []).append(row)
        return {
            "acquisition_lock_timeout_ms": 30_000,
            "responses": [{"topic_id": each, "partitions": of} for each, of in topics.items()],
        }

    def _use(self, group: FakeShare, key: tuple[int, str], request: Any, api: int) -> int:
        epoch = request.share_session_epoch
        count = sum(
            len(one.acknowledgement_batches) for topic in request.topics for one in topic.partitions
        )
        group.requests.append((api, epoch, count))
        if epoch == 0:
            group.places.pop(key, None)
        elif key not in group.sessions:
            return _SESSION_NOT_FOUND
        elif epoch not in (-1, group.sessions[key]):
            return _INVALID_EPOCH
        if epoch == -1:
            del group.sessions[key]
        else:
            group.sessions[key] = epoch + 1
        return 0

    def _topic_partition(self, topic_id: UUID, index: int) -> TopicPartition:
        names = {found: name for name, found in self.cluster.ids.items()}
        return TopicPartition(names[topic_id], index)

    def _acknowledged(self, group: FakeShare, request: Any) -> dict[tuple[UUID, int], int]:
        found = {}
        for topic in request.topics:
            for one in topic.partitions:
                if not one.acknowledgement_batches:
                    continue
                tp = self._topic_partition(topic.topic_id, one.partition_index)
                place = topic.topic_id, one.partition_index
                found[place] = self._acknowledge(
                    group, tp, request.member_id, one.acknowledgement_batches
                )
        return found

    def _acknowledge(self, group: FakeShare, tp: TopicPartition, member: str, rows: Any) -> int:
        if self.cluster.partition(tp).leader != self.node_id:
            return _NOT_LEADER
        offsets = [each for row in rows for each in range(row.first_offset, row.last_offset + 1)]
        assert offsets == sorted(set(offsets)), offsets
        if any(group.acquired[tp].get(offset) != member for offset in offsets):
            return _INVALID_RECORD_STATE
        for row in rows:
            [kind] = row.acknowledge_types
            group.acknowledged.append((row.first_offset, row.last_offset, kind, row.retry_delay_ms))
            for offset in range(row.first_offset, row.last_offset + 1):
                if kind == 4:
                    continue
                del group.acquired[tp][offset]
                if kind != 2:
                    group.done[tp][offset] = kind
        self.cluster.share_wake()
        return 0

    def _acquire(
        self, group: FakeShare, request: Any, places: set[tuple[UUID, int]], rows: Any
    ) -> bool:
        left = request.max_records
        for place in sorted(places):
            tp = self._topic_partition(*place)
            partition = self.cluster.partition(tp)
            if partition.leader != self.node_id:
                rows.setdefault(place, {"partition_index": place[1]})["error_code"] = _NOT_LEADER
                left = 0
                continue
            data, acquired = bytearray(), []
            for batch in partition.batches:
                header = parse_header(batch)
                free = [
                    offset
                    for offset in range(header.base_offset, header.next_offset)
                    if offset not in group.acquired[tp] and offset not in group.done[tp]
                ]
                if request.share_acquire_mode:
                    free = free[:left]
                if left <= 0 or not free:
                    continue
                data += batch
                left -= len(free)
                for offset in free:
                    group.acquired[tp][offset] = request.member_id
                    group.counts[tp][offset] += 1
                    acquired.append(
                        {
                            "first_offset": offset,
                            "last_offset": offset,
                            "delivery_count": group.counts[tp][offset],
                        }
                    )
            if acquired:
                row = rows.setdefault(place, {"partition_index": place[1]})
                row |= {"records": bytes(data), "acquired_records": acquired}
        return bool(left < request.max_records)

    async def _on_79(self, request: Any) -> Response:
        group, key = self._share(request.group_id), (self.node_id, request.member_id)
        code = self._use(group, key, request, 79)
        if code:
            return {"error_code": code}
        rows = [
            {
                "topic_id": place[0],
                "partitions": [{"partition_index": place[1], "error_code": error}],
            }
            for place, error in self._acknowledged(group, request).items()
        ]
        if request.share_session_epoch == -1:
            for held in group.acquired.values():
                for offset in [each for each, member in held.items() if member == key[1]]:
                    del held[offset]
            self.cluster.share_wake()
        return {"responses": rows}
