"""From a frame to its response: which API it is, whether this listener serves it, and which handler
responds.

Produce and Fetch take the hot path: decoded by hand, handled in the same turn. Every other API is
decoded by its declaration and handled by `handlers/<name>.py`: at once, or in a task if the handler
returns a coroutine. Coroutines wait for the controller, or work on a large request in slices
(slices.py). Later requests of the connection wait for the task, so that a client finds the topic
that it created.

A request in an unsupported version closes its connection, as in Apache Kafka. ApiVersions is the
exception: its response names the supported versions. A request that the listener does not serve
closes the connection too. The client listener serves no requests between nodes. The peer listener
serves no consumer fetches, which no epoch would fence there, and only transactional batches
(node_produce.py).

A node without contact to the controller closes a client's connection after its Metadata response,
which names no leaders. Otherwise librdkafka, which requests metadata from any connected node, would
request it only from this one. A client that reconnects may stay longer each time. The whole cluster
may be without leaders, and clients increase their back-off after each lost connection
(`reconnect.backoff.max.ms`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from struct import Struct
from types import CoroutineType, GeneratorType
from typing import Any

from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.io.disk import FileRange
from mqd.limits import (
    DECODED_AT_ONCE_BYTES_MAX,
    FRAME_BYTES_MIN,
    KIB,
    REQUEST_ELEMENTS_MAX,
    REQUEST_STRING_BYTES_MAX,
)
from mqd.protocol import apis
from mqd.protocol.chunks import Chunk, Chunks
from mqd.protocol.primitives import Cursor
from mqd.protocol.request_header import RequestHeader, decode_request_header
from mqd.protocol.schema import Api, UnsupportedApi, encode_response_header
from mqd.protocol.slices import all_slices
from mqd.server import peer_requests, unstable
from mqd.server.connection import Connection, Slot
from mqd.server.connection_work import until_closed
from mqd.server.context import CLIENT, PEER, Context, Node
from mqd.server.handlers import fetch, produce
from mqd.server.places import Places
from mqd.server.receive_buffers import Buffer
from mqd.server.send_queue import Part
from mqd.server.served_apis import (
    SERVED,
    SERVED_TO_CLIENTS,
    SERVED_TO_PEERS,
    Handler,
)
from mqd.server.slices import Pace, finished_in_slices, others_first

logger = logging.getLogger(__name__)

_HEAD = Struct(">hhih").unpack_from
_LENGTH = Struct(">i").pack

_NOTHING = memoryview(b"")

PRODUCE = 0
FETCH = 1
METADATA = 3
SASL_HANDSHAKE = 17
API_VERSIONS = 18

_RECONNECTED_SECONDS_MIN = 1.0
"""The minimum time that a client may stay if it connects to a node without contact."""

_COUNTED_BYTES = 256 * KIB
"""The bytes of a response that are reserved in one step while it is encoded."""
_JOINED_BYTES_MAX = 128 * KIB
"""A response up to this size is sent with its length and header in one piece."""

Response = Mapping[str, Any]


class Dispatcher:
    """All handlers of one node."""

    def __init__(self, node: Node, spawn: Callable[..., None]) -> None:
        """`spawn(connection, function, *args)` starts a task that works for the connection."""
        self._node = node
        self._quotas = node.quotas
        self._spawn = spawn
        self._produce = produce.Produce(node, spawn, self.bug)
        self._fetch = fetch.Fetch(node, spawn, self.bug)
        common = {handler.api.key: handler for handler in map(Handler, SERVED)}
        private = {handler.api.key: handler for handler in map(Handler, SERVED_TO_PEERS)}
        public = {handler.api.key: handler for handler in map(Handler, SERVED_TO_CLIENTS)}
        self._handlers = {CLIENT: {**common, **public}, PEER: {**common, **private}}
        self._places = {CLIENT: Places(), PEER: Places()}
        self._versions_until = unstable.versions_until(node.config)
        self.requests = 0
        """Requests handled. A request that is held back counts when its turn comes."""
        self.bugs = 0
        """Connections that were closed because of an unexpected exception."""

    def dispatch(
        self, connection: Connection, buffer: Buffer, view: memoryview, start: int, end: int
    ) -> bool:
        """Handle the request in buffer[start:end]. Returns False if it must wait for an earlier
        fetch.
        """
        sasl = connection.sasl
        if sasl is not None and connection.owner.now > sasl.ready_until:
            if connection.parked is not None:
                connection.parked.free()
                if connection.barrier:
                    return False
            self.requests += 1
            sasl.on_frame(connection, view[start:end], self)
            return True
        if end - start < FRAME_BYTES_MIN + 2:
            raise ProtocolError(f"a request of {end - start} bytes has no header")
        api_key, version, correlation_id, client_id_bytes = _HEAD(buffer, start)
        if connection.listener is PEER:
            if connection.peer_node is None:
                peer_requests.check_unauthenticated(connection, api_key)
            if api_key == PRODUCE:
                self.requests += 1
                self._request(connection, api_key, buffer, view[start:end])
                return True
        body = start + 10 + client_id_bytes if client_id_bytes > 0 else start + 10
        if body > end or client_id_bytes < -1:
            raise ProtocolError(
                f"client id of {client_id_bytes} bytes in a request of {end - start}"
            )
        client_id: bytes | bytearray = buffer[start + 10 : body]
        if client_id != connection.client_id:
            try:
                client_id.decode()
            except UnicodeDecodeError:
                raise ProtocolError("client id is not UTF-8") from None
            connection.client_id = client_id
        if api_key == PRODUCE and 3 <= version <= 13:
            if version >= 9:
                body = (
                    self._skip_header_tags(view, start, end)
                    if body >= end or view[body]
                    else body + 1
                )
            if connection.parked is not None:
                connection.parked.free()
                if connection.barrier:
                    return False
            self.requests += 1
            self._produce(connection, buffer, view, body, end, version, correlation_id)
            return True
        if api_key == FETCH and 4 <= version <= 18:
            if version >= 12:
                body = (
                    self._skip_header_tags(view, start, end)
                    if body >= end or view[body]
                    else body + 1
                )
            taken = self._fetch(connection, view, body, end, version, correlation_id)
            self.requests += taken
            return taken
        # a request behind a parked fetch: the fetch responds with the bytes that there are
        if connection.parked is not None:
            connection.parked.free()
            if connection.barrier:
                return False
        self.requests += 1
        self._request(connection, api_key, buffer, view[start:end])
        return True

    @staticmethod
    def _skip_header_tags(view: memoryview, start: int, end: int) -> int:
        """The position of the body, if there may be tagged fields before it."""
        return start + decode_request_header(view[start:end]).body_position

    # -- everything but Produce and Fetch ----------------------------------------------------------

    def _request(
        self, connection: Connection, api_key: int, buffer: Buffer, frame: memoryview
    ) -> None:
        handler = self._handlers[connection.listener].get(api_key)
        if handler is None:
            if connection.listener == PEER and peer_requests.is_private(api_key):
                peer_requests.handle(self._node, connection, api_key, frame)
                return
            raise _not_served(api_key, connection.listener)
        sasl = connection.sasl
        if api_key == SASL_HANDSHAKE and sasl and sasl.may_reauthenticate(connection.owner.now):
            sasl.reauthenticate(connection, frame)
            return
        header = decode_request_header(frame)
        api = handler.api
        connection.throttle_ms = (
            self._quotas.throttle_for_other_request(connection) if self._quotas.keys else 0
        )
        if header.api_version > self._versions_until.get(api_key, header.api_version):
            raise UnsupportedApi(api_key, header.api_version, api.name)
        if not api.supports(header.api_version):
            assert api_key == API_VERSIONS  # every other API was refused with its header
            refusal = api.encode_response(0, _unknown_version(api))
            self._complete(connection.slot(), handler, header._replace(api_version=0), refusal)
            return
        if len(frame) - header.body_position > DECODED_AT_ONCE_BYTES_MAX:
            connection.barrier = True
            if not connection.frames.retain(buffer):
                frame = memoryview(bytes(frame))
            self._spawn(
                connection,
                self._respond_to_large,
                connection,
                connection.slot(),
                handler,
                header,
                frame,
            )
            return
        request = api.decode_request(header.api_version, frame, header.body_position)
        slot = connection.slot()
        try:
            try:
                response = handler.handle(self._context(connection, header), request)
            except MqError as error:
                response = self._refused(handler, request, error)
            if isinstance(response, GeneratorType):
                response = all_slices(response)
            if isinstance(response, CoroutineType):
                connection.barrier = True
                self._spawn(
                    connection,
                    self._respond_in_task,
                    connection,
                    slot,
                    handler,
                    header,
                    request,
                    response,
                )
            else:
                response = _throttled(connection, response)
                self._complete(
                    slot, handler, header, handler.api.encode_response(header.api_version, response)
                )
        except Exception:
            self.bug(connection, handler.api.name)

    def respond_to_api_versions(self, connection: Connection, frame: memoryview) -> bool:
        """Respond to an ApiVersions request at once. Returns whether it was valid."""
        header = decode_request_header(frame)
        handler = self._handlers[connection.listener][API_VERSIONS]
        api = handler.api
        if not api.supports(header.api_version):
            refusal = api.encode_response(0, _unknown_version(api))
            self._complete(connection.slot(), handler, header._replace(api_version=0), refusal)
            return False
        request = api.decode_request(header.api_version, frame, header.body_position)
        try:
            response = handler.handle(self._context(connection, header), request)
        except MqError as error:
            response = self._refused(handler, request, error)
        body = api.encode_response(header.api_version, response)
        self._complete(connection.slot(), handler, header, body)
        return not response["error_code"]

    def refusal(self, frame: memoryview, error: MqError) -> list[Part]:
        """The response to a small request of a client that is refused as a whole. Empty if its API
        has none, or the request is large.
        """
        header = decode_request_header(frame)
        handler = self._handlers[CLIENT].get(header.api_key)
        if handler is None or handler.failed is None or len(frame) > DECODED_AT_ONCE_BYTES_MAX:
            return []
        api = handler.api
        request = api.decode_request(header.api_version, frame, header.body_position)
        response = self._refused(handler, request, error)
        if isinstance(response, GeneratorType):
            response = all_slices(response)
        body = api.encode_response(header.api_version, response)
        head = encode_response_header(api, header.api_version, header.correlation_id)
        return [_LENGTH(len(head) + len(body)) + head + body]

    def _context(
        self,
        connection: Connection,
        header: RequestHeader,
        waits: Callable[[], None] = lambda: None,
    ) -> Context:
        now = self._node.clock.monotonic()
        return Context(
            self._node,
            header,
            connection.listener,
            connection.peer,
            now,
            connection.peer_node,
            connection.principal,
            connection.client_listener,
            partial(self._mutate, connection),
            partial(self._throttle, connection),
            partial(self._consumed, connection),
            waits,
            lambda: connection.open,
            partial(_parked, connection),
        )

    def _mutate(self, connection: Connection, mutations: int, *, strict: bool) -> bool:
        """See `Mutate` in context.py."""
        is_allowed, throttle_ms = self._quotas.mutate(connection, mutations, strict=strict)
        connection.throttle_ms = max(connection.throttle_ms, throttle_ms)
        return is_allowed

    def _throttle(self, connection: Connection, throttle_ms: int) -> None:
        throttle_ms = self._quotas.throttle(connection, throttle_ms)
        connection.throttle_ms = max(connection.throttle_ms, throttle_ms)

    def _consumed(self, connection: Connection, size: int) -> None:
        if self._quotas.keys:
            throttle_ms = self._quotas.consumed(connection, size)
            connection.throttle_ms = max(connection.throttle_ms, throttle_ms)

    async def _respond_to_large(
        self,
        connection: Connection,
        slot: Slot,
        handler: Handler,
        header: RequestHeader,
        frame: memoryview,
    ) -> None:
        """A task: decode in slices, then respond. Later requests of the connection wait.

        The frame is released when it is decoded. A request that waits for other clients (JoinGroup,
        SyncGroup) leaves its place first: a thousand may wait, and none may prevent another from
        joining.
        """
        places = self._places[connection.listener]
        connection.hold(len(frame))
        try:
            async with places.taken(connection, handler, large=True) as leave:
                with until_closed(connection):
                    await others_first()
                    cursor = Cursor(
                        frame,
                        header.body_position,
                        REQUEST_ELEMENTS_MAX,
                        copies=True,
                        string_bytes_max=REQUEST_STRING_BYTES_MAX
                        if connection.listener == CLIENT
                        else sys.maxsize,
                    )
                    decoding = handler.api.decode_request_in_slices(header.api_version, cursor)
                    request = await finished_in_slices(decoding)
                if connection.open:
                    connection.hold(cursor.value_bytes)
                    frame = _NOTHING
                    del cursor, decoding

                    def waits() -> None:
                        connection.hold(0)
                        leave()

                    work = self._handled(connection, handler, header, request, waits)
                    await self._respond(connection, slot, handler, header, request, work)
        except ProtocolError as error:
            connection.refuse(error)
        finally:
            connection.hold(0)

    async def _handled(
        self,
        connection: Connection,
        handler: Handler,
        header: RequestHeader,
        request: Any,
        waits: Callable[[], None],
    ) -> Response:
        """The handler's response, whether it needs a task or not. Raises MqError."""
        response: Any = handler.handle(self._context(connection, header, waits), request)
        if isinstance(response, GeneratorType):
            response = await finished_in_slices(response)
        elif isinstance(response, CoroutineType):
            response = await response
        found: Response = response
        return found

    async def _respond_in_task(
        self,
        connection: Connection,
        slot: Slot,
        handler: Handler,
        header: RequestHeader,
        request: Any,
        work: CoroutineType[Any, Any, Response],
    ) -> None:
        """A task: respond to a small request whose response may be large."""
        try:
            places, many_rows = self._places[connection.listener], handler.has_many_rows(request)
            async with places.taken(connection, handler, large=False, many_rows=many_rows):
                if connection.open:
                    await self._respond(connection, slot, handler, header, request, work)
        finally:
            work.close()

    async def _respond(
        self,
        connection: Connection,
        slot: Slot,
        handler: Handler,
        header: RequestHeader,
        request: Any,
        work: Awaitable[Response],
    ) -> None:
        try:
            try:
                if handler.reads:
                    with until_closed(connection, needs_peer=True):
                        response = await work
                else:
                    response = await work
            except MqError as error:
                response = self._refused(handler, request, error)
                if isinstance(response, GeneratorType):
                    response = await finished_in_slices(response)
            if not connection.open:
                return
            with until_closed(connection):
                response = _throttled(connection, response)
                body = await self._encoded(connection, handler, header, response)
            if connection.open:
                connection.barrier = False
                self._complete(slot, handler, header, *body)
        except Exception:  # trio.Cancelled is none
            self.bug(connection, handler.api.name)

    @staticmethod
    async def _encoded(
        connection: Connection, handler: Handler, header: RequestHeader, response: Response
    ) -> list[Chunk]:
        """The response in chunks. They count as unsent while they are made. Beyond the memory for
        responses, this waits, or a connection is closed.
        """
        chunks, queue = Chunks(), connection.send_queue
        encoding = handler.api.encode_response_in_slices(header.api_version, response, chunks)
        made_before, is_complete, pace = queue.made_bytes, False, Pace()
        while not is_complete and connection.open:
            is_complete = await finished_in_slices(_one_portion(encoding, chunks))
            if connection.open:
                queue.count_made(made_before + chunks.size)
                await connection.owner.memory.response_room(connection)
                await pace.row()
        return chunks.take()

    @staticmethod
    def _refused(handler: Handler, request: Any, error: MqError) -> Any:
        assert handler.failed is not None, (
            f"{handler.api.name} refuses whole requests and does not say how"
        )
        return handler.failed(request, error)

    def bug(self, connection: Connection, api: str) -> None:
        """An unexpected exception was caught (bugs.py): log it, and close the connection."""
        self.bugs += 1
        logger.exception(
            "bug in a handler, closing the connection api=%s peer=%s", api, connection.peer
        )
        connection.close()

    def _complete(self, slot: Slot, handler: Handler, header: RequestHeader, *body: Chunk) -> None:
        connection = slot.connection
        if connection.open:
            head = encode_response_header(handler.api, header.api_version, header.correlation_id)
            size = len(head) + sum(
                chunk.size if isinstance(chunk, FileRange) else len(chunk) for chunk in body
            )
            first, *others = body
            if len(first) <= _JOINED_BYTES_MAX:
                slot.complete([_LENGTH(size) + head + first, *others])
            else:
                slot.complete([_LENGTH(size) + head, *body])
            if handler.api.key == METADATA and self._should_disconnect(connection):
                connection.finish()

    def _should_disconnect(self, connection: Connection) -> bool:
        """Whether a client must connect to other nodes: at once if it connected before the contact
        was lost. Else it may stay as long as the contact had been lost when it connected.
        """
        replica = self._node.replica
        if replica.in_contact or connection.listener != CLIENT:
            return False
        connected_after = connection.since - replica.lost_contact_at
        return connected_after < 0 or connection.owner.now - connection.since >= max(
            _RECONNECTED_SECONDS_MIN, connected_after
        )


