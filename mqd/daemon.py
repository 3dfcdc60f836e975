"""The composition root: builds and connects the parts of one node, and owns the root nursery.

At the start, the node binds its addresses before the logs recover, so it reports a port in use
early. Then it replays the metadata log, registers with the controller, opens its partitions as the
image assigns them, reports lost replicas, and serves clients. Only then may the controller make it
a leader. At a stop, the node hands over leadership, closes its connections, syncs everything, and
writes a marker of the clean shutdown.

`main` is what `mqd start` runs. A simulation passes its own `Seams`; nothing else here differs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from mqd.config import NodeConfig, PeerNode, StartError, StartOptions
from mqd.controller.delta import Delta
from mqd.controller.image import MetadataImage
from mqd.controller.lifecycle import BrokerAddress
from mqd.controller.machine import MetadataMachine
from mqd.controller.placement import default_replication_factor
from mqd.controller.service import ControllerService
from mqd.errors import StorageError
from mqd.io.clock import Clock, SystemClock
from mqd.io.disk import Disk, OsDisk, raise_descriptor_limit
from mqd.io.entropy import Entropy, RandomEntropy
from mqd.io.garbage import Garbage
from mqd.io.memory import memory_bytes
from mqd.io.net import Network, OsNetwork
from mqd.limits import DESCRIPTORS_OTHERS, PRODUCER_BYTES
from mqd.log.compactor_options import CompactorOptions
from mqd.log.disk.last_registration import NO_BROKER_EPOCH
from mqd.log.service import LogService
from mqd.logs import write_line
from mqd.memory_plan import MemoryPlan
from mqd.node.controller_contact import ControllerContact
from mqd.node.data_directory import DataDirectory
from mqd.node.first_users import (
    FirstUsers,
    load_first_users,
    on_registered as first_users_registered,
    records_of,
)
from mqd.node.free_space import why_full
from mqd.node.listeners import (
    BoundListeners,
    broker_endpoints,
    listeners,
    listeners_of,
    ready_on,
    sasl_options_of,
)
from mqd.node.login_secret import login_secret
from mqd.node.lost_replicas import LostReplicas
from mqd.node.peer_tls import PeerTls
from mqd.node.publisher import MetadataPublisher
from mqd.node.signals import StopSignals
from mqd.node.start_errors import start_errors
from mqd.node.users_file import UsersFile
from mqd.node.watched_files import WatchedFiles
from mqd.protocol.files import MetaProperties
from mqd.raft import versions
from mqd.raft.service import RaftService
from mqd.raft.snapshots import Compaction
from mqd.replica.fetchers import Fetchers
from mqd.replica.follower import FollowerOptions
from mqd.replica.ports import ReplicaPorts
from mqd.replica.service import ReplicaService
from mqd.server.authorization import acls_changed, acls_restored, authorizer_of
from mqd.server.client_quotas import NodeQuotas
from mqd.server.context import Node
from mqd.server.coordinators import Coordinators
from mqd.server.forward import Forwarder
from mqd.server.sasl import SaslService
from mqd.server.service import Server
from mqd.types import NodeId

logger = logging.getLogger(__name__)

_DESCRIPTORS_SHARED = 1 << 16
"""The assumed number of descriptors of a node that shares its process with others, and so cannot
set the limit.
"""
_LEAVE_SECONDS = 2.0
"""How long a controlled shutdown waits for the controller to hand over leadership."""
_NO_CONTROLLER_SECONDS = 0.5
"""How much of that time may pass without a controller. If a majority runs, an election takes less.
"""
_FENCING_SECONDS = 0.5
"""How long the node waits after the hand-over until it has applied its own fencing."""
_GOODBYE_SECONDS = 0.05
"""Time between the hand-over and the end of the connections, in which ready responses are sent."""


@dataclass(frozen=True, slots=True)
class Seams:
    """The environment of a node: the real one by default."""

    clock: Clock = field(default_factory=SystemClock)
    entropy: Entropy = field(default_factory=RandomEntropy)
    disk: Disk = field(default_factory=OsDisk)
    network: Network | None = None
    """None: the system's network, with the socket buffers of the configuration."""
    announce: Callable[[str], None] = write_line
    """Writes the one line that says that the node is ready."""
    signals: StopSignals | None = None
    """None: no signal stops the node, because several nodes share a process."""
    owns_process: bool = True
    """Whether the node may set the limits and the garbage collector of this process. False if
    several nodes share the process.
    """


