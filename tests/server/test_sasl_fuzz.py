"""Damaged logins: no bug, no login, and no connection that stays (chaos/sasl_fuzz.py)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from trio.testing import MockClock

from chaos.sasl_fuzz import exchange, serves_metadata
from mqd.security.client_listeners import SecurityProtocol
from mqd.security.hashed_users import line_of, parse_users
from mqd.security.principal import ANONYMOUS
from tests.log.support import InlineDisk
from tests.server.rig import rig, run_until_idle

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
CONNECTIONS = 400


@pytest.mark.parametrize("users", ['user_alice="s3cret"', 'users_file="users"'])
async def test_damaged_logins(tmp_path: Path, mock_clock: MockClock, users: str) -> None:
    chance = random.Random(7)
    options = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{JAAS} {users};",
        "sasl.oauthbearer.jwks.endpoint.url": "https://nowhere.invalid/keys",
        "connection.failed.authentication.delay.ms": "0",
        "connections.max.reauth.ms": "1000",
        "max.connections": "5000",
    }
    async with rig(tmp_path, SecurityProtocol.SASL_PLAINTEXT, **options) as node:
        hashed_users = node.node.sasl.listener("SASL_PLAINTEXT").hashed_users
        if hashed_users is not None:
            node.node.sasl.disk = InlineDisk()
            hashed_users.replace(parse_users(line_of("alice", "s3cret", b"salt", 4_096)))
        for _ in range(CONNECTIONS):
            client = await node.connect(address="10.0.0.9")
            for piece in exchange(chance):
                client.send(piece)
                await run_until_idle()
            assert all(each.principal == ANONYMOUS for each in node.server._connections)
            assert not serves_metadata(bytes(client.sock.sent))
        for _ in range(3):  # a task that has not ended gets no more time
            mock_clock.jump(12)
            await run_until_idle()
        assert not node.server._connections
        assert node.server.dispatcher.bugs == 0
        assert node.server.statistics().request_bytes == 0
        assert node.node.sasl.failures > CONNECTIONS / 4, "most reach a mechanism"
