"""TLS on real loopback sockets: `TlsSocket` under the poller, `TlsStream` against it, and what
both report when it fails.
"""

from __future__ import annotations

import gc
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from mqd.config import ConfigError
from mqd.io.disk import OsDisk
from mqd.io.net import READABLE, WRITABLE, EpollPoller, OsNetwork
from mqd.io.tls import _UNSENT_BYTES_MAX, TlsAcceptor, TlsListener, TlsSocket
from mqd.io.tls_contexts import client_context, server_context
from mqd.io.tls_errors import TlsFailed
from mqd.io.tls_stream import TlsNetwork, TlsStream
from mqd.limits import TLS_SEND_BYTES
from mqd.security.principal import Principal
from mqd.security.principal_mapping import PrincipalMapping
from mqd.security.tls_settings import (
    ClientAuth,
    KeyStore,
    TlsSettings,
    TrustStore,
    server_settings,
    tls_settings,
)
from tests.key_updates import key_updates
from tests.tls_files import texts, write_texts

HOST = "127.0.0.1"


def pem(text: str) -> KeyStore:
    return KeyStore("PEM", certificate_chain=text, key=text)


def trust(text: str) -> TrustStore:
    return TrustStore("PEM", certificates=text)


SERVER = TlsSettings(key_store=pem(texts().node))
CLIENT = TlsSettings(trust_store=trust(texts().ca))
MUTUAL = replace(SERVER, trust_store=trust(texts().ca), client_auth=ClientAuth.REQUIRED)
WITH_CERTIFICATE = replace(CLIENT, key_store=pem(texts().client))


class Nobody:
    used = 0.0

    def on_ready(self, events: int) -> None:
        raise AssertionError("the poller's owner calls, not the poller")


@dataclass
class Side:
    """The accepting side of a connection, driven by its poller as the server drives it."""

    sock: TlsSocket
    poller: EpollPoller
    owner: Nobody

    async def received(self, view: memoryview) -> int:
        while True:
            try:
                return self.sock.receive_into(view)
            except BlockingIOError:
                await self.ready(READABLE)

    async def ready(self, events: int) -> None:
        self.poller.watch(self.sock, self.owner, events)
        while True:
            await self.poller.wait_ready()
            if self.poller.ready_nowait():
                return

    async def receive(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            received = await self.received(view)
            assert received
            view = view[received:]
        return bytes(data)

    async def send(self, call: Callable[[int], int], size: int) -> None:
        """`call(position)` until `size` bytes are sent."""
        position = 0
        while position < size:
            try:
                position += call(position)
            except BlockingIOError:
                await self.ready(WRITABLE)


@asynccontextmanager
async def accepted(
    settings: TlsSettings = SERVER, *, small_buffers: bool = False, **options: object
) -> AsyncIterator[tuple[int, Callable[[], object]]]:
    """The port of a TLS listener, and an async function that accepts one connection."""
    network = OsNetwork(send_buffer_bytes=4096 if small_buffers else -1)
    context = server_context(settings, where="listener SSL: ")
    listener = TlsListener(
        await network.listen(HOST, 0),
        TlsAcceptor(context, **options),  # type: ignore[arg-type]
    )
    poller = EpollPoller()
    sides: list[Side] = []

    async def accept() -> Side:
        side = Side(await listener.accept(), poller, Nobody())
        sides.append(side)
        return side

    try:
        yield listener.port, accept
    finally:
        for side in sides:
            poller.forget(side.sock)
            side.sock.close()
        poller.close()
        listener.close()


async def connect(port: int, settings: TlsSettings = CLIENT, host: str = HOST) -> TlsStream:
    return await TlsNetwork(OsNetwork(), client_context(settings)).connect(host, port, timeout=5)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_bytes_arrive_as_sent_with_a_slow_reader_and_small_buffers(
    version: str, tmp_path: Path
) -> None:
    rng = random.Random(version)
    data = rng.randbytes(700_000)
    file = OsDisk().open(tmp_path / "file", create=True)
    file.append([data])
    settings = replace(SERVER, protocols=(version,))
    async with accepted(settings, small_buffers=True) as (port, accept), trio.open_nursery() as n:
        streams: list[TlsStream] = []

        async def client() -> None:
            stream = await connect(port)
            streams.append(stream)
            await stream.send_all(data)
            arrived = bytearray()
            view = memoryview(bytearray(70_000))
            while len(arrived) < 2 * len(data):
                received = await stream.receive_into(view[: rng.randrange(1, 70_000)])
                assert received
                arrived += view[:received]
            assert arrived == data + data

        n.start_soon(client)
        side: Side = await accept()  # type: ignore[misc]
        assert await side.receive(len(data)) == data
        assert side.sock.version == version
        view = memoryview(data)

        def send_part(position: int) -> int:
            """Any split of the same bytes, as the send queue makes them."""
            return side.sock.send(view[position : position + rng.randrange(100_000, 300_000)])

        await side.send(send_part, len(data))
        await side.send(
            lambda position: side.sock.send_file(file, position, len(data) - position), len(data)
        )
    streams[0].close()
    file.close()


async def test_a_stream_that_has_ended_can_be_read_again() -> None:
    """Data and the end may arrive in one step, without a close_notify: the reader gets the data,
    and then the end as often as it reads.
    """
    async with accepted() as (port, accept):

        def client() -> None:
            context = client_context(CLIENT)
            with (
                socket.create_connection((HOST, port)) as plain,
                context.wrap_socket(plain, server_hostname=HOST) as secure,
            ):
                secure.sendall(b"0123456789")
                secure.shutdown(socket.SHUT_WR)
                secure.recv(1)  # until the other side has closed

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, client)
            side: Side = await accept()  # type: ignore[misc]
            view = memoryview(bytearray(100))
            arrived = 0
            while received := await side.received(view):
                arrived += received
            assert arrived == 10
            for _ in range(3):
                assert side.sock.receive_into(view) == 0
            side.poller.forget(side.sock)
            side.sock.close()


