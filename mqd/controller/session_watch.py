"""The controller's side of registrations and heartbeats, and the fencing of silent brokers (Kafka's
BrokerHeartbeatManager).
"""

from __future__ import annotations

import logging

import trio

from mqd.controller.brokers import (
    ExpireSessions,
    Heartbeat,
    HeartbeatReply,
    Register,
    decide_heartbeat,
)
from mqd.controller.operations import Operations, Quorum
from mqd.controller.sessions import Sessions
from mqd.controller.sweeps import ReviewPartitions
from mqd.errors import ErrorCode, MqError
from mqd.io.clock import Clock
from mqd.raft import versions
from mqd.raft.machine import NotLeader, OutcomeUnknown
from mqd.types import NodeId

logger = logging.getLogger(__name__)

_WAIT_MIN_S = 0.005
_PAUSED_AFTER_S = 1.0
"""If the watch wakes up later than this, or than a quarter of a session, the process was suspended.
Unread heartbeats are waiting then, so no broker counts as silent.
"""


class SessionWatch:
    """Runs on every node, and acts while this node is the controller."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        quorum: Quorum,
        operations: Operations,
        clock: Clock,
        heartbeat_s: float,
        session_timeout_s: float,
    ) -> None:
        self._node_id = node_id
        self._quorum = quorum
        self._operations = operations
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._sessions = Sessions(session_timeout_s)
        self._gone: dict[NodeId, tuple[int, float]] = {}
        """Nodes whose process has ended: their broker epoch, and when this node noticed."""
        self._review_due = False
        self._wake = trio.Event()
        operations.on_review_due = self._on_review_due

    def _on_review_due(self) -> None:
        self._review_due = True
        self._wake.set()

    async def register(self, op: Register) -> int:
        """On the controller: register a broker. Returns its epoch."""
        known = self._operations.image.brokers.get(op.node_id)
        if (
            known is not None
            and known.incarnation != op.incarnation
            and op.disk_serial < known.disk_serial
        ):
            logger.error(
                "a disk is an older copy of itself, its replicas are ignored until they are "
                "copied again node=%d disk_serial=%d was=%d",
                op.node_id,
                op.disk_serial,
                known.disk_serial,
            )
        await self._operations.submit(op)
        broker = self._operations.image.brokers[op.node_id]
        if broker.incarnation != op.incarnation:
            raise MqError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"Another process has registered as broker {op.node_id} in the meantime.",
            )
        self._sessions.touch(op.node_id, self._clock.monotonic())
        return broker.epoch

    async def heartbeat(self, op: Heartbeat) -> HeartbeatReply:
        """On the controller: extend a broker's session, and fence or unfence the broker if due.

        Raises NOT_CONTROLLER also if this node received no reply from a majority for half a
        session. It may have been deposed, and its brokers must not rely on it. A node that did not
        run for a while finds heartbeats that waited, and old replies of its voters. So only a
        leader that surely led a moment ago (I26) responds at once; any other one confirms first
        that it leads.
        """
        now = self._clock.monotonic()
        status = self._quorum.status()
        if not status.ready or status.majority_replied_at < now - self._sessions.timeout / 2:
            raise self._operations.not_controller()
        if status.led_at < now - self._sessions.authority:
            await self._confirm_authority()
        decision = decide_heartbeat(self._operations.image, op, self._operations.options())
        self._sessions.touch(op.node_id, now)
        self._operations.partitions_max[op.node_id] = op.partitions_max
        self._operations.memory_partitions_max[op.node_id] = op.memory_partitions_max
        self._note_release(op)
        reply = decision.reply if not decision.records else await self._operations.submit(op)
        assert isinstance(reply, HeartbeatReply)
        return reply._replace(metadata_index=self._operations.image.index)

    async def _confirm_authority(self) -> None:
        try:
            await self._quorum.read_barrier(timeout=self._heartbeat_s)
        except (NotLeader, OutcomeUnknown) as error:
            raise self._operations.not_controller() from error

    def on_peer_gone(self, node_id: int) -> None:
        """There is evidence that a node's process has ended. If this node is the controller now or
        soon, it does not wait until the session expires.
        """
        broker = self._operations.image.brokers.get(NodeId(node_id))
        if broker is not None and not broker.fenced and node_id != self._node_id:
            self._gone[broker.node_id] = (broker.epoch, self._clock.monotonic())
            self._wake.set()

    async def run(self) -> None:
        """While this node is the controller: fence brokers that were silent for a session, and
        review partitions when that is due.
        """
        term = None
        last = self._clock.monotonic()
        wait = self._heartbeat_s
        grace = min(_PAUSED_AFTER_S, self._sessions.timeout / 4)
        while True:
            with trio.move_on_after(wait):
                await self._wake.wait()
            self._wake = trio.Event()
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
                self._sessions.take_over(self._operations.image, now)
            elif paused:
                self._sessions.restart(self._operations.image, now)
            self._expire_gone(now)
            try:
                if silent := self._sessions.silent(self._operations.image, now):
                    await self._operations.submit(ExpireSessions(silent))
                if self._review_due:
                    self._review_due = False
                    await self._operations.submit(ReviewPartitions())
            except MqError:
                # no longer the controller, or too slow: the next iteration checks again
                self._review_due = True
            else:
                wait = max(
                    _WAIT_MIN_S,
                    min(
                        wait,
                        self._sessions.next_expiry(self._operations.image, now)
                        - self._clock.monotonic(),
                    ),
                )

    def _note_release(self, op: Heartbeat) -> None:
        """Remember which metadata version a broker supports. Log an earlier release once."""
        known = self._operations.metadata_versions_max
        newest = op.metadata_version_max
        if newest < versions.NEWEST and known.get(op.node_id, versions.NEWEST) != newest:
            logger.info(
                "a node runs an earlier release node=%d newest_version=%d "
                "remedy='upgrade it, then run mqctl feature upgrade'",
                op.node_id,
                versions.NEWEST,
            )
        known[op.node_id] = newest

    def _expire_gone(self, now: float) -> None:
        """Expire the sessions of nodes whose process has ended within the last session, under their
        present registration.

        Older evidence does not count: this node was not the controller when it noticed.
        """
        for node_id, (broker_epoch, noticed_at) in self._gone.items():
            broker = self._operations.image.brokers.get(node_id)
            if (
                broker is not None
                and broker.epoch == broker_epoch
                and now - noticed_at < self._sessions.timeout
            ):
                self._sessions.expire(node_id)
        self._gone.clear()
