"""The login of the clients of these tests: TLS, then SASL PLAIN, over a blocking socket.

A process has one login. It counts for connections to its port only.
"""

from __future__ import annotations

import json
import socket
import ssl
from dataclasses import asdict, dataclass
from functools import cache
from typing import Final

PASSWORD: Final = "password"
"""The password of every user of these tests."""
_used: list[Login] = []
"""The login of this process, or nothing."""


@dataclass(frozen=True)
class Login:
    port: int
    user: str
    ca: str
    """The file of the certificate authority."""

    def as_json(self) -> str:
        """For the process that logs in: see `use`."""
        return json.dumps(asdict(self))

    @property
    def token(self) -> bytes:
        return f"\0{self.user}\0{PASSWORD}".encode()

    def over_tls(self, sock: socket.socket) -> ssl.SSLSocket:
        return _context(self.ca).wrap_socket(sock, server_hostname="127.0.0.1")


def use(login_as_json: str) -> None:
    """Log in on all connections of this process to the port of the login. Empty: nowhere."""
    _used[:] = [Login(**json.loads(login_as_json))] if login_as_json else []


def login_on(port: int) -> Login | None:
    """The login for connections to this port."""
    return next((login for login in _used if login.port == port), None)


@cache
def _context(ca: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca)
