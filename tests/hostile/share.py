"""Attacks of share group members: sessions, acknowledgements, records and waiting fetches."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from mqd.limits import MIB
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.server.share_state import coordinator_key
from mqd.share.ports import ShareKey
from mqd.testing.requests import decoded, frame
from tests.hostile.attack import KNOWN_TOPIC, PIPELINED, Attack
from tests.hostile.wire import Wire

_FETCH, _ACKNOWLEDGE = 2, 2
_TIMESTAMP = 1_700_000_000_000
_SHARE_PARTITION = 2
"""The type of a key in FindCoordinator."""
_HOUR_MS = 3_600_000
_READY_SECONDS = 0.1
UNKNOWN_PARTITIONS = 24_000
ACKNOWLEDGED = 99_000
BATCH_RECORDS = 900_000
NAMED_TIMES = 100
MEMBER = "m"


def share_fetch(
    group: str, epoch: int, topics: Sequence[Mapping[str, Any]] = (), **more: Any
) -> bytes:
    body = {
        "group_id": group,
        "member_id": MEMBER,
        "share_session_epoch": epoch,
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 64 * MIB,
        "max_records": 1,
        "batch_size": 500,
        "topics": topics,
        **more,
    }
    return frame("share_fetch", _FETCH, body)


def topic(topic_id: uuid.UUID, indexes: Sequence[int]) -> dict[str, Any]:
    rows = [{"partition_index": index, "acknowledgement_batches": []} for index in indexes]
    return {"topic_id": topic_id, "partitions": rows}


def initialize(wire: Wire, group: str, topic_id: uuid.UUID, partitions: int) -> bool:
    """Create states that begin at offset 0. Returns whether that was done."""
    rows = [{"partition": n, "state_epoch": 0, "start_offset": 0} for n in range(partitions)]
    topics = [{"topic_id": topic_id, "partitions": rows}]
    answer = wire.ask("initialize_share_group_state", 0, {"group_id": group, "topics": topics})
    if any(row.error_code for row in answer.results[0].partitions):
        key = coordinator_key(ShareKey(group, topic_id, 0))
        wire.ask("find_coordinator", 6, {"key_type": _SHARE_PARTITION, "coordinator_keys": [key]})
        time.sleep(_READY_SECONDS)
        return False
    return True


def id_of(wire: Wire, name: str) -> uuid.UUID:
    found: uuid.UUID = wire.ask("metadata", 12, {"topics": [{"name": name}]}).topics[0].topic_id
    return found


class ShareSessions(Attack):
    """A share session of partitions that do not exist, and many requests of 60 bytes after it."""

    name = "share sessions of unknown partitions"
    tested_partitions = 1

    def prepare(self) -> None:
        self.topics = [topic(uuid.UUID(int=1), range(UNKNOWN_PARTITIONS))]
        self.epochs = range(2, 2 + PIPELINED)

    def round(self, wire: Wire) -> None:
        group = uuid.uuid4().hex
        wire.send(share_fetch(group, 0) + share_fetch(group, 1, self.topics))
        wire.receive()
        wire.receive()
        wire.send(b"".join(share_fetch(group, epoch) for epoch in self.epochs))
        for _ in self.epochs:
            wire.receive()


class ShareAcknowledgements(Attack):
    """Acknowledgements of 99,000 records of one batch, with alternating types: some are refused,
    the others make as many ranges as there may be.
    """

    name = "acknowledgements of alternating types"
    topic: ClassVar[str] = "acknowledged"
    tested_partitions = 1

    def prepare(self) -> None:
        pass

    @cached_property
    def records(self) -> bytes:
        return bytes(
            build_batch([(None, b"")] * BATCH_RECORDS, codec=Codec.GZIP, timestamp=_TIMESTAMP)
        )

    def round(self, wire: Wire) -> None:
        group, topic_id = uuid.uuid4().hex, id_of(wire, self.topic)
        if not topic_id.int or not self._has_records(wire):
            self._create(wire)
        elif initialize(wire, group, topic_id, 1):
            wire.send(share_fetch(group, 0, [topic(topic_id, [0])]))
            found = decoded("share_fetch", _FETCH, wire.receive())
            rows = [row for one in found.responses for row in one.partitions]
            acquired = [one for row in rows for one in row.acquired_records]
            if acquired:
                self._acknowledge(wire, group, topic_id, ACKNOWLEDGED, 1)
                self._acknowledge(wire, group, topic_id, acquired[-1].last_offset + 1, 2)
            wire.send(share_fetch(group, -1))
            wire.receive()

    def _acknowledge(
        self, wire: Wire, group: str, topic_id: uuid.UUID, count: int, epoch: int
    ) -> None:
        batch = {
            "first_offset": 0,
            "last_offset": count - 1,
            "acknowledge_types": ([1, 2] * count)[:count],
        }
        row = {"partition_index": 0, "acknowledgement_batches": [batch]}
        body = {
            "group_id": group,
            "member_id": MEMBER,
            "share_session_epoch": epoch,
            "topics": [{"topic_id": topic_id, "partitions": [row]}],
        }
        wire.send(frame("share_acknowledge", _ACKNOWLEDGE, body))
        wire.receive()

    def _has_records(self, wire: Wire) -> bool:
        rows = [{"partition_index": 0, "timestamp": -1}]
        ends = wire.ask("list_offsets", 7, {"topics": [{"name": self.topic, "partitions": rows}]})
        return bool(ends.topics[0].partitions[0].offset > 0)

    def _create(self, wire: Wire) -> None:
        configs = [{"name": "max.message.bytes", "value": str(50 * MIB)}]
        new = {
            "name": self.topic,
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": configs,
        }
        wire.ask("create_topics", 7, {"topics": [new], "timeout_ms": 10_000})
        time.sleep(_READY_SECONDS)
        row = {"index": 0, "records": self.records}
        topics = [{"name": self.topic, "partition_data": [row]}]
        wire.ask("produce", 9, {"acks": 1, "timeout_ms": 10_000, "topic_data": topics})


class WaitingShareFetches(Attack):
    """Requests of more than 4 KiB that wait for records for an hour."""

    name = "share fetches that wait"
    tested_partitions = 10

    def prepare(self) -> None:
        pass

    def round(self, wire: Wire) -> None:
        group, topic_id = uuid.uuid4().hex, id_of(wire, KNOWN_TOPIC)
        if initialize(wire, group, topic_id, self.known):
            indexes = list(range(self.known)) * NAMED_TIMES
            wire.send(share_fetch(group, 0, [topic(topic_id, indexes)], max_wait_ms=_HOUR_MS))
            wire.receive()
