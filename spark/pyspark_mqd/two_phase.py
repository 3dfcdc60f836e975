"""Checks that the brokers support two-phase commit (KIP-939), which the delivery guarantee
atomic-batch needs.

The driver checks this before tasks start. Otherwise each task would fail with the same error.
"""

from __future__ import annotations

from mqd.client.errors import ClientError

from .connection import Connection
from .errors import ConnectorError

INIT_PRODUCER_ID = 22
VERSION_MIN = 6
"""The version of InitProducerId that a broker supports only if two-phase commit is enabled."""

_checked: set[Connection] = set()


def require_two_phase(connection: Connection) -> None:
    """Raises ConnectorError if a broker that responds has two-phase commit disabled.

    Checks once in each process. If brokers do not respond, the query waits for them later.
    """
    if connection in _checked:
        return
    try:
        lacking = _nodes_without(connection)
    except ClientError:
        return
    if lacking:
        raise ConnectorError(
            "Option 'deliveryGuarantee' is 'atomic-batch', but two-phase commit is not enabled on "
            f"node {', '.join(map(str, lacking))}. Start every broker with "
            "transaction.two.phase.commit.enable=true (on Apache Kafka also "
            "unstable.api.versions.enable=true), or use 'exactly-once'."
        )
    _checked.add(connection)


def _nodes_without(connection: Connection) -> list[int]:
    import trio

    from mqd.client.admin import Admin
    from mqd.client.cluster import connect

    async def main() -> list[int]:
        async with connect(connection.bootstrap, **connection.client_options()) as client:
            found = await Admin(client, timeout_s=client.request_timeout_s).describe_cluster()
            lacking = []
            for broker in found.brokers:
                if broker.node_id in found.fenced:
                    continue
                versions = (await client.connection_to(broker.address)).versions
                if versions.get(INIT_PRODUCER_ID, (0, 0))[1] < VERSION_MIN:
                    lacking.append(broker.node_id)
            return sorted(lacking)

    return trio.run(main)
