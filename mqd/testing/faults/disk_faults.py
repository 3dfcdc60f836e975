"""Faults of disks: a failed fsync, a flipped byte, no space."""

from __future__ import annotations

import random

import trio

from mqd.testing.faults.faulted_cluster import FaultedCluster
from mqd.testing.faults.plan import Mode
from mqd.testing.node_options import COORDINATORS_MIN_INSYNC
from mqd.testing.probes.probes import Probes
from mqd.types import TopicPartition

BATCH_CHECKED_FROM = 21
"""The first byte of a batch that its CRC covers."""


class DiskFaults:
    """Each method injects one fault, and repairs the disk after a random time."""

    def __init__(
        self, cluster: FaultedCluster, chance: random.Random, mode: Mode, probes: Probes
    ) -> None:
        self._cluster = cluster
        self._chance = chance
        self._mode = mode
        self._probes = probes

    async def sync(self) -> None:
        """The next fsync of a node fails, so the node stops. Its machine loses power, too, so its
        unsynced bytes are lost.
        """
        node_id = self._cluster.target()
        if node_id is None or (self._mode is Mode.POWER_ONE and not self._cluster.is_whole()):
            return
        self._cluster.counts["sync"] += 1
        self._cluster.busy.add(node_id)
        self._cluster.disk(node_id).fail_sync()
        self._cluster.nursery.start_soon(self._mend, node_id, self._cluster.duration())

    async def _mend(self, node_id: int, seconds: float) -> None:
        with trio.move_on_after(3.0):
            await self._cluster.node(node_id).wait_gone()
        self._cluster.release(node_id)
        self._cluster.disk(node_id).mend()
        self._cluster.cut_power(node_id, seconds)

    async def corrupt(self) -> None:
        """Kill a process and flip a byte of an unsynced batch. Valid batches follow it, so it is no
        torn tail.

        Two conditions keep the loss of acknowledged records impossible. First, min.insync.replicas
        is 2. With 1, the other replicas could stop cleanly before the controller notices the kill.
        Records that only the damaged replica has would be lost. Second, every other node has an
        undamaged replica. If two were damaged before the first damage is reported, no replica of
        the ISR might have an acknowledged record.
        """
        image = self._cluster.newest_image()
        if image is None or not self._cluster.is_whole():
            return
        partition, node_id = (
            self._chance.choice(self._cluster.checked),
            self._chance.choice(self._cluster.ids),
        )
        if image.is_in_memory(partition.topic):
            return
        if (
            int(
                image.topic_configs(partition.topic).get(
                    "min.insync.replicas", COORDINATORS_MIN_INSYNC
                )
            )
            < 2
        ):
            return
        shadow = self._probes.shadow(node_id, partition)
        daemon = self._cluster.daemon(node_id)
        replica = daemon.replica.get(partition) if daemon is not None else None
        if (
            shadow is None
            or replica is None
            or not all(
                self._is_undamaged(other, partition)
                for other in self._cluster.ids
                if other != node_id
            )
        ):
            return
        places = [
            (segment, position, batch.size)
            for batch, (segment, position) in zip(shadow.batches[:-1], shadow.places)
            if batch.base_offset >= replica.log.durability.end_offset
            and segment == shadow.places[-1][0]
        ]
        if not places:
            return
        self._cluster.counts["corrupt"] += 1
        segment, position, size = self._chance.choice(places)
        self._cluster.node(node_id).kill()
        self._probes.set_aside(node_id, partition)
        path = replica.log.path / f"{segment:020d}.log"
        self._cluster.disk(node_id).corrupt(
            path, position + self._chance.randrange(BATCH_CHECKED_FROM, size)
        )
        self._cluster.later(self._cluster.duration(), self._cluster.start, node_id)

    def _is_undamaged(self, node_id: int, partition: TopicPartition) -> bool:
        daemon = self._cluster.daemon(node_id)
        replica = daemon.replica.get(partition) if daemon is not None else None
        return replica is not None and replica.log.failure is None

    async def full(self) -> None:
        node_id = self._chance.choice(self._cluster.ids)
        self._cluster.counts["full"] += 1
        self._cluster.disk(node_id).fill()
        self._cluster.later(self._cluster.duration(), self._free, node_id)

    async def _free(self, node_id: int) -> None:
        self._cluster.disk(node_id).free()