@contextmanager
def _parked(connection: Connection, rows: int) -> Iterator[bool]:
    """See `Context.parked`."""
    pool = connection.request_pool
    if not pool.may_park(rows):
        yield False
        return
    pool.park(rows)
    try:
        with until_closed(connection, needs_peer=True):
            yield True
    finally:
        pool.unpark(rows)


def _throttled(connection: Connection, response: Response) -> Response:
    """The response with the throttle time of the client."""
    if not connection.throttle_ms:
        return response
    return {**response, "throttle_time_ms": connection.throttle_ms}


def _one_portion(encoding: Iterator[int], chunks: Chunks) -> Generator[int, None, bool]:
    """Encode until a portion is made that should be counted. Returns whether that was the rest."""
    portion_end = chunks.size + _COUNTED_BYTES
    for rows in encoding:
        yield rows
        if chunks.size >= portion_end:
            return False
    return True


def _not_served(api_key: int, listener: str) -> ProtocolError:
    api = apis.by_key(api_key)
    if api is None:
        return ProtocolError(f"unknown API key {api_key}")
    return ProtocolError(f"{api.name} is not served on the {listener} listener")


def _unknown_version(api: Api) -> Response:
    """ApiVersions in an unknown version: the response has version 0 and the supported range
    (KIP-511).
    """
    low, high = api.advertised or api.versions
    return {
        "error_code": int(ErrorCode.UNSUPPORTED_VERSION),
        "api_keys": [{"api_key": api.key, "min_version": low, "max_version": high}],
    }
