"""Attacks that make the node hold resources: bytes of incomplete requests, responses that the
client does not read, connections.
"""

from __future__ import annotations

import random
import struct
import time

from mqd.limits import KIB, MIB
from mqd.protocol.batch_builder import build_batch
from mqd.testing.requests import fetch_body, frame
from tests.hostile.attack import KNOWN_TOPIC, PIPELINED, Attack
from tests.hostile.wire import Wire

HALF_FRAME_BYTES = 90 * MIB
SMALL_FRAME_BYTES = 2 * MIB - 4
DRIP_SECONDS = 0.2
ANSWER_PARTITIONS = 50
ANSWER_PARTITION_BYTES = 30 * KIB
"""Small enough that the node copies them; larger ones are sent from the file to the socket."""
UNREAD_SECONDS = 0.05
OPENED_AT_ONCE = 20
STRANGER_FRAME_BYTES = 1000


class HalfFrames(Attack):
    """Each connection announces a large frame, sends half of it, and waits."""

    name = "half of a frame of 90 MiB"
    good_bytes = 600_000

    def prepare(self) -> None:
        self.bytes = struct.pack(">i", HALF_FRAME_BYTES) + bytes(HALF_FRAME_BYTES // 2)

    def round(self, wire: Wire) -> None:
        wire.send(self.bytes)
        wire.receive()


class SmallHalfFrames(Attack):
    """Each thread has three connections. Each sends a frame of 2 MB without its end, and then an
    occasional byte. It reconnects when the node closes one.
    """

    name = "most of a frame of 2 MB, then single bytes"
    good_bytes = 600_000

    def prepare(self) -> None:
        self.bytes = struct.pack(">i", SMALL_FRAME_BYTES) + bytes(SMALL_FRAME_BYTES - 20_000)

    def round(self, wire: Wire) -> None:
        opened = [wire]
        try:
            for _ in range(2):
                opened.append(Wire(wire.port))
            for one in opened:
                one.send(self.bytes)
            while True:
                time.sleep(DRIP_SECONDS)
                for one in opened:
                    one.send(bytes(1))
        finally:
            for one in opened[1:]:
                one.close()


class SlowReaders(Attack):
    """Fetches whose responses of 1.5 MB are never read."""

    name = "answers of 1.5 MB that nobody reads"

    def prepare(self) -> None:
        partitions = list(range(min(self.known, ANSWER_PARTITIONS)))
        batch = bytes(
            build_batch([(None, bytes(ANSWER_PARTITION_BYTES))], timestamp=1_700_000_000_000)
        )
        rows = [{"index": index, "records": batch} for index in partitions]
        body = {
            "acks": 1,
            "timeout_ms": 10_000,
            "topic_data": [{"name": KNOWN_TOPIC, "partition_data": rows}],
        }
        self.first = frame("produce", 9, body)
        self.fetch = frame("fetch", 12, fetch_body(KNOWN_TOPIC, partitions, max_bytes=4 * MIB))

    def round(self, wire: Wire) -> None:
        wire.send(self.first)
        wire.receive()
        wire.send(self.fetch * PIPELINED)
        while True:
            time.sleep(UNREAD_SECONDS)
            wire.send(self.fetch)


class Connections(Attack):
    """Connections to the client port that begin a request, and are closed."""

    name = "connections"

    def prepare(self) -> None:
        self.bytes = struct.pack(">i", 100)

    def round(self, wire: Wire) -> None:
        opened: list[Wire] = []
        try:
            for _ in range(OPENED_AT_ONCE):
                opened.append(Wire(wire.port))
                opened[-1].send(self.bytes)
        finally:
            for one in opened:
                one.close()


class Strangers(Attack):
    """Connections to the peer port that send oversized frames, incomplete frames and random
    bytes.
    """

    name = "junk on the peer port"
    on_peer_port = True

    def prepare(self) -> None:
        junk = random.Random(1).randbytes(STRANGER_FRAME_BYTES)
        self.sent = [
            struct.pack(">i", len(junk)) + junk,
            struct.pack(">i", len(junk)) + junk[: len(junk) // 2],
            struct.pack(">i", HALF_FRAME_BYTES) + junk,
            struct.pack(">i", -1),
            frame("api_versions", 3, {}),
        ]

    def round(self, wire: Wire) -> None:
        opened: list[Wire] = []
        try:
            for number in range(OPENED_AT_ONCE):
                opened.append(Wire(wire.port))
                opened[-1].send(self.sent[number % len(self.sent)])
        finally:
            for one in opened:
                one.close()
