"""Directed faults (plots): short sequences in which a guarantee depends on one check of the code.

Random faults rarely produce such a sequence. Examples: a leader is replaced while its
AlterPartition request is in flight; the node that lost acknowledged records restarts before the
others. The seed determines the plot of a run. The plot repeats, without other faults during it. A
plot contains only faults that the mode of the seed permits (plan.py), so no acknowledged record may
be lost.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import trio

from mqd.client.admin import Admin
from mqd.client.descriptions import ElectionType
from mqd.errors import MqError
from mqd.testing.clients.workload_state import WorkloadState
from mqd.testing.faults.administration import Administration
from mqd.testing.faults.faulted_cluster import FaultedCluster
from mqd.testing.faults.plan import Mode
from mqd.types import IsrChange, IsrOutcome, TopicPartition

PLOTS: dict[str, tuple[Mode, ...]] = {
    "deposed": tuple(Mode),
    "late-isr-change": tuple(Mode),
    "deleted": tuple(Mode),
    "reborn": (Mode.POWER_ONE,),
    "first-back": (Mode.POWER_ONE,),
    "blackout": (Mode.POWER_ALL,),
    "one-by-one": (Mode.POWER_ALL,),
}
"""Name -> the modes that permit the plot."""
LIKELIHOOD = 0.7
"""The probability that a seed has a plot."""
RARITY = 6
"""The weight of a plot that only one mode permits: one seed in four has this mode."""
EVERY_SECONDS = 0.7
PLAY_SECONDS_MAX = 8.0
LOOK_SECONDS = 0.01
PATIENCE_SECONDS = 3.0
"""The timeout of each step of a plot. After it, the plot ends."""
ADMIN_SECONDS = 1.0


def draw_plot(mode: Mode, chance: random.Random) -> str | None:
    """Choose the plot of a seed of this mode, or None."""
    if chance.random() >= LIKELIHOOD:
        return None
    names = [
        name
        for name, modes in PLOTS.items()
        if mode in modes
        for _ in range(RARITY if len(modes) == 1 else 1)
    ]
    return chance.choice(names)


class _GivenUpError(Exception):
    """The next step of the plot is not possible now."""


class Plots:
    """Repeats one plot until cancelled. `counts`: how often each plot was completed."""

    def __init__(
        self,
        name: str,
        cluster: FaultedCluster,
        administration: Administration,
        workload: WorkloadState,
        chance: random.Random,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._name = name
        self._cluster = cluster
        self._administration = administration
        self._workload = workload
        self._chance = chance
        self._admin = Admin(administration.client, timeout_s=ADMIN_SECONDS)
        self._play = getattr(self, "_" + name.replace("-", "_"))

    async def run(self) -> None:
        while True:
            await trio.sleep(self._chance.expovariate(1 / EVERY_SECONDS))
            async with self._cluster.stage:
                with trio.move_on_after(PLAY_SECONDS_MAX):
                    try:
                        await self._play()
                    except (_GivenUpError, MqError):
                        self.counts[f"plot {self._name} given up"] += 1
                    else:
                        self.counts[f"plot {self._name}"] += 1

    # -- the plots

    async def _deposed(self) -> None:
        """An isolated controller runs for a while, and returns with log entries that no other node
        has.
        """
        deposed = self._cluster.controller()
        if deposed is None:
            raise _GivenUpError
        others = [node_id for node_id in self._cluster.ids if node_id != deposed]
        network = self._cluster.network
        network.partition({deposed}, others, breaks=False)
        await self._until(lambda: self._cluster.controller(among=others) is not None)
        await trio.sleep(self._chance.uniform(0.1, 1.0))
        if self._chance.random() < 0.5:
            for other in others:
                network.break_connections(deposed, other)
        else:
            self._kill(deposed, self._chance.uniform(0.01, 0.1))
        network.heal()
        await trio.sleep(self._chance.uniform(0.5, 1.0))

    async def _late_isr_change(self) -> None:
        """A leader proposes a follower for its ISR. The request arrives after another node has
        become the leader.
        """
        partition, leader, follower = await self._returning()
        held = self._hold_isr_changes(leader)
        try:
            await self._until(lambda: self._is_proposed(partition, leader, follower))
            found = self._image(partition)
            heirs = [member for member in found.isr if member != leader]
            if not heirs:
                raise _GivenUpError
            heir = self._chance.choice(heirs)
            self._node(follower).pause(self._chance.uniform(0.4, 0.55))
            order = [heir, *(member for member in found.replicas if member != heir)]
            await self._admin.alter_partition_reassignments({partition: order})
            await self._admin.elect_leaders(ElectionType.PREFERRED, [partition])
            await trio.sleep(self._chance.uniform(0.1, 0.3))
        finally:
            held.set()
        await trio.sleep(0.3)

    async def _deleted(self) -> None:
        """A topic is deleted, and maybe created again with the same name, while a node with its
        replica is down.
        """
        administration = self._administration
        name = (
            self._chance.choice(sorted(administration.created))
            if administration.created
            else await administration.create()
        )
        if name is None:
            raise _GivenUpError
        await self._until(
            lambda: (
                self._cluster.newest_image() is not None
                and name in self._cluster.newest_image().topics
            )
        )
        replicas = self._cluster.newest_image().topics[name].partitions[0].replicas
        node_id = self._chance.choice(replicas)
        await self._until(lambda: self._holds(node_id, name) and name in administration.created)
        self._kill(node_id, None)
        try:
            if await administration.delete_once(name) and self._chance.random() < 0.6:
                await administration.create(name)
        finally:
            self._cluster.later(self._chance.uniform(0.01, 0.3), self._cluster.start, node_id)
        await trio.sleep(1.0)

    async def _reborn(self) -> None:
        """A follower returns and its leader proposes it for the ISR. While the request is in flight
        the follower loses power and registers again.
        """
        partition, leader, follower = await self._returning()
        held = self._hold_isr_changes(leader)
        try:
            await self._until(lambda: self._is_proposed(partition, leader, follower))
            epoch = self._cluster.newest_image().brokers[follower].epoch
            with trio.move_on_after(0.5):
                await self._workload.next_acknowledgement(partition)
            self._cluster.network.slow(leader, follower, self._chance.uniform(0.1, 0.3))
            self._cluster.cut_power(follower, self._chance.uniform(0.01, 0.05))

            def is_back() -> bool:
                broker = self._cluster.newest_image().brokers[follower]
                return broker.epoch > epoch and not broker.fenced

            await self._until(is_back)
        finally:
            held.set()
        await trio.sleep(0.5)
        self._cluster.network.heal()

    async def _first_back(self) -> None:
        """One of the last two in-sync replicas loses power, and the other is killed. The first one,
        which has lost acknowledged records, returns first.
        """
        await self._until(self._cluster.is_whole)
        partition = self._chance.choice(self._cluster.checked)
        found = self._image(partition)
        leader = found.leader
        followers = [member for member in found.isr if member != leader]
        if not followers:  # a topic in memory may have one replica
            raise _GivenUpError
        follower = self._chance.choice(followers)
        gone = [member for member in found.replicas if member not in (leader, follower)]
        for member in gone:
            self._kill(member, None)
        await self._until(
            lambda: (
                set(self._image(partition).isr) == {leader, follower}
                and self._image(partition).leader == leader
            )
        )
        with trio.move_on_after(1.0):
            await self._workload.next_acknowledgement(partition)
        self._cluster.cut_power(follower, self._chance.uniform(0.05, 0.2))
        self._kill(leader, 3.0)
        for member in gone:
            self._cluster.later(self._chance.uniform(0.1, 0.3), self._cluster.start, member)
        await trio.sleep(4.0)

    async def _blackout(self) -> None:
        """With slow disks, all nodes lose power right after an acknowledgement."""
        seconds = self._chance.uniform(0.02, 0.15)
        for node_id in self._cluster.ids:
            self._cluster.disk(node_id).slow_by = seconds
        with trio.move_on_after(1.5):
            await self._workload.next_acknowledgement()
        for node_id in self._cluster.live():
            self._cluster.cut_power(node_id, self._chance.uniform(0.05, 0.5))
        await trio.sleep(2.0)

    async def _one_by_one(self) -> None:
        """A leader is killed right after an acknowledgement. When a follower has become the leader,
        all other nodes lose power.
        """
        partition = self._chance.choice(self._cluster.checked)
        found = self._image(partition)
        leader = found.leader
        if leader not in self._cluster.live() or len(found.isr) < 3:
            raise _GivenUpError
        others = [node_id for node_id in self._cluster.ids if node_id != leader]
        seconds = self._chance.uniform(0.3, 1.0)
        for node_id in others:
            self._cluster.disk(node_id).slow_logs_by = seconds
        with trio.move_on_after(1.5):
            await self._workload.next_acknowledgement(partition)
        self._kill(leader, 3.0)
        await self._until(lambda: self._image(partition).leader not in (leader, -1))
        for node_id in others:
            if node_id in self._cluster.live():
                self._cluster.cut_power(node_id, self._chance.uniform(0.05, 0.5))
        await trio.sleep(2.0)

    # -- steps of plots

    async def _returning(self) -> tuple[TopicPartition, int, int]:
        """Find a partition, its leader, and a starting follower that was not in the ISR. Neither
        node is the controller.
        """
        await self._until(self._cluster.is_whole)
        partition = self._chance.choice(self._cluster.checked)
        found = self._image(partition)
        leader, controller = found.leader, self._cluster.controller()
        candidates = [member for member in found.isr if member not in (leader, controller)]
        if not candidates:
            raise _GivenUpError
        follower = self._chance.choice(candidates)
        self._kill(follower, None)
        await self._until(lambda: follower not in self._image(partition).isr)
        if self._image(partition).leader != leader:
            raise _GivenUpError
        self._cluster.later(0.0, self._cluster.start, follower)
        return partition, leader, follower

    def _hold_isr_changes(self, node_id: int) -> trio.Event:
        """Keep AlterPartition requests of this node in flight until the event is set."""
        daemon = self._cluster.daemon(node_id)
        if daemon is None:
            raise _GivenUpError
        arrive, send = trio.Event(), daemon.controller.replica_reports.alter_partitions

        async def alter(changes: Sequence[IsrChange]) -> list[IsrOutcome]:
            await arrive.wait()
            outcomes: list[IsrOutcome] = await send(changes)
            return outcomes

        daemon.controller.replica_reports.alter_partitions = alter
        return arrive

    def _is_proposed(self, partition: TopicPartition, leader: int, follower: int) -> bool:
        daemon = self._cluster.daemon(leader)
        replica = daemon.replica.get(partition) if daemon is not None else None
        return replica is not None and follower in (replica.pending_isr or ())

    def _holds(self, node_id: int, topic: str) -> bool:
        daemon = self._cluster.daemon(node_id)
        return daemon is not None and topic.encode() in daemon.replica.by_name

    def _kill(self, node_id: int, seconds: float | None) -> None:
        """Kill a process, and start it again after this many seconds. None: the caller starts it,
        or `heal`.
        """
        self._cluster.counts["kill"] += 1
        self._node(node_id).kill()
        if seconds is not None:
            self._cluster.later(seconds, self._cluster.start, node_id)

    def _node(self, node_id: int) -> Any:
        return self._cluster.node(node_id)

    def _image(self, partition: TopicPartition) -> Any:
        """The state of the partition in the newest image of a live node."""
        image = self._cluster.newest_image()
        found = image.partition(*partition) if image is not None else None
        if found is None:
            raise _GivenUpError
        return found

    async def _until(self, holds: Callable[[], bool]) -> None:
        with trio.move_on_after(PATIENCE_SECONDS):
            while not holds():  # noqa: ASYNC110
                await trio.sleep(LOOK_SECONDS)
            return
        raise _GivenUpError
