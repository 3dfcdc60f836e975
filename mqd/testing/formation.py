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
from mqd.delay_names import TARGET_CONFIG
from mqd.errors import MqError
from mqd.testing.clients import delayed
from mqd.testing.clients.transactions import TOPIC
from mqd.testing.faults.plan import Mode
from mqd.testing.node_options import COORDINATOR_PARTITIONS
from mqd.types import GROUPS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC, TopicPartition

FORM_SECONDS = 20.0
"""The virtual time within which the topics and coordinators must exist."""
REPLICAS = 3
COPIED = "a"
"""The topic that copiers copy in transactions."""
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
        topics = {COPIED: chance.choice([1, 2]), "b": chance.choice([1, 3])}
        return await self._create(topics, configs)

    async def create_coordinated(self, choose: random.Random, load: str) -> list[TopicPartition]:
        """Create the topic to which transactions write, and the coordinators' topics, by a first
        FindCoordinator. For share groups, the topic of their states, and their configuration.
        """
        if load == "share":
            partitions = await self._find_coordinators(((KeyType.GROUP, GROUPS_TOPIC),))
            return partitions + await self._create_share_groups()
        configs = {
            "min.insync.replicas": "2",
            "segment.ms": choose.choice(["300", "2000", "60000"]),
            "retention.ms": "-1",
            "flush.before.ack": str(self._mode is Mode.POWER_ALL).lower(),
        }
        return await self._create(
            {TOPIC: choose.choice([1, 2])}, configs
        ) + await self._find_coordinators(
            ((KeyType.GROUP, GROUPS_TOPIC), (KeyType.TRANSACTION, TRANSACTIONS_TOPIC))
        )

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

    async def _create_share_groups(self) -> list[TopicPartition]:
        """The groups read from the first record on. A first describe of a state creates the topic
        of the states.
        """
        values = {
            group: {
                "share.auto.offset.reset": "earliest",
                "share.key.affinity": str(group == ORDERED_SHARE_GROUP).lower(),
            }
            for group in SHARE_GROUPS
        }
        client = await self._new_client("configurer")
        admin = Admin(client, timeout_s=FORM_SECONDS)
        try:
            await admin.alter_configs(
                {
                    Resource(ResourceType.GROUP, group): [
                        ConfigChange(name, ConfigOperation.SET, value)
                        for name, value in rows.items()
                    ]
                    for group, rows in values.items()
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

    async def create_delayed(self, choose: random.Random) -> list[TopicPartition]:
        """Create a delay topic and its target."""
        configs = {
            "min.insync.replicas": "2",
            "segment.ms": choose.choice(["300", "2000", "60000"]),
            "retention.ms": "-1",
            "flush.before.ack": str(self._mode is Mode.POWER_ALL).lower(),
        }
        target = await self._create({delayed.TARGET: delayed.PARTITIONS}, configs)
        configs |= {TARGET_CONFIG: delayed.TARGET}
        return target + await self._create({delayed.SOURCE: delayed.PARTITIONS}, configs)

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
