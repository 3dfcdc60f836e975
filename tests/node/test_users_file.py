"""The file with users of PLAIN: read at the start and after changes; its mode is checked."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mqd.__main__ import FAILURE, OK, main
from mqd.config import StartError
from mqd.node.users_file import UsersFile
from mqd.security.hashed_users import HashedUsers, line_of, parse_users
from mqd.security.scram_credentials import ScramCredential

LINES = [line_of(user, "secret", b"salt", 4_096) for user in ("alice", "bob")]
Users = Mapping[str, ScramCredential]


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_it_is_read_again_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path, found = written(tmp_path / "users", LINES[0]), list[Users]()
    file = UsersFile("SASL", path, found.append)
    file.check(is_forced=False)
    assert [list(users) for users in found] == [["alice"]]
    file.check(is_forced=True)
    assert len(found) == 2
    written(path, "\n".join(LINES))
    file.check(is_forced=False)
    assert list(found[-1]) == ["alice", "bob"]
    assert "users loaded listener=SASL users=2" in caplog.text
    written(path, "nonsense")
    file.check(is_forced=False)
    assert len(found) == 3
    assert "users not loaded, the old ones stay" in caplog.text and "line 1 is not" in caplog.text
    path.unlink()
    file.check(is_forced=False)
    assert len(found) == 3 and "cannot be read" in caplog.text


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_others_must_not_change_it(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "users", LINES[0], mode)
    with pytest.raises(StartError, match=r"can be changed by users other than its owner.*chmod"):
        UsersFile("SASL", path, lambda _: None)


def test_others_should_not_read_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = UsersFile("SASL", written(tmp_path / "users", LINES[0], 0o640), lambda _: None)
    file.warn(datetime.now(UTC))
    assert "users other than the owner can read the hashes" in caplog.text


def test_a_start_needs_a_valid_file(tmp_path: Path) -> None:
    for path, text in (
        (tmp_path / "missing", "cannot be read"),
        (written(tmp_path / "users", "nonsense"), "is invalid: line 1"),
    ):
        with pytest.raises(StartError, match=text):
            UsersFile("SASL", path, lambda _: None)


def test_the_command_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, found = tmp_path / "users", list[Users]()
    command = ["storage", "hash-password", "--file", str(path)]
    for user, password in (("alice", "secret"), ("bob", "other"), ("alice", "new")):
        monkeypatch.setenv("MQD_USER_PASSWORD", password)
        assert main([*command, user, "--iterations", "4096"]) == OK
    assert path.stat().st_mode & 0o777 == 0o600
    UsersFile("SASL", path, found.append)
    (users,) = found
    assert list(users) == ["alice", "bob"]
    checked = HashedUsers(b"k" * 32, b"secret of the cluster")
    checked.replace(users)
    for password, is_right in (("secret", False), ("new", True)):
        check = checked.check("alice", password)
        assert not isinstance(check, bool) and check.run() == is_right
    assert main(["storage", "hash-password", "carol"]) == OK
    assert parse_users(capsys.readouterr().out.splitlines()[-1]).keys() == {"carol"}
    assert main([*command, "dave", "--iterations", "1"]) == FAILURE
    assert "use 4096 to 16384" in capsys.readouterr().err
