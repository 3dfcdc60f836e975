"""A server on an in-memory network: real handlers, replicas and logs; no Raft, no controller, and
the test sets the time.

The metadata is an image that the tests change, applied to the replicas as the daemon does. Tests do
not sleep: after a request, `run_until_idle` runs all tasks until they wait, and `mock_clock.jump`
advances the time.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from struct import pack, unpack_from
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import trio
import trio.testing

from mqd.config import NodeConfig
from mqd.controller.delta import Delta
from mqd.controller.image import MetadataImage
from mqd.controller.records import (
    ChangePartitions,
    CreateTopic,
    DeleteTopic,
    MetadataRecord,
    PartitionChange,
    Placement,
    RegisterBroker,
    SetBrokerFencing,
    SetConfigs,
)
from mqd.controller.replay import replay
from mqd.io.disk import File
from mqd.io.entropy import RandomEntropy
from mqd.io.memory import memory_bytes
from mqd.io.net import HANG_UP, PEER_CLOSED, READABLE, WRITABLE, Ready
from mqd.log.service import LogService
from mqd.memory_plan import MemoryPlan
from mqd.node.publisher import MetadataPublisher
from mqd.protocol import apis
from mqd.protocol.batch import iterate_batches
from mqd.protocol.record_reader import iterate_records
from mqd.protocol.schema import Api, decode_response_header, encode_request_header
from mqd.replica.partition import Partition
from mqd.replica.service import ReplicaService
from mqd.security.authorizer import Authorizer
from mqd.security.client_listeners import ClientListener, SecurityProtocol
from mqd.security.sasl_options import sasl_options
from mqd.server.batch_work import BatchWork
from mqd.server.client_quotas import NodeQuotas
from mqd.server.context import CLIENT, PEER
from mqd.server.guards import Guards
from mqd.server.sasl import SaslService
from mqd.server.service import Server
from mqd.types import NodeId, TopicPartition
from tests.log.support import FaultyDisk, HandClock
from tests.replica.ports import Ports

ME = NodeId(1)
OTHER = NodeId(2)

run_until_idle = trio.testing.wait_all_tasks_blocked


class MemorySocket:
    """The server's end of an in-memory connection. `room`: what the peer's window takes."""

    def __init__(self, network: MemoryNetwork, peer: str) -> None:
        self.network = network
        self.peer = peer
        self.incoming = bytearray()
        self.at_end = False
        self.gone = False
        self.room = 1 << 40
        self.sent = bytearray()
        self.sends = 0
        self.closed = False

    @property
    def has_unread(self) -> bool:
        return bool(self.incoming)

    def receive_into(self, view: memoryview) -> int:
        if self.gone:
            raise ConnectionResetError
        if not view:
            return 0  # as the kernel does: it looks like the end of the stream
        taken = min(len(self.incoming), len(view))
        if not taken and not self.at_end:
            raise BlockingIOError
        view[:taken] = self.incoming[:taken]
        del self.incoming[:taken]
        return taken

    def send(self, data: bytes | bytearray | memoryview) -> int:
        if not self.room:
            raise BlockingIOError
        taken = min(len(data), self.room)
        self.room -= taken
        self.sends += 1
        self.sent += data[:taken]
        return taken

    send_more = send

    def send_file(self, file: File, position: int, size: int) -> int:
        data = file.read_at(position, size)
        if len(data) != size:
            raise OSError("shorter than it was")
        return self.send(data)

    def close(self) -> None:
        self.closed = True

    @property
    def ready(self) -> int:
        events = WRITABLE if self.room else 0
        if self.incoming or self.at_end:
            events |= READABLE
        if self.at_end:
            events |= PEER_CLOSED
        return events | (HANG_UP if self.gone else 0)


class MemoryPoller:
    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.watched: dict[MemorySocket, tuple[Ready, int]] = {}

    def watch(self, sock: Any, ready: Ready, events: int) -> None:
        self.watched[sock] = (ready, events)
        self.network.news.set()

    def forget(self, sock: Any) -> None:
        del self.watched[sock]

    def ready_nowait(self) -> list[tuple[Ready, int]]:
        return [
            (ready, sock.ready & (events | HANG_UP))
            for sock, (ready, events) in self.watched.items()
            if sock.ready & (events | HANG_UP)
        ]

    async def wait_ready(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self.ready_nowait():
            self.network.news = trio.Event()
            await self.network.news.wait()

    def close(self) -> None:
        self.watched.clear()


class MemoryListener:
    port = 9092

    def __init__(self) -> None:
        self.backlog: deque[MemorySocket] = deque()
        self.arrived = trio.Event()

    async def accept(self) -> MemorySocket:
        await trio.lowlevel.checkpoint()
        while not self.backlog:
            self.arrived = trio.Event()
            await self.arrived.wait()
        return self.backlog.popleft()

    def close(self) -> None: ...


class MemoryNetwork:
    """A `Network` whose clients are `Client`s."""

    def __init__(self) -> None:
        self.news = trio.Event()

    def poller(self) -> MemoryPoller:
        return MemoryPoller(self)


class Client:
    """The client's end: requests as mappings or bytes, responses decoded by their declaration."""

    def __init__(self, rig: Rig, sock: MemorySocket) -> None:
        self.rig = rig
        self.sock = sock
        self.correlation_id = 0
        self.awaited: deque[tuple[Api, int, int]] = deque()

    def send(self, data: bytes | bytearray) -> None:
        """Send raw bytes."""
        self.sock.incoming += data
        self.sock.network.news.set()

    def send_frame(self, body: bytes) -> None:
        self.send(pack(">i", len(body)) + body)

    def post(
        self, name: str, version: int, body: Mapping[str, Any], *, responds: bool = True
    ) -> None:
        """Send a request without waiting."""
        api = apis.by_name(name)
        assert api is not None
        self.correlation_id += 1
        if responds:
            self.awaited.append((api, version, self.correlation_id))
        self.send_frame(
            encode_request_header(api, version, self.correlation_id, "test")
            + api.encode_request(version, body)
        )

    def frames(self) -> list[bytes]:
        """Take every complete response, without its length."""
        found = []
        sent = self.sock.sent
        while len(sent) >= 4 and len(sent) - 4 >= (size := unpack_from(">i", sent)[0]):
            found.append(bytes(sent[4 : 4 + size]))
            del sent[: 4 + size]
        return found

    def responses(self) -> list[Any]:
        """Take the received responses, decoded. They must be in the order of the requests."""
        found = []
        for frame in self.frames():
            api, version, correlation_id = self.awaited.popleft()
            received_id, position = decode_response_header(api, version, frame)
            assert received_id == correlation_id
            found.append(api.decode_response(version, frame, position))
        return found

    async def request(self, name: str, version: int, body: Mapping[str, Any]) -> Any:
        """Send a request, and return its response, which must arrive before time passes."""
        self.post(name, version, body)
        await run_until_idle()
        (response,) = self.responses()
        return response

    def half_close(self) -> None:
        self.sock.at_end = True
        self.sock.network.news.set()

    def reset(self) -> None:
        self.sock.gone = True
        self.sock.network.news.set()

    def take(self, size: int) -> None:
        """Open the window by that many bytes."""
        self.sock.room += size
        self.sock.network.news.set()

    # -- common requests

    async def produce(
        self, topic: str, records: bytes | bytearray | None, *, version: int = 9, **options: Any
    ) -> Any:
        """The row of the one partition."""
        response = await self.request(
            "produce", version, self.rig.produce_body(topic, records, version=version, **options)
        )
        return response.responses[0].partition_responses[0]

    async def fetch(self, topic: str, offset: int, *, version: int = 12, **options: Any) -> Any:
        """The row of the one partition."""
        response = await self.request(
            "fetch", version, self.rig.fetch_body(topic, offset, version=version, **options)
        )
        return response.responses[0].partitions[0]