async def test_bytes_that_openssl_holds_are_reported_again() -> None:
    async with accepted() as (port, accept), trio.open_nursery() as nursery:
        opened: list[TlsStream] = []

        async def client() -> None:
            stream = await connect(port)
            await stream.send_all(b"0123456789")
            opened.append(stream)

        nursery.start_soon(client)
        side: Side = await accept()  # type: ignore[misc]
        one = memoryview(bytearray(1))
        side.poller.watch(side.sock, side.owner, READABLE)
        arrived = b""
        while len(arrived) < 10:
            with trio.fail_after(5):
                await side.poller.wait_ready()
            for owner, events in side.poller.ready_nowait():
                assert owner is side.owner
                assert events & READABLE
                try:
                    side.sock.receive_into(one)
                except BlockingIOError:
                    continue
                arrived += bytes(one)
                if len(arrived) == 5:  # a paused connection is not reported, and then again is
                    assert side.sock.has_unread
                    side.poller.watch(side.sock, side.owner, 0)
                    assert side.poller.ready_nowait() == []
                    side.poller.watch(side.sock, side.owner, READABLE)
        assert arrived == b"0123456789"
        assert side.poller.ready_nowait() == []
        opened[0].close()


async def test_tiny_records_are_received_a_few_at_a_time() -> None:
    """Each costs as much as a full one, so one call must not receive thousands of them (I41)."""
    async with accepted() as (port, accept), trio.open_nursery() as nursery:

        async def client() -> None:
            stream = await connect(port)
            for n in range(1000):
                await stream.send_all(bytes([n % 256]))
            assert await stream.receive_into(memoryview(bytearray(2))) == 2
            stream.close()

        nursery.start_soon(client)
        side: Side = await accept()  # type: ignore[misc]
        view = memoryview(bytearray(32 * 1024))
        arrived = bytearray()
        while len(arrived) < 1000:
            received = await side.received(view)
            assert received <= 66
            arrived += view[:received]
        assert arrived == bytes(n % 256 for n in range(1000))
        assert side.sock.send(b"ok") == 2


async def test_a_handshake_in_tiny_records_takes_several_calls() -> None:
    """Before any login, a client may send its first message in records of one byte (I41)."""
    async with accepted() as (port, accept), trio.open_nursery() as nursery:
        sent, is_received = 0, trio.Event()

        async def client() -> None:
            nonlocal sent
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = client_context(CLIENT).wrap_bio(incoming, outgoing, server_hostname=HOST)
            async with await trio.open_tcp_stream(HOST, port) as stream:
                with pytest.raises(ssl.SSLWantReadError):
                    tls.do_handshake()
                record = outgoing.read()
                sent = len(record) - 5
                await stream.send_all(
                    b"".join(record[:3] + b"\0\1" + bytes([one]) for one in record[5:])
                )
                while True:
                    incoming.write(await stream.receive_some())
                    try:
                        tls.do_handshake()
                    except ssl.SSLWantReadError:
                        continue
                    break
                tls.write(b"end")
                await stream.send_all(outgoing.read())
                await is_received.wait()

        nursery.start_soon(client)
        side: Side = await accept()  # type: ignore[misc]
        calls = received = 0
        view = memoryview(bytearray(32 * 1024))
        while not received:
            calls += 1
            try:
                received = side.sock.receive_into(view)
            except BlockingIOError:
                await side.ready(READABLE)
        assert bytes(view[:received]) == b"end"
        is_received.set()
        assert calls >= sent // 64 > 2


