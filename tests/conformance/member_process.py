"""A member of a consumer group in a separate process, so that a test can kill it. `members.py`
starts it and reads its output.

It consumes, commits the consumed offsets, and only then reports them. Reports are lines of JSON on
standard output: ["assigned", partitions now], ["revoked", partitions], ["done", [[partition, first
offset, last offset], ...]], ["maybe", likewise] for records of a lost partition whose commit has no
known result, ["held"], ["helped", with what] where the test corrected a bug of the client,
["failed", why]. `hold` on standard input stops its consumption; the end of standard input makes the
member leave.

Each client is imported where it is used: a member starts in half the time without the others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from typing import Any

BATCH_MAX = 50
POLL_S = 0.05
KAFKA_PYTHON_POLL_S = 2.0
"""Longer than any rebalance: a poll of kafka-python must not end within one.

The leader of a group may see that the topic has grown, while its poll ends between the responses to
JoinGroup and to SyncGroup. Then no later poll checks the result: the member owns nothing, sends no
heartbeats, and does not detect it (3.0.12).
"""
COMMIT_S = 0.1
"""From the first pending record to the commit: with enough members for a test, the broker still has
time for other requests.
"""
METADATA_MS = 1000
REFUSED = (14, 16)
"""COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR: the errors for a group's offsets of a node that
has not loaded them, or is not the coordinator.
"""


class Task:
    """The state of a member, and its reports."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.stopped = threading.Event()
        self.held = threading.Event()
        self.owned: set[int] = set()
        self.pending: dict[int, list[int]] = {}
        """Partition -> first and last offset that were consumed and are not committed yet."""
        self._pending_since = 0.0
        self.tried = False
        """Whether a commit of them was requested."""
        self._carried: dict[int, tuple[list[int], bool]] = {}
        """The pending offsets of partitions that may return, and whether their commit was
        requested.
        """

    def say(self, *words: Any) -> None:
        print(json.dumps(words), flush=True)

    def listen(self) -> None:
        """Read standard input until it ends."""
        for line in sys.stdin:
            if line.strip() == "hold":
                self.held.set()
        self.stopped.set()

    def assigned(self, partitions: Any) -> None:
        """These partitions were added."""
        self.owned |= {row.partition for row in partitions}
        for partition, (ends, tried) in sorted(self._carried.items()):
            if partition in self.owned:
                self.pending[partition] = ends
            elif tried:
                self.say("maybe", [[partition, *ends]])
        self._carried.clear()
        self.say("assigned", sorted(self.owned))

    def revoked(self, partitions: Any, *, keeps_positions: bool = False) -> None:
        """These partitions were revoked; their uncommitted records belong to another member, unless
        the commit counts.

        `keeps_positions`: when it gets a partition again, the client continues at its own position
        instead of the committed offset.
        """
        gone = {row.partition for row in partitions}
        self.owned -= gone
        if gone:
            self.say("revoked", sorted(gone))
        lost = {
            partition: self.pending.pop(partition) for partition in sorted(gone & set(self.pending))
        }
        if keeps_positions:
            self._carried |= {partition: (ends, self.tried) for partition, ends in lost.items()}
        elif lost and self.tried:
            self.say("maybe", [[partition, *ends] for partition, ends in lost.items()])

    def consumed(self, partition: int, offset: int) -> None:
        """The next record of a partition."""
        if not self.pending:
            self._pending_since = time.monotonic()
        self.pending.setdefault(partition, [offset, offset])[1] = offset

    def is_due(self) -> bool:
        """Whether it is time to commit the pending records."""
        return bool(self.pending) and (
            self.held.is_set() or time.monotonic() >= self._pending_since + COMMIT_S
        )

    def committed(self) -> None:
        """All pending records are committed."""
        self.say("done", [[partition, *ends] for partition, ends in sorted(self.pending.items())])
        self.pending.clear()
        self.tried = False


