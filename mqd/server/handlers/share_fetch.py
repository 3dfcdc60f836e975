"""ShareFetch (key 78), versions 1 to 2: a member acquires records, and acknowledges earlier ones
(KIP-932). Served by the leaders of the partitions.

v2 the acquire mode (KIP-1206), and renewed acquisition locks (KIP-1222).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from mqd.errors import ErrorCode, MqError
from mqd.limits import FETCH_WAIT_MAX_MS, MIB, SHARE_SESSION_UNKNOWN_MAX
from mqd.protocol.schema import INT32_MAX
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import require
from mqd.server.context import Context
from mqd.server.partitions import UNKNOWN_ERRORS
from mqd.server.share_requests import (
    Leading,
    acknowledgements_of,
    by_topic,
    client_error,
    require_share_groups,
    session_key,
)
from mqd.server.slices import Pace, others_first
from mqd.share.acquiring import Acquired, FetchLimits
from mqd.share.led_partitions import LedSharePartition
from mqd.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, Place, ShareSession
from mqd.share.waiting import Waiter

_BYTES_MAX = 8 * MIB
"""Records of one response."""
_LOADED_AT_ONCE = 20
_PARKED_ROWS = 25
"""Memory of a waiting fetch without its partitions, in rows of a parked fetch."""
_ROWS_OF_A_READ = 4
"""An attempt to acquire records takes as long as so many rows of a request."""
_BATCHES = 0
_RECORD_LIMIT = 1
"""The acquire mode in which `max_records` is exact."""


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_share_groups(context.node)
    key = session_key(request)
    require(context, Operation.READ, ResourceType.GROUP, key.group_id)
    share, epoch = context.node.share, request.share_session_epoch
    _check(request)
    if epoch == INITIAL_EPOCH:
        if _acknowledges(request):
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                "The first request of a share session cannot acknowledge records.",
            )
        await share.released(key)
        session = share.sessions.open(key, context.peer)
    else:
        session = share.sessions.use(key, epoch)
    acknowledgements = await acknowledgements_of(context, request)
    leading = Leading(context, key.group_id)
    fetch = _Fetch(context, request, session, leading)
    await fetch.change_places()
    acknowledged = await leading.acknowledge(key.member_id, acknowledgements)
    if epoch != FINAL_EPOCH and not request.is_renew_ack:
        await fetch.run()
    if (epoch == FINAL_EPOCH or fetch.unknown > SHARE_SESSION_UNKNOWN_MAX) and session.is_open:
        share.sessions.end(key)
        await share.release(session)
    return {
        "error_code": ErrorCode.NONE,
        "acquisition_lock_timeout_ms": share.options.lock_ms(key.group_id),
        "responses": await by_topic(await fetch.rows(acknowledged)),
        "node_endpoints": leading.endpoints(),
    }


def _check(request: Any) -> None:
    """Raises MqError INVALID_REQUEST for limits that do not fit together."""
    if request.share_acquire_mode not in (_BATCHES, _RECORD_LIMIT):
        raise MqError(
            ErrorCode.INVALID_REQUEST, f"Unknown acquire mode {request.share_acquire_mode}."
        )
    limits = request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records
    if request.is_renew_ack and any(limits):
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            "A request that renews locks acquires no records: maxWaitMs, minBytes, maxBytes and "
            "maxRecords must be 0.",
        )


def _acknowledges(request: Any) -> bool:
    return any(one.acknowledgement_batches for topic in request.topics for one in topic.partitions)


class _Fetch:
    """One fetch of a session: acquires records, and waits if there are none."""

    def __init__(
        self, context: Context, request: Any, session: ShareSession, leading: Leading
    ) -> None:
        self._context = context
        self._request = request
        self._session = session
        self._leading = leading
        self._is_first = request.share_session_epoch == INITIAL_EPOCH
        self._acquires = request.max_records > 0 and request.max_bytes > 0
        self._acquired: dict[Place, Acquired] = {}
        self._errors: dict[Place, MqError] = {}
        self._added = 0
        """Partitions that are new in the session."""
        self.unknown = 0
        """Partitions of the session that do not exist. Above SHARE_SESSION_UNKNOWN_MAX, the session
        ends, because the member does not name them again. It opens another one."""

    async def change_places(self) -> None:
        """Add and remove the partitions that the request names, and release these rows. Raises
        MqError SHARE_SESSION_LIMIT_REACHED; the session has ended then.
        """
        request, session, pace = self._request, self._session, Pace()
        share = self._context.node.share
        try:
            for topic in request.topics:
                await pace.row()
                for one in topic.partitions:
                    await pace.row()
                    place = Place(topic.topic_id, one.partition_index)
                    if place in session.places:
                        continue
                    if not self._leading.exists(place):
                        self.unknown += 1
                        if self.unknown > SHARE_SESSION_UNKNOWN_MAX:
                            self._errors[place] = self._leading.unknown(place)
                            continue
                    self._added += 1
                    share.sessions.add(session, place)
        except MqError:
            share.sessions.end(session.key)
            await share.release(session)
            raise
        for topic in request.forgotten_topics_data:
            await pace.row()
            for index in topic.partitions:
                await pace.row()
                share.sessions.remove(session, Place(topic.topic_id, index))
        request.topics = request.forgotten_topics_data = ()

    async def run(self) -> None:
        node, request, session = self._context.node, self._request, self._session
        clock = node.clock.monotonic
        deadline = clock() + min(max(0, request.max_wait_ms), FETCH_WAIT_MAX_MS) / 1000
        waiter = Waiter()
        session.wake = waiter.wake
        try:
            while session.is_open and self._context.is_wanted():
                led = await self._led()
                waiter.begin_attempt([one.waiters for one in led])
                await self._acquire(led)
                if self._acquired or self._errors or clock() >= deadline or not session.is_open:
                    return
                # The place is for another large request, of which this one may wait (I41).
                self._context.waits()
                with self._context.parked(_PARKED_ROWS + len(led)) as may_wait:
                    if not may_wait:
                        return
                    await waiter.wait(deadline - clock())
                if clock() >= deadline:
                    return
                await others_first()
        finally:
            session.wake = lambda: None
            waiter.leave()

    async def _led(self) -> list[LedSharePartition]:
        """The share partitions of the session. New ones are loaded, several at a time."""
        places = list(self._session.places)
        waiting, pace, unknown = iter(places), Pace(), 0
        found: dict[Place, LedSharePartition] = {}

        async def find_some() -> None:
            nonlocal unknown
            for place in waiting:
                await pace.row()
                try:
                    found[place] = await self._leading.led(place)
                except MqError as error:
                    self._errors[place] = client_error(error)
                    unknown += error.code in UNKNOWN_ERRORS

        if self._added > 1:
            async with trio.open_nursery() as nursery:
                for _ in range(min(_LOADED_AT_ONCE, self._added)):
                    nursery.start_soon(find_some)
            self._added = 0
        else:
            await find_some()
        self.unknown = max(self.unknown, unknown)
        return [found[place] for place in places if place in found]

    async def _acquire(self, led: list[LedSharePartition]) -> None:
        request, session, pace = self._request, self._session, Pace()
        records_left, bytes_left = request.max_records, min(request.max_bytes, _BYTES_MAX)
        exact = request.share_acquire_mode == _RECORD_LIMIT
        for one in led:
            if records_left <= 0 or bytes_left <= 0 or not session.is_open:
                return
            await pace.row(_ROWS_OF_A_READ)
            place = Place(one.key.topic_id, one.key.partition)
            # As in Apache Kafka, the batch size counts only if whole batches are acquired.
            batch_size = INT32_MAX if exact else max(1, request.batch_size)
            limits = FetchLimits(records_left, bytes_left, batch_size, exact)
            try:
                found = await self._context.node.share.acquirer.acquire(
                    one, session.key.member_id, limits, lambda: session.is_open
                )
            except MqError as error:
                self._errors[place] = client_error(error)
                continue
            if found is not None:
                self._acquired[place] = found
                session.served(place)
                records_left -= found.record_count
                bytes_left -= len(found.records)

    async def rows(
        self, acknowledged: Mapping[Place, MqError | None]
    ) -> list[tuple[Place, dict[str, Any]]]:
        """The rows of partitions with records, errors or acknowledgements. The first response of a
        session has a row for each partition, as in Apache Kafka, if the request may acquire any.
        """
        rows: dict[Place, dict[str, Any]] = {}
        pace = Pace()
        for place in list(self._session.places) if self._is_first and self._acquires else ():
            await pace.row()
            rows[place] = {"error_code": ErrorCode.NONE}
        for place, refused in acknowledged.items():
            await pace.row()
            row = rows.setdefault(place, {"error_code": ErrorCode.NONE})
            if refused is not None:
                row["acknowledge_error_code"] = refused.code
                row["acknowledge_error_message"] = refused.message or None
                row["current_leader"] = self._leading.leader_of(place, refused)
        for place, error in self._errors.items():
            await pace.row()
            row = rows.setdefault(place, {"error_code": ErrorCode.NONE})
            row["error_code"], row["error_message"] = error.code, error.message or None
            row["current_leader"] = self._leading.leader_of(place, error)
        for place, found in self._acquired.items():
            await pace.row()
            row = rows.setdefault(place, {"error_code": ErrorCode.NONE})
            row["records"] = found.records
            row["acquired_records"] = [one._asdict() for one in found.rows]
        return list(rows.items())


def failed(request: Any, error: MqError) -> Mapping[str, Any]:
    return {"error_code": error.code, "error_message": error.message or None}
