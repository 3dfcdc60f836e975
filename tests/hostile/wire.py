"""A blocking connection: bytes out, whole responses in.

It is the only code that attackers and the good client share.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Any

from mqd.testing.requests import decoded, frame

TIMEOUT_SECONDS = 60.0


class Wire:
    """One connection to a broker on loopback."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._sock = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def timeout(self, seconds: float) -> None:
        """Wait at most this long for the broker, from now on."""
        self._sock.settimeout(seconds)

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def receive(self) -> bytes:
        """The next response, without its length."""
        return self._exactly(struct.unpack(">i", self._exactly(4))[0])

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
