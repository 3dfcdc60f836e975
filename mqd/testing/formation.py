"""Creates the topics of one run before its faults begin."""

from __future__ import annotations

import base64
import random
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import trio

from mqd.client.admin import Admin
from mqd.client.cluster import ClusterClient
from mqd.client.coordinator import Coordinator, KeyType
from mqd.client.descriptions import ConfigChange, ConfigOperation, Resource, ResourceType
from mqd.errors import MqError
from mqd.testing.clients import delayed
from mqd.testing.clients.delayed import DelayFeatures
from mqd.testing.clients.owners import LEASE_MS, OWNED, OWNED_PARTITIONS
from mqd.testing.clients.queues import MEMORY_PARTITIONS, MEMORY_TOPIC
from mqd.testing.clients.transactions import TOPIC
from mqd.testing.faults.plan import Mode
from mqd.testing.node_options import COORDINATOR_PARTITIONS
from mqd.testing.share_features import LETTER_PARTITIONS, LETTERS, ShareFeatures
from mqd.types import (
    GROUPS_TOPIC,
    IN_MEMORY,
    PRODUCER_ACCESS,
    PRODUCER_LEASE,
    SHARE_STATE_TOPIC,
    STORAGE,
    TRANSACTIONS_TOPIC,
    TopicPartition,
)

FORM_SECONDS = 20.0
"""The virtual time within which the topics and coordinators must exist."""
REPLICAS = 3
COPIED = "a"
"""The topic that copiers copy in transactions."""
READ_TOPICS = (COPIED, "b")
"""The topics of the load "plain", which groups read, too."""
SHARE_GROUPS = ("share0", "share1")
ORDERED_SHARE_GROUP = SHARE_GROUPS[1]
"""It has `share.key.affinity`."""


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
        topics = dict(zip(READ_TOPICS, (chance.choice([1, 2]), chance.choice([1, 3]))))
        return await self._create(topics, configs)

    async def create_share_groups(
        self, choose: random.Random, features: ShareFeatures
    ) -> list[TopicPartition]:
        """Create the topics of the coordinators, of the states of share groups and of their dead
        letters, and configure the groups and the topics that they read.
        """
        wanted = [(KeyType.GROUP, GROUPS_TOPIC)]
        partitions: list[TopicPartition] = []
        if features.letters:
            wanted.append((KeyType.TRANSACTION, TRANSACTIONS_TOPIC))
            partitions = await self._create({LETTERS: LETTER_PARTITIONS}, self._configs(choose))
        partitions += await self._find_coordinators(wanted)
        return partitions + await self._configure_share_groups(features)

    async def create_coordinated(self, choose: random.Random) -> list[TopicPartition]:
        """Create the topic to which transactions write, and the coordinators' topics, by a first
        FindCoordinator.
        """
        configs = self._configs(choose)
        return await self._create(
            {TOPIC: choose.choice([1, 2])}, configs
        ) + await self._find_coordinators(
            ((KeyType.GROUP, GROUPS_TOPIC), (KeyType.TRANSACTION, TRANSACTIONS_TOPIC))
        )

    def _configs(self, choose: random.Random) -> dict[str, str]:
        """The configs of a topic that must not lose a record."""
        return {
            "min.insync.replicas": "2",
            "segment.ms": choose.choice(["300", "2000", "60000"]),
            "retention.ms": "-1",
            "flush.before.ack": str(self._mode is Mode.POWER_ALL).lower(),
        }

    async def _find_coordinators(
        self, wanted: Sequence[tuple[KeyType, str]]
    ) -> list[TopicPartition]:
        partitions: list[TopicPartition] = []
        client = await self._new_client("asker")
        try:
            for kind, topic in wanted:
                await Coordinator(client, "anybody", kind).wait_connection(
                    "forming", timeout_s=FORM_SECONDS
                )
                partitions += [
                    TopicPartition(topic, number) for number in range(COORDINATOR_PARTITIONS)
                ]
        except MqError as error:
            raise FormationError(f"no coordinator within {FORM_SECONDS:g} s: {error}") from error
        return partitions

    async def _configure_share_groups(self, features: ShareFeatures) -> list[TopicPartition]:
        """The groups read from the first record on. A first describe of a state creates the topic
        of the states.
        """
        values = {
            Resource(ResourceType.GROUP, group): {
                "share.auto.offset.reset": "earliest",
                "share.key.affinity": str(group == ORDERED_SHARE_GROUP).lower(),
                **features.group_configs(),
            }
            for group in SHARE_GROUPS
        }
        for topic in READ_TOPICS:
            values[Resource(ResourceType.TOPIC, topic)] = features.topic_configs()
        client = await self._new_client("configurer")
        admin = Admin(client, timeout_s=FORM_SECONDS)
        try:
            await admin.alter_configs(
                {
                    resource: [
                        ConfigChange(name, ConfigOperation.SET, value)
                        for name, value in rows.items()
                    ]
                    for resource, rows in values.items()
                    if rows
                }
            )
            place = f"{SHARE_GROUPS[0]}:{base64.urlsafe_b64encode(UUID(int=1).bytes).decode()}:0"
            with trio.fail_after(FORM_SECONDS):
                while True:
                    connection = await client.any_connection()
                    body = {"key": place, "key_type": 2, "coordinator_keys": [place]}
                    found = await client.request(connection, 10, body)
                    if not found.coordinators[0].error_code:
                        break
                    await trio.sleep(0.05)
        except (trio.TooSlowError, MqError) as error:
            raise FormationError(f"no share coordinator within {FORM_SECONDS:g} s: {error}") from (
                error
            )
        return [
            TopicPartition(SHARE_STATE_TOPIC, number) for number in range(COORDINATOR_PARTITIONS)
        ]

    async def create_delayed(
        self, choose: random.Random, features: DelayFeatures
    ) -> list[TopicPartition]:
        """Create a delay topic, a retry topic, their target and the topic of dead letters."""
        configs, partitions = self._configs(choose), []
        for topic, own in features.configs().items():
            partitions += await self._create({topic: delayed.PARTITIONS}, configs | own)
        return partitions

    async def create_queues(self, choose: random.Random) -> list[TopicPartition]:
        """Create a topic in memory, and topics with one producer at a time."""
        replicas, min_insync = choose.choice([(REPLICAS, "1"), (REPLICAS, "2"), (1, "1")])
        in_memory = {
            STORAGE: IN_MEMORY,
            "min.insync.replicas": min_insync,
            "segment.ms": choose.choice(["300", "2000", "60000"]),
            "retention.ms": "-1",
        }
        partitions = await self._create(
            {MEMORY_TOPIC: MEMORY_PARTITIONS}, in_memory, replicas=replicas
        )
        for topic, access in OWNED.items():
            one_producer = {
                **self._configs(choose),
                PRODUCER_ACCESS: access,
                PRODUCER_LEASE: str(LEASE_MS),
            }
            partitions += await self._create({topic: OWNED_PARTITIONS}, one_producer)
        return partitions

    async def _create(
        self, topics: dict[str, int], configs: dict[str, str], *, replicas: int = REPLICAS
    ) -> list[TopicPartition]:
        try:
            with trio.fail_after(FORM_SECONDS):
                admin = Admin(await self._new_client("maker"), timeout_s=FORM_SECONDS)
                for name, count in topics.items():
                    await admin.create_topic(name, count, replicas, configs)
        except (trio.TooSlowError, MqError) as error:
            raise FormationError(
                f"no topic could be created within {FORM_SECONDS:g} s: {error}"
            ) from error
        return [
            TopicPartition(name, number)
            for name, count in topics.items()
            for number in range(count)
        ]
