"""Administrative changes beside the faults: topics, replicas, leaders, configurations."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable

import trio

from mqd.client.admin import CREATE_TOPICS, DELETE_TOPICS, Admin
from mqd.client.cluster import ClusterClient
from mqd.client.descriptions import (
    END_OF_LOG,
    ConfigChange,
    ConfigOperation,
    ElectionType,
    Resource,
    ResourceType,
)
from mqd.errors import ErrorCode, MqError
from mqd.protocol.batch_builder import build_batch
from mqd.testing.clients.wire import PRODUCE, PRODUCE_VERSION, produce_body
from mqd.testing.faults.plan import FaultPlan, Mode
from mqd.types import TopicPartition

SHORTENED = "x-short"
"""The topic that loses its oldest records. An isolated replica can have other records where
DeleteRecords removed records: its log agrees only from the new log start on. So no check compares
records of this topic.
"""
THROWAWAY = "x"
"""The first letter of topics that administration creates and deletes; no
client reads or checks their records.
"""

_RETENTION: tuple[dict[str, str], ...] = (
    {"retention.ms": "400", "segment.ms": "200", "file.delete.delay.ms": "100"},
    {"segment.ms": "200", "file.delete.delay.ms": "100"},
)
"""Configurations of SHORTENED. With the second one, only DeleteRecords shortens it."""


class Administration:
    """Changes of the metadata during the faults. Acknowledged changes must be in the metadata at
    the end.
    """

    def __init__(
        self,
        client: ClusterClient,
        plan: FaultPlan,
        chance: random.Random,
        nodes: list[int],
        checked: list[TopicPartition],
        wall_ms: Callable[[], int],
    ) -> None:
        self._wall_ms = wall_ms
        self.created: dict[str, int] = {}
        """Topics whose creation was acknowledged -> number of partitions."""
        self.deleted: set[str] = set()
        self.doubtful: set[str] = set()
        """Topics whose last creation or deletion has an unknown outcome."""
        self.counts: Counter[str] = Counter()
        self._admin = Admin(client, timeout_s=4.0)
        self.client = client
        self._plan = plan
        self._chance = chance
        self._nodes = nodes
        self._checked = checked
        self._number = 0

    async def run(self) -> None:
        """Until cancelled, create, grow and delete topics, elect leaders, move replicas and change
        configurations.
        """
        operations: list[Callable[[], Awaitable[object]]] = [
            self.create,
            self.create,
            self.delete,
            self.delete,
        ]
        operations += [self._elect, self._move, self._move, self._configure, self._grow]
        while True:
            await trio.sleep(self._chance.expovariate(1 / self._plan.admin_every))
            try:
                await self._chance.choice(operations)()
            except MqError:
                self.counts["refused"] += 1

    async def create(self, name: str | None = None) -> str | None:
        """Create a topic with this name, or with a new one. Returns its name if it exists.

        Does not retry: an attempt after its timeout may still create the topic, even after a retry
        has created it and it was deleted.
        """
        if name is None:
            self._number += 1
            name = f"{THROWAWAY}{self._number}"
        partitions = self._chance.randrange(1, 4)
        self.deleted.discard(name)
        self.doubtful.add(name)
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 3,
            "assignments": [],
            "configs": [],
        }
        response = await self.client.request_controller(
            CREATE_TOPICS, {"topics": [topic], "timeout_ms": 4000, "validate_only": False}
        )
        if response.topics[0].error_code:
            return None
        self.doubtful.discard(name)
        self.created[name] = partitions
        self.counts["created"] += 1
        return name

    async def delete_once(self, name: str) -> bool:
        """Try once to delete this topic. Returns whether it is deleted, so that it may be created
        again.

        An attempt after its timeout may still delete the topic that has this name then. So a caller
        that retries must not create the topic again.
        """
        del self.created[name]
        self.doubtful.add(name)
        body = {"topics": [{"name": name}], "topic_names": [name], "timeout_ms": 1000}
        response = await self.client.request_controller(DELETE_TOPICS, body)
        if response.responses[0].error_code:
            return False
        self.doubtful.discard(name)
        self.deleted.add(name)
        self.counts["deleted"] += 1
        return True

    async def delete(self, name: str | None = None) -> None:
        """Delete this topic, or a random one."""
        if name is None and self.created:
            name = self._chance.choice(sorted(self.created))
        if name is None or name not in self.created:
            return
        del self.created[name]
        self.doubtful.add(name)
        error = (await self._admin.delete_topics([name]))[name]
        if error is None or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self.doubtful.discard(name)
            self.deleted.add(name)
            self.counts["deleted"] += 1

    async def _grow(self) -> None:
        if not self.created:
            return
        name = self._chance.choice(sorted(self.created))
        # no plot may delete it meanwhile: the result would add it to `created` again
        count = self.created.pop(name)
        try:
            if (await self._admin.add_partitions({name: count + 1}))[name] is None:
                count += 1
                self.counts["grown"] += 1
        finally:
            self.created[name] = count

    async def shorten(self) -> None:
        """Until cancelled, write to SHORTENED, and delete its oldest records by retention and
        DeleteRecords.
        """
        partition = TopicPartition(SHORTENED, 0)
        # otherwise all replicas lose records, and none may lead
        flush = {"flush.before.ack": str(self._plan.mode is Mode.POWER_ALL).lower()}
        configs = self._chance.choice(_RETENTION) | flush
        is_there = False
        while True:
            await trio.sleep(self._chance.choice([0.02, 0.1, 0.4]))
            try:
                if not is_there:
                    await self._admin.create_topic(partition.topic, 1, 3, configs)
                    is_there = True
                await self._fill(partition)
                if self._chance.random() < 0.3:
                    before = (await self._admin.delete_records({partition: END_OF_LOG}))[partition]
                    self.counts["deleted_records"] += not isinstance(before, MqError) and before > 0
            except MqError as error:
                is_there = is_there or error.code is ErrorCode.TOPIC_ALREADY_EXISTS

    async def _fill(self, partition: TopicPartition) -> None:
        leader = await self.client.leader(partition, deadline=trio.current_time() + 2.0)
        batch = build_batch(
            [(None, b"x" * self._chance.choice([10, 1_000]))], timestamp=self._wall_ms()
        )
        connection = await self.client.connection_to_leader(leader.node_id)
        # 1: DeleteRecords may remove uncommitted records
        body = produce_body(partition, batch, acks=self._chance.choice([-1, 1]))
        response = await self.client.request(connection, PRODUCE, body, at_most=PRODUCE_VERSION)
        if code := response.responses[0].partition_responses[0].error_code:
            await self.client.refresh([partition.topic])
            raise MqError(ErrorCode(code))
        self.counts["filled"] += 1

    async def _elect(self) -> None:
        await self._admin.elect_leaders(
            ElectionType.PREFERRED, [self._chance.choice(self._checked)]
        )
        self.counts["elected"] += 1

    async def _move(self) -> None:
        partition = self._chance.choice(self._checked)
        replicas = self._chance.sample(self._nodes, 3) if self._chance.random() < 0.9 else None
        await self._admin.alter_partition_reassignments({partition: replicas})
        self.counts["moved"] += 1

    async def _configure(self) -> None:
        topic = self._chance.choice(self._checked).topic
        value = self._chance.choice(["300", "2000", "60000"])
        resource = Resource(ResourceType.TOPIC, topic)
        await self._admin.alter_configs(
            {resource: [ConfigChange("segment.ms", ConfigOperation.SET, value)]}
        )
        self.counts["configured"] += 1
