"""The server's side of SASL/PLAIN (RFC 4616), and its users from a JAAS string. A core.
hashed_users.py has users from a file.

The passwords of the users are not kept: at the start, each becomes a hash with a key that exists in
this process only. So a check costs microseconds, and a copy of the table is useless in another
process. An unknown user takes the same steps as a known one.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, Protocol

from mqd.security.mechanism import LoginFailed, PendingResponse

USER_OPTION_PREFIX: Final = "user_"
"""`user_alice="secret"` in a JAAS string is the user alice."""

_TOKEN_BYTES_MAX: Final = 64 * 1024
"""No user of a JAAS string has a longer password."""
_INVALID_CREDENTIALS: Final = "Authentication failed: Invalid username or password"


class SlowCheck(Protocol):
    """A check of a password that takes milliseconds."""

    def run(self) -> bool:
        """Whether the password is right. May run in a thread."""
        ...

    def remember(self) -> None:
        """The password was right: the next check of it is quick."""
        ...


class PlainTable(Protocol):
    """Users and what verifies their passwords."""

    def check(self, user: str, password: str) -> bool | SlowCheck:
        """Whether this is the password of the user."""
        ...


def keyed_hash(key: bytes, user: str, password: str) -> bytes:
    """The hash of a password, with a key of this process."""
    # neither contains NUL: it separates them in a token
    return hmac.digest(key, f"{user}\0{password}".encode("utf-8", "surrogatepass"), sha256)


class PlainUsers:
    """The users of a JAAS string, and the keyed hashes of their passwords."""

    __slots__ = ("_hashes", "_key", "_unknown")

    def __init__(self, passwords: Mapping[str, str], key: bytes) -> None:
        """`key`: at least 16 random bytes."""
        assert len(key) >= 16
        self._key = key
        self._hashes = {
            user: keyed_hash(key, user, password) for user, password in passwords.items()
        }
        self._unknown = hmac.digest(key, b"unknown", sha256)
        """Equals the hash of no password."""

    def __len__(self) -> int:
        return len(self._hashes)

    def check(self, user: str, password: str) -> bool:
        """Whether this is the password of the user."""
        found = keyed_hash(self._key, user, password)
        return hmac.compare_digest(self._hashes.get(user, self._unknown), found)


def users_of(options: Mapping[str, str]) -> dict[str, str]:
    """User names and passwords in the options of a PlainLoginModule."""
    return {
        name.removeprefix(USER_OPTION_PREFIX): password
        for name, password in options.items()
        if name.startswith(USER_OPTION_PREFIX) and len(name) > len(USER_OPTION_PREFIX)
    }


class PlainServer:
    """One login: a single token with the authorization id, the user and the password."""

    __slots__ = ("_users", "expires_at_ms", "is_complete", "user")

    def __init__(self, users: PlainTable) -> None:
        self._users = users
        self.user: str | None = None
        self.is_complete = False
        self.expires_at_ms: int | None = None

    def respond(self, token: bytes, now_ms: int) -> bytes | PendingResponse:
        """Raises LoginFailed with the sentences of Kafka."""
        if len(token) > _TOKEN_BYTES_MAX:
            raise LoginFailed(f"a token of {len(token)} bytes", _INVALID_CREDENTIALS)
        # bytes that are not UTF-8 become U+FFFD, as in Java; no password contains it by chance
        parts = token.decode("utf-8", "replace").split("\0", 3)
        if len(parts) != 3:
            message = f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}"
            raise LoginFailed(message, message)
        authorization_id, self.user, password = parts
        for name, value in (("username", self.user), ("password", password)):
            if not value:
                message = f"Authentication failed: {name} not specified"
                raise LoginFailed(message, message)
        check = self._users.check(self.user, password)
        if isinstance(check, bool):
            return self._conclude(check, authorization_id)

        def conclude(is_right: bool) -> bytes:
            if is_right:
                check.remember()
            return self._conclude(is_right, authorization_id)

        return PendingResponse(check.run, conclude)

    def _conclude(self, is_right: bool, authorization_id: str) -> bytes:
        """Raises LoginFailed."""
        if not is_right:
            raise LoginFailed("unknown user or wrong password", _INVALID_CREDENTIALS)
        if authorization_id not in ("", self.user):
            message = (
                "Authentication failed: Client requested an authorization id that is different "
                "from username"
            )
            raise LoginFailed("the authorization id is not the user", message)
        self.is_complete = True
        return b""


def plain_token(user: str, password: str, authorization_id: str = "") -> bytes:
    """The client's token. Raises ValueError if a part contains NUL."""
    parts = (authorization_id, user, password)
    if any("\0" in part for part in parts):
        raise ValueError("a user name or password contains a NUL character")
    return "\0".join(parts).encode()
