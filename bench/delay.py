"""How late do the due records of a delay topic leave while ten million others are pending, what
memory do these need, and how long does a restart take?

    python -m bench.delay [--pending 10000000] [--rate 60] [--seconds 30] [--keep DIR]

A node gets a delay topic of one partition with so many records, due within 30 days. The records
that are due in this run are spread over 100,000 others, and are in files of the timer index. The
figures:

- the seconds to produce the pending records, and then until the node has all of them in its index
- lateness: the time from when a record is due to its arrival at a `read_committed` consumer of the
  target, with `--rate` records/s due, at random times, for `--seconds`
- the resident memory of the node before and after
- restart: a record is due while the node is down. The time from the start of the process until the
  consumer has the record
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from bench import brokers, floors
from bench.brokers import Broker
from bench.generators import BenchError
from bench.queues import PRODUCE, Connection, make_topic
from mqd.client import sync
from mqd.delay_names import DELIVER_AT, DUE, TARGET_CONFIG
from mqd.errors import ProtocolError
from mqd.protocol.batch import iterate_batches
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.record_reader import Record, iterate_records

FETCH: Final = 1
SOURCE, TARGET = "bench.delay", "bench.due"
GOAL_MS: Final = 100
"""The most that the lateness may be at p99."""
MONTH_MS: Final = 30 * 24 * 3_600_000
BATCH: Final = 1_000
BATCHES: Final = 100
"""Different batches of pending records, which are sent again and again."""
IN_FLIGHT: Final = 4
SPREAD: Final = 100_000
"""The due records are spread over so many others. As many are sent after them, so that they are in
files."""
BEFORE_SECONDS: Final = 15.0
"""From the production of the due records until the first one is due."""
INDEXED_SECONDS_MAX: Final = 1_800.0
RESTART_SECONDS_MAX: Final = 600.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def record(due_ms: int, number: int) -> Record:
    key = number.to_bytes(8, "big")
    return Record(0, now_ms(), key, b"value", [(DELIVER_AT, b"%d" % due_ms)])


def send(broker: Broker, batches: Iterator[bytes]) -> None:
    """Produce these batches to the delay topic, several requests in flight."""
    errors: list[object] = []
    lock = threading.Lock()

    def produce(connection: Connection) -> None:
        while not errors:
            with lock:
                batch = next(batches, None)
            if batch is None:
                return
            row = {"index": 0, "records": batch}
            data = [{"name": SOURCE, "partition_data": [row]}]
            body = {"acks": -1, "timeout_ms": 30_000, "topic_data": data}
            response = connection.request(PRODUCE, 9, body)
            code = response.responses[0].partition_responses[0].error_code
            if code:
                errors.append(f"error {code}")

    def work() -> None:
        try:
            with closing(Connection(broker.address)) as connection:
                produce(connection)
        except (OSError, ProtocolError) as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(IN_FLIGHT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise BenchError(f"{broker.name} does not accept records: {errors[0]}")


class Reader:
    """Reads the target as a `read_committed` consumer: (arrival, due time), in milliseconds."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._connection = Connection(broker.address)
        self._offset = 0

    def fetch(self, wait_ms: int) -> list[tuple[float, int]]:
        row = {
            "partition": 0,
            "fetch_offset": self._offset,
            "partition_max_bytes": 1 << 20,
        }
        body = {
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "isolation_level": 1,
            "topics": [{"topic": TARGET, "partitions": [row]}],
        }
        response = self._connection.request(FETCH, 12, body)
        arrival = time.time_ns() / 1e6
        [partition] = response.responses[0].partitions
        if partition.error_code:
            raise BenchError(f"fetch of {TARGET}: error {partition.error_code}")
        found = []
        view = memoryview(partition.records or b"")
        for start, _, header in iterate_batches(view):
            self._offset = header.next_offset
            if not header.is_control:
                for one in iterate_records(view, start, header=header):
                    found.append((arrival, int(dict(one.headers)[DUE] or b"0")))
        return found

    def until(self, count: int, deadline: float) -> list[tuple[float, int]]:
        """The next `count` records."""
        found: list[tuple[float, int]] = []
        while len(found) < count:
            if time.monotonic() > deadline:
                raise BenchError(f"{len(found)} of {count} records arrived")
            found += self.fetch(500)
        return found

    def reconnect(self) -> bool:
        """Whether the node accepts connections and serves the target."""
        self._connection.close()
        try:
            self._connection = Connection(self._broker.address)
            self.fetch(0)
        except (OSError, BenchError, IndexError):
            return False
        return True

    def close(self) -> None:
        self._connection.close()


