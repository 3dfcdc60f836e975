"""The authentication of one connection (KIP-43, KIP-152, KIP-368): which request may come next, and
whose connection it is. A core.

A client optionally sends ApiVersions, then SaslHandshake with a mechanism, then the tokens of this
mechanism. After SaslHandshake v1 they are in SaslAuthenticate requests, after v0 they are bare
frames. Before the session expires, it sends SaslHandshake again. States and sentences are those of
Apache Kafka's SaslServerAuthenticator.

The principal does not change while the connection lives, and is set only when a mechanism has
proved it (I52).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from mqd.errors import ErrorCode
from mqd.security.mechanism import LoginFailed, MechanismServer, PendingResponse
from mqd.security.principal import USER, Principal

REAUTHENTICATION_SECONDS_MIN: Final = 1.0
"""Kafka's minimum between two re-authentications."""


class State(Enum):
    """Where the authentication is, with Kafka's names."""

    INITIAL_REQUEST = "expects ApiVersions or SaslHandshake"
    HANDSHAKE_REQUEST = "expects SaslHandshake"
    AUTHENTICATE = "expects a token"
    REAUTH_BAD_MECHANISM = "re-authentication with another mechanism"
    COMPLETE = "authenticated"
    FAILED = "failed"


class Event(Enum):
    """What a request of the client leads to."""

    VERSIONS = "ApiVersions"
    MECHANISM = "SaslHandshake, the mechanism is enabled"
    OTHER_MECHANISM = "SaslHandshake, not the mechanism of the session"
    CHALLENGE = "token, more must follow"
    PROVED = "token, the last one"
    REFUSED = "refused"


TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    State.INITIAL_REQUEST: {
        Event.VERSIONS: State.HANDSHAKE_REQUEST,
        Event.MECHANISM: State.AUTHENTICATE,
        Event.REFUSED: State.FAILED,
    },
    State.HANDSHAKE_REQUEST: {
        Event.MECHANISM: State.AUTHENTICATE,
        Event.REFUSED: State.FAILED,
    },
    State.AUTHENTICATE: {
        Event.CHALLENGE: State.AUTHENTICATE,
        Event.PROVED: State.COMPLETE,
        Event.REFUSED: State.FAILED,
    },
    State.COMPLETE: {  # re-authentication
        Event.MECHANISM: State.AUTHENTICATE,
        Event.OTHER_MECHANISM: State.REAUTH_BAD_MECHANISM,
        Event.REFUSED: State.FAILED,
    },
    State.REAUTH_BAD_MECHANISM: {Event.REFUSED: State.FAILED},
    State.FAILED: {},
}


class ServerToken(NamedTuple):
    """The response to a token of the client."""

    token: bytes
    session_lifetime_ms: int


