"""A member of a consumer group in a process of its own, so that it can be killed in earnest. `members.py` starts it and listens to it.

It consumes, commits what it has consumed, and only then says so. A line of JSON each on standard output:
["assigned", partitions now], ["revoked", partitions], ["done", [[partition, first offset, last offset], ...]], ["maybe", likewise] for
what was lost with its partition before anybody said whether the commit counts, ["held"], ["failed", why].
`hold` on standard input stops its consumption, its end has the member leave.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from typing import Any

import aiokafka
import confluent_kafka
import kafka
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import KafkaError

BATCH_MAX = 50
POLL_S = 0.05
METADATA_MS = 1000


class Task:
    """What to do, and what to say."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.stopped = threading.Event()
        self.held = threading.Event()
        self.owned: set[int] = set()
        self.pending: dict[int, list[int]] = {}
        """Partition -> first and last offset that were consumed and are not committed yet."""
        self.tried = False
        """Whether somebody was asked to commit that."""

    def say(self, *words: Any) -> None:
        print(json.dumps(words), flush=True)

    def listen(self) -> None:
        """Standard input, until it ends."""
        for line in sys.stdin:
            if line.strip() == "hold":
                self.held.set()
        self.stopped.set()

    def assigned(self, partitions: Any) -> None:
        """These, too."""
        self.owned |= {row.partition for row in partitions}
        self.say("assigned", sorted(self.owned))

    def revoked(self, partitions: Any) -> None:
        """These no longer; what is not committed of them is somebody else's, unless the commit counts."""
        gone = {row.partition for row in partitions}
        self.owned -= gone
        if gone:
            self.say("revoked", sorted(gone))
        lost = [[partition, *self.pending.pop(partition)] for partition in sorted(gone & set(self.pending))]
        if lost and self.tried:
            self.say("maybe", lost)

    def consumed(self, partition: int, offset: int) -> None:
        """The next record of a partition."""
        self.pending.setdefault(partition, [offset, offset])[1] = offset

    def committed(self) -> None:
        """All that is pending."""
        self.say("done", [[partition, *ends] for partition, ends in sorted(self.pending.items())])
        self.pending.clear()
        self.tried = False


def confluent(task: Task) -> None:
    """confluent-kafka: `--protocol classic` with an assignor, or `consumer`."""
    options = task.options
    settings: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap,
        "group.id": options.group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 50,
        "topic.metadata.refresh.interval.ms": METADATA_MS,
        "error_cb": lambda error: task.say("failed", f"{error.name()} {error.str()}") if error.fatal() else None,
        "log_level": 0,
    }
    if options.client == "consumer":
        settings |= {"group.protocol": "consumer"}
    else:
        settings |= {
            "session.timeout.ms": options.session_ms,
            "heartbeat.interval.ms": options.session_ms // 10,
            "partition.assignment.strategy": "cooperative-sticky" if options.client == "cooperative" else "range",
        }
    if options.instance:
        settings["group.instance.id"] = options.instance
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe(
        [options.topic],
        on_assign=lambda _, rows: task.assigned(rows),
        on_revoke=lambda _, rows: task.revoked(rows),
        on_lost=lambda _, rows: task.revoked(rows),
    )

    def poll(seconds: float) -> None:
        message = consumer.poll(seconds)
        if message is None:
            return
        error = message.error()
        if error is None and message.partition() in task.owned and not task.held.is_set():
            task.consumed(message.partition(), message.offset())
        elif error is not None and error.fatal():
            raise confluent_kafka.KafkaException(error)

    while not task.stopped.is_set():
        until = time.monotonic() + POLL_S
        while (left := until - time.monotonic()) > 0 and not task.tried:
            poll(left)
        if task.pending:
            rows = [confluent_kafka.TopicPartition(options.topic, partition, ends[1] + 1) for partition, ends in task.pending.items()]
            task.tried = True
            try:
                done = consumer.commit(offsets=rows, asynchronous=False)
            except confluent_kafka.KafkaException:
                poll(POLL_S)  # whatever was revoked is not pending after that; the rest is tried again
                if not task.pending:
                    task.tried = False
            else:
                assert done is not None and all(row.error is None for row in done), done
                task.committed()
        elif task.held.is_set():
            task.say("held")
            task.stopped.wait(60)
    consumer.close()


class Listener(kafka.ConsumerRebalanceListener, aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, task: Task) -> None:
        self.task = task

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.task.assigned(assigned)

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.task.revoked(revoked)

    def on_partitions_lost(self, lost: Any) -> None:
        self.task.revoked(lost)


def kafka_python(task: Task) -> None:
    """kafka-python, eager."""
    options = task.options
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        group_instance_id=options.instance,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=options.session_ms // 10,
        fetch_max_wait_ms=50,
        metadata_max_age_ms=METADATA_MS,
    )
    consumer.subscribe([options.topic], listener=Listener(task))
    while not task.stopped.is_set():
        found = consumer.poll(int(POLL_S * 1000), max_records=BATCH_MAX) if not task.tried else {}
        if not task.held.is_set():
            for partition, records in found.items():
                for record in records:
                    task.consumed(partition.partition, record.offset)
        if task.pending:
            rows = {
                kafka.TopicPartition(options.topic, partition): kafka.OffsetAndMetadata(ends[1] + 1, "", -1)
                for partition, ends in task.pending.items()
            }
            task.tried = True
            try:
                consumer.commit(rows)
            except KafkaError:
                consumer.poll(0, max_records=1, update_offsets=False)
                if not task.pending:
                    task.tried = False
            else:
                task.committed()
        elif task.held.is_set():
            task.say("held")
            task.stopped.wait(60)
    consumer.close(autocommit=False)


def aiokafka_member(task: Task) -> None:
    """aiokafka, eager."""
    asyncio.run(aiokafka_loop(task))


async def aiokafka_loop(task: Task) -> None:
    options = task.options
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        group_instance_id=options.instance,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=options.session_ms // 10,
        fetch_max_wait_ms=50,
        metadata_max_age_ms=METADATA_MS,
        partition_assignment_strategy=(RoundRobinPartitionAssignor,),
    )
    consumer.subscribe([options.topic], listener=Listener(task))
    await consumer.start()
    while not task.stopped.is_set():
        found = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=BATCH_MAX) if not task.tried else {}
        if not task.held.is_set():
            for partition, records in found.items():
                if partition.partition in task.owned:
                    for record in records:
                        task.consumed(partition.partition, record.offset)
        if task.pending:
            rows = {aiokafka.TopicPartition(options.topic, partition): ends[1] + 1 for partition, ends in task.pending.items()}
            task.tried = True
            try:
                await consumer.commit(rows)
            except aiokafka.errors.KafkaError:
                await asyncio.sleep(POLL_S)
                if not task.pending:
                    task.tried = False
            else:
                task.committed()
        elif task.held.is_set():
            task.say("held")
            await asyncio.to_thread(task.stopped.wait, 60)
    await consumer.stop()


CLIENTS = {
    "eager": confluent,
    "cooperative": confluent,
    "consumer": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka_member,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--client", choices=tuple(CLIENTS), required=True)
    for name in ("bootstrap", "group", "topic"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--session-ms", type=int, required=True)
    parser.add_argument("--instance", default=None)
    task = Task(parser.parse_args())
    threading.Thread(target=task.listen, daemon=True).start()
    try:
        CLIENTS[task.options.client](task)
    except Exception as error:
        task.say("failed", f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main()
