"""Users of PLAIN in a file: hashes instead of passwords, and nothing that tells users apart."""

from __future__ import annotations

import pytest

from mqd.security.hashed_users import HashedUsers, line_of, parse_users, with_line
from mqd.security.mechanism import LoginFailed, PendingResponse
from mqd.security.plain import PlainServer, plain_token
from mqd.security.scram import derive_keys

ALICE = line_of("alice", "secret", b"salt", 4_096)
BOB = line_of("bob: the \u00fcser", "other", b"more salt", 4_096)


def users_of(*lines: str) -> HashedUsers:
    users = HashedUsers(b"k" * 32, b"secret of the cluster")
    users.replace(parse_users("\n".join(lines)))
    return users


def logs_in(users: HashedUsers, user: str, password: str) -> tuple[bool, bool]:
    """Whether the login succeeds, and whether it needed work."""
    server = PlainServer(users)
    response = server.respond(plain_token(user, password), 0)
    if not isinstance(response, PendingResponse):
        assert response == b""
        return server.is_complete, False
    try:
        assert response.conclude(response.work()) == b""
    except LoginFailed as error:
        assert str(error) == "unknown user or wrong password"
        assert error.message == "Authentication failed: Invalid username or password"
    return server.is_complete, True


def test_a_file_has_no_passwords() -> None:
    assert "secret" not in ALICE and ALICE.startswith("alice:SCRAM-SHA-256$4096:")
    text = f"# comment\n\n{ALICE}\n{BOB}\n"
    assert list(parse_users(text)) == ["alice", "bob: the \u00fcser"]


def test_a_line_is_added_or_replaced() -> None:
    assert with_line("", ALICE) == f"{ALICE}\n"
    text = with_line(f"# comment\n{ALICE}", BOB)
    assert text == f"# comment\n{ALICE}\n{BOB}\n"
    changed = line_of("alice", "new", b"salt", 4_096)
    assert with_line(text, changed) == f"# comment\n{changed}\n{BOB}\n"


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        "alice:secret",
        "alice:SCRAM-SHA-256$",
        ALICE.replace("4096", "4095"),
        ALICE.replace("4096", "many"),
        ALICE[:-4],
        ALICE.removeprefix("alice"),
    ],
)
def test_invalid_lines(line: str) -> None:
    with pytest.raises(ValueError, match="line 2 is not USER") as caught:
        parse_users(f"{BOB}\n{line}")
    assert not line or line not in str(caught.value)


def test_a_user_stands_once() -> None:
    with pytest.raises(ValueError, match="line 2 has the user 'alice' again"):
        parse_users(f"{ALICE}\n{ALICE}")


@pytest.mark.parametrize(
    "user, password", [("", "x"), ("#a", "x"), (" a", "x"), ("a\nb", "x"), ("a", ""), ("a", "\0")]
)
def test_what_a_line_cannot_have(user: str, password: str) -> None:
    with pytest.raises(ValueError):
        line_of(user, password, b"salt", 4_096)


def test_a_right_password_is_checked_once() -> None:
    users = users_of(ALICE, BOB)
    assert logs_in(users, "alice", "secret") == (True, True)
    assert logs_in(users, "alice", "secret") == (True, False)
    assert logs_in(users, "bob: the \u00fcser", "other") == (True, True)
    for user, password in (("alice", "wrong"), ("alice", "secret "), ("nobody", "secret")):
        for _ in range(2):
            assert logs_in(users, user, password) == (False, True)


def test_a_changed_password_is_checked_again() -> None:
    users = users_of(ALICE, BOB)
    assert logs_in(users, "alice", "secret") == logs_in(users, "bob: the \u00fcser", "other")
    users.replace(parse_users(f"{line_of('alice', 'new', b'salt', 4_096)}\n{BOB}"))
    assert logs_in(users, "alice", "secret") == (False, True)
    assert logs_in(users, "alice", "new") == (True, True)
    assert logs_in(users, "bob: the \u00fcser", "other") == (True, False)
    users.replace({})
    assert logs_in(users, "alice", "new") == (False, True)


def test_a_change_during_a_check() -> None:
    users = users_of(ALICE)
    server = PlainServer(users)
    response = server.respond(plain_token("alice", "secret"), 0)
    assert isinstance(response, PendingResponse)
    is_right = response.work()
    users.replace({})
    response.conclude(is_right)
    assert logs_in(users, "alice", "secret") == (False, True), "not remembered"


def test_unknown_users_take_as_many_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a check is that of PBKDF2."""
    taken: list[int] = []
    derive = derive_keys

    def counted(mechanism: object, password: str, salt: bytes, iterations: int) -> object:
        taken.append(iterations)
        return derive(mechanism, password, salt, 4_096)  # type: ignore[arg-type]

    monkeypatch.setattr("mqd.security.hashed_users.derive_keys", counted)
    users = users_of(line_of("alice", "secret", b"salt", 8_192))
    for user in ("alice", "nobody", "carol"):
        logs_in(users, user, "wrong")
    assert taken == [8_192, 8_192, 8_192]
