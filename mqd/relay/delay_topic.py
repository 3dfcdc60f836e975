"""The configs of a topic that make it a delay topic or a retry topic. Pure.

mqd.delay.target    the topic that gets the records when they are due
mqd.delay.replace   whether a later record of a key replaces pending earlier ones
mqd.retry.backoff   makes it a retry topic: the delay of each attempt, such as 1s,10s,1m
mqd.message.ttl.ms  records expire so long after their time stamp; 0: only their mqd-ttl counts
mqd.dlq.topic       gets records that are not relayed to the target
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mqd.relay.delay_headers import DelayOptions

TARGET: Final = "mqd.delay.target"
REPLACE: Final = "mqd.delay.replace"
BACKOFF: Final = "mqd.retry.backoff"
TTL: Final = "mqd.message.ttl.ms"
DEAD_LETTERS: Final = "mqd.dlq.topic"
BACKOFFS_MAX: Final = 32
_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_DELAY_MS_MAX: Final = 3660 * 86_400_000


def parse_backoff(text: str) -> tuple[int, ...]:
    """The delays in milliseconds of `1s,10s,1m`. Empty for an empty text. Raises ValueError."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if len(parts) > BACKOFFS_MAX:
        raise ValueError(f"it has {len(parts)} delays, and at most {BACKOFFS_MAX} are allowed")
    delays = []
    for part in parts:
        found = _PART.fullmatch(part)
        if found is None:
            raise ValueError(f"{part!r} is not a delay such as 500ms, 10s, 5m, 2h or 1d")
        delays.append(int(found[1]) * _UNITS[found[2]])
    if any(delay > _DELAY_MS_MAX for delay in delays):
        raise ValueError("a delay is longer than 10 years")
    return tuple(delays)


@dataclass(frozen=True, slots=True)
class DelayTopic:
    """One delay topic."""

    target: str
    replaces: bool = False
    dead_letters: str = ""
    """Empty: there is no topic for them."""
    times: DelayOptions = field(default_factory=DelayOptions)

    @property
    def is_retry(self) -> bool:
        return bool(self.times.retry_backoff_ms)

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> DelayTopic | None:
        """From the overrides of a topic, which were validated. None if it is no delay topic."""
        target = configs.get(TARGET, "").strip()
        if not target:
            return None
        ttl = int(configs.get(TTL, "-1"))
        return cls(
            target,
            configs.get(REPLACE, "false").strip().lower() == "true",
            configs.get(DEAD_LETTERS, "").strip(),
            DelayOptions(None if ttl < 1 else ttl, parse_backoff(configs.get(BACKOFF, ""))),
        )
