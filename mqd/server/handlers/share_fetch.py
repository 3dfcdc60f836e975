"""ShareFetch (key 78), versions 1 to 2: a member acquires records, and acknowledges earlier ones
(KIP-932). Served by the leaders of the partitions.

v2 the acquire mode (KIP-1206), and renewed acquisition locks (KIP-1222).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from mqd.errors import ErrorCode, MqError
from mqd.limits import FETCH_WAIT_MAX_MS, MIB
from mqd.replica.waiters import FetchWaiter
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import require
from mqd.server.context import Context
from mqd.server.share_requests import (
    Leading,
    acknowledgements_of,
    by_topic,
    client_error,
    require_share_groups,
    session_key,
)
from mqd.share.service import Acquired, FetchLimits, LedSharePartition
from mqd.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, Place, ShareSession

_BYTES_MAX = 8 * MIB
"""Records of one response: they are in memory, unlike those of Fetch."""
_RECORD_LIMIT = 1
"""The acquire mode in which `max_records` is exact."""


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_share_groups(context.node)
    key = session_key(request)
    require(context, Operation.READ, ResourceType.GROUP, key.group_id)
    share, epoch = context.node.share, request.share_session_epoch
    batches = acknowledgements_of(
        request, renews=request.is_renew_ack and share.renews(key.group_id)
    )
    if epoch == INITIAL_EPOCH:
        if batches:
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                "The first request of a share session cannot acknowledge records.",
            )
        former = share.sessions.end(key)
        if former is not None:
            share.release(former)
        session = share.sessions.open(key, context.peer)
    else:
        session = share.sessions.use(key, epoch)
    _change_places(session, request)
    leading = Leading(context, key.group_id)
    fetch = _Fetch(context, request, session, leading)
    acknowledged = await leading.acknowledge(key.member_id, batches)
    if epoch == FINAL_EPOCH:
        if share.sessions.end(key) is session:
            share.release(session)
    elif not request.is_renew_ack:
        await fetch.run()
    return {
        "error_code": ErrorCode.NONE,
        "acquisition_lock_timeout_ms": share.lock_ms(key.group_id),
        "responses": by_topic(fetch.rows(acknowledged)),
        "node_endpoints": leading.endpoints(),
    }


def _change_places(session: ShareSession, request: Any) -> None:
    """Add and remove the partitions that the request names."""
    for topic in request.topics:
        for one in topic.partitions:
            session.places.setdefault(Place(topic.topic_id, one.partition_index))
    for topic in request.forgotten_topics_data:
        for index in topic.partitions:
            session.places.pop(Place(topic.topic_id, index), None)


class _Fetch:
    """One fetch of a session: acquires records, and waits if there are none."""

    def __init__(
        self, context: Context, request: Any, session: ShareSession, leading: Leading
    ) -> None:
        self._context = context
        self._request = request
        self._session = session
        self._leading = leading
        self._acquired: dict[Place, Acquired] = {}
        self._errors: dict[Place, MqError] = {}

    async def run(self) -> None:
        node, request = self._context.node, self._request
        clock = node.clock.monotonic
        deadline = clock() + min(max(0, request.max_wait_ms), FETCH_WAIT_MAX_MS) / 1000
        while True:
            waiting = trio.Event()
            waiter = FetchWaiter(waiting.set, 1, deadline)
            led = await self._led()
            # Parked before it reads, so that it misses no records.
            node.share.park(waiter, led)
            try:
                await self._acquire(led)
                if self._acquired or self._errors or clock() >= deadline:
                    return
                await waiting.wait()
            finally:
                node.share.unpark(waiter, led)
                if not waiter.freed:
                    waiter.freed = True
                    waiter.leave()
            if not self._context.is_wanted() or clock() >= deadline:
                return

    async def _led(self) -> list[LedSharePartition]:
        found = []
        for place in list(self._session.places):
            try:
                found.append(await self._leading.led(place))
            except MqError as error:
                self._errors[place] = client_error(error)
        return found

    async def _acquire(self, led: list[LedSharePartition]) -> None:
        request, session = self._request, self._session
        records_left, bytes_left = request.max_records, min(request.max_bytes, _BYTES_MAX)
        exact = request.share_acquire_mode == _RECORD_LIMIT
        for one in led:
            if records_left <= 0 or bytes_left <= 0:
                return
            place = Place(one.key.topic_id, one.key.partition)
            limits = FetchLimits(records_left, bytes_left, max(1, request.batch_size), exact)
            try:
                found = await self._context.node.share.acquire(one, session.key.member_id, limits)
            except MqError as error:
                self._errors[place] = client_error(error)
                continue
            if found is not None:
                self._acquired[place] = found
                session.served(place)
                records_left -= found.record_count
                bytes_left -= len(found.records)

    def rows(self, acknowledged: Mapping[Place, MqError | None]) -> list[tuple[Place, Any]]:
        """The rows of partitions with records, errors or acknowledgements. The first response of a
        session has a row for each partition, as in Apache Kafka.
        """
        rows: dict[Place, dict[str, Any]] = {}
        if self._request.share_session_epoch == INITIAL_EPOCH:
            rows = {place: {"error_code": ErrorCode.NONE} for place in self._session.places}
        for place, refused in acknowledged.items():
            row = rows.setdefault(place, {"error_code": ErrorCode.NONE})
            if refused is not None:
                row["acknowledge_error_code"] = refused.code
                row["acknowledge_error_message"] = refused.message or None
                row["current_leader"] = self._leading.leader_of(place, refused)
        for place, error in self._errors.items():
            row = rows.setdefault(place, {"error_code": ErrorCode.NONE})
            row["error_code"], row["error_message"] = error.code, error.message or None
            row["current_leader"] = self._leading.leader_of(place, error)
        for place, found in self._acquired.items():
            row = rows.setdefault(place, {"error_code": ErrorCode.NONE})
            row["records"] = found.records
            row["acquired_records"] = [one._asdict() for one in found.rows]
        return list(rows.items())


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"error_code": error.code, "error_message": error.message or None}
