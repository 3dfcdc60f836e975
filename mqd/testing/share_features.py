"""What the share groups of one run have beside KIP-932: dead letters, back-off and TTL. Drawn from
the seed.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mqd.back_off import parse_back_off, step_after
from mqd.delay_names import DEAD_LETTERS_CONFIG, TTL, TTL_CONFIG
from mqd.protocol.record_reader import Record
from mqd.resource_configs import GROUP_DEAD_LETTERS, RETRY_BACK_OFF

LETTERS = "letters"
"""The topic of the dead letters of all groups."""
LETTER_PARTITIONS = 2
HEADER_TTLS_MS = (100, 1000)
"""The TTLs of single records."""
TTL_SHARE = 0.3
"""The part of the records of one producer that have a TTL of their own."""
DELAYS_MS = (50, 400, 1500)
"""The delays of releases that name one."""
_BACK_OFFS = ("", "", "100ms,600ms")
_TTLS_MS = (None, None, None, 0, 1500)


@dataclass(frozen=True, slots=True)
class ShareFeatures:
    """The features of all groups of one run."""

    letters: str = ""
    """Whose config names the topic of the dead letters: "group", "topic", or "" for no letters."""
    copies: bool = True
    """Whether the letters of a group have key, value and headers of the record."""
    back_off: str = ""
    """`mqd.share.retry.backoff`"""
    ttl_ms: int | None = None
    """`mqd.message.ttl.ms` of all topics. None: no record expires. 0: only headers count."""

    @classmethod
    def draw(cls, chance: random.Random) -> ShareFeatures:
        return cls(
            chance.choice(["", "", "group", "topic"]),
            chance.random() < 0.7,
            chance.choice(_BACK_OFFS),
            chance.choice(_TTLS_MS),
        )

    @property
    def has_copies(self) -> bool:
        """Letters that the config of a topic asks for are always complete."""
        return self.copies or self.letters == "topic"

    def group_configs(self) -> dict[str, str]:
        configs = {RETRY_BACK_OFF: self.back_off} if self.back_off else {}
        if self.letters == "group":
            configs[GROUP_DEAD_LETTERS] = LETTERS
            configs["errors.deadletterqueue.copy.record.enable"] = str(self.copies).lower()
        return configs

    def topic_configs(self) -> dict[str, str]:
        configs = {DEAD_LETTERS_CONFIG: LETTERS} if self.letters == "topic" else {}
        if self.ttl_ms is not None:
            configs[TTL_CONFIG] = str(self.ttl_ms)
        return configs

    def delay_after(self, delivery_count: int) -> int:
        """The ms between a release that names no delay and the next delivery."""
        return step_after(parse_back_off(self.back_off), delivery_count)

    def expires_ms(self, record: Record) -> int | None:
        """The wall time at which the record expires; None: never."""
        if self.ttl_ms is None:
            return None
        own = dict(record.headers).get(TTL)
        lifetimes = [] if own is None else [int(own)]
        if self.ttl_ms:
            lifetimes.append(self.ttl_ms)
        return record.timestamp + min(lifetimes) if lifetimes else None

    def expired(self, records: Mapping[int, Record], wall_ms: int) -> Collection[int]:
        """The offsets of the records that may have expired by this wall time."""
        return {
            offset
            for offset, record in records.items()
            if (at := self.expires_ms(record)) is not None and at <= wall_ms
        }
