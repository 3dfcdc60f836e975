"""Invalid logins: valid exchanges of each SASL mechanism, damaged at random.

    python -m chaos.sasl_fuzz --seconds 3600 --seed 1

starts a node with two SASL listeners and sends them to it on several connections at a time. One
listener has its users of PLAIN in the configuration, the other has them in a file with hashed
passwords. Between the damaged logins, a good client logs in to both. On the second listener, the
run also measures logins with wrong passwords of known and unknown users.

The run fails if the node ends, refuses the good client, or grows without end. It also fails if the
node logs a bug or a password, or serves a client that has not logged in. It fails as well if the
times tell known users from unknown ones (login_times.py).
"""

from __future__ import annotations

import argparse
import random
import socket
import struct
import sys
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path

from chaos.node import LOOPBACK, Node, end_on_sigterm, free_ports
from mqd.client import sync
from mqd.client.security import Security

from .login_times import AUTHENTICATION_FAILED, compared, timed_login, write_users

USER, PASSWORD = "alice", "alice-s3cret-of-the-fuzzer"
METADATA_ID = 0x4D455441
"""Correlation id of the request that only a client with a login may send."""
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "")
_BATCH = 8
_BATCHES = 25
"""Between two logins of the good client."""
_KNOWN_USERS = 8
"""Users of the file, besides the good client."""
_MEASURED = 24
"""Logins that are measured between two logins of the good client. Half of them are of known users,
on average.
"""
_MEASURED_MIN = 100
"""With fewer, the run compares no times."""
_GROWTH_MIB_MAX = 200
_JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(api_key: int, version: int, body: bytes, correlation_id: int = 1) -> bytes:
    flexible = api_key in (18, 36) and version >= (3 if api_key == 18 else 2)
    header = struct.pack(">hhih", api_key, version, correlation_id, 1) + b"f"
    return header + (b"\0" if flexible else b"") + body


def exchange(chance: random.Random) -> list[bytes]:
    """The bytes of one connection, in pieces. They never contain the right password."""
    frames = [frame(body) for body in _bodies(chance)]
    for _ in range(chance.choice((0, 0, 1, 1, 2, 5))):
        position = chance.randrange(len(frames))
        frames[position] = _damaged(chance, frames[position])
    if chance.random() < 0.1:
        chance.shuffle(frames)
    if chance.random() < 0.1:
        frames += frames[-1:] * chance.randrange(1, 30)
    frames.append(frame(request(3, 1, struct.pack(">i", 0), METADATA_ID)))
    if chance.random() < 0.5:  # all at once
        return [b"".join(frames)]
    return frames


def _bodies(chance: random.Random) -> Iterator[bytes]:
    if chance.random() < 0.5:
        yield request(18, chance.choice((0, 1, 2, 3, 4, 99)), b"\2f\0021\0")
    mechanism = chance.choice(_MECHANISMS)
    version = chance.choice((0, 1, 1, 1, 2))
    yield request(17, version, struct.pack(">h", len(mechanism)) + mechanism.encode())
    for token in _tokens(chance, mechanism):
        if version == 0:
            yield token
            continue
        of_token = chance.choice((0, 1, 2, 3))
        size = _varint(len(token) + 1) if of_token >= 2 else struct.pack(">i", len(token))
        end = b"\0" if of_token >= 2 else b""
        yield request(36, of_token, size + token + end)


def _tokens(chance: random.Random, mechanism: str) -> Iterator[bytes]:
    user = chance.choice((USER, "nobody", "", "=2C", "é", "a" * 5_000)).encode()
    if mechanism.startswith("SCRAM"):
        yield b"n," + chance.choice((b"", b"a=" + user)) + b",n=" + user + b",r=fuzz"
        proof = chance.choice((b"", b"A" * 43 + b"=", b"A" * 86 + b"==", b"%"))
        yield b"c=biws,r=fuzz" + chance.randbytes(8).hex().encode() + b",p=" + proof
    elif mechanism == "OAUTHBEARER":
        parts = (b'{"alg":"none"}', b'{"alg":"RS256","kid":"k"}', b"{}", b"[" * 2_000, b"\xff")
        encoded = [urlsafe_b64encode(chance.choice(parts)).rstrip(b"=") for _ in range(3)]
        yield b"n,,\1auth=Bearer " + b".".join(encoded) + b"\1\1"
        yield chance.choice((b"\1", b"", b"n,,\1auth=Bearer a.b.c\1\1"))
    else:
        wrong = chance.choice((b"wrong", b"", b"\xff", b"x" * 100_000))
        yield chance.choice((b"", b"bob", user)) + b"\0" + user + b"\0" + wrong


