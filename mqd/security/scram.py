"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), without channel binding: the server's side,
the client's side, and new credentials. A core.

As in Kafka, user names and passwords are UTF-8 without SASLprep.

An unknown user gets a fake salt and iterations. They depend on the name and a secret of the
cluster, so they are the same at each attempt and on each node. They look like those of existing
users (scram_shapes.py). The login fails at the proof, as with a wrong password. Messages and time
do not show which users exist. Apache Kafka refuses an unknown user one message earlier.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, MutableMapping
from hashlib import pbkdf2_hmac, sha256
from typing import Final, NamedTuple

from mqd.security.mechanism import SCRAM_SHA_256, SCRAM_SHA_512, LoginFailed
from mqd.security.scram_credentials import ScramCredential, ScramMechanism
from mqd.security.scram_shapes import KAFKA_SALT_BITS, ScramShape, ScramShapes

ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
"""Kafka's bounds. Above the maximum, a login would cost a client more than 10 ms."""
NONCE_BITS: Final = KAFKA_SALT_BITS
"""Bits of nonces and salts, as in Kafka: 26 characters."""
_DEFAULT_SHAPE = ScramShape(ITERATIONS_MIN, 0)
"""Shape of a default credential. Clusters without credentials show it for every user."""
_DIGEST_BITS = 256
MESSAGE_BYTES_MAX: Final = 16 * 1024

HASHES: Final = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}
BY_NAME: Final = {
    SCRAM_SHA_256: ScramMechanism.SHA_256,
    SCRAM_SHA_512: ScramMechanism.SHA_512,
}
NAMES: Final = {mechanism: name for name, mechanism in BY_NAME.items()}

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_NAME = r"(?:[^\x00=,]|=2C|=3D)+"
_NONCE = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = r"(?:,[A-Za-z]+=[^\x00,]+)*"
_BASE64 = r"[A-Za-z0-9+/]+={0,2}"
_CLIENT_FIRST = re.compile(
    rf"(?P<header>[ny],(?:a=(?P<authorization_id>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))"
)
_SERVER_FIRST = re.compile(
    rf"r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[1-9][0-9]{{0,8}}){_EXTENSIONS}"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<without_proof>c=(?P<channel>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS})"
    rf",p=(?P<proof>{_BASE64})"
)
_SERVER_FINAL = re.compile(rf"(?:v=(?P<signature>{_BASE64})|e=(?P<error>[^\x00,]+)){_EXTENSIONS}")


# -- keys


class ScramKeys(NamedTuple):
    """Keys that a password gives with one salt and one number of iterations."""

    client_key: bytes
    stored_key: bytes
    server_key: bytes


def derive_keys(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> ScramKeys:
    """Takes 1 to 20 ms: the cost is in the iterations."""
    salted = pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
    return keys_of_salted_password(mechanism, salted)


def keys_of_salted_password(mechanism: ScramMechanism, salted_password: bytes) -> ScramKeys:
    name = HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    return ScramKeys(
        client_key, _hashed(name, client_key), hmac.digest(salted_password, b"Server Key", name)
    )


def new_credential(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int = ITERATIONS_MIN
) -> ScramCredential:
    """The credential that the cluster stores. Raises ValueError for iterations out of bounds."""
    check_iterations(iterations)
    keys = derive_keys(mechanism, password, salt, iterations)
    return ScramCredential(iterations, salt, keys.stored_key, keys.server_key)


def check_iterations(iterations: int) -> None:
    """Raises ValueError outside of ITERATIONS_MIN to ITERATIONS_MAX."""
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ValueError(f"{iterations} iterations: use {ITERATIONS_MIN} to {ITERATIONS_MAX}")


def text_of_bits(number: int) -> str:
    """A random number as Kafka writes nonces and salts: in base 36."""
    assert number >= 0
    digits = []
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits)) or "0"


def _hashed(name: str, data: bytes) -> bytes:
    return hashlib.new(name, data).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    assert len(one) == len(other)
    size = len(one)
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(size, "big")


# -- messages


