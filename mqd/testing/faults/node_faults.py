"""Faults of nodes: kills, power cuts, clean shutdowns, pauses and wrong clocks."""

from __future__ import annotations

import random

import trio

from mqd.testing.faults.faulted_cluster import FaultedCluster
from mqd.testing.faults.plan import Mode


class NodeFaults:
    """Each method injects one fault, and restarts the node after a random time."""

    def __init__(self, cluster: FaultedCluster, chance: random.Random, mode: Mode) -> None:
        self._cluster = cluster
        self._chance = chance
        self._mode = mode

    async def kill(self) -> None:
        """Kill one, some or all processes; at times again while they recover."""
        targets = {self._cluster.target()}
        if self._chance.random() < 0.3:
            targets.update(
                node_id for node_id in self._cluster.live() if self._chance.random() < 0.5
            )
        for node_id in sorted(target for target in targets if target is not None):
            self._cluster.counts["kill"] += 1
            if self._chance.random() < 0.2:  # in the middle of a write
                self._cluster.node(node_id).kill_in_write(self._chance.randrange(20))
                self._cluster.nursery.start_soon(
                    self._start_when_gone, node_id, self._cluster.duration()
                )
                continue
            self._cluster.node(node_id).kill()
            self._cluster.later(self._cluster.duration(), self._cluster.start, node_id)
            if self._chance.random() < 0.2:
                self._cluster.later(
                    self._cluster.duration() + self._chance.uniform(0.001, 0.1),
                    self._kill_again,
                    node_id,
                )

    async def _kill_again(self, node_id: int) -> None:
        if node_id in self._cluster.live():
            self._cluster.counts["kill"] += 1
            self._cluster.node(node_id).kill()
            self._cluster.later(self._cluster.duration(), self._cluster.start, node_id)

    async def _start_when_gone(self, node_id: int, seconds: float) -> None:
        with trio.move_on_after(5.0):
            await self._cluster.node(node_id).wait_gone()
        self._cluster.later(seconds, self._cluster.start, node_id)

    async def power(self) -> None:
        targets = {self._cluster.target()}
        if self._mode is Mode.POWER_ONE:
            if not self._cluster.is_whole():
                return await self.kill()
        elif self._chance.random() < 0.5:
            targets.update(node_id for node_id in self._cluster.ids if self._chance.random() < 0.5)
            if self._chance.random() < 0.3:
                targets.update(self._cluster.ids)
        for node_id in sorted(
            target for target in targets if target is not None and target not in self._cluster.busy
        ):
            self._cluster.cut_power(node_id, self._cluster.duration())
        # the remaining node may be the one that has lost records
        if self._mode is Mode.POWER_ONE and self._chance.random() < 0.5:
            for node_id in self._cluster.live():
                if self._chance.random() < 0.7:
                    self._cluster.counts["kill"] += 1
                    self._cluster.node(node_id).kill()
                    self._cluster.later(self._cluster.duration(), self._cluster.start, node_id)
        return None

    async def stop(self) -> None:
        """Stop a node cleanly, and start it again."""
        node_id = self._cluster.target()
        if node_id is None:
            return
        self._cluster.counts["stop"] += 1
        self._cluster.nursery.start_soon(self._stop_and_start, node_id, self._cluster.duration())

    async def _stop_and_start(self, node_id: int, seconds: float) -> None:
        self._cluster.busy.add(node_id)
        try:
            with trio.move_on_after(10.0):
                await self._cluster.node(node_id).stop()
            if self._cluster.node(node_id).running:
                self._cluster.node(node_id).kill()
        finally:
            self._cluster.release(node_id)
        self._cluster.later(seconds, self._cluster.start, node_id)

    async def pause(self) -> None:
        node_id = self._cluster.target()
        if node_id is not None:
            self._cluster.counts["pause"] += 1
            self._cluster.node(node_id).pause(self._cluster.duration())

    async def skew(self) -> None:
        self._cluster.counts["skew"] += 1
        magnitude = 1.5 ** self._chance.randrange(6, 32) / 1000
        self._cluster.node(self._chance.choice(self._cluster.ids)).skew(
            self._chance.choice([-1, 1]) * magnitude
        )
