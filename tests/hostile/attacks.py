"""Attacks: what each connection sends in one round, again and again. Each is a small class with a name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from mqd.protocol.batch import build_batch
from mqd.testing.requests import decoded, fetch_body, frame
from tests.hostile.wire import Wire

PIPELINED = 50
SESSION_PARTITIONS = 10_000
NAMED_TIMES = 50_000
PRODUCED_ROWS = 20_000
KNOWN_TOPIC = "known"
_FETCH = 12
_PRODUCE = 9


class Attack(ABC):
    """One kind of attack. `known`: partitions of the topic `KNOWN_TOPIC`, which exists."""

    name: ClassVar[str]

    def __init__(self, known: int) -> None:
        self.known = known
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Make the bytes that every round sends."""

    @abstractmethod
    def round(self, wire: Wire) -> None:
        """Send one round and read its answers."""


class Sessions(Attack):
    """A fetch session of many partitions, and many incremental fetches of 50 bytes behind it, sent at once."""

    topic: ClassVar[str]

    @property
    def partitions(self) -> int:
        return SESSION_PARTITIONS

    def prepare(self) -> None:
        self.first = frame("fetch", _FETCH, fetch_body(self.topic, list(range(self.partitions)), session_epoch=0))

    def round(self, wire: Wire) -> None:
        wire.send(self.first)
        session_id = decoded("fetch", _FETCH, wire.receive()).session_id or 1
        epochs = range(1, 1 + PIPELINED)
        wire.send(b"".join(frame("fetch", _FETCH, fetch_body("", [], session_id=session_id, session_epoch=epoch)) for epoch in epochs))
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

    def prepare(self) -> None:
        self.bytes = frame("fetch", 4, fetch_body(KNOWN_TOPIC, [0] * NAMED_TIMES))

    def round(self, wire: Wire) -> None:
        wire.send(self.bytes)
        wire.receive()


class ManyBatches(Attack):
    """Produce requests of many small batches."""

    name = "produce of 20,000 batches"

    def prepare(self) -> None:
        batch = bytes(build_batch([(None, b"x")], timestamp=1_700_000_000_000))
        rows = [{"index": number % self.known, "records": batch} for number in range(PRODUCED_ROWS)]
        body = {"acks": 1, "timeout_ms": 10_000, "topic_data": [{"name": KNOWN_TOPIC, "partition_data": rows}]}
        self.bytes = frame("produce", _PRODUCE, body)

    def round(self, wire: Wire) -> None:
        wire.send(self.bytes)
        wire.receive()


ATTACKS: dict[str, type[Attack]] = {kind.name: kind for kind in (UnknownSessions, KnownSessions, OnePartition, ManyBatches)}
