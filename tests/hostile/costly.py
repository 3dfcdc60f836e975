"""Attacks that cost the node time: few bytes that request much work."""

from __future__ import annotations

import time
from functools import cache
from typing import ClassVar

from mqd.limits import KIB, MIB
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.testing.requests import decoded, fetch_body, frame
from tests.hostile.attack import KNOWN_TOPIC, PIPELINED, Attack
from tests.hostile.wire import Wire

SESSION_PARTITIONS = 10_000
NAMED_TIMES = 50_000
PRODUCED_ROWS = 20_000
EXPANDED_BYTES = 96 * MIB
"""The size of a record that takes 100 KB compressed."""
RECOMPRESSED_BYTES = 15 * MIB
_FETCH = 12
_PRODUCE = 9
_TIMESTAMP = 1_700_000_000_000
_READY_SECONDS = 0.1


class Sessions(Attack):
    """A fetch session of many partitions, and many incremental fetches of 50 bytes after it, sent
    at once.
    """

    topic: ClassVar[str]
    tested_partitions = 500

    @property
    def partitions(self) -> int:
        return SESSION_PARTITIONS

    def prepare(self) -> None:
        self.first = frame(
            "fetch", _FETCH, fetch_body(self.topic, list(range(self.partitions)), session_epoch=0)
        )

    def round(self, wire: Wire) -> None:
        wire.send(self.first)
        session_id = decoded("fetch", _FETCH, wire.receive()).session_id or 1
        epochs = range(1, 1 + PIPELINED)
        wire.send(
            b"".join(
                frame(
                    "fetch", _FETCH, fetch_body("", [], session_id=session_id, session_epoch=epoch)
                )
                for epoch in epochs
            )
        )
        for _ in epochs:
            wire.receive()


class UnknownSessions(Sessions):
    """Sessions with partitions that do not exist."""

    name = "sessions of unknown partitions"
    topic = "unknown"


class KnownSessions(Sessions):
    """Sessions with partitions that exist."""

    name = "sessions of known partitions"
    topic = KNOWN_TOPIC

    @property
    def partitions(self) -> int:
        return self.known


class OnePartition(Attack):
    """Fetches that name one partition many times."""

    name = "one partition named 50,000 times"
    tested_partitions = 500

    def prepare(self) -> None:
        self.bytes = frame("fetch", 4, fetch_body(KNOWN_TOPIC, [0] * NAMED_TIMES))

    def round(self, wire: Wire) -> None:
        wire.send(self.bytes)
        wire.receive()


class ManyBatches(Attack):
    """Produce requests of many small batches."""

    name = "produce of 20,000 batches"
    tested_partitions = 500

    def prepare(self) -> None:
        batch = bytes(build_batch([(None, b"x")], timestamp=1_700_000_000_000))
        rows = [{"index": number % self.known, "records": batch} for number in range(PRODUCED_ROWS)]
        body = {
            "acks": 1,
            "timeout_ms": 10_000,
            "topic_data": [{"name": KNOWN_TOPIC, "partition_data": rows}],
        }
        self.bytes = frame("produce", _PRODUCE, body)

    def round(self, wire: Wire) -> None:
        wire.send(self.bytes)
        wire.receive()


class Expanding(Attack):
    """Records of zeros that are 1,000 times smaller compressed, in a topic of the attacker."""

    topic: ClassVar[str]
    configs: ClassVar[dict[str, str]]

    def prepare(self) -> None:
        self._configs = [{"name": name, "value": value} for name, value in self.configs.items()]

    @staticmethod
    @cache
    def batch(size: int) -> bytes:
        values = [(None, bytes(400 * KIB))] * (size // (400 * KIB))
        return bytes(build_batch(values, codec=Codec.GZIP, timestamp=_TIMESTAMP))

    def create(self, wire: Wire) -> None:
        topic = {
            "name": self.topic,
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": self._configs,
        }
        wire.ask("create_topics", 7, {"topics": [topic], "timeout_ms": 10_000})

    def produce(self, wire: Wire, records: bytes) -> int:
        """The error code."""
        row = {"index": 0, "records": records}
        topics = [{"name": self.topic, "partition_data": [row]}]
        body = {"acks": 1, "timeout_ms": 10_000, "topic_data": topics}
        answer = wire.ask("produce", _PRODUCE, body)
        return int(answer.responses[0].partition_responses[0].error_code)


class Recompressions(Expanding):
    """Batches that the node compresses again, with the slowest level."""

    name = "batches of 15 KB that expand to 15 MiB"
    topic = "recompressed"
    configs: ClassVar[dict[str, str]] = {
        "compression.type": "zstd",
        "compression.zstd.level": "22",
    }

    def prepare(self) -> None:
        super().prepare()
        self.records = self.batch(RECOMPRESSED_BYTES)

    def round(self, wire: Wire) -> None:
        if self.produce(wire, self.records):
            self.create(wire)
            time.sleep(_READY_SECONDS)


class Lookups(Expanding):
    """Lookups by time in a batch that expands, in a topic with a large `max.message.bytes`."""

    name = "lookups in a batch that expands to 96 MiB"
    topic = "looked-up"
    configs: ClassVar[dict[str, str]] = {"max.message.bytes": str(100 * MIB)}

    def prepare(self) -> None:
        super().prepare()
        self.records = self.batch(EXPANDED_BYTES)
        rows = [{"partition_index": 0, "timestamp": _TIMESTAMP}]
        self.body = {"replica_id": -1, "topics": [{"name": self.topic, "partitions": rows}]}

    def round(self, wire: Wire) -> None:
        (row,) = wire.ask("list_offsets", 7, self.body).topics[0].partitions
        if row.error_code:
            self.create(wire)
        if row.offset < 0:
            time.sleep(_READY_SECONDS)
            self.produce(wire, self.records)
