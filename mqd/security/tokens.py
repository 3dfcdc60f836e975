"""JSON Web Tokens as credentials of SASL/OAUTHBEARER: key sets, and the checks of a token. A core:
PyJWT checks the signature, and the time comes in.

Algorithms are pinned by the type of the key: RSA keys verify RS* and PS*, EC keys ES* of their
curve, Ed25519 keys EdDSA. So an attacker cannot choose "none", or use a public key as the secret of
an HMAC. Claims are checked as in Kafka: `exp` and `iat` are required. Audience and issuer are
required if they are configured. The subject must not be empty.

Import this file only where OAUTHBEARER is in use: PyJWT and cryptography take 50 ms to load.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import jwt

from mqd.security.mechanism import LoginFailed
from mqd.security.oauthbearer import TokenRules, VerifiedToken

KEYS_MAX: Final = 1_000
"""Keys of one set."""
_KEYS_TRIED_MAX = 4
"""Keys that are tried for a token that does not name its key: each takes 0.05 to 1 ms."""
_USER_CHARACTERS_MAX = 1_024
_LIFETIME_MS_MAX = 10 * 366 * 24 * 3_600_000
_ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA",),
}
_JWS = jwt.PyJWS()


class Key(NamedTuple):
    """A public key of a set."""

    id: str | None
    algorithms: tuple[str, ...]
    key: Any
    """As PyJWT uses it."""


class KeySet:
    """The keys that verify tokens (RFC 7517)."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def candidates(self, key_id: str | None, algorithm: str) -> list[Key]:
        """The keys that may have signed a token."""
        return [
            key
            for key in self._keys
            if algorithm in key.algorithms and (key_id is None or key.id == key_id)
        ]

    def has(self, key_id: str) -> bool:
        return any(key.id == key_id for key in self._keys)


def parse_key_set(text: str | bytes) -> KeySet:
    """A JWK set. Skips keys that are secret, not for signatures, or of an unknown type. Raises
    ValueError if it is not a JWK set, or has no usable key.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    rows = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise ValueError('it is not a JWK set: it has no list "keys"')
    if len(rows) > KEYS_MAX:
        raise ValueError(f"it has {len(rows)} keys, more than {KEYS_MAX}")
    found = [key for row in rows if isinstance(row, dict) and (key := _key(row)) is not None]
    if not found:
        raise ValueError("it has no public key that can verify tokens")
    return KeySet(found)


def _key(row: dict[str, Any]) -> Key | None:
    kind = "RSA" if row.get("kty") == "RSA" else row.get("crv")
    algorithms = _ALGORITHMS.get(kind, ()) if isinstance(kind, str) else ()
    if "alg" in row:
        algorithms = tuple(each for each in algorithms if each == row["alg"])
    key_id = row.get("kid")
    if not algorithms or row.get("use", "sig") != "sig" or not isinstance(key_id, str | None):
        return None
    try:
        key = jwt.PyJWK.from_dict(row, algorithm=algorithms[0]).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    public = getattr(key, "public_key", None)
    return Key(key_id, algorithms, key if public is None else public())


class UnknownKey(LoginFailed):
    """The token names a key that the set lacks: the set may be old."""


def check_token(token: str, keys: KeySet, rules: TokenRules, now_ms: int) -> VerifiedToken:
    """The user and the expiry of a valid token. Raises LoginFailed, UnknownKey where a newer key
    set may help. Messages contain neither the token nor its signature.
    """
    parts = token.split(".")
    if len(parts) != 3:
        raise LoginFailed("the token is not a signed JSON Web Token")
    header = _json_of(parts[0], "header")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if "crit" in header or "b64" in header:
        raise LoginFailed("the token has critical header fields, which mqd does not know")
    if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
        raise LoginFailed("the header of the token has an invalid 'alg' or 'kid'")
    if algorithm == "none":
        if not rules.allows_unsigned or parts[2]:
            raise LoginFailed("the token has no signature")
    else:
        _check_signature(token, algorithm, key_id, keys)
    return _check_claims(_json_of(parts[1], "payload"), rules, now_ms)


def _check_signature(token: str, algorithm: str, key_id: str | None, keys: KeySet) -> None:
    candidates = keys.candidates(key_id, algorithm)
    if not candidates:
        if key_id is not None and not keys.has(key_id):
            raise UnknownKey(f"no key has the id {key_id!r:.80} of the token")
        raise LoginFailed(f"no key for the algorithm {algorithm!r:.20} of the token")
    for key in candidates[:_KEYS_TRIED_MAX]:
        try:
            _JWS.decode(token, key.key, algorithms=[algorithm])
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        return
    raise LoginFailed("the signature of the token is invalid")


def _json_of(part: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise LoginFailed(f"the {what} of the token is not a JSON object")
    return found


def _check_claims(claims: dict[str, Any], rules: TokenRules, now_ms: int) -> VerifiedToken:
    now, skew = now_ms / 1000, rules.skew_seconds
    expires, issued = _time(claims, "exp"), _time(claims, "iat")
    if expires is None or issued is None:
        raise LoginFailed("the token has no 'exp' or no 'iat'")
    if now - skew >= expires:
        raise LoginFailed(f"the token expired {now - expires:.0f} s ago")
    not_before = _time(claims, "nbf")
    if not_before is not None and now + skew < not_before:
        raise LoginFailed(f"the token is valid only in {not_before - now:.0f} s ('nbf')")
    if issued > expires or (not_before is not None and not_before > expires):
        raise LoginFailed("the token expires before it begins")
    audience = claims.get("aud", [])
    named = audience if isinstance(audience, list) else [audience]
    if rules.audiences and not any(each in rules.audiences for each in named):
        raise LoginFailed("the audience of the token is not sasl.oauthbearer.expected.audience")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise LoginFailed("the issuer of the token is not sasl.oauthbearer.expected.issuer")
    user = claims.get(rules.subject_claim)
    if not isinstance(user, str) or not user.strip() or not user.isprintable():
        raise LoginFailed(f"the claim {rules.subject_claim!r} of the token is not a user name")
    if len(user) > _USER_CHARACTERS_MAX:
        raise LoginFailed(f"the user name is longer than {_USER_CHARACTERS_MAX} characters")
    expires_at_ms = min(int(expires * 1000), now_ms + _LIFETIME_MS_MAX)
    return VerifiedToken(user, expires_at_ms)


def _time(claims: dict[str, Any], name: str) -> float | None:
    """Seconds since the Unix epoch. Raises LoginFailed if it is no number."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise LoginFailed(f"the claim {name!r} of the token is not a time")
    return float(value)
