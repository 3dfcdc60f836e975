"""A client that logs in: on simulated nodes, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from mqd.client import Admin, AuthenticationFailed, ClientError, open_producer
from mqd.client.access import ScramMechanism, ScramUpsertion
from mqd.client.errors import InvalidValue
from mqd.client.security import Security
from mqd.errors import ErrorCode
from mqd.testing import Cluster, run

SESSION_SECONDS = 20
OPTIONS = {
    "listeners": "SASL_PLAINTEXT://:9092",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'user_admin="admin-secret" user_alice="alice-secret";'
    ),
    "connections.max.reauth.ms": str(SESSION_SECONDS * 1000),
    "sasl.oauthbearer.allow.unsigned.tokens": "true",
    "offsets.topic.num.partitions": "1",
}


def plain(user: str = "admin", password: str = "admin-secret") -> Security:
    return Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username=user, password=password)


def scram(password: str) -> Security:
    return Security(
        protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", username="carol", password=password
    )


def simulated(main: Callable[[Cluster], Awaitable[None]]) -> None:
    async def in_cluster() -> None:
        async with Cluster(1, options=OPTIONS) as cluster:
            await main(cluster)

    run(in_cluster, seed=1)


def test_a_producer_stays_while_its_sessions_expire() -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.open_client(security=plain()) as client:
            await Admin(client).create_topic("t", 1, 1)
            async with open_producer(client, linger_ms=0) as producer:
                for number in range(int(10 * SESSION_SECONDS)):
                    await producer.send("t", b"%d" % number)
                    await trio.sleep(0.5)
            connections = list(client._connections.values())
            assert all(each.failure is None for each in connections)
        assert cluster.daemon(1).server.statistics().connections <= len(connections) + 1

    simulated(main)


def test_scram_users_and_a_new_password() -> None:
    async def set_password(admin: Admin, password: str) -> None:
        upsertion = ScramUpsertion("carol", ScramMechanism.SHA_256, password)
        results = await admin.alter_user_scram_credentials([upsertion])
        assert not any(results.values())

    async def main(cluster: Cluster) -> None:
        async with cluster.open_client(security=plain()) as client:
            await set_password(Admin(client), "first")
            async with cluster.open_client(security=scram("first")) as carol:
                await set_password(Admin(client), "second")
                await carol.refresh([])  # the session goes on
                with pytest.raises(AuthenticationFailed):
                    async with cluster.open_client(security=scram("first")):
                        pass
                await trio.sleep(SESSION_SECONDS)
                with pytest.raises(ClientError):
                    await carol.refresh([])
                    await carol.refresh([])
            async with cluster.open_client(security=scram("second")) as carol:
                await carol.refresh([])

    simulated(main)


def test_failed_logins_and_their_remedies() -> None:
    async def failure(cluster: Cluster, security: Security | None) -> ClientError:
        with pytest.raises(ClientError) as caught:
            async with cluster.open_client(security=security, wait_s=0.0, request_timeout_s=5.0):
                pass
        return caught.value

    async def main(cluster: Cluster) -> None:
        known = await failure(cluster, plain("alice", "wrong"))
        unknown = await failure(cluster, plain("nobody", "wrong"))
        assert isinstance(known, AuthenticationFailed) and not known.retriable
        assert known.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert known.message == unknown.message
        assert "password" in known.remedy and "wrong" not in known.message + repr(known)

        disabled = Security(
            protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-512", username="a", password="b"
        )
        error = await failure(cluster, disabled)
        assert error.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert "PLAIN, SCRAM-SHA-256, OAUTHBEARER" in error.remedy

        error = await failure(cluster, None)
        assert "security.protocol" in error.remedy

        def no_token() -> str:
            raise OSError("the provider is down")

        lost = Security(protocol="SASL_PLAINTEXT", mechanism="OAUTHBEARER", token=no_token)
        assert "the provider is down" in (await failure(cluster, lost)).message
        invalid = Security(protocol="SASL_PLAINTEXT", mechanism="OAUTHBEARER", token="a.b.c")
        assert "invalid_token" in (await failure(cluster, invalid)).message

    simulated(main)


def test_what_a_login_needs() -> None:
    for options in (
        {"protocol": "SASL_SSL"},
        {"protocol": "SASL_SSL", "mechanism": "GSSAPI"},
        {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "a"},
        {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER"},
        {"protocol": "SSL", "mechanism": "PLAIN"},
        {"protocol": "TLS"},
    ):
        with pytest.raises(InvalidValue):
            Security(**options)  # type: ignore[arg-type]
    assert "hush" not in repr(plain("a", "hush"))
    token = Security(protocol="SASL_SSL", mechanism="OAUTHBEARER", token="hush")
    assert "hush" not in repr(token)
