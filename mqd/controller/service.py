"""The controller, and the parts of every node that send requests to it. The controller is the only
writer of the metadata; it runs on the node that leads the quorum.

`ControllerService` connects the parts:
- operations.py decides and commits
- channel.py finds the controller
- lifecycle.py registers this node and sends its heartbeats
- session_watch.py fences brokers whose session has expired
- replica_reports.py, producer_id_manager.py and topic_creation.py send requests to the controller
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from mqd.config import NodeConfig
from mqd.controller.brokers import Heartbeat, HeartbeatReply, Register
from mqd.controller.channel import ControllerChannel, Forward
from mqd.controller.delta import Restoring, Subscriber
from mqd.controller.elections import Rebalance
from mqd.controller.image import MetadataImage
from mqd.controller.lifecycle import BrokerAddress, BrokerLifecycle
from mqd.controller.machine import MetadataMachine
from mqd.controller.operations import Operation, Operations, Quorum, Space
from mqd.controller.producer_id_manager import ProducerIdManager
from mqd.controller.replica_reports import ReplicaReports
from mqd.controller.session_watch import SessionWatch
from mqd.controller.topic_creation import TopicCreation
from mqd.errors import MqError
from mqd.io.clock import Clock
from mqd.io.entropy import Entropy
from mqd.types import NodeId
from mqd.usage import Usage


class ControllerService:
    """`submit` is for callers on the controller's node; `at_controller` is for all nodes."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        cluster_id: str,
        address: BrokerAddress,
        quorum: Quorum,
        machine: MetadataMachine,
        clock: Clock,
        entropy: Entropy,
        config: NodeConfig,
        forward: Forward,
        nodes: int = 1,
        space: Space = lambda: None,
    ) -> None:
        """`nodes`: the number of nodes in the peers file. `space`: called before the metadata
        grows.
        """
        self._machine = machine
        self._config = config
        heartbeat_s = config.integer("broker.heartbeat.interval.ms") / 1000
        incarnation = entropy.uuid()
        self.operations = Operations(
            node_id=node_id, quorum=quorum, machine=machine, config=config, space=space
        )
        self.channel = ControllerChannel(node_id, quorum, forward)
        self.session_watch = SessionWatch(
            node_id=node_id,
            quorum=quorum,
            operations=self.operations,
            clock=clock,
            heartbeat_s=heartbeat_s,
            session_timeout_s=config.integer("broker.session.timeout.ms") / 1000,
        )
        self.lifecycle = BrokerLifecycle(
            node_id=node_id,
            cluster_id=cluster_id,
            address=address,
            incarnation=incarnation,
            operations=self.operations,
            channel=self.channel,
            session_watch=self.session_watch,
            clock=clock,
            heartbeat_s=heartbeat_s,
        )
        self.replica_reports = ReplicaReports(
            node_id, self.operations, self.channel, lambda: self.lifecycle.broker_epoch
        )
        self._producer_ids = ProducerIdManager(node_id, self.operations, self.channel)
        self._topic_creation = TopicCreation(
            node_id=node_id,
            operations=self.operations,
            channel=self.channel,
            config=config,
            entropy=entropy,
            nodes=nodes,
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Call `task_status.started` once this node is registered and unfenced. Runs until
        cancelled.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.session_watch.run)
            nursery.start_soon(self._topic_creation.run)
            nursery.start_soon(self._rebalance_leaders)
            await self.lifecycle.run(task_status)

    # -- the metadata

    @property
    def image(self) -> MetadataImage:
        return self._machine.image

    def subscribe(self, subscriber: Subscriber, restoring: Restoring | None = None) -> None:
        """Call `subscriber(delta, image)` on this node after each change of the metadata; it must
        not block. For a snapshot, `restoring` replaces this call.
        """
        self._machine.subscribe(subscriber, restoring)

    def usage(self) -> Usage:
        """The size of the metadata, and this node's bound on it (DescribeCluster)."""
        return self.operations.usage()

    # -- on the controller's node

    @property
    def controller_id(self) -> NodeId | None:
        """The controller that this node knows of; None if it knows of none."""
        return self.operations.controller_id

    @property
    def is_controller(self) -> bool:
        """Whether `submit` may succeed here."""
        return self.operations.is_controller

    def check_is_controller(self) -> None:
        """Raise NOT_CONTROLLER if this node's image may be older than that of the controller."""
        self.operations.check_is_controller()

    async def submit(self, op: Operation) -> Any:
        """Decide and commit here; see `Operations.submit` for the errors."""
        return await self.operations.submit(op)

    async def register(self, op: Register) -> int:
        """Register a broker. Returns its epoch."""
        return await self.session_watch.register(op)

    async def heartbeat(self, op: Heartbeat) -> HeartbeatReply:
        """Handle the heartbeat of a broker; see `SessionWatch.heartbeat`."""
        return await self.session_watch.heartbeat(op)

    def metadata_version_max(self, node_id: NodeId) -> int:
        """The newest metadata version that a broker reported with its last heartbeat to this node;
        0 for none.
        """
        return self.operations.metadata_versions_max.get(node_id, 0)

    async def _rebalance_leaders(self) -> None:
        """While this node is the controller: return partitions to their preferred leaders at
        intervals.
        """
        while True:
            await trio.sleep(self._config.integer("leader.imbalance.check.interval.seconds"))
            if self.operations.is_controller and self._config.boolean(
                "auto.leader.rebalance.enable"
            ):
                try:
                    await self.operations.submit(Rebalance())
                except MqError:
                    pass  # the next round retries

    # -- on every node

    async def at_controller(
        self,
        here: Callable[[], Awaitable[Mapping[str, Any]]],
        api_name: str,
        version: int,
        request: Mapping[str, Any],
        *,
        timeout: float,
    ) -> Mapping[str, Any]:
        """The controller's response to `request`; see `ControllerChannel.at_controller`."""
        return await self.channel.at_controller(here, api_name, version, request, timeout=timeout)

    def create_topic_soon(self, name: str) -> None:
        """Create a topic in the background, with the defaults of its kind. Clients retry."""
        self._topic_creation.create_topic_soon(name)

    def creates_topic_soon(self, name: str) -> bool:
        """Whether this node is about to request the creation of the topic."""
        return self._topic_creation.creates_topic_soon(name)

    async def next_producer_id(self) -> int:
        """An id that no other producer of this cluster has, had or will have (I17)."""
        return await self._producer_ids.next_producer_id(transactional=False)

    async def next_transactional_producer_id(self) -> int:
        """The same, for a transactional id."""
        return await self._producer_ids.next_producer_id(transactional=True)