@pytest.mark.parametrize("requested", [True, False])
async def test_key_updates_are_handled_a_few_at_a_time(requested: bool) -> None:
    """One call must not handle all that arrive: each costs as much as a record (I41)."""
    async with accepted() as (port, accept), trio.open_nursery() as nursery:

        async def client() -> None:
            stream = await connect(port)
            flood = key_updates(stream._tls, stream._outgoing, 2000, requested=requested)
            await stream._inner.send_all(flood)
            await stream.send_all(b"end")
            arrived = memoryview(bytearray(2))
            try:
                assert await stream.receive_into(arrived) == 2
            finally:
                stream.close()

        nursery.start_soon(client)
        side: Side = await accept()  # type: ignore[misc]
        calls = 0
        view = memoryview(bytearray(32 * 1024))
        received = 0
        while not received:
            calls += 1
            try:
                received = side.sock.receive_into(view)
            except BlockingIOError:
                if not side.sock.is_holding:
                    await side.ready(READABLE)
        assert bytes(view[:received]) == b"end"
        assert calls >= 2000 // 66
        assert side.sock.send(b"ok") == 2


async def test_a_client_that_reads_no_responses_to_key_updates_is_closed() -> None:
    async with accepted() as (port, accept), trio.open_nursery() as nursery:
        opened: list[TlsStream] = []

        async def client() -> None:
            stream = await connect(port)
            opened.append(stream)
            await stream.send_all(b"first")
            await stream._inner.send_all(
                key_updates(stream._tls, stream._outgoing, 100, requested=True)
            )

        nursery.start_soon(client)
        side: Side = await accept()  # type: ignore[misc]
        assert await side.receive(5) == b"first"
        side.sock._unsent = bytes(_UNSENT_BYTES_MAX + TLS_SEND_BYTES)
        with pytest.raises(TlsFailed, match="reads no responses"):
            await side.receive(1)
        opened[0].close()


async def test_the_certificate_of_a_client_gives_its_principal() -> None:
    mapping = PrincipalMapping("RULE:^CN=(.*?),.*$/$1/,DEFAULT")
    for mode, client, expected in (
        (ClientAuth.REQUIRED, WITH_CERTIFICATE, "alice"),
        (ClientAuth.REQUESTED, WITH_CERTIFICATE, "alice"),
        (ClientAuth.REQUESTED, CLIENT, "ANONYMOUS"),
    ):
        settings = replace(MUTUAL, client_auth=mode)
        async with (
            accepted(settings, principal_of=mapping.principal_of) as (port, accept),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_echo_once, port, client)
            side: Side = await accept()  # type: ignore[misc]
            assert await side.receive(2) == b"hi"
            assert side.sock.principal == Principal("User", expected)
            assert side.sock.send(b"ok") == 2


async def _echo_once(port: int, settings: TlsSettings) -> None:
    stream = await connect(port, settings)
    await stream.send_all(b"hi")
    view = memoryview(bytearray(2))
    assert await stream.receive_into(view) == 2
    stream.close()


