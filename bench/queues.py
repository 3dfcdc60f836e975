"""How fast do share groups deliver records with explicit acknowledgement, and what do records in
flight cost?

    python -m bench.queues [--peer-kafka] [--records 100000] [--rounds 3] [--only rate|memory]

Members of one share group read one partition of records with 100 bytes: 1, 4 and 32 members, each
with a connection of its own. Each ShareFetch accepts the records of the one before, and acquires up
to 500. The same raw requests go to both brokers, in turn. Reported: records/s until all are
accepted, and the processor time of the broker for each record, which other processes on the machine
change less.

memory: 1,000,000 records in 100 partitions are acquired and not acknowledged. Reported: how much
the resident memory of the broker grows.

bench/delay.py measures delay topics, bench/lookup.py lookups by key.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from confluent_kafka.admin import AdminClient, NewTopic

from bench import brokers, floors
from bench.brokers import Broker, request
from bench.generators import BenchError
from mqd.protocol.apis import by_key
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.schema import Api, decode_response_header, encode_request_header

METADATA, PRODUCE, ALTER_CONFIGS, HEARTBEAT, SHARE_FETCH = 3, 0, 44, 76, 78
DESCRIBE_CONFIGS = 32
GROUP = 32
"""The type of a resource of configs."""
FIND_COORDINATOR = 10
MEMBERS = (1, 4, 32)
GOAL = 1.0
"""The minimum ratio to the peer's records/s."""
VALUE = b"v" * 100
BATCH = 500
FETCH_RECORDS = 500
IN_FLIGHT, IN_FLIGHT_PARTITIONS = 1_000_000, 100
LOCKS = 10_000
OPTIONS = (
    f"group.share.max.partition.max.record.locks={LOCKS}",
    f"group.share.partition.max.record.locks={LOCKS}",
    "group.share.max.record.lock.duration.ms=3600000",
    "group.share.record.lock.duration.ms=3600000",
    "offsets.topic.num.partitions=1",
    "share.coordinator.state.topic.num.partitions=4",
)
NOT_YET = frozenset({3, 5, 6})
"""Errors of a new partition: unknown, without a leader, or this is not its leader."""
JOIN_SECONDS_MAX = 60.0
IDLE_SECONDS_MAX = 60.0
STALL_SECONDS_MAX = 10.0
"""Without a record for so long, a broker delivers no more."""
REPEATS_MAX = 5
"""Repeats of a round in which a broker stalls. Apache Kafka does so on busy machines."""


class Stalled(BenchError):
    """A broker delivers no more records, although some are left."""


@dataclass
class Figures:
    """The results of one broker for one number of members."""

    rates: list[float] = field(default_factory=list)
    """Records/s of each round."""
    cpu_us: list[float] = field(default_factory=list)
    """Processor time of the broker for each record, in microseconds."""


class Connection:
    """One connection with one request at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=IDLE_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def request(self, key: int, version: int, body: dict[str, Any]) -> Any:
        api = by_key(key)
        assert isinstance(api, Api)
        frame = encode_request_header(api, version, 1, "bench") + api.encode_request(version, body)
        self._socket.sendall(len(frame).to_bytes(4, "big") + frame)
        size = int.from_bytes(self._stream.read(4), "big")
        response = self._stream.read(size)
        return api.decode_response(
            version, response, decode_response_header(api, version, response)[1]
        )

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


# -- topics and groups


def make_topic(broker: Broker, name: str, partitions: int) -> UUID:
    """A new topic. Returns its id."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)
    found: list[UUID] = []

    def is_led() -> bool:
        body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        [topic] = request(broker.address, METADATA, 12, body).topics
        if topic.error_code or any(row.leader_id < 0 for row in topic.partitions):
            return False
        found.append(topic.topic_id)
        return len(topic.partitions) == partitions

    brokers.wait_until(is_led, f"leaders of {name}", broker.process)
    return found[-1]


