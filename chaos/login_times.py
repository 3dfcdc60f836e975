"""Logins with PLAIN and SCRAM over a bare socket: how long they take, and whether the times of two
kinds of users differ.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .node import LOOPBACK

SHARE_KEPT = 0.75
TOLERANCE = 0.03
"""A difference of this part of the time is too small to see, and may come from memory caches."""
SIGMAS = 5.0
AUTHENTICATION_FAILED = 58
_TIMEOUT_S = 30.0
_HANDSHAKE, _AUTHENTICATE = 17, 36


# -- one login


class TimedLogin(NamedTuple):
    nanoseconds: int
    """From the user's token to its response."""
    error_code: int
    token: bytes = b""
    """The token of the response."""


def timed_login(port: int, user: str, password: str) -> TimedLogin:
    """One login on a new connection, which is closed then. Raises OSError if the node closes it."""
    token = f"\0{user}\0{password}".encode()
    with socket.create_connection((LOOPBACK, port), _TIMEOUT_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin_login(sock, "PLAIN")
        return _timed(sock, token)


def timed_scram(port: int, mechanism: str, user: str) -> tuple[TimedLogin, TimedLogin]:
    """Both messages of a login with an invalid proof. Raises OSError if the node closes the
    connection.
    """
    proof = b"A" * (43 if mechanism == "SCRAM-SHA-256" else 86)
    proof += b"=" * (-len(proof) % 4)
    nonce = secrets.token_hex(12).encode()
    with socket.create_connection((LOOPBACK, port), _TIMEOUT_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin_login(sock, mechanism)
        first = _timed(sock, b"n,,n=" + user.encode() + b",r=" + nonce)
        server_nonce = first.token.partition(b",")[0]
        return first, _timed(sock, b"c=biws," + server_nonce + b",p=" + proof)


def begin_login(sock: socket.socket, mechanism: str) -> None:
    """Choose the mechanism."""
    name = mechanism.encode()
    sock.sendall(_request(_HANDSHAKE, struct.pack(">h", len(name)) + name))
    _response(sock)


def send_token(sock: socket.socket, token: bytes) -> tuple[int, bytes]:
    """The error code and the token of the response."""
    sock.sendall(_request(_AUTHENTICATE, struct.pack(">i", len(token)) + token))
    response = _response(sock)
    position = 8 + max(0, int.from_bytes(response[6:8], "big", signed=True))
    return int.from_bytes(response[4:6], "big", signed=True), response[position + 4 :]


def _timed(sock: socket.socket, token: bytes) -> TimedLogin:
    begun = time.perf_counter_ns()
    code, answer = send_token(sock, token)
    return TimedLogin(time.perf_counter_ns() - begun, code, answer)


def _request(api_key: int, body: bytes) -> bytes:
    """Version 1, with its length."""
    data = struct.pack(">hhih", api_key, 1, 1, -1) + body
    return struct.pack(">i", len(data)) + data


def _response(sock: socket.socket) -> bytes:
    """The next response. Raises ConnectionError without one."""
    with sock.makefile("rb") as stream:
        size = stream.read(4)
        response = stream.read(int.from_bytes(size, "big"))
    if len(response) < 6:
        raise ConnectionError("the node closed the connection")
    return response


def write_users(path: Path, users: Iterable[str], password: str) -> None:
    """Give these users of a `users_file` the password."""
    environment = {**os.environ, "MQD_USER_PASSWORD": password}
    for user in users:
        command = [sys.executable, "-m", "mqd", "storage", "hash-password", user]
        subprocess.run(
            [*command, "--file", str(path)], env=environment, check=True, stdout=subprocess.DEVNULL
        )


# -- the comparison


@dataclass(frozen=True, slots=True)
class Outcome:
    """Nanoseconds."""

    known: float
    unknown: float
    error: float
    """Standard error of their difference."""

    @property
    def tells_users_apart(self) -> bool:
        """Whether the difference is certain, and larger than the tolerance."""
        difference = abs(self.known - self.unknown) - SIGMAS * self.error
        return difference > TOLERANCE * min(self.known, self.unknown)

    def __str__(self) -> str:
        return (
            f"known {self.known:.0f} ns, unknown {self.unknown:.0f} ns, "
            f"standard error {self.error:.1f} ns"
        )


def compared(known: Sequence[int], unknown: Sequence[int]) -> Outcome:
    """`known`, `unknown`: nanoseconds of logins of users that exist, and of others. Both kinds must
    alternate at random, so that a busy machine delays both alike. The slowest quarter of each is
    dropped: it was interrupted.
    """
    kept, others = _fastest(known), _fastest(unknown)
    error = math.sqrt(_variance(kept) / len(kept) + _variance(others) / len(others))
    return Outcome(_mean(kept), _mean(others), error)


def _fastest(times: Sequence[int]) -> list[int]:
    return sorted(times)[: int(SHARE_KEPT * len(times))]


def _mean(values: list[int]) -> float:
    return sum(values) / len(values)


def _variance(values: list[int]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)
