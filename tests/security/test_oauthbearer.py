"""SASL/OAUTHBEARER: messages, and the checks of a token."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from mqd.security.mechanism import LoginFailed
from mqd.security.oauthbearer import (
    OAuthBearerClient,
    OAuthBearerServer,
    TokenRules,
    VerifiedToken,
    first_message,
    parse_first_message,
)
from mqd.security.tokens import KeySet, UnknownKey, check_token, parse_key_set

NOW = 1_800_000_000
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
CLAIMS = {
    "sub": "alice",
    "iat": NOW - 100,
    "exp": NOW + 60,
    "aud": ["mqd", "x"],
    "iss": "https://i",
}
RULES = TokenRules(audiences=("mqd", "other"), issuer="https://i")


def jwk(algorithm: Any, key: Any, **fields: str) -> dict[str, Any]:
    return {**json.loads(algorithm.to_jwk(key.public_key())), **fields}


JWKS = [
    jwk(RSAAlgorithm, RSA, kid="r", use="sig"),
    jwk(ECAlgorithm, EC, kid="e"),
    jwk(OKPAlgorithm, ED, kid="o", alg="EdDSA"),
]
KEYS = parse_key_set(json.dumps({"keys": JWKS}))


def token(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "r", **changes: Any) -> str:
    claims = {**CLAIMS, **changes}
    claims = {name: value for name, value in claims.items() if value is not ...}
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims, key, algorithm=algorithm, headers=headers)


def check(text: str, rules: TokenRules = RULES, keys: KeySet = KEYS) -> VerifiedToken:
    return check_token(text, keys, rules, NOW * 1000)


def test_valid_tokens() -> None:
    expected = VerifiedToken("alice", (NOW + 60) * 1000)
    assert check(token()) == expected
    assert check(token(algorithm="PS512", kid=None)) == expected
    assert check(token(EC, "ES256", "e")) == expected
    assert check(token(ED, "EdDSA", "o")) == expected
    assert check(token(aud="mqd", nbf=NOW + 29, exp=NOW + 60)) == expected
    assert check(token(exp=NOW - 29)).expires_at_ms == (NOW - 29) * 1000
    assert check(token(email="a@b"), TokenRules(subject_claim="email")).user == "a@b"
    assert check(token(exp=1e14)).expires_at_ms < 2**62


def _unsigned(header: dict[str, Any], **claims: Any) -> str:
    parts = (json.dumps(part).encode() for part in (header, {**CLAIMS, **claims}))
    return ".".join(urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + "."


def invalid_tokens() -> list[tuple[str, str]]:
    """Each with the reason of its refusal."""
    return [
        ("abc", "not a signed JSON Web Token"),
        ("a.b.c", "not a JSON object"),
        (_unsigned({"alg": "none"}), "no signature"),
        (_unsigned({"alg": "RS256", "kid": "r"}), "signature of the token is invalid"),
        (_unsigned({"alg": "RS256", "kid": "r", "crit": ["x"]}), "critical header"),
        (_unsigned({"alg": ["RS256"]}), "invalid 'alg'"),
        (token()[:-8] + "AAAAAAAA", "signature of the token is invalid"),
        (token(rsa.generate_private_key(public_exponent=65537, key_size=2048)), "signature"),
        (token(kid="unknown"), "no key has the id 'unknown'"),
        (token(EC, "ES256", "r"), "no key for the algorithm"),
        (
            token("a secret of at least 32 characters", "HS256", "r"),
            "no key for the algorithm 'HS256'",
        ),
        (token(exp=NOW - 30), "expired 30 s ago"),
        (token(exp=...), "no 'exp'"),
        (token(iat=...), "no 'exp' or no 'iat'"),
        (token(nbf=NOW + 31), "valid only in 31 s"),
        (token(iat=NOW + 61), "expires before it begins"),
        (token(aud="x"), "audience"),
        (token(aud=...), "audience"),
        (token(aud={"mqd": 1}), "audience"),
        (token(iss="https://evil"), "issuer"),
        (token(sub=""), "'sub' of the token is not a user name"),
        (token(sub="a\nb"), "not a user name"),
        (token(sub="a" * 1025), "longer than 1024"),
    ]


def test_invalid_tokens() -> None:
    for text, reason in invalid_tokens():
        with pytest.raises(LoginFailed, match=reason) as caught:
            check(text)
        assert text not in str(caught.value)
    with pytest.raises(UnknownKey):
        check(token(kid="unknown"))


def test_unsigned_tokens_need_an_explicit_option() -> None:
    rules = TokenRules(allows_unsigned=True)
    assert check(_unsigned({"alg": "none"}), rules, KeySet()).user == "alice"
    with pytest.raises(LoginFailed, match="no signature"):
        check(_unsigned({"alg": "none"}) + "AAAA", rules)
    with pytest.raises(LoginFailed, match="'sub'"):
        check(_unsigned({"alg": "none"}, sub=["alice"]), rules)


def test_key_sets() -> None:
    private = json.loads(RSAAlgorithm.to_jwk(RSA))
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "h"}
    rows = [secret, {"kty": "RSA"}, "x", {**private, "use": "enc"}, {**private, "kid": "p"}]
    keys = parse_key_set(json.dumps({"keys": rows}))
    assert len(keys) == 1 and keys.has("p") and not keys.has("h")
    assert check(token(kid="p"), keys=keys).user == "alice"
    for text, reason in [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JWK set"),
        (json.dumps({"keys": [secret]}), "no public key"),
        (json.dumps({"keys": [secret] * 1001}), "more than 1000"),
    ]:
        with pytest.raises(ValueError, match=reason):
            parse_key_set(text)


def test_messages() -> None:
    message = first_message("abc.d-_e.f==", {"traceId": "1 2"}, "a,b=c")
    assert message == b"n,a=a=2Cb=3Dc,\x01auth=Bearer abc.d-_e.f==\x01traceId=1 2\x01\x01"
    assert parse_first_message(message) == ("a,b=c", "abc.d-_e.f==", {"traceId": "1 2"})
    assert parse_first_message(b"n,,\x01auth=bearer  a\x01\x01").token == "a"
    for data in (
        b"",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic a\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"p=x,,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer " + b"a" * 70_000 + b"\x01\x01",
    ):
        with pytest.raises(LoginFailed):
            parse_first_message(data)
    for text, extensions in (("a b", {}), ("a", {"no_name": "x"}), ("a", {"x": "\x01"})):
        with pytest.raises(ValueError):
            first_message(text, extensions)


def test_a_login_and_a_refusal() -> None:
    def checked(text: str, now_ms: int) -> VerifiedToken:
        if text != "good":
            raise LoginFailed("the token expired 7 s ago")
        return VerifiedToken("alice", now_ms + 9)

    server, client = OAuthBearerServer(checked), OAuthBearerClient("good")
    assert client.respond(server.respond(client.first(), 5)) == b""
    assert client.is_complete and server.is_complete
    assert (server.user, server.expires_at_ms) == ("alice", 14)

    server, client = OAuthBearerServer(checked), OAuthBearerClient("bad")
    answer = server.respond(client.first(), 5)
    assert answer == b'{"status":"invalid_token"}'
    assert client.respond(answer) == b"\x01" and not client.is_complete
    with pytest.raises(LoginFailed, match="expired") as caught:
        server.respond(b"\x01", 5)
    assert caught.value.message == '{"status":"invalid_token"}'

    with pytest.raises(LoginFailed, match="authorization id"):
        OAuthBearerServer(checked).respond(first_message("good", {}, "bob"), 5)
