"""The nemesis: injects random faults at random times.

Faults overlap: each one begins at a random time, lasts for a random time, and then ends. `heal`
ends all of them. The `FaultPlan` of a seed has the families of faults and their rate.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from mqd.testing.faults.disk_faults import DiskFaults
from mqd.testing.faults.faulted_cluster import FaultedCluster
from mqd.testing.faults.network_faults import NetworkFaults
from mqd.testing.faults.node_faults import NodeFaults
from mqd.testing.faults.plan import FaultPlan
from mqd.testing.probes.probes import Probes


class Nemesis:
    """Injects faults until `heal`."""

    def __init__(
        self,
        cluster: FaultedCluster,
        probes: Probes,
        plan: FaultPlan,
        chance: random.Random,
    ) -> None:
        self.cluster = cluster
        self.beside: Callable[[], Awaitable[None]] | None = None
        """A plot (plots.py) that also runs until `heal`."""
        self._plan = plan
        self._chance = chance
        self._scope = trio.CancelScope()
        nodes = NodeFaults(cluster, chance, plan.mode)
        network = NetworkFaults(cluster, chance)
        disks = DiskFaults(cluster, chance, plan.mode, probes)
        self._strikes: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": nodes.kill,
            "power": nodes.power,
            "stop": nodes.stop,
            "pause": nodes.pause,
            "skew": nodes.skew,
            "partition": network.partition,
            "stall": network.stall,
            "slow": network.slow,
            "break": network.break_connections,
            "sync": disks.sync,
            "full": disks.full,
            "corrupt": disks.corrupt,
        }
        """Family -> function that injects its fault."""

    async def run(self) -> None:
        """Inject faults at random times until `heal`."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                if self.beside is not None:
                    nursery.start_soon(self.beside)
                while True:
                    await trio.sleep(self._chance.expovariate(1 / self._plan.fault_every))
                    strike = self._strikes[self._chance.choice(self._plan.families)]
                    async with self.cluster.stage:
                        await strike()

    async def heal(self) -> None:
        """End every fault, restart every node, and wait until all processes run."""
        self._scope.cancel()
        await self.cluster.heal()
