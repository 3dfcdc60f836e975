"""Shared parts of the simulated clients: times, pauses, a single fetch."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from mqd import limits
from mqd.client.cluster import ClusterClient
from mqd.client.consumer import open_consumer
from mqd.client.errors import ClientError
from mqd.client.group_consumer import GroupConsumer
from mqd.errors import ErrorCode, MqError
from mqd.protocol.record_reader import Record
from mqd.types import TopicPartition

PAUSE_SECONDS = 0.1
"""The mean pause before a retry."""
DELIVERY_SECONDS = 8.0
"""The timeout of the delivery of a record, and of one read."""
FETCH_WAIT_MS = 400
CALL_SECONDS = 6.0
"""The timeout of one call of a coordinator."""
SESSION_MS = 1500
HEARTBEAT_MS = 300
"""The heartbeat interval of group members."""
DRAIN_LOOK_SECONDS = 0.2
_FETCH, _FETCH_VERSION = 1, 12
"""The newest that names topics by name."""


async def pause(chance: random.Random, mean: float) -> None:
    """Sleep for a random time: on average about `mean` seconds, at most ten times as long."""
    await trio.sleep(min(chance.expovariate(1 / mean), 10 * mean))


async def refresh(client: ClusterClient, partition: TopicPartition) -> None:
    """Refresh the metadata of the partition's topic. If no node responds, pause first."""
    try:
        await client.refresh([partition.topic])
    except MqError:
        await trio.sleep(PAUSE_SECONDS)


async def fetch(
    client: ClusterClient,
    name: str,
    node: int,
    partition: TopicPartition,
    offset: int,
    epoch: int,
    *,
    read_committed: bool = False,
) -> Any:
    """One fetch of one partition, from its leader or a follower. Returns the row of the response,
    which may have an error. Raises MqError and ProtocolError.
    """
    connection = await client.connection_to_broker(node, purpose=name)
    row = {
        "partition": partition.partition,
        "current_leader_epoch": epoch,
        "fetch_offset": offset,
        "partition_max_bytes": limits.CONSUMER_PARTITION_FETCH_BYTES,
    }
    body = {
        "max_wait_ms": FETCH_WAIT_MS,
        "min_bytes": 1,
        "max_bytes": limits.CONSUMER_FETCH_BYTES,
        "isolation_level": int(read_committed),
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": partition.topic, "partitions": [row]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    response = await client.request(connection, _FETCH, body, at_most=_FETCH_VERSION)
    if response.error_code:
        raise ClientError(ErrorCode(response.error_code), "fetch")
    return response.responses[0].partitions[0]


async def read_records(
    client: ClusterClient, partitions: Iterable[TopicPartition], *, read_committed: bool = True
) -> dict[TopicPartition, dict[int, Record]]:
    """All records of the partitions, by offset."""
    found: dict[TopicPartition, dict[int, Record]] = {one: {} for one in partitions}
    async with open_consumer(
        client, dict.fromkeys(found, 0), end="end", read_committed=read_committed, max_wait_ms=100
    ) as consumer:
        async for batch in consumer:
            place = TopicPartition(batch.topic, batch.partition)
            found[place].update((record.offset, record) for record in batch.records)
    return found


@contextmanager
def lives(members: dict[GroupConsumer, None], consumer: GroupConsumer) -> Iterator[None]:
    """Register the client as a member for the duration of the block."""
    members[consumer] = None
    try:
        yield
    finally:
        del members[consumer]


def owned(members: Iterable[GroupConsumer]) -> dict[str, frozenset[TopicPartition]]:
    """Member id -> partitions that it may read, of clients that consider themselves members."""
    return {one._member.member_id: one._member.owned for one in members if one._member.is_member}