@pytest.mark.parametrize(
    ("server", "client", "host", "of_client", "of_server"),
    [
        (
            SERVER,
            replace(CLIENT, trust_store=trust(texts().other_ca)),
            HOST,
            "is not trusted: unable to get local issuer certificate; set the truststore",
            "the client ended the TLS handshake: it does not trust the CA that signed the "
            "certificate; give the client the certificate of the CA",
        ),
        (
            replace(SERVER, key_store=pem(texts().expired)),
            CLIENT,
            HOST,
            "is expired; renew it on the broker",
            "the certificate is expired; renew the certificate of this node (`mqctl cert renew`)",
        ),
        (
            replace(SERVER, key_store=pem(texts().elsewhere)),
            CLIENT,
            "localhost",
            "is for another host: Hostname mismatch",
            "the client ended the TLS handshake: it does not accept the certificate",
        ),
        (
            MUTUAL,
            CLIENT,
            HOST,
            "it requires a certificate",
            "the client has no certificate, and ssl.client.auth=required; set ssl.keystore",
        ),
        (
            replace(MUTUAL, trust_store=trust(texts().other_ca)),
            WITH_CERTIFICATE,
            HOST,
            "it does not trust the CA that signed the certificate",
            "the certificate of the client is not accepted: self-signed certificate",
        ),
        (
            replace(SERVER, protocols=("TLSv1.3",)),
            replace(CLIENT, protocols=("TLSv1.2",)),
            HOST,
            "there is no common protocol version",
            "no common TLS version or cipher suite",
        ),
    ],
)
async def test_a_failed_handshake_names_cause_and_remedy_on_both_sides(
    server: TlsSettings, client: TlsSettings, host: str, of_client: str, of_server: str
) -> None:
    failures: list[OSError] = []
    async with accepted(server) as (port, accept), trio.open_nursery() as nursery:

        async def attempt() -> None:
            with pytest.raises(TlsFailed) as failed:
                stream = await connect(port, client, host)
                try:  # TLS 1.3: refused afterwards
                    await stream.receive_into(memoryview(bytearray(1)))
                finally:
                    stream.close()
            failures.append(failed.value)

        nursery.start_soon(attempt)
        side: Side = await accept()  # type: ignore[misc]
        with pytest.raises(TlsFailed) as failed:
            await side.receive(1)
        side.poller.forget(side.sock)
        side.sock.close()
    assert of_server in str(failed.value)
    assert of_client in str(failures[0])


@pytest.mark.parametrize(
    ("sent", "words"),
    [(b"\0\0\0\x20\0\x12\0\x03", "plaintext on a TLS"), (b"GET / HTTP/1.1\r\n", "an HTTP request")],
)
async def test_plaintext_on_a_tls_listener_is_named(sent: bytes, words: str) -> None:
    async with accepted() as (port, accept):
        with socket.create_connection((HOST, port)) as plain:
            plain.sendall(sent)
            side: Side = await accept()  # type: ignore[misc]
            with pytest.raises(TlsFailed, match=words):
                await side.receive(1)
            assert plain.recv(7) == bytes.fromhex("15030300020246")  # alert: protocol version


async def test_a_listener_may_accept_both() -> None:
    async with accepted(allows_plaintext=True) as (port, accept), trio.open_nursery() as nursery:
        with socket.create_connection((HOST, port)) as plain:
            side: Side = await accept()  # type: ignore[misc]
            plain.sendall(b"\0\0\0\1")
            assert await side.receive(4) == b"\0\0\0\1"
            assert not side.sock.is_encrypted
            assert side.sock.send(b"pong") == 4
            assert plain.recv(4) == b"pong"
        nursery.start_soon(_echo_once, port, CLIENT)
        encrypted: Side = await accept()  # type: ignore[misc]
        assert await encrypted.receive(2) == b"hi"
        assert encrypted.sock.is_encrypted
        encrypted.sock.send(b"ok")


async def test_a_client_names_a_listener_without_tls_and_a_silent_one(
    autojump_clock: MockClock,
) -> None:
    network = OsNetwork()
    listener = await network.listen(HOST, 0)
    async with trio.open_nursery() as nursery:

        async def answer() -> None:
            plain = await listener.accept()
            plain.send(b"\0\0\0\x05hello")
            await trio.sleep(1)
            plain.close()

        nursery.start_soon(answer)
        with pytest.raises(TlsFailed, match=r"does not speak TLS; set security.protocol=PLAINTEXT"):
            await connect(listener.port)
    with pytest.raises(TlsFailed, match="did not complete the TLS handshake within 5 s"):
        await connect(listener.port)
    listener.close()


# -- stores


def values(**settings: str) -> dict[str, str]:
    return {"ssl." + key.replace("_", "."): value for key, value in settings.items()}


