"""Tokens of OAUTHBEARER for the fuzzer, signed by a key of the node's key set: a node checks
their claims. Except for `valid_token`, at least one claim or the header is invalid.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
import time
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

AUDIENCE, ISSUER = "mqd", "https://issuer.example"
_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
_PUBLIC = _KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
_HEADER = {"alg": "EdDSA", "kid": "k"}
_DEEP = b'{"alg":' * 1_500
_LONG = 11_000


def key_set() -> str:
    """The key set of the node."""
    row = {"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": _encoded(_PUBLIC)}
    return json.dumps({"keys": [row]})


def valid_token(user: str) -> str:
    return _signed(_HEADER, json.dumps(_claims(user)).encode())


def invalid_token(chance: random.Random, user: str) -> str:
    """A token with a signature that is valid, unless its header is what is wrong."""
    if chance.random() < 0.2:
        return _with_wrong_header(chance, user)
    claims = _claims(user)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        key, values = chance.choice(_WRONG)
        value = chance.choice(values)
        if value is _MISSING:
            claims.pop(key, None)
        else:
            claims[key] = value() if callable(value) else value
    return _signed(_HEADER, json.dumps(claims).encode())


def invalid_payload(chance: random.Random) -> str:
    """A signed token whose payload has no claims."""
    payloads = (
        b"",
        b"[]",
        b"{",
        b"null",
        b"1",
        b'"a"',
        b"\xff\xfe",
        b"[" * 2_000,
        b'{"exp":1e400}',
    )
    return _signed(_HEADER, chance.choice(payloads))


_MISSING: Any = object()
_NOT_TIMES: tuple[Any, ...] = (
    *(None, True, "soon", "", [], {}, [1], {"a": 1}),
    *(-1, 1e15, 1e300, 2**70, float("inf"), float("nan")),
)
_WRONG: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("exp", (_MISSING, 0, lambda: time.time() - 3_600, *_NOT_TIMES)),
    ("iat", (_MISSING, lambda: time.time() + 7_200, *_NOT_TIMES)),
    ("nbf", (lambda: time.time() + 1_800, *_NOT_TIMES[1:])),
    ("aud", (_MISSING, None, "other", ["other"], [], {}, [None, 1], [["mqd"]], "MQD", 1)),
    ("iss", (_MISSING, None, "https://other.example", [ISSUER], 1, "")),
    (
        "sub",
        (_MISSING, None, "", " ", 1, True, [], ["alice"], {}, "a" * _LONG, "a\n", "\x00", "\ud800"),
    ),
)
"""Claims, and values each of which makes a token invalid."""


def _claims(user: str) -> dict[str, Any]:
    now = time.time()
    return {"sub": user, "iat": now - 10, "exp": now + 3_600, "aud": AUDIENCE, "iss": ISSUER}


def _with_wrong_header(chance: random.Random, user: str) -> str:
    payload = json.dumps(_claims(user)).encode()
    made: tuple[Callable[[], str], ...] = (
        lambda: _unsigned({"alg": "none"}, payload) + ".",
        lambda: _unsigned({"alg": "none", "kid": "k"}, payload) + "." + _encoded(b"x"),
        lambda: _signed({"alg": "EdDSA", "kid": "other"}, payload),
        lambda: _signed({"alg": "EdDSA", "kid": ["k"]}, payload),
        lambda: _signed({"alg": ["EdDSA"], "kid": "k"}, payload),
        lambda: _signed({"alg": "ES256", "kid": "k"}, payload),
        lambda: _signed({**_HEADER, "crit": ["exp"]}, payload),
        lambda: _signed({**_HEADER, "b64": False}, payload),
        lambda: _with_hmac(payload),
        lambda: _signed(_HEADER, payload)[:-4] + "AAAA",
        lambda: _signed(_HEADER, payload) + ".a",
        lambda: f"{_encoded(_DEEP)}.{_encoded(payload)}.AAAA",
    )
    return chance.choice(made)()


def _with_hmac(payload: bytes) -> str:
    """The public key as the secret of an HMAC: a known attack."""
    text = _unsigned({"alg": "HS256", "kid": "k"}, payload)
    return f"{text}.{_encoded(hmac.digest(_PUBLIC, text.encode(), hashlib.sha256))}"


def _signed(header: dict[str, Any], payload: bytes) -> str:
    text = _unsigned(header, payload)
    return f"{text}.{_encoded(_KEY.sign(text.encode()))}"


def _unsigned(header: dict[str, Any], payload: bytes) -> str:
    return f"{_encoded(json.dumps(header).encode())}.{_encoded(payload)}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
