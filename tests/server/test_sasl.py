"""SASL on a listener: what a client may send before its login, what it gets, and when the
connection ends. The answers are those of Apache Kafka to the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from struct import pack
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mqd.errors import ErrorCode
from mqd.limits import SASL_REQUESTS_MAX
from mqd.security.client_listeners import SecurityProtocol
from mqd.security.hashed_users import PasswordHashCheck, line_of, parse_users
from mqd.security.plain import plain_token
from mqd.security.principal import ANONYMOUS, Principal
from mqd.security.scram import ScramClient, new_credential
from mqd.security.scram_credentials import ScramMechanism
from mqd.server.connection import Connection
from tests.log.support import InlineDisk
from tests.server.rig import Client, Rig, rig, run_until_idle

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_alice="secret" user_bob="other";'
)
OPTIONS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "connection.failed.authentication.delay.ms": "500",
}
GOOD = plain_token("alice", "secret")
WRONG = plain_token("alice", "wrong")
SCRAM = "SCRAM-SHA-256"


class SaslClient(Client):
    async def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> Any:
        return await self.request("sasl_handshake", version, {"mechanism": mechanism})

    async def token(self, token: bytes, version: int = 2) -> Any:
        return await self.request("sasl_authenticate", version, {"auth_bytes": token})

    async def log_in(self, token: bytes = GOOD) -> Any:
        await self.handshake()
        return await self.token(token)

    async def metadata(self) -> Any:
        return await self.request("metadata", 9, {"topics": []})

    def is_closed(self) -> bool:
        return self.sock.closed

    @property
    def connection(self) -> Connection:
        (found,) = self.rig.server._connections
        return found


@asynccontextmanager
async def node(directory: Path, **options: str) -> AsyncIterator[Rig]:
    async with rig(directory, SecurityProtocol.SASL_PLAINTEXT, **OPTIONS, **options) as made:
        yield made


async def client_of(made: Rig) -> SaslClient:
    client = await made.connect()
    return SaslClient(made, client.sock)


async def test_a_login(tmp_path: Path) -> None:
    async with node(tmp_path) as made:
        client = await client_of(made)
        versions = await client.request("api_versions", 0, {})
        keys = {row.api_key for row in versions.api_keys}
        assert {17, 36} <= keys
        response = await client.handshake()
        assert (response.error_code, list(response.mechanisms)) == (0, ["PLAIN", SCRAM])
        assert client.connection.principal == ANONYMOUS
        response = await client.token(GOOD)
        assert (response.error_code, response.session_lifetime_ms) == (0, 0)
        assert client.connection.principal == Principal("User", "alice")
        assert (await client.metadata()).error_code == 0
        # as on a listener without SASL
        assert (await client.handshake()).error_code == ErrorCode.ILLEGAL_SASL_STATE
        response = await client.token(GOOD)
        assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert "after successful authentication" in response.error_message
        assert (await client.metadata()).error_code == 0


async def test_a_listener_without_sasl_expects_no_login(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        client = await client_of(made)
        assert (await client.handshake()).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await client.token(GOOD)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await client.metadata()).error_code == 0


async def test_bare_tokens_after_handshake_v0(tmp_path: Path) -> None:
    async with node(tmp_path) as made:
        client = await client_of(made)
        await client.handshake(version=0)
        client.send_frame(GOOD)
        await run_until_idle()
        assert client.frames() == [b""]
        assert (await client.metadata()).error_code == 0
        # a request is never shorter than its header, again
        client.send_frame(b"abc")
        await run_until_idle()
        assert client.is_closed()


async def test_requests_that_are_sent_together(tmp_path: Path) -> None:
    async with node(tmp_path) as made:
        client = await client_of(made)
        client.post("sasl_handshake", 1, {"mechanism": "PLAIN"})
        client.post("sasl_authenticate", 2, {"auth_bytes": GOOD})
        client.post("metadata", 9, {"topics": []})
        await run_until_idle()
        assert [response.error_code for response in client.responses()] == [0, 0, 0]


FILE = 'org.apache.kafka.common.security.plain.PlainLoginModule required users_file="users";'


def with_users(made: Rig) -> None:
    """Give PLAIN a user. The disk does the work of threads at once."""
    made.node.sasl.disk = InlineDisk()
    users = made.node.sasl.listener("SASL_PLAINTEXT").hashed_users
    users.replace(parse_users(line_of("alice", "secret", b"salt", 4_096)))


async def test_users_in_a_file(tmp_path: Path) -> None:
    """The check of a password is done in a thread; the next request waits for it."""
    key = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    async with rig(tmp_path, SecurityProtocol.SASL_PLAINTEXT, **{**OPTIONS, key: FILE}) as made:
        with_users(made)
        client = await client_of(made)
        response = await client.log_in()
        assert (response.error_code, client.connection.principal.name) == (0, "alice")
        assert (await client.metadata()).error_code == 0
        client = await client_of(made)
        client.post("sasl_handshake", 1, {"mechanism": "PLAIN"})
        client.post("sasl_authenticate", 2, {"auth_bytes": GOOD})
        client.post("metadata", 9, {"topics": []})
        await run_until_idle()
        assert [response.error_code for response in client.responses()] == [0, 0, 0]


async def test_a_wrong_password_of_a_file(tmp_path: Path) -> None:
    key = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    options = {**OPTIONS, key: FILE, "connection.failed.authentication.delay.ms": "0"}
    async with rig(tmp_path, SecurityProtocol.SASL_PLAINTEXT, **options) as made:
        with_users(made)
        for token in (WRONG, plain_token("nobody", "secret")):
            client = await client_of(made)
            response = await client.log_in(token)
            assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert response.error_message.endswith("Invalid username or password")
            await run_until_idle()
            assert client.is_closed()
        assert made.node.sasl.failures == 2


class QueueDisk(InlineDisk):
    """Work waits in the queue of its limiter, until `begin`."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = trio.Event()

    async def offload(  # type: ignore[override]  # the work of this file needs no arguments
        self, call: Callable[[], bool], *, limiter: trio.CapacityLimiter
    ) -> bool:
        async with limiter:
            await self.begin.wait()
            return call()


