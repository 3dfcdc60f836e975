"""Produces or consumes with librdkafka, through confluent-kafka.

    client_load.py produce|consume HOST:PORT TOPIC MESSAGES VALUE_BYTES ACKS [CLIENT_PROPERTIES]

Uses `produce_batch` and `consume` with whole batches, so that Python's share of the time is small.
Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

BATCH_MESSAGES = 10_000
WAIT_SECONDS = 30


Options = dict[str, Any]


def produce(
    address: str, topic: str, messages: int, value_bytes: int, acks: int, security: Options
) -> float:
    """Seconds from the first message to the last acknowledgement."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "acks": acks,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
        }
        | security
    )
    value = bytes(ord("a") + i % 26 for i in range(value_bytes))
    batch: list[dict[str, Any]] = [{"value": value}] * BATCH_MESSAGES
    producer.list_topics(topic, timeout=WAIT_SECONDS)
    start = time.perf_counter()
    left = messages
    while left:
        while len(producer) > 500_000:
            producer.poll(0.001)
        producer.produce_batch(topic, batch[:left], partition=0)
        left -= min(left, BATCH_MESSAGES)
        producer.poll(0)
    if producer.flush(WAIT_SECONDS):
        raise SystemExit(f"{len(producer)} messages were not acknowledged within {WAIT_SECONDS} s")
    return time.perf_counter() - start


def consume(address: str, topic: str, messages: int, security: Options) -> float:
    """Seconds from the first message to the last."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.max.bytes": 52_428_800,
            "max.partition.fetch.bytes": 10_485_760,
            "queued.max.messages.kbytes": 200_000,
            "queued.min.messages": 1_000_000,
        }
        | security
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen = 0
    start = 0.0
    while seen < messages:
        got = len(consumer.consume(BATCH_MESSAGES, WAIT_SECONDS if not seen else 5))
        if not got:
            raise SystemExit(f"no message for a long time after {seen} of {messages}")
        seen += got
        start = start or time.perf_counter()
    elapsed = time.perf_counter() - start
    consumer.close()
    return elapsed


def main() -> None:
    role, address, topic, messages, value_bytes = (
        sys.argv[1],
        sys.argv[2],
        sys.argv[3],
        int(sys.argv[4]),
        int(sys.argv[5]),
    )
    security: Options = {}
    if len(sys.argv) > 7:
        from chaos.client_security import librdkafka_options, load

        security = librdkafka_options(load(Path(sys.argv[7])))
    seconds = (
        produce(address, topic, messages, value_bytes, int(sys.argv[6]), security)
        if role == "produce"
        else consume(address, topic, messages, security)
    )
    print(json.dumps({"records": messages, "bytes": messages * value_bytes, "seconds": seconds}))


if __name__ == "__main__":
    main()
