"""What goes wrong, and when: a seeded nemesis, and administration beside it.

Faults overlap: each begins at a random time, lasts for a random time and ends by itself; `heal`
ends all of them. Which families a seed uses, how often they strike and what a power cut may take is
drawn once, as a `Plan`.

Power cuts need care. What a topic without `flush.before.ack` acknowledged is in the memory of its
in-sync replicas, and is lost where all of them lose power (docs/INVARIANTS.md, I1). So there are
three modes, in each of which nothing acknowledged may be lost:

- KILL: any number of processes is killed; machines go on.
- POWER_ONE: one node loses power, and no other until every replica is in sync again; processes are
  killed besides.
- POWER_ALL: any number of nodes loses power at once, and every topic has `flush.before.ack`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any

import trio

from mqd.client.admin import CREATE_TOPICS, DELETE_TOPICS, Admin
from mqd.client.cluster import ClusterClient
from mqd.client.descriptions import (
    END_OF_LOG,
    ConfigChange,
    ConfigOperation,
    ElectionType,
    Resource,
    ResourceType,
)
from mqd.errors import ErrorCode, MqError
from mqd.protocol.batch_builder import build_batch
from mqd.raft.machine import Role
from mqd.testing.cluster import Cluster
from mqd.testing.node import SimulatedNode
from mqd.testing.probes.probes import Probes
from mqd.testing.workload import PRODUCE, PRODUCE_VERSION, produce_body
from mqd.types import TopicPartition


class Mode(Enum):
    """What may happen to the power."""

    KILL = "kill"
    POWER_ONE = "power-one"
    POWER_ALL = "power-all"


FAMILIES = (
    "kill",
    "power",
    "stop",
    "pause",
    "partition",
    "stall",
    "slow",
    "break",
    "skew",
    "sync",
    "full",
    "corrupt",
)
SECONDS_OF_FAULTS = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)
"""How long a node is down, paused or cut off: below, around and above a session."""
BATCH_CHECKED_FROM = 21
"""The first byte of a batch that its CRC covers."""
COORDINATORS_MIN_INSYNC = 2
"""Where a topic does not say it, as those of the coordinators do not: runner.py gives the
nodes this option.
"""
SHORTENED = "x-short"
"""The topic that loses its oldest records. DeleteRecords may remove what another replica has in
another version: it was cut off from its leader, and its log agrees only from the new log start on.
So records of this topic are compared with nothing.
"""
THROWAWAY = "x"
"""The first letter of topics that administration makes and deletes; their records are
nobody's business.
"""


_RETENTION: tuple[dict[str, str], ...] = (
    {"retention.ms": "400", "segment.ms": "200", "file.delete.delay.ms": "100"},
    {"segment.ms": "200", "file.delete.delay.ms": "100"},
)
"""Configurations of a topic that gets shorter; the second one by DeleteRecords alone."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one seed does."""

    mode: Mode
    families: tuple[str, ...]
    fault_every: float
    """Mean seconds between faults."""
    admin_every: float

    @classmethod
    def draw(cls, chance: random.Random) -> Plan:
        mode = chance.choice([Mode.KILL, Mode.KILL, Mode.POWER_ONE, Mode.POWER_ALL])
        families = [family for family in FAMILIES if chance.random() < 0.6]
        if mode is Mode.KILL:
            families = [family for family in families if family not in ("power", "sync")]
        else:
            families = [family for family in families if family != "corrupt"]
            if "power" not in families:
                families.append("power")
        return cls(
            mode,
            tuple(families or ["kill"]),
            chance.choice([0.3, 0.7, 1.5]),
            chance.choice([0.3, 1.0, 4.0]),
        )