@pytest.mark.parametrize("close", [Client.half_close, Client.reset])
async def test_the_password_of_a_closed_connection_is_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, close: Callable[[Client], None]
) -> None:
    """Otherwise a client could fill the queue of checks with passwords, and wait for none."""
    checked: list[str] = []
    run = PasswordHashCheck.run

    def counted(check: PasswordHashCheck) -> bool:
        checked.append(check._user)
        return run(check)

    monkeypatch.setattr(PasswordHashCheck, "run", counted)
    key = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    async with rig(tmp_path, SecurityProtocol.SASL_PLAINTEXT, **{**OPTIONS, key: FILE}) as made:
        with_users(made)
        disk = made.node.sasl.disk = QueueDisk()
        clients = {}
        for user in ("first", "closed", "alice"):
            clients[user] = await client_of(made)
            clients[user].post("sasl_handshake", 1, {"mechanism": "PLAIN"})
            token = plain_token(user, "secret")
            clients[user].post("sasl_authenticate", 2, {"auth_bytes": token})
            await run_until_idle()
        close(clients["closed"])
        await run_until_idle()
        assert clients["closed"].is_closed()
        disk.begin.set()
        await run_until_idle()
        assert checked == ["first", "alice"]
        assert [response.error_code for response in clients["alice"].responses()] == [0, 0]


async def test_checks_of_passwords_go_by_address(tmp_path: Path) -> None:
    """Clients with wrong passwords delay only others of their own address."""
    async with node(tmp_path) as made:
        disk = made.node.sasl.disk = QueueDisk()
        begun: list[str] = []

        async def check(address: str) -> None:
            def run() -> bool:
                begun.append(address)
                return False

            assert not await made.node.sasl.work(run, address)

        async with trio.open_nursery() as nursery:
            for address in ("bad", "bad", "bad", "good"):
                nursery.start_soon(check, address)
                await run_until_idle()
            disk.begin.set()
        assert begun == ["bad", "bad", "good", "bad"]


