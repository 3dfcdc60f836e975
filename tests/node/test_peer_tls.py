"""Mutual TLS between nodes, and certificates that change while a node runs."""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from mqd.config import NodeConfig, StartError
from mqd.io.certificates import Authority, issue_node
from mqd.io.net import OsListener, OsNetwork, OsSocket
from mqd.io.tls import TlsListener, TlsSocket
from mqd.io.tls_errors import server_reason
from mqd.node.certificates import CertificateSource
from mqd.node.listeners import ClientTls
from mqd.node.peer_tls import PeerTls
from mqd.node.watched_files import CHECK_SECONDS, WatchedFiles
from mqd.peers import Peers, parse_peers
from mqd.security.client_listeners import ClientListener, SecurityProtocol
from mqd.security.tls_settings import KeyStore, TlsSettings, TrustStore

NOW = datetime.now(UTC)
AUTHORITY = Authority.create("test", now=NOW)


def peers(port: int = 1) -> Peers:
    nodes = [
        f'[[node]]\nid = {n}\nhost = "127.0.0.1"\nport = {n + 10}\npeer_port = {peer_port}\n'
        for n, peer_port in ((1, port), (2, 2))
    ]
    return parse_peers('cluster_id = "c"\n' + "".join(nodes), Path("peers.toml"))


def node(directory: Path, mode: str, names: int, known: Peers) -> PeerTls:
    """The TLS of a node whose certificate names the node `names`."""
    (directory / "ca.pem").write_bytes(AUTHORITY.pem)
    file = directory / f"{names}.pem"
    file.write_bytes(issue_node(AUTHORITY, "c", names, ["127.0.0.1"], now=NOW))
    return PeerTls(
        NodeConfig.load(
            overrides={
                "peer.ssl": mode,
                "ssl.keystore.type": "PEM",
                "ssl.truststore.type": "PEM",
                "ssl.keystore.location": "never read",
                "listener.name.peer.ssl.keystore.location": str(file),
                "ssl.truststore.location": str(directory / "ca.pem"),
            }
        ),
        known,
    )


@pytest.mark.parametrize(
    ("listens", "connects", "names", "result"),
    [
        ("required", "required", 1, "TLS"),
        ("preferred", "preferred", 1, "TLS"),
        ("required", "preferred", 1, "TLS"),
        ("preferred", "disabled", 1, "plaintext"),
        ("disabled", "preferred", 1, "plaintext"),
        ("required", "disabled", 1, "the other node needs peer.ssl=preferred or required"),
        ("disabled", "required", 1, "closed the connection during the TLS handshake"),
        ("required", "required", 2, "the certificate is for mqd://c/nodes/2, expected"),
    ],
)
async def test_two_nodes_agree(
    tmp_path: Path, listens: str, connects: str, names: int, result: str
) -> None:
    plain = await OsNetwork().listen("127.0.0.1", 0)
    known = peers(plain.port)
    listening = node(tmp_path, listens, names, known)
    connecting = node(tmp_path, connects, 2, known)
    listener: OsListener | TlsListener = plain
    if listening.acceptor is not None:
        listener = TlsListener(plain, listening.acceptor)
    failures: list[OSError] = []

    async def serve() -> None:
        while True:
            sock = await listener.accept()
            try:
                await answer(sock)
            except OSError as error:
                failures.append(error)
            finally:
                sock.close()

    async def answer(sock: OsSocket | TlsSocket) -> None:
        view = memoryview(bytearray(4))
        received = None
        while received is None:
            try:
                received = sock.receive_into(view)
            except BlockingIOError:
                await trio.lowlevel.checkpoint()
        if bytes(view[:received]) == b"ping":
            is_tls = isinstance(sock, TlsSocket) and sock.is_encrypted
            if isinstance(sock, TlsSocket):
                assert sock.refusal_of_node(2) is None
                assert (sock.refusal_of_node(1) is None) == (not is_tls)
            sock.send(b"tls!" if is_tls else b"none")

    async def ask() -> str:
        stream = await connecting.network(OsNetwork()).connect("127.0.0.1", plain.port)
        try:
            await stream.send_all(b"ping")
            view = memoryview(bytearray(4))
            received = await stream.receive_into(view)
        finally:
            stream.close()
        return {b"tls!": "TLS", b"none": "plaintext"}.get(bytes(view[:received]), "")

    found = ""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        try:
            with trio.fail_after(5):
                found = await ask()
        except OSError as error:
            failures.append(error)
        nursery.cancel_scope.cancel()
    plain.close()
    assert result in (found or "; ".join(map(str, failures)))


def test_a_node_does_not_start_without_a_certificate() -> None:
    with pytest.raises(StartError, match=r"peer\.ssl=required needs a certificate: set"):
        PeerTls(NodeConfig.load(overrides={"peer.ssl": "required"}), peers())


def test_a_node_does_not_start_without_a_truststore(tmp_path: Path) -> None:
    key = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(tmp_path / "never read")}
    with pytest.raises(
        StartError,
        match=r"peer\.ssl=required needs a truststore: set ssl\.truststore\.location, or "
        r"listener\.name\.peer\.ssl\.truststore\.location",
    ):
        PeerTls(NodeConfig.load(overrides={"peer.ssl": "required", **key}), peers())