def escaped(user: str) -> str:
    """A user name in a message: `=` and `,` are escaped."""
    return user.replace("=", "=3D").replace(",", "=2C")


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _matched(pattern: re.Pattern[str], message: bytes, what: str) -> re.Match[str]:
    """Raises LoginFailed unless the whole message has this form."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise LoginFailed(f"the {what} is longer than {MESSAGE_BYTES_MAX} bytes")
    try:
        found = pattern.fullmatch(message.decode())
    except UnicodeDecodeError:
        raise LoginFailed(f"the {what} is not UTF-8") from None
    if found is None:
        raise LoginFailed(f"the {what} has an invalid format")
    return found


def _decoded(text: str, what: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise LoginFailed(f"the {what} is not Base64") from None


def _encoded(data: bytes) -> str:
    return b64encode(data).decode()


# -- the server


class FakeCredentials:
    """Credentials of users that do not exist."""

    __slots__ = ("_secret", "_shapes")

    def __init__(self, secret: bytes, shapes: Callable[[], ScramShapes]) -> None:
        """`secret`: random bytes, the same on all nodes and after a restart. `shapes()`: those of
        the credentials that exist.
        """
        assert len(secret) >= 16
        self._secret = secret
        self._shapes = shapes

    def of(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        """The same for the same name. It looks like one of the credentials that exist."""
        name = f"{NAMES[mechanism]}\0{user}".encode("utf-8", "surrogatepass")
        digest = hmac.digest(self._secret, name, sha256)
        place = int.from_bytes(hmac.digest(self._secret, b"shape\0" + name, sha256), "big")
        shape = self._shapes().at(mechanism, place, _DIGEST_BITS) or _DEFAULT_SHAPE
        if shape.salt_bytes:
            salt = hashlib.shake_256(digest).digest(shape.salt_bytes)
        else:
            number = int.from_bytes(digest, "big") >> (_DIGEST_BITS - KAFKA_SALT_BITS)
            salt = text_of_bits(number).encode()
        key = digest if mechanism is ScramMechanism.SHA_256 else digest + digest
        return ScramCredential(shape.iterations, salt, key, key)


class ScramServer:
    """One login: the first message of the client, then its proof."""

    __slots__ = (
        "_auth_message",
        "_credential",
        "_credential_of",
        "_fakes",
        "_header",
        "_is_known",
        "_mechanism",
        "_nonce",
        "_server_first",
        "expires_at_ms",
        "is_complete",
        "user",
    )

    def __init__(
        self,
        mechanism: ScramMechanism,
        credential_of: Callable[[str], ScramCredential | None],
        fakes: FakeCredentials,
        nonce: str,
    ) -> None:
        """`nonce`: new and random for each login, of NONCE_BITS bits."""
        assert len(nonce) > 10
        self._mechanism = mechanism
        self._credential_of = credential_of
        self._fakes = fakes
        self._nonce = nonce
        self._header = b""
        self._auth_message = ""
        self._server_first: str | None = None
        self._credential: ScramCredential | None = None
        self._is_known = False
        self.user: str | None = None
        self.is_complete = False
        self.expires_at_ms: int | None = None

    def respond(self, token: bytes, now_ms: int) -> bytes:
        """Raises LoginFailed."""
        assert not self.is_complete
        if self._server_first is None:
            return self._first(token)
        return self._final(token, self._server_first)

    def _first(self, token: bytes) -> bytes:
        message = _matched(_CLIENT_FIRST, token, "first message of the client")
        user = self.user = _unescaped(message["user"])
        # both, whatever the user is: the time must not show whether the user exists
        fake = self._fakes.of(user, self._mechanism)
        stored = self._credential_of(user)
        authorization_id = message["authorization_id"]
        if authorization_id is not None and _unescaped(authorization_id) != user:
            raise LoginFailed(
                "the authorization id is not the user",
                "Authentication failed: Client requested an authorization id that is different "
                "from username",
            )
        if ",tokenauth=true" in message["extensions"].lower():
            raise LoginFailed("delegation tokens are not in this release")
        self._is_known = stored is not None
        self._credential = credential = fake if stored is None else stored
        self._nonce = message["nonce"] + self._nonce
        self._header = message["header"].encode()
        self._server_first = (
            f"r={self._nonce},s={_encoded(credential.salt)},i={credential.iterations}"
        )
        self._auth_message = f"{message['bare']},{self._server_first}"
        return self._server_first.encode()

    def _final(self, token: bytes, server_first: str) -> bytes:
        credential, name = self._credential, HASHES[self._mechanism]
        assert credential is not None
        message = _matched(_CLIENT_FINAL, token, "final message of the client")
        if not hmac.compare_digest(message["nonce"], self._nonce):
            raise LoginFailed("the nonce of the final message is not the one that was sent")
        if _decoded(message["channel"], "channel binding") != self._header:
            raise LoginFailed("the channel binding is not the one of the first message")
        proof = _decoded(message["proof"], "proof")
        auth_message = f"{self._auth_message},{message['without_proof']}".encode()
        signature = hmac.digest(credential.stored_key, auth_message, name)
        if len(proof) != len(signature):
            raise LoginFailed("the proof has a wrong length")
        is_valid = hmac.compare_digest(_hashed(name, _xor(proof, signature)), credential.stored_key)
        server_signature = hmac.digest(credential.server_key, auth_message, name)
        if not (is_valid and self._is_known):
            raise LoginFailed("unknown user or wrong password")
        self.is_complete = True
        return f"v={_encoded(server_signature)}".encode()


# -- the client

SaltedPasswords = MutableMapping[tuple[ScramMechanism, bytes, int], bytes]
"""(mechanism, salt, iterations) -> salted password of one user: a client that connects again need
not compute it again.
"""


class ScramClient:
    """One login. Send `first()`, then the result of `respond` for each response, until
    `is_complete`.
    """

    __slots__ = (
        "_auth_message",
        "_bare",
        "_mechanism",
        "_nonce",
        "_password",
        "_salted",
        "_server_key",
        "is_complete",
    )

    def __init__(
        self,
        mechanism: ScramMechanism,
        user: str,
        password: str,
        nonce: str,
        salted: SaltedPasswords | None = None,
    ) -> None:
        """`nonce`: new and random for each login. `salted`: a cache for this user."""
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._salted: SaltedPasswords = {} if salted is None else salted
        self._bare = f"n={escaped(user)},r={nonce}"
        self._auth_message = b""
        self._server_key: bytes | None = None
        self.is_complete = False

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def respond(self, message: bytes) -> bytes:
        """The next message of the client; empty after the last one. Raises LoginFailed: the server
        sent an invalid message, or did not prove that it knows the user's keys.
        """
        if self._server_key is None:
            return self._final(message)
        self._verify(message, self._server_key)
        return b""

    def _final(self, message: bytes) -> bytes:
        found = _matched(_SERVER_FIRST, message, "first message of the server")
        if not found["nonce"].startswith(self._nonce) or found["nonce"] == self._nonce:
            raise LoginFailed("the server's nonce does not continue the client's")
        iterations = int(found["iterations"])
        try:
            check_iterations(iterations)
        except ValueError as error:
            raise LoginFailed(f"the server requests {error}") from None
        salt = _decoded(found["salt"], "salt")
        key = (self._mechanism, salt, iterations)
        salted = self._salted.get(key)
        name = HASHES[self._mechanism]
        if salted is None:
            salted = pbkdf2_hmac(name, self._password.encode(), salt, iterations)
            self._salted.clear()  # of a former password
            self._salted[key] = salted
        keys = keys_of_salted_password(self._mechanism, salted)
        without_proof = f"c=biws,r={found['nonce']}"  # biws: Base64 of "n,,"
        self._auth_message = f"{self._bare},{message.decode()},{without_proof}".encode()
        signature = hmac.digest(keys.stored_key, self._auth_message, name)
        self._server_key = keys.server_key
        return f"{without_proof},p={_encoded(_xor(keys.client_key, signature))}".encode()

    def _verify(self, message: bytes, server_key: bytes) -> None:
        found = _matched(_SERVER_FINAL, message, "final message of the server")
        if found["error"] is not None:
            raise LoginFailed(f"the server reports {found['error']!r:.100}")
        name = HASHES[self._mechanism]
        expected = hmac.digest(server_key, self._auth_message, name)
        if not hmac.compare_digest(_decoded(found["signature"], "signature"), expected):
            raise LoginFailed("the server does not know the keys of this user")
        self.is_complete = True
