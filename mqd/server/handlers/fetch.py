"""Fetch, v4 to v18: decodes and checks the request, and starts the fetch of its sender.

v4 isolation level. v5 log start. v7 sessions (KIP-227). v9 leader epoch (KIP-320). v11 rack. v12
flexible, last fetched epoch and diverging epochs (KIP-595). v13 topics by id (KIP-516). v15 replica
state. v16 node endpoints (KIP-951). v17 replica directory. v18 the follower's high watermark.

`consumer_fetch.py` and `follower_fetch.py` decide what a fetch gets, `fetch_run.py` decides when.
◆ hot path.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.limits import FETCH_WAIT_MAX_MS, REQUEST_PARTITIONS_MAX
from mqd.protocol.hot_fetch_request import (
    FetchRequest,
    decode_fetch_at_once,
    decode_fetch_in_slices,
)
from mqd.protocol.hot_fetch_response import FetchResponseTopic
from mqd.replica.fetch_session import FINAL_EPOCH, NO_SESSION
from mqd.server.connection import Connection, Slot
from mqd.server.consumer_fetch import ConsumerFetch, PendingConsumerFetch
from mqd.server.context import PEER, Node
from mqd.server.fetch_run import PendingFetch, reject
from mqd.server.fetch_tasks import FetchTasks
from mqd.server.follower_fetch import FollowerFetch, PendingFollowerFetch
from mqd.server.partitions import empty_fetch_row
from mqd.server.slices import finished_in_slices

_ERROR_CODE_FROM_VERSION = 7


class Fetch:
    """The handler; built once a node."""

    def __init__(
        self, node: Node, spawn: Callable[..., None], bug: Callable[[Connection, str], None]
    ) -> None:
        """`spawn(connection, function, *args)` starts a task for the connection; `bug` is
        Dispatcher.bug.
        """
        self._node = node
        self._tasks = FetchTasks(spawn, bug)
        self._consumers = ConsumerFetch(node, self._tasks)
        self._followers = FollowerFetch(node, self._tasks)

    def __call__(
        self,
        connection: Connection,
        view: memoryview,
        position: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """Start the fetch in [position, end). Returns False if it must wait for an earlier fetch of
        the connection.
        """
        request = decode_fetch_at_once(view, position, end, version)
        if request is None:
            if connection.parked is not None:
                return False
            connection.request_pool.bytes += end - position
            body = bytes(view[position:end])
            decode = partial(self._decode, connection.slot(), body, version, correlation_id)
            self._tasks.start(connection, decode)
            return True
        if request.replica_id < 0 and connection.listener == PEER:
            raise _consumer_on_peer_listener()
        if connection.parked is not None:
            if request.session_epoch != FINAL_EPOCH or request.session_id == NO_SESSION:
                # clients wait for the response to their last fetch when they close
                return False
            connection.parked.free()
            if connection.barrier:
                return False
        now = connection.owner.now
        wait_ms = min(max(0, request.max_wait_ms), FETCH_WAIT_MAX_MS)
        slot, deadline = connection.slot(), now + wait_ms / 1000
        if request.replica_id < 0:
            self._consumers.start(
                PendingConsumerFetch(slot, version, correlation_id, request, deadline), now
            )
        elif _is_follower(connection, request):
            self._followers.start(
                PendingFollowerFetch(slot, version, correlation_id, request, deadline), now
            )
        else:
            _reject_follower(PendingFetch(slot, version, correlation_id, request, deadline))
        return True

    async def _decode(self, slot: Slot, body: bytes, version: int, correlation_id: int) -> None:
        """The same for a request of many rows, in slices."""
        connection, pool = slot.connection, slot.connection.request_pool
        try:
            request = await finished_in_slices(decode_fetch_in_slices(body, 0, len(body), version))
        finally:
            pool.bytes -= len(body)
        if sum(len(topic[2]) for topic in request.topics) > REQUEST_PARTITIONS_MAX:
            raise ProtocolError(f"a fetch of more than {REQUEST_PARTITIONS_MAX} partitions")
        if request.replica_id < 0 and connection.listener == PEER:
            raise _consumer_on_peer_listener()
        if not connection.open:
            return
        now = self._node.clock.monotonic()
        wait_ms = min(max(0, request.max_wait_ms), FETCH_WAIT_MAX_MS)
        deadline = now + wait_ms / 1000
        if request.replica_id < 0:
            await self._consumers.start_large(
                PendingConsumerFetch(slot, version, correlation_id, request, deadline), now
            )
        elif _is_follower(connection, request):
            await self._followers.start_large(
                PendingFollowerFetch(slot, version, correlation_id, request, deadline), now
            )
        else:
            _reject_follower(PendingFetch(slot, version, correlation_id, request, deadline))
            self._tasks.resume(connection)


def _consumer_on_peer_listener() -> ProtocolError:
    return ProtocolError("a consumer's fetch: the peer listener serves those of followers only")


def _is_follower(connection: Connection, request: FetchRequest) -> bool:
    """Whether the sender is the node that it names, by its handshake on the peer listener."""
    return connection.listener == PEER and request.replica_id == connection.peer_node


def _reject_follower(pending: PendingFetch) -> None:
    error = MqError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    topics: list[FetchResponseTopic] = []
    if pending.version < _ERROR_CODE_FROM_VERSION:
        topics = [
            (name, None, [empty_fetch_row(one.partition, error) for one in partitions])
            for name, _, partitions in pending.request.topics
        ]
    reject(pending, error.code, topics)
