"""SASL on a connection of a client: the login after the connection is open, and again before the
session expires (KIP-368).

One `Login` serves all connections of a client. It keeps the salted password of SCRAM, so that a
further connection costs no PBKDF2.
"""

from __future__ import annotations

import inspect
from typing import Protocol

import trio

from mqd.client.errors import AuthenticationFailed, ClientError, error_from_wire
from mqd.client.peer import PeerConnection
from mqd.client.security import Security
from mqd.errors import ErrorCode
from mqd.io.entropy import Entropy
from mqd.protocol.apis import by_name
from mqd.security.mechanism import OAUTHBEARER, PLAIN, LoginFailed
from mqd.security.oauthbearer import OAuthBearerClient
from mqd.security.plain import plain_token
from mqd.security.scram import BY_NAME, NONCE_BITS, SaltedPasswords, ScramClient, text_of_bits

_ROUNDS_MAX = 8
"""Tokens of one login. SCRAM needs two."""
_REAUTHENTICATION_FROM, _REAUTHENTICATION_WIDTH = 0.85, 0.10
"""A client logs in again after 85 to 95 percent of the lifetime of the session, as Kafka's do."""
_RENEWAL_SECONDS_MAX = 30.0
_WRONG_PASSWORD = (
    "check the user name and the password. An administrator can list SCRAM users with `mqctl user "
    "list`."
)
_NO_SASL = "this listener has no SASL: use security.protocol=PLAINTEXT or SSL, or another port"


class Exchange(Protocol):
    """The client's side of one login."""

    is_complete: bool

    def first(self) -> bytes: ...

    def respond(self, message: bytes) -> bytes: ...


class _Plain:
    """SASL/PLAIN: one token, and an empty response."""

    def __init__(self, user: str, password: str) -> None:
        self._token = plain_token(user, password)
        self.is_complete = False

    def first(self) -> bytes:
        return self._token

    def respond(self, message: bytes) -> bytes:
        self.is_complete = True
        return b""


class Login:
    """Logs in on connections."""

    def __init__(self, security: Security, entropy: Entropy) -> None:
        assert security.has_sasl
        self._security = security
        self._entropy = entropy
        self._salted: SaltedPasswords = {}

    async def begin(self, connection: PeerConnection) -> None:
        """Log in on a new connection, and again before its session expires.

        Raises AuthenticationFailed, or another ClientError if the connection broke.
        """
        seconds = await self.log_in(connection)
        if seconds is not None:
            connection.start_soon(self._keep, connection, seconds)

    async def _keep(self, connection: PeerConnection, seconds: float | None) -> None:
        """A task: log in again and again. A login that fails closes the connection."""
        while seconds is not None:
            await trio.sleep(seconds)
            with trio.move_on_after(_RENEWAL_SECONDS_MAX) as scope:
                try:
                    async with connection.only_login():
                        seconds = await self.log_in(connection)
                except ClientError as error:
                    connection.close(f"the login was not renewed: {error.message}")
            if scope.cancelled_caught:
                connection.close(f"{connection.peer} did not renew the login in time")

    async def log_in(self, connection: PeerConnection) -> float | None:
        """Log in on a connection that knows the versions of its peer. Returns the seconds after
        which to do so again; None: never.

        Raises AuthenticationFailed, or another ClientError if the connection broke.
        """
        mechanism = self._security.mechanism
        assert mechanism is not None
        exchange = await self._begin(connection, mechanism)
        response = await connection.request(
            by_name("sasl_handshake"), {"mechanism": mechanism}, during_login=True
        )
        if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationFailed(
                ErrorCode.ILLEGAL_SASL_STATE, f"{connection.peer} expects no login", remedy=_NO_SASL
            )
        if response.error_code:
            enabled = ", ".join(response.mechanisms) or "none"
            raise AuthenticationFailed(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                f"{connection.peer} does not enable the SASL mechanism {mechanism}",
                remedy=f"use one that it enables: {enabled}",
            )
        lifetime_ms = await self._exchange_tokens(connection, exchange)
        if lifetime_ms <= 0:
            return None
        share = _REAUTHENTICATION_FROM + _REAUTHENTICATION_WIDTH * self._entropy.random()
        return lifetime_ms / 1000 * share

    async def _exchange_tokens(self, connection: PeerConnection, exchange: Exchange) -> int:
        """Returns the lifetime of the session in milliseconds; 0: no end."""
        api = by_name("sasl_authenticate")
        token = exchange.first()
        for _ in range(_ROUNDS_MAX):
            response = await connection.request(api, {"auth_bytes": token}, during_login=True)
            if response.error_code:
                error = error_from_wire(
                    response.error_code, connection.peer, response.error_message
                )
                raise AuthenticationFailed(error.code, error.message, remedy=self._remedy())
            try:
                token = exchange.respond(bytes(response.auth_bytes))
            except LoginFailed as error:
                raise AuthenticationFailed(
                    ErrorCode.SASL_AUTHENTICATION_FAILED,
                    f"{connection.peer}: {error}",
                    remedy="check that the address is one of the cluster: another server may "
                    "pretend to be it",
                ) from None
            if exchange.is_complete:
                return int(response.session_lifetime_ms)
        raise AuthenticationFailed(
            ErrorCode.SASL_AUTHENTICATION_FAILED, f"{connection.peer}: the login does not end"
        )

    async def _begin(self, connection: PeerConnection, mechanism: str) -> Exchange:
        security = self._security
        try:
            if mechanism == OAUTHBEARER:
                return OAuthBearerClient(await self._token(), security.sasl_extensions)
            assert security.username is not None and security.password is not None
            if mechanism == PLAIN:
                return _Plain(security.username, security.password)
            nonce = text_of_bits(self._entropy.below(1 << NONCE_BITS) | 1 << (NONCE_BITS - 1))
            return ScramClient(
                BY_NAME[mechanism], security.username, security.password, nonce, self._salted
            )
        except ValueError as error:
            raise AuthenticationFailed(
                ErrorCode.SASL_AUTHENTICATION_FAILED, f"{connection.peer}: {error}"
            ) from None

    async def _token(self) -> str:
        """The token of the user's function, or the fixed one. Raises AuthenticationFailed."""
        source = self._security.token
        assert source is not None
        if isinstance(source, str):
            return source
        try:
            found = source()
            if inspect.isawaitable(found):
                found = await found
        except ClientError:
            raise
        except (OSError, ValueError) as error:
            raise AuthenticationFailed(
                ErrorCode.SASL_AUTHENTICATION_FAILED,
                f"no token for SASL/OAUTHBEARER: {error}",
                remedy="check the token provider",
            ) from error
        assert isinstance(found, str)
        return found

    def _remedy(self) -> str:
        if self._security.mechanism == OAUTHBEARER:
            return "get a new token; the broker's log has the reason"
        return _WRONG_PASSWORD
