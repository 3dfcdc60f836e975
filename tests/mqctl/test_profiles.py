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


def test_the_results_as_json(mqctl: Callable[..., Ran], tmp_path: Path) -> None:
    expected = {"profile": "q", "file": str(tmp_path / "mqctl" / "q.properties")}
    assert mqctl("profile", "create", "q", "-b", "k:9092", "-o", "json").data == expected
    assert mqctl("profile", "use", "q", "-o", "json").data == expected
    assert mqctl("profile", "create", "r").code == 0
    missing = mqctl("profile", "delete", "q", "none", "r")
    assert missing.code == 2 and profiles.names() == ["q", "r"], "all or none"
    gone = mqctl("profile", "delete", "q", "r", "-o", "json")
    assert gone.data[0] == expected and len(gone.data) == 2 and profiles.names() == []


def test_a_profile_works_in_every_directory(
    mqctl: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "from.properties").write_text(
        "ssl.ca.location=ca.pem\nssl.key.location=/key.pem\n"
    )
    given = ("--ca", "certs/ca.pem", "--property", "ssl.certificate.location=a.pem")
    assert mqctl("profile", "create", "p", "--protocol", "SSL", *given).code == 0
    found = profiles.read("p")
    assert found["ssl.ca.location"] == str(tmp_path / "certs" / "ca.pem")
    assert found["ssl.certificate.location"] == str(tmp_path / "a.pem")
    source = ("--from", "other/from.properties", "--property", "ssl.certificate.location=c.pem")
    assert mqctl("profile", "create", "p", "--protocol", "SSL", *source).code == 0
    found = profiles.read("p")
    assert found["ssl.ca.location"] == str(tmp_path / "other" / "ca.pem")
    assert found["ssl.certificate.location"] == str(tmp_path / "c.pem")
    assert found["ssl.key.location"] == "/key.pem"


def test_only_a_new_password_is_asked_for_twice(
    mqctl: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = []

    def prompt(text: str, **options: object) -> str:
        requested.append((text, options["confirmation_prompt"]))
        return "sesame"

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.prompt", prompt)
    assert mqctl("profile", "create", "p", "--user", "al").code == 0
    assert mqctl("user", "create", "al").code == 0
    assert requested == [("Password of user 'al'", False), ("Password of user 'al'", True)]


def test_files_with_passwords_that_other_users_can_read(
    mqctl: Callable[..., Ran], tmp_path: Path
) -> None:
    password, config = tmp_path / "al.p", tmp_path / "client.properties"
    password.write_text("sesame\n")
    config.write_text("sasl.password=sesame\n")

    def create() -> Ran:
        return mqctl("profile", "create", "p", "--user", "al", "--password-file", str(password))

    def list_topics() -> Ran:
        return mqctl("topic", "list", "--command-config", str(config))

    for path, run in ((password, create), (config, list_topics)):
        for mode, is_readable in ((0o600, False), (0o640, True), (0o604, True)):
            path.chmod(mode)
            done = run()
            text = f"other users can read '{path}', which has a password: run chmod 600 {path}\n"
            assert done.code == 0 and (text in done.err) == is_readable, (done.err, mode)
    key = tmp_path / "al.pem"
    key.write_text("KEY")
    config.write_text(f"security.protocol=PLAINTEXT\nssl.keystore.location={key}\n")
    for mode, is_readable in ((0o600, False), (0o644, True)):
        key.chmod(mode)
        text = f"other users can read '{key}', which has a private key: run chmod 600 {key}\n"
        assert (text in list_topics().err) == is_readable
    config.write_text("security.protocol=PLAINTEXT\n")
    assert "chmod" not in list_topics().err, "it has no password"
