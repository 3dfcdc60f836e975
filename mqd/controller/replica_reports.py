"""What this node reports to the controller about its replicas: new ISRs of partitions that it leads
(AlterPartition), and lost replicas (ReportOfflineReplicas).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from mqd.controller.channel import OWN_REQUEST_TIMEOUT_S, ControllerChannel
from mqd.controller.isr import (
    AlterPartitions,
    ReportOfflineReplicas,
    alter_partition_request,
    alter_partition_response,
    isr_outcomes,
)
from mqd.controller.operations import Operations
from mqd.controller.responses import check_response
from mqd.types import IsrChange, IsrOutcome, NodeId

_ALTERED_AT_ONCE = 1_000
_REPORTED_AT_ONCE = 1_000
"""Partitions of one request."""


class ReplicaReports:
    """`broker_epoch`: of this node's present registration."""

    def __init__(
        self,
        node_id: NodeId,
        operations: Operations,
        channel: ControllerChannel,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._operations = operations
        self._channel = channel
        self._broker_epoch = broker_epoch

    async def alter_partitions(self, changes: Sequence[IsrChange]) -> list[IsrOutcome]:
        """Propose ISRs of partitions that this node leads. One outcome for each change, in order.

        Raises MqError if the outcome is unknown, or if a whole request was rejected.
        """
        outcomes: list[IsrOutcome] = []
        for start in range(0, len(changes), _ALTERED_AT_ONCE):
            outcomes += await self._alter_partitions(changes[start : start + _ALTERED_AT_ONCE])
        return outcomes

    async def _alter_partitions(self, changes: Sequence[IsrChange]) -> Iterable[IsrOutcome]:
        request = alter_partition_request(self._node_id, self._broker_epoch(), changes)

        async def here() -> Mapping[str, Any]:
            return alter_partition_response(
                await self._operations.submit(AlterPartitions.of_request(request, 3))
            )

        response = await self._channel.at_controller(
            here, "alter_partition", 3, request, timeout=OWN_REQUEST_TIMEOUT_S
        )
        check_response(response)
        return isr_outcomes(changes, response)

    async def report_offline(self, partitions: Collection[tuple[UUID, int]]) -> None:
        """Report this node's replicas of these partitions (topic id, index) as lost, also
        while the node is fenced. Raises MqError.
        """
        replicas = [
            (topic_id, index)
            for topic_id, index in sorted(partitions)
            if topic_id in self._operations.image.topics_by_id
        ]
        for start in range(0, len(replicas), _REPORTED_AT_ONCE):
            await self._report_offline(replicas[start : start + _REPORTED_AT_ONCE])

    async def _report_offline(self, replicas: Sequence[tuple[UUID, int]]) -> None:
        by_id: dict[UUID, list[int]] = {}
        for topic_id, index in replicas:
            by_id.setdefault(topic_id, []).append(index)
        request = {
            "broker_id": self._node_id,
            "broker_epoch": self._broker_epoch(),
            "topics": [
                {"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in by_id.items()
            ],
        }
        op = ReportOfflineReplicas(self._node_id, self._broker_epoch(), tuple(replicas))

        async def here() -> Mapping[str, Any]:
            await self._operations.submit(op)
            return {"error_code": 0}

        check_response(
            await self._channel.at_controller(
                here, "report_offline_replicas", 0, request, timeout=OWN_REQUEST_TIMEOUT_S
            )
        )
