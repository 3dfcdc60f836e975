"""Does compaction reduce a topic to the newest record of each key, while it is written and read,
and at what cost?

    python bench/compaction.py [--updates 1000000] [--keys 1000] [--peer-kafka] [--json FILE]
    [--data DIR]

One producer writes the updates (idempotent, acks=all, lz4). One consumer repeatedly reads the topic
from its beginning and checks that no key returns to an older value. After the last update, a slow
producer sends a record every 5 ms until nothing more can be cleaned. Then the topic is read once
more, and each key is compared with its last update.

Figures:
- the seconds of writing
- the seconds from the last update until the topic is clean
- the remaining records and bytes
- the CPU time of the broker in both phases
- the growth of its resident memory
- the 50th and 99th percentile of produce latency during the cleaning

The brokers are measured one after the other, with the same options.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import brokers  # noqa: E402
from bench.brokers import Broker  # noqa: E402
from bench.generators import BenchError  # noqa: E402

SEGMENT_BYTES = 4 << 20
VALUE_BYTES = 40
CLEAN_SECONDS_MAX = 300
PACE_SECONDS = 0.005


@dataclass
class Outcome:
    """The figures of one broker."""

    broker: str
    updates: int
    keys: int
    write_seconds: float
    clean_seconds: float
    records_left: int
    bytes_left: int
    bytes_written: int
    cpu_seconds: float
    memory_mb: float
    produce_p50_ms: float
    produce_p99_ms: float
    passes_read: int
    """How often the consumer read the topic from its beginning."""


class Reader(threading.Thread):
    """Repeatedly reads the topic from its beginning. The value of a key must never become older."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._servers, self._topic = bootstrap, topic
        self.stopping = threading.Event()
        self.passes = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self.stopping.is_set():
            newest: dict[bytes, int] = {}
            for key, value, _size in read_all(self._servers, self._topic, self.stopping):
                number = int(value.split(b" ")[0])
                if number <= newest.get(key, -1):
                    self.wrong.append(f"{key!r} went back from {newest[key]} to {number}")
                newest[key] = number
            self.passes += 1


class Resident(threading.Thread):
    """The largest resident memory of a broker, MB."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self.stopping = threading.Event()
        self.first = self.most = broker.resident_mb() or 0.0

    def run(self) -> None:
        while not self.stopping.wait(0.05):
            self.most = max(self.most, self._broker.resident_mb() or 0.0)


def read_all(
    bootstrap: str, topic: str, stopping: threading.Event | None = None
) -> list[tuple[bytes, bytes, int]]:
    """(key, value, bytes) of every record up to the current end of the topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    found = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while stopping is None or not stopping.is_set():
            messages = consumer.consume(10_000, 0.5)
            for message in messages:
                error = message.error()
                if error is None:
                    key, value = message.key(), message.value()
                    assert isinstance(key, bytes) and isinstance(value, bytes)
                    found.append((key, value, len(key) + len(value)))
                elif error.name() == "_PARTITION_EOF":
                    return found
                else:
                    raise BenchError(f"reading {topic}: {error}")
        return found
    finally:
        consumer.close()


def prepare(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    node = ConfigResource(
        ResourceType.BROKER,
        "1",
        incremental_configs=[
            ConfigEntry(
                "log.cleaner.backoff.ms", "200", incremental_operation=AlterConfigOpType.SET
            )
        ],
    )
    admin.incremental_alter_configs([node])[node].result(30)
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": str(SEGMENT_BYTES),
        "segment.ms": "2000",
        "min.cleanable.dirty.ratio": "0.01",
        "file.delete.delay.ms": "1000",
    }
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1, config=config)])[
        topic
    ].result(30)


def write(producer: Producer, topic: str, updates: int, keys: int) -> dict[bytes, bytes]:
    dictionary = {}
    for number in range(updates):
        key = b"key-%06d" % (number * 7919 % keys)
        value = (b"%d " % number).ljust(VALUE_BYTES, b"x")
        dictionary[key] = value
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.01)
        if not number % 10_000:
            producer.poll(0)
    if producer.flush(120):
        raise BenchError("not all was acknowledged within 120 s")
    return dictionary


