"""What a handler may use: the parts of the node, and the request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

import trio

from mqd.config import NodeConfig
from mqd.controller.image import MetadataImage
from mqd.controller.service import ControllerService
from mqd.coordinator.service import CoordinatorService
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.io.entropy import Entropy
from mqd.limits import ADMIN_REQUESTS_AT_ONCE
from mqd.log.service import LogService
from mqd.peers import Peers
from mqd.protocol.request_header import RequestHeader
from mqd.raft.service import RaftService
from mqd.replica.service import ReplicaService
from mqd.security.audit import Audit
from mqd.security.authorizer import Authorizer
from mqd.security.client_listeners import ClientListener
from mqd.security.principal import ANONYMOUS, Principal
from mqd.server.admissions import Admissions
from mqd.server.batch_work import BatchWork
from mqd.server.client_quotas import NodeQuotas
from mqd.server.fair_slots import FairSlots
from mqd.server.forward import Forwarder
from mqd.server.guards import Guards
from mqd.server.sasl import SaslService
from mqd.server.share_state import ShareStatePersister
from mqd.share.service import ShareService
from mqd.types import NodeId

CLIENT = "client"
"""The listeners for clients (security/client_listeners.py)."""
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
    shares: CoordinatorService
    """The share coordinators: the states of share partitions."""
    share_state: ShareStatePersister
    share: ShareService
    """The share partitions that this node leads."""
    quotas: NodeQuotas
    sasl: SaslService
    guards: Guards = field(default_factory=Guards)
    admissions: Admissions = field(default_factory=Admissions)
    admin_slots: FairSlots = field(default_factory=partial(FairSlots, ADMIN_REQUESTS_AT_ONCE))
    """For requests of this node's clients that the controller decides."""
    authorizer: Authorizer = field(default_factory=lambda: Authorizer(enforces=False))
    audit: Audit = field(default_factory=Audit)
    share_changes: WeakValueDictionary[str, trio.Lock] = field(default_factory=WeakValueDictionary)
    """By group: held while the states of its share partitions are created or deleted."""
    batch_work: BatchWork = field(init=False)

    def __post_init__(self) -> None:
        self.batch_work = BatchWork(self.disk)

    @property
    def image(self) -> MetadataImage:
        return self.controller.image


class Mutate(Protocol):
    def __call__(self, mutations: int, *, strict: bool) -> bool:
        """Count changes of the metadata against the client's quota. Returns whether they are
        allowed; without `strict` they always are. The response gets the throttle time.
        """
        ...


def _unbounded(mutations: int, *, strict: bool) -> bool:
    return True


def _no_throttle(throttle_ms: int) -> None:
    pass


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
    principal: Principal = ANONYMOUS
    """The identity that the connection has proved."""
    client_listener: ClientListener | None = None
    """The listener on which the request came. None on the peer listener."""
    mutate: Mutate = _unbounded
    throttle: Callable[[int], None] = _no_throttle
    """Throttle the client for so many milliseconds, and tell it in the response."""
    consumed: Callable[[int], None] = lambda size: None
    """Count so many bytes of records against the client's quota, and throttle it as above."""
    waits: Callable[[], None] = lambda: None
    """Called by a handler that waits for other clients from now on, and keeps nothing large."""
    is_wanted: Callable[[], bool] = lambda: True
    """Whether the client is still connected."""
    parked: Callable[[int], AbstractContextManager[bool]] = lambda rows: nullcontext(True)
    """Count a fetch of so many partitions in the memory of parked fetches while it waits. The wait
    is cancelled when the client closes the connection. False: there is no memory, so it must not
    wait."""

    @property
    def listener_name(self) -> str | None:
        """The name of `client_listener`."""
        return None if self.client_listener is None else self.client_listener.name