async def main(
    options: StartOptions,
    seams: Seams,
    *,
    task_status: trio.TaskStatus[Daemon] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run one node until SIGTERM, SIGINT or cancellation. Raises StartError if its operator can
    repair the cause.

    `task_status` receives the `Daemon` as soon as its parts are built. A simulation stops and
    inspects the node through the `Daemon`.
    """
    stop = trio.Event()
    with (
        seams.signals.reported(trio.lowlevel.current_trio_token(), stop)
        if seams.signals
        else nullcontext()
    ):
        daemon = Daemon(options, seams)
        daemon.stop = stop
        if seams.signals:
            seams.signals.on_hang_up = daemon.watched_files.reload
        task_status.started(daemon)
        await daemon.run(stop)


class Daemon:
    """The parts of one node, from their construction to their end."""

    def __init__(self, options: StartOptions, seams: Seams) -> None:
        self.seams = seams
        self.config: NodeConfig = options.config
        self.peers = options.peers
        self.me: PeerNode = self.peers.require(options.node_id)
        self._check_replication_options()
        self.client_listeners = listeners_of(self.config, self.me)
        self.sasl_options = sasl_options_of(self.config, self.client_listeners)
        self.network: Network = seams.network or OsNetwork(
            send_buffer_bytes=self.config.integer("socket.send.buffer.bytes"),
            receive_buffer_bytes=self.config.integer("socket.receive.buffer.bytes"),
        )
        self.peer_tls = PeerTls(self.config, self.peers)
        self.peer_network = self.peer_tls.network(self.network)
        self.watched_files = WatchedFiles()
        self.data = DataDirectory(options.data_directory, seams.disk)
        self.machine = MetadataMachine()
        self.memory_plan = self._plan_memory()
        self.garbage = Garbage()
        self.logs = self._make_logs()
        self.replica = self._make_replica()
        self.raft = self._make_raft()
        self.forwarder = Forwarder(
            self.peers, self.me.id, self.peer_network, self.raft.authenticate
        )
        self.controller = self._make_controller()
        self.authorizer = authorizer_of(self.config)
        self.quotas = NodeQuotas(self.config)
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
        self.contact = ControllerContact(
            lifecycle=self.controller.lifecycle,
            raft=self.raft,
            replica=self.replica,
            clock=seams.clock,
            node_id=self.me.id,
            session_timeout_s=self.config.integer("broker.session.timeout.ms") / 1000,
            heartbeat_s=self.config.integer("broker.heartbeat.interval.ms") / 1000,
        )
        self.lost_replicas = LostReplicas(
            self.controller.replica_reports,
            self.config.integer("broker.heartbeat.interval.ms") / 1000,
            lambda: self._until(lambda: self._active),
        )
        self.coordinators = Coordinators(
            node_id=NodeId(self.me.id),
            config=self.config,
            plan=self.memory_plan,
            image=lambda: self.machine.image,
            replica=self.replica,
            logs=self.logs,
            clock=seams.clock,
            entropy=seams.entropy,
            disk=seams.disk,
            forward=self.forwarder,
            new_producer_id=self.controller.next_transactional_producer_id,
            create_topic=self.controller.create_topic_soon,
        )
        self.publisher = MetadataPublisher(NodeId(self.me.id), self.config, self.replica)
        self._connect_parts()
        self.failure: str | None = None
        """Why the node stops without a signal."""
        self.stop = trio.Event()
        self._first_users: FirstUsers = {}
        self.serve_clients: Callable[[], None]
        self.server: Server | None = None
        self._active = False
        """Whether clients are served."""
        self._image_changed = trio.Event()

    def _make_logs(self) -> LogService:
        config, seams = self.config, self.seams
        descriptors = raise_descriptor_limit() if seams.owns_process else _DESCRIPTORS_SHARED
        descriptors_for_logs = max(
            descriptors - config.integer("max.connections") - DESCRIPTORS_OTHERS,
            descriptors // 2,
        )
        logger.info("open files limit=%d for_logs=%d", descriptors, descriptors_for_logs)
        directories = [Path(one) for one in config["log.dirs"] or config["log.dir"] or ()]  # type: ignore[union-attr]
        logs = LogService(
            disk=seams.disk,
            clock=seams.clock,
            directories=directories or [self.data.path / "logs"],
            on_durable=lambda log: self.replica.on_durable(log),
            on_log_start_moved=lambda log: self.replica.on_log_start_moved(log),
            high_watermark_of=lambda log: self.replica.high_watermark_of(log),
            on_directory_failed=self._on_directory_failed,
            new_meta_properties=lambda: MetaProperties(
                self.peers.cluster_id, self.me.id, seams.entropy.uuid()
            ),
            retention_check_interval_ms=config.integer("log.retention.check.interval.ms"),
            producer_id_expiration_ms=config.integer("producer.id.expiration.ms"),
            producers_max=self.memory_plan.producers // PRODUCER_BYTES,
            descriptors=descriptors_for_logs,
            memory_bytes_max=self.memory_plan.topics,
            checkpoint_seconds=config.integer("log.flush.offset.checkpoint.interval.ms") / 1000,
            unsynced_survived=self.data.machine_ran_on(),
            survival_proven=self.data.may_vouch(),
        )
        logs.compactor.options = CompactorOptions.from_config(config)
        return logs

    def _plan_memory(self) -> MemoryPlan:
        """The shares of the memory, logged once."""
        plan = MemoryPlan.of(self.config, memory_bytes())
        logger.info("memory plan unit=MiB %s", plan)
        if plan.is_too_large:
            logger.warning(
                "the memory plan exceeds the memory of the machine total=%d machine=%d "
                "remedy='lower memory.budget.bytes, the options of coordinators and producers, or "
                "metadata.image.max.bytes (on every node)'",
                plan.total,
                plan.machine,
            )
        return plan

    def _make_replica(self) -> ReplicaService:
        config = self.config
        return ReplicaService(
            node_id=NodeId(self.me.id),
            logs=self.logs,
            clock=self.seams.clock,
            entropy=self.seams.entropy,
            ports=ReplicaPorts(
                alter_partitions=lambda changes: self.controller.replica_reports.alter_partitions(
                    changes
                ),
                eligible_epoch=self._eligible_epoch,
                contact_until=lambda: self.contact.until(),
                follow=lambda partition: self.fetchers.follow(partition),
                unfollow=lambda partition: self.fetchers.unfollow(partition),
                on_offline=lambda topic_id, index: self.lost_replicas.add(topic_id, index),
                on_role_changed=lambda partition: self.coordinators.role_changed(partition),
            ),
            consumers_read_from_followers=config["replica.selector.class"] is not None,
            fetch_sessions_max=config.integer("max.incremental.fetch.session.cache.slots"),
            checkpoint_seconds=config.integer("replica.high.watermark.checkpoint.interval.ms")
            / 1000,
            lag_seconds=config.integer("replica.lag.time.max.ms") / 1000,
        )

    def _make_raft(self) -> RaftService:
        config, seams = self.config, self.seams
        return RaftService(
            node_id=self.me.id,
            voters={peer.id: (peer.host, peer.peer_port) for peer in self.peers.voters.values()},
            observers={
                peer.id: (peer.host, peer.peer_port)
                for peer in self.peers.nodes.values()
                if not peer.voter
            },
            secret=self.peers.secret,
            cluster_id=self.peers.cluster_id,
            directory=self.data.metadata,
            disk=seams.disk,
            clock=seams.clock,
            entropy=seams.entropy,
            network=self.peer_network,
            machine=self.machine,
            compaction=Compaction(
                entries_max=config.integer("metadata.log.max.records.between.snapshots"),
                bytes_max=config.integer("metadata.log.max.record.bytes.between.snapshots"),
                entries_kept=config.integer("metadata.log.records.kept"),
            ),
            finalized=lambda: self.machine.image.features.get(versions.FEATURE, 0),
        )

    def _make_controller(self) -> ControllerService:
        seams = self.seams
        return ControllerService(
            node_id=NodeId(self.me.id),
            cluster_id=self.peers.cluster_id,
            address=BrokerAddress(
                self.client_listeners[0].advertised_host,
                self.client_listeners[0].advertised_port,
                self.me.rack,
                broker_endpoints(self.config, self.client_listeners),
            ),
            quorum=self.raft,
            machine=self.machine,
            clock=seams.clock,
            entropy=seams.entropy,
            config=self.config,
            forward=self.forwarder,
            nodes=len(self.peers.nodes),
            space=lambda: why_full(self.data, self.logs, self.raft, seams.disk),
        )

    def _make_sasl(self) -> SaslService:
        seams = self.seams
        secret = self.peers.secret
        if secret is None and self.sasl_options:
            with start_errors("the data directory", self.data.path):
                secret = login_secret(seams.disk, self.data.path, seams.entropy)
        sasl = SaslService(
            self.sasl_options,
            lambda: self.machine.image,
            entropy=seams.entropy,
            clock=seams.clock,
            disk=seams.disk,
            secret=secret,
        )
        self.watched_files.sources += [
            UsersFile(each.options.listener, Path(each.options.users_file), users.replace)
            for each in sasl.listeners
            if each.options.users_file is not None and (users := each.hashed_users) is not None
        ]
        return sasl

    def _connect_parts(self) -> None:
        """The callables through which lower parts reach higher ones."""
        controller = self.controller
        controller.lifecycle.on_registered = self._on_registered
        controller.lifecycle.on_contact = self.contact.judge
        controller.lifecycle.disk_serial = lambda: self.logs.housekeeping.disk_serial
        controller.lifecycle.partitions_max = lambda: self.logs.partitions_max
        controller.lifecycle.memory_partitions_max = lambda: self.logs.memory_partitions_max
        self.raft.peer_links.on_peer_gone = controller.session_watch.on_peer_gone
        controller.subscribe(
            partial(acls_changed, self.authorizer), partial(acls_restored, self.authorizer)
        )
        controller.subscribe(self.quotas.changed, self.quotas.restored)
        controller.subscribe(self.publisher)
        controller.subscribe(self.coordinators.metadata_changed)
        controller.subscribe(self._on_image_changed)

    def _check_replication_options(self) -> None:
        """Check the options that may need more nodes than the cluster has. Raises StartError if
        acks=all writes would always fail. Logs a warning if topics get fewer replicas.
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

    # -- start and stop

    async def run(self, stop: trio.Event) -> None:
        with self.garbage.begun() if self.seams.owns_process else nullcontext():
            await self._run(stop)

    async def _run(self, stop: trio.Event) -> None:
        self.stop = stop
        data, lifecycle = self.data, self.controller.lifecycle
        with start_errors("the data directory", data.path):
            self.seams.disk.make_directory(data.path)
            lock = data.lock()
        try:
            async with listeners(
                self.network,
                self.me,
                self.peers,
                self.config,
                self.client_listeners,
                self.peer_tls,
            ) as bound:
                with start_errors("the log directories", data.path):
                    await self.logs.start()
                    data.vouch_for_nothing_lost(self.logs)
                try:
                    with start_errors("the log directories", data.path):
                        data.check_directories(self.logs, voters=len(self.peers.voters))
                        registered = data.registered_directories()
                        lifecycle.disk_serial_found = self.logs.found_serial(registered)
                        lifecycle.previous_broker_epoch = data.previous_broker_epoch(self.logs)
                        self._first_users = load_first_users(self.seams.disk, data.first_users_file)
                        lifecycle.first_users = records_of(self._first_users)
                    await self._run_services(bound)
                finally:
                    with trio.CancelScope(shield=True):
                        self.replica.checkpoint_high_watermarks()
                        await self.logs.close()
        finally:
            lock.close()
        if self.failure is not None:
            raise StartError(self.failure)

    async def _run_services(self, bound: BoundListeners) -> None:
        async with trio.open_nursery() as background:
            if self.seams.owns_process:
                background.start_soon(self.garbage.run)
            background.start_soon(self.logs.run)
            background.start_soon(self.replica.run)
            background.start_soon(self.forwarder.run)
            background.start_soon(self.fetchers.run)
            background.start_soon(self.contact.watch)
            background.start_soon(self.lost_replicas.run)
            self.watched_files.sources += bound.certificates
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
                shares=self.coordinators.shares,
                share_state=self.coordinators.share_state,
                share=self.coordinators.share,
                quotas=self.quotas,
                authorizer=self.authorizer,
                sasl=self._make_sasl(),
            )
            await background.start(node.sasl.run)
            background.start_soon(self.watched_files.run)
            self.coordinators.node = node
            background.start_soon(self.coordinators.run)
            async with trio.open_nursery() as serving:
                with trio.CancelScope() as starting:
                    serving.start_soon(self._cancel_on_stop, starting)
                    server = self.server = Server(node, self.network, self.memory_plan.connections)

                    def serve_clients() -> None:
                        for client_listener, listener in bound.clients:
                            server.listen(listener, client_listener)

                    self.serve_clients = serve_clients
                    await serving.start(server.run, bound.peer)
                    serving.start_soon(self.publisher.run, self.machine.image)
                    await serving.start(self.controller.run)
                    self.seams.announce(f"mqd node {self.me.id} ready on {ready_on(bound)}")
                await self.stop.wait()
                await self._leave()
                # the peer listener still receives the responses that the hand-over waits for
                await self.raft.stop()
                serving.cancel_scope.cancel()
            background.cancel_scope.cancel()

    async def _cancel_on_stop(self, scope: trio.CancelScope) -> None:
        """A signal during the start ends the start."""
        await self.stop.wait()
        scope.cancel()

    async def _leave(self) -> None:
        """Hand over leadership before the connections close. Clients learn the new leaders from
        responses, or when they reconnect.
        """
        if not self.config.boolean("controlled.shutdown.enable"):
            return
        if await self.controller.lifecycle.leave(
            timeout=_LEAVE_SECONDS, no_controller_timeout=_NO_CONTROLLER_SECONDS
        ):
            with trio.move_on_after(_FENCING_SECONDS):
                await self._until(lambda: self._eligible_epoch(NodeId(self.me.id)) is None)
        await trio.sleep(_GOODBYE_SECONDS)

    # -- this node in the cluster

    async def _on_registered(self, broker_epoch: int) -> bool:
        """The node is registered and fenced. All of this happens before it may lead or be in sync
        (I25).

        Returns False if another registration replaced this one meanwhile. The next call completes
        the steps.
        """
        with start_errors("the data directory", self.data.registration_file):
            self.data.store_registration(broker_epoch, self.logs)
        if self._active:
            return True
        await self._until(lambda: self.machine.image.index >= broker_epoch)
        self._on_first_users_registered()
        if not self.publisher.active:
            with start_errors("the metadata", self.data.metadata):
                self.data.check_metadata_index(self.machine.image.index)
            await self.publisher.activate(self.machine.image)
        if not await self.lost_replicas.report():
            return False
        self.serve_clients()
        self._active = True
        return True

    def _on_first_users_registered(self) -> None:
        if self._first_users:
            first_users_registered(
                self.seams.disk, self.data.first_users_file, self._first_users, self.machine.image
            )
            self._first_users = {}
            self.controller.lifecycle.first_users = ()

    def _on_image_changed(self, delta: Delta, image: MetadataImage) -> None:
        self._image_changed.set()
        self._image_changed = trio.Event()
        if not self.replica.in_contact:
            # A heartbeat counts once this node has the metadata index of its response.
            self.contact.judge()

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait until a change of the image makes the condition true."""
        while not holds():
            await self._image_changed.wait()

    def _broker_epoch(self) -> int:
        """The epoch of this process's registration, once this node has applied it."""
        broker = self.machine.image.brokers.get(NodeId(self.me.id))
        return (
            broker.epoch
            if broker is not None and broker.incarnation == self.controller.lifecycle.incarnation
            else NO_BROKER_EPOCH
        )

    def _eligible_epoch(self, node_id: NodeId) -> int | None:
        """The broker epoch of a node that may be in sync: alive, and not about to stop."""
        broker = self.machine.image.brokers.get(node_id)
        return (
            None
            if broker is None or broker.fenced or broker.in_controlled_shutdown
            else broker.epoch
        )

    def _on_directory_failed(self, directory: Path, error: StorageError) -> None:
        """A log directory went offline. Without any online directory, this node stops.

        Records that were written there and not synced may be lost, even if a later start reads
        them. So this node vouches for none of its logs (I25).
        """
        self.controller.lifecycle.previous_broker_epoch = NO_BROKER_EPOCH
        self.data.forget_registration()
        logger.error("log directory is offline directory=%s reason=%s", directory, error)
        self.replica.on_directory_failed(directory)
        if all(one.failed is not None for one in self.logs.directories.values()):
            self.failure = f"no log directory is online: {error}"
            self.stop.set()
