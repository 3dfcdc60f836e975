"""The controller: the one writer of the metadata, on whichever node leads the quorum; and this node
as its client.

Operations are taken one at a time: decide on the committed image, propose, wait until the command
is durable and applied here, answer. A command takes effect only on the image that its decider saw
(image.py), so an operation that was cancelled, or whose outcome nobody learned, or that a deposed
controller still had in flight, is harmless: whatever comes after it is decided again. A decision
too large for one command becomes several; each record holds as a whole.

On every node `run` registers the node as a broker, sends heartbeats, and, while it is the
controller, fences the silent.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

import trio
import trio.lowlevel

from mqd.config import NodeConfig
from mqd.controller.brokers import (
    ExpireSessions,
    Heartbeat,
    HeartbeatReply,
    Register,
    Sessions,
    Unregister,
    decide_expire,
    decide_heartbeat,
    decide_register,
    decide_unregister,
)
from mqd.controller.commands import Command, encode_command, split_records
from mqd.controller.configs import AlterConfigs, decide_alter_configs, effective_node_config
from mqd.controller.contact import Contact
from mqd.controller.create_partitions import CreatePartitions, decide_create_partitions
from mqd.controller.create_topics import CreateTopics, decide_create_topics
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.delete_topics import DeleteTopics, decide_delete_topics
from mqd.controller.delta import Subscriber
from mqd.controller.elections import (
    ElectLeaders,
    Rebalance,
    decide_elect_leaders,
    decide_rebalance,
)
from mqd.controller.features import UpdateFeatures, decide_update_features
from mqd.controller.image import MetadataImage
from mqd.controller.internal_topics import new_topic_requests
from mqd.controller.isr import (
    AlterPartitions,
    ReportOfflineReplicas,
    alter_partition_request,
    alter_partition_response,
    decide_alter_partitions,
    decide_report_offline,
    isr_outcomes,
)
from mqd.controller.machine import MetadataMachine
from mqd.controller.producer_ids import (
    AllocateProducerIds,
    ProducerIdBlock,
    decide_allocate_producer_ids,
)
from mqd.controller.reassignments import AlterReassignments, decide_alter_reassignments
from mqd.controller.records import Record
from mqd.controller.responses import check_response, names_not_controller
from mqd.controller.result import ControllerResult
from mqd.controller.size import SizeWatch
from mqd.controller.sweeps import ReviewPartitions, decide_review_partitions
from mqd.controller.wanted_topics import WantedTopics, tell_refused
from mqd.errors import ErrorCode, MqError
from mqd.io.clock import Clock
from mqd.io.entropy import Entropy
from mqd.raft.machine import NotLeader, OutcomeUnknown, RaftStatus
from mqd.types import NO_EPOCH, IsrChange, IsrOutcome, NodeId
from mqd.usage import Usage

Operation = (
    Register
    | Heartbeat
    | ExpireSessions
    | Unregister
    | CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | AllocateProducerIds
    | AlterPartitions
    | ReportOfflineReplicas
    | AlterReassignments
    | ElectLeaders
    | Rebalance
    | ReviewPartitions
    | UpdateFeatures
)

logger = logging.getLogger(__name__)

_DECIDE: dict[type, Callable[[MetadataImage, Any, DecisionOptions], ControllerResult]] = {
    Register: decide_register,
    Heartbeat: decide_heartbeat,
    ExpireSessions: decide_expire,
    Unregister: decide_unregister,
    CreateTopics: decide_create_topics,
    DeleteTopics: decide_delete_topics,
    CreatePartitions: decide_create_partitions,
    AlterConfigs: decide_alter_configs,
    AllocateProducerIds: decide_allocate_producer_ids,
    AlterPartitions: decide_alter_partitions,
    ReportOfflineReplicas: decide_report_offline,
    AlterReassignments: decide_alter_reassignments,
    ElectLeaders: decide_elect_leaders,
    Rebalance: decide_rebalance,
    ReviewPartitions: decide_review_partitions,
    UpdateFeatures: decide_update_features,
}

Forward = Callable[[NodeId, str, int, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""(controller's node id, API name, version, request) -> response, over the peer listener.

OSError when it cannot be reached.
"""

