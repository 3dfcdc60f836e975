"""Users that an operator sets before the first start of a cluster."""

from __future__ import annotations

import stat
from pathlib import Path
from uuid import UUID

import pytest

from mqd.__main__ import FAILURE, OK, main
from mqd.config import StartError
from mqd.controller.brokers import Register, decide_register
from mqd.io.disk import OsDisk
from mqd.log.disk import last_registration
from mqd.node.first_users import NAME, add_first_user, load_first_users, on_registered, records_of
from mqd.security.scram import derive_keys
from mqd.security.scram_credentials import ScramMechanism
from mqd.types import NodeId
from tests.controller.cluster import CLUSTER, Replica, with_brokers

ALICE = ("alice", ScramMechanism.SHA_256)


def add(directory: Path, *arguments: str) -> int:
    return main(["storage", "add-user", "alice", "--data", str(directory), *arguments])


def register(replica: Replica, directory: Path, node_id: int, incarnation: int) -> None:
    users = records_of(load_first_users(OsDisk(), directory / NAME))
    op = Register(
        NodeId(node_id), CLUSTER, UUID(int=incarnation), "h", 9092, None, first_users=users
    )
    replica.run(decide_register, op)


def test_the_first_registration_adds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("MQD_USER_PASSWORD", "sesame")
    directory, disk = tmp_path / "data", OsDisk()
    assert add(directory) == OK and add(directory, "--mechanism", "SCRAM-SHA-512") == OK
    path = directory / NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and b"sesame" not in path.read_bytes()
    replica = Replica()
    register(replica, directory, 1, 7)
    assert len(replica.log) == 1, "with the cluster itself"
    stored = replica.image.scram_credentials[ALICE]
    keys = derive_keys(ALICE[1], "sesame", stored.salt, 4096)
    assert stored.stored_key == keys.stored_key
    on_registered(disk, path, load_first_users(disk, path), replica.image)
    assert "first users added users=alice:SCRAM-SHA-256,alice:SCRAM-SHA-512" in caplog.text
    assert not path.exists()


def test_a_cluster_with_users_does_not_add_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MQD_USER_PASSWORD", "sesame")
    one, two, disk = tmp_path / "one", tmp_path / "two", OsDisk()
    replica = with_brokers(3)
    for directory, node_id in ((one, 1), (two, 2)):
        assert add(directory) == OK
        register(replica, directory, node_id, 7)
    of_one = load_first_users(disk, one / NAME)
    assert replica.image.scram_credentials == of_one
    on_registered(disk, two / NAME, load_first_users(disk, two / NAME), replica.image)
    assert "first users not added" in caplog.text and "mqctl user create" in caplog.text
    replica.image.scram_credentials.clear()
    register(replica, one, 1, 8)
    assert not replica.image.scram_credentials, "a node that has started before has no first users"


def test_a_node_that_has_started_has_no_first_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MQD_USER_PASSWORD", "sesame")
    lock = OsDisk().lock(tmp_path / ".lock")
    assert add(tmp_path) == FAILURE
    assert "a node runs in this data directory" in capsys.readouterr().err
    lock.close()
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "quorum-state").write_bytes(b"x")
    assert add(tmp_path) == FAILURE
    assert "mqctl user create alice" in capsys.readouterr().err


def test_wrong_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MQD_USER_PASSWORD", raising=False)
    assert add(tmp_path) == FAILURE
    assert "--password-file" in capsys.readouterr().err
    assert add(tmp_path, "--iterations", "1") == FAILURE
    assert "use 4096 to 16384" in capsys.readouterr().err
    secret = tmp_path / "secret"
    secret.write_text("\n")
    assert add(tmp_path, "--password-file", str(secret)) == FAILURE
    assert "is empty" in capsys.readouterr().err
    for mode, is_readable in ((0o600, False), (0o666, True)):
        secret.chmod(mode)
        add(tmp_path, "--password-file", str(secret))
        text = f"users other than the owner can read the password in '{secret}': run chmod 600"
        assert (text in capsys.readouterr().err) == is_readable
    (tmp_path / NAME).write_bytes(b"{}")
    with pytest.raises(StartError, match="is damaged"):
        load_first_users(OsDisk(), tmp_path / NAME)


def test_a_directory_of_a_running_cluster_gets_no_first_user(tmp_path: Path) -> None:
    (tmp_path / last_registration.NAME).write_bytes(b"")
    with pytest.raises(StartError, match="' belongs to a cluster that already exists"):
        add_first_user(
            OsDisk(),
            tmp_path,
            "u",
            "p",
            mechanism=ScramMechanism.SHA_256,
            iterations=4096,
            salt=b"salt",
        )
