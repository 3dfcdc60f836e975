"""When the key set of tokens is read, and what happens meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jwt
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from trio.testing import MockClock

from mqd.config import StartError
from mqd.security.mechanism import LoginFailed
from mqd.security.oauthbearer import TokenRules
from mqd.security.sasl_options import KeySetOptions
from mqd.server.key_sets import TokenVerifier
from tests.log.support import HandClock

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


@pytest.mark.parametrize("content", [OSError("no such file"), b"{}"])
async def test_a_file_must_be_usable_at_the_start(content: Any) -> None:
    with pytest.raises(BaseException) as caught:
        async with trio.open_nursery() as nursery:
            await nursery.start(verifier(Source(content), "file:///keys").run)
    group = caught.value
    assert isinstance(group, BaseExceptionGroup) and group.subgroup(StartError) is not None
