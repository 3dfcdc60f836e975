"""The composition root: builds every part of one node, plugs them into one another, and owns the
root nursery.

Start: the addresses are bound (a port in use is told at once), the logs recover, the metadata log
is replayed, the node registers with the controller, its partitions are opened as the image says,
what it lost is reported, it serves, and only then may the controller let it lead. Stop is the same
backwards: leadership is handed over, connections close, everything is synced, and a marker says
that the stop was clean.

`main` is what `mqd start` runs. A simulation passes its own `Seams`; nothing else here differs.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

import trio

from mqd.config import NodeConfig, PeerNode, StartError, StartOptions, topic_options
from mqd.controller.configs import effective_node_config, warn_of_static_overrides
from mqd.controller.delta import Delta
from mqd.controller.image import MetadataImage
from mqd.controller.lifecycle import BrokerAddress
from mqd.controller.machine import MetadataMachine
from mqd.controller.placement import default_replication_factor
from mqd.controller.service import ControllerService
from mqd.errors import PASSING_ERRNOS, ErrorCode, MqError, StorageError
from mqd.io.clock import Clock, SystemClock
from mqd.io.disk import Disk, OsDisk, raise_descriptor_limit
from mqd.io.entropy import Entropy, RandomEntropy
from mqd.io.garbage import Garbage
from mqd.io.memory import memory_bytes
from mqd.io.net import Listener, Network, OsNetwork
from mqd.limits import DESCRIPTORS_OTHERS, DISK_RESERVE_BYTES
from mqd.log.disk import disk_serials, known_directories, last_registration
from mqd.log.disk.disk_serials import load_disk_serials, older_copies, store_disk_serials
from mqd.log.disk.known_directories import (
    KnownDirectories,
    load_known_directories,
    store_known_directories,
)
from mqd.log.disk.last_registration import (
    NO_BROKER_EPOCH,
    LastRegistration,
    forget_last_registration,
    machine_ran_on,
    may_vouch,
    previous_broker_epoch,
    registered_directories,
    store_last_registration,
)
from mqd.log.log_config import LogConfig
from mqd.log.manager.compactor import CompactorOptions
from mqd.log.producer_memory import producers_max
from mqd.log.service import LogService
from mqd.logs import write_line
from mqd.protocol.files import MetaProperties
from mqd.raft import versions
from mqd.raft.journal_start import journal_exists
from mqd.raft.service import RaftService
from mqd.raft.snapshots import Compaction
from mqd.replica.fetchers import Fetchers
from mqd.replica.follower import FollowerOptions
from mqd.replica.partition import Assignment, Partition
from mqd.replica.service import ReplicaService
from mqd.replica.settings import TopicSettings
from mqd.server.context import CLIENT, PEER, Node
from mqd.server.coordinators import Coordinators
from mqd.server.forward import Forwarder
from mqd.server.service import Server
from mqd.types import NodeId, TopicPartition

logger = logging.getLogger(__name__)

_ASSIGNED_AT_ONCE = 25
"""More partitions than this are opened or closed in slices."""
_SLICE = 5
"""Partitions opened or closed before others get the loop: a log takes a millisecond or two to make,
on a busy machine ten, and the quorum calls a node gone that says nothing for 400 ms.
"""
_LISTEN_REMEDIES = {
    errno.EADDRINUSE: "stop the process that uses it, or change",
    errno.EACCES: "a port below 1024 needs a privilege: set another one for",
}
_NO_ADDRESS = "it must be an address of this machine: see"
_NO_BOUND = 2**63 - 1
"""What Kafka's rates say where there is none."""
_DESCRIPTORS_SHARED = 1 << 16
"""What a node counts with that shares its process with others and has no say in its limits."""
_LEAVE_SECONDS = 2.0
"""How long a clean stop waits for the controller to move leadership away."""
_LEAVE_SILENCE_SECONDS = 0.5
"""How long of that may pass without a controller: an election takes less, where there are
enough nodes to hold one.
"""
_LEAVE_HEARD_SECONDS = 0.5
"""How long it then waits to hear of it itself."""
_GOODBYE_SECONDS = 0.05
"""Between the last leadership and the end of the connections: answers that were ready leave."""


