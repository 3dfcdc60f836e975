"""SASL/OAUTHBEARER (RFC 7628): the client's first message, and both sides of a login. A core.

`tokens.py` checks the token itself. If it is invalid, the server sends a JSON document. The client
responds with one byte, 0x01. Only then does the login fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from mqd.security.mechanism import LoginFailed
from mqd.security.scram import escaped

SEPARATOR: Final = "\x01"
TOKEN_BYTES_MAX: Final = 16 * 1024
"""A token of this size takes 2 ms to check. Kafka bounds only the whole message."""
_PAIRS_MAX = 32
_DUMMY_CLIENT_RESPONSE: Final = b"\x01"
"""What a client sends after an invalid token (RFC 7628, section 3.2.3)."""
_INVALID_TOKEN: Final = b'{"status":"invalid_token"}'

_MESSAGE = re.compile(
    "[ny],(?:a=(?P<authorization_id>(?:[^\x00=,\x01]|=2C|=3D)+))?,\x01"
    "(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must contain, from `sasl.oauthbearer.*`."""

    audiences: tuple[str, ...] = ()
    """The token must name one of them. Empty: any."""
    issuer: str | None = None
    subject_claim: str = "sub"
    """The claim with the user's name."""
    skew_seconds: int = 30
    """Tolerated difference of the clocks of this node and the provider."""
    allows_unsigned: bool = False
    """Accept tokens without a signature. For tests only: anyone can write one."""


class VerifiedToken(NamedTuple):
    """The user and the expiry of a valid token."""

    user: str
    expires_at_ms: int
    """Milliseconds since the Unix epoch."""


class FirstMessage(NamedTuple):
    """The first message of a client."""

    authorization_id: str
    token: str
    extensions: Mapping[str, str]


def first_message(
    token: str, extensions: Mapping[str, str] | None = None, authorization_id: str = ""
) -> bytes:
    """The client's first message. Raises ValueError for a token or an extension that it cannot
    contain.
    """
    identity = f"a={escaped(authorization_id)}" if authorization_id else ""
    pairs = [f"auth=Bearer {token}", *(f"{k}={v}" for k, v in (extensions or {}).items())]
    text = f"n,{identity},{SEPARATOR}{SEPARATOR.join(pairs)}{SEPARATOR}{SEPARATOR}"
    if not _AUTH.fullmatch(f"Bearer {token}"):
        raise ValueError("the token has characters that a bearer token cannot have")
    if not _MESSAGE.fullmatch(text):
        raise ValueError("an extension has a name or a value that SASL/OAUTHBEARER cannot send")
    return text.encode()


def parse_first_message(data: bytes) -> FirstMessage:
    """Raises LoginFailed."""
    if len(data) > 2 * TOKEN_BYTES_MAX or data.count(b"\x01") > _PAIRS_MAX:
        raise LoginFailed("the first message of the client is too long")
    try:
        found = _MESSAGE.fullmatch(data.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise LoginFailed("the first message of the client has an invalid format")
    pairs: dict[str, str] = {}
    for pair in filter(None, found["pairs"].split(SEPARATOR)):
        key, _, value = pair.partition("=")
        pairs[key] = value
    auth = _AUTH.fullmatch(pairs.pop("auth", ""))
    if auth is None or auth["scheme"].lower() != "bearer":
        raise LoginFailed("the first message of the client has no bearer token")
    if len(auth["token"]) > TOKEN_BYTES_MAX:
        raise LoginFailed(f"the token is longer than {TOKEN_BYTES_MAX} bytes")
    identity = (found["authorization_id"] or "").replace("=2C", ",").replace("=3D", "=")
    return FirstMessage(identity, auth["token"], pairs)


class OAuthBearerServer:
    """One login."""

    __slots__ = ("_check", "_refusal", "expires_at_ms", "is_complete", "user")

    def __init__(self, check: Callable[[str, int], VerifiedToken]) -> None:
        """`check(token, now_ms)` raises LoginFailed for an invalid token."""
        self._check = check
        self._refusal: LoginFailed | None = None
        self.user: str | None = None
        self.is_complete = False
        self.expires_at_ms: int | None = None

    def respond(self, token: bytes, now_ms: int) -> bytes:
        """Raises LoginFailed."""
        if self._refusal is not None and token == _DUMMY_CLIENT_RESPONSE:
            raise LoginFailed(str(self._refusal), _INVALID_TOKEN.decode())
        message = parse_first_message(token)
        try:
            verified = self._check(message.token, now_ms)
        except LoginFailed as error:
            self._refusal = error
            return _INVALID_TOKEN
        self.user = verified.user
        if message.authorization_id not in ("", verified.user):
            raise LoginFailed(
                "the authorization id is not the user of the token",
                "Authentication failed: Client requested an authorization id that is different "
                "from the token's principal name",
            )
        self.expires_at_ms = verified.expires_at_ms
        self.is_complete = True
        return b""


class OAuthBearerClient:
    """One login of a client. Send `first()`, then the results of `respond`, until `is_complete`."""

    __slots__ = ("_first", "is_complete")

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        """Raises ValueError, see `first_message`."""
        self._first = first_message(token, extensions)
        self.is_complete = False

    def first(self) -> bytes:
        return self._first

    def respond(self, message: bytes) -> bytes:
        """Empty after success. After a refusal, the byte that ends the login."""
        if message:
            return _DUMMY_CLIENT_RESPONSE
        self.is_complete = True
        return b""