class SaslSession:
    """The state of one connection."""

    __slots__ = (
        "_began_at",
        "_max_reauth_ms",
        "_mechanisms",
        "_new_server",
        "_server",
        "expires_at",
        "is_bare",
        "mechanism",
        "principal",
        "state",
    )

    def __init__(
        self,
        mechanisms: Sequence[str],
        new_server: Callable[[str], MechanismServer],
        max_reauth_ms: Mapping[str, int],
    ) -> None:
        """`mechanisms`: those that the listener enables. `new_server(mechanism)` begins a login.
        `max_reauth_ms`: `connections.max.reauth.ms` of each mechanism; 0 has no limit.
        """
        self._mechanisms = mechanisms
        self._new_server = new_server
        self._max_reauth_ms = max_reauth_ms
        self._server: MechanismServer | None = None
        self._began_at = -math.inf
        """When the last re-authentication began, in monotonic seconds."""
        self.state = State.INITIAL_REQUEST
        self.mechanism: str | None = None
        self.is_bare = False
        """Tokens are bare frames, without a request around them: SaslHandshake v0."""
        self.principal: Principal | None = None
        """The principal that is proved. It stays while the connection re-authenticates."""
        self.expires_at = math.inf
        """Monotonic seconds at which the session expires."""

    @property
    def expects_token(self) -> bool:
        """Whether the next frame is a token, bare or in a SaslAuthenticate request."""
        return self.state in (State.AUTHENTICATE, State.REAUTH_BAD_MECHANISM)

    @property
    def claimed_user(self) -> str | None:
        """The user that the client names, for the log. It may be a lie."""
        return None if self._server is None else self._server.user

    @property
    def doing(self) -> str:
        """As in Kafka's sentences."""
        return "authentication" if self.principal is None else "re-authentication"

    def may_reauthenticate(self, now: float) -> bool:
        """Whether a SaslHandshake begins a re-authentication. Kafka's rules: the session has an
        end, and the last one began at least a second ago.
        """
        return (
            self.state is State.COMPLETE
            and self.expires_at < math.inf
            and now - self._began_at >= REAUTHENTICATION_SECONDS_MIN
        )

    # -- what the client sends

    def on_api_versions(self) -> None:
        """A valid ApiVersions request."""
        self._move(Event.VERSIONS)

    def on_handshake(self, mechanism: str, version: int, now: float) -> ErrorCode:
        """SaslHandshake. Returns the error code of the response; after an error, the connection
        must be closed.
        """
        if mechanism not in self._mechanisms:
            self.fail()
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        if self.state is State.COMPLETE:
            self._began_at = now
            if mechanism != self.mechanism:
                self._move(Event.OTHER_MECHANISM)
                return ErrorCode.NONE
        self._move(Event.MECHANISM)
        self.is_bare = version == 0
        self.mechanism = mechanism
        self._server = self._new_server(mechanism)
        return ErrorCode.NONE

    def on_token(self, token: bytes, now: float, now_ms: int) -> ServerToken | PendingResponse:
        """A token. `now`: monotonic seconds; `now_ms`: milliseconds since the Unix epoch. After a
        pending response, call `on_work_done` before the next token.

        Raises LoginFailed; then the connection must be closed.
        """
        if self.state is State.REAUTH_BAD_MECHANISM:
            self.fail()
            raise LoginFailed("re-authentication with another mechanism")
        server = self._server
        assert self.state is State.AUTHENTICATE and server is not None
        return self._respond(server, lambda: server.respond(token, now_ms), now, now_ms)

    def on_work_done(
        self, pending: PendingResponse, result: bool, now: float, now_ms: int
    ) -> ServerToken | PendingResponse:
        """The work of the last token has this result. As `on_token`."""
        server = self._server
        assert self.state is State.AUTHENTICATE and server is not None
        return self._respond(server, lambda: pending.conclude(result), now, now_ms)

    def _respond(
        self,
        server: MechanismServer,
        respond: Callable[[], bytes | PendingResponse],
        now: float,
        now_ms: int,
    ) -> ServerToken | PendingResponse:
        """Raises LoginFailed."""
        try:
            response = respond()
            if server.is_complete:
                self._check_unchanged(server)
        except LoginFailed:
            self.fail()
            raise
        if isinstance(response, PendingResponse):
            return response
        if not server.is_complete:
            self._move(Event.CHALLENGE)
            return ServerToken(response, 0)
        assert server.user is not None
        self.principal = Principal(USER, server.user)
        lifetime_ms = self._lifetime_ms(server, now_ms)
        self.expires_at = math.inf if lifetime_ms is None else now + lifetime_ms / 1000
        self._move(Event.PROVED)
        self._server = None
        return ServerToken(response, lifetime_ms or 0)

    def fail(self) -> None:
        """The client sent something that ends the authentication."""
        self._move(Event.REFUSED)

    def message_for_client(self, error: LoginFailed) -> str:
        """Kafka's sentence. It does not show whether the user exists."""
        return error.message or (
            f"Authentication failed during {self.doing} due to invalid credentials with SASL "
            f"mechanism {self.mechanism}"
        )

    # -- inside

    def _check_unchanged(self, server: MechanismServer) -> None:
        """Raises LoginFailed if a re-authentication proved another principal."""
        assert server.user is not None
        if self.principal is not None and self.principal.name != server.user:
            former = self.principal
            message = (
                f"Cannot change principals during re-authentication from {former.type}."
                f"{former.name}: {USER}.{server.user}"
            )
            raise LoginFailed("re-authentication as another user", message)

    def _lifetime_ms(self, server: MechanismServer, now_ms: int) -> int | None:
        """How long the session lasts: until the credential expires, and not longer than
        `connections.max.reauth.ms`. None: without an end.
        """
        assert self.mechanism is not None
        limits = []
        if server.expires_at_ms is not None:
            limits.append(max(0, server.expires_at_ms - now_ms))
        if (longest := self._max_reauth_ms.get(self.mechanism, 0)) > 0:
            limits.append(longest)
        return min(limits, default=None)

    def _move(self, event: Event) -> None:
        following = TRANSITIONS[self.state].get(event)
        assert following is not None, (self.state, event)
        self.state = following
