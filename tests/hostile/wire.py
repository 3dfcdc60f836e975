"""A blocking connection: bytes out, whole responses in.

It is the only code that attackers and the good client share.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from mqd.testing.requests import decoded, frame
from tests.hostile.login import login_on

TIMEOUT_SECONDS = 60.0


class Opening(IntEnum):
    """How far a new connection is open, on a port with logins. Other ports have only TCP."""

    TCP = 0
    TLS = 1
    LOGIN = 2


class Wire:
    """One connection to a broker on loopback."""

    def __init__(self, port: int, opening: Opening = Opening.LOGIN) -> None:
        self.port = port
        self._sock = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        login = login_on(port)
        if login is None or opening is Opening.TCP:
            return
        try:
            self._sock = login.over_tls(self._sock)
            if opening is Opening.LOGIN:
                self._log_in(login.token)
        except BaseException:
            self._sock.close()
            raise

    def _log_in(self, token: bytes) -> None:
        answer = self.ask("sasl_handshake", 1, {"mechanism": "PLAIN"})
        assert answer.error_code == 0, answer
        answer = self.ask("sasl_authenticate", 2, {"auth_bytes": token})
        assert answer.error_code == 0, answer

    def timeout(self, seconds: float) -> None:
        """Wait at most this long for the broker, from now on."""
        self._sock.settimeout(seconds)

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def receive(self) -> bytes:
        """The next response, without its length."""
        return self._exactly(struct.unpack(">i", self._exactly(4))[0])

    def receive_some(self) -> bytes:
        """The next bytes, whatever they are."""
        received = self._sock.recv(1 << 16)
        if not received:
            raise ConnectionError("The broker closed the connection.")
        return received

    def ask(self, name: str, version: int, body: Mapping[str, Any]) -> Any:
        """Send a request, and decode its response."""
        self.send(frame(name, version, body))
        return decoded(name, version, self.receive())

    def close(self) -> None:
        self._sock.close()

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            received = self._sock.recv(min(1 << 20, size - len(found)))
            if not received:
                raise ConnectionError("The broker closed the connection.")
            found += received
        return bytes(found)
