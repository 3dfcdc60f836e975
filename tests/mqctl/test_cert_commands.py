"""`mqctl cert`: files, modes and names; each certificate works in a TLS context."""

from __future__ import annotations

import json
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from mqctl.__main__ import cli
from mqctl.commands import cert as cert_command
from mqd.io.tls_contexts import client_context, server_context
from mqd.security.distinguished_name import alternative_names
from mqd.security.tls_settings import KeyStore, TlsSettings, TrustStore

PEERS = """
cluster_id = "c"
[[node]]
id = 1
host = "127.0.0.1"
port = 9092
peer_port = 9192
[[node]]
id = 2
host = "0.0.0.0"
port = 9093
peer_port = 9193
advertised_host = "two.example"
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["cert", *arguments])


def shown(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


def test_certificates_are_created_renewed_and_shown(tmp_path: Path) -> None:
    (tmp_path / "peers.toml").write_text(PEERS)
    directory = tmp_path / "certs"
    init = ("init", str(directory), "--peers", str(tmp_path / "peers.toml"))
    rows = shown(*init, "--client", "alice", "--host", "2=public.example")
    assert [(Path(row["file"]).name, row["subject"], row["names"]) for row in rows] == [
        ("ca.pem", "CN=mqd c", ""),
        ("node-1.pem", "CN=node-1,O=c", "127.0.0.1,localhost,mqd://c/nodes/1"),
        ("node-2.pem", "CN=node-2,O=c", "two.example,public.example,mqd://c/nodes/2"),
        ("alice.pem", "CN=alice", ""),
    ]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert {name for name, mode in modes.items() if mode != 0o600} == {"ca.pem"}
    trust = TrustStore("PEM", str(directory / "ca.pem"))
    for name in ("node-1.pem", "alice.pem"):
        settings = TlsSettings(KeyStore("PEM", str(directory / name)), trust)
        server_context(settings, where="")
        client_context(settings)
    before = {name: (directory / name).read_bytes() for name in modes}
    assert len(shown(*init)) == 1  # nothing is missing
    assert before == {name: (directory / name).read_bytes() for name in modes}
    (row,) = shown("renew", str(directory), "node-2", "--days", "90")
    assert row["days_left"] == 89
    changed = [name for name in modes if (directory / name).read_bytes() != before[name]]
    assert changed == ["node-2.pem"]
    pem = (directory / "node-2.pem").read_text()
    der = ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERT") :])
    assert alternative_names(der) == {
        "dns:two.example",
        "dns:public.example",
        "uri:mqd://c/nodes/2",
    }
    assert stat.S_IMODE((directory / "node-2.pem").stat().st_mode) == 0o600
    assert len(shown("show", str(directory))) == 4


def test_only_certificates_of_this_ca_are_renewed(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for directory in (own, other):
        assert run("init", str(directory), "--client", "alice").exit_code == 0
    foreign = {
        "old-ca.pem": other / "ca.pem",
        "other-alice.pem": other / "alice.pem",
        "bundle.pem": own / "ca.pem",
    }
    for name, source in foreign.items():
        (own / name).write_bytes(source.read_bytes())
    issued = (own / "alice.pem").read_text()
    (own / "public.pem").write_text(issued[issued.index("-----BEGIN CERT") :])
    (own / "empty.pem").write_text("")
    before = {path.name: path.read_bytes() for path in own.iterdir()}
    result = run("renew", str(own))
    assert result.exit_code == 0, result.output
    changed = [name for name, data in before.items() if (own / name).read_bytes() != data]
    assert changed == ["alice.pem"]
    for name, reason in (
        ("old-ca.pem", "another CA issued its certificate"),
        ("other-alice.pem", "another CA issued its certificate"),
        ("bundle.pem", "it is the certificate of the CA"),
        ("public.pem", "it has no private key"),
        ("empty.pem", "it has no certificate"),
    ):
        assert f"'{own / name}' is not renewed: {reason}" in result.output
        named = run("renew", str(own), name)
        assert named.exit_code != 0 and reason in str(named.exception)
        assert (own / name).read_bytes() == before[name]


def test_a_key_of_a_ca_that_others_can_read_causes_a_warning(tmp_path: Path) -> None:
    assert "users other" not in run("init", str(tmp_path), "--client", "alice").output
    assert "users other" not in run("renew", str(tmp_path)).output
    (tmp_path / "ca.key").chmod(0o644)
    warning = f"can read '{tmp_path}/ca.key', and issue certificates: run chmod 600"
    assert warning in run("renew", str(tmp_path)).output
    assert warning in run("init", str(tmp_path), "--client", "bob").output


def test_mistakes_have_remedies(tmp_path: Path) -> None:
    (tmp_path / "peers.toml").write_text(PEERS)
    peers = ("--peers", str(tmp_path / "peers.toml"))
    for arguments, words in (
        (("init", str(tmp_path)), "specify --peers, --client, or both"),
        (("init", str(tmp_path), *peers, "--host", "x"), "expected ID=HOST"),
        (("init", str(tmp_path), *peers, "--host", "9=a"), "node 9"),
        (("init", str(tmp_path), "--client", "../x"), "it is the name of a file"),
        (("renew", str(tmp_path)), "does not exist"),
        (("show", str(tmp_path / "peers.toml")), ""),
    ):
        result = run(*arguments)
        assert result.exit_code != 0
        assert words in result.output + str(result.exception)
    assert not (tmp_path / "ca.key").exists()


def test_the_days_until_a_certificate_expires(tmp_path: Path) -> None:
    now = datetime(2030, 1, 10, tzinfo=UTC)
    for difference, text in (
        (timedelta(days=5, hours=1), "expires in 5 days"),
        (timedelta(hours=1), "expires in less than a day"),
        (-timedelta(hours=1), "expired less than a day ago"),
        (-timedelta(days=1, hours=1), "expired 1 day ago"),
        (-timedelta(days=3, hours=1), "expired 3 days ago"),
    ):
        assert cert_command._expiry(now + difference, now) == text
    directory = tmp_path / "a b"
    assert run("init", str(directory), "--client", "al", "--days", "5").exit_code == 0
    warning = f"'{directory}/al.pem' expires in 4 days: run `mqctl cert renew '{directory}'`\n"
    assert warning in run("show", str(directory)).output


def test_a_client_has_no_file_of_the_ca_or_of_a_node(tmp_path: Path) -> None:
    for name in ("ca", "node-1"):
        done = run("init", str(tmp_path / "d"), "--client", name)
        assert done.exit_code == 2 and f"invalid client '{name}'" in done.output
        assert not (tmp_path / "d").exists()
    assert run("init", str(tmp_path / "d"), "--client", "node-one").exit_code == 0