def wait_until_clean(
    broker: Broker, topic: str, keys: int, number: int, dictionary: dict[bytes, bytes]
) -> tuple[float, list[float]]:
    """Send records slowly, so that the last segment rolls, until the topic has few records more
    than keys. Returns (the seconds, the seconds of each produce).
    """
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
    )
    latencies: list[float] = []
    began = looked = time.monotonic()
    while time.monotonic() - began < CLEAN_SECONDS_MAX:
        key, value = b"pace", (b"%d " % number).ljust(VALUE_BYTES, b"x")
        number += 1
        dictionary[key] = value
        sent = time.monotonic()
        producer.produce(topic, value, key)
        if producer.flush(10):
            raise BenchError(f"{broker.name}: a record was not acknowledged within 10 s")
        latencies.append(time.monotonic() - sent)
        time.sleep(max(0.0, PACE_SECONDS - (time.monotonic() - sent)))
        if time.monotonic() - looked > 1:
            found = read_all(broker.bootstrap, topic)
            paced = sum(key == b"pace" for key, _value, _size in found)
            looked = time.monotonic()
            if len(found) - paced <= keys:
                return looked - began, latencies
    raise BenchError(
        f"{broker.name}: not clean after {CLEAN_SECONDS_MAX} s: {len(found)} records, {paced} "
        "of them paced"
    )


def measure(broker: Broker, updates: int, keys: int) -> Outcome:
    topic = "updates"
    prepare(broker, topic)
    reader, resident = Reader(broker.bootstrap, topic), Resident(broker)
    reader.start()
    resident.start()
    cpu = broker.cpu_seconds() or 0.0
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "batch.num.messages": 1000,
            "log_level": 0,
        }
    )
    began = time.monotonic()
    dictionary = write(producer, topic, updates, keys)
    write_seconds = time.monotonic() - began
    clean_seconds, latencies = wait_until_clean(broker, topic, keys, updates, dictionary)
    spent = (broker.cpu_seconds() or 0.0) - cpu
    reader.stopping.set()
    reader.join(30)
    resident.stopping.set()
    resident.join(5)
    if reader.wrong:
        raise BenchError(
            f"{broker.name}: {len(reader.wrong)} records went back, the first: {reader.wrong[0]}"
        )
    found = read_all(broker.bootstrap, topic)
    table = {key: value for key, value, _size in found}
    if table != dictionary:
        wrong = [key for key in dictionary if table.get(key) != dictionary[key]]
        raise BenchError(
            f"{broker.name}: {len(wrong)} keys are not what the dictionary holds, the first: "
            f"{wrong[:3]}"
        )
    latencies.sort()
    return Outcome(
        broker=broker.name,
        updates=updates,
        keys=keys,
        write_seconds=round(write_seconds, 2),
        clean_seconds=round(clean_seconds, 2),
        records_left=len(found),
        bytes_left=sum(size for _key, _value, size in found),
        bytes_written=updates * (VALUE_BYTES + 10),
        cpu_seconds=round(spent, 2),
        memory_mb=round(resident.most - resident.first, 1),
        produce_p50_ms=round(latencies[len(latencies) // 2] * 1000, 2),
        produce_p99_ms=round(latencies[len(latencies) * 99 // 100] * 1000, 2),
        passes_read=reader.passes,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument(
        "--peer-kafka",
        action="store_true",
        help="measure Apache Kafka, too, through scripts/kafka.sh",
    )
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="where data directories are made (the system's temporary directory)",
    )
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="mqd-bench-", dir=options.data))
    outcomes: list[Outcome] = []
    try:
        tested = [
            brokers.mqd(directory / "mqd"),
            *([brokers.kafka(directory / "kafka")] if options.peer_kafka else []),
        ]
        for broker in tested:
            broker.start()
            try:
                outcomes.append(measure(broker, options.updates, options.keys))
            finally:
                broker.stop()
    except (BenchError, KafkaException) as error:
        print(f"compaction: {error}", file=sys.stderr)
        return 1
    finally:
        with suppress(OSError):
            shutil.rmtree(directory)
    for name in Outcome.__dataclass_fields__:
        print(f"{name:18}", *(f"{getattr(outcome, name)!s:>14}" for outcome in outcomes))
    if options.json:
        Path(options.json).write_text(
            json.dumps([asdict(outcome) for outcome in outcomes], indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
