"""How much does a lookup by key read, and how long does it take, with key filters and without?

    python bench/lookup.py [--gigabytes 5] [--value-bytes 1000] [--segment-mib 256] [--lookups 20]
    [--codec none] [--json FILE] [--data DIR]

Two topics of one partition get the same records: one with `mqd.key.index=true`, one without. Each
key occurs once, at random places, but for one key in a hundred, which occurs again and again. The
figures of each topic:
- the seconds of producing, with the filters built beside
- the seconds from the last record until all filters are built, their number and bytes
- for keys that exist, and for keys that do not: the bytes and segments that a lookup reads, the
  processor time of the broker, and the median and largest time

The log is in the page cache if the memory holds it: then the time is that of the processor.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from confluent_kafka import Producer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import brokers  # noqa: E402
from bench.brokers import Broker  # noqa: E402
from mqd.client import sync  # noqa: E402

REPEATED_KEYS = 100
FILTERS_SECONDS_MAX = 1800


@dataclass
class Outcome:
    """The figures of one topic."""

    topic: str
    produce_seconds: float = 0.0
    filter_seconds: float = 0.0
    filters: int = 0
    filter_bytes: int = 0
    log_bytes: int = 0
    lookups: dict[str, dict[str, float]] = field(default_factory=dict)


def key_of(number: int) -> bytes:
    """One record in a hundred has one of a few keys."""
    if number % 100 == 0:
        return b"repeated-%d" % (number // 100 % REPEATED_KEYS)
    return b"customer-%012d" % number


def produce(bootstrap: str, topic: str, records: int, args: argparse.Namespace) -> None:
    chance = random.Random(1)
    filler = chance.randbytes(1 << 20)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 20,
            "batch.size": 500_000,
            "compression.type": args.codec,
            "queue.buffering.max.messages": 200_000,
        }
    )
    for number in range(records):
        at = chance.randrange(len(filler) - args.value_bytes)
        value = filler[at : at + args.value_bytes]
        while True:
            try:
                producer.produce(topic, value, key_of(number), partition=0)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(600.0):
        raise SystemExit("records were not acknowledged")


def files_of(data: Path, topic: str, suffix: str) -> list[Path]:
    return list(data.rglob(f"{topic}-0/*{suffix}"))


def wait_for_filters(data: Path, topic: str) -> float:
    """Seconds until each full segment has its filter."""
    began = time.monotonic()
    while time.monotonic() - began < FILTERS_SECONDS_MAX:
        full = len(files_of(data, topic, ".log")) - 1
        if len(files_of(data, topic, ".keyfilter")) >= full:
            return time.monotonic() - began
        time.sleep(0.1)
    raise SystemExit("the key filters are not built in time")


def look_up(
    client: sync.BlockingClient, broker: Broker, topic: str, keys: list[bytes], expected: int
) -> dict[str, float]:
    seconds, scanned, segments = [], [], []
    cpu_before = broker.cpu_seconds() or 0.0
    for key in keys:
        began = time.perf_counter()
        finding = client.find(topic, key, partition=0, timeout_s=300.0)
        found = sum(1 for _ in finding)
        seconds.append(time.perf_counter() - began)
        assert found == expected, (key, found)
        scanned.append(finding.scanned_bytes)
        segments.append(finding.segments_read)
    return {
        "cpu_seconds": ((broker.cpu_seconds() or 0.0) - cpu_before) / len(keys),
        "seconds_median": statistics.median(seconds),
        "seconds_max": max(seconds),
        "mib_read": statistics.mean(scanned) / (1 << 20),
        "segments_read": statistics.mean(segments),
    }


def measure(
    client: sync.BlockingClient,
    broker: Broker,
    data: Path,
    args: argparse.Namespace,
    *,
    indexed: bool,
) -> Outcome:
    outcome = Outcome("indexed" if indexed else "plain")
    topic = outcome.topic
    configs = {"segment.bytes": str(args.segment_mib << 20), "retention.ms": "-1"}
    client.admin.create_topic(
        topic, 1, 1, {**configs, "mqd.key.index": "true"} if indexed else configs
    )
    records = int(args.gigabytes * (1 << 30)) // (args.value_bytes + 40)
    began = time.monotonic()
    produce(broker.bootstrap, topic, records, args)
    outcome.produce_seconds = time.monotonic() - began
    if indexed:
        outcome.filter_seconds = wait_for_filters(data, topic)
        filters = files_of(data, topic, ".keyfilter")
        outcome.filters = len(filters)
        outcome.filter_bytes = sum(one.stat().st_size for one in filters)
    outcome.log_bytes = sum(one.stat().st_size for one in files_of(data, topic, ".log"))
    chance = random.Random(2)
    count = args.lookups if indexed else max(1, args.lookups // 5)
    existing: list[bytes] = []
    while len(existing) < count:
        number = chance.randrange(records)
        if number % 100:
            existing.append(key_of(number))
    absent = [b"absent-%d" % number for number in range(count)]
    outcome.lookups["existing"] = look_up(client, broker, topic, existing, 1)
    outcome.lookups["absent"] = look_up(client, broker, topic, absent, 0)
    return outcome


def show(outcome: Outcome) -> None:
    print(
        f"{outcome.topic}: {outcome.log_bytes / (1 << 30):.2f} GiB produced in "
        f"{outcome.produce_seconds:.1f} s; {outcome.filters} filters of "
        f"{outcome.filter_bytes / (1 << 20):.1f} MiB, {outcome.filter_seconds:.1f} s later"
    )
    for kind, figures in outcome.lookups.items():
        print(
            f"  a key that is {kind}: {figures['seconds_median'] * 1000:.1f} ms (max "
            f"{figures['seconds_max'] * 1000:.1f}), {figures['cpu_seconds'] * 1000:.1f} ms of the "
            f"broker's processor, {figures['mib_read']:.1f} MiB of "
            f"{figures['segments_read']:.1f} segments"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--segment-mib", type=int, default=256)
    parser.add_argument("--lookups", type=int, default=20)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--data", type=Path)
    args = parser.parse_args()
    data = args.data or Path(tempfile.mkdtemp(prefix="lookup-"))
    broker = brokers.mqd(data)
    broker.start()
    try:
        with sync.connect(broker.bootstrap, timeout_s=60.0) as client:
            outcomes = []
            for indexed in (True, False):
                outcomes.append(measure(client, broker, data, args, indexed=indexed))
                show(outcomes[-1])
    finally:
        broker.stop()
        if args.data is None:
            shutil.rmtree(data, ignore_errors=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=2) + "\n")


if __name__ == "__main__":
    main()