def test_stores_are_read_from_files_and_texts(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12
    from cryptography.x509 import load_pem_x509_certificate

    files = write_texts(tmp_path)
    node = texts().node.encode()
    key = serialization.load_pem_private_key(node, None)
    certificate = load_pem_x509_certificate(node[node.index(b"-----BEGIN CERT") :])
    locked = serialization.BestAvailableEncryption(b"secret")
    (tmp_path / "node.p12").write_bytes(
        pkcs12.serialize_key_and_certificates(b"n", key, certificate, None, locked)  # type: ignore[arg-type]
    )
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked
    ).decode()
    chain = node[node.index(b"-----BEGIN CERT") :].decode()
    p12 = str(tmp_path / "node.p12")
    for settings in (
        values(keystore_type="PEM", keystore_location=str(files["node"])),
        values(keystore_location=p12, keystore_password="secret"),
        {
            **values(keystore_type="PEM", keystore_key=encrypted, key_password="secret"),
            "ssl.keystore.certificate.chain": chain,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": texts().ca.replace("\n", " "),  # one line
            "ssl.client.auth": "required",
        },
    ):
        server_context(server_settings(settings, where=""), where="")
    (tmp_path / "text").write_text("no certificate")
    (tmp_path / "store.jks").write_bytes(bytes.fromhex("feedfeed00000002"))
    for settings, words in (
        (values(keystore_location=p12, keystore_password="wrong"), "its password is wrong"),
        (values(keystore_location=str(tmp_path / "store.jks")), "keytool -importkeystore"),
        (values(keystore_location=str(tmp_path / "none")), r"cannot be read \(No such file"),
        (
            values(keystore_location=str(files["ca"])),
            r"ca\.pem' has no private key; use the file of a node, such as node-1\.pem",
        ),
        (values(keystore_location=str(tmp_path / "text")), "replace the file; `mqctl cert init`"),
        (
            {
                **values(keystore_type="PEM", keystore_key=encrypted),
                "ssl.keystore.certificate.chain": chain,
            },
            "ssl.key.password is not set",
        ),
        (
            {
                **values(keystore_type="PEM", keystore_key=texts().client),
                "ssl.keystore.certificate.chain": chain,
            },
            "does not belong to the first certificate",
        ),
        ({}, "has no certificate: set ssl.keystore.location"),
        (
            values(keystore_location=p12, keystore_password="secret", client_auth="required"),
            "needs the certificates that sign those of clients",
        ),
    ):
        with pytest.raises(ConfigError, match=words) as refused:
            server_context(server_settings(settings, where="listener X: "), where="listener X: ")
        assert "secret" not in str(refused.value)
        assert "PRIVATE" not in str(refused.value)


@pytest.mark.parametrize(
    ("suites", "versions", "allowed"),
    [
        ("TLS_AES_128_GCM_SHA256", "TLSv1.2,TLSv1.3", (True, "TLSv1_3", "TLSv1_3")),
        (
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
            "TLSv1.2,TLSv1.3",
            (True, "TLSv1_2", "TLSv1_2"),
        ),
        ("", "TLSv1.3", (True, "TLSv1_3", "TLSv1_3")),
        ("", "", (True, "TLSv1_2", "TLSv1_3")),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "TLSv1.3", (False, "", "")),
        ("TLS_WHAT", "", (False, "", "")),
        ("TLS_A_WITH_B", "", (False, "", "")),
        ("", "TLSv1.1", (False, "", "")),
    ],
)
def test_protocols_and_suites(suites: str, versions: str, allowed: tuple[bool, str, str]) -> None:
    def split(text: str) -> tuple[str, ...]:
        return tuple(filter(None, text.split(",")))

    try:
        settings = tls_settings(
            {"ssl.cipher.suites": split(suites), "ssl.enabled.protocols": split(versions)}, where=""
        )
        context = server_context(replace(settings, key_store=SERVER.key_store), where="")
    except ConfigError:
        assert not allowed[0]
        return
    assert allowed == (True, context.minimum_version.name, context.maximum_version.name)


@pytest.mark.parametrize("established", [False, True])
async def test_a_closed_socket_is_part_of_no_reference_cycle(established: bool) -> None:
    """A cycle that is older than a freeze stays for hours, with the buffers of OpenSSL
    (io/garbage.py)."""
    gc.disable()
    try:
        async with accepted() as (port, accept), trio.open_nursery() as nursery:
            streams: list[TlsStream] = []

            async def client() -> None:
                if established:
                    streams.append(await connect(port))
                    await streams[0].send_all(b"x")
                else:
                    (await OsNetwork().connect(HOST, port)).close()

            nursery.start_soon(client)
            side: Side = await accept()  # type: ignore[misc]
            side.sock.on_established = Established(side.sock).on_established
            if established:
                assert await side.receive(1) == b"x"
            for stream in streams:
                stream.close()
        del side, accept
        assert not [one for one in gc.get_objects() if isinstance(one, Established)]
    finally:
        gc.enable()


class Established:
    """An owner that refers to the socket, as a connection does."""

    def __init__(self, sock: TlsSocket) -> None:
        self.sock = sock

    def on_established(self) -> None: ...
