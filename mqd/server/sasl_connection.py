"""SASL on one connection: reads its frames until it is authenticated, and again when it
re-authenticates. `security/sasl_session.py` decides; this file decodes, sends and closes.

Before the end of the authentication, a connection may send ApiVersions, SaslHandshake and tokens,
in few and small frames, and has little time (I52). Any other request closes it. A failed login gets
its response after `connection.failed.authentication.delay.ms`, and the connection is closed then;
other connections do not wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Protocol, TypeVar

import trio

from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.limits import FRAME_BYTES_MIN, SASL_REQUESTS_MAX
from mqd.protocol import apis
from mqd.protocol.request_header import RequestHeader, decode_request_header
from mqd.protocol.schema import Api, encode_response_header
from mqd.security.mechanism import LoginFailed, PendingResponse
from mqd.security.principal import Principal
from mqd.security.sasl_session import ServerToken, State
from mqd.server.connection_work import WithWork, until_closed
from mqd.server.frame_buffer import FrameBuffer
from mqd.server.sasl import SaslListener, SaslService
from mqd.server.send_queue import Part

SASL_HANDSHAKE = 17
SASL_AUTHENTICATE = 36
API_VERSIONS = 18

_API_KEY = Struct(">h").unpack_from
_LENGTH = Struct(">i").pack
_HANDSHAKE_API = apis.by_name("sasl_handshake")
_AUTHENTICATE_API = apis.by_name("sasl_authenticate")


class Slot(Protocol):
    """A place in the queue of responses (server/connection.py)."""

    def complete(self, parts: list[Part]) -> None: ...


class Connection(WithWork, Protocol):
    """What this file needs of a connection (server/connection.py)."""

    barrier: bool
    peer: str
    principal: Principal
    frames: FrameBuffer

    @property
    def address(self) -> str: ...

    def slot(self) -> Slot: ...

    def finish(self) -> None: ...


ConnectionT = TypeVar("ConnectionT", bound=Connection)
ConnectionT_contra = TypeVar("ConnectionT_contra", bound=Connection, contravariant=True)


class Responder(Protocol[ConnectionT_contra]):
    """What this file needs of the dispatcher (server/dispatch.py)."""

    def respond_to_api_versions(self, connection: ConnectionT_contra, frame: memoryview) -> bool:
        """Respond to an ApiVersions request. Returns whether it was valid."""
        ...

    def refusal(self, frame: memoryview, error: MqError) -> list[Part]:
        """The response to a small request that is refused as a whole. Empty if its API has none."""
        ...


class SaslConnection:
    """The authentication of one connection."""

    __slots__ = ("_listener", "_requests", "_service", "_spawn", "ready_until", "session")

    def __init__(
        self, service: SaslService, listener: SaslListener, spawn: Callable[..., None]
    ) -> None:
        """`spawn(function, *args)` starts a task in the server's nursery."""
        self._service = service
        self._listener = listener
        self._spawn = spawn
        self.session = listener.session()
        self._requests = 0
        """Frames since the authentication began."""
        self.ready_until = -math.inf
        """Monotonic seconds until which requests are served without a look at the session."""

    @property
    def is_authenticated(self) -> bool:
        return self.session.principal is not None

    def frame_bytes_max(self, request_bytes_max: int) -> int:
        """The largest frame before the end of the authentication."""
        return min(self._listener.options.receive_bytes_max, request_bytes_max)

    def may_reauthenticate(self, now: float) -> bool:
        """Whether a SaslHandshake begins a re-authentication."""
        return self.session.may_reauthenticate(now)

    def on_frame(
        self, connection: ConnectionT, frame: memoryview, dispatcher: Responder[ConnectionT]
    ) -> None:
        """Handle a frame of a connection that is not authenticated, re-authenticates, or whose
        session has expired. Raises ProtocolError if the connection must be closed.
        """
        now = self._service.clock.monotonic()
        session = self.session
        self._requests += 1
        if self._requests > SASL_REQUESTS_MAX:
            raise ProtocolError(f"more than {SASL_REQUESTS_MAX} requests before authentication")
        if session.state is State.FAILED:
            raise ProtocolError("a request after a failed login")
        if session.expects_token and session.is_bare:
            self._on_token(connection, frame, None, now)
            return
        if len(frame) < FRAME_BYTES_MIN:
            raise ProtocolError(f"a request of {len(frame)} bytes has no header")
        api_key = _API_KEY(frame)[0]
        if session.state is State.COMPLETE:
            if api_key == SASL_HANDSHAKE and self.may_reauthenticate(now):
                self._on_handshake(connection, frame, decode_request_header(frame), now)
                return
            raise ProtocolError("the session has expired, and the client did not re-authenticate")
        if session.expects_token:
            self._on_authenticate(connection, frame, api_key, now, dispatcher)
        elif api_key == SASL_HANDSHAKE:
            self._on_handshake(connection, frame, decode_request_header(frame), now)
        elif api_key == API_VERSIONS and session.state is State.INITIAL_REQUEST:
            if dispatcher.respond_to_api_versions(connection, frame):
                session.on_api_versions()
        else:
            raise ProtocolError(
                f"{_request_of(api_key)} before authentication; set security.protocol=SASL_SSL (or "
                "SASL_PLAINTEXT) in the client"
            )

    def reauthenticate(self, connection: Connection, frame: memoryview) -> None:
        """Begin a re-authentication with this SaslHandshake; see `may_reauthenticate`."""
        self._requests = 1
        now = self._service.clock.monotonic()
        self._on_handshake(connection, frame, decode_request_header(frame), now)

    # -- requests

    def _on_handshake(
        self, connection: Connection, frame: memoryview, header: RequestHeader, now: float
    ) -> None:
        request = _HANDSHAKE_API.decode_request(header.api_version, frame, header.body_position)
        self.ready_until = -math.inf
        code = self.session.on_handshake(request.mechanism, header.api_version, now)
        response = {"error_code": int(code), "mechanisms": self._listener.options.mechanisms}
        parts = _parts(_HANDSHAKE_API, header, response)
        if code:
            enabled = ",".join(self._listener.options.mechanisms)
            reason = f"SASL mechanism {request.mechanism!a:.40} is not enabled; enabled={enabled}"
            self._fail(connection, reason, parts)
            return
        if self.session.is_bare:
            connection.frames.expect_bare_tokens()
        connection.slot().complete(parts)

    def _on_authenticate(
        self,
        connection: ConnectionT,
        frame: memoryview,
        api_key: int,
        now: float,
        dispatcher: Responder[ConnectionT],
    ) -> None:
        header = decode_request_header(frame)
        if api_key != SASL_AUTHENTICATE:
            self.session.fail()
            parts = dispatcher.refusal(frame, MqError(ErrorCode.ILLEGAL_SASL_STATE))
            self._fail(connection, f"{_request_of(api_key)} during authentication", parts)
            return
        request = _AUTHENTICATE_API.decode_request(header.api_version, frame, header.body_position)
        self._on_token(connection, request.auth_bytes, header, now)

    def _on_token(
        self,
        connection: Connection,
        token: bytes | memoryview,
        header: RequestHeader | None,
        now: float,
    ) -> None:
        """`header`: of the SaslAuthenticate request; None for a bare token."""
        session, now_ms = self.session, self._service.clock.wall_ms()
        has_response = header is not None and session.state is not State.REAUTH_BAD_MECHANISM
        try:
            server_token = session.on_token(bytes(token), now, now_ms)
        except LoginFailed as error:
            self._refuse(connection, header if has_response else None, error)
            return
        if isinstance(server_token, PendingResponse):
            connection.barrier = True
            self._spawn(self._respond_later, connection, connection.slot(), header, server_token)
        else:
            self._respond(connection, connection.slot(), header, server_token)

    async def _respond_later(
        self,
        connection: Connection,
        slot: Slot,
        header: RequestHeader | None,
        pending: PendingResponse,
    ) -> None:
        """A task that does the work of a token. The next request waits for it."""
        with until_closed(connection, needs_peer=True):
            result = await self._service.work(pending.work, connection.address)
        if not connection.open:
            return
        clock, session = self._service.clock, self.session
        try:
            server_token = session.on_work_done(pending, result, clock.monotonic(), clock.wall_ms())
        except LoginFailed as error:
            self._refuse(connection, header, error, slot)
            return
        assert isinstance(server_token, ServerToken)
        connection.barrier = False
        self._respond(connection, slot, header, server_token)

    def _respond(
        self,
        connection: Connection,
        slot: Slot,
        header: RequestHeader | None,
        server_token: ServerToken,
    ) -> None:
        session = self.session
        if session.state is State.COMPLETE:
            assert session.principal is not None
            self._requests = 0
            self.ready_until = session.expires_at
            connection.principal = session.principal
            connection.frames.accept_requests()
        if header is None:
            slot.complete([_LENGTH(len(server_token.token)) + server_token.token])
            return
        response = {
            "error_code": 0,
            "auth_bytes": server_token.token,
            "session_lifetime_ms": server_token.session_lifetime_ms,
        }
        slot.complete(_parts(_AUTHENTICATE_API, header, response))

    def _refuse(
        self,
        connection: Connection,
        header: RequestHeader | None,
        error: LoginFailed,
        slot: Slot | None = None,
    ) -> None:
        """`header`: of the request that gets a response. `slot`: its place in the queue, if it has
        one.
        """
        parts: list[Part] = []
        if header is not None:
            response = {
                "error_code": int(ErrorCode.SASL_AUTHENTICATION_FAILED),
                "error_message": self.session.message_for_client(error),
            }
            parts = _parts(_AUTHENTICATE_API, header, response)
        self._fail(connection, str(error), parts, slot)

    # -- the end of a failed login

    def _fail(
        self, connection: Connection, reason: str, parts: list[Part], slot: Slot | None = None
    ) -> None:
        """Log it, send `parts` after the delay, and close the connection. Its later requests are
        not read.
        """
        session = self.session
        self._service.log_failure(
            session.claimed_user,
            connection.peer,
            self._listener.options.listener,
            session.mechanism,
            reason,
        )
        connection.barrier = True
        slot = slot or connection.slot()
        delay_seconds = self._listener.options.failure_delay_ms / 1000
        self._spawn(_close_later, connection, slot, parts, delay_seconds)


def _request_of(api_key: int) -> str:
    """`a Metadata request`, for messages."""
    api = apis.by_key(api_key)
    if api is None:
        return f"a request with the unknown API key {api_key}"
    return f"{'an' if api.name[0] in 'AEIOU' else 'a'} {api.name} request"


async def _close_later(
    connection: Connection, slot: Slot, parts: list[Part], delay_seconds: float
) -> None:
    """A task, so that nothing else waits."""
    await trio.sleep(delay_seconds)
    if connection.open:
        slot.complete(parts)
        connection.finish()


def _parts(api: Api, header: RequestHeader, response: Mapping[str, Any]) -> list[Part]:
    """A response with its length and its header."""
    body = api.encode_response(header.api_version, response)
    head = encode_response_header(api, header.api_version, header.correlation_id)
    return [_LENGTH(len(head) + len(body)) + head + body]
