"""Creates the topics of one run before its faults begin."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from mqd.client.admin import Admin
from mqd.client.cluster import ClusterClient
from mqd.client.coordinator import Coordinator, KeyType
from mqd.errors import MqError
from mqd.testing.clients.transactions import TOPIC
from mqd.testing.faults.plan import Mode
from mqd.testing.node_options import COORDINATOR_PARTITIONS
from mqd.types import GROUPS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition

FORM_SECONDS = 20.0
"""The virtual time within which the topics and coordinators must exist."""
REPLICAS = 3
COPIED = "a"
"""The topic that copiers copy in transactions."""


class FormationError(Exception):
    """The cluster could not create the topics in time."""


class Formation:
    """The topics whose records must survive."""

    def __init__(self, new_client: Callable[[str], Awaitable[ClusterClient]], mode: Mode) -> None:
        self._new_client = new_client
        self._mode = mode

    async def create_topics(self, chance: random.Random) -> list[TopicPartition]:
        """Create topics for records without transactions, with three replicas."""
        segment_ms = chance.choice([300, 2000, 60_000])
        flush = self._mode is Mode.POWER_ALL or chance.random() < 0.2
        min_insync = 2 if self._mode is not Mode.KILL else chance.choice([1, 2, 2])
        configs = {
            "min.insync.replicas": str(min_insync),
            "segment.ms": str(segment_ms),
            "retention.ms": "-1",
            "flush.before.ack": str(flush).lower(),
        }
        topics = {COPIED: chance.choice([1, 2]), "b": chance.choice([1, 3])}
        return await self._create(topics, configs)

    async def create_coordinated(self, choose: random.Random) -> list[TopicPartition]:
        """Create the topic to which transactions write, and the coordinators' topics, by a first
        FindCoordinator.
        """
        configs = {
            "min.insync.replicas": "2",
            "segment.ms": choose.choice(["300", "2000", "60000"]),
            "retention.ms": "-1",
            "flush.before.ack": str(self._mode is Mode.POWER_ALL).lower(),
        }
        partitions = await self._create({TOPIC: choose.choice([1, 2])}, configs)
        client = await self._new_client("asker")
        try:
            for kind, topic in (
                (KeyType.GROUP, GROUPS_TOPIC),
                (KeyType.TRANSACTION, TRANSACTIONS_TOPIC),
            ):
                await Coordinator(client, "anybody", kind).wait_connection(
                    "forming", timeout_s=FORM_SECONDS
                )
                partitions += [
                    TopicPartition(topic, number) for number in range(COORDINATOR_PARTITIONS)
                ]
        except MqError as error:
            raise FormationError(f"no coordinator within {FORM_SECONDS:g} s: {error}") from error
        return partitions

    async def _create(
        self, topics: dict[str, int], configs: dict[str, str]
    ) -> list[TopicPartition]:
        try:
            with trio.fail_after(FORM_SECONDS):
                admin = Admin(await self._new_client("maker"), timeout_s=FORM_SECONDS)
                for name, count in topics.items():
                    await admin.create_topic(name, count, REPLICAS, configs)
        except (trio.TooSlowError, MqError) as error:
            raise FormationError(
                f"no topic could be created within {FORM_SECONDS:g} s: {error}"
            ) from error
        return [
            TopicPartition(name, number)
            for name, count in topics.items()
            for number in range(count)
        ]
