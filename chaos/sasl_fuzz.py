"""Invalid logins: valid exchanges of each SASL mechanism, damaged at random.

    python -m chaos.sasl_fuzz --seconds 3600 --seed 1

starts a node with three SASL listeners and sends them to it on several connections at a time. One
listener has its users of PLAIN in the configuration, one has them in a file with hashed passwords,
and half of the connections use one with TLS. Some logins with SCRAM are for users that exist, and
continue the nonce of the node. Some tokens have a valid signature and invalid claims.

Between the damaged logins, a good client logs in to all listeners, with each mechanism. The run
also measures logins of known and unknown users with wrong passwords: with PLAIN on the listener
with the file, and with SCRAM.

The run fails if the node ends, refuses the good client, or grows without end. It also fails if the
node logs a bug or a password, or serves a client that has not logged in. It fails as well if the
times tell known users from unknown ones (login_times.py).
"""

from __future__ import annotations

import argparse
import random
import socket
import ssl
import struct
import sys
import tempfile
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chaos.node import LOOPBACK, Node, end_on_sigterm, free_ports
from mqd.client import ScramMechanism, ScramUpsertion, sync
from mqd.client.security import Security
from mqd.io.certificates import CA_CERTIFICATE

from .bearer_tokens import AUDIENCE, ISSUER, invalid_payload, invalid_token, key_set, valid_token
from .cluster_security import certificate_options, create_authority
from .login_times import (
    AUTHENTICATION_FAILED,
    begin_login,
    compared,
    send_token,
    timed_login,
    timed_scram,
    write_users,
)