Space = Callable[[], str | None]


async def _nothing(broker_epoch: int) -> bool:
    """What there is to do after a registration where nobody says."""
    return True


_GROWS = (CreateTopics, CreatePartitions)
"""Refused on a full disk. A changed config is not: a shorter retention frees space."""
_DECISIONS_MAX = 5
"""Times that an operation is decided afresh because another command came between; one or
two in real life.
"""
_LEADER_POLL_S = 0.005
_LEADER_POLL_MAX_S = 0.1
_REVIEWED_AFTER = (Heartbeat, AlterConfigs)
"""After these, partitions may need an election beyond the portion that was decided with them."""
_PAUSED_AFTER_S = 1.0
"""A watch that wakes up this late, or by a quarter of a session, was not running: heartbeats are
waiting unread, so nobody is called silent.
"""
_LEAVING_POLL_S = 0.1
_ALTERED_AT_ONCE = 1_000
_REPORTED_AT_ONCE = 1_000
_OWN_REQUEST_TIMEOUT_S = 5.0


class Quorum(Protocol):
    """What is asked of RaftService."""

    async def propose(self, command: bytes) -> int:
        """Index of the command once it is durable, committed and applied here.

        Raises NotLeader or OutcomeUnknown.
        """
        ...

    async def read_barrier(self, *, timeout: float | None = None) -> int:
        """Return when this node is known to lead after this call.

        Raises NotLeader or OutcomeUnknown.
        """
        ...

    def status(self) -> RaftStatus: ...


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where clients reach this node, as it tells them."""

    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class ControllerStatistics:
    """Counts since the start of this process, and sizes now."""

    operations: int
    commands: int
    decided_again: int
    topics: int
    partitions: int
    brokers: int
    brokers_fenced: int
    metadata_index: int
    metadata: Usage
    """Bytes that the metadata counts for (size.py), and `metadata.image.max.bytes`."""


class ControllerService:
    """See the head of the file.

    `submit` is for whoever is on the controller's node; `at_controller` is for all.
    """

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
        previous_broker_epoch: int = NO_EPOCH,
        on_registered: Callable[[int], Awaitable[bool]] = _nothing,
    ) -> None:
        """`nodes`: how many the cluster is meant to have. `space`: asked before the metadata grows;
        why it must not, or None.

        `previous_broker_epoch`: the registration up to which this node vouches for its logs.
        `on_registered`: awaited with the new broker epoch after each registration, before the
        heartbeat that may unfence this node. False: register again.
        """
        self.node_id = node_id
        self.incarnation: UUID = entropy.uuid()
        self._cluster_id = cluster_id
        self._address = address
        self._quorum = quorum
        self._machine = machine
        self._clock = clock
        self._entropy = entropy
        self._forward = forward
        self._nodes = nodes
        self._space = space
        self._config = config
        self._heartbeat_s = config.integer("broker.heartbeat.interval.ms") / 1000
        self._sessions = Sessions(config.integer("broker.session.timeout.ms") / 1000)
        self.previous_broker_epoch = previous_broker_epoch
        self.disk_serial: Callable[[], int] = lambda: 0
        """The disk serial of this node now (log/disk/log_end_checkpoint.py). `disk_serial_found` is
        the one that its start found on the disks of its last registration.
        """
        self.disk_serial_found = 0
        self._broker_epoch = NO_EPOCH
        self._on_registered = on_registered
        self._contact = Contact()
        self.on_contact: Callable[[], None] = lambda: None
        """Called after each heartbeat that a controller with a majority answered."""
        self._peers_gone: dict[NodeId, tuple[int, float]] = {}
        self._review_due = False
        self._watch = trio.Event()
        self._one_at_a_time = trio.Lock()
        self._producer_ids = range(0)
        self._producer_ids_lock = trio.Lock()
        self._wanted_topics = WantedTopics()
        self._leaving = False
        self._operations = self._commands = self._decided_again = 0
        self._size_watch = SizeWatch()

    @property
    def image(self) -> MetadataImage:
        return self._machine.image

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber(delta, image)` on this node after each change of the metadata;
        it must not block.
        """
        self._machine.subscribe(subscriber)

    @property
    def contact_at(self) -> float:
        """When this node sent its last heartbeat that counts (contact.py); monotonic seconds."""
        return self._contact.at(self.image.index)

    @property
    def controller_id(self) -> NodeId | None:
        """The node that decides, as far as this one knows."""
        leader_id = self._quorum.status().leader_id
        return None if leader_id is None else NodeId(leader_id)

    @property
    def is_controller(self) -> bool:
        """Whether `submit` may succeed here: this node leads, and has applied whatever its
        predecessors committed.
        """
        return self._quorum.status().ready

    def check_is_controller(self) -> None:
        """Raise NOT_CONTROLLER where this node's image may be behind what was decided elsewhere."""
        if not self.is_controller:
            raise self._not_controller()

    def statistics(self) -> ControllerStatistics:
        image = self.image
        return ControllerStatistics(
            operations=self._operations,
            commands=self._commands,
            decided_again=self._decided_again,
            topics=len(image.topics),
            partitions=sum(len(topic.partitions) for topic in image.topics.values()),
            brokers=len(image.brokers),
            brokers_fenced=sum(broker.fenced for broker in image.brokers.values()),
            metadata_index=image.index,
            metadata=self.usage(),
        )

    def usage(self) -> Usage:
        """How full the metadata is, by this node's bound."""
        return Usage(self.image.size, self._options().image_bytes_max)

    # -- operations

    async def submit(self, op: Operation) -> Any:
        """Decide and commit here; the decision's reply.

        Raises MqError: KAFKA_STORAGE_ERROR (no space: nothing happened), NOT_CONTROLLER (nothing
        happened, or nothing that another try would not see), REQUEST_TIMED_OUT (it may have
        happened or may yet), or the decision's own refusal. Cancelled while it waits, it may still
        happen.
        """
        if isinstance(op, _GROWS) and (full := self._space()) is not None:
            raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, full)
        self._operations += 1
        async with self._one_at_a_time:
            return await self._carry_out(op)

    async def _carry_out(self, op: Operation) -> Any:
        decide = _DECIDE[type(op)]
        for _ in range(_DECISIONS_MAX):
            while True:
                self.check_is_controller()
                decision = decide(self.image, op, self._options())
                if decision.records and not await self._commit(decision.records):
                    break
                if not decision.more:
                    if decision.records and isinstance(op, _REVIEWED_AFTER):
                        self._review_due = True
                        self._watch.set()
                    return decision.reply
            self._decided_again += 1
        raise self._not_controller()

    def _options(self) -> DecisionOptions:
        return DecisionOptions.of_config(
            effective_node_config(self._config, self.image, self.node_id)
        )

    async def _commit(self, records: tuple[Record, ...]) -> bool:
        """Whether all of it took effect; False when another command came first.

        NOT_CONTROLLER: nothing of it did.
        """
        runs = split_records(records)
        try:
            for run in runs:
                index = await self._quorum.propose(encode_command(Command(self.image.index, run)))
                if not self._machine.took_effect(index):
                    return False
                self._commands += 1
            self._size_watch.observe(self.usage())
        except (NotLeader, OutcomeUnknown) as error:
            # else another try would meet what this one did, and call it another's
            if isinstance(error, NotLeader) and run is runs[0]:
                raise self._not_controller() from error
            raise MqError(
                ErrorCode.REQUEST_TIMED_OUT,
                "The controller changed or was too slow; the change may have happened.",
            ) from error
        return True

    def _not_controller(self) -> MqError:
        controller_id = self.controller_id
        known = "unknown" if controller_id is None else f"node {controller_id}"
        return MqError(ErrorCode.NOT_CONTROLLER, f"This node is not the controller; it is {known}.")

    async def at_controller(
        self,
        here: Callable[[], Awaitable[Mapping[str, Any]]],
        api_name: str,
        version: int,
        request: Mapping[str, Any],
        *,
        timeout: float,
    ) -> Mapping[str, Any]:
        """The response to `request` from the controller: made by `here` when that is this node,
        else by a forward.

        While there is no controller, or the one known is none any more or cannot be reached, wait
        and try again until `timeout` seconds have passed; then raise REQUEST_TIMED_OUT: as with
        every time-out, it may have happened.
        """
        pause = _LEADER_POLL_S
        with trio.move_on_after(max(0.0, timeout)):
            while True:
                status = self._quorum.status()
                try:
                    if status.ready:
                        return await here()
                    if status.leader_id not in (None, self.node_id):
                        response = await self._forward(
                            NodeId(status.leader_id), api_name, version, request
                        )
                        if not names_not_controller(response):
                            return response
                except OSError:
                    pass
                except MqError as error:
                    if error.code is not ErrorCode.NOT_CONTROLLER:
                        raise
                await trio.sleep(pause)
                pause = min(2 * pause, _LEADER_POLL_MAX_S)
        raise MqError(ErrorCode.REQUEST_TIMED_OUT, "No controller answered in time.")

    async def register(self, op: Register) -> int:
        """On the controller: register a broker; its epoch."""
        known = self.image.brokers.get(op.node_id)
        if (
            known is not None
            and known.incarnation != op.incarnation
            and op.disk_serial < known.disk_serial
        ):
            logger.error(
                "a disk is an older copy of itself, its replicas are ignored "
                "until "
                "they are "
                "copied again node=%d "
                "disk_serial=%d "
                "was=%d",
                op.node_id,
                op.disk_serial,
                known.disk_serial,
            )
        await self.submit(op)
        broker = self.image.brokers[op.node_id]
        if broker.incarnation != op.incarnation:
            raise MqError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"Another process registered as broker {op.node_id} meanwhile.",
            )
        self._sessions.touch(op.node_id, self._clock.monotonic())
        return broker.epoch

    async def heartbeat(self, op: Heartbeat) -> HeartbeatReply:
        """On the controller: note that a broker lives, and fence or unfence it when that is due.

        Raises NOT_CONTROLLER also where this node has not heard its majority for half a session: it
        may have been deposed, and whoever relies on it must not go on. A node that has not run for
        a while finds heartbeats that waited, and old replies of its voters. So only a leader that
        surely led a moment ago (I26) answers at once; any other one confirms that it leads.
        """
        now = self._clock.monotonic()
        status = self._quorum.status()
        if not status.ready or status.majority_replied_at < now - self._sessions.timeout / 2:
            raise self._not_controller()
        if status.led_at < now - self._sessions.authority:
            await self._confirm_authority()
        decision = decide_heartbeat(self.image, op, self._options())
        self._sessions.touch(op.node_id, now)
        reply = decision.reply if not decision.records else await self.submit(op)
        assert isinstance(reply, HeartbeatReply)
        return reply._replace(metadata_index=self.image.index)

    async def _confirm_authority(self) -> None:
        try:
            await self._quorum.read_barrier(timeout=self._heartbeat_s)
        except (NotLeader, OutcomeUnknown) as error:
            raise self._not_controller() from error

    # -- topics that come into being because someone asked about them

    def create_topic_soon(self, name: str) -> None:
        """Have a topic created in the background with the defaults of its kind; whoever
        wants it asks again.
        """
        self._wanted_topics.want(name)

    async def _create_wanted_topics(self) -> None:
        async for names in self._wanted_topics:
            config = effective_node_config(self._config, self.image, self.node_id)
            for rows in new_topic_requests(
                (name for name in names if name not in self.image.topics), config, self._nodes
            ):
                try:
                    await self._create_topics(rows, config)
                except MqError:
                    break  # no controller now: asking again is a new try

    async def _create_topics(self, rows: list[dict[str, Any]], config: NodeConfig) -> None:
        request = {
            "topics": rows,
            "timeout_ms": int(_OWN_REQUEST_TIMEOUT_S * 1000),
            "validate_only": False,
        }

        async def here() -> Mapping[str, Any]:
            created = await self.submit(
                CreateTopics.of_request(request, config, self._entropy.uuid, self._nodes)
            )
            return {"topics": [row._asdict() for row in created]}

        answer = await self.at_controller(
            here, "create_topics", 7, request, timeout=_OWN_REQUEST_TIMEOUT_S
        )
        tell_refused(answer["topics"])

    # -- producer ids

    async def next_producer_id(self) -> int:
        """An id that no producer of this cluster had or will have.

        Waits for the controller once in a block.
        """
        async with self._producer_ids_lock:
            if not self._producer_ids:
                first, length = await self.allocate_producer_ids()
                self._producer_ids = range(first, first + length)
            producer_id = self._producer_ids[0]
            self._producer_ids = self._producer_ids[1:]
            return producer_id

    async def allocate_producer_ids(self) -> ProducerIdBlock:
        """A fresh block for this node.

        Raises COORDINATOR_LOAD_IN_PROGRESS, which clients retry, when it cannot be had now.
        """
        broker = self.image.brokers.get(self.node_id)
        request = {
            "broker_id": self.node_id,
            "broker_epoch": -1 if broker is None else broker.epoch,
        }

        async def here() -> Mapping[str, Any]:
            block = await self.submit(AllocateProducerIds(self.node_id, request["broker_epoch"]))
            return {
                "error_code": 0,
                "producer_id_start": block.first,
                "producer_id_len": block.length,
            }

        try:
            response = await self.at_controller(
                here, "allocate_producer_ids", 0, request, timeout=_OWN_REQUEST_TIMEOUT_S
            )
        except MqError as error:
            raise MqError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"No producer ids: {error}"
            ) from error
        if response["error_code"]:
            raise MqError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"No producer ids: error {response['error_code']}",
            )
        return ProducerIdBlock(response["producer_id_start"], response["producer_id_len"])

    # -- what this node tells the controller about its replicas

    async def alter_partitions(self, changes: Sequence[IsrChange]) -> list[IsrOutcome]:
        """Ask for other ISRs of partitions that this node leads; one outcome for each change, in
        its order.

        Raises MqError where nothing is known to have happened, or a whole request was refused.
        """
        outcomes: list[IsrOutcome] = []
        for start in range(0, len(changes), _ALTERED_AT_ONCE):
            outcomes += await self._alter_partitions(changes[start : start + _ALTERED_AT_ONCE])
        return outcomes

    async def _alter_partitions(self, changes: Sequence[IsrChange]) -> Iterable[IsrOutcome]:
        request = alter_partition_request(self.node_id, self._broker_epoch, changes)

        async def here() -> Mapping[str, Any]:
            return alter_partition_response(
                await self.submit(AlterPartitions.of_request(request, 3))
            )

        response = await self.at_controller(
            here, "alter_partition", 3, request, timeout=_OWN_REQUEST_TIMEOUT_S
        )
        check_response(response)
        return isr_outcomes(changes, response)

    async def report_offline(self, partitions: Collection[tuple[UUID, int]]) -> None:
        """Report this node's replicas of these partitions (topic id, index) as lost, also
        while the node is fenced. Raises MqError.
        """
        replicas = [
            (topic_id, index)
            for topic_id, index in sorted(partitions)
            if topic_id in self.image.topics_by_id
        ]
        for start in range(0, len(replicas), _REPORTED_AT_ONCE):
            await self._report_offline(replicas[start : start + _REPORTED_AT_ONCE])

    async def _report_offline(self, replicas: Sequence[tuple[UUID, int]]) -> None:
        by_id: dict[UUID, list[int]] = {}
        for topic_id, index in replicas:
            by_id.setdefault(topic_id, []).append(index)
        request = {
            "broker_id": self.node_id,
            "broker_epoch": self._broker_epoch,
            "topics": [
                {"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in by_id.items()
            ],
        }
        op = ReportOfflineReplicas(self.node_id, self._broker_epoch, tuple(replicas))

        async def here() -> Mapping[str, Any]:
            await self.submit(op)
            return {"error_code": 0}

        check_response(
            await self.at_controller(
                here, "report_offline_replicas", 0, request, timeout=_OWN_REQUEST_TIMEOUT_S
            )
        )

    def on_peer_gone(self, node_id: int) -> None:
        """There is evidence that a node's process ended: its session does not have to run
        out, if this node decides now or soon.
        """
        broker = self.image.brokers.get(NodeId(node_id))
        if broker is not None and not broker.fenced and node_id != self.node_id:
            self._peers_gone[broker.node_id] = (broker.epoch, self._clock.monotonic())
            self._watch.set()

    # -- this node as a broker

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Register and keep alive; `started` once this node is unfenced.

        Ends when it is cancelled.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_sessions)
            nursery.start_soon(self._create_wanted_topics)
            nursery.start_soon(self._rebalance_leaders)
            epoch = await self._register_self()
            while not self.image.is_alive(self.node_id):
                if not await self._beat(epoch):
                    epoch = await self._register_self()
                await trio.lowlevel.checkpoint()
            task_status.started()
            while True:
                await trio.sleep(self._heartbeat_s)
                if not self._leaving and not await self._beat(epoch):
                    epoch = await self._register_self()

    async def leave(self, *, timeout: float, silence: float) -> bool:
        """A clean stop: hand over what this node leads, and go once nobody counts on it. Whether
        the controller agreed to that.

        False after `timeout` seconds, or when for `silence` seconds there is no controller: a
        cluster that stops as a whole has none towards its end, and nobody who could take over.
        """
        self._leaving = True
        broker = self.image.brokers.get(self.node_id)
        if broker is None or broker.fenced or broker.incarnation != self.incarnation:
            return False
        agreed = False
        with trio.move_on_after(timeout):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._give_up_in_silence, silence, nursery.cancel_scope)
                agreed = await self._hand_over(broker.epoch, timeout)
                nursery.cancel_scope.cancel()
        return agreed

    async def _hand_over(self, broker_epoch: int, timeout: float) -> bool:
        try:
            while True:
                response = await self._send_heartbeat(
                    broker_epoch, want_shut_down=True, timeout=timeout
                )
                if response["error_code"] or response["should_shut_down"]:
                    return not response["error_code"]
                await trio.sleep(_LEAVING_POLL_S)
        except MqError:
            return False

    async def _give_up_in_silence(self, silence: float, scope: trio.CancelScope) -> None:
        heard_at = self._clock.monotonic()
        while self._clock.monotonic() < heard_at + silence:
            if self._quorum.status().leader_id is not None:
                heard_at = self._clock.monotonic()
            await trio.sleep(_LEAVING_POLL_S)
        scope.cancel()

    async def _register_self(self) -> int:
        """The epoch of this node's registration, sooner or later: of one that stands until
        all is done that comes before a heartbeat.
        """
        while True:
            epoch = self._broker_epoch = self.previous_broker_epoch = await self._registration()
            if await self._on_registered(epoch):
                return epoch
            await trio.sleep(self._heartbeat_s)

    async def _registration(self) -> int:
        address, previous = self._address, self.previous_broker_epoch
        op = Register(
            self.node_id,
            self._cluster_id,
            self.incarnation,
            address.host,
            address.port,
            address.rack,
            previous,
            self.disk_serial_found,
        )
        request = {
            "broker_id": self.node_id,
            "cluster_id": self._cluster_id,
            "incarnation_id": self.incarnation,
            "listeners": [
                {
                    "name": "PLAINTEXT",
                    "host": address.host,
                    "port": address.port,
                    "security_protocol": 0,
                }
            ],
            "rack": address.rack,
            "previous_broker_epoch": previous,
            "disk_serial": self.disk_serial_found,
        }

        async def here() -> Mapping[str, Any]:
            return {"error_code": 0, "broker_epoch": await self.register(op)}

        while True:
            try:
                response = await self.at_controller(
                    here, "broker_registration", 4, request, timeout=_OWN_REQUEST_TIMEOUT_S
                )
            except MqError as error:
                if not error.code.retriable:
                    raise
                if error.code is not ErrorCode.REQUEST_TIMED_OUT:  # that took its time
                    await trio.sleep(self._heartbeat_s)
                continue
            if response["error_code"] == 0:
                return int(response["broker_epoch"])
            code = ErrorCode(response["error_code"])
            if not code.retriable:
                raise MqError(code, f"The controller refuses to register node {self.node_id}.")
            await trio.sleep(self._heartbeat_s)

    async def _beat(self, epoch: int) -> bool:
        """One heartbeat, waited for until it is answered or the next is due. False: register again.

        A fenced answer is followed at once by another beat: the node was only waiting to apply its
        own registration.
        """
        while True:
            try:
                response = await self._send_heartbeat(
                    epoch, want_shut_down=False, timeout=self._heartbeat_s
                )
            except MqError as error:
                return error.code.retriable
            if response["error_code"] in (
                ErrorCode.STALE_BROKER_EPOCH,
                ErrorCode.BROKER_ID_NOT_REGISTERED,
            ):
                return False
            if response["error_code"] or not response["is_fenced"]:
                return True
            await trio.sleep(_LEADER_POLL_S)

    async def _send_heartbeat(
        self, epoch: int, *, want_shut_down: bool, timeout: float
    ) -> Mapping[str, Any]:
        op = Heartbeat(
            self.node_id,
            epoch,
            self.image.index,
            want_shut_down=want_shut_down,
            disk_serial=self.disk_serial(),
        )
        request = {
            "broker_id": self.node_id,
            "broker_epoch": epoch,
            "current_metadata_offset": op.metadata_index,
            "want_fence": False,
            "want_shut_down": want_shut_down,
            "disk_serial": op.disk_serial,
        }

        async def here() -> Mapping[str, Any]:
            reply = await self.heartbeat(op)
            known = {
                "is_fenced": reply.fenced,
                "should_shut_down": reply.should_shut_down,
                "metadata_index": reply.metadata_index,
            }
            return {"error_code": 0, **known}

        sent_at = self._clock.monotonic()
        response = await self.at_controller(here, "broker_heartbeat", 1, request, timeout=timeout)
        if not response["error_code"]:
            self._contact.answered(sent_at, response["metadata_index"])
            self.on_contact()
        return response

    async def _watch_sessions(self) -> None:
        """While this node is the controller: fence the brokers that were silent for a
        session, and settle what is left to settle.
        """
        term = None
        last = self._clock.monotonic()
        wait = self._heartbeat_s
        grace = min(_PAUSED_AFTER_S, self._sessions.timeout / 4)
        while True:
            with trio.move_on_after(wait):
                await self._watch.wait()
            self._watch = trio.Event()
            now = self._clock.monotonic()
            paused = now - last > wait + grace
            last = now
            wait = self._heartbeat_s
            status = self._quorum.status()
            if not status.ready:
                term = None
                continue
            if term != status.term:
                self._review_due = True
                term = status.term
                self._sessions.take_over(self.image, now)
            elif paused:
                self._sessions.restart(self.image, now)
            self._expire_gone(now)
            try:
                if silent := self._sessions.silent(self.image, now):
                    await self.submit(ExpireSessions(silent))
                if self._review_due:
                    self._review_due = False
                    await self.submit(ReviewPartitions())
            except MqError:
                # not the controller any more, or it was slow: the next round sees
                self._review_due = True
            else:
                wait = max(
                    _LEADER_POLL_S,
                    min(
                        wait, self._sessions.next_expiry(self.image, now) - self._clock.monotonic()
                    ),
                )

    def _expire_gone(self, now: float) -> None:
        """Nodes whose processes ended within the last session, under the registration that they
        still have.

        The old mark of a node that this one was not the controller to act upon is no evidence any
        more.
        """
        for node_id, (broker_epoch, noticed_at) in self._peers_gone.items():
            broker = self.image.brokers.get(node_id)
            if (
                broker is not None
                and broker.epoch == broker_epoch
                and now - noticed_at < self._sessions.timeout
            ):
                self._sessions.expire(node_id)
        self._peers_gone.clear()

    async def _rebalance_leaders(self) -> None:
        """While this node is the controller: hand partitions back to their preferred
        leaders now and then.
        """
        while True:
            await trio.sleep(self._config.integer("leader.imbalance.check.interval.seconds"))
            if self.is_controller and self._config.boolean("auto.leader.rebalance.enable"):
                try:
                    await self.submit(Rebalance())
                except MqError:
                    pass  # the next look sees
