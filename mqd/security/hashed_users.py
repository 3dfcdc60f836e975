"""Users of SASL/PLAIN with salted hashes of their passwords, from a file. A core.

A line of the file is a user and a hash in the format of RFC 5803, as PostgreSQL has it, too:

    alice:SCRAM-SHA-256$16384:SALT$STORED_KEY:SERVER_KEY

Salt and keys are in Base64. Empty lines, and lines that begin with `#`, have no effect.

The check of a password takes milliseconds (PBKDF2), so it is work for a thread. A password that was
right is remembered by a keyed hash: later logins with it take microseconds. An unknown user takes
the same steps as a known one, with as many iterations as some known user has.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Final

from mqd.security.mechanism import SCRAM_SHA_256
from mqd.security.plain import keyed_hash
from mqd.security.scram import (
    ITERATIONS_MAX,
    FakeCredentials,
    check_iterations,
    derive_keys,
    new_credential,
)
from mqd.security.scram_credentials import ScramCredential, ScramMechanism
from mqd.security.scram_shapes import ScramShapes

DEFAULT_ITERATIONS: Final = ITERATIONS_MAX
"""A login with PLAIN costs the node PBKDF2 only once for each password."""
_MECHANISM: Final = ScramMechanism.SHA_256
_SEPARATOR: Final = f":{SCRAM_SHA_256}$"


def line_of(user: str, password: str, salt: bytes, iterations: int = DEFAULT_ITERATIONS) -> str:
    """The line of a user, without its end. Raises ValueError."""
    if not user or user.startswith("#") or user != user.strip() or not user.isprintable():
        raise ValueError(f"the user name {user!r} cannot stand in a file of users")
    if not password or "\0" in password:
        raise ValueError("the password is empty, or contains a NUL character")
    credential = new_credential(_MECHANISM, password, salt, iterations)
    stored, server = _text(credential.stored_key), _text(credential.server_key)
    return f"{user}{_SEPARATOR}{iterations}:{_text(salt)}${stored}:{server}"


def with_line(text: str, line: str) -> str:
    """The file with this line, in place of that of the same user, or at the end."""
    user = line.partition(_SEPARATOR)[0]
    lines = text.splitlines()
    places = [number for number, each in enumerate(lines) if _user_of(each) == user]
    if places:
        lines[places[0]] = line
    else:
        lines.append(line)
    return "".join(f"{each}\n" for each in lines)


def parse_users(text: str) -> dict[str, ScramCredential]:
    """The users of a file. Raises ValueError, which names the line and no hash."""
    found: dict[str, ScramCredential] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user = _user_of(line)
        try:
            if not user:
                raise ValueError
            credential = _credential_of(line.partition(_SEPARATOR)[2])
        except ValueError:
            raise ValueError(
                f"line {number} is not USER{_SEPARATOR}...; write it with `mqd storage "
                "hash-password`"
            ) from None
        if user in found:
            raise ValueError(f"line {number} has the user '{user}' again")
        found[user] = credential
    return found


def _user_of(line: str) -> str:
    user, separator, _ = line.partition(_SEPARATOR)
    return user if separator else ""


def _credential_of(text: str) -> ScramCredential:
    """Raises ValueError."""
    cost, keys = text.strip().split("$")
    iterations, salt = cost.split(":")
    check_iterations(int(iterations))
    stored, server = (b64decode(each, validate=True) for each in keys.split(":"))
    if {len(stored), len(server)} != {32}:
        raise ValueError
    return ScramCredential(int(iterations), b64decode(salt, validate=True), stored, server)


def _text(data: bytes) -> str:
    return b64encode(data).decode()


class HashedUsers:
    """The users of one file. Tables of PLAIN users: see `plain.PlainTable`."""

    __slots__ = ("_fakes", "_key", "_remembered", "_shapes", "_users")

    def __init__(self, key: bytes, secret: bytes) -> None:
        """`key`: random bytes of this process. `secret`: as of FakeCredentials."""
        self._key = key
        self._users: Mapping[str, ScramCredential] = {}
        self._shapes = ScramShapes()
        self._fakes = FakeCredentials(secret, lambda: self._shapes)
        self._remembered: dict[str, bytes] = {}
        """User -> keyed hash of the right password."""

    def __len__(self) -> int:
        return len(self._users)

    def replace(self, users: Mapping[str, ScramCredential]) -> None:
        """The file has other users now. A changed password must be checked again."""
        self._remembered = {
            user: found
            for user, found in self._remembered.items()
            if users.get(user) == self._users[user]
        }
        self._users = users
        self._shapes = ScramShapes()
        for credential in users.values():
            self._shapes.append(_MECHANISM, credential)

    def check(self, user: str, password: str) -> bool | PasswordHashCheck:
        """Whether the password is right: at once if it is remembered."""
        hashed = keyed_hash(self._key, user, password)
        # both, whatever the user is: the time must not show whether the user exists
        fake = self._fakes.of(user, _MECHANISM)
        stored = self._users.get(user)
        if hmac.compare_digest(self._remembered.get(user, b"\0" * len(hashed)), hashed):
            return True
        credential = fake if stored is None else stored
        return PasswordHashCheck(self, user, password, credential, stored is not None)

    def remember(self, user: str, password: str, credential: ScramCredential) -> None:
        """The password was right, unless the file has changed since."""
        if self._users.get(user) is credential:
            self._remembered[user] = keyed_hash(self._key, user, password)


class PasswordHashCheck:
    """One check of a password. It keeps the password until it ends."""

    __slots__ = ("_credential", "_is_known", "_password", "_user", "_users")

    def __init__(
        self,
        users: HashedUsers,
        user: str,
        password: str,
        credential: ScramCredential,
        is_known: bool,
    ) -> None:
        self._users = users
        self._user = user
        self._password = password
        self._credential = credential
        self._is_known = is_known

    def run(self) -> bool:
        """Whether the password is right. Takes milliseconds; may run in a thread."""
        credential = self._credential
        keys = derive_keys(_MECHANISM, self._password, credential.salt, credential.iterations)
        return hmac.compare_digest(keys.stored_key, credential.stored_key) and self._is_known

    def remember(self) -> None:
        """Call it if the password was right."""
        self._users.remember(self._user, self._password, self._credential)
