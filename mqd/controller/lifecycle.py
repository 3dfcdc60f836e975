"""This node as a broker: it registers, sends heartbeats, and leaves (Kafka's
BrokerLifecycleManager).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import trio
import trio.lowlevel

from mqd.controller.brokers import Heartbeat, Register
from mqd.controller.channel import OWN_REQUEST_TIMEOUT_S, ControllerChannel
from mqd.controller.contact import Contact
from mqd.controller.decision_options import NOT_KNOWN
from mqd.controller.endpoints import BrokerEndpoint, Endpoints, stored_endpoints
from mqd.controller.operations import Operations
from mqd.controller.records import SetScramCredential
from mqd.controller.session_watch import SessionWatch
from mqd.errors import ErrorCode, MqError
from mqd.io.clock import Clock
from mqd.raft import versions
from mqd.types import NO_EPOCH, NodeId

_FENCED_POLL_S = 0.005
_LEAVING_POLL_S = 0.1

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where clients reach this node: its advertised listener and its rack."""

    host: str
    port: int
    rack: str | None
    endpoints: Endpoints = ()
    """All listeners, the first one included. Empty: one PLAINTEXT at `host` and `port`."""


async def _nothing(broker_epoch: int) -> bool:
    return True


class BrokerLifecycle:
    """Keeps this node registered and unfenced while it runs."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        cluster_id: str,
        address: BrokerAddress,
        incarnation: UUID,
        operations: Operations,
        channel: ControllerChannel,
        session_watch: SessionWatch,
        clock: Clock,
        heartbeat_s: float,
    ) -> None:
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._address = address
        self.incarnation = incarnation
        self._operations = operations
        self._channel = channel
        self._session_watch = session_watch
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self.broker_epoch = NO_EPOCH
        """The epoch of this process's last registration."""
        self.previous_broker_epoch = NO_EPOCH
        """The registration up to which this node vouches for its logs (I25)."""
        self.disk_serial: Callable[[], int] = lambda: 0
        """The present serial of all disks of this node (log/disk/log_end_checkpoint.py)."""
        self.partitions_max: Callable[[], int] = lambda: NOT_KNOWN
        """The number of partitions that the file descriptors of this node allow."""
        self.memory_partitions_max: Callable[[], int] = lambda: NOT_KNOWN
        """The same for partitions in memory."""
        self.disk_serial_found = 0
        """The serial, at the start of this process, of the disks of the last registration."""
        self.first_users: tuple[SetScramCredential, ...] = ()
        """Users that the operator has set before the first start."""
        self.on_registered: Callable[[int], Awaitable[bool]] = _nothing
        """Awaited with the new broker epoch after each registration, before the heartbeat that may
        unfence this node. False: register again.
        """
        self.on_contact: Callable[[], None] = lambda: None
        """Called after each response of a controller with a majority to a heartbeat."""
        self._contact = Contact()
        self._leaving = False

    @property
    def contact_at(self) -> float:
        """When this node sent its last heartbeat that counts (contact.py, I26)."""
        return self._contact.at(self._operations.image.index)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Register and send heartbeats; `started` once this node is unfenced.

        Ends when it is cancelled.
        """
        epoch = await self._register()
        while not self._operations.image.is_alive(self._node_id):
            if not await self._beat(epoch):
                epoch = await self._register()
            await trio.lowlevel.checkpoint()
        task_status.started()
        while True:
            await trio.sleep(self._heartbeat_s)
            if not self._leaving and not await self._beat(epoch):
                epoch = await self._register()

    async def leave(self, *, timeout: float, no_controller_timeout: float) -> bool:
        """A controlled shutdown: hand over the partitions that this node leads. Returns whether the
        controller agreed.

        False after `timeout` seconds, or after `no_controller_timeout` seconds without a
        controller. When a whole cluster stops, its last nodes have none, and no node can take over.
        """
        self._leaving = True
        broker = self._operations.image.brokers.get(self._node_id)
        if broker is None or broker.fenced or broker.incarnation != self.incarnation:
            return False
        agreed = False
        with trio.move_on_after(timeout):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    self._give_up_without_controller, no_controller_timeout, nursery.cancel_scope
                )
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

    async def _give_up_without_controller(
        self, no_controller_timeout: float, scope: trio.CancelScope
    ) -> None:
        controller_at = self._clock.monotonic()
        while self._clock.monotonic() < controller_at + no_controller_timeout:
            if self._operations.controller_id is not None:
                controller_at = self._clock.monotonic()
            await trio.sleep(_LEAVING_POLL_S)
        scope.cancel()

    async def _register(self) -> int:
        """Register until `on_registered` has succeeded. Returns the broker epoch."""
        while True:
            named = self.previous_broker_epoch
            epoch = await self._request_registration()
            self.broker_epoch = self.previous_broker_epoch = epoch
            if await self.on_registered(epoch):
                self._warn_unless_vouched(named)
                self._warn_of_one_listener()
                return epoch
            await trio.sleep(self._heartbeat_s)

    def _warn_unless_vouched(self, named: int) -> None:
        """`named`: the earlier registration up to which this node vouches for its logs."""
        broker = self._operations.image.brokers.get(self._node_id)
        if (
            broker is not None
            and broker.epoch == self.broker_epoch
            and named not in (NO_EPOCH, broker.epoch, broker.vouched_epoch)
        ):
            logger.error(
                "the controller ignores the replicas of this node until they are copied again "
                "disk_serial=%d registration=%d reason='it knows a later state of them: a disk is "
                "an older copy of itself, or the broker was unregistered'",
                self.disk_serial_found,
                named,
            )

    async def _request_registration(self) -> int:
        address, previous = self._address, self.previous_broker_epoch
        op = Register(
            self._node_id,
            self._cluster_id,
            self.incarnation,
            address.host,
            address.port,
            address.rack,
            previous,
            self.disk_serial_found,
            stored_endpoints(address.endpoints),
            self.first_users,
        )
        request = {
            "broker_id": self._node_id,
            "cluster_id": self._cluster_id,
            "incarnation_id": self.incarnation,
            "listeners": [
                endpoint._asdict()
                for endpoint in address.endpoints
                or (BrokerEndpoint("PLAINTEXT", 0, address.host, address.port),)
            ],
            "are_listeners_configured": bool(address.endpoints),
            "rack": address.rack,
            "previous_broker_epoch": previous,
            "disk_serial": self.disk_serial_found,
            "metadata_version_max": versions.NEWEST,
            "first_users": [
                {
                    "name": each.user,
                    "mechanism": each.mechanism,
                    "iterations": each.credential.iterations,
                    "salt": each.credential.salt,
                    "stored_key": each.credential.stored_key,
                    "server_key": each.credential.server_key,
                }
                for each in self.first_users
            ],
        }

        async def here() -> Mapping[str, Any]:
            return {"error_code": 0, "broker_epoch": await self._session_watch.register(op)}

        while True:
            try:
                response = await self._channel.at_controller(
                    here, "broker_registration", 4, request, timeout=OWN_REQUEST_TIMEOUT_S
                )
            except MqError as error:
                if not error.code.retriable:
                    raise
                if error.code is not ErrorCode.REQUEST_TIMED_OUT:  # that has waited already
                    await trio.sleep(self._heartbeat_s)
                continue
            if response["error_code"] == 0:
                return int(response["broker_epoch"])
            code = ErrorCode(response["error_code"])
            if not code.retriable:
                raise MqError(
                    code, f"The controller rejected the registration of broker {self._node_id}."
                )
            await trio.sleep(self._heartbeat_s)

    async def _beat(self, epoch: int) -> bool:
        """Send a heartbeat, and wait for the response until the next one is due. False: register
        again.

        If the response reports that this node is fenced, the next heartbeat follows soon: the node
        only waits to apply its own registration.
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
                if self._lacks_endpoints(epoch):
                    await self._request_registration()
                return True
            await trio.sleep(_FENCED_POLL_S)

    def _warn_of_one_listener(self) -> None:
        """Once for each registration, before metadata version 3."""
        version = self._operations.image.features.get(versions.FEATURE, versions.NEWEST)
        if len(self._address.endpoints) > 1 and not versions.allows_endpoints(version):
            logger.warning(
                "other nodes know only the first listener of this node listener=%s "
                "metadata_version=%d remedy='upgrade every node, then run mqctl feature upgrade'",
                self._address.endpoints[0].name,
                version,
            )

    def _lacks_endpoints(self, epoch: int) -> bool:
        """Whether the metadata can have the listeners of this node, and does not: after metadata
        version 3 was finalized.
        """
        image = self._operations.image
        broker = image.brokers.get(self._node_id)
        return (
            broker is not None
            and broker.epoch == epoch
            and broker.endpoints != stored_endpoints(self._address.endpoints)
            and versions.allows_endpoints(image.features.get(versions.FEATURE, 0))
        )

    async def _send_heartbeat(
        self, epoch: int, *, want_shut_down: bool, timeout: float
    ) -> Mapping[str, Any]:
        op = Heartbeat(
            self._node_id,
            epoch,
            self._operations.image.index,
            want_shut_down=want_shut_down,
            disk_serial=self.disk_serial(),
            partitions_max=self.partitions_max(),
            metadata_version_max=versions.NEWEST,
            memory_partitions_max=self.memory_partitions_max(),
        )
        request = {
            "broker_id": self._node_id,
            "broker_epoch": epoch,
            "current_metadata_offset": op.metadata_index,
            "want_fence": False,
            "want_shut_down": want_shut_down,
            "disk_serial": op.disk_serial,
            "partitions_max": op.partitions_max,
            "metadata_version_max": op.metadata_version_max,
            "memory_partitions_max": op.memory_partitions_max,
        }

        async def here() -> Mapping[str, Any]:
            reply = await self._session_watch.heartbeat(op)
            known = {
                "is_fenced": reply.fenced,
                "should_shut_down": reply.should_shut_down,
                "metadata_index": reply.metadata_index,
            }
            return {"error_code": 0, **known}

        sent_at = self._clock.monotonic()
        response = await self._channel.at_controller(
            here, "broker_heartbeat", 1, request, timeout=timeout
        )
        if not response["error_code"]:
            self._contact.answered(sent_at, response["metadata_index"])
            self.on_contact()
        return response