class Nemesis:
    """Strikes until `heal`. `counts` tells what it did."""

    def __init__(
        self,
        cluster: Cluster,
        probes: Probes,
        plan: Plan,
        chance: random.Random,
        nursery: trio.Nursery,
        checked: list[TopicPartition],
    ) -> None:
        """`checked`: the partitions whose records must survive."""
        self.counts: Counter[str] = Counter()
        self.cluster = cluster
        self._probes = probes
        self._plan = plan
        self._chance = chance
        self._nursery = nursery
        self.checked = checked
        self._scope = trio.CancelScope()
        self._healed = False
        self._epochs_before_cut: dict[int, int] = {}
        self._busy: set[int] = set()
        """Nodes that are being stopped or started."""
        self._idle = trio.Event()
        """Set when one of them is done."""
        self.beside: Callable[[], Awaitable[None]] | None = None
        """A plot (plots.py), played in the scope of this one."""
        self.stage = trio.Lock()
        """Held by a strike, and for the length of a plot."""

    @property
    def ids(self) -> list[int]:
        return sorted(self.cluster.nodes)

    def live(self) -> list[int]:
        return [
            node_id
            for node_id in self.ids
            if self.cluster.nodes[node_id].running and node_id not in self._busy
        ]

    # -- life

    async def run(self) -> None:
        """Strike now and then, until `heal`."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                if self.beside is not None:
                    nursery.start_soon(self.beside)
                while True:
                    await trio.sleep(self._chance.expovariate(1 / self._plan.fault_every))
                    family = self._chance.choice(self._plan.families)
                    strike: Callable[[], Awaitable[None]] = getattr(self, f"_{family}")
                    async with self.stage:
                        await strike()

    async def heal(self) -> None:
        """End every fault and bring every node back; returns when all processes run."""
        self._healed = True
        self._scope.cancel()
        self.cluster.network.heal()
        for node_id in self.ids:
            self.cluster.disk(node_id).mend()
            self._node(node_id).resume()
        while self._busy:
            await self._idle.wait()
        for node_id in self.ids:
            await self.start(node_id)

    def _release(self, node_id: int) -> None:
        self._busy.discard(node_id)
        self._idle.set()
        self._idle = trio.Event()

    def later(self, seconds: float, what: Callable[..., Awaitable[None]], *args: Any) -> None:
        async def wait() -> None:
            await trio.sleep(seconds)
            if not self._healed:
                await what(*args)

        self._nursery.start_soon(wait)

    # -- whom

    def _target(self) -> int | None:
        """Anybody alive; the controller or a leader more often than others."""
        live = self.live()
        if not live:
            return None
        draw = self._chance.random()
        if draw < 0.3 and (controller := self.controller()) in live:
            return controller
        if draw < 0.6:
            leader = self._leader_of(self._chance.choice(self.checked))
            if leader in live:
                return leader
        return self._chance.choice(live)

    def controller(self, among: Collection[int] | None = None) -> int | None:
        """The node that leads the quorum in the highest term, of all or of those `among`."""
        best = None
        for node_id in self.live():
            if among is not None and node_id not in among:
                continue
            daemon = self.cluster.daemon(node_id)
            status = daemon.raft.status() if daemon is not None else None
            if (
                status is not None
                and status.role is Role.LEADER
                and (best is None or status.term > best[0])
            ):
                best = (status.term, node_id)
        return best[1] if best is not None else None

    def newest_image(self) -> Any:
        """The image of the live node that has applied most; None while there is no node."""
        images = [
            daemon.machine.image
            for node_id in self.ids
            if (daemon := self.cluster.daemon(node_id)) is not None
        ]
        return max(images, key=lambda image: image.index, default=None)

    def _leader_of(self, partition: TopicPartition) -> int | None:
        image = self.newest_image()
        found = image.partition(*partition) if image is not None else None
        return found.leader if found is not None else None

    def is_whole(self) -> bool:
        """Whether all nodes live and every replica of every partition is in sync, as the
        controller knows it.
        """
        image = self.newest_image()
        if image is None or self._busy or len(self.live()) < len(self.ids):
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

    # -- nodes

    def _node(self, node_id: int) -> SimulatedNode:
        return self.cluster.nodes[node_id]

    async def start(self, node_id: int) -> None:
        if node_id in self._busy or self._node(node_id).running:
            return
        self._busy.add(node_id)
        try:
            self.cluster.disk(node_id).mend()
            await self._node(node_id).start(wait=False)
        finally:
            self._release(node_id)

    def _duration(self) -> float:
        return self._chance.choice(SECONDS_OF_FAULTS) * self._chance.uniform(0.5, 1.5)

    async def _kill(self) -> None:
        """One, some or all processes; now and then a second time while they recover."""
        targets = {self._target()}
        if self._chance.random() < 0.3:
            targets.update(node_id for node_id in self.live() if self._chance.random() < 0.5)
        for node_id in sorted(target for target in targets if target is not None):
            self.counts["kill"] += 1
            if self._chance.random() < 0.2:  # in the middle of a write
                self._node(node_id).kill_in_write(self._chance.randrange(20))
                self._nursery.start_soon(self._start_when_gone, node_id, self._duration())
                continue
            self._node(node_id).kill()
            self.later(self._duration(), self.start, node_id)
            if self._chance.random() < 0.2:
                self.later(
                    self._duration() + self._chance.uniform(0.001, 0.1), self._kill_again, node_id
                )

    async def _kill_again(self, node_id: int) -> None:
        if node_id in self.live():
            self.counts["kill"] += 1
            self._node(node_id).kill()
            self.later(self._duration(), self.start, node_id)

    async def _start_when_gone(self, node_id: int, seconds: float) -> None:
        with trio.move_on_after(5.0):
            await self._node(node_id).wait_gone()
        self.later(seconds, self.start, node_id)

    async def _power(self) -> None:
        targets = {self._target()}
        if self._plan.mode is Mode.POWER_ONE:
            if not self.is_whole():
                return await self._kill()
        elif self._chance.random() < 0.5:
            targets.update(node_id for node_id in self.ids if self._chance.random() < 0.5)
            if self._chance.random() < 0.3:
                targets.update(self.ids)
        for node_id in sorted(
            target for target in targets if target is not None and target not in self._busy
        ):
            self.cut_power(node_id, self._duration())
        # who is left may be the one that lost something
        if self._plan.mode is Mode.POWER_ONE and self._chance.random() < 0.5:
            for node_id in self.live():
                if self._chance.random() < 0.7:
                    self.counts["kill"] += 1
                    self._node(node_id).kill()
                    self.later(self._duration(), self.start, node_id)
        return None

    def cut_power(self, node_id: int, seconds: float) -> None:
        self.counts["power"] += 1
        image = self.newest_image()
        broker = image.brokers.get(node_id) if image is not None else None
        self._epochs_before_cut[node_id] = broker.epoch if broker is not None else -1
        self._probes.power_cut(node_id)
        self._node(node_id).power_cut()
        self.later(seconds, self.start, node_id)

    async def _stop(self) -> None:
        """A clean stop, and a start."""
        node_id = self._target()
        if node_id is None:
            return
        self.counts["stop"] += 1
        self._nursery.start_soon(self._stop_and_start, node_id, self._duration())

    async def _stop_and_start(self, node_id: int, seconds: float) -> None:
        self._busy.add(node_id)
        try:
            with trio.move_on_after(10.0):
                await self._node(node_id).stop()
            if self._node(node_id).running:
                self._node(node_id).kill()
        finally:
            self._release(node_id)
        self.later(seconds, self.start, node_id)

    async def _pause(self) -> None:
        node_id = self._target()
        if node_id is not None:
            self.counts["pause"] += 1
            self._node(node_id).pause(self._duration())

    async def _skew(self) -> None:
        self.counts["skew"] += 1
        magnitude = 1.5 ** self._chance.randrange(6, 32) / 1000
        self._node(self._chance.choice(self.ids)).skew(self._chance.choice([-1, 1]) * magnitude)

    # -- network

    async def _partition(self) -> None:
        """Halves, one alone, or a bridge: two halves that one node sees both of."""
        self.counts["partition"] += 1
        ids = self.ids[:]
        self._chance.shuffle(ids)
        target = self._target()
        kind = self._chance.choice(["halves", "one", "target", "bridge"])
        network = self.cluster.network
        if kind == "one" or (kind == "target" and target is None):
            network.partition({ids[0]}, set(ids[1:]))
        elif kind == "target":
            assert target is not None
            network.partition({target}, set(ids) - {target})
        else:
            middle = len(ids) // 2
            bridge = {ids[middle]} if kind == "bridge" else set()
            network.partition(set(ids[:middle]) - bridge, set(ids[middle:]) - bridge)
        self.later(self._duration(), self._heal_network)

    async def _heal_network(self) -> None:
        self.cluster.network.heal()

    async def _stall(self) -> None:
        """Bytes of one direction wait; of one link, or of all that a node sends."""
        self.counts["stall"] += 1
        source = self._target() or self.ids[0]
        others = [node_id for node_id in self.ids if node_id != source]
        for other in others if self._chance.random() < 0.4 else [self._chance.choice(others)]:
            self.cluster.network.stall(source, other)
        self.later(self._duration(), self._heal_network)

    async def _slow(self) -> None:
        self.counts["slow"] += 1
        a, b = self._chance.sample(self.ids, 2)
        self.cluster.network.slow(a, b, self._chance.choice([0.01, 0.05, 0.3]))
        self.later(self._duration(), self._heal_network)

    async def _break(self) -> None:
        self.counts["break"] += 1
        a, b = self._chance.sample(self.ids, 2)
        self.cluster.network.break_connections(a, b)

    # -- disks

    async def _sync(self) -> None:
        """The next fsync of a node fails: it ends.

        The machine is switched off with it, for what was not synced is nowhere.
        """
        node_id = self._target()
        if node_id is None or (self._plan.mode is Mode.POWER_ONE and not self.is_whole()):
            return
        self.counts["sync"] += 1
        self._busy.add(node_id)
        self.cluster.disk(node_id).fail_sync()
        self._nursery.start_soon(self._mend, node_id, self._duration())

    async def _mend(self, node_id: int, seconds: float) -> None:
        with trio.move_on_after(3.0):
            await self._node(node_id).wait_gone()
        self._release(node_id)
        self.cluster.disk(node_id).mend()
        self.cut_power(node_id, seconds)

    async def _corrupt(self) -> None:
        """A byte of a batch that its process has not synced is another after a kill, and sound
        batches follow: no torn tail.

        Only where two replicas must be in sync: with one, the others may stop in order before the
        death is noticed, and what the damaged replica alone was left to vouch for is lost, rightly.
        And only where every other node has a sound replica, whatever the metadata says: of a second
        damage before the first one is told, nothing that is acknowledged need be left in the ISR.
        """
        image = self.newest_image()
        if image is None or not self.is_whole():
            return
        partition, node_id = self._chance.choice(self.checked), self._chance.choice(self.ids)
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
        daemon = self.cluster.daemon(node_id)
        replica = daemon.replica.get(partition) if daemon is not None else None
        if (
            shadow is None
            or replica is None
            or not all(self._has_sound(other, partition) for other in self.ids if other != node_id)
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
        self.counts["corrupt"] += 1
        segment, position, size = self._chance.choice(places)
        self._node(node_id).kill()
        self._probes.set_aside(node_id, partition)
        path = replica.log.path / f"{segment:020d}.log"
        self.cluster.disk(node_id).corrupt(
            path, position + self._chance.randrange(BATCH_CHECKED_FROM, size)
        )
        self.later(self._duration(), self.start, node_id)

    def _has_sound(self, node_id: int, partition: TopicPartition) -> bool:
        daemon = self.cluster.daemon(node_id)
        replica = daemon.replica.get(partition) if daemon is not None else None
        return replica is not None and replica.log.failure is None

    async def _full(self) -> None:
        node_id = self._chance.choice(self.ids)
        self.counts["full"] += 1
        self.cluster.disk(node_id).fill()
        self.later(self._duration(), self._free, node_id)

    async def _free(self, node_id: int) -> None:
        self.cluster.disk(node_id).free()


class Administration:
    """Changes of the metadata beside the faults. What was acknowledged must be true at the end."""

    def __init__(
        self,
        client: ClusterClient,
        plan: Plan,
        chance: random.Random,
        nodes: list[int],
        checked: list[TopicPartition],
        wall_ms: Callable[[], int],
    ) -> None:
        self._wall_ms = wall_ms
        self.created: dict[str, int] = {}
        """Topics whose creation was acknowledged, and their partitions."""
        self.deleted: set[str] = set()
        self.doubtful: set[str] = set()
        """Topics of which nobody can tell whether they are there."""
        self.counts: Counter[str] = Counter()
        self._admin = Admin(client, timeout_s=4.0)
        self.client = client
        self._plan = plan
        self._chance = chance
        self._nodes = nodes
        self._checked = checked
        self._number = 0

    async def run(self) -> None:
        """Until cancelled: a topic comes, grows or goes, leaders are elected, replicas
        move, options change.
        """
        deeds: list[Callable[[], Awaitable[object]]] = [
            self.create,
            self.create,
            self.delete,
            self.delete,
        ]
        deeds += [self._elect, self._move, self._move, self._configure, self._grow]
        while True:
            await trio.sleep(self._chance.expovariate(1 / self._plan.admin_every))
            try:
                await self._chance.choice(deeds)()
            except MqError:
                self.counts["refused"] += 1

    async def create(self, name: str | None = None) -> str | None:
        """A topic, with a new name or one that was deleted; its name when it is there.

        One attempt: one that was given up may make the topic much later, after the deletion of what
        a second one had made.
        """
        if name is None:
            self._number += 1
            name = f"{THROWAWAY}{self._number}"
        partitions = self._chance.randrange(1, 4)
        self.deleted.discard(name)
        self.doubtful.add(name)
        wish = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 3,
            "assignments": [],
            "configs": [],
        }
        answer = await self.client.request_controller(
            CREATE_TOPICS, {"topics": [wish], "timeout_ms": 4000, "validate_only": False}
        )
        if answer.topics[0].error_code:
            return None
        self.doubtful.discard(name)
        self.created[name] = partitions
        self.counts["created"] += 1
        return name

    async def delete_once(self, name: str) -> bool:
        """One attempt to delete that topic; whether it is gone, and may come again. An attempt that
        was given up may delete it much later, and then what has its name by that time: who tries
        more than once must not make it again.
        """
        del self.created[name]
        self.doubtful.add(name)
        body = {"topics": [{"name": name}], "topic_names": [name], "timeout_ms": 1000}
        answer = await self.client.request_controller(DELETE_TOPICS, body)
        if answer.responses[0].error_code:
            return False
        self.doubtful.discard(name)
        self.deleted.add(name)
        self.counts["deleted"] += 1
        return True

    async def delete(self, name: str | None = None) -> None:
        """That topic, or any."""
        if name is None and self.created:
            name = self._chance.choice(sorted(self.created))
        if name is None or name not in self.created:
            return
        del self.created[name]
        self.doubtful.add(name)
        error = (await self._admin.delete_topics([name]))[name]
        if error is None or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self.doubtful.discard(name)
            self.deleted.add(name)
            self.counts["deleted"] += 1

    async def _grow(self) -> None:
        if not self.created:
            return
        name = self._chance.choice(sorted(self.created))
        # so that no plot deletes it meanwhile: it would be noted down as there
        count = self.created.pop(name)
        try:
            if (await self._admin.add_partitions({name: count + 1}))[name] is None:
                count += 1
                self.counts["grown"] += 1
        finally:
            self.created[name] = count

    async def shorten(self) -> None:
        """Until cancelled: a topic of its own is written, and loses its oldest records to
        retention and DeleteRecords.
        """
        partition = TopicPartition(SHORTENED, 0)
        # or all replicas lose records, and none may lead
        flush = {"flush.before.ack": str(self._plan.mode is Mode.POWER_ALL).lower()}
        configs = self._chance.choice(_RETENTION) | flush
        is_there = False
        while True:
            await trio.sleep(self._chance.choice([0.02, 0.1, 0.4]))
            try:
                if not is_there:
                    await self._admin.create_topic(partition.topic, 1, 3, configs)
                    is_there = True
                await self._fill(partition)
                if self._chance.random() < 0.3:
                    before = (await self._admin.delete_records({partition: END_OF_LOG}))[partition]
                    self.counts["deleted_records"] += not isinstance(before, MqError) and before > 0
            except MqError as error:
                is_there = is_there or error.code is ErrorCode.TOPIC_ALREADY_EXISTS

    async def _fill(self, partition: TopicPartition) -> None:
        leader = await self.client.leader(partition, deadline=trio.current_time() + 2.0)
        batch = build_batch(
            [(None, b"x" * self._chance.choice([10, 1_000]))], timestamp=self._wall_ms()
        )
        connection = await self.client.connection_to_leader(leader.node_id)
        # 1: records are deleted that are not yet committed
        body = produce_body(partition, batch, acks=self._chance.choice([-1, 1]))
        answer = await self.client.request(connection, PRODUCE, body, at_most=PRODUCE_VERSION)
        if code := answer.responses[0].partition_responses[0].error_code:
            await self.client.refresh([partition.topic])
            raise MqError(ErrorCode(code))
        self.counts["filled"] += 1

    async def _elect(self) -> None:
        await self._admin.elect_leaders(
            ElectionType.PREFERRED, [self._chance.choice(self._checked)]
        )
        self.counts["elected"] += 1

    async def _move(self) -> None:
        partition = self._chance.choice(self._checked)
        replicas = self._chance.sample(self._nodes, 3) if self._chance.random() < 0.9 else None
        await self._admin.alter_partition_reassignments({partition: replicas})
        self.counts["moved"] += 1

    async def _configure(self) -> None:
        topic = self._chance.choice(self._checked).topic
        value = self._chance.choice(["300", "2000", "60000"])
        resource = Resource(ResourceType.TOPIC, topic)
        await self._admin.alter_configs(
            {resource: [ConfigChange("segment.ms", ConfigOperation.SET, value)]}
        )
        self.counts["configured"] += 1
