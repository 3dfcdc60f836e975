"""The attacks of test_attacks.py by clients that have logged in over SASL_SSL, and others by
clients that have not. The node has an authorizer. The good client has logged in, too. The bounds
are the same.

Here 50 connections attack, as a user who may do everything, some of them as a user without ACLs.
`python -m tests.hostile --security sasl_ssl` runs all of them, with 1, 5 and 50 connections.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from chaos.node import free_port
from mqd.client.login import Login as ClientLogin
from mqd.client.nurseries import owned_nursery
from mqd.client.peer import PeerConnection
from mqd.client.peer_opening import start_peer
from mqd.client.secure_network import secured
from mqd.client.security import Security
from mqd.io.entropy import RandomEntropy
from mqd.io.net import OsNetwork
from tests.hostile.attacks import ATTACKS, BEFORE_LOGIN, EVERY_ATTACK
from tests.hostile.costly import KnownSessions, OnePartition
from tests.hostile.good_client import TOPIC
from tests.hostile.login import PASSWORD, Login
from tests.hostile.malformed import Malformed
from tests.hostile.secured import ATTACKER, GOOD, STRANGER, create_acls, options
from tests.hostile.test_attacks import (
    BOUNDS,
    OPTIONS,
    measure,
    prepare,
    serves_a_new_client,
    with_a_secret,
)
from tests.hostile.trial import Attackers, attacking
from tests.nodes import ask, batch, connected, node
from tests.tls_files import write_texts

CONNECTIONS = 50
REQUESTS = 10
KNOWN = 500
_CLIENT_PORT = [name for name, kind in ATTACKS.items() if not kind.on_peer_port]
_SOME = (KnownSessions.name, OnePartition.name, Malformed.name)


pytestmark = [pytest.mark.slow]


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    yield
    gc.unfreeze()


@asynccontextmanager
async def logged_in(login: Login) -> AsyncIterator[PeerConnection]:
    security = Security(
        protocol="SASL_SSL",
        mechanism="PLAIN",
        username=login.user,
        password=PASSWORD,
        ca=Path(login.ca),
    )
    network = secured(OsNetwork(), security)
    async with owned_nursery() as nursery:
        yield await start_peer(
            nursery, network, "127.0.0.1", login.port, login=ClientLogin(security, RandomEntropy())
        )


@pytest.mark.parametrize(
    ("user", "attacks"),
    [
        pytest.param(ATTACKER, _CLIENT_PORT[:6], id="costly"),
        pytest.param(ATTACKER, _CLIENT_PORT[6:11], id="held"),
        pytest.param(ATTACKER, _CLIENT_PORT[11:], id="floods"),
        pytest.param(STRANGER, _SOME, id="without_acls"),
        pytest.param(STRANGER, tuple(BEFORE_LOGIN), id="before_login"),
    ],
)
async def test_a_good_client_waits_no_longer_than_the_bounds(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    attackers: Attackers,
    user: str,
    attacks: list[str],
) -> None:
    caplog.set_level(logging.CRITICAL)
    peers, port, files = with_a_secret(), free_port(), write_texts(tmp_path)
    ca = str(files["ca"])
    secure = options(files, peers.nodes[1].port, port)
    login, failures = Login(port, user, ca).as_json(), []
    async with node(tmp_path / "data", peers=peers, options={**OPTIONS, **secure}) as running:
        async with connected(running) as admin:
            created = await ask(admin, "create_acls", 3, create_acls(TOPIC))
            assert not any(row.error_code for row in created.results), created
            await prepare(admin, KNOWN)
        async with logged_in(Login(port, GOOD, ca)) as client:
            gc.collect()
            gc.freeze()
            for attack in attacks:
                records = batch(b"x" * EVERY_ATTACK[attack].good_bytes)
                async with attacking(attackers, port, attack, CONNECTIONS, KNOWN, login):
                    title = f"{attack:42} {CONNECTIONS:3}"
                    bound = BOUNDS[CONNECTIONS]
                    failures += await measure(client, title, records, bound, REQUESTS)
        await serves_a_new_client(partial(logged_in, Login(port, GOOD, ca)), batch(b"x"))
        assert running.daemon is not None and running.daemon.server is not None
        assert running.daemon.server.statistics().bugs == 0
    assert not failures
