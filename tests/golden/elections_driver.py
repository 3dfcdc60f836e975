"""Commands on the controller's decisions about one partition: mqd/controller/elections.py, isr.py,
brokers.py and image.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from mqd.controller.brokers import (
    ExpireSessions,
    Heartbeat,
    Register,
    decide_expire,
    decide_heartbeat,
    decide_register,
)
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.elections import ElectionType, ElectLeaders, decide_elect_leaders
from mqd.controller.image import PartitionImage
from mqd.controller.isr import (
    AlterPartitions,
    IsrChangeRequest,
    ReportOfflineReplicas,
    decide_alter_partitions,
    decide_report_offline,
)
from mqd.controller.records import CreateTopic, Placement
from mqd.types import NO_NODE, NodeId, TopicPartition
from tests.controller.cluster import CLUSTER, with_brokers

_TOPIC_ID = UUID(int=1)


class ElectionsDriver:
    """Brokers 1 to 3 hold the partition; a decision is committed at once."""

    def __init__(self, directory: Path) -> None:
        self._quorum = with_brokers(1, 2, 3)
        self._options = DecisionOptions()
        self._incarnations = 1
        self._epochs: dict[int, int] = {}

    def topic(self, *, min_insync: int = 1, unclean: bool = False) -> None:
        self._options = DecisionOptions(min_insync, unclean)
        replicas = (NodeId(1), NodeId(2), NodeId(3))
        placement = Placement(replicas, replicas[0], replicas)
        self._quorum.commit([CreateTopic("orders", _TOPIC_ID, (placement,), ())])

    def session_expires(self, *nodes: int) -> None:
        """The controller fences brokers that sent no heartbeat."""
        silent = tuple((NodeId(node), self._epoch(node)) for node in nodes)
        self._quorum.run(decide_expire, ExpireSessions(silent), self._options)

    def restarts(self, node: int, *, lost_records: bool = False) -> None:
        """A broker registers again, and is unfenced. It names its previous broker epoch only if its
        logs are complete."""
        self._incarnations += 1
        incarnation = UUID(int=10**6 + self._incarnations)
        known = -1 if lost_records else self._epoch(node)
        register = Register(NodeId(node), CLUSTER, incarnation, "host", 9092, None, known)
        self._quorum.run(decide_register, register, self._options)
        self.heartbeat(node)

    def heartbeat(self, node: int, *, shuts_down: bool = False) -> None:
        """A heartbeat unfences a broker, or requests a controlled shutdown."""
        index = self._quorum.image.index
        beat = Heartbeat(NodeId(node), self._epoch(node), index, want_shut_down=shuts_down)
        self._quorum.run(decide_heartbeat, beat, self._options)

    def alter_isr(
        self, isr: str, *, leader_epoch: int = -1, partition_epoch: int = -1
    ) -> str | None:
        """AlterPartition of the leader, with its present epochs unless others are given."""
        partition = self._partition
        change = IsrChangeRequest(
            _TOPIC_ID,
            0,
            partition.leader_epoch if leader_epoch < 0 else leader_epoch,
            partition.partition_epoch if partition_epoch < 0 else partition_epoch,
            tuple((NodeId(int(node)), self._epoch(int(node))) for node in isr.split(",")),
        )
        op = AlterPartitions(partition.leader, self._epoch(partition.leader), (change,))
        (result,) = self._quorum.run(decide_alter_partitions, op, self._options)
        return f"refused: {result.error_code.name}" if result.error_code else None

    def loses_its_log(self, node: int) -> None:
        """A broker reports that its log directory has failed."""
        op = ReportOfflineReplicas(NodeId(node), self._epoch(node), ((_TOPIC_ID, 0),))
        self._quorum.run(decide_report_offline, op, self._options)

    def elect(self, kind: str) -> str | None:
        """ElectLeaders of an operator: `preferred` or `unclean`."""
        partitions = (TopicPartition("orders", 0),)
        op = ElectLeaders(ElectionType[kind.upper()], partitions)
        (result,) = self._quorum.run(decide_elect_leaders, op, self._options)
        return f"refused: {result.error_code.name}" if result.error_code else None

    # -- what it shows

    def partition(self) -> str:
        one = self._partition
        leader = "none" if one.leader == NO_NODE else one.leader
        shown = f"leader={leader} epoch={one.leader_epoch} isr={_nodes(one.isr)}"
        if one.elr:
            shown += f" elr={_nodes(one.elr)}"
        if one.last_known_elr:
            shown += f" last-known-leader={_nodes(one.last_known_elr)}"
        return shown

    @property
    def _partition(self) -> PartitionImage:
        return self._quorum.image.topics["orders"].partitions[0]

    def _epoch(self, node: int) -> int:
        return self._quorum.image.brokers[NodeId(node)].epoch


def _nodes(nodes: Iterable[NodeId]) -> str:
    return ",".join(map(str, nodes)) or "none"
