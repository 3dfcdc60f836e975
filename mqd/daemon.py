"""The composition root: builds every part of one node, plugs them into one another, and owns the root nursery.

Start: the addresses are bound (a port in use is told at once), the logs recover, the metadata log is replayed, the node
registers with the controller, its partitions are opened as the image says, and then it serves. Stop is the same
backwards: leadership is handed over, connections close, everything is synced, and a marker says that the stop was clean.

`main` is what `mqd start` runs. A simulation passes its own `Seams`; nothing else here differs.
"""

from __future__ import annotations

import errno
import gc
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import trio

from mqd.config import NodeConfig, PeerNode, StartError, StartOptions, topic_options
from mqd.controller.configs import effective_node_config
from mqd.controller.image import Delta, MetadataImage, MetadataMachine
from mqd.controller.placement import default_replication_factor
from mqd.controller.service import BrokerAddress, ControllerService
from mqd.errors import PASSING_ERRNOS, StorageError
from mqd.io.clock import Clock, SystemClock
from mqd.io.disk import Disk, OsDisk, raise_descriptor_limit
from mqd.io.entropy import Entropy, RandomEntropy
from mqd.io.net import Listener, Network, OsNetwork
from mqd.limits import DESCRIPTORS_OTHERS, DISK_RESERVE_BYTES
from mqd.log import known_directories
from mqd.log.known_directories import KnownDirectories, load_known_directories, store_known_directories
from mqd.log.partition_log import LogConfig
from mqd.log.service import LogService
from mqd.protocol.files import MetaProperties
from mqd.raft.journal import journal_exists
from mqd.raft.service import RaftService
from mqd.replica.partition import Assignment
from mqd.replica.service import ReplicaService, TopicSettings
from mqd.server.context import CLIENT, PEER, Node
from mqd.server.forward import Forwarder
from mqd.server.service import Server
from mqd.types import NodeId, TopicPartition

logger = logging.getLogger(__name__)

_ASSIGNED_AT_ONCE = 25
"""Partitions opened or closed before others get the loop: a log takes a millisecond or two to make."""
_LISTEN_REMEDIES = {
    errno.EADDRINUSE: "stop what uses it, or change",
    errno.EACCES: "a port below 1024 takes a privilege: give another one to",
}
_NO_ADDRESS = "it must be an address of this machine: see"
_DESCRIPTORS_SHARED = 1 << 16
"""What a node counts with that shares its process with others and has no say in its limits."""
_LEAVE_SECONDS = 2.0
"""How long a clean stop waits for the controller to move leadership away."""


@dataclass(frozen=True, slots=True)
class Seams:
    """What a node asks of the world: the real world by default."""

    clock: Clock = field(default_factory=SystemClock)
    entropy: Entropy = field(default_factory=RandomEntropy)
    disk: Disk = field(default_factory=OsDisk)
    network: Network | None = None
    """None: the system's, with the socket buffers of the configuration."""
    announce: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
    """Where the one line goes that says the node serves."""
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)
    """Which of them stop the node cleanly; none where several nodes share a process."""
    owns_process: bool = True
    """Whether limits and the garbage collector of this process are the node's to set; not where several nodes share it."""


