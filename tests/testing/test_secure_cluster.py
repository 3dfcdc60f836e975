"""A simulated cluster with TLS and logins, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from mqd.client import Admin, ClientError, TopicPartition, open_consumer, open_producer
from mqd.client.errors import AuthenticationFailed, TlsHandshakeFailed
from mqd.client.security import Security
from mqd.testing import Cluster, run
from mqd.testing.cluster import PEER_PORT
from mqd.testing.security import PASSWORD, USER
from tests.tls_files import texts

ALERT = b"\x15"
"""The first byte of the response of a TLS listener to plaintext (RFC 8446)."""
PLACE = TopicPartition("t", 0)
VALUE_BYTES, VALUES = 200_000, 4
"""More than the buffers of a connection hold, so that nodes wait until they can send."""


def digest_of(
    main: Callable[[Cluster], Awaitable[None]], *, nodes: int = 1, security: str = "SASL_SSL"
) -> str:
    """The digest of the run's trace."""

    async def in_cluster() -> str:
        async with Cluster(nodes, security=security) as cluster:
            await main(cluster)
            return cluster.trace.digest

    return run(in_cluster, seed=1)


async def copy_large_records(cluster: Cluster) -> None:
    async with cluster.open_client() as client:
        await Admin(client).create_topic("t", 1, len(cluster.nodes))
        values = [b"%d" % number * VALUE_BYTES for number in range(VALUES)]
        async with open_producer(client) as producer:
            for value in values:
                await producer.send("t", value)
        with trio.fail_after(60):
            async with open_consumer(client, {PLACE: "beginning"}, end={PLACE: VALUES}) as reader:
                found = [record.value async for batch in reader for record in batch.records]
        assert found == values


@pytest.mark.parametrize("security", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_records_pass_and_the_trace_repeats(security: str) -> None:
    first = digest_of(copy_large_records, security=security)
    assert digest_of(copy_large_records, security=security) == first


def test_nodes_use_mutual_tls_between_them() -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.open_client() as client:
            await Admin(client).create_topic("t", 1, 3)
        stream = await cluster.client_network().connect("10.0.0.2", PEER_PORT)
        await stream.send_all(b"plaintext")
        view = memoryview(bytearray(100))
        received = await stream.receive_into(view)
        assert bytes(view[:received])[:1] == ALERT
        stream.close()

    digest_of(main, nodes=3)


async def refused(cluster: Cluster, security: Security, error: type[ClientError]) -> None:
    with pytest.raises(error):
        async with cluster.open_client(wait_s=0, security=security):
            pass


def test_a_client_without_the_password_is_refused() -> None:
    async def main(cluster: Cluster) -> None:
        known = cluster.client_security
        assert known is not None
        wrong = Security(
            protocol="SASL_SSL", ca=known.ca, mechanism="PLAIN", username=USER, password="wrong"
        )
        await refused(cluster, wrong, AuthenticationFailed)

    digest_of(main)


def test_a_client_with_another_authority_refuses_the_node() -> None:
    async def main(cluster: Cluster) -> None:
        other = Security(
            protocol="SASL_SSL",
            ca=texts().ca,
            mechanism="PLAIN",
            username=USER,
            password=PASSWORD,
        )
        await refused(cluster, other, TlsHandshakeFailed)

    digest_of(main)
