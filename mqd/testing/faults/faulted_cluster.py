"""The cluster for faults: its live nodes, its leaders, and steps that faults share."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import trio

from mqd.raft.machine import Role
from mqd.testing.cluster import Cluster
from mqd.testing.cluster_network import ClusterNetwork
from mqd.testing.disk import MemoryDisk
from mqd.testing.node import SimulatedNode
from mqd.testing.probes.probes import Probes
from mqd.types import TopicPartition

SECONDS_OF_FAULTS = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)
"""How long a node is down, paused or partitioned: shorter and longer than a session, and about as
long.
"""


class FaultedCluster:
    """`counts`: the number of faults of each family."""

    def __init__(
        self,
        cluster: Cluster,
        probes: Probes,
        chance: random.Random,
        nursery: trio.Nursery,
        checked: list[TopicPartition],
    ) -> None:
        """`checked`: the partitions whose records must survive."""
        self.counts: Counter[str] = Counter()
        self.cluster = cluster
        self.checked = checked
        self.nursery = nursery
        self.busy: set[int] = set()
        """Nodes that are being stopped or started."""
        self.stage = trio.Lock()
        """Held during one fault of the nemesis, or during a whole plot (plots.py)."""
        self._probes = probes
        self._chance = chance
        self._healed = False
        self._epochs_before_cut: dict[int, int] = {}
        self._idle = trio.Event()
        """Set when a node is no longer busy."""

    @property
    def ids(self) -> list[int]:
        return sorted(self.cluster.nodes)

    def live(self) -> list[int]:
        return [
            node_id
            for node_id in self.ids
            if self.cluster.nodes[node_id].running and node_id not in self.busy
        ]

    @property
    def network(self) -> ClusterNetwork:
        return self.cluster.network

    def node(self, node_id: int) -> SimulatedNode:
        return self.cluster.nodes[node_id]

    def disk(self, node_id: int) -> MemoryDisk:
        return self.cluster.disk(node_id)

    def daemon(self, node_id: int) -> Any:
        return self.cluster.daemon(node_id)

    # -- the state of the cluster

    def controller(self, among: Collection[int] | None = None) -> int | None:
        """The node that leads the quorum in the highest term, of all or of those `among`."""
        best = None
        for node_id in self.live():
            if among is not None and node_id not in among:
                continue
            daemon = self.daemon(node_id)
            status = daemon.raft.status() if daemon is not None else None
            if (
                status is not None
                and status.role is Role.LEADER
                and (best is None or status.term > best[0])
            ):
                best = (status.term, node_id)
        return best[1] if best is not None else None

    def newest_image(self) -> Any:
        """The image of the live node that has applied the most entries; None without a live
        node.
        """
        images = [
            daemon.machine.image
            for node_id in self.ids
            if (daemon := self.daemon(node_id)) is not None
        ]
        return max(images, key=lambda image: image.index, default=None)

    def leader_of(self, partition: TopicPartition) -> int | None:
        image = self.newest_image()
        found = image.partition(*partition) if image is not None else None
        return found.leader if found is not None else None

    def is_whole(self) -> bool:
        """Whether all nodes run and, by the controller's metadata, every replica of every partition
        is in sync.
        """
        image = self.newest_image()
        if image is None or self.busy or len(self.live()) < len(self.ids):
            return False
        for node_id in self.ids:
            broker = image.brokers.get(node_id)
            if (
                broker is None
                or broker.fenced
                or broker.epoch <= self._epochs_before_cut.get(node_id, -1)
            ):
                return False
        return all(
            set(partition.isr) == set(partition.replicas) and partition.leader >= 0
            for topic in image.topics.values()
            for partition in topic.partitions
        )

    # -- steps that faults share

    def target(self) -> int | None:
        """A random live node: the controller and leaders more often than others."""
        live = self.live()
        if not live:
            return None
        draw = self._chance.random()
        if draw < 0.3 and (controller := self.controller()) in live:
            return controller
        if draw < 0.6:
            leader = self.leader_of(self._chance.choice(self.checked))
            if leader in live:
                return leader
        return self._chance.choice(live)

    def duration(self) -> float:
        return self._chance.choice(SECONDS_OF_FAULTS) * self._chance.uniform(0.5, 1.5)

    def later(self, seconds: float, what: Callable[..., Awaitable[None]], *args: Any) -> None:
        async def wait() -> None:
            await trio.sleep(seconds)
            if not self._healed:
                await what(*args)

        self.nursery.start_soon(wait)

    async def start(self, node_id: int) -> None:
        if node_id in self.busy or self.node(node_id).running:
            return
        self.busy.add(node_id)
        try:
            self.cluster.disk(node_id).mend()
            await self.node(node_id).start(wait=False)
        finally:
            self.release(node_id)

    def cut_power(self, node_id: int, seconds: float) -> None:
        self.counts["power"] += 1
        image = self.newest_image()
        broker = image.brokers.get(node_id) if image is not None else None
        self._epochs_before_cut[node_id] = broker.epoch if broker is not None else -1
        self._probes.power_cut(node_id)
        self.node(node_id).power_cut()
        self.later(seconds, self.start, node_id)

    def release(self, node_id: int) -> None:
        self.busy.discard(node_id)
        self._idle.set()
        self._idle = trio.Event()

    async def heal(self) -> None:
        """End every fault, restart every node, and wait until all processes run."""
        self._healed = True
        self.cluster.network.heal()
        for node_id in self.ids:
            self.cluster.disk(node_id).mend()
            self.node(node_id).resume()
        while self.busy:
            await self._idle.wait()
        for node_id in self.ids:
            await self.start(node_id)
