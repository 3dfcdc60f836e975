"""A ReplicaService on a LogService on a directory, for tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import trio

from mqd.errors import ErrorCode
from mqd.io.entropy import RandomEntropy
from mqd.log.log_config import LogConfig
from mqd.replica.assignment import Assignment
from mqd.replica.partition import Partition
from mqd.replica.service import ReplicaService
from mqd.replica.settings import TopicSettings
from mqd.replica.waiters import Append, FetchWaiter, ProduceTicket
from mqd.types import NodeId, TopicPartition
from tests.log.support import FaultyDisk, Harness, batch
from tests.replica.ports import Ports

ME, TWO = NodeId(1), NodeId(2)

TOPIC_ID = UUID(int=7, version=4)

OTHER_ID = UUID(int=8, version=4)

PLAIN = LogConfig()

DURABLE = LogConfig(flush_before_ack=True)


class Ticket(ProduceTicket[Partition]):
    """Stores its result."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: dict[TopicPartition, ErrorCode] = {}
        self.releases = 0

    def refuse(self, append: Append[Partition], code: ErrorCode) -> None:
        self.codes[append[0].assignment.topic_partition] = code

    def release(self) -> None:
        self.releases += 1


class Replicas(Harness):
    """A ReplicaService on a LogService on a directory."""

    def __init__(self, directory: Path, disk: FaultyDisk | None = None) -> None:
        super().__init__(directory, disk=disk)
        self.ports = Ports()
        self.replica = ReplicaService(
            node_id=ME,
            logs=self.service,
            clock=self.clock,
            entropy=RandomEntropy(random.Random(1)),
            ports=self.ports.value(),
        )

    @property
    def faulty(self) -> FaultyDisk:
        assert isinstance(self.disk, FaultyDisk)
        return self.disk

    def assign(
        self,
        name: str = "t",
        index: int = 0,
        *,
        leader: NodeId = ME,
        epoch: int = 0,
        replicas: Sequence[NodeId] = (ME,),
        isr: Sequence[NodeId] | None = None,
        topic_id: UUID = TOPIC_ID,
        config: LogConfig = PLAIN,
        minimum: int = 1,
    ) -> Partition | None:
        topic_partition = TopicPartition(name, index)
        assignment = Assignment(
            topic_partition,
            topic_id,
            leader,
            epoch,
            tuple(replicas),
            tuple(replicas if isr is None else isr),
        )
        self.replica.assignments.apply([assignment], {name: TopicSettings(config, minimum)})
        return self.replica.get(topic_partition)

    def held(self, name: str = "t", index: int = 0, **options: Any) -> Partition:
        partition = self.assign(name, index, **options)
        assert partition is not None
        return partition

    def produce(
        self,
        *partitions: Partition,
        acks: int = -1,
        data: bytes | bytearray | None = None,
        timeout: float = 5.0,
    ) -> Ticket:
        """The appends of one request, in the current turn."""
        ticket = Ticket()
        ticket.deadline = trio.current_time() + timeout
        for partition in partitions:
            view = memoryview(bytearray(data if data is not None else batch()))
            appended = self.replica.append_nowait(partition, view, acks, self.clock.now_ms)
            wanted = (
                appended.last_offset + 1
                if acks == -1 or partition.log.config.flush_before_ack
                else -1
            )
            rows = [(partition.assignment.topic_partition.partition, 0)]
            ticket.appends.append((partition, wanted, rows, 0))
        self.replica.wait_committed(ticket)
        return ticket

    def synced(self, partition: Partition) -> None:
        assert partition.log.on_synced(partition.log.written_end_offset)
        self.replica.on_durable(partition.log)

    def park(
        self, *partitions: Partition, bytes_wanted: int = 1, timeout: float = 5.0
    ) -> list[float]:
        """A parked fetch; the list gets the time of its release."""
        released: list[float] = []
        waiter = FetchWaiter(
            lambda: released.append(trio.current_time()),
            bytes_wanted,
            trio.current_time() + timeout,
        )
        self.replica.park_fetch(waiter, partitions)
        return released
