"""Members of consumer groups in the simulated cluster. They record their partitions, records and
commits in `group_ledger.GroupLedger`. A group uses the classic protocol, that of KIP-848, or both:
then members choose at random at each start, and the group migrates. Members join, commit at times,
leave, crash and exceed the poll interval. Ghosts commit in the name of former owners of a
partition; the coordinator must reject every such commit.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import trio

from mqd.client.cluster import ClusterClient
from mqd.client.coordinator import Coordinator, KeyType
from mqd.client.group_consumer import GroupConsumer, open_group_consumer
from mqd.client.group_offset_admin import GroupOffsetAdmin
from mqd.client.offsets import (
    NAMES_UP_TO,
    OFFSET_COMMIT,
    CommittedOffset,
    commit_body,
    commit_errors,
)
from mqd.errors import MqError
from mqd.testing.clients.common import (
    CALL_SECONDS,
    DRAIN_LOOK_SECONDS,
    FETCH_WAIT_MS,
    HEARTBEAT_MS,
    PAUSE_SECONDS,
    SESSION_MS,
    lives,
    pause,
)
from mqd.testing.group_ledger import GHOST, GroupLedger
from mqd.types import TopicPartition

KINDS = ("classic", "eager", "consumer", "consumer", "mixed")
"""The protocols of a group's members: the classic one with a cooperative or an eager assignor,
KIP-848, or any.
"""
WORK_SECONDS = (0.02, 0.1, 0.4)
"""Mean processing times of a batch. A member delays revocations for as long."""
GHOST_SECONDS = 0.2
POLL_MS = 3000
"""max.poll.interval.ms: a rebalance waits this long for a member that does not poll."""


class Groups:
    """The groups of one run. All of them read the same partitions."""

    def __init__(
        self,
        *,
        ledger: GroupLedger,
        new_client: Callable[[str], Awaitable[ClusterClient]],
        source: Callable[[str], random.Random],
        end_of: Callable[[TopicPartition], int],
        request_seconds: float,
    ) -> None:
        """`end_of(partition)`: the end of its committed records. `request_seconds`: a call that
        took longer may have been sent more than once.
        """
        self.ledger = ledger
        self.draining = trio.Event()
        """Set when members must stay, and commit everything that they have read."""
        self.members: dict[GroupConsumer, None] = {}
        """The running members."""
        self.refused: Counter[str] = Counter()
        self.committed: dict[str, dict[TopicPartition, tuple[int, str]]] = {}
        """The last known committed offsets, (offset, metadata), of each group."""
        self._new_client = new_client
        self._source = source
        self._end_of = end_of
        self._request_seconds = request_seconds

    # -- for the runner

    def start(
        self, nursery: trio.Nursery, partitions: list[TopicPartition], *, groups: int
    ) -> None:
        """Start the groups. They run until the nursery is cancelled."""
        self.partitions = partitions
        for number in range(groups):
            group = f"group{number}"
            chance = self._source(group)
            kind = chance.choice(KINDS)
            self.committed[group] = {}
            for member in range(chance.choice([2, 3, 4])):
                nursery.start_soon(self._member, group, kind, f"{group}-{member}")
            nursery.start_soon(self._ghost, group)

    async def drain(self, client: ClusterClient) -> None:
        """Wait until each group has read everything and has committed it."""
        self.draining.set()
        admin = GroupOffsetAdmin(client, timeout_s=CALL_SECONDS)
        while self.missing() is not None:
            try:
                for group, found in (
                    await admin.list_group_offsets(sorted(self.committed))
                ).items():
                    if isinstance(found, Mapping):
                        self.committed[group] = {
                            place: (row.offset, row.metadata) for place, row in found.items()
                        }
            except MqError as error:
                self.refused[error.code.name] += 1
            await trio.sleep(DRAIN_LOOK_SECONDS)

    def missing(self) -> str | None:
        """The records that a group has not read, or whose offsets it has not committed."""
        for group, found in self.committed.items():
            for partition in self.partitions:
                offset = found.get(partition, (0, ""))[0]
                if offset < self._end_of(partition):
                    return (
                        f"{group} has committed {offset} of {partition}, which ends at "
                        f"{self._end_of(partition)}"
                    )
        return None

    # -- members

    async def _member(self, group: str, kind: str, name: str) -> None:
        chance = self._source(name)
        client = await self._new_client(name)
        topics = sorted({partition.topic for partition in self.partitions})
        while True:
            if not self.draining.is_set():
                await pause(chance, chance.choice([0.05, 0.3, 1.0]))
            protocol: Literal["classic", "consumer"] = (
                "classic" if kind in ("classic", "eager") else "consumer"
            )
            if kind == "mixed" and chance.random() < 0.5:
                protocol = "classic"
            assignors = ("range", "roundrobin") if kind == "eager" else ("cooperative-sticky",)
            static = chance.random() < 0.2 and kind != "mixed"
            events = _Events(self, chance, classic=protocol == "classic")
            try:
                async with open_group_consumer(
                    client,
                    group,
                    topics,
                    group_protocol=protocol,
                    assignors=assignors if protocol == "classic" else (),
                    instance_id=name if static else None,
                    session_timeout_ms=SESSION_MS,
                    heartbeat_interval_ms=HEARTBEAT_MS,
                    max_poll_interval_ms=POLL_MS,
                    auto_commit=False,
                    reset="beginning",
                    max_wait_ms=FETCH_WAIT_MS,
                    timeout_s=CALL_SECONDS,
                    leave=chance.random() < 0.6,
                    close_timeout_s=1.0,
                    on_assigned=events.assigned,
                    on_revoked=events.revoked,
                    on_lost=events.lost,
                ) as consumer:
                    events.consumer = consumer
                    with lives(self.members, consumer):
                        try:
                            await self._live(group, consumer, chance)
                        finally:
                            self.ledger.gone(
                                consumer.group_metadata(), consumer.assignment(), ended=True
                            )
            except MqError as error:
                self.refused[error.code.name] += 1
                await pause(chance, PAUSE_SECONDS)

    async def _live(self, group: str, consumer: GroupConsumer, chance: random.Random) -> None:
        rounds = chance.choice([1, 3, 10, 30])
        while rounds or self.draining.is_set():
            rounds -= 1
            with trio.move_on_after(0.5) as scope:
                batch = await consumer.next()
            if not scope.cancelled_caught:
                partition = TopicPartition(batch.topic, batch.partition)
                self.ledger.given(group, partition, [record.offset for record in batch.records])
            if not self.draining.is_set():
                await pause(chance, chance.choice(WORK_SECONDS))
                if chance.random() < 0.01:
                    await trio.sleep(1.2 * POLL_MS / 1000)
            if self.draining.is_set() or chance.random() < 0.3:
                await self.commit(consumer)
            if rounds < 0 and not self.draining.is_set():
                return

    async def commit(self, consumer: GroupConsumer) -> None:
        """Commit the positions of a member."""
        ours = set(consumer.assignment())
        offsets = {
            partition: offset
            for partition, offset in consumer.positions().items()
            if partition in ours
        }
        if not offsets:
            return
        commit = self.ledger.committing(consumer.group_metadata().group_id, offsets)
        began = trio.current_time()
        try:
            await consumer.commit(offsets)
        except MqError as error:
            self.refused[error.code.name] += 1
        else:
            self.ledger.committed(
                commit, single=trio.current_time() < began + self._request_seconds
            )

    # -- ghosts

    async def _ghost(self, group: str) -> None:
        """Send commits that the coordinator must reject."""
        chance = self._source(f"ghost-{group}")
        client = await self._new_client(f"ghost-{group}")
        coordinator = Coordinator(client, group, KeyType.GROUP)
        while True:
            await pause(chance, GHOST_SECONDS)
            ghosts = self.ledger.ghosts(group)
            if not ghosts:
                continue
            ghost = chance.choice(ghosts[-5:])
            body = commit_body(ghost.metadata, {ghost.partition: CommittedOffset(0, GHOST)})
            try:
                response = await coordinator.ask(OFFSET_COMMIT, body, at_most=NAMES_UP_TO)
            except MqError as error:
                self.refused[error.code.name] += 1
                continue
            if commit_errors(response):
                coordinator.forget()
                self.ledger.ghost_refused()
            else:
                self.ledger.ghost_accepted(ghost)


class _Events:
    """Records the assignments and revocations of one member."""

    def __init__(self, groups: Groups, chance: random.Random, *, classic: bool) -> None:
        self.consumer: GroupConsumer
        self._groups = groups
        self._chance = chance
        self._classic = classic

    async def assigned(self, _: list[TopicPartition]) -> None:
        self._groups.ledger.assigned(
            self.consumer.group_metadata(), self.consumer.assignment(), classic=self._classic
        )

    async def revoked(self, partitions: list[TopicPartition]) -> None:
        if self._chance.random() < 0.7:
            await self._groups.commit(self.consumer)
        self._groups.ledger.gone(self.consumer.group_metadata(), partitions)

    async def lost(self, partitions: list[TopicPartition]) -> None:
        self._groups.ledger.gone(self.consumer.group_metadata(), partitions)
