"""Attacks on the relays of delay topics: small batches that cost a relay much time or memory."""

from __future__ import annotations

import time
from functools import cache
from typing import ClassVar

from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record
from tests.hostile.attack import KNOWN_TOPIC
from tests.hostile.costly import EXPANDED_BYTES, Expanding
from tests.hostile.wire import Wire

SCHEDULES = 20_000
TOMBSTONES = 50_000
DUE = 50
_READY_SECONDS = 0.1


class _Delayed(Expanding):
    """Batches in a delay topic of the attacker."""

    configs: ClassVar[dict[str, str]] = {"mqd.delay.target": KNOWN_TOPIC}
    begins_within_seconds = 3.0
    records: bytes

    def round(self, wire: Wire) -> None:
        if self.produce(wire, self.records):
            self.create(wire)
            time.sleep(_READY_SECONDS)


class DelayedZeros(_Delayed):
    """Batches of 100 KB that expand to 96 MiB."""

    name = "delayed batches that expand to 96 MiB"
    topic = "delayed-zeros"

    def prepare(self) -> None:
        super().prepare()
        self.records = self.batch(EXPANDED_BYTES)


class Schedules(_Delayed):
    """Schedules whose next time is far away, each with another expression."""

    name = "20,000 schedules in a batch"
    topic = "schedules"

    def prepare(self) -> None:
        super().prepare()
        self.records = _schedules()


class Tombstones(_Delayed):
    """Due records, and tombstones of their key that cancel other records."""

    name = "50,000 tombstones that cancel nothing"
    topic = "tombstones"

    def prepare(self) -> None:
        super().prepare()
        self.records = _tombstones()


@cache
def _schedules() -> bytes:
    """Also for the search for tombstones after a restart."""
    rows = []
    for number in range(SCHEDULES):
        schedule = b"%d %d 29 2 1" % (number % 60, number // 60 % 24)
        headers = [("mqd-cron", schedule), ("mqd-cron-since", b"0")]
        rows.append(Record(0, 0, b"%d" % (number % 7), b"v", headers))
    return bytes(build_batch(rows, codec=Codec.ZSTD))


@cache
def _tombstones() -> bytes:
    headers = [("mqd-cancels", b"999999999999")]
    rows = [Record(0, 0, b"K", b"v")] * DUE + [Record(0, 0, b"K", None, headers)] * TOMBSTONES
    return bytes(build_batch(rows, codec=Codec.ZSTD))
