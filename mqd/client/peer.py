"""One connection to one peer: pipelined requests and responses on one stream. Clients, followers
and Raft use it.

Requests get correlation ids in the order of writing. Responses arrive in that order (Kafka's rule),
so the waiters are a queue. Two tasks own the stream: one sends the whole outbox at once, the other
one receives. A caller never touches the stream, so the cancellation of a caller cannot cut a frame.
Its request is sent, its response is received and dropped, and only then its slot is free again.

Invariants: every waiter gets exactly one end, a response or an error. After the first failure
nothing is written or read, and every later request fails at once. At most `in_flight_max` requests
have no response yet.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from mqd import limits
from mqd.client.errors import ClientError, ConnectionBroken, DeadlineExceeded
from mqd.errors import ErrorCode, ProtocolError
from mqd.io.net import Stream
from mqd.protocol.apis import SOFTWARE, by_key
from mqd.protocol.frame import FrameReader, TlsRecord
from mqd.protocol.request_parts import LARGE_BYTES, RequestParts
from mqd.protocol.schema import Api, decode_response_header, encode_request_header

API_VERSIONS_KEY = 18
_OPENING_KEYS = frozenset({API_VERSIONS_KEY, 17, 36})
"""ApiVersions, SaslHandshake and SaslAuthenticate: requests that only open the connection."""
_SIZE = struct.Struct(">i")
_ERROR = struct.Struct(">h")
_CORRELATION_ID_MAX = 2**31 - 1
_WRITE_BYTES = 256 * limits.KIB
_TLS_REMEDY = "set security.protocol=SSL, or SASL_SSL with SASL"


class Posted:
    """One request on its way. `frame` is the whole response, with its header."""

    __slots__ = ("api", "correlation_id", "ended", "failure", "frame", "version", "written")

    def __init__(self, api: Api, version: int, correlation_id: int) -> None:
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.ended = trio.Event()
        self.frame: memoryview | None = None
        self.failure: str | None = None
        self.written = False


class PeerConnection:
    """Requests and responses over one Stream.

    Give `run` to a nursery, then `negotiate`, then `request`.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        peer: str,
        client_id: str = "mqd",
        in_flight_max: int = limits.CLIENT_IN_FLIGHT_REQUESTS_MAX,
        response_bytes_max: int = limits.RESPONSE_BYTES_MAX,
    ) -> None:
        """`peer` is the address for messages, "host:port"."""
        assert in_flight_max > 0
        self.peer = peer
        self.client_id = client_id
        self.versions: dict[int, tuple[int, int]] = {}
        """What the peer serves: API key -> (lowest, highest version). Empty until `negotiate`."""
        self.features: dict[str, int] = {}
        """Finalized features and their levels, from ApiVersions v3 on."""
        self._stream = stream
        self._frames = FrameReader(
            bytes_max=response_bytes_max, receive_bytes=limits.CLIENT_RECEIVE_BYTES
        )
        self._slots = trio.Semaphore(in_flight_max)
        self._waiters: deque[Posted] = deque()
        self._outbox: list[tuple[bytes | bytearray | memoryview, Posted | None]] = []
        self._outbox_filled = trio.Event()
        self._outbox_written = trio.Event()
        self._next_correlation_id = 0
        self._silent_since = 0.0
        """When the oldest open request was sent, or the last response came: the later of both.
        """
        self._failure: str | None = None
        self._failure_remedy = ""
        self._ended_by = ""
        self._login_ended: trio.Event | None = None
        """While the client logs in again: other requests wait for it, because the peer accepts only
        those of the login.
        """
        self._nursery: trio.Nursery | None = None
        self._scope = trio.CancelScope()

    # -- life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Move bytes until the stream ends, `close` is called or the nursery is cancelled.

        Never raises for the peer's faults.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._read)
                    task_status.started()
        finally:
            self._fail("the connection was closed on this side")
            self._stream.close()

    def start_soon(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task that ends with the connection."""
        assert self._nursery is not None
        self._nursery.start_soon(function, *args)

    @property
    def failure(self) -> str | None:
        """Why this connection can no longer be used; None while it can."""
        return self._failure

    def close(self, reason: str = "the connection was closed on this side") -> None:
        """Every waiter fails with `reason`; `run` returns soon. Quiet when it is closed already."""
        self._fail(reason)

    @property
    def idle(self) -> bool:
        """No request waits for a response."""
        return not self._waiters

    @property
    def silent_for(self) -> float:
        """Seconds since the peer last sent a response, while one is due; 0.0 if none is due."""
        return trio.current_time() - self._silent_since if self._waiters else 0.0

    # -- requests

    async def negotiate(self) -> None:
        """Ask with ApiVersions what the peer serves: our newest version first, what its refusal
        offers second (KIP-511).

        Raises ClientError(UNSUPPORTED_VERSION) when no common version exists, ConnectionBroken when
        the peer hangs up.
        """
        api = _api(API_VERSIONS_KEY)
        version = api.versions[1]
        software = {"client_software_name": SOFTWARE, "client_software_version": "1"}
        while True:
            frame, position = await self.exchange(
                api, version, api.encode_request(version, software)
            )
            if (
                len(frame) - position >= 2
                and _ERROR.unpack_from(frame, position)[0] == ErrorCode.UNSUPPORTED_VERSION
                and version > 0
            ):
                refusal = self._decode(
                    api, 0, frame, position
                )  # in version 0, whatever version was requested
                offered = [
                    row.max_version for row in refusal.api_keys if row.api_key == API_VERSIONS_KEY
                ]
                version = min(offered[0], version - 1) if offered and offered[0] >= 0 else 0
                continue
            response = self._decode(api, version, frame, position)
            break
        if response.error_code:
            raise ClientError(
                ErrorCode(response.error_code), f"{self.peer} does not say which versions it serves"
            )
        self.versions = {
            row.api_key: (row.min_version, row.max_version) for row in response.api_keys
        }
        self.features = {row.name: row.max_version_level for row in response.finalized_features}

    def version_of(self, api: Api, *, at_most: int | None = None) -> int:
        """The newest version of `api` that both sides know. Raises ClientError(UNSUPPORTED_VERSION)
        if there is none.
        """
        served = self.versions.get(api.key)
        if served is None:
            raise ClientError(
                ErrorCode.UNSUPPORTED_VERSION, f"{self.peer} does not serve {api.name}"
            )
        lowest = max(api.versions[0], served[0])
        highest = min(api.versions[1], served[1])
        if at_most is not None:
            highest = min(highest, at_most)
        if lowest > highest:
            raise ClientError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.peer} serves {api.name} {served[0]} to {served[1]}, this client "
                f"speaks {api.versions[0]} to {api.versions[1]}",
            )
        return highest

    async def request(
        self,
        api: Api,
        body: Mapping[str, Any],
        version: int | None = None,
        *,
        timeout_s: float | None = None,
        during_login: bool = False,
    ) -> Any:
        """Send a request and return the decoded response. Raises ConnectionBroken, or
        DeadlineExceeded after `timeout_s`.

        Cancel-safe: the connection stays usable, and the broker may still execute the request. A
        timeout closes the connection: responses come in order, so nothing behind a stuck one would
        arrive either. `during_login`: the request is a part of the login, see `only_login`.
        """
        if version is None:
            version = self.version_of(api)
        encoded = api.encode_request(version, body)
        if timeout_s is None:
            posted = await self._posted(api, version, encoded, during_login)
            frame, position = await self.response_to(posted)
            return self._decode(api, version, frame, position)
        with trio.move_on_after(timeout_s):
            posted = await self._posted(api, version, encoded, during_login)
            frame, position = await self.response_to(posted)
            return self._decode(api, version, frame, position)
        raise self._late(api, timeout_s)

    async def exchange(
        self, api: Api, version: int, body: bytes | bytearray | memoryview
    ) -> tuple[memoryview, int]:
        """Send an encoded body; returns (frame of the response, position of its body).

        For callers with codecs of their own.
        """
        return await self.response_to(await self.post(api, version, body))

    async def post(
        self, api: Api, version: int, body: bytes | bytearray | memoryview | RequestParts
    ) -> Posted:
        """Queue an encoded body behind those that were posted before, and return at once. A task
        that posts one after the other decides the order in which the peer sees them. `response_to`
        waits for the response. Raises ConnectionBroken.

        Large pieces of `body` are sent from where they are: nothing may change them until the
        response is here.
        """
        return await self._posted(api, version, body, False)

    @asynccontextmanager
    async def only_login(self) -> AsyncIterator[None]:
        """A block in which only requests of the login are sent. Those that were posted before are
        ahead of them.
        """
        assert self._login_ended is None
        self._login_ended = trio.Event()
        try:
            yield
        finally:
            self._login_ended.set()
            self._login_ended = None

    async def _posted(
        self,
        api: Api,
        version: int,
        body: bytes | bytearray | memoryview | RequestParts,
        during_login: bool,
    ) -> Posted:
        await self._slots.acquire()
        while self._login_ended is not None and not during_login:
            self._slots.release()  # the login needs some
            await self._login_ended.wait()
            await self._slots.acquire()
        if self._failure is not None:
            self._slots.release()  # passes the wake-up on to the next one in line
            raise self._broken(api, sent=False)
        posted = Posted(api, version, self._take_correlation_id())
        if not self._waiters:
            self._silent_since = trio.current_time()
        self._waiters.append(posted)
        self._put(api, version, posted.correlation_id, body, posted)
        return posted

    async def response_to(self, posted: Posted) -> tuple[memoryview, int]:
        """(frame of the response, position of its body) of a posted request.

        Raises ConnectionBroken.
        """
        await posted.ended.wait()
        if posted.failure is not None:
            raise self._broken(posted.api, sent=posted.written)
        assert posted.frame is not None
        try:
            correlation_id, position = decode_response_header(
                posted.api, posted.version, posted.frame
            )
        except ProtocolError as error:
            raise self._undecodable(posted.api, posted.version, error) from None
        assert correlation_id == posted.correlation_id
        return posted.frame, position

    async def decoded_response_to(self, posted: Posted, *, timeout_s: float) -> Any:
        """The decoded response to a posted request, as `request` returns it."""
        with trio.move_on_after(timeout_s):
            frame, position = await self.response_to(posted)
            return self._decode(posted.api, posted.version, frame, position)
        raise self._late(posted.api, timeout_s)

    async def send(self, api: Api, body: Mapping[str, Any], version: int | None = None) -> None:
        """Send a request that has no response (Produce with acks=0); returns when the kernel
        has its bytes.
        """
        if version is None:
            version = self.version_of(api)
        encoded = api.encode_request(version, body)
        while self._login_ended is not None:
            await self._login_ended.wait()
        if self._failure is not None:
            raise ConnectionBroken(self._failure, sent=False)
        self._put(api, version, self._take_correlation_id(), encoded, None)
        written = self._outbox_written
        await written.wait()
        if self._failure is not None:
            raise ConnectionBroken(self._failure, sent=True)

    # -- inside

    def _take_correlation_id(self) -> int:
        taken = self._next_correlation_id
        self._next_correlation_id = 0 if taken == _CORRELATION_ID_MAX else taken + 1
        return taken

    def _put(
        self,
        api: Api,
        version: int,
        correlation_id: int,
        body: bytes | bytearray | memoryview | RequestParts,
        waiter: Posted | None,
    ) -> None:
        header = encode_request_header(api, version, correlation_id, self.client_id)
        if isinstance(body, RequestParts):
            parts, size = body.parts, body.size
        else:
            parts, size = [body], len(body)
        self._outbox.append((_SIZE.pack(len(header) + size) + header, waiter))
        self._outbox += [(part, None) for part in parts]
        self._outbox_filled.set()

    async def _write(self) -> None:
        try:
            while True:
                await self._outbox_filled.wait()
                taken, self._outbox = self._outbox, []
                written, self._outbox_written = self._outbox_written, trio.Event()
                self._outbox_filled = trio.Event()
                try:
                    await self._send_gathered(taken)
                finally:
                    written.set()
        except OSError as error:
            self._fail_with(error, "writing to")

    async def _send_gathered(
        self, taken: list[tuple[bytes | bytearray | memoryview, Posted | None]]
    ) -> None:
        gathered = bytearray()
        for data, waiter in taken:
            if waiter is not None:
                waiter.written = True
            is_large = len(data) >= LARGE_BYTES
            if not is_large:
                gathered += data
            if gathered and (is_large or len(gathered) >= _WRITE_BYTES):
                await self._stream.send_all(gathered)
                gathered = bytearray()
            if is_large:
                await self._stream.send_all(data)
        if gathered:
            await self._stream.send_all(gathered)

    async def _read(self) -> None:
        try:
            while True:
                received = await self._stream.receive_into(self._frames.room())
                if received == 0:
                    self._fail(f"{self.peer} closed the connection", ended_by=self.peer)
                    return
                self._frames.received(received)
                while (frame := self._frames.next_frame()) is not None:
                    self._on_frame(frame)
        except OSError as error:
            self._fail_with(error, "reading from")
        except TlsRecord:
            self._fail(f"{self.peer} requires TLS", remedy=_TLS_REMEDY)
        except ProtocolError as error:
            self._fail(f"{self.peer} does not speak the Kafka protocol here: {error}")

    def _on_frame(self, frame: memoryview) -> None:
        if len(frame) < _SIZE.size:
            raise ProtocolError(f"a response of {len(frame)} bytes")
        correlation_id = _SIZE.unpack_from(frame)[0]
        awaited = self._waiters[0].correlation_id if self._waiters else None
        if correlation_id != awaited:
            raise ProtocolError(
                f"a response to request {correlation_id}; expected: a response to {awaited}"
            )
        waiter = self._waiters.popleft()
        if self._waiters:
            self._silent_since = trio.current_time()
        waiter.frame = frame
        waiter.ended.set()
        self._slots.release()

    def _broken(self, api: Api, *, sent: bool) -> ConnectionBroken:
        """The error of a request that gets no response."""
        assert self._failure is not None
        error = ConnectionBroken(
            self._failure,
            sent=sent,
            opening=api.key in _OPENING_KEYS,
            remedy=self._failure_remedy,
        )
        error.ended_by = self._ended_by
        return error

    def _fail_with(self, error: OSError, doing: str) -> None:
        self._fail(
            f"{doing} {self.peer} failed: {reason_of(error)}",
            ended_by=self.peer if isinstance(error, ConnectionError) else "",
        )

    def _fail(self, reason: str, *, remedy: str = "", ended_by: str = "") -> None:
        if self._failure is not None:
            return
        self._failure = reason
        self._failure_remedy = remedy
        self._ended_by = ended_by
        while self._waiters:
            waiter = self._waiters.popleft()
            waiter.failure = reason
            waiter.ended.set()
            self._slots.release()
        self._outbox.clear()
        self._outbox_written.set()
        self._scope.cancel()

    def _decode(self, api: Api, version: int, frame: memoryview, position: int) -> Any:
        try:
            return api.decode_response(version, frame, position)
        except ProtocolError as error:
            raise self._undecodable(api, version, error) from None

    def _late(self, api: Api, timeout_s: float) -> DeadlineExceeded:
        message = f"{self.peer} did not respond to {api.name} within {timeout_s:g} s"
        self.close(message)
        return DeadlineExceeded(message)

    def _undecodable(self, api: Api, version: int, error: ProtocolError) -> ConnectionBroken:
        reason = (
            f"{self.peer} responded to {api.name} v{version} with bytes that cannot be decoded:"
            f" {error}"
        )
        self.close(reason)
        return ConnectionBroken(reason, sent=True)


def reason_of(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _api(key: int) -> Api:
    api = by_key(key)
    assert api is not None, key
    return api
