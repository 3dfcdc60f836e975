"""Commands on the leader of one partition: mqd/replica/partition.py, isr.py and progress.py.

Node 1 is the leader. Its log is a real one whose files nobody writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from mqd.errors import ErrorCode
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.log.segment import Segment
from mqd.replica.assignment import Assignment
from mqd.replica.isr import ProposalResult
from mqd.replica.isr_membership import IsrConditions
from mqd.replica.partition import Partition
from mqd.types import IsrChange, IsrOutcome, NodeId, TopicPartition

_ME = NodeId(1)
_PARTITION = TopicPartition("orders", 0)
_TOPIC_ID = UUID(int=7)
_BROKER_EPOCH = 100
_LAG_MAX = 30.0


class ReplicaDriver:
    """One partition; `wait` moves its clock."""

    def __init__(self, directory: Path) -> None:
        self._now = 0.0
        self._log = PartitionLog(_PARTITION, _TOPIC_ID, directory, LogConfig(), [Segment(0, 0)])
        self._partition: Partition | None = None
        self._minimum = 1
        self._change: IsrChange | None = None
        self._down: set[int] = set()

    # -- the metadata

    def leader(
        self,
        *,
        epoch: int = 0,
        isr: tuple[int, ...],
        replicas: tuple[int, ...] = (1, 2, 3),
        partition_epoch: int = 0,
        elr: tuple[int, ...] = (),
        min_insync: int = 0,
    ) -> None:
        """The metadata names node 1 as the leader."""
        self._minimum = min_insync or self._minimum
        assignment = Assignment(
            _PARTITION,
            _TOPIC_ID,
            _ME,
            epoch,
            tuple(map(NodeId, replicas)),
            tuple(map(NodeId, isr)),
            partition_epoch,
            tuple(map(NodeId, elr)),
        )
        if self._partition is None:
            conditions = IsrConditions(
                _LAG_MAX, lambda node: None if node in self._down else _BROKER_EPOCH
            )
            self._partition = Partition(_ME, self._log, assignment, self._minimum, conditions)
        self._partition.assign(assignment, self._minimum, self._now)

    def flush_before_ack(self) -> None:
        """The topic sets `flush.before.ack`."""
        self._log.config = LogConfig(flush_before_ack=True)

    def down(self, node: int) -> None:
        """The metadata reports a broker that is fenced."""
        self._down.add(node)

    # -- what happens

    def append(self, count: int) -> None:
        """The leader writes records."""
        self._leader.membership.before_write()
        self._log.log_end_offset += count
        self._log.written_end_offset = self._log.log_end_offset
        self._leader.advance()

    def produce(self, count: int, *, acks: str) -> str:
        """A producer's request, with the check that every request has to pass."""
        self._leader.check_append({"all": -1, "1": 1, "0": 0}[acks])
        self.append(count)
        return "accepted"

    def synced(self, end: int) -> None:
        """The leader's fdatasync has covered the log up to here."""
        self._log.on_synced(end)
        self._leader.advance()

    def wait(self, seconds: float) -> None:
        self._now += seconds

    def fetched(self, node: int, *, offset: int, leader_epoch: int = -1) -> str | None:
        """A follower's fetch: it has everything below `offset`."""
        self._leader.fence(leader_epoch)
        news = self._leader.follower_fetched(NodeId(node), _BROKER_EPOCH, offset, 0, self._now)
        return self._proposed(news.proposal)

    def check_lag(self) -> str | None:
        """The periodic check: members that lag leave, others join, and the rest is counted anew."""
        leader = self._leader
        change = leader.shrink_isr(self._now) or leader.expand_isr(self._now)
        leader.membership.recount(self._now)
        leader.advance()
        return self._proposed(change)

    def controller(
        self, verdict: str, *, isr: tuple[int, ...] = (), partition_epoch: int = 0
    ) -> str:
        """The response to the change in flight; `no-response` if it was lost."""
        change = self._change
        assert change is not None, "no change is in flight"
        outcome = {
            "accepts": IsrOutcome(
                _PARTITION,
                ErrorCode.NONE,
                _ME,
                self._leader.leader_epoch,
                tuple(map(NodeId, isr)) or tuple(node for node, _ in change.isr),
                partition_epoch or change.partition_epoch + 1,
            ),
            "refuses": IsrOutcome(_PARTITION, ErrorCode.INELIGIBLE_REPLICA),
            "no-response": None,
        }[verdict]
        result = self._leader.in_sync.on_outcome(change, outcome)
        if result in (ProposalResult.COMMITTED, ProposalResult.REFUSED):
            self._leader.isr_decided(self._now)
        return result.value

    # -- what it shows

    def high_watermark(self) -> str:
        """The high watermark, and the replicas that it waits for."""
        partition = self._leader
        shown = f"hw={partition.high_watermark}"
        if partition.short_of_replicas:
            least = partition.effective_min_insync_replicas
            return f"{shown} frozen: {len(partition.isr)} of {least} replicas in sync"
        if partition.frozen and not partition.assignment.elr:
            return f"{shown} frozen: the ELR is not known yet"
        if partition.frozen:
            return f"{shown} frozen: elr={_nodes(partition.assignment.elr)}"
        end = self._log.written_end_offset
        behind = [one.node_id for one in partition.membership.counted if one.end_offset < end]
        if partition.local_end_offset() < end:
            behind.append(_ME)
        return f"{shown} waiting-on={_nodes(behind)}"

    def isr(self) -> str:
        in_sync = self._leader.in_sync
        return f"isr={_nodes(in_sync.committed)} maximal={_nodes(in_sync.maximal)}"

    @property
    def _leader(self) -> Partition:
        assert self._partition is not None, "no `leader` before this"
        return self._partition

    def _proposed(self, change: IsrChange | None) -> str | None:
        if change is None:
            return None
        self._change = change
        return f"proposes isr={_nodes(node for node, _ in change.isr)}"


def _nodes(nodes: Iterable[NodeId]) -> str:
    return ",".join(str(node) for node in sorted(nodes)) or "nobody"