async def test_scram(tmp_path: Path) -> None:
    async with node(tmp_path) as made:
        credential = new_credential(ScramMechanism.SHA_256, "secret", b"salt")
        made.image.scram_credentials["alice", ScramMechanism.SHA_256] = credential
        client = await client_of(made)
        await client.handshake(SCRAM)
        mechanism = ScramClient(ScramMechanism.SHA_256, "alice", "secret", "nonce")
        token = mechanism.first()
        while not mechanism.is_complete:
            token = mechanism.respond(bytes((await client.token(token)).auth_bytes))
        assert client.connection.principal == Principal("User", "alice")


Step = tuple[str, int, dict[str, Any]]
HANDSHAKE: Step = ("sasl_handshake", 1, {"mechanism": "PLAIN"})
VERSIONS: Step = ("api_versions", 0, {})
METADATA: Step = ("metadata", 1, {"topics": None})


@pytest.mark.parametrize(
    "steps",
    [
        [METADATA],
        [VERSIONS, METADATA],
        [VERSIONS, VERSIONS],
        [("sasl_authenticate", 1, {"auth_bytes": GOOD})],
        [("produce", 9, {"acks": -1, "timeout_ms": 1, "topic_data": []})],
        [("fetch", 12, {"topics": []})],
    ],
    ids=lambda steps: "-".join(step[0] for step in steps),
)
async def test_other_requests_close_the_connection_at_once(
    tmp_path: Path, steps: Sequence[Step]
) -> None:
    async with node(tmp_path) as made:
        client = await client_of(made)
        for name, version, body in steps:
            client.post(name, version, body)
        await run_until_idle()
        assert client.is_closed()


async def test_the_log_names_requests_and_mechanisms(
    tmp_path: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with node(tmp_path) as made:
        for steps in (
            [METADATA],
            [HANDSHAKE, METADATA],
            [("sasl_handshake", 1, {"mechanism": "GSSAPI"})],
        ):
            client = await client_of(made)
            for step in steps:
                client.post(*step)
            await run_until_idle()
        mock_clock.jump(1)
        await run_until_idle()
    first, second, third = caplog.messages
    assert first.endswith(
        "reason=a Metadata request before authentication; set security.protocol=SASL_SSL (or "
        "SASL_PLAINTEXT) in the client"
    )
    assert second.endswith("reason=a Metadata request during authentication")
    assert "SASL mechanism 'GSSAPI' is not enabled; enabled=PLAIN" in third


async def test_frames_that_are_refused(tmp_path: Path) -> None:
    async with node(tmp_path) as made:
        for data in (
            pack(">i", 524_289),
            pack(">i", 2) + b"\0\x12",
            pack(">i", 12) + b"\xff" * 12,
            pack(">ihhih", 10, 17, 2, 1, -1),
        ):
            client = await client_of(made)
            client.send(data)
            await run_until_idle()
            assert client.is_closed(), data
        client = await client_of(made)
        client.send(pack(">ihhihh", 12, 18, 99, 1, -1, 0) * (SASL_REQUESTS_MAX + 1))
        await run_until_idle()
        assert len(client.frames()) == SASL_REQUESTS_MAX or client.is_closed()
        assert client.is_closed()


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ([("sasl_handshake", 1, {"mechanism": "GSSAPI"})], 33),
        ([("sasl_handshake", 0, {"mechanism": "GSSAPI"})], 33),
        ([HANDSHAKE, ("sasl_authenticate", 0, {"auth_bytes": WRONG})], 58),
        ([HANDSHAKE, ("sasl_authenticate", 2, {"auth_bytes": plain_token("x", "y")})], 58),
        ([HANDSHAKE, HANDSHAKE], 34),
        ([HANDSHAKE, VERSIONS], 34),
        ([HANDSHAKE, METADATA], None),
    ],
)
async def test_a_failed_login_gets_its_response_later(
    tmp_path: Path, mock_clock: MockClock, steps: Sequence[Step], code: int | None
) -> None:
    async with node(tmp_path) as made:
        client = await client_of(made)
        other = await client_of(made)
        for step in steps[:-1]:
            await client.request(*step)
        client.post(*steps[-1])
        client.post("metadata", 9, {"topics": []})
        await run_until_idle()
        mock_clock.jump(0.49)
        await run_until_idle()
        assert not client.frames() and not client.is_closed()
        assert (await other.log_in()).error_code == 0, "others do not wait"
        mock_clock.jump(0.02)
        await run_until_idle()
        assert client.is_closed()
        (frame,) = client.frames()
        if code is not None:
            assert int.from_bytes(frame[4 + (steps[-1][1] == 2) :][:2], "big") == code


