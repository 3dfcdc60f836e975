"""How mqctl connects: profiles, the environment, and client properties files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mqctl import profiles
from mqctl.failure import Failure
from tests.ran import Ran

SECRET = 'p=a:s\\s "1"\t'


def test_the_life_of_a_profile(mqctl: Callable[..., Ran], tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text(f"{SECRET}\n")
    made = mqctl(
        *("profile", "create", "prod", "-b", "k:9093", "--user", "alice", "--ca", "/ca.pem"),
        *("--property", "client.id=x", "--password-file", str(password)),
    )
    assert made.code == 0, made.err
    path = tmp_path / "mqctl" / "prod.properties"
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert profiles.read("prod") == {
        "bootstrap.servers": "k:9093",
        "client.id": "x",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.password": SECRET,
        "sasl.username": "alice",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/ca.pem",
    }
    assert mqctl("profile", "use", "prod").code == 0
    listed = mqctl("profile", "list", "-o", "json")
    assert '"name": "prod"' in listed.out and '"current": "*"' in listed.out
    assert SECRET not in listed.out + listed.err + made.out + made.err
    path.chmod(0o640)
    assert "chmod 600" in mqctl("profile", "list").err
    assert mqctl("profile", "delete", "prod").code == 0
    assert profiles.names() == [] and profiles.current() is None


def test_names_and_values_that_are_refused(mqctl: Callable[..., Ran]) -> None:
    for arguments, reason in [
        (("use", "none"), "does not exist"),
        (("create", "../x"), "not the name of a profile"),
        (("create", "x", "--user", "a"), "not a terminal"),
        (("create", "x", "--property", "sasl.mechanism=PLAIN"), "without SASL"),
        (("create", "x", "--from", "/nowhere"), "cannot be read"),
        (("create", "x", "--property", "ssl.truststore.type=JKS"), "needs Java"),
    ]:
        ran = mqctl("profile", *arguments)
        assert ran.code == 2 and reason in ran.err, arguments


def test_what_overrides_what(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mqctl: Callable[..., Ran]
) -> None:
    profiles.write("a", {"sasl.username": "a", "sasl.password": "a", "client.id": "a"})
    profiles.write("b", {"sasl.username": "b"})
    assert profiles.properties(None, None) == {}
    profiles.use("a")
    assert profiles.properties(None, None)["sasl.username"] == "a"
    assert profiles.properties("b", None) == {"sasl.username": "b"}
    monkeypatch.setenv("MQCTL_SASL_PASSWORD", "environment")
    monkeypatch.setenv("MQCTL_PROFILE", "b")
    assert profiles.properties(None, None) == {
        "sasl.username": "b",
        "sasl.password": "environment",
    }
    file = tmp_path / "client.properties"
    file.write_text('sasl.password=file\nsasl.jaas.config=X required \\\n  username="u";\n')
    found = profiles.properties("a", str(file))
    assert found["sasl.password"] == "file" and found["client.id"] == "a"
    assert found["sasl.jaas.config"] == 'X required username="u";'
    with pytest.raises(Failure):
        profiles.properties("c", None)


def test_a_command_connects_with_its_properties(mqctl: Callable[..., Ran], tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    for text, code, reason in [
        ("security.protocol=PLAINTEXT\nrequest.timeout.ms=5\n", 0, ""),
        ("security.protocol=SASL_PLAINTEXT\n", 2, "mechanism"),
        (
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=a\n",
            2,
            "password",
        ),
        ("ssl.unknown=1\n", 2, "ssl.unknown"),
        ('sasl.jaas.config=X required password="hush\n', 2, "no closing"),
    ]:
        file.write_text(text)
        ran = mqctl("topic", "list", "--command-config", str(file))
        assert ran.code == code and reason in ran.err, ran.err
        assert "hush" not in ran.err
        ran = mqctl("--command-config", str(file), "topic", "list")
        assert ran.code == code, "the option may be before the command"
