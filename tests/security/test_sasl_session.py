"""The authentication of one connection, as a conversation."""

from __future__ import annotations

import math

import pytest

from mqd.errors import ErrorCode
from mqd.security.mechanism import LoginFailed, PendingResponse
from mqd.security.principal import Principal
from mqd.security.sasl_session import TRANSITIONS, Event, SaslSession, ServerToken, State


class Mechanism:
    """The token names the user; "more" asks for another one, "no" fails."""

    def __init__(self, expires_at_ms: int | None = None) -> None:
        self.user: str | None = None
        self.is_complete = False
        self.expires_at_ms = expires_at_ms

    def respond(self, token: bytes, now_ms: int) -> bytes | PendingResponse:
        if token == b"slow":
            return PendingResponse(lambda: True, self._conclude)
        if token == b"no":
            raise LoginFailed("wrong password")
        if token != b"more":
            self.user, self.is_complete = token.decode(), True
        return b"response"

    def _conclude(self, is_right: bool) -> bytes:
        if not is_right:
            raise LoginFailed("wrong password")
        self.user, self.is_complete = "alice", True
        return b"later"


def session(
    max_reauth_ms: int = 0, expires_at_ms: int | None = None, *, version: int = 1
) -> SaslSession:
    made = SaslSession(
        ("PLAIN", "SCRAM-SHA-256"), lambda _: Mechanism(expires_at_ms), {"PLAIN": max_reauth_ms}
    )
    made.on_api_versions()
    assert made.on_handshake("PLAIN", version, 0.0) == ErrorCode.NONE
    return made


def lifetime_ms_of(server_token: ServerToken | PendingResponse) -> int:
    assert isinstance(server_token, ServerToken)
    return server_token.session_lifetime_ms


def test_the_table_has_every_state() -> None:
    assert TRANSITIONS.keys() == set(State)
    assert {event for events in TRANSITIONS.values() for event in events} == set(Event)


def test_a_login() -> None:
    made = session()
    assert made.expects_token and not made.is_bare
    assert made.on_token(b"more", 1.0, 1_000) == ServerToken(b"response", 0)
    assert (made.principal, made.doing) == (None, "authentication")
    assert made.on_token(b"alice", 1.0, 1_000) == ServerToken(b"response", 0)
    assert made.state is State.COMPLETE
    assert made.principal == Principal("User", "alice")
    assert made.expires_at == math.inf and not made.may_reauthenticate(100.0)


def test_a_token_that_needs_work() -> None:
    made = session(5_000)
    pending = made.on_token(b"slow", 1.0, 1_000)
    assert isinstance(pending, PendingResponse) and pending.work()
    assert (made.state, made.principal) == (State.AUTHENTICATE, None)
    assert made.on_work_done(pending, True, 2.0, 2_000) == ServerToken(b"later", 5_000)
    assert made.state is State.COMPLETE and made.expires_at == 7.0
    assert made.principal == Principal("User", "alice")
    made = session()
    pending = made.on_token(b"slow", 1.0, 1_000)
    assert isinstance(pending, PendingResponse)
    with pytest.raises(LoginFailed):
        made.on_work_done(pending, False, 2.0, 2_000)
    assert (made.state, made.principal) == (State.FAILED, None)


def test_refusals() -> None:
    made = SaslSession(("PLAIN",), lambda _: Mechanism(), {})
    assert made.on_handshake("GSSAPI", 1, 0.0) == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert made.state is State.FAILED
    made = session(version=0)
    assert made.is_bare
    with pytest.raises(LoginFailed) as caught:
        made.on_token(b"no", 1.0, 1_000)
    assert made.state is State.FAILED
    assert made.message_for_client(caught.value) == (
        "Authentication failed during authentication due to invalid credentials with SASL "
        "mechanism PLAIN"
    )
    assert made.message_for_client(LoginFailed("x", "Kafka's sentence")) == "Kafka's sentence"
    with pytest.raises(AssertionError):
        made.on_token(b"alice", 1.0, 1_000)


@pytest.mark.parametrize(
    ("max_reauth_ms", "expires_at_ms", "lifetime_ms"),
    [(5_000, None, 5_000), (0, 4_000, 3_000), (2_000, 4_000, 2_000), (9_000, 4_000, 3_000)],
)
def test_the_lifetime_of_a_session(
    max_reauth_ms: int, expires_at_ms: int | None, lifetime_ms: int
) -> None:
    made = session(max_reauth_ms, expires_at_ms)
    assert lifetime_ms_of(made.on_token(b"alice", 10.0, 1_000)) == lifetime_ms
    assert made.expires_at == 10.0 + lifetime_ms / 1000


def test_an_expired_credential_ends_at_once() -> None:
    made = session(0, 500)
    assert lifetime_ms_of(made.on_token(b"alice", 10.0, 1_000)) == 0
    assert made.expires_at == 10.0


def test_re_authentication() -> None:
    made = session(5_000)
    made.on_token(b"alice", 10.0, 10_000)
    assert made.may_reauthenticate(12.0)
    assert made.on_handshake("PLAIN", 1, 12.0) == ErrorCode.NONE
    assert made.principal == Principal("User", "alice"), "it stays until the end"
    assert made.doing == "re-authentication"
    assert lifetime_ms_of(made.on_token(b"alice", 12.5, 12_500)) == 5_000
    assert made.expires_at == 17.5
    assert not made.may_reauthenticate(12.9) and made.may_reauthenticate(13.0)

    made.on_handshake("PLAIN", 1, 14.0)
    with pytest.raises(LoginFailed) as caught:
        made.on_token(b"mallory", 14.0, 14_000)
    assert made.message_for_client(caught.value) == (
        "Cannot change principals during re-authentication from User.alice: User.mallory"
    )
    assert made.state is State.FAILED and made.principal == Principal("User", "alice")


def test_re_authentication_with_another_mechanism() -> None:
    made = session(5_000)
    made.on_token(b"alice", 10.0, 10_000)
    assert made.on_handshake("SCRAM-SHA-256", 1, 12.0) == ErrorCode.NONE, "as in Kafka"
    with pytest.raises(LoginFailed, match="another mechanism"):
        made.on_token(b"alice", 12.0, 12_000)
    assert made.state is State.FAILED
