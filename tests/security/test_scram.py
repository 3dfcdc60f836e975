"""SCRAM: the vectors of the RFCs, another implementation, and what an attacker can see."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable

import pytest
import scramp

from mqd.security.mechanism import LoginFailed
from mqd.security.scram import (
    BY_NAME,
    FakeCredentials,
    ScramClient,
    ScramServer,
    escaped,
    new_credential,
    text_of_bits,
)
from mqd.security.scram_credentials import ScramCredential, ScramMechanism
from mqd.security.scram_shapes import ScramShapes

FAKES = FakeCredentials(b"secret of the cluster", ScramShapes)
"""The fakes of a cluster without credentials."""
SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
NONCE = "server-nonce-1234567"


def server_of(
    mechanism: ScramMechanism, users: dict[str, ScramCredential], nonce: str = NONCE
) -> ScramServer:
    return ScramServer(mechanism, users.get, FAKES, nonce)


def test_the_vector_of_rfc_7677() -> None:
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    users = {"user": new_credential(SHA_256, "pencil", salt)}
    server = server_of(SHA_256, users, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    client = ScramClient(SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    messages = [client.first()]
    messages.append(server.respond(messages[-1], 0))
    messages.append(client.respond(messages[-1]))
    messages.append(server.respond(messages[-1], 0))
    assert messages == [
        b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ]
    assert client.respond(messages[-1]) == b""
    assert client.is_complete and server.is_complete and server.user == "user"


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("user, password", [("alice", "secret"), ("a=b,c", "p=,ä"), ("ünal", "x")])
def test_both_sides_agree_with_another_library(name: str, user: str, password: str) -> None:
    mechanism, salt = BY_NAME[name], b"salt of this user"
    users = {user: new_credential(mechanism, password, salt)}
    other = scramp.ScramClient([name], user, password)
    server = server_of(mechanism, users)
    first = server.respond(other.get_client_first().encode(), 0)
    other.set_server_first(first.decode())
    other.set_server_final(server.respond(other.get_client_final().encode(), 0).decode())
    assert server.is_complete

    made = scramp.ScramMechanism(name)
    auth = made.make_auth_info(password, iteration_count=4096, salt=salt)
    theirs = made.make_server(lambda _: auth)
    client = ScramClient(mechanism, user, password, "client-nonce")
    theirs.set_client_first(client.first().decode())
    theirs.set_client_final(client.respond(theirs.get_server_first().encode()).decode())
    client.respond(theirs.get_server_final().encode())
    assert client.is_complete


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(LoginFailed) as caught:
        act()
    assert caught.value.message is None or "authorization id" in caught.value.message
    return str(caught.value)


def test_an_unknown_user_looks_like_a_known_one() -> None:
    credential = new_credential(SHA_256, "secret", text_of_bits(7**46).encode())
    users = {"alice": credential}

    def attempt(user: str) -> tuple[str, str]:
        server = server_of(SHA_256, users)
        client = ScramClient(SHA_256, user, "wrong", "client-nonce")
        first = server.respond(client.first(), 0)
        final = client.respond(first)
        return first.decode(), refusal(lambda: server.respond(final, 0))

    known, unknown, again = attempt("alice"), attempt("bob"), attempt("bob")
    assert known[1] == unknown[1] == "unknown user or wrong password"
    assert unknown == again, "the salt would change with each attempt"
    assert len(known[0]) == len(unknown[0])
    assert attempt("carol")[0] != unknown[0]
    other = FakeCredentials(b"secret of another cluster", ScramShapes)
    assert other.of("bob", SHA_256).salt != FAKES.of("bob", SHA_256).salt


INVALID_FIRST = [
    b"",
    b"n,,n=alice",
    b"n,,n=,r=abc",
    b"n,,n=alice,r=",
    b"p=tls-unique,,n=alice,r=abc",
    b"n,a=bob,n=alice,r=abc",
    b"n,,m=ext,n=alice,r=abc",
    b"n,,n=al\0ice,r=abc",
    b"n,,n=al=41ice,r=abc",
    b"n,,n=alice,r=abc\n",
    b"\xff\xfe,n=alice,r=abc",
    b"n,,n=alice,r=" + b"a" * 20_000,
]


def test_invalid_first_messages() -> None:
    users = {"alice": new_credential(SHA_256, "secret", b"salt")}
    for message in INVALID_FIRST:
        server = server_of(SHA_256, users)
        with pytest.raises(LoginFailed):
            server.respond(message, 0)


CHANGES: list[tuple[Callable[[str], str], str]] = [
    (lambda text: text.replace("r=abc", "r=abd"), "nonce"),
    (lambda text: text.replace(NONCE, "server-nonce-1234568"), "nonce"),
    (lambda text: text.replace("c=biws", "c=eSws"), "channel binding"),
    (lambda text: text.replace("p=", "p=AAAA"), "length"),
    (lambda text: text.replace("c=", "x=y,c="), "invalid format"),
    (lambda text: text.partition(",p=")[0], "invalid format"),
    (lambda text: text.partition(",p=")[0] + ",p=", "invalid format"),
    (lambda text: text + "=====", "invalid format"),
    (lambda text: text.partition(",p=")[0] + ",p=AAAAA", "not Base64"),
    (lambda text: text.partition(",p=")[0] + ",p=" + "A" * 43 + "=", "wrong password"),
]


def test_invalid_final_messages() -> None:
    credential = new_credential(SHA_256, "secret", b"salt")
    for change, reason in CHANGES:
        server = server_of(SHA_256, {"alice": credential})
        client = ScramClient(SHA_256, "alice", "secret", "abc")
        final = client.respond(server.respond(client.first(), 0)).decode()
        with pytest.raises(LoginFailed, match=reason):
            server.respond(change(final).encode(), 0)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"r=other,s=c2FsdA==,i=4096", "nonce"),
        (b"r=abc,s=c2FsdA==,i=4096", "nonce"),
        (b"r=abcdef,s=c2FsdA==,i=4095", "4095 iterations"),
        (b"r=abcdef,s=c2FsdA==,i=999999999", "999999999 iterations"),
        (b"r=abcdef,s=c2FsdA==", "invalid format"),
        (b"e=unknown-user", "invalid format"),
    ],
)
def test_a_client_refuses_a_false_server(message: bytes, reason: str) -> None:
    client = ScramClient(SHA_256, "alice", "secret", "abc")
    assert reason in refusal(lambda: client.respond(message))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"v=" + b"A" * 43 + b"=", "does not know the keys"),
        (b"e=invalid-proof", "invalid-proof"),
        (b"", "invalid format"),
    ],
)
def test_a_client_refuses_a_false_proof(message: bytes, reason: str) -> None:
    client = ScramClient(SHA_512, "alice", "secret", "abc")
    client.respond(b"r=abcdef,s=c2FsdA==,i=4096")
    assert reason in refusal(lambda: client.respond(message))
    assert not client.is_complete


def test_names_nonces_and_the_cache() -> None:
    assert escaped("a=b,c") == "a=3Db=2Cc"
    assert text_of_bits(0) == "0" and int(text_of_bits(2**130 - 1), 36) == 2**130 - 1
    salted: dict[tuple[ScramMechanism, bytes, int], bytes] = {}
    for _ in range(2):
        ScramClient(SHA_256, "a", "b", "abc", salted).respond(b"r=abcdef,s=c2FsdA==,i=4096")
    assert len(salted) == 1
    with pytest.raises(ValueError, match="16385 iterations: use 4096 to 16384"):
        new_credential(SHA_256, "x", b"salt", 16_385)
