"""Replicas whose log is unusable on this node, until the controller knows of them.

The controller then elects other leaders, and this node copies the replicas again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from uuid import UUID

import trio

from mqd.controller.replica_reports import ReplicaReports
from mqd.errors import ErrorCode, MqError

logger = logging.getLogger(__name__)


class LostReplicas:
    """Reports lost replicas, and retries until the controller has received the report."""

    def __init__(
        self, reports: ReplicaReports, retry_s: float, until_active: Callable[[], Awaitable[None]]
    ) -> None:
        """`until_active`: waits until this node has reported what its start had lost."""
        self._reports = reports
        self._retry_s = retry_s
        self._until_active = until_active
        self._lost: dict[tuple[UUID, int], None] = {}
        """Topic id and partition. By id: until there is a controller, another topic may have the
        name.
        """
        self._added = trio.Event()

    def add(self, topic_id: UUID, partition: int) -> None:
        self._lost[topic_id, partition] = None
        self._added.set()

    async def run(self) -> None:
        """Report replicas that are lost while the node runs, until cancelled."""
        while True:
            await self._added.wait()
            self._added = trio.Event()
            await self._until_active()
            if not await self.report():
                await trio.sleep(self._retry_s)
                self._added.set()

    async def report(self) -> bool:
        """Report all lost replicas, and retry until that has succeeded.

        False if the registration of this node is no longer valid. The next heartbeat finds that
        out, and the node registers again.
        """
        while self._lost:
            taken = list(self._lost)
            try:
                await self._reports.report_offline(taken)
            except MqError as error:
                logger.warning(
                    "cannot report lost replicas to the controller yet partitions=%d reason=%s",
                    len(taken),
                    error,
                )
                if error.code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
                    return False
                await trio.sleep(self._retry_s)
                continue
            for lost in taken:
                self._lost.pop(lost, None)
        return True