async def main(
    options: StartOptions, seams: Seams | None = None, *, task_status: trio.TaskStatus[_Daemon] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run one node until SIGTERM, SIGINT or cancellation. Raises StartError for what its operator can mend.

    Started with its parts, as soon as they are made: a simulation stops the node and looks into it through them.
    """
    seams = seams if seams is not None else Seams()
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        if seams.signals:
            nursery.start_soon(_wait_for_signal, seams.signals, stop)
        daemon = _Daemon(options, seams)
        daemon.stop = stop
        task_status.started(daemon)
        await daemon.run(stop)
        nursery.cancel_scope.cancel()


async def _wait_for_signal(wanted: tuple[signal.Signals, ...], stop: trio.Event) -> None:
    with trio.open_signal_receiver(*wanted) as signals:
        async for number in signals:
            logger.info("stopping signal=%s", signal.Signals(number).name)
            stop.set()


class _Daemon:
    """The parts of one node, from their construction to their end."""

    def __init__(self, options: StartOptions, seams: Seams) -> None:
        self.options = options
        self.seams = seams
        self.config: NodeConfig = options.config
        self.peers = options.peers
        self.me: PeerNode = self.peers.require(options.node_id)
        if not self.me.voter:
            raise StartError(f"{self.peers.path}: node {self.me.id} is not a voter; this release runs voters only: remove `voter = false`")
        self._check_counts_of_nodes()
        self.network: Network = seams.network or OsNetwork(
            send_buffer_bytes=self.config.integer("socket.send.buffer.bytes"),
            receive_buffer_bytes=self.config.integer("socket.receive.buffer.bytes"),
        )
        self.metadata_directory = options.data_directory / "metadata"
        self.directories_file = options.data_directory / known_directories.NAME
        descriptors = raise_descriptor_limit() if seams.owns_process else _DESCRIPTORS_SHARED
        descriptors_for_logs = max(descriptors - self.config.integer("max.connections") - DESCRIPTORS_OTHERS, descriptors // 2)
        logger.info("open files limit=%d for_logs=%d", descriptors, descriptors_for_logs)
        directories = [Path(one) for one in self.config["log.dirs"] or self.config["log.dir"] or ()]  # type: ignore[union-attr]
        self.logs = LogService(
            disk=seams.disk,
            clock=seams.clock,
            directories=directories or [options.data_directory / "logs"],
            on_durable=lambda log: self.replica.on_durable(log),
            on_directory_failed=self._on_directory_failed,
            claim=lambda: MetaProperties(self.peers.cluster_id, self.me.id, seams.entropy.uuid()),
            retention_check_interval_ms=self.config.integer("log.retention.check.interval.ms"),
            producer_id_expiration_ms=self.config.integer("producer.id.expiration.ms"),
            descriptors=descriptors_for_logs,
        )
        self.replica = ReplicaService(
            node_id=NodeId(self.me.id),
            logs=self.logs,
            clock=seams.clock,
            entropy=seams.entropy,
            fetch_sessions_max=self.config.integer("max.incremental.fetch.session.cache.slots"),
            checkpoint_seconds=self.config.integer("replica.high.watermark.checkpoint.interval.ms") / 1000,
        )
        self.machine = MetadataMachine()
        self.raft = RaftService(
            node_id=self.me.id,
            voters={peer.id: (peer.host, peer.peer_port) for peer in self.peers.voters.values()},
            cluster_id=self.peers.cluster_id,
            directory=self.metadata_directory,
            disk=seams.disk,
            clock=seams.clock,
            entropy=seams.entropy,
            network=self.network,
            machine=self.machine,
        )
        self.forwarder = Forwarder(self.peers, self.me.id, self.network, self.raft.greeting)
        self.controller = ControllerService(
            node_id=NodeId(self.me.id),
            cluster_id=self.peers.cluster_id,
            address=BrokerAddress(self.me.advertised_host, self.me.advertised_port, self.me.rack),
            quorum=self.raft,
            machine=self.machine,
            clock=seams.clock,
            entropy=seams.entropy,
            config=self.config,
            forward=self.forwarder,
            space=self._why_full,
        )
        self.publisher = _Publisher(NodeId(self.me.id), self.config, self.replica)
        self.controller.subscribe(self.publisher)
        self.failure: str | None = None
        self.stop = trio.Event()

    def _check_counts_of_nodes(self) -> None:
        """What is asked of more nodes than there are: refused where nobody could ever write, told where less is done."""
        nodes = len(self.peers.nodes)
        needed = self.config.integer("min.insync.replicas")
        if needed > nodes:
            raise StartError(
                f"min.insync.replicas is {needed}, but {self.peers.path} has {nodes} node(s): so many replicas can never be in sync; "
                f"set it to {nodes} or less, or add nodes"
            )
        factor = self.config.integer("default.replication.factor")
        possible = default_replication_factor(factor, nodes)
        if factor > possible:
            logger.warning(
                "default.replication.factor is more than can be: topics that are created without a number get fewer replicas "
                "configured=%d used=%d nodes=%d",
                factor,
                possible,
                nodes,
            )

    async def run(self, stop: trio.Event) -> None:
        self.stop = stop
        disk = self.seams.disk
        with _told("the data directory", self.options.data_directory):
            disk.make_directory(self.options.data_directory)
            lock = self._lock()
        try:
            async with self._listeners() as listeners:
                with _told("the log directories", self.options.data_directory):
                    await self.logs.start()
                try:
                    with _told("the log directories", self.options.data_directory):
                        known = self._known_directories()
                    await self._run_services(listeners, known)
                finally:
                    with trio.CancelScope(shield=True):
                        self.replica.checkpoint_high_watermarks()
                        await self.logs.close()
        finally:
            lock.close()
        if self.failure is not None:
            raise StartError(self.failure)

    def _known_directories(self) -> KnownDirectories:
        """Logs and metadata are a pair: StorageError, before anything is changed, where they are not."""
        disk, directories = self.seams.disk, self.logs.directories.values()
        known = load_known_directories(disk, self.directories_file)
        is_new = len(self.peers.voters) == 1 and not journal_exists(disk, self.metadata_directory)
        known.check(self.directories_file, self.metadata_directory, directories, metadata_is_new=is_new)
        known.learn(directories)
        store_known_directories(disk, self.directories_file, known)
        return known

    def _check_image(self, known: KnownDirectories) -> None:
        """The image is current and about to be carried out: it must not be older than the one before."""
        index = self.machine.image.index
        known.check_index(self.directories_file, self.metadata_directory, index)
        known.metadata_index = index
        try:
            store_known_directories(self.seams.disk, self.directories_file, known)
        except OSError as error:
            if error.errno not in PASSING_ERRNOS:
                raise
            logger.warning("not written file=%s reason=%s", self.directories_file, error)  # the next start is guarded a little less

    async def _run_services(self, listeners: dict[str, Listener], known: KnownDirectories) -> None:
        async with trio.open_nursery() as background:
            background.start_soon(self.logs.run)
            background.start_soon(self.replica.run)
            background.start_soon(self.forwarder.run)
            try:
                await background.start(self.raft.run)
            except StorageError as error:
                raise StartError(str(error)) from error
            node = Node(
                node_id=NodeId(self.me.id),
                peers=self.peers,
                config=self.config,
                clock=self.seams.clock,
                disk=self.seams.disk,
                entropy=self.seams.entropy,
                logs=self.logs,
                replica=self.replica,
                raft=self.raft,
                controller=self.controller,
            )
            async with trio.open_nursery() as serving:
                with trio.CancelScope() as starting:
                    serving.start_soon(self._cancel_on_stop, starting)
                    server = Server(node, self.network)
                    await serving.start(server.run, [(listeners[PEER], PEER)])
                    await serving.start(self.controller.run)
                    with _told("the metadata", self.metadata_directory):
                        self._check_image(known)
                    await self.publisher.activate(self.machine.image)
                    serving.start_soon(self.publisher.run, self.machine.image)
                    server.listen(listeners[CLIENT], CLIENT)
                    if self.seams.owns_process:
                        gc.collect()
                        gc.freeze()
                    self.seams.announce(f"mqd node {self.me.id} ready on {self.me.host}:{listeners[CLIENT].port}")
                await self.stop.wait()
                await self.controller.leave(timeout=_LEAVE_SECONDS)
                serving.cancel_scope.cancel()
            await self.raft.stop()
            background.cancel_scope.cancel()

    async def _cancel_on_stop(self, scope: trio.CancelScope) -> None:
        """A signal during the start ends the start."""
        await self.stop.wait()
        scope.cancel()

    def _lock(self) -> Any:
        path = self.options.data_directory / ".lock"
        try:
            return self.seams.disk.lock(path)
        except BlockingIOError:
            raise StartError(
                f"{self.options.data_directory}: another mqd process uses this data directory; stop it, or give --data another directory"
            ) from None

    @asynccontextmanager
    async def _listeners(self) -> AsyncIterator[dict[str, Listener]]:
        found: dict[str, Listener] = {}
        try:
            for kind, port in ((CLIENT, self.me.port), (PEER, self.me.peer_port)):
                try:
                    found[kind] = await self.network.listen(self.me.host, port)
                except OSError as error:
                    raise StartError(
                        f"cannot listen on {self.me.host}:{port} for {kind}s ({error.strerror or error}); "
                        f"{_LISTEN_REMEDIES.get(error.errno or 0, _NO_ADDRESS)} node {self.me.id} in {self.peers.path}"
                    ) from error
            yield found
        finally:
            for listener in found.values():
                listener.close()

    def _why_full(self) -> str | None:
        """Why nothing may be made that takes space; None where there is some."""
        if self.raft.short_of_space:
            return f"The disk of {self.metadata_directory} is full: free some space, then try again; topics can be deleted."
        for directory in self.logs.directories.values():
            if directory.failed is None:
                try:
                    if self.seams.disk.free_bytes(directory.path) >= DISK_RESERVE_BYTES:
                        return None
                except OSError:
                    return None  # whoever writes there will tell
        return "The disk of the log directories is full: free some space, then try again; topics can be deleted."

    def _on_directory_failed(self, directory: Path, error: StorageError) -> None:
        """A log directory is gone. The others go on; without any, this node is of no use and stops."""
        logger.error("log directory is offline directory=%s reason=%s", directory, error)
        self.replica.on_directory_failed(directory)
        if all(one.failed is not None for one in self.logs.directories.values()):
            self.failure = f"no log directory is left: {error}"
            self.stop.set()


@dataclass
class _Publisher:
    """Carries the metadata down to the replicas: from the moment that this node is registered, each change as it comes.

    Before that the image replays history, and nothing of it is carried out: a topic that was deleted since must not be
    opened, and one whose directory is here must not be taken for a stray.
    """

    node_id: NodeId
    config: NodeConfig
    replica: ReplicaService
    active: bool = False
    pending: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions whose newest assignment is still to be carried out: opening thousands of logs must not hold up the loop."""
    more: trio.Event = field(default_factory=trio.Event)

    async def activate(self, image: MetadataImage) -> None:
        """The image is current: open what it assigns to this node, and remove what it does not."""
        self.active = True
        everything = {TopicPartition(topic.name, index) for topic in image.topics.values() for index in range(len(topic.partitions))}
        mine = {
            TopicPartition(topic.name, index): topic.topic_id
            for topic in image.topics.values()
            for index, partition in enumerate(topic.partitions)
            if self.node_id in partition.replicas
        }
        self.replica.remove_strays(mine)
        self.pending.update(dict.fromkeys(sorted(everything)))
        await self._drain(image)

    async def run(self, image: MetadataImage) -> None:
        """Carry out large changes a slice at a time, until cancelled."""
        while True:
            await self.more.wait()
            self.more = trio.Event()
            await self._drain(image)

    async def _drain(self, image: MetadataImage) -> None:
        while self.pending:
            taken = list(islice(self.pending, _ASSIGNED_AT_ONCE))
            for topic_partition in taken:
                del self.pending[topic_partition]
            self._assign(image, taken)
            await trio.lowlevel.checkpoint()

    def __call__(self, delta: Delta, image: MetadataImage) -> None:
        if not self.active:
            return
        for topic in delta.topics_deleted:
            self.replica.delete(topic.name)
        if self.pending or len(delta.partitions_changed) > _ASSIGNED_AT_ONCE:
            self.pending.update(dict.fromkeys(sorted(delta.partitions_changed)))
            self.more.set()
        else:
            self._assign(image, sorted(delta.partitions_changed))
        changed = {name for kind, name in delta.configs_changed if kind == "topic" and name in image.topics}
        if any(kind == "node" for kind, _ in delta.configs_changed):
            changed = set(image.topics)
        for name in sorted(changed):
            self.replica.configure(name, self._settings(image, name))

    def _assign(self, image: MetadataImage, changed: Iterable[TopicPartition]) -> None:
        """Carry out the assignments as they are now; a partition that is gone by now is skipped."""
        assignments = []
        settings: dict[str, TopicSettings] = {}
        for topic_partition in changed:
            partition = image.partition(*topic_partition)
            if partition is None:
                continue
            topic = image.topics[topic_partition.topic]
            if topic.name not in settings:
                settings[topic.name] = self._settings(image, topic.name)
            assignments.append(
                Assignment(
                    topic_partition=topic_partition,
                    topic_id=topic.topic_id,
                    leader=partition.leader,
                    leader_epoch=partition.leader_epoch,
                    replicas=partition.replicas,
                    isr=partition.isr,
                    partition_epoch=partition.partition_epoch,
                    elr=partition.elr,
                )
            )
        self.replica.apply(assignments, settings)

    def _settings(self, image: MetadataImage, topic: str) -> TopicSettings:
        config = effective_node_config(self.config, image, self.node_id)
        options: Mapping[str, Any] = topic_options(config, image.topic_configs(topic))
        return TopicSettings(LogConfig.from_options(options), options["min.insync.replicas"])


@contextmanager
def _told(what: str, path: Path) -> Iterator[None]:
    """Turns failures of the operating system into the one line that tells an operator what to mend."""
    try:
        yield
    except StorageError as error:  # tells its own remedy
        raise StartError(f"{what} cannot be used: {error}") from error
    except (FileExistsError, NotADirectoryError) as error:
        raise StartError(f"{what} cannot be used: {error.filename or path} is no directory; give another one") from error
    except OSError as error:
        raise StartError(f"{what} cannot be used: {error}; check {error.filename or path}, its owner, and the space on its disk") from error