def fill(broker: Broker, topic: str, partitions: int, records: int) -> None:
    """Write so many records to each partition."""
    connection = Connection(broker.address)
    batch = bytes(build_batch([(None, VALUE)] * BATCH, timestamp=1_700_000_000_000))
    for partition in range(partitions):
        for _ in range(records // BATCH):
            row = {"index": partition, "records": batch}
            data = [{"name": topic, "partition_data": [row]}]
            body = {"acks": -1, "timeout_ms": 10_000, "topic_data": data}
            _produce(broker, connection, body)
    connection.close()


def _produce(broker: Broker, connection: Connection, body: dict[str, Any]) -> None:
    """Apache Kafka names a leader before it serves."""
    deadline = time.monotonic() + JOIN_SECONDS_MAX
    while True:
        response = connection.request(PRODUCE, 9, body)
        code = response.responses[0].partition_responses[0].error_code
        if not code:
            return
        if code not in NOT_YET or time.monotonic() > deadline:
            raise BenchError(f"{broker.name} refused records with error {code}")
        time.sleep(0.05)


def configure(broker: Broker, group: str) -> None:
    """The group reads from the first record on. Apache Kafka applies that a moment later."""
    name, value = "share.auto.offset.reset", "earliest"
    config = {"name": name, "config_operation": 0, "value": value}
    resource = {"resource_type": GROUP, "resource_name": group, "configs": [config]}
    request(broker.address, ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})

    def is_applied() -> bool:
        wanted = {"resource_type": GROUP, "resource_name": group, "configuration_keys": [name]}
        [found] = request(broker.address, DESCRIBE_CONFIGS, 4, {"resources": [wanted]}).results
        return [row.value for row in found.configs] == [value]

    brokers.wait_until(is_applied, f"the configuration of {group}", broker.process)


class Member:
    """One member with its share session."""

    def __init__(self, broker: Broker, group: str, topic: str, topic_id: UUID, number: int) -> None:
        self._connection = Connection(broker.address)
        self._group = group
        self._topic = topic
        self._topic_id = topic_id
        self._member_id = f"bench-{number}-{time.monotonic_ns()}"
        self._epoch = 0

    def join(self, partitions: int) -> None:
        """Wait until the group has an assignment of all partitions."""
        deadline = time.monotonic() + JOIN_SECONDS_MAX
        epoch, assigned = 0, 0
        while assigned < partitions:
            if time.monotonic() > deadline:
                raise BenchError(f"no assignment within {JOIN_SECONDS_MAX:.0f} s")
            self._connection.request(
                FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [self._group]}
            )
            response = self._connection.request(
                HEARTBEAT,
                1,
                {
                    "group_id": self._group,
                    "member_id": self._member_id,
                    "member_epoch": epoch,
                    "subscribed_topic_names": [self._topic],
                },
            )
            if not response.error_code:
                epoch = response.member_epoch
                if response.assignment is not None:
                    assigned = sum(
                        len(row.partitions) for row in response.assignment.topic_partitions
                    )
            time.sleep(0.05)

    def fetch(
        self, acquired: Sequence[tuple[int, int]], partitions: Sequence[int], wait_ms: int
    ) -> dict[int, list[tuple[int, int]]]:
        """Accept these ranges of offsets of partition 0, and acquire: partition -> ranges."""
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": [1]}
            for first, last in acquired
        ]
        rows = [
            {"partition_index": one, "acknowledgement_batches": batches if one == 0 else []}
            for one in partitions
        ]
        response = self._connection.request(
            SHARE_FETCH,
            2,
            {
                "group_id": self._group,
                "member_id": self._member_id,
                "share_session_epoch": self._epoch,
                "max_wait_ms": wait_ms,
                "min_bytes": 1,
                "max_bytes": 50_000_000,
                "max_records": FETCH_RECORDS,
                "batch_size": FETCH_RECORDS,
                "share_acquire_mode": 0,
                "is_renew_ack": False,
                "topics": [{"topic_id": self._topic_id, "partitions": rows}],
                "forgotten_topics_data": [],
            },
        )
        if response.error_code:
            raise BenchError(f"ShareFetch: error {response.error_code}")
        self._epoch += 1
        found: dict[int, list[tuple[int, int]]] = {}
        for topic in response.responses:
            for row in topic.partitions:
                for what, code in (
                    ("acknowledgement", row.acknowledge_error_code),
                    ("partition", row.error_code),
                ):
                    if code:
                        raise BenchError(f"ShareFetch, {what}: error {code}")
                if row.acquired_records:
                    found[row.partition_index] = [
                        (one.first_offset, one.last_offset) for one in row.acquired_records
                    ]
        return found

    def close(self) -> None:
        self._connection.close()


# -- benchmarks