def confluent(task: Task) -> None:
    """confluent-kafka: `eager` and `cooperative` in the classic protocol, `consumer` in
    KIP-848's.
    """
    import confluent_kafka

    options = task.options
    settings: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap,
        "group.id": options.group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 50,
        "topic.metadata.refresh.interval.ms": METADATA_MS,
        "error_cb": lambda error: (
            task.say("failed", f"{error.name()} {error.str()}") if error.fatal() else None
        ),
        "log_level": 0,
    }
    if options.client == "consumer":
        settings |= {"group.protocol": "consumer"}
    else:
        settings |= {
            "session.timeout.ms": options.session_ms,
            "heartbeat.interval.ms": options.session_ms // 10,
            "partition.assignment.strategy": "cooperative-sticky"
            if options.client == "cooperative"
            else "range",
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

    def ask_again() -> None:
        """Where librdkafka 2.16 gets an error for offsets after a rebalance, it sends no further
        request, and never reads (its issue 5586): make it retry.
        """
        rows = consumer.position(
            [
                confluent_kafka.TopicPartition(options.topic, partition)
                for partition in sorted(task.owned)
            ]
        )
        stalled = [row for row in rows if row.offset < 0 and row.partition not in task.pending]
        for row in stalled:
            row.offset = confluent_kafka.OFFSET_STORED
        if stalled and options.client == "eager":
            consumer.assign(rows)
        elif stalled:
            consumer.incremental_unassign(stalled)
            consumer.incremental_assign(stalled)

    def poll(seconds: float) -> None:
        message = consumer.poll(seconds)
        if message is None:
            return
        error, partition, offset = message.error(), message.partition(), message.offset()
        if error is None and partition in task.owned and not task.held.is_set():
            assert partition is not None and offset is not None
            task.consumed(partition, offset)
        elif error is not None and error.fatal():
            raise confluent_kafka.KafkaException(error)
        elif error is not None and error.code() in REFUSED:
            task.say("helped", error.str())
            ask_again()

    while not task.stopped.is_set():
        until = time.monotonic() + POLL_S
        while (left := until - time.monotonic()) > 0 and not task.tried:
            poll(left)
        if task.is_due():
            rows = [
                confluent_kafka.TopicPartition(options.topic, partition, ends[1] + 1)
                for partition, ends in task.pending.items()
            ]
            task.tried = True
            try:
                done = consumer.commit(offsets=rows, asynchronous=False)
            except confluent_kafka.KafkaException:
                # revoked records are not pending after that; the rest is retried
                poll(POLL_S)
                if not task.pending:
                    task.tried = False
            else:
                assert done is not None and all(row.error is None for row in done), done
                task.committed()
        elif task.held.is_set() and not task.pending:
            task.say("held")
            task.stopped.wait(60)
    consumer.close()


class Listener:
    """A rebalance listener for both Python clients, without its base class."""

    keeps_positions = False

    def __init__(self, task: Task) -> None:
        self.task = task

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.task.assigned(assigned)

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.task.revoked(revoked, keeps_positions=self.keeps_positions)

    def on_partitions_lost(self, lost: Any) -> None:
        self.task.revoked(lost, keeps_positions=self.keeps_positions)


def kafka_python(task: Task) -> None:
    """kafka-python, eager."""
    import kafka
    from kafka.errors import KafkaError, RetriableError

    class KafkaPythonListener(Listener, kafka.ConsumerRebalanceListener):  # type: ignore[misc]  # untyped base
        keeps_positions = True

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
    consumer.subscribe([options.topic], listener=KafkaPythonListener(task))

    def poll(**how: Any) -> Any:
        """A poll that requests metadata from a node that has just ended raises that error; the next
        poll uses another node.
        """
        try:
            return consumer.poll(int(KAFKA_PYTHON_POLL_S * 1000), **how)
        except RetriableError:
            time.sleep(POLL_S)
            return {}

    while not task.stopped.is_set():
        found = poll(max_records=BATCH_MAX) if not task.tried else {}
        if not task.held.is_set():
            for partition, records in found.items():
                for record in records:
                    task.consumed(partition.partition, record.offset)
        if task.is_due():
            rows = {
                kafka.TopicPartition(options.topic, partition): kafka.OffsetAndMetadata(
                    ends[1] + 1, "", -1
                )
                for partition, ends in task.pending.items()
            }
            task.tried = True
            try:
                consumer.commit(rows)
            except KafkaError:
                poll(max_records=1, update_offsets=False)
                if not task.pending:
                    task.tried = False
            else:
                task.committed()
        elif task.held.is_set() and not task.pending:
            task.say("held")
            task.stopped.wait(60)
    consumer.close(autocommit=False)


def aiokafka_member(task: Task) -> None:
    """aiokafka, eager."""
    asyncio.run(aiokafka_loop(task))


async def aiokafka_loop(task: Task) -> None:
    import aiokafka
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.protocol.commit import OffsetFetchRequest

    class AiokafkaListener(Listener, aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # untyped base
        pass

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
    await consumer.start()
    coordinator = consumer._coordinator
    send = coordinator._send_req

    async def send_and_look(request: Any) -> Any:
        """aiokafka 0.14 ignores the error of a whole group in an OffsetFetch response: it assumes
        that the group has no offsets, and starts at the beginning.
        """
        answer = await send(request)
        if (
            isinstance(request, OffsetFetchRequest)
            and answer.error_code in REFUSED
            and not answer.topics
        ):
            task.say("helped", f"OffsetFetch was refused with error {answer.error_code}")
            if answer.error_code == aiokafka.errors.NotCoordinatorForGroupError.errno:
                coordinator.coordinator_dead()
            raise aiokafka.errors.for_code(answer.error_code)
        return answer

    coordinator._send_req = send_and_look
    consumer.subscribe([options.topic], listener=AiokafkaListener(task))
    while not task.stopped.is_set():
        found = (
            await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=BATCH_MAX)
            if not task.tried
            else {}
        )
        if not task.held.is_set():
            for partition, records in found.items():
                if partition.partition in task.owned:
                    for record in records:
                        task.consumed(partition.partition, record.offset)
        if task.is_due():
            rows = {
                aiokafka.TopicPartition(options.topic, partition): ends[1] + 1
                for partition, ends in task.pending.items()
            }
            task.tried = True
            try:
                await consumer.commit(rows)
            except aiokafka.errors.KafkaError:
                await asyncio.sleep(POLL_S)
                if not task.pending:
                    task.tried = False
            else:
                task.committed()
        elif task.held.is_set() and not task.pending:
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
