"""The configs of a topic that make it a delay topic or a retry topic. Pure.

mqd.delay.target    the topic that gets the records when they are due
mqd.delay.replace   whether a later record of a key replaces pending earlier ones
mqd.retry.backoff   makes it a retry topic: the delay of each attempt, such as 1s,10s,1m
mqd.message.ttl.ms  records expire so long after their time stamp; 0: only their mqd-ttl counts
mqd.dlq.topic       gets records that are not relayed to the target
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mqd.back_off import parse_back_off
from mqd.delay_names import (
    BACKOFF_CONFIG,
    DEAD_LETTERS_CONFIG,
    REPLACE_CONFIG,
    TARGET_CONFIG,
    TTL_CONFIG,
)
from mqd.relay.delay_headers import DelayOptions


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
        target = configs.get(TARGET_CONFIG, "").strip()
        if not target:
            return None
        ttl = int(configs.get(TTL_CONFIG, "-1"))
        return cls(
            target,
            configs.get(REPLACE_CONFIG, "false").strip().lower() == "true",
            configs.get(DEAD_LETTERS_CONFIG, "").strip(),
            DelayOptions(None if ttl < 1 else ttl, parse_back_off(configs.get(BACKOFF_CONFIG, ""))),
        )
