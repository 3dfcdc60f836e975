"""When the key set of tokens is read, and what happens meanwhile."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from trio.testing import MockClock

from mqd.config import StartError
from mqd.io.disk import OsDisk
from mqd.security.jaas_tls import request_tls
from mqd.security.mechanism import LoginFailed
from mqd.security.oauthbearer import TokenRules
from mqd.security.sasl_options import KeySetOptions
from mqd.server.key_sets import TokenVerifier
from tests.log.support import HandClock
from tests.tls_files import texts, write_texts

KEYS = [Ed25519PrivateKey.generate() for _ in range(2)]
NOW = 1_800_000_000


def key_set(*numbers: int) -> bytes:
    rows = [
        {
            **json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(KEYS[number].public_key())),
            "kid": f"{number}",
        }
        for number in numbers
    ]
    return json.dumps({"keys": rows}).encode()


def token(number: int) -> str:
    claims = {"sub": "alice", "iat": NOW, "exp": NOW + 60}
    return jwt.encode(claims, KEYS[number], algorithm="EdDSA", headers={"kid": f"{number}"})


class Source:
    """A disk whose file and whose offloaded calls have this content."""

    def __init__(self, content: bytes | OSError) -> None:
        self.content = content
        self.reads = 0

    def read_bytes(self, path: Path) -> bytes:
        self.reads += 1
        if isinstance(self.content, OSError):
            raise self.content
        return self.content

    async def offload(self, call: Any, *args: Any) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.read_bytes(Path())


def verifier(source: Source, url: str) -> TokenVerifier:
    options = KeySetOptions(url, 3_600_000, 100, 10_000)
    return TokenVerifier(options, TokenRules(), source, HandClock())  # type: ignore[arg-type]


async def test_a_url_may_respond_later(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    source = Source(OSError("no route"))
    made = verifier(source, "https://keys")
    await nursery.start(made.run)
    await trio.sleep(0.05)
    with pytest.raises(LoginFailed, match="could not be read yet"):
        made.check(token(0), NOW * 1000)
    await trio.sleep(1)
    assert 3 < source.reads < 6, "with pauses that double"
    source.content = key_set(0)
    await trio.sleep(10)
    assert made.check(token(0), NOW * 1000).user == "alice"
    reads = source.reads
    await trio.sleep(3_000)
    assert source.reads == reads
    source.content = OSError("no route")
    await trio.sleep(1_000)
    assert made.check(token(0), NOW * 1000).user == "alice", "the old keys stay"


async def test_an_unknown_key_reads_the_set_early(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    source = Source(key_set(0))
    made = verifier(source, "file:///keys")
    await nursery.start(made.run)
    source.content = key_set(0, 1)
    reads = source.reads
    for _ in range(100):
        with pytest.raises(LoginFailed, match="no key has the id"):
            made.check(token(1), NOW * 1000)
        await trio.sleep(0.01)
    await trio.sleep(10)
    assert made.check(token(1), NOW * 1000).user == "alice"
    assert source.reads == reads + 1, "a flood of unknown keys is one read"


class KeyServer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(key_set(0))

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def key_url(tmp_path: Path) -> Iterator[str]:
    """The URL of a server whose certificate a private CA has signed."""
    server = HTTPServer(("127.0.0.1", 0), KeyServer)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(write_texts(tmp_path)["node"])
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}/keys"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_the_trust_store_of_the_jaas_string_verifies_the_server(
    key_url: str, tmp_path: Path, nursery: trio.Nursery
) -> None:
    for ca, is_read in (("ca", True), ("other_ca", False), (None, False)):
        jaas = {} if ca is None else {"ssl.truststore.location": str(tmp_path / f"{ca}.pem")}
        tls = request_tls(jaas, where="")
        options = KeySetOptions(key_url, 3_600_000, 100, 10_000, tls)
        made = TokenVerifier(options, TokenRules(), OsDisk(), HandClock())
        if is_read:
            await made._read(options)
            assert made.check(token(0), NOW * 1000).user == "alice"
        else:
            with pytest.raises(OSError, match="certificate verify failed"):
                await made._read(options)


async def test_key_files_that_others_can_change_cause_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys, trust = tmp_path / "my keys.json", tmp_path / "ca.pem"
    keys.write_bytes(key_set(0))
    trust.write_text(texts().ca)
    tls = request_tls({"ssl.truststore.location": str(trust)}, where="")
    for file, options in (
        (keys, KeySetOptions(keys.as_uri(), 3_600_000, 100, 10_000)),
        (trust, KeySetOptions("https://127.0.0.1:1/keys", 3_600_000, 100, 10_000, tls)),
    ):
        for mode, is_warned in ((0o644, False), (0o666, True)):
            file.chmod(mode)
            caplog.clear()
            made = TokenVerifier(options, TokenRules(), Source(key_set(0)), HandClock())  # type: ignore[arg-type]
            async with trio.open_nursery() as nursery:
                await nursery.start(made.run)
                nursery.cancel_scope.cancel()
            text = f"users other than the owner can change {file}, and make tokens"
            assert (text in caplog.text) == is_warned


async def test_a_trust_store_must_be_usable_at_the_start() -> None:
    tls = request_tls({"ssl.truststore.location": "/nowhere/ca.pem"}, where="x: ")
    options = KeySetOptions("https://a/keys", 3_600_000, 100, 10_000, tls)
    source = Source(key_set(0))
    made = TokenVerifier(options, TokenRules(), source, HandClock())  # type: ignore[arg-type]
    with pytest.raises(BaseException) as caught:
        async with trio.open_nursery() as nursery:
            await nursery.start(made.run)
    group = caught.value
    assert isinstance(group, BaseExceptionGroup) and group.subgroup(StartError) is not None
    assert source.reads == 0


@pytest.mark.parametrize("content", [OSError("no such file"), b"{}"])
async def test_a_file_must_be_usable_at_the_start(content: Any) -> None:
    with pytest.raises(BaseException) as caught:
        async with trio.open_nursery() as nursery:
            await nursery.start(verifier(Source(content), "file:///keys").run)
    group = caught.value
    assert isinstance(group, BaseExceptionGroup) and group.subgroup(StartError) is not None