@dataclass(frozen=True, slots=True)
class Seams:
    """What a node asks of the world: the real world by default."""

    clock: Clock = field(default_factory=SystemClock)
    entropy: Entropy = field(default_factory=RandomEntropy)
    disk: Disk = field(default_factory=OsDisk)
    network: Network | None = None
    """None: the system's, with the socket buffers of the configuration."""
    announce: Callable[[str], None] = write_line
    """Where the one line goes that says the node serves."""
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)
    """Which of them stop the node cleanly; none where several nodes share a process."""
    owns_process: bool = True
    """Whether limits and the garbage collector of this process are the node's to set; not
    where several nodes share it.
    """


async def main(
    options: StartOptions,
    seams: Seams | None = None,
    *,
    task_status: trio.TaskStatus[_Daemon] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run one node until SIGTERM, SIGINT or cancellation. Raises StartError for what its operator
    can mend.

    Started with its parts, as soon as they are made: a simulation stops the node and looks into it
    through them.
    """
    seams = (
        seams
        if seams is not None
        else Seams(disk=OsDisk(group_readable=options.config.boolean("data.group.readable")))
    )
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
    """The first signal stops the node cleanly, a second one of the same kind stops it at once, also
    when the event loop is busy.

    One Ctrl-C under `mqd dev` is a SIGINT from the terminal and a SIGTERM from the parent: signals
    of two kinds are no second one. SIGHUP has no effect: the log goes to standard error, so there
    is no file to open again.
    """
    with trio.open_signal_receiver(*wanted, signal.SIGHUP) as signals:
        async for number in signals:
            if number == signal.SIGHUP:
                logger.info("SIGHUP is ignored: a node reads its files only when it starts")
                continue
            signal.signal(number, _stop_at_once)
            logger.info("stopping signal=%s", signal.Signals(number).name)
            stop.set()


def _stop_at_once(number: int, _frame: object) -> None:
    name = signal.Signals(number).name
    os.write(
        2,
        f"mqd: stopped immediately after a second {name}; the next start checks the ends of "
        "the logs\n".encode(),
    )
    os._exit(1)


class _Daemon:
    """The parts of one node, from their construction to their end."""

    def __init__(self, options: StartOptions, seams: Seams) -> None:
        self.options = options
        self.seams = seams
        self.config: NodeConfig = options.config
        self.peers = options.peers
        self.me: PeerNode = self.peers.require(options.node_id)
        self._check_counts_of_nodes()
        self.network: Network = seams.network or OsNetwork(
            send_buffer_bytes=self.config.integer("socket.send.buffer.bytes"),
            receive_buffer_bytes=self.config.integer("socket.receive.buffer.bytes"),
        )
        self.metadata_directory = options.data_directory / "metadata"
        self.directories_file = options.data_directory / known_directories.NAME
        self.registration_file = options.data_directory / last_registration.NAME
        self.serials_file = options.data_directory / disk_serials.NAME
        self.recorded_serials: Mapping[UUID, int] = {}
        descriptors = raise_descriptor_limit() if seams.owns_process else _DESCRIPTORS_SHARED
        descriptors_for_logs = max(
            descriptors - self.config.integer("max.connections") - DESCRIPTORS_OTHERS,
            descriptors // 2,
        )
        logger.info("open files limit=%d for_logs=%d", descriptors, descriptors_for_logs)
        directories = [Path(one) for one in self.config["log.dirs"] or self.config["log.dir"] or ()]  # type: ignore[union-attr]
        self.logs = LogService(
            disk=seams.disk,
            clock=seams.clock,
            directories=directories or [options.data_directory / "logs"],
            on_durable=lambda log: self.replica.on_durable(log),
            on_log_start_moved=lambda log: self.replica.on_log_start_moved(log),
            on_directory_failed=self._on_directory_failed,
            claim=lambda: MetaProperties(self.peers.cluster_id, self.me.id, seams.entropy.uuid()),
            retention_check_interval_ms=self.config.integer("log.retention.check.interval.ms"),
            producer_id_expiration_ms=self.config.integer("producer.id.expiration.ms"),
            producers_max=producers_max(self.config["producer.state.memory.bytes"], memory_bytes()),
            descriptors=descriptors_for_logs,
            checkpoint_seconds=self.config.integer("log.flush.offset.checkpoint.interval.ms")
            / 1000,
            kept=machine_ran_on(seams.disk, self.registration_file),
            ran_on=may_vouch(seams.disk, self.registration_file),
        )
        self.logs.compactor.options = CompactorOptions.from_config(self.config)
        self.replica = ReplicaService(
            node_id=NodeId(self.me.id),
            logs=self.logs,
            clock=seams.clock,
            entropy=seams.entropy,
            fetch_sessions_max=self.config.integer("max.incremental.fetch.session.cache.slots"),
            checkpoint_seconds=self.config.integer("replica.high.watermark.checkpoint.interval.ms")
            / 1000,
            lag_seconds=self.config.integer("replica.lag.time.max.ms") / 1000,
        )
        self.replica.tells_high_watermarks = self.config["replica.selector.class"] is not None
        self.machine = MetadataMachine()
        self.raft = RaftService(
            node_id=self.me.id,
            voters={peer.id: (peer.host, peer.peer_port) for peer in self.peers.voters.values()},
            observers={
                peer.id: (peer.host, peer.peer_port)
                for peer in self.peers.nodes.values()
                if not peer.voter
            },
            secret=self.peers.secret,
            cluster_id=self.peers.cluster_id,
            directory=self.metadata_directory,
            disk=seams.disk,
            clock=seams.clock,
            entropy=seams.entropy,
            network=self.network,
            machine=self.machine,
            compaction=Compaction(
                entries_max=self.config.integer("metadata.log.max.records.between.snapshots"),
                bytes_max=self.config.integer("metadata.log.max.record.bytes.between.snapshots"),
                entries_kept=self.config.integer("metadata.log.records.kept"),
            ),
            finalized=lambda: self.machine.image.features.get(versions.FEATURE, 0),
        )
        self.forwarder = Forwarder(self.peers, self.me.id, self.network, self.raft.authenticate)
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
            nodes=len(self.peers.nodes),
            space=self._why_full,
        )
        self.controller.lifecycle.on_registered = self._on_registered
        self.controller.lifecycle.disk_serial = lambda: self.logs.housekeeping.disk_serial
        self.raft.on_peer_gone = lambda node_id: self.controller.session_watch.on_peer_gone(
            NodeId(node_id)
        )
        self.fetchers = Fetchers(
            node_id=NodeId(self.me.id),
            replica=self.replica,
            logs=self.logs,
            clock=seams.clock,
            entropy=seams.entropy,
            options=FollowerOptions.from_config(self.config),
            connect=self.forwarder.dial,
            broker_epoch=self._broker_epoch,
        )
        self.replica.fetchers = self.fetchers
        self.replica.alter_partitions = self.controller.replica_reports.alter_partitions
        self.replica.eligible = self._eligible
        self.replica.on_offline = self._on_partition_offline
        self.replica.contact_until = self._contact_until
        self.controller.lifecycle.on_contact = self._judge_contact
        self.coordinators = Coordinators(
            node_id=NodeId(self.me.id),
            config=self.config,
            image=lambda: self.machine.image,
            replica=self.replica,
            logs=self.logs,
            clock=seams.clock,
            entropy=seams.entropy,
            disk=seams.disk,
            forward=self.forwarder,
            new_producer_id=self.controller.next_producer_id,
        )
        self.replica.on_role_changed = self.coordinators.role_changed
        self.publisher = _Publisher(NodeId(self.me.id), self.config, self.replica)
        self.controller.subscribe(self.publisher)
        self.controller.subscribe(self.coordinators.metadata_changed)
        self.controller.subscribe(self._on_image_changed)
        self.failure: str | None = None
        self.stop = trio.Event()
        self.known: KnownDirectories
        self.serve_clients: Callable[[], None]
        self.server: Server | None = None
        self._activated = False
        self._image_changed = trio.Event()
        self._lost: dict[tuple[UUID, int], None] = {}
        """Partitions (topic id, index) whose log here cannot be used, until the controller knows.
        By id: by the time that there is a controller, the name may be that of another topic.
        """
        self._loss = trio.Event()

    def _check_counts_of_nodes(self) -> None:
        """What is asked of more nodes than there are: refused where nobody could ever
        write, told where less is done.
        """
        nodes = len(self.peers.nodes)
        needed = self.config.integer("min.insync.replicas")
        if needed > nodes:
            raise StartError(
                f"min.insync.replicas is {needed}, but {self.peers.path} has {nodes} node(s): "
                "acks=all writes would always fail; "
                f"set it to {nodes} or less, or add nodes"
            )
        factor = self.config.integer("default.replication.factor")
        possible = default_replication_factor(factor, nodes)
        if factor > possible:
            logger.warning(
                "default.replication.factor exceeds the number of nodes: new topics get "
                "fewer replicas "
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
                    self._vouch_for_nothing_lost()
                try:
                    with _told("the log directories", self.options.data_directory):
                        self.known = self._known_directories()
                        registered = registered_directories(disk, self.registration_file)
                        self.controller.lifecycle.disk_serial_found = self.logs.found_serial(
                            registered
                        )
                        self.controller.lifecycle.previous_broker_epoch = previous_broker_epoch(
                            disk,
                            self.registration_file,
                            clean=self.logs.registry.clean_start,
                            directories=self._usable_directories(),
                        )
                    await self._run_services(listeners)
                finally:
                    with trio.CancelScope(shield=True):
                        self.replica.checkpoint_high_watermarks()
                        await self.logs.close()
        finally:
            lock.close()
        if self.failure is not None:
            raise StartError(self.failure)

    def _vouch_for_nothing_lost(self) -> None:
        """Of what the logs lack only the checkpoints tell, and even a start that fails
        writes them anew: so this is durable before.
        """
        try:
            self.recorded_serials = load_disk_serials(self.seams.disk, self.serials_file)
            older = self._report_older_copies()
            if older or self.logs.registry.suspect:
                forget_last_registration(self.seams.disk, self.registration_file)
        except OSError:
            self.logs.release_locks()
            raise
        if older:
            self._store_disk_serials(self.logs.found_serials())
        self.logs.housekeeping.on_ends_stored = self._store_disk_serials

    def _report_older_copies(self) -> bool:
        """Whether any log directory is an older copy of itself."""
        found = self.logs.found_serials()
        older = older_copies(self.recorded_serials, found)
        for directory in self.logs.directories.values():
            if directory.id in older:
                logger.error(
                    "log directory is an older copy, acknowledged records may be missing: this"
                    " node copies them from other replicas; records "
                    "without one "
                    "stay lost "
                    "unless you"
                    " stop the node and restore the newer directory"
                    " directory=%s expected_disk_serial=%d found_disk_serial=%d",
                    directory.path,
                    older[directory.id],
                    found[directory.id],
                )
        return bool(older)

    def _store_disk_serials(self, serials: Mapping[UUID, int]) -> None:
        """In a worker thread while the node runs.

        A directory that is not here now keeps its line.
        """
        recorded = {**self.recorded_serials, **serials}
        if recorded == self.recorded_serials:
            return
        try:
            store_disk_serials(self.seams.disk, self.serials_file, recorded)
            self.recorded_serials = recorded
        except OSError as error:  # the next start is guarded a little less; the controller knows
            logger.warning("cannot write file=%s reason=%s", self.serials_file, error)

    def _usable_directories(self) -> frozenset[UUID]:
        return frozenset(
            one.id
            for one in self.logs.directories.values()
            if one.failed is None and one.id is not None
        )

    def _known_directories(self) -> KnownDirectories:
        """Logs and metadata are a pair: StorageError, before anything is changed, where
        they are not.
        """
        disk, directories = self.seams.disk, self.logs.directories.values()
        known = load_known_directories(disk, self.directories_file)
        is_new = len(self.peers.voters) == 1 and not journal_exists(disk, self.metadata_directory)
        known.check(
            self.directories_file, self.metadata_directory, directories, metadata_is_new=is_new
        )
        known.learn(directories)
        store_known_directories(disk, self.directories_file, known)
        return known

    def _check_image(self) -> None:
        """The image is current and about to be carried out: it must not be older than the
        one before.
        """
        known, index = self.known, self.machine.image.index
        known.check_index(self.directories_file, self.metadata_directory, index)
        known.metadata_index = index
        try:
            store_known_directories(self.seams.disk, self.directories_file, known)
        except OSError as error:
            if error.errno not in PASSING_ERRNOS:
                raise
            # the next start is guarded a little less
            logger.warning("cannot write file=%s reason=%s", self.directories_file, error)

    async def _run_services(self, listeners: dict[str, Listener]) -> None:
        async with trio.open_nursery() as background:
            background.start_soon(self.logs.run)
            background.start_soon(self.replica.run)
            background.start_soon(self.forwarder.run)
            background.start_soon(self.fetchers.run)
            background.start_soon(self._watch_contact)
            background.start_soon(self._report_losses)
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
                forward=self.forwarder,
                groups=self.coordinators.groups,
                transactions=self.coordinators.transactions,
            )
            self.coordinators.node = node
            background.start_soon(self.coordinators.run)
            async with trio.open_nursery() as serving:
                with trio.CancelScope() as starting:
                    serving.start_soon(self._cancel_on_stop, starting)
                    server = self.server = Server(node, self.network)
                    self.serve_clients = lambda: server.listen(listeners[CLIENT], CLIENT)
                    await serving.start(server.run, [(listeners[PEER], PEER)])
                    serving.start_soon(self.publisher.run, self.machine.image)
                    await serving.start(self.controller.run)
                    if self.seams.owns_process:
                        background.start_soon(Garbage().run)
                    self.seams.announce(
                        f"mqd node {self.me.id} ready on {self.me.host}:{listeners[CLIENT].port}"
                    )
                await self.stop.wait()
                await self._leave()
                # the peer listener still hears the answers that the hand-over waits for
                await self.raft.stop()
                serving.cancel_scope.cancel()
            background.cancel_scope.cancel()

    # -- this node in the cluster

    async def _on_registered(self, broker_epoch: int) -> bool:
        """Registered and fenced. What is done here is done before this node may lead or be in sync
        with anybody.

        False where the registration was replaced before that: for the next one all is done that is
        left to do.
        """
        with _told("the data directory", self.registration_file):
            try:
                last = LastRegistration(
                    broker_epoch, self.seams.disk.boot_id(), self._usable_directories()
                )
                store_last_registration(self.seams.disk, self.registration_file, last)
            except OSError as error:
                if error.errno not in PASSING_ERRNOS:
                    raise
                # an older epoch in it vouches for nothing
                logger.warning("cannot write file=%s reason=%s", self.registration_file, error)
        if self._activated:
            return True
        await self._until(lambda: self.machine.image.index >= broker_epoch)
        if not self.publisher.active:
            with _told("the metadata", self.metadata_directory):
                self._check_image()
            await self.publisher.activate(self.machine.image)
        if not await self._report_lost():
            return False
        self.serve_clients()
        self._activated = True
        return True

    def _on_image_changed(self, delta: Delta, image: MetadataImage) -> None:
        self._image_changed.set()
        self._image_changed = trio.Event()
        if not self.replica.in_contact:
            self._judge_contact()  # an answered heartbeat may count now

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait for what a change of the image brings about."""
        while not holds():
            await self._image_changed.wait()

    def _broker_epoch(self) -> int:
        """Of this process's registration, as far as it is applied here."""
        broker = self.machine.image.brokers.get(NodeId(self.me.id))
        return (
            broker.epoch
            if broker is not None and broker.incarnation == self.controller.lifecycle.incarnation
            else NO_BROKER_EPOCH
        )

    def _eligible(self, node_id: NodeId) -> int | None:
        """Broker epoch of a node that may be in sync: alive, and not about to stop."""
        broker = self.machine.image.brokers.get(node_id)
        return (
            None
            if broker is None or broker.fenced or broker.in_controlled_shutdown
            else broker.epoch
        )

    async def _watch_contact(self) -> None:
        """Whoever has heard no controller for a session may have been replaced as a leader: it
        sends its clients away.

        Those that ask are sent away by the server's turns; this is for those that wait.
        """
        interval = self.config.integer("broker.heartbeat.interval.ms") / 2000
        while True:
            await trio.sleep(interval)
            self._judge_contact()

    def _contact_until(self) -> float:
        """Until when nobody else leads what this node was told to lead. It was told nothing before
        its first heartbeat was answered.

        The only voter decides who leads, and so knows, however long it did not run.
        """
        status = self.raft.status()
        if self.controller.lifecycle.contact_at == -math.inf or (
            status.ready and status.voters == (self.me.id,)
        ):
            return math.inf
        return (
            self.controller.lifecycle.contact_at
            + self.config.integer("broker.session.timeout.ms") / 1000
        )

    def _judge_contact(self) -> None:
        self.replica.judge_contact(self.seams.clock.monotonic())

    def _on_partition_offline(self, topic_id: UUID, partition: int) -> None:
        self._lost[topic_id, partition] = None
        self._loss.set()

    async def _report_losses(self) -> None:
        while True:
            await self._loss.wait()
            self._loss = trio.Event()
            await self._until(lambda: self._activated)
            if not await self._report_lost():
                await trio.sleep(self.config.integer("broker.heartbeat.interval.ms") / 1000)
                self._loss.set()

    async def _report_lost(self) -> bool:
        """Tell the controller which replicas this node has lost, until it has heard: others lead,
        and are copied from.

        False where this registration is none any more: a heartbeat finds that out where there are
        any yet, and registers anew.
        """
        while self._lost:
            taken = list(self._lost)
            try:
                await self.controller.replica_reports.report_offline(taken)
            except MqError as error:
                logger.warning(
                    "cannot report lost replicas to the controller yet partitions=%d reason=%s",
                    len(taken),
                    error,
                )
                if error.code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
                    return False
                await trio.sleep(self.config.integer("broker.heartbeat.interval.ms") / 1000)
                continue
            for lost in taken:
                self._lost.pop(lost, None)
        return True

    async def _leave(self) -> None:
        """Others lead before the connections close; clients are told so, or find out when
        they come back.
        """
        if not self.config.boolean("controlled.shutdown.enable"):
            return
        if await self.controller.lifecycle.leave(
            timeout=_LEAVE_SECONDS, no_controller_timeout=_LEAVE_SILENCE_SECONDS
        ):
            with trio.move_on_after(_LEAVE_HEARD_SECONDS):
                await self._until(lambda: self._eligible(NodeId(self.me.id)) is None)
        await trio.sleep(_GOODBYE_SECONDS)

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
                f"{self.options.data_directory}: another mqd process uses this data "
                "directory; stop it, or choose another one with --data"
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
                        f"cannot listen on {self.me.host}:{port} for {kind}s "
                        f"({error.strerror or error}); "
                        f"{_LISTEN_REMEDIES.get(error.errno or 0, _NO_ADDRESS)} node "
                        f"{self.me.id} in {self.peers.path}"
                    ) from error
            yield found
        finally:
            for listener in found.values():
                listener.close()

    def _why_full(self) -> str | None:
        """Why nothing may be made that takes space; None where there is some."""
        if self.raft.short_of_space:
            return (
                f"The disk of {self.metadata_directory} is full: free some space, then "
                "retry; topics can be deleted."
            )
        for directory in self.logs.directories.values():
            if directory.failed is None:
                try:
                    if self.seams.disk.free_bytes(directory.path) >= DISK_RESERVE_BYTES:
                        return None
                except OSError:
                    return None  # whoever writes there will tell
        return (
            "The disk of the log directories is full: free some space, then retry; topics "
            "can be deleted."
        )

    def _on_directory_failed(self, directory: Path, error: StorageError) -> None:
        """A log directory is gone. The others go on; without any, this node is of no use and stops.

        What was written there and not synced may be lost, whatever a later start reads: this node
        vouches for nothing.
        """
        self.controller.lifecycle.previous_broker_epoch = NO_BROKER_EPOCH
        with suppress(OSError):
            forget_last_registration(self.seams.disk, self.registration_file)
        logger.error("log directory is offline directory=%s reason=%s", directory, error)
        self.replica.on_directory_failed(directory)
        if all(one.failed is not None for one in self.logs.directories.values()):
            self.failure = f"no log directory is online: {error}"
            self.stop.set()


