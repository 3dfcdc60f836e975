"""What a handler may use: the parts of the node, and the request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mqd.config import NodeConfig
from mqd.controller.image import MetadataImage
from mqd.controller.service import ControllerService
from mqd.coordinator.service import CoordinatorService
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.io.entropy import Entropy
from mqd.log.service import LogService
from mqd.peers import Peers
from mqd.protocol.request_header import RequestHeader
from mqd.raft.service import RaftService
from mqd.replica.service import ReplicaService
from mqd.server.batch_work import BatchWork
from mqd.server.forward import Forwarder
from mqd.server.guards import Guards
from mqd.types import NodeId

CLIENT = "client"
"""The listener for clients."""
PEER = "peer"
"""The listener for the other nodes: privileged APIs and Raft."""


@dataclass(slots=True)
class Node:
    """One node, as its handlers see it. Built by `daemon.py` only."""

    node_id: NodeId
    peers: Peers
    config: NodeConfig
    clock: Clock
    disk: Disk
    entropy: Entropy
    logs: LogService
    replica: ReplicaService
    raft: RaftService
    controller: ControllerService
    forward: Forwarder
    groups: CoordinatorService
    transactions: CoordinatorService
    guards: Guards = field(default_factory=Guards)
    batch_work: BatchWork = field(init=False)

    def __post_init__(self) -> None:
        self.batch_work = BatchWork(self.disk)

    @property
    def image(self) -> MetadataImage:
        return self.controller.image


@dataclass(slots=True)
class Context:
    """One request while a handler has it."""

    node: Node
    header: RequestHeader
    listener: str
    peer: str
    """Address of the client, for log lines."""
    now: float
    """Monotonic seconds when the handler was called."""
    peer_node: int | None = None
    """On the peer listener: the node that sends the request. None for clients."""
    waits: Callable[[], None] = lambda: None
    """Called by a handler that waits for other clients from now on, and keeps nothing large."""
    is_wanted: Callable[[], bool] = lambda: True
    """Whether the client is still connected."""
