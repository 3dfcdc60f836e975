"""A quorum that commits at once, with brokers, topics and a controller on top: the base of these
tests.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import trio

from mqd.config import NodeConfig
from mqd.controller.brokers import Heartbeat, Register, decide_heartbeat, decide_register
from mqd.controller.commands import Command, encode_command
from mqd.controller.create_topics import USE_DEFAULT, CreateTopics, NewTopic, decide_create_topics
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import MetadataImage
from mqd.controller.lifecycle import BrokerAddress
from mqd.controller.machine import MetadataMachine
from mqd.controller.records import MetadataRecord
from mqd.controller.service import ControllerService
from mqd.io.clock import Clock
from mqd.io.entropy import RandomEntropy
from mqd.raft.machine import NotLeader, RaftStatus, Role
from mqd.types import NodeId

CLUSTER = "cluster-of-tests"
DEFAULTS = DecisionOptions()
SESSIONS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


class TrioClock:
    """Trio's own time, virtual or not."""

    def monotonic(self) -> float:
        return trio.current_time()

    def wall_ms(self) -> int:
        return 1_700_000_000_000


class FakeQuorum:
    """Commits at once on every state machine, as long as it leads."""

    def __init__(
        self, machine: MetadataMachine, *replicas: MetadataMachine, node_id: int = 1
    ) -> None:
        self.machines = (machine, *replicas)
        self.node_id = node_id
        self.leader_id: int | None = node_id
        self.term = 1
        self.index = 1
        self.gate: trio.Event | None = None
        """When set, a proposal waits for it before it is committed."""
        self.failure: Exception | None = None
        """Raised after the commit: an outcome that the proposer does not receive."""
        self.commands: list[bytes] = []
        self.majority_replied_at: float | None = None
        """None: the present time."""
        self.led_at: float | None = None
        """None: the present time."""
        self.barriers = 0

    async def read_barrier(self, *, timeout: float | None = None) -> int:
        await trio.lowlevel.checkpoint()
        self.barriers += 1
        if self.leader_id != self.node_id:
            raise NotLeader(self.leader_id)
        if self.failure is not None:
            raise self.failure
        return self.index

    async def propose(self, command: bytes) -> int:
        await trio.lowlevel.checkpoint()
        if self.leader_id != self.node_id:
            raise NotLeader(self.leader_id)
        if self.gate is not None:
            await self.gate.wait()
        index = self.commit(command)
        if self.failure is not None:
            raise self.failure
        return index

    def commit(self, command: bytes) -> int:
        self.index += 1
        self.commands.append(command)
        for machine in self.machines:
            machine.apply(self.index, command)
        return self.index

    def status(self) -> RaftStatus:
        leads = self.leader_id == self.node_id
        return RaftStatus(
            role=Role.LEADER if leads else Role.FOLLOWER,
            ready=leads,
            term=self.term,
            leader_id=self.leader_id,
            commit_index=self.index,
            applied_index=self.index,
            last_index=self.index,
            durable_index=self.index,
            snapshot_index=0,
            voters=(1,),
            connected=(),
            majority_replied_at=trio.current_time()
            if self.majority_replied_at is None
            else self.majority_replied_at,
            led_at=trio.current_time() if self.led_at is None else self.led_at,
        )


async def no_forward(
    node_id: NodeId, api: str, version: int, request: Mapping[str, Any]
) -> Mapping[str, Any]:
    raise OSError(f"no way to node {node_id}")


def make_controller(
    machine: MetadataMachine | None = None,
    *,
    quorum: FakeQuorum | None = None,
    node_id: int = 1,
    clock: Clock | None = None,
    forward: Any = no_forward,
    options: Mapping[str, str] | None = None,
    nodes: int = 1,
    seed: int = 1,
) -> tuple[ControllerService, FakeQuorum]:
    machine = machine if machine is not None else MetadataMachine()
    quorum = quorum if quorum is not None else FakeQuorum(machine, node_id=node_id)
    controller = ControllerService(
        node_id=NodeId(node_id),
        cluster_id=CLUSTER,
        address=BrokerAddress("localhost", 9090 + node_id, None),
        quorum=quorum,
        machine=machine,
        clock=clock if clock is not None else TrioClock(),
        entropy=RandomEntropy(random.Random(seed)),
        config=NodeConfig.load(overrides={**SESSIONS, **(options or {})}),
        forward=forward,
        nodes=nodes,
    )
    return controller, quorum


class Replica:
    """A state machine without Raft or Trio: decisions go in, indexes count up."""

    def __init__(self) -> None:
        self.machine = MetadataMachine()
        self.index = 0
        self.log: list[tuple[int, bytes]] = []

    @property
    def image(self) -> MetadataImage:
        return self.machine.image

    def commit(self, records: Iterable[MetadataRecord]) -> int:
        records = tuple(records)
        if not records:
            return self.index
        self.index += 1
        command = encode_command(Command(self.image.index, records))
        self.log.append((self.index, command))
        self.machine.apply(self.index, command)
        assert self.machine.took_effect(self.index)
        return self.index

    def run(self, decide: Any, op: Any, options: DecisionOptions = DEFAULTS) -> Any:
        while True:
            decision = decide(self.image, op, options)
            self.commit(decision.records)
            if not decision.more:
                return decision.reply


def with_brokers(*ids: int, racks: Mapping[int, str] | None = None) -> Replica:
    """Brokers that are registered and unfenced."""
    replica = Replica()
    for node_id in ids:
        add_broker(replica, node_id, rack=(racks or {}).get(node_id))
    return replica


def add_broker(
    replica: Replica, node_id: int, *, rack: str | None = None, incarnation: int = 0
) -> int:
    """Register and unfence a broker. Returns its broker epoch."""
    op = Register(
        NodeId(node_id),
        CLUSTER,
        UUID(int=node_id * 1000 + incarnation),
        f"host{node_id}",
        9092,
        rack,
    )
    replica.run(decide_register, op)
    epoch = replica.image.brokers[NodeId(node_id)].epoch
    replica.run(decide_heartbeat, Heartbeat(NodeId(node_id), epoch, replica.image.index))
    return epoch


def new_topic(
    name: str, partitions: int = USE_DEFAULT, factor: int = USE_DEFAULT, **rest: Any
) -> NewTopic:
    return NewTopic(
        name, UUID(int=random.Random(name).getrandbits(128), version=4), partitions, factor, **rest
    )


def create_topics(replica: Replica, *topics: NewTopic, validate_only: bool = False) -> Any:
    return replica.run(decide_create_topics, CreateTopics(topics, 1, 1, validate_only))