def pending_batches(count: int) -> Iterator[bytes]:
    """So many records that are due within 30 days, but not within this run."""
    chance = random.Random(1)
    number, begin = 0, now_ms() + 3_600_000
    made: list[bytes] = []
    for index in range((count + BATCH - 1) // BATCH):
        if len(made) < BATCHES:
            records = []
            for _ in range(BATCH):
                records.append(record(begin + chance.randrange(MONTH_MS), number))
                number += 1
            made.append(bytes(build_batch(records)))
        yield made[index % len(made)]


def due_batches(count: int, seconds: float) -> Iterator[bytes]:
    """`count` records are due in this run, the others within 30 days."""
    chance = random.Random(2)
    begin = now_ms() + round(BEFORE_SECONDS * 1000)
    due = frozenset(chance.sample(range(SPREAD), count))
    for first in range(0, SPREAD, BATCH):
        records = []
        for number in range(first, first + BATCH):
            after = round(seconds * 1000) if number in due else MONTH_MS
            least = 0 if number in due else 3_600_000
            records.append(record(begin + least + chance.randrange(after), number))
        yield bytes(build_batch(records))


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def prepare(broker: Broker) -> None:
    make_topic(broker, TARGET, 1)
    with sync.connect(broker.bootstrap, timeout_s=60.0) as client:
        configs = {TARGET_CONFIG: TARGET, "retention.ms": "-1"}
        client.admin.create_topic(SOURCE, 1, 1, configs)


def measure(broker: Broker, pending: int, rate: float, seconds: float) -> None:
    prepare(broker)
    reader = Reader(broker)
    send(broker, iter([bytes(build_batch([record(now_ms(), 0)]))]))
    reader.until(1, time.monotonic() + 60.0)
    empty_mb = broker.resident_mb() or 0.0
    cpu, began = broker.cpu_seconds() or 0.0, time.monotonic()
    send(broker, pending_batches(max(pending - 2 * SPREAD, 0)))
    produced = time.monotonic() - began
    send(broker, iter([bytes(build_batch([record(now_ms(), 0)]))]))
    reader.until(1, time.monotonic() + INDEXED_SECONDS_MAX)
    indexed, used = time.monotonic() - began, (broker.cpu_seconds() or 0.0) - cpu
    print(
        f"pending: {pending:,} records; produced in {produced:.1f} s, all in the index after "
        f"{indexed:.1f} s, with {used:.1f} s of processor time",
        flush=True,
    )
    count = round(rate * seconds)
    send(broker, due_batches(count, seconds))
    send(broker, pending_batches(SPREAD))
    cpu = broker.cpu_seconds() or 0.0
    arrived = reader.until(count, time.monotonic() + BEFORE_SECONDS + seconds + 60.0)
    used = (broker.cpu_seconds() or 0.0) - cpu
    late = [arrival - due for arrival, due in arrived]
    p50, p99 = percentile(late, 0.5), percentile(late, 0.99)
    print(
        f"lateness: {count:,} records due within {seconds:g} s: p50 {p50:.1f} ms, p99 {p99:.1f} ms "
        f"(goal {GOAL_MS}), max {max(late):.1f} ms; earliest {min(late):.1f} ms; "
        f"{used / count * 1000:.2f} ms of processor time for each",
        flush=True,
    )
    loaded_mb = broker.resident_mb() or 0.0
    print(f"memory: {empty_mb:,.0f} MB before, {loaded_mb:,.0f} MB now", flush=True)
    send(broker, iter([bytes(build_batch([record(now_ms() + 2_000, 0)]))]))
    broker.stop()
    time.sleep(3.0)
    responded, started_at = broker.start()
    deadline = time.monotonic() + RESTART_SECONDS_MAX
    while not reader.reconnect():
        if time.monotonic() > deadline:
            raise BenchError("the node does not serve the target after its restart")
        time.sleep(0.01)
    reader.until(1, deadline)
    relayed = time.monotonic() - started_at
    print(
        f"restart: responds after {responded:.2f} s, first due record relayed after "
        f"{relayed:.2f} s, {broker.resident_mb() or 0.0:,.0f} MB",
        flush=True,
    )
    reader.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, measure, print the results."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.delay", description="delay topics: lateness, memory, restart"
    )
    parser.add_argument(
        "--pending", type=int, default=10_000_000, help="records (10000000), at least 200000"
    )
    parser.add_argument("--rate", type=float, default=60.0, help="records due per second (60)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of due records (30)")
    parser.add_argument("--keep", type=Path, help="the directory of the data, which is not deleted")
    options = parser.parse_args(arguments)
    if options.pending < 2 * SPREAD or options.rate * options.seconds > SPREAD:
        parser.error(f"--pending is less than {2 * SPREAD}, or more than {SPREAD} records are due")
    directory = options.keep or Path(tempfile.mkdtemp(prefix="delay-"))
    broker = brokers.mqd(directory / "mqd")
    try:
        broker.start()
        print("\n".join(f"{key}: {value}" for key, value in floors.machine(directory).items()))
        measure(broker, options.pending, options.rate, options.seconds)
    except BenchError as error:
        print(f"delay: {error}", file=sys.stderr)
        return 1
    finally:
        broker.stop()
        if options.keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