def _damaged(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    match chance.randrange(5):
        case 0:  # other bytes
            for _ in range(chance.randrange(1, 8)):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
        case 1:  # bytes that are missing
            del changed[chance.randrange(len(changed)) :]
        case 2:  # more bytes
            position = chance.randrange(len(changed))
            changed[position:position] = chance.randbytes(chance.randrange(1, 64))
        case 3:  # another length
            changed[:4] = struct.pack(
                ">i", chance.choice((-1, 0, 1, 7, 8, 2**19, 2**19 + 1, 2**31 - 1))
            )
        case _:  # a changed bit
            position = chance.randrange(len(changed))
            changed[position] ^= 1 << chance.randrange(8)
    return bytes(changed) or b"\0"


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def serves_metadata(data: bytes) -> bool:
    """Whether the responses contain one to the request that needs a login. An error response of a
    failed login is none: its array of brokers is empty.
    """
    served = struct.pack(">i", METADATA_ID)
    position = data.find(served)
    return position >= 0 and data[position + 4 : position + 8] not in (b"", b"\0\0\0\0")


# -- a real node


def run(seconds: float, seed: int) -> int:
    plain, secure, hashed = free_ports(3)
    with tempfile.TemporaryDirectory(prefix="mqd-fuzz-") as name:
        directory = Path(name)
        options = (
            f"listeners=PLAINTEXT://{LOOPBACK}:{plain},SASL://{LOOPBACK}:{secure},"
            f"FILE://{LOOPBACK}:{hashed}",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,"
            "FILE:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            f'listener.name.sasl.plain.sasl.jaas.config={_JAAS} user_{USER}="{PASSWORD}";',
            f'listener.name.file.plain.sasl.jaas.config={_JAAS} users_file="{_users(directory)}";',
            f"sasl.oauthbearer.jwks.endpoint.url=file://{_key_set(directory)}",
            "connection.failed.authentication.delay.ms=1",
            "connections.max.reauth.ms=60000",
        )
        node = Node(directory / "node", options, port=plain)
        node.start()
        try:
            return _attack(node, secure, hashed, seconds, seed)
        finally:
            if node.running:
                node.stop()


def _users(directory: Path) -> Path:
    """A file with the good client and the known users."""
    path = directory / "users"
    write_users(path, (USER, *map(_known_user, range(_KNOWN_USERS))), PASSWORD)
    return path


def _key_set(directory: Path) -> Path:
    path = directory / "keys.json"
    path.write_text(
        '{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k",'
        '"x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}'
    )
    return path


def _attack(node: Node, secure: int, hashed: int, seconds: float, seed: int) -> int:
    """`secure`, `hashed`: the ports of the listeners."""
    chance = random.Random(seed)
    begun, count, memory = time.monotonic(), 0, 0.0
    times: dict[bool, list[int]] = {True: [], False: []}
    while time.monotonic() - begun < seconds:
        for _ in range(_BATCHES):
            _send_batch(chance, chance.choice((secure, hashed)))
            count += _BATCH
        for port in (secure, hashed):
            _log_in(port)
        for _ in range(_MEASURED):
            is_known = chance.random() < 0.5
            times[is_known].append(_time_of_login(chance, hashed, is_known=is_known))
        log = node.stderr()
        for word in ("Traceback", "bug in a handler", PASSWORD):
            if word in log:
                print(f"seed {seed}: the log has {word!r}", file=sys.stderr)
                return 1
        node.check_alive()
        now = _resident_mib(node.pid)
        memory = memory or now
        if now - memory > _GROWTH_MIB_MAX:
            print(f"seed {seed}: the node grew from {memory:.0f} to {now:.0f} MiB", file=sys.stderr)
            return 1
    print(f"seed {seed}: {count} connections, {memory:.0f} MiB at first, {now:.0f} MiB at last")
    return _compare(times, seed)


def _log_in(port: int) -> None:
    """The good client."""
    security = Security(
        protocol="SASL_PLAINTEXT", mechanism="PLAIN", username=USER, password=PASSWORD
    )
    with sync.connect(f"{LOOPBACK}:{port}", security=security, request_timeout_s=10.0) as client:
        client.admin.describe_cluster()


def _known_user(number: int) -> str:
    return f"user-{number:03}"


def _time_of_login(chance: random.Random, port: int, *, is_known: bool) -> int:
    """Nanoseconds of a login with a wrong password."""
    number = chance.randrange(_KNOWN_USERS)
    user = _known_user(number) if is_known else f"usex-{number:03}"
    login = timed_login(port, user, "wrong-password")
    assert login.error_code == AUTHENTICATION_FAILED, login
    return login.nanoseconds


def _compare(times: dict[bool, list[int]], seed: int) -> int:
    """Print how long logins with wrong passwords took. Returns the exit code."""
    counts = f"{len(times[True])} logins of known users, {len(times[False])} of unknown ones"
    if sum(map(len, times.values())) < _MEASURED_MIN:
        print(f"seed {seed}: {counts}: too few to compare their times")
        return 0
    outcome = compared(times[True], times[False])
    print(f"seed {seed}: {counts}: {outcome}")
    if outcome.tells_users_apart:
        print(f"seed {seed}: the times tell users apart", file=sys.stderr)
        return 1
    return 0


def _send_batch(chance: random.Random, port: int) -> None:
    """Several exchanges at a time. Raises AssertionError if a request was served."""
    socks = []
    for _ in range(_BATCH):
        sock = socket.create_connection((LOOPBACK, port), 10)
        sock.settimeout(0.05)
        socks.append(sock)
    for sock in socks:
        try:
            for piece in exchange(chance):
                sock.sendall(piece)
            if chance.random() < 0.5:
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            continue
    for sock in socks:
        data = b""
        try:
            while part := sock.recv(65_536):
                data += part
        except OSError:
            pass
        sock.close()
        assert not serves_metadata(data), data


def _resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> int:
    end_on_sigterm()
    parser = argparse.ArgumentParser(description="Send damaged logins to a node.")
    parser.add_argument("--seconds", type=float, default=60.0, help="[default: 60]")
    parser.add_argument("--seed", type=int, default=1, help="[default: 1]")
    given = parser.parse_args()
    return run(given.seconds, given.seed)


if __name__ == "__main__":
    sys.exit(main())
