"""Attacks that cost the node time: few bytes that request much work."""

from __future__ import annotations

from typing import ClassVar

from mqd.protocol.batch_builder import build_batch
from mqd.testing.requests import decoded, fetch_body, frame
from tests.hostile.attack import KNOWN_TOPIC, PIPELINED, Attack
from tests.hostile.wire import Wire

SESSION_PARTITIONS = 10_000
NAMED_TIMES = 50_000
PRODUCED_ROWS = 20_000
_FETCH = 12
_PRODUCE = 9


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
    """Of partitions that do not exist."""

    name = "sessions of unknown partitions"
    topic = "unknown"


class KnownSessions(Sessions):
    """Of partitions that exist."""

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