@dataclass
class _Publisher:
    """Carries the metadata down to the replicas: from the moment that this node is registered, each
    change as it comes.

    Before that the image replays history, and nothing of it is carried out: a topic that was
    deleted since must not be opened, and one whose directory is here must not be taken for a stray.
    """

    node_id: NodeId
    config: NodeConfig
    replica: ReplicaService
    active: bool = False
    pending: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions whose newest assignment is still to be carried out: opening thousands of
    logs must not hold up the loop.
    """
    retired: deque[Partition] = field(default_factory=deque)
    """Partitions of topics that were deleted, still to be removed: before any other is
    opened, for it may have the name of one.
    """
    unopened: deque[TopicPartition] = field(default_factory=deque)
    """Those of such topics that were still to be opened: a log may have been found for
    them, and goes likewise.
    """
    more: trio.Event = field(default_factory=trio.Event)

    async def activate(self, image: MetadataImage) -> None:
        """The image is current: open what it assigns to this node, and remove what it does not."""
        self.active = True
        self._set_rates(image)
        everything = {
            TopicPartition(topic.name, index)
            for topic in image.topics.values()
            for index in range(len(topic.partitions))
        }
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
        while self.retired or self.unopened or self.pending:
            if self.retired or self.unopened:
                for _ in range(min(_SLICE, len(self.retired))):
                    self.replica.remove(self.retired.popleft())
                for _ in range(0 if self.retired else min(_SLICE, len(self.unopened))):
                    self.replica.forget(self.unopened.popleft())
                await trio.lowlevel.checkpoint()
                continue
            taken = list(islice(self.pending, _SLICE))
            for topic_partition in taken:
                del self.pending[topic_partition]
            self._assign(image, taken)
            await trio.lowlevel.checkpoint()

    def __call__(self, delta: Delta, image: MetadataImage) -> None:
        if not self.active:
            return
        for topic in delta.topics_deleted:
            if len(topic.partitions) > _ASSIGNED_AT_ONCE:
                self.retired += self.replica.retire(topic.name)
                self.more.set()
            else:
                self.replica.delete(topic.name)
            mine = (
                TopicPartition(topic.name, index)
                for index, one in enumerate(topic.partitions)
                if self.node_id in one.replicas
            )
            self.unopened += [one for one in mine if one in self.pending]
        if (
            self.retired
            or self.unopened
            or self.pending
            or len(delta.partitions_changed) > _ASSIGNED_AT_ONCE
        ):
            self.pending.update(dict.fromkeys(delta.partitions_in_order()))
            self.more.set()
        else:
            self._assign(image, delta.partitions_in_order())
        if delta.brokers_changed:
            self.replica.brokers_changed()
        changed = {
            name for kind, name in delta.configs_changed if kind == "topic" and name in image.topics
        }
        if any(kind == "node" for kind, _ in delta.configs_changed):
            changed = set(image.topics)
            self._set_rates(image)
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
                    adding=partition.adding,
                    removing=partition.removing,
                    lost=tuple(
                        one
                        for one in partition.replicas
                        if (topic.topic_id, topic_partition.partition, one) in image.lost_replicas
                    ),
                )
            )
        self.replica.apply(assignments, settings)

    def _settings(self, image: MetadataImage, topic: str) -> TopicSettings:
        config = effective_node_config(self.config, image, self.node_id)
        options: Mapping[str, Any] = topic_options(config, image.topic_configs(topic))
        return TopicSettings(
            LogConfig.from_options(options),
            options["min.insync.replicas"],
            options["leader.replication.throttled.replicas"],
            options["follower.replication.throttled.replicas"],
        )

    def _set_rates(self, image: MetadataImage) -> None:
        """The replication quotas of this node (KIP-73) and the options of its cleaner,
        which may change while it runs.
        """
        warn_of_static_overrides(image, self.node_id)
        config = effective_node_config(self.config, image, self.node_id)
        for throttle, role in (
            (self.replica.leader_throttle, "leader"),
            (self.replica.follower_throttle, "follower"),
        ):
            rate = config.integer(f"{role}.replication.throttled.rate")
            throttle.set_rate(rate if rate < _NO_BOUND else None)
        self.replica.logs.compactor.options = CompactorOptions.from_config(config)


@contextmanager
def _told(what: str, path: Path) -> Iterator[None]:
    """Turns failures of the operating system into the one line that tells an operator what
    to mend.
    """
    try:
        yield
    except StorageError as error:  # tells its own remedy
        raise StartError(f"{what} cannot be used: {error}") from error
    except (FileExistsError, NotADirectoryError) as error:
        raise StartError(
            f"{what} cannot be used: {error.filename or path} is not a directory; choose "
            "another one"
        ) from error
    except OSError as error:
        raise StartError(
            f"{what} cannot be used: {error}; check {error.filename or path}, its owner, and "
            "the space on its disk"
        ) from error
