"""Reads a copy, up to the end offsets of an isolation level."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import confluent_kafka

from .copy_checker import Copy
from .copy_worker import COPY
from .history import Key
from .workload import READ_TIMEOUT_S, TrialFailed


def read_copy(
    bootstrap: str, keys: list[Key], isolation: str, options: Mapping[str, Any]
) -> tuple[dict[Key, Copy], dict[Key, int]]:
    """Returns every record of a copy below the end offsets of this isolation level, and these
    offsets. `options`: the security of the client. Raises TrialFailed.
    """
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "chaos",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    settings |= {
        "auto.offset.reset": "error",
        "check.crcs": True,
        "isolation.level": isolation,
        "enable.partition.eof": True,
    }
    consumer = confluent_kafka.Consumer(settings | dict(options))
    copies, ends = {key: Copy() for key in keys}, dict.fromkeys(keys, -1)
    try:
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, partition, 0) for topic, partition in keys]
        )
        deadline = time.monotonic() + READ_TIMEOUT_S
        while min(ends.values()) < 0:
            message: Any
            for message in consumer.consume(10_000, 0.5):
                deadline = time.monotonic() + READ_TIMEOUT_S
                key, error = (message.topic(), message.partition()), message.error()
                if error is None:
                    copies[key].add_copy(message.offset(), *COPY.unpack_from(message.value()))
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ends[key] = message.offset()
                else:
                    raise TrialFailed(f"reading {key} back: {error}")
            if time.monotonic() > deadline:
                raise TrialFailed(f"no record for {READ_TIMEOUT_S:.0f} s; ends so far {ends}")
        return copies, ends
    finally:
        consumer.close()
