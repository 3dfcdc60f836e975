"""Attacks on a listener with TLS and logins by clients that do not log in."""

from __future__ import annotations

import ssl
import time
from typing import ClassVar

from mqd.limits import KIB
from mqd.testing.requests import frame
from tests.hostile.attack import Attack
from tests.hostile.wire import Opening, Wire
from tests.key_updates import key_updates, renegotiation

OPENED_AT_ONCE = 20
HELD_AT_ONCE = 3
HELD_SECONDS = 0.5
HANDSHAKES = 17
"""One more than a connection may send before its login."""
TOKEN_BYTES = 511 * KIB
UPDATES = 2_000
_SCRAM = "SCRAM-SHA-256"


def _handshake(mechanism: str) -> bytes:
    return frame("sasl_handshake", 1, {"mechanism": mechanism})


def _authenticate(token: bytes) -> bytes:
    return frame("sasl_authenticate", 2, {"auth_bytes": token})


def _client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    try:
        _untrusting().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def _untrusting() -> ssl.SSLContext:
    """An attacker need not check the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class HalfHandshakes(Attack):
    """Handshakes of TLS that end within the first message, or after it."""

    name = "TLS handshakes that stop"
    opening = Opening.TCP

    def prepare(self) -> None:
        hello = _client_hello()
        self.sent = [hello, hello[: len(hello) // 2]]

    def round(self, wire: Wire) -> None:
        opened: list[Wire] = []
        try:
            for number in range(OPENED_AT_ONCE):
                opened.append(Wire(wire.port, Opening.TCP))
                opened[-1].send(self.sent[number % 2])
        finally:
            for one in opened:
                one.close()


class HeldLogins(Attack):
    """Logins that stop after TLS, after SaslHandshake, and within SaslAuthenticate."""

    name = "logins that stop"
    opening = Opening.TCP

    def prepare(self) -> None:
        token = _authenticate(bytes(TOKEN_BYTES))
        self.sent = [b"", _handshake(_SCRAM), _handshake("PLAIN") + token[: len(token) // 2]]

    def round(self, wire: Wire) -> None:
        opened: list[Wire] = []
        try:
            for sent in self.sent:
                opened.append(Wire(wire.port, Opening.TLS))
                opened[-1].send(sent)
            time.sleep(HELD_SECONDS)
        finally:
            for one in opened:
                one.close()


class _Exchange(Attack):
    """Each round is one connection, which ends without a login."""

    opening = Opening.TCP

    def round(self, wire: Wire) -> None:
        one = Wire(wire.port, Opening.TLS)
        try:
            self.exchange(one)
        except ConnectionError:
            pass  # the node refused it
        finally:
            one.close()

    def exchange(self, wire: Wire) -> None:
        raise NotImplementedError


class SaslHandshakes(_Exchange):
    """SaslHandshakes, more than a connection may send."""

    name = "SaslHandshake, 17 at once"

    def prepare(self) -> None:
        mechanisms = ("PLAIN", _SCRAM, "GSSAPI", "x" * 10_000)
        self.bytes = b"".join(_handshake(mechanisms[number % 4]) for number in range(HANDSHAKES))

    def exchange(self, wire: Wire) -> None:
        wire.send(self.bytes)
        for _ in range(HANDSHAKES):
            wire.receive()


class ScramFirstMessages(_Exchange):
    """First messages of SCRAM for unknown users, whose challenge is never answered."""

    name = "first messages of SCRAM"

    def prepare(self) -> None:
        self.number = 0

    def exchange(self, wire: Wire) -> None:
        self.number += 1
        wire.send(_handshake(_SCRAM))
        wire.receive()
        wire.send(_authenticate(f"n,,n=unknown-{self.number},r=nonce".encode()))
        wire.receive()


class WrongPasswords(_Exchange):
    """Logins with PLAIN and a wrong password."""

    name = "wrong passwords"

    def prepare(self) -> None:
        self.bytes = _handshake("PLAIN") + _authenticate(b"\0good\0wrong")

    def exchange(self, wire: Wire) -> None:
        wire.send(self.bytes)
        wire.receive()
        wire.receive()


class BigTokens(_Exchange):
    """Messages of each mechanism that are almost as large as they may be."""

    name = "logins of 512 KiB"
    kinds: ClassVar[tuple[tuple[str, bytes], ...]] = (
        ("PLAIN", b"\0good\0" + b"x" * TOKEN_BYTES),
        (_SCRAM, b"n,,n=" + b"=2C" * (TOKEN_BYTES // 3) + b",r=nonce"),
        ("OAUTHBEARER", b"n,,\1auth=Bearer " + b"e." * (TOKEN_BYTES // 2) + b"\1\1"),
    )

    def prepare(self) -> None:
        self.number = 0
        self.sent = [_handshake(name) + _authenticate(token) for name, token in self.kinds]

    def exchange(self, wire: Wire) -> None:
        self.number += 1
        wire.send(self.sent[self.number % len(self.sent)])
        wire.receive()
        wire.receive()


class _Tls(Attack):
    """Messages of TLS that Python's sockets cannot send."""

    opening = Opening.TCP
    version: ClassVar[ssl.TLSVersion]

    def prepare(self) -> None:
        self._context = _untrusting()
        self._context.minimum_version = self._context.maximum_version = self.version

    def round(self, wire: Wire) -> None:
        one = Wire(wire.port, Opening.TCP)
        try:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = self._context.wrap_bio(incoming, outgoing)
            while True:
                try:
                    tls.do_handshake()
                except ssl.SSLWantReadError:
                    one.send(outgoing.read())
                    incoming.write(one.receive_some())
                else:
                    break
            one.send(outgoing.read())
            self.flood(one, tls, outgoing)
        finally:
            one.close()

    def flood(self, wire: Wire, tls: ssl.SSLObject, outgoing: ssl.MemoryBIO) -> None:
        raise NotImplementedError


class KeyUpdates(_Tls):
    """Key updates of TLS 1.3, half of which demand an update of the node's keys, too."""

    name = "2,000 key updates"
    version = ssl.TLSVersion.TLSv1_3

    def flood(self, wire: Wire, tls: ssl.SSLObject, outgoing: ssl.MemoryBIO) -> None:
        wire.send(key_updates(tls, outgoing, UPDATES // 2, requested=False))
        wire.send(key_updates(tls, outgoing, UPDATES // 2, requested=True))
        wire.receive_some()


class Renegotiations(_Tls):
    """Renegotiations of TLS 1.2, which the node refuses."""

    name = "renegotiations"
    version = ssl.TLSVersion.TLSv1_2

    def flood(self, wire: Wire, tls: ssl.SSLObject, outgoing: ssl.MemoryBIO) -> None:
        wire.send(renegotiation(tls, outgoing))
        wire.receive_some()