async def test_the_sentences_and_the_log_do_not_help_an_attacker(
    tmp_path: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def failed(token: bytes, mechanism: str = "PLAIN") -> str:
        client = await client_of(made)
        await client.handshake(mechanism)
        client.post("sasl_authenticate", 2, {"auth_bytes": token})
        await run_until_idle()
        mock_clock.jump(1)
        await run_until_idle()
        return str(client.responses()[0].error_message)

    async with node(tmp_path) as made:
        with caplog.at_level(logging.WARNING):
            known, unknown = await failed(WRONG), await failed(plain_token("nobody", "secret"))
            assert known == unknown == "Authentication failed: Invalid username or password"
            assert await failed(b"n,,n=alice", SCRAM) == (
                "Authentication failed during authentication due to invalid credentials with SASL "
                f"mechanism {SCRAM}"
            )
            await failed(plain_token("evil\n" * 30, "x"))
        lines = [record.getMessage() for record in caplog.records]
        assert lines[0] == (
            "authentication failed user='alice' peer=10.0.0.1:1000 listener=SASL_PLAINTEXT "
            "mechanism=PLAIN reason=unknown user or wrong password"
        )
        assert "user='nobody'" in lines[1] and lines[1].partition("reason")[2] in lines[0]
        assert "user='evil\\nevil" in lines[3] and len(lines[3]) < 250
        assert not any(
            "secret" in line or "wrong " in line.partition("reason")[0] for line in lines
        )
        assert made.server.statistics().failed_logins == 4


async def test_a_connection_without_a_login_has_little_time(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with node(tmp_path) as made:
        quiet, good = await client_of(made), await client_of(made)
        await good.log_in()
        await trio.sleep(12)
        assert quiet.is_closed() and not good.is_closed()


async def test_a_session_expires(tmp_path: Path, mock_clock: MockClock) -> None:
    async with node(tmp_path, connections_max_reauth_ms="5000") as made:
        client = await client_of(made)
        assert (await client.log_in()).session_lifetime_ms == 5_000
        mock_clock.jump(4.9)
        assert (await client.metadata()).error_code == 0
        mock_clock.jump(0.2)
        client.post("metadata", 9, {"topics": []})
        await run_until_idle()
        assert client.is_closed() and not client.frames()


async def test_re_authentication(tmp_path: Path, mock_clock: MockClock) -> None:
    async with node(tmp_path, connections_max_reauth_ms="5000") as made:
        client = await client_of(made)
        await client.log_in()
        for _ in range(3):
            mock_clock.jump(4)
            assert (await client.log_in()).session_lifetime_ms == 5_000
            assert (await client.handshake()).error_code == ErrorCode.ILLEGAL_SASL_STATE, "too soon"
            assert (await client.metadata()).error_code == 0
        mock_clock.jump(6)  # expired, and nothing was sent since
        assert (await client.log_in()).session_lifetime_ms == 5_000
        mock_clock.jump(2)
        await client.handshake()
        client.post("sasl_authenticate", 2, {"auth_bytes": plain_token("bob", "other")})
        await run_until_idle()
        mock_clock.jump(1)
        await run_until_idle()
        (response,) = client.responses()
        assert response.error_message == (
            "Cannot change principals during re-authentication from User.alice: User.bob"
        )
        assert client.is_closed()


async def test_other_requests_end_a_re_authentication(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with node(tmp_path, connections_max_reauth_ms="5000") as made:
        for mechanism in ("PLAIN", SCRAM):
            client = await client_of(made)
            await client.log_in()
            mock_clock.jump(2)
            assert (await client.handshake(mechanism)).error_code == 0
            client.post("metadata", 9, {"topics": []})
            await run_until_idle()
            mock_clock.jump(1)
            await run_until_idle()
            assert client.is_closed()
