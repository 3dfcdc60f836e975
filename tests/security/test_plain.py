"""SASL/PLAIN: Kafka's sentences, and a table without passwords."""

from __future__ import annotations

import pytest

from mqd.security.mechanism import LoginFailed
from mqd.security.plain import PlainServer, PlainUsers, plain_token

USERS = PlainUsers({"alice": "secret", "ünal": "päss", "empty": ""}, b"k" * 32)


@pytest.mark.parametrize("user, password", [("alice", "secret"), ("ünal", "päss")])
@pytest.mark.parametrize("authorizes_itself", [False, True])
def test_a_right_password(user: str, password: str, authorizes_itself: bool) -> None:
    server = PlainServer(USERS)
    token = plain_token(user, password, user if authorizes_itself else "")
    assert server.respond(token, 0) == b""
    assert (server.is_complete, server.user, server.expires_at_ms) == (True, user, None)


INVALID = "Authentication failed: Invalid username or password"


REFUSALS = [
    (b"\0alice\0wrong", INVALID),
    (b"\0nobody\0secret", INVALID),
    (b"\0alice\0secret ", INVALID),
    (b"\0alice\0\xff\xfe", INVALID),
    (b"bob\0alice\0secret", "Authentication failed: Client requested an authorization id that"),
    (b"\0\0secret", "Authentication failed: username not specified"),
    (b"\0empty\0", "Authentication failed: password not specified"),
    (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
    (b"alice\0secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
    (b"\0alice\0secret\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
    (b"\0alice\0a\0b\0c", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
]


def test_refusals() -> None:
    for token, message in REFUSALS:
        server = PlainServer(USERS)
        with pytest.raises(LoginFailed) as caught:
            server.respond(token, 0)
        assert caught.value.message is not None
        assert caught.value.message.startswith(message), token
        assert not server.is_complete


def test_nothing_keeps_a_password() -> None:
    assert b"secret" not in b"".join(USERS._hashes.values())
    assert PlainUsers({"alice": "secret"}, b"x" * 32)._hashes["alice"] != USERS._hashes["alice"]
    with pytest.raises(ValueError, match="NUL"):
        plain_token("a\0b", "secret")