USER, PASSWORD = "alice", "alice-s3cret-of-the-fuzzer"
METADATA_ID = 0x4D455441
"""Correlation id of the request that only a client with a login may send."""
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "")
_BATCH = 8
_BATCHES = 25
"""Between two logins of the good client."""
_KNOWN_USERS = 8
"""Users of the file and of SCRAM, besides the good client."""
_SCRAM = {
    "SCRAM-SHA-256": ScramMechanism.SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SHA_512,
}
_INTERACTIVE = 0.2
"""Part of the connections whose login with SCRAM continues the nonce of the node."""
_MEASURED = 24
"""Logins of each kind that are measured between two logins of the good client. Half of them are of
known users, on average.
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
        token = chance.choice(
            (
                b".".join(encoded),
                invalid_token(chance, USER).encode(),
                invalid_token(chance, USER).encode(),
                invalid_payload(chance).encode(),
            )
        )
        yield b"n,,\1auth=Bearer " + token + b"\1\1"
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


def scram_exchange(chance: random.Random, sock: socket.socket) -> None:
    """A login with SCRAM of a user that exists, most often: valid up to its proof, or nearly.

    Raises OSError if the node closes the connection, AssertionError if the login succeeds.
    """
    mechanism = chance.choice(tuple(_SCRAM))
    begin_login(sock, mechanism)
    user = chance.choice((USER, _known_user(chance.randrange(_KNOWN_USERS)), "nobody"))
    first = b"n,,n=" + user.encode() + b",r=" + chance.randbytes(12).hex().encode()
    code, challenge = send_token(sock, _maybe_damaged(chance, first))
    if code:
        return
    final = b"c=biws," + challenge.partition(b",")[0]
    proof_bytes = 32 if mechanism == "SCRAM-SHA-256" else 64
    match chance.randrange(8):
        case 0:
            final += b",p="
        case 1:
            final = final.replace(b"c=biws", b"c=eSws") + _proof(chance, proof_bytes)
        case 2:
            final += b",x=y" * chance.randrange(1, 2_000) + _proof(chance, proof_bytes)
        case 3:
            final += _proof(chance, chance.choice((0, 1, 31, 33, 63, 65, 10_000)))
        case _:
            final += _proof(chance, proof_bytes)
    code, answer = send_token(sock, _maybe_damaged(chance, final))
    assert code != 0, (user, mechanism, final, answer)


def _proof(chance: random.Random, size: int) -> bytes:
    return b",p=" + b64encode(chance.randbytes(size))


def _maybe_damaged(chance: random.Random, token: bytes) -> bytes:
    return _damaged(chance, token) if chance.random() < 0.3 else token


# -- a real node


@dataclass(frozen=True, slots=True)
class _Target:
    """The node and its listeners."""

    node: Node
    plain: int
    secure: int
    hashed: int
    tls: int
    ca: Path
    context: ssl.SSLContext

    def port(self, chance: random.Random) -> int:
        """Half of the connections use TLS."""
        return self.tls if chance.random() < 0.5 else chance.choice((self.secure, self.hashed))

    def connect(self, port: int) -> socket.socket:
        sock = socket.create_connection((LOOPBACK, port), 10)
        return self.context.wrap_socket(sock) if port == self.tls else sock


def run(seconds: float, seed: int) -> int:
    plain, secure, hashed, tls = free_ports(4)
    with tempfile.TemporaryDirectory(prefix="mqd-fuzz-") as name:
        directory = Path(name)
        create_authority(directory)
        in_config = f'{_JAAS} user_{USER}="{PASSWORD}";'
        keys = directory / "keys.json"
        keys.write_text(key_set())
        options = (
            f"listeners=PLAINTEXT://{LOOPBACK}:{plain},SASL://{LOOPBACK}:{secure},"
            f"FILE://{LOOPBACK}:{hashed},TLS://{LOOPBACK}:{tls}",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,"
            "FILE:SASL_PLAINTEXT,TLS:SASL_SSL",
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            f"listener.name.sasl.plain.sasl.jaas.config={in_config}",
            f"listener.name.tls.plain.sasl.jaas.config={in_config}",
            f'listener.name.file.plain.sasl.jaas.config={_JAAS} users_file="{_users(directory)}";',
            f"sasl.oauthbearer.jwks.endpoint.url=file://{keys}",
            f"sasl.oauthbearer.expected.audience={AUDIENCE}",
            f"sasl.oauthbearer.expected.issuer={ISSUER}",
            "connection.failed.authentication.delay.ms=1",
            "connections.max.reauth.ms=60000",
            *certificate_options(directory, "c", 1),
        )
        node = Node(directory / "node", options, port=plain)
        node.start()
        ca = directory / CA_CERTIFICATE
        context = ssl.create_default_context(cafile=str(ca))
        context.check_hostname = False
        target = _Target(node, plain, secure, hashed, tls, ca, context)
        try:
            _create_scram_users(target)
            return _attack(target, seconds, seed)
        finally:
            if node.running:
                node.stop()


def _users(directory: Path) -> Path:
    """A file with the good client and the known users."""
    path = directory / "users"
    write_users(path, (USER, *map(_known_user, range(_KNOWN_USERS))), PASSWORD)
    return path


def _create_scram_users(target: _Target) -> None:
    """The same users, for both kinds of SCRAM."""
    users = (USER, *map(_known_user, range(_KNOWN_USERS)))
    with sync.connect(f"{LOOPBACK}:{target.plain}") as client:
        for kind in _SCRAM.values():
            results = client.admin.alter_user_scram_credentials(
                [ScramUpsertion(user, kind, PASSWORD) for user in users]
            )
            assert not any(results.values()), results


def _attack(target: _Target, seconds: float, seed: int) -> int:
    chance = random.Random(seed)
    node = target.node
    begun, count, memory = time.monotonic(), 0, 0.0
    times: dict[str, dict[bool, list[int]]] = {
        kind: {True: [], False: []}
        for kind in ("PLAIN", *(f"{name} {part}" for name in _SCRAM for part in ("first", "final")))
    }
    while time.monotonic() - begun < seconds:
        for _ in range(_BATCHES):
            _send_batch(chance, target)
            count += _BATCH
        _log_in(target)
        for _ in range(_MEASURED):
            is_known = chance.random() < 0.5
            user = _measured_user(chance, is_known=is_known)
            login = timed_login(target.hashed, user, "wrong-password")
            assert login.error_code == AUTHENTICATION_FAILED, login
            times["PLAIN"][is_known].append(login.nanoseconds)
        for mechanism in _SCRAM:
            for _ in range(_MEASURED):
                is_known = chance.random() < 0.5
                user = _measured_user(chance, is_known=is_known)
                first, final = timed_scram(target.secure, mechanism, user)
                assert (first.error_code, final.error_code) == (0, AUTHENTICATION_FAILED), final
                times[f"{mechanism} first"][is_known].append(first.nanoseconds)
                times[f"{mechanism} final"][is_known].append(final.nanoseconds)
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
    return max(_compare(kind, each, seed) for kind, each in times.items())


def _log_in(target: _Target) -> None:
    """The good client: on each listener, and with each mechanism."""
    for port, mechanism in (
        (target.secure, "PLAIN"),
        (target.hashed, "PLAIN"),
        *((target.tls, mechanism) for mechanism in ("PLAIN", *_SCRAM, "OAUTHBEARER")),
    ):
        is_bearer = mechanism == "OAUTHBEARER"
        security = Security(
            protocol="SASL_SSL" if port == target.tls else "SASL_PLAINTEXT",
            ca=target.ca,
            mechanism=mechanism,
            username=None if is_bearer else USER,
            password=None if is_bearer else PASSWORD,
            token=valid_token(USER) if is_bearer else None,
        )
        address = f"{LOOPBACK}:{port}"
        with sync.connect(address, security=security, request_timeout_s=10.0) as client:
            client.admin.describe_cluster()


def _known_user(number: int) -> str:
    return f"user-{number:03}"


def _measured_user(chance: random.Random, *, is_known: bool) -> str:
    number = chance.randrange(_KNOWN_USERS)
    return _known_user(number) if is_known else f"usex-{number:03}"


def _compare(kind: str, times: dict[bool, list[int]], seed: int) -> int:
    """Print how long logins with wrong passwords took. Returns the exit code."""
    counts = f"{kind}: {len(times[True])} logins of known users, {len(times[False])} of unknown"
    if sum(map(len, times.values())) < _MEASURED_MIN:
        print(f"seed {seed}: {counts}: too few to compare their times")
        return 0
    outcome = compared(times[True], times[False])
    print(f"seed {seed}: {counts}: {outcome}")
    if outcome.tells_users_apart:
        print(f"seed {seed}: {kind}: the times tell users apart", file=sys.stderr)
        return 1
    return 0


def _send_batch(chance: random.Random, target: _Target) -> None:
    """Several exchanges at a time. Raises AssertionError if a request was served."""
    socks = [target.connect(target.port(chance)) for _ in range(_BATCH)]
    for sock in socks:
        try:
            if chance.random() < _INTERACTIVE:
                sock.settimeout(10)
                scram_exchange(chance, sock)
            sock.settimeout(0.05)
            for piece in exchange(chance):
                sock.sendall(piece)
            if chance.random() < 0.5:
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            continue
    for sock in socks:
        data = b""
        try:
            sock.settimeout(0.05)
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