def measure_rate(broker: Broker, members: int, records: int, name: str) -> tuple[float, float]:
    """(records/s, processor time of the broker for each record in microseconds)."""
    topic_id = make_topic(broker, name, 1)
    fill(broker, name, 1, records)
    configure(broker, name)
    joined = [Member(broker, name, name, topic_id, number) for number in range(members)]
    joined[0].join(1)
    lock = threading.Lock()
    failures: list[Exception] = []
    available, unfinished, ended, progress_at = records, records, 0.0, 0.0

    def work(member: Member) -> None:
        nonlocal available, unfinished, ended, progress_at
        acquired: list[tuple[int, int]] = []
        try:
            while acquired or available > 0:
                if time.monotonic() > progress_at + STALL_SECONDS_MAX:
                    raise Stalled(f"{unfinished} records are left")
                # the last acknowledgement must not wait for records
                rows = member.fetch(acquired, [0], 100 if available > 0 else 0).get(0, [])
                with lock:
                    available -= sum(last - first + 1 for first, last in rows)
                    unfinished -= sum(last - first + 1 for first, last in acquired)
                    if rows or acquired:
                        progress_at = time.monotonic()
                    if acquired and unfinished == 0:
                        ended = progress_at
                acquired = rows
        except (BenchError, OSError) as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(member,)) for member in joined]
    cpu, began = broker.cpu_seconds() or 0.0, time.monotonic()
    progress_at = began
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, used = ended - began, (broker.cpu_seconds() or 0.0) - cpu
    for member in joined:
        member.close()
    broker.drop_topic(name)
    if failures:
        kind = Stalled if isinstance(failures[0], Stalled) else BenchError
        raise kind(f"{broker.name}: {failures[0]}")
    return records / seconds, used / records * 1e6


def measured(broker: Broker, members: int, records: int, name: str) -> tuple[float, float]:
    """`measure_rate`, repeated with another topic if the broker stalls."""
    for number in range(REPEATS_MAX):
        try:
            return measure_rate(broker, members, records, f"{name}-{number}")
        except Stalled as error:
            print(f"repeating a round of {members} members: {error}")
    raise BenchError(f"{broker.name} stalled {REPEATS_MAX} times")


def measure_memory(broker: Broker) -> tuple[int, float]:
    """(records in flight, growth of the resident memory in MB)."""
    name = "bench-in-flight"
    per_partition = IN_FLIGHT // IN_FLIGHT_PARTITIONS
    topic_id = make_topic(broker, name, IN_FLIGHT_PARTITIONS)
    fill(broker, name, IN_FLIGHT_PARTITIONS, per_partition)
    configure(broker, name)
    member = Member(broker, name, name, topic_id, 0)
    member.join(IN_FLIGHT_PARTITIONS)
    before = broker.resident_mb() or 0.0
    held, empty = 0, 0
    while held < IN_FLIGHT and empty < 20:
        found = member.fetch([], range(IN_FLIGHT_PARTITIONS), 500)
        count = sum(last - first + 1 for rows in found.values() for first, last in rows)
        held, empty = held + count, 0 if count else empty + 1
    grown = (broker.resident_mb() or 0.0) - before
    member.close()
    return held, grown


def compare_rates(tested: list[Broker], options: argparse.Namespace) -> None:
    figures = {(one.name, count): Figures() for one in tested for count in MEMBERS}
    for number in range(options.rounds):
        for count in MEMBERS:
            for broker in tested:
                name = f"queue-{number}-{count}"
                rate, cpu = measured(broker, count, options.records, name)
                figures[broker.name, count].rates.append(rate)
                figures[broker.name, count].cpu_us.append(cpu)
    print(f"{'members':>8}  {'figure':26}" + "".join(f"{one.name:>12}" for one in tested))
    for count in MEMBERS:
        rows = [figures[one.name, count] for one in tested]
        rates = [statistics.median(one.rates) for one in rows]
        costs = [statistics.median(one.cpu_us) for one in rows]
        for title, values, ratio in (
            ("records/s", rates, rates[0] / rates[-1]),
            ("broker CPU us for a record", costs, costs[-1] / max(costs[0], 1e-9)),
        ):
            shown = "".join(f"{value:12,.1f}" for value in values)
            compared = f"{ratio:8.2f}  goal {GOAL}" if len(tested) > 1 else ""
            print(f"{count:8}  {title:26}{shown}{compared}", flush=True)


def main() -> int:
    """Parse the command line, measure, print the results."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.queues", description="share groups: rate and memory"
    )
    parser.add_argument("--peer-kafka", action="store_true", help="measure Apache Kafka, too")
    parser.add_argument("--records", type=int, default=100_000, help="of each round (100000)")
    parser.add_argument("--rounds", type=int, default=3, help="of each number of members (3)")
    parser.add_argument("--only", choices=("rate", "memory"), help="only this")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="queues-"))
    tested: list[Broker] = []
    try:
        tested.append(brokers.mqd(directory / "mqd", options=OPTIONS))
        if options.peer_kafka:
            tested.append(brokers.kafka(directory / "kafka", options=OPTIONS))
        for broker in tested:
            broker.start()
        print("\n".join(f"{key}: {value}" for key, value in floors.machine(directory).items()))
        if options.only != "memory":
            compare_rates(tested, options)
        if options.only != "rate":
            for broker in tested:
                held, grown = measure_memory(broker)
                print(f"{broker.name}: {held:,} records in flight, {grown:,.0f} MB", flush=True)
    except BenchError as error:
        print(f"queues: {error}", file=sys.stderr)
        return 1
    finally:
        for broker in tested:
            broker.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
