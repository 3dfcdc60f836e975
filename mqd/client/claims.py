"""Topics that one producer at a time may write to (`mqd.producer.access`): the checks before and
after a claim. `TransactionalProducer.claim` sends it.
"""

from __future__ import annotations

from typing import Literal

from mqd.client.cluster import ClusterClient
from mqd.client.errors import ClaimRefused, ClientError
from mqd.client.topic_configs import topic_configs
from mqd.errors import ErrorCode
from mqd.types import PRODUCER_ACCESS, PRODUCER_LEASE, PRODUCER_OWNER, SHARED

Access = Literal["exclusive", "wait"]


async def check_access(
    client: ClusterClient, topic: str, access: Access, *, timeout_s: float
) -> None:
    """Raises ClientError unless the topic has this access mode."""
    found = await topic_configs(client, topic, [PRODUCER_ACCESS], timeout_s=timeout_s)
    actual = found[PRODUCER_ACCESS] or SHARED
    if actual != access:
        raise ClientError(
            ErrorCode.INVALID_CONFIG,
            f"the topic {topic!r} has {PRODUCER_ACCESS}={actual}, and access={access!r} needs "
            f"{PRODUCER_ACCESS}={access}",
            remedy=f"run `mqctl topic config set {topic} {PRODUCER_ACCESS}={access}`",
        )


async def refusal_of(
    client: ClusterClient,
    topic: str,
    transactional_id: str,
    error: ClientError,
    *,
    timeout_s: float,
) -> ClientError:
    """The ClientError of a claim that failed with `error`: ClaimRefused if another id owns the
    topic, else the same.
    """
    keys = (PRODUCER_OWNER, PRODUCER_LEASE)
    try:
        found = await topic_configs(client, topic, keys, timeout_s=timeout_s)
    except ClientError:
        return error
    owner = found[PRODUCER_OWNER]
    if owner in ("", transactional_id):
        return error
    return ClaimRefused(topic, owner, transactional_id, lease_ms=found[PRODUCER_LEASE])