class Rig:
    """One node's server, and its metadata."""

    def __init__(
        self,
        directory: Path,
        protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
        **options: str,
    ) -> None:
        self.listener = ClientListener(protocol.name, protocol, "mqd", 9092, "mqd", 9092)
        self.disk = FaultyDisk()
        self.clock = HandClock()
        self.image = MetadataImage()
        self.config = NodeConfig.load(
            None,
            {},
            {key if "." in key else key.replace("_", "."): value for key, value in options.items()},
        )
        entropy = RandomEntropy(random.Random(1))
        self.directory_failures: list[Path] = []
        self.logs = LogService(
            self.disk,
            self.clock,
            [directory],
            on_durable=lambda log: self.replica.on_durable(log),
            on_log_start_moved=lambda log: self.replica.on_log_start_moved(log),
            on_directory_failed=lambda path, error: self.directory_failures.append(path),
        )
        self.ports = Ports()
        self.replica = ReplicaService(
            node_id=ME,
            logs=self.logs,
            clock=self.clock,
            entropy=entropy,
            ports=self.ports.value(),
        )
        self.publisher = MetadataPublisher(ME, self.config, self.replica)
        self.raft = SimpleNamespace()
        self.node: Any = SimpleNamespace(
            peers=SimpleNamespace(nodes={OTHER: SimpleNamespace(id=OTHER, host="10.0.0.1")}),
            node_id=ME,
            config=self.config,
            clock=self.clock,
            disk=self.disk,
            entropy=entropy,
            logs=self.logs,
            replica=self.replica,
            image=self.image,
            raft=self.raft,
            guards=Guards(),
            quotas=NodeQuotas(self.config),
            authorizer=Authorizer(enforces=False),
            batch_work=BatchWork(self.disk),
            controller=SimpleNamespace(image=self.image, controller_id=ME),
            sasl=self._sasl(entropy),
            share=SimpleNamespace(
                connection_closed=lambda _: None, partitions=SimpleNamespace(bugs=0)
            ),
        )
        self.network = MemoryNetwork()
        budget = MemoryPlan.of(self.config, memory_bytes()).connections
        self.server = Server(self.node, self.network, budget)  # type: ignore[arg-type]  # a node made of fakes
        self.listeners = {CLIENT: MemoryListener(), PEER: MemoryListener()}
        self.changes = 0

    def _sasl(self, entropy: RandomEntropy) -> SaslService:
        options = {}
        if self.listener.protocol.has_sasl:
            options[self.listener.name] = sasl_options(self.config, self.listener.name)
        return SaslService(
            options,
            lambda: self.image,
            entropy=entropy,
            clock=self.clock,
            disk=self.disk,
            secret=b"secret of the cluster",
        )

    # -- metadata

    def change(self, *records: MetadataRecord) -> None:
        """Apply records to the image, and carry them out as the daemon does."""
        self.changes += 1
        delta = Delta(self.changes)
        for record in records:
            replay(self.image, record, self.changes, delta)
        self.image.index = self.changes
        self.publisher.active = True
        self.publisher(delta, self.image)
        self.node.quotas.changed(delta, self.image)

    def register(self, *node_ids: NodeId) -> None:
        for node_id in node_ids:
            self.change(
                RegisterBroker(node_id, UUID(int=node_id), f"host{node_id}", 9090 + node_id, None)
            )
            self.change(SetBrokerFencing(node_id, self.image.brokers[node_id].epoch, False))

    def set_rack(self, node_id: NodeId, rack: str) -> None:
        self.image.brokers[node_id] = replace(self.image.brokers[node_id], rack=rack)

    def create(
        self,
        name: str,
        partitions: int = 1,
        *,
        replicas: Sequence[NodeId] = (ME,),
        leader: NodeId | None = None,
        isr: Sequence[NodeId] | None = None,
        **configs: str,
    ) -> UUID:
        topic_id = UUID(int=0x1000 + self.changes, version=4)
        placement = Placement(
            tuple(replicas),
            replicas[0] if leader is None else leader,
            tuple(replicas if isr is None else isr),
        )
        dotted = tuple((key.replace("_", "."), value) for key, value in configs.items())
        self.change(CreateTopic(name, topic_id, (placement,) * partitions, dotted))
        return topic_id

    def delete(self, name: str) -> None:
        self.change(DeleteTopic(self.image.topics[name].topic_id))

    def alter(self, topic: str, **configs: str | None) -> None:
        self.change(
            SetConfigs(
                "topic",
                topic,
                tuple((key.replace("_", "."), value) for key, value in configs.items()),
            )
        )

    def lead(
        self, topic: str, leader: NodeId, *, isr: Sequence[NodeId] | None = None, partition: int = 0
    ) -> None:
        """A new leader, or a new ISR; either begins a new leader epoch."""
        before = self.image.topics[topic].partitions[partition]
        change = PartitionChange(partition, leader, tuple(before.isr if isr is None else isr))
        self.change(ChangePartitions(self.image.topics[topic].topic_id, (change,)))

    def parked_fetches(self) -> int:
        """How many fetches of consumers are parked."""
        return len(
            {
                waiter
                for partition in self.replica.partitions()
                for waiter in partition.fetches
                if not waiter.freed
            }
        )

    def partition(self, topic: str, index: int = 0) -> Partition:
        found = self.replica.get(TopicPartition(topic, index))
        assert found is not None
        return found

    # -- clients

    async def connect(self, kind: str = CLIENT, address: str = "10.0.0.1") -> Client:
        sock = MemorySocket(self.network, f"{address}:{1000 + len(self.server._connections)}")
        self.listeners[kind].backlog.append(sock)
        self.listeners[kind].arrived.set()
        await run_until_idle()
        return Client(self, sock)

    def name_of(self, topic: str, since_id: int, version: int) -> dict[str, Any]:
        """A topic as this version identifies it."""
        if version < since_id:
            return {"topic": topic, "name": topic}
        return {"topic_id": self.image.topics[topic].topic_id}

    def produce_body(
        self,
        topic: str,
        records: bytes | bytearray | None,
        *,
        version: int = 9,
        partition: int = 0,
        acks: int = -1,
        timeout_ms: int = 1000,
        transactional_id: str | None = None,
    ) -> dict[str, Any]:
        data = {
            **self.name_of(topic, 13, version),
            "partition_data": [{"index": partition, "records": records}],
        }
        return {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout_ms": timeout_ms,
            "topic_data": [data],
        }

    def fetch_body(
        self, topic: str, offset: int, *, version: int = 12, partition: int = 0, **options: Any
    ) -> dict[str, Any]:
        wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        for name in ("current_leader_epoch", "last_fetched_epoch", "partition_max_bytes"):
            if name in options:
                wanted[name] = options.pop(name)
        requested = {**self.name_of(topic, 13, version), "partitions": [wanted]}
        return {
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "session_epoch": -1,
            **options,
            "topics": [requested],
        }


def values(records: Any) -> list[bytes]:
    view = memoryview(records or b"")
    return [
        bytes(record.value or b"")
        for position, size, _ in iterate_batches(view)
        for record in iterate_records(view[position : position + size])
    ]


@asynccontextmanager
async def rig(
    directory: Path,
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
    **options: str,
) -> AsyncIterator[Rig]:
    """A running server, for the length of the block. Options with underscores for dots."""
    made = Rig(directory, protocol, **options)
    await made.logs.start()
    made.register(ME, OTHER)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.replica.run)
        await nursery.start(made.server.run, made.listeners[PEER])
        made.server.listen(made.listeners[CLIENT], made.listener)
        yield made
        nursery.cancel_scope.cancel()
