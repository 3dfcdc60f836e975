"""Commands of transactional producers: the coordinator (mqd/coordinator/txn/shard.py), and
one partition with its readers (mqd/log/producers.py, transaction_index.py, manager/reading.py).
"""

from __future__ import annotations

from pathlib import Path

import trio

from mqd.coordinator.shard import Producer
from mqd.coordinator.txn.operations import WriteMarkers
from mqd.protocol.markers import EndMarker, build_end_marker
from mqd.replica.assignment import Assignment
from mqd.replica.partition import Partition
from mqd.types import NodeId, TopicPartition
from tests.coordinator.txn.transactions import Transactions
from tests.log.support import PARTITION, TOPIC_ID, Harness, batch

_COORDINATOR_EPOCH = 3


class CoordinatorDriver:
    """One transactional id; the coordinator's log accepts everything at once."""

    def __init__(self, directory: Path) -> None:
        self._shard = Transactions()
        self._markers: list[WriteMarkers] = []
        self._producer_id = -1

    def init_producer_id(self, *, id: str = "t", timeout: int = 60) -> str:
        return self._shown(self._shard.init(id=id, timeout_ms=timeout * 1000))

    def add_partitions(self, *partitions: str, id: str = "t", epoch: int) -> str:
        """AddPartitionsToTxn, or the first batch of a producer of `transaction.version` 2."""
        self._shard.add(self._pair(epoch), *map(_partition, partitions), id=id)
        return self._shard.state(id)

    def verify(self, partition: str, *, id: str = "t", epoch: int) -> str:
        """The leader of a partition requests permission for a transaction there (KIP-890)."""
        (code,) = self._shard.verify(self._pair(epoch), _partition(partition), id=id).values()
        return code.name if code else "allowed"

    def end(self, outcome: str, *, id: str = "t", epoch: int) -> str:
        """EndTxn: `commit` or `abort`. The response has the epoch of the next transaction."""
        commit = {"commit": True, "abort": False}[outcome]
        return self._shown(self._shard.end(self._pair(epoch), commit=commit, id=id))

    def markers(self) -> list[str]:
        """The markers that the coordinator wants written now."""
        self._markers += (new := self._shard.markers())
        return [
            f"{'commit' if one.committed else 'abort'} epoch={one.producer.producer_epoch} "
            f"in {','.join(f'{topic}-{index}' for topic, index in one.partitions)}"
            for one in new
        ]

    def marker_written(self, *partitions: str, id: str = "t") -> str:
        """The leaders of these partitions have committed the newest marker."""
        self._shard.written(self._markers[-1], *map(_partition, partitions))
        return self._shard.state(id)

    def wait(self, seconds: int) -> None:
        self._shard.advance(seconds)

    def coordinator_fails_over(self) -> None:
        """The next coordinator has read the log, and knows nothing else."""
        self._shard.fail_over()

    def state(self, *, id: str = "t") -> str:
        return self._shard.state(id)

    def _pair(self, epoch: int) -> tuple[int, int]:
        return self._producer_id, epoch

    def _shown(self, producer: Producer) -> str:
        self._producer_id = producer.producer_id
        return f"epoch={producer.producer_epoch}"


class PartitionDriver:
    """The leader of one partition, node 1, with a log on a disk. Node 2 is its follower."""

    def __init__(self, directory: Path) -> None:
        self._harness = Harness(directory)
        trio.run(self._harness.service.start)
        self._log = self._harness.open()
        nodes = (NodeId(1), NodeId(2))
        assignment = Assignment(PARTITION, TOPIC_ID, nodes[0], 0, nodes, nodes)
        self._partition = Partition(nodes[0], self._log, assignment, 1)
        self._partition.assign(assignment, 1)
        self._sequences: dict[tuple[int, int], int] = {}

    def append(self, count: int) -> str:
        """Records without a transaction."""
        appended = self._harness.append(self._log, batch(*[b"v"] * count))
        return self._appended(appended.base_offset, appended.last_offset)

    def idempotent(self, count: int, *, producer: int, sequence: int, epoch: int = 0) -> str:
        """A batch with this first sequence number; `known` if it was appended before."""
        data = batch(*[b"v"] * count, producer_id=producer, epoch=epoch, sequence=sequence)
        appended = self._harness.append(self._log, data)
        shown = self._appended(appended.base_offset, appended.last_offset)
        return f"{shown} known" if appended.duplicate else shown

    def allow(self, *, producer: int, epoch: int = 0) -> None:
        """The coordinator permits the producer's next transaction in this partition."""
        sequence = self._sequences.get((producer, epoch), 0)
        guard = self._log.producers.guard(producer, epoch, sequence, False, 0)
        assert guard is not None, "a transaction is open: it needs no permission"
        guard.confirmed = True

    def transactional(self, count: int, *, producer: int, epoch: int = 0) -> str:
        """Records of a transaction, in the producer's sequence."""
        sequence = self._sequences.get((producer, epoch), 0)
        data = batch(
            *[b"v"] * count,
            producer_id=producer,
            epoch=epoch,
            sequence=sequence,
            transactional=True,
        )
        appended = self._harness.append(self._log, data)
        self._sequences[producer, epoch] = sequence + count
        return self._appended(appended.base_offset, appended.last_offset)

    def marker(self, outcome: str, *, producer: int, epoch: int = 0) -> str:
        """The marker that ends the producer's transaction here: `commit` or `abort`."""
        commits = {"commit": True, "abort": False}[outcome]
        self._log.producers.check_marker(producer, epoch, _COORDINATOR_EPOCH, 0)
        marker = EndMarker(commits, _COORDINATOR_EPOCH)
        data = build_end_marker(producer, epoch, marker, self._harness.clock.now_ms)
        appended = self._harness.append(self._log, data, client=False)
        return self._appended(appended.base_offset, appended.last_offset)

    def fetched(self, *, offset: int) -> None:
        """The follower has everything below `offset`."""
        self._partition.follower_fetched(NodeId(2), 1, offset, 0, 0.0)

    def replicated(self) -> None:
        """The follower has everything."""
        self.fetched(offset=self._log.log_end_offset)

    # -- what it shows

    def ends(self) -> str:
        """The last stable offset, the high watermark and the log end."""
        stable, high = self._partition.last_stable_offset, self._partition.high_watermark
        return f"lso={stable} hw={high} end={self._log.log_end_offset}"

    def read_committed(self, *, offset: int = 0) -> str:
        """A read_committed Fetch: the offsets of its records, and the aborted transactions."""
        stable = self._partition.last_stable_offset
        reader = self._harness.service.reader
        read = reader.read(self._log, offset, max_bytes=1 << 20, limit_offset=stable, min_one=True)
        aborted = ",".join(
            f"producer-{one.producer_id}@{one.first_offset}"
            for one in reader.aborted(self._log, offset, read.next_offset)
        )
        if not read.size:
            return "no records"
        return f"records {offset} to {read.next_offset - 1} aborted={aborted or 'none'}"

    def _appended(self, first: int, last: int) -> str:
        assert self._harness.service.flush() == []
        self._partition.advance()
        return f"offset={first}" if first == last else f"offset={first} to {last}"


def _partition(text: str) -> TopicPartition:
    topic, _, partition = text.rpartition("-")
    return TopicPartition(topic, int(partition))
