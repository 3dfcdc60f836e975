"""Kafka's `log.cleaner.*` options. A core."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mqd.config import NodeConfig
from mqd.limits import CLEANER_BUFFER_BYTES_MIN


@dataclass(frozen=True, slots=True)
class CompactorOptions:
    """See the head of this file."""

    enabled: bool = True
    backoff_ms: int = 15_000
    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 << 10
    bytes_per_second: float = math.inf

    @classmethod
    def from_config(cls, config: NodeConfig) -> CompactorOptions:
        return cls(
            enabled=config.boolean("log.cleaner.enable"),
            backoff_ms=config.integer("log.cleaner.backoff.ms"),
            dedupe_buffer_bytes=max(
                config.integer("log.cleaner.dedupe.buffer.size"), CLEANER_BUFFER_BYTES_MIN
            ),
            load_factor=min(max(config.number("log.cleaner.io.buffer.load.factor"), 0.01), 1.0),
            io_buffer_bytes=config.integer("log.cleaner.io.buffer.size"),
            bytes_per_second=config.number("log.cleaner.io.max.bytes.per.second"),
        )