def test_an_expired_certificate_is_an_error_and_a_shared_file_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "node 1.pem"
    file.write_bytes(AUTHORITY.issue("a", hosts=["h"], now=NOW, days=7))
    file.chmod(0o640)
    settings = TlsSettings(key_store=KeyStore("PEM", str(file)))
    for name, checks_mode in (("SSL", True), ("PEER", False)):
        source = CertificateSource(name, settings, lambda: None, checks_mode=checks_mode)
        source.warn(NOW + timedelta(days=10))
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    remedy = "remedy='run mqctl cert renew, or replace the file'"
    assert lines == [
        ("ERROR", f"certificate expired listener=SSL days_ago=3 {remedy}"),
        (
            "WARNING",
            f"users other than the owner can read the private key file={file} "
            f"remedy=run chmod 600 '{file}'",
        ),
        ("ERROR", f"certificate expired listener=PEER days_ago=3 {remedy}"),
    ]


def test_a_trust_store_that_others_can_change_causes_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, trust = tmp_path / "node.pem", tmp_path / "ca.pem"
    file.write_bytes(AUTHORITY.issue("a", hosts=["h"], now=NOW, days=300))
    file.chmod(0o600)
    trust.write_bytes(AUTHORITY.pem)
    settings = TlsSettings(KeyStore("PEM", str(file)), TrustStore("PEM", str(trust)))
    source = CertificateSource("SSL", settings, lambda: None)
    for mode, is_warned in ((0o644, False), (0o666, True), (0o664, True)):
        trust.chmod(mode)
        caplog.clear()
        source.warn(NOW)
        text = f"users other than the owner can change {trust}, and decide whose certificates"
        assert (text in caplog.text) == is_warned


def test_a_file_that_cannot_be_read_is_named_with_key_and_line(tmp_path: Path) -> None:
    file = tmp_path / "x.p"
    nope = tmp_path / "nope.pem"
    file.write_text(
        f"peer.ssl=required\nssl.keystore.type=PEM\nlistener.name.peer.ssl.keystore.location={nope}"
        f"\nssl.truststore.location={nope}\n"
    )
    file.chmod(0o600)
    config = NodeConfig.load(file)
    with pytest.raises(StartError) as refused:
        PeerTls(config, peers())
    assert str(refused.value).startswith(
        f"connections between nodes: ssl.keystore.location ({file}, line 3): '{nope}' cannot be "
        "read (No such file or directory)"
    )
    assert config.named("ssl.truststore.location") == f"ssl.truststore.location ({file}, line 4)"
    assert config.named("ssl.client.auth") == "ssl.client.auth"


async def test_a_node_that_stops_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mqd.node.peer_tls")
    plain = await OsNetwork().listen("127.0.0.1", 0)
    known = peers(plain.port)
    acceptor = node(tmp_path, "required", 1, known).acceptor
    assert acceptor is not None
    listener = TlsListener(plain, acceptor)
    network = node(tmp_path, "required", 2, known).network(OsNetwork())
    serves = True

    async def serve() -> None:
        while True:
            sock = await listener.accept()
            with trio.move_on_after(5):
                while serves and not sock.is_established:
                    try:
                        sock.receive_into(memoryview(bytearray(1)))
                    except BlockingIOError:
                        await trio.lowlevel.checkpoint()
            sock.close()

    async def connect() -> None:
        with trio.fail_after(5):
            (await network.connect("127.0.0.1", plain.port)).close()

    def levels() -> list[str]:
        return [record.levelname for record in caplog.records]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        serves = False
        with pytest.raises(OSError, match="closed the connection"):
            await connect()
        assert levels() == ["WARNING"], "it was never connected"
        serves = True
        await connect()
        serves = False
        with pytest.raises(OSError, match="closed the connection"):
            await connect()
        assert levels() == ["WARNING", "INFO"]
        nursery.cancel_scope.cancel()
    plain.close()


def test_messages_between_nodes_name_the_keys_of_nodes() -> None:
    error = ssl.SSLError()
    error.reason = "TLSV1_ALERT_UNKNOWN_CA"
    assert server_reason(error, is_of_nodes=True) == (
        "another node ended the TLS handshake: it does not trust the CA that signed the "
        "certificate",
        "compare `listener.name.peer.ssl.truststore.*` of both nodes",
    )


async def test_changed_files_are_read_and_invalid_ones_are_not_used(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "node.pem"
    file.write_bytes(AUTHORITY.issue("a", hosts=["h"], now=NOW))
    config = NodeConfig.load(
        overrides={"ssl.keystore.type": "PEM", "ssl.keystore.location": str(file)}
    )
    listener = ClientListener("SSL", SecurityProtocol.SSL, "h", 1, "h", 1)
    tls = ClientTls(config, listener)
    opened = await OsNetwork().listen("127.0.0.1", 0)
    bound = tls.wrapped(opened)
    assert isinstance(bound, TlsListener)
    first = bound.acceptor
    certificates = WatchedFiles()
    assert tls.settings is not None
    certificates.sources = [CertificateSource("SSL", tls.settings, tls.load)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(certificates.run)
        await trio.sleep(2 * CHECK_SECONDS)
        assert bound.acceptor is first
        file.write_text("half a file")
        await trio.sleep(2 * CHECK_SECONDS)
        assert bound.acceptor is first
        assert "neither PEM nor PKCS12" in caplog.text
        file.write_bytes(AUTHORITY.issue("b", hosts=["h"], now=NOW, days=7))
        os.utime(file, ns=(1, 1))
        await trio.sleep(2 * CHECK_SECONDS)
        second = bound.acceptor
        assert second is not first
        assert "certificate expires soon listener=SSL days=6" in caplog.text
        assert "users other than the owner can read the private key file=" in caplog.text
        assert certificates.reload()  # a SIGHUP
        await trio.sleep(0.1)
        assert bound.acceptor is not second
        assert bound.acceptor == replace(second, context=bound.acceptor.context)
        nursery.cancel_scope.cancel()
    opened.close()
