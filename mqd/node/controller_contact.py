"""Whether this node is in contact with the controller. Without contact for a session it refuses
clients, because the controller may have elected other leaders (I26).
"""

from __future__ import annotations

import math

import trio

from mqd.controller.lifecycle import BrokerLifecycle
from mqd.io.clock import Clock
from mqd.raft.service import RaftService
from mqd.replica.service import ReplicaService


class ControllerContact:
    def __init__(
        self,
        *,
        lifecycle: BrokerLifecycle,
        raft: RaftService,
        replica: ReplicaService,
        clock: Clock,
        node_id: int,
        session_timeout_s: float,
        heartbeat_s: float,
    ) -> None:
        self._lifecycle = lifecycle
        self._raft = raft
        self._replica = replica
        self._clock = clock
        self._node_id = node_id
        self._session_timeout_s = session_timeout_s
        self._heartbeat_s = heartbeat_s

    def until(self) -> float:
        """Until when no other node leads the partitions of this node (monotonic seconds).

        Before the first heartbeat it leads none. The only voter is the controller itself, so it
        always knows who leads.
        """
        status = self._raft.status()
        if self._lifecycle.contact_at == -math.inf or (
            status.ready and status.voters == (self._node_id,)
        ):
            return math.inf
        return self._lifecycle.contact_at + self._session_timeout_s

    def judge(self) -> None:
        self._replica.judge_contact(self._clock.monotonic())

    async def watch(self) -> None:
        """Judge the contact regularly, for clients that wait. The server's turns do it for clients
        that send requests.
        """
        while True:
            await trio.sleep(self._heartbeat_s / 2)
            self.judge()
