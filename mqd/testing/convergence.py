"""Liveness after the last fault: all replicas must become in sync, and every client must be
served.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import trio

from mqd.testing.clients.workload import Workload
from mqd.testing.faults.faulted_cluster import FaultedCluster
from mqd.testing.probes.probes import Probes
from mqd.types import TopicPartition

CONVERGE_SECONDS = 30.0
"""The virtual time after the end of all faults within which all replicas must be in sync, and every
client served.
"""
LOOK_SECONDS = 0.1
"""The pause between two checks of what is missing."""


class LivenessError(Exception):
    """An event that must follow the last fault did not happen in time."""


class Convergence:
    """Waits until nothing is missing."""

    def __init__(self, cluster: FaultedCluster, probes: Probes, workload: Workload) -> None:
        self._cluster = cluster
        self._probes = probes
        self._workload = workload

    async def wait(self, partitions: list[TopicPartition]) -> float:
        """Stop the producers when each has an acknowledgement, and wait until consumers have read
        everything. Returns the virtual seconds that took. Raises LivenessError if it takes too
        long.
        """
        healed_at = trio.current_time()
        missing: str | None = "nothing"
        with trio.move_on_after(CONVERGE_SECONDS):
            while missing is not None:
                await trio.sleep(LOOK_SECONDS)
                missing = self._missing(healed_at)
            missing = "an end of the producers"
            await self._workload.stop()
            while missing is not None:
                await trio.sleep(LOOK_SECONDS)
                missing = self._unread(partitions) or self._missing(-math.inf)
        if missing is not None:
            raise LivenessError(
                f"{CONVERGE_SECONDS:g} s after all faults had ended there was still "
                f"missing: {missing}"
            )
        return trio.current_time() - healed_at

    def _missing(self, healed_at: float) -> str | None:
        if self._cluster.controller() is None:
            return "a controller"
        if not self._cluster.is_whole():
            image = self._cluster.newest_image()
            fenced = [broker.node_id for broker in image.brokers.values() if broker.fenced]
            short = [
                f"{topic.name}-{number}: {partition}"
                for topic in image.topics.values()
                for number, partition in enumerate(topic.partitions)
                if set(partition.isr) != set(partition.replicas) or partition.leader < 0
            ]
            ended = [
                node_id for node_id, node in self._cluster.cluster.nodes.items() if not node.running
            ]
            return f"replicas in sync; ended: {ended}, fenced: {fenced}, {'; '.join(short[:3])}"
        unserved = sorted(
            name for name, at in self._workload.state.acknowledged_at.items() if at <= healed_at
        )
        return (
            f"acknowledgements for {', '.join(unserved)}"
            if unserved
            else self._probes.undeleted() or self._probes.unreleased()
        )

    def _unread(self, partitions: Iterable[TopicPartition]) -> str | None:
        for (consumer, place), offset in self._workload.state.positions.items():
            if place in partitions and self._probes.is_committed(place, offset):
                return f"records from {offset} on of {place} for {consumer}"
        return None
