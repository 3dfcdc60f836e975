"""Members of share groups in the simulated cluster (KIP-932). They acquire records, acknowledge
them in every way, let locks end, close their sessions, and crash. `ShareLedger` checks what they
receive.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any
from uuid import UUID

import trio

from mqd.client.cluster import ClusterClient
from mqd.client.coordinator import Coordinator, KeyType
from mqd.client.errors import ClientError
from mqd.client.share_group_admin import ShareGroupAdmin
from mqd.errors import ErrorCode, MqError, ProtocolError
from mqd.share.values import AcknowledgeType
from mqd.testing.clients.common import (
    CALL_SECONDS,
    DRAIN_LOOK_SECONDS,
    FETCH_WAIT_MS,
    PAUSE_SECONDS,
    pause,
)
from mqd.testing.clients.share_session import Chosen, Session, Wanted
from mqd.testing.clients.wire import RESPONSE_SECONDS, open_stream
from mqd.testing.share_features import DELAYS_MS, ShareFeatures
from mqd.testing.share_ledger import Hold, Place, ShareLedger
from mqd.types import TopicPartition

SHARE_GROUP_HEARTBEAT = 76
HEARTBEAT_SECONDS = 0.3
WORK_SECONDS = (0.01, 0.05, 0.2)
"""Mean processing times of the records of one fetch."""
_DRAIN_ROUNDS = 50
"""Fetches of a session in the drain, if they all return records."""
IDLE_SECONDS = 0.1
"""Mean pause after a fetch without records."""
_KINDS = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
    None,
)
_LIKELIHOODS = (75, 12, 4, 4, 5)
"""None: a record is not acknowledged, and its lock ends."""
_INTRUDES = 0.1
"""The probability that a member acknowledges a record of another one after a fetch."""
_DELAYED = 0.5
"""The part of the releases that name a delay."""


class Shares:
    """The share groups of one run. All of them read the same partitions."""

    def __init__(
        self,
        *,
        ledger: ShareLedger,
        new_client: Callable[[str], Awaitable[ClusterClient]],
        source: Callable[[str], random.Random],
        end_of: Callable[[TopicPartition], int],
        term: Callable[[int, TopicPartition], Hashable],
        lock_seconds: float,
        wall_between: Callable[[int, float, float], tuple[int, int]],
        features: ShareFeatures,
    ) -> None:
        """`end_of(partition)`: the end of its committed records. `term(node, partition)`: the
        present term of a leader. `lock_seconds`: the lock duration of all groups.
        `wall_between(node, since, until)`: the earliest and the latest wall time of a node.
        """
        self.ledger = ledger
        self.draining = trio.Event()
        """Set when members must accept everything that they get."""
        self.refused: Counter[str] = Counter()
        self.groups: list[str] = []
        self.partitions: list[TopicPartition] = []
        self._starts: dict[Place, int] = {}
        self._new_client = new_client
        self._source = source
        self._end_of = end_of
        self._term = term
        self._lock_seconds = lock_seconds
        self._wall_between = wall_between
        self.features = features

    # -- for the runner

    def start(
        self, nursery: trio.Nursery, partitions: list[TopicPartition], groups: list[str]
    ) -> None:
        """Start the members. They run until the nursery is cancelled."""
        self.partitions, self.groups = partitions, groups
        for group in groups:
            members = self._source(group).choice([2, 3, 4])
            for number in range(members):
                nursery.start_soon(self._lives, group, f"{group}-{number}")
        nursery.start_soon(self._watch)

    async def drain(self, client: ClusterClient) -> None:
        """Wait until the start offsets of each group are behind all records."""
        self.draining.set()
        while self.missing() is not None:
            await self._look(client)
            await trio.sleep(DRAIN_LOOK_SECONDS)

    def missing(self) -> str | None:
        for group in self.groups:
            for partition in self.partitions:
                start, end = self._starts.get(Place(group, partition), 0), self._end_of(partition)
                if start < end:
                    return f"{group} has finished {partition} up to {start}, which ends at {end}"
        return None

    async def _watch(self) -> None:
        chance = self._source("watch")
        client = await self._new_client("watch")
        while True:
            await pause(chance, 0.5)
            await self._look(client)

    async def _look(self, client: ClusterClient) -> None:
        sent = trio.current_time()
        admin = ShareGroupAdmin(client, timeout_s=CALL_SECONDS)
        try:
            found = await admin.list_share_group_offsets(self.groups)
        except MqError as error:
            self.refused[error.code.name] += 1
            return
        now = trio.current_time()
        for group, rows in found.items():
            if isinstance(rows, ClientError):
                continue
            for partition, row in rows.items():
                if row.start_offset is not None:
                    place = Place(group, partition)
                    self.ledger.start_offset(place, row.start_offset, sent=sent, now=now)
                    self._starts[place] = max(self._starts.get(place, 0), row.start_offset)

    # -- members

    async def _lives(self, group: str, name: str) -> None:
        """One member after another, each with a member id of its own."""
        chance = self._source(name)
        client = await self._new_client(name)
        while True:
            if not self.draining.is_set():
                await pause(chance, chance.choice([0.05, 0.3, 1.0]))
            member = _Member(self, client, group, name, chance)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(member.send_heartbeats)
                await member.live()
                nursery.cancel_scope.cancel()
            if chance.random() < 0.6:
                await member.leave()


class _Member:
    """One member, from its first heartbeat to its end."""

    def __init__(
        self, shares: Shares, client: ClusterClient, group: str, name: str, chance: random.Random
    ) -> None:
        self._shares = shares
        self._client = client
        self._group = group
        self._name = name
        self._chance = chance
        self._member_id = f"{name}-{chance.randrange(2**32):x}"
        self._coordinator = Coordinator(client, group, KeyType.GROUP)
        self._epoch = 0
        self._is_full = True
        """Whether the next heartbeat has all fields: then its response has the assignment, which an
        earlier response may have had that did not arrive."""
        self._assigned: dict[TopicPartition, UUID] = {}

    # -- membership

    async def send_heartbeats(self) -> None:
        while True:
            try:
                await self._heartbeat()
                self._is_full = False
            except MqError as error:
                self._shares.refused[error.code.name] += 1
                self._is_full = True
            await trio.sleep(HEARTBEAT_SECONDS)

    async def _heartbeat(self) -> None:
        topics = sorted({partition.topic for partition in self._shares.partitions})
        response = await self._coordinator.ask(
            SHARE_GROUP_HEARTBEAT,
            {
                "group_id": self._group,
                "member_id": self._member_id,
                "member_epoch": self._epoch,
                "subscribed_topic_names": topics if self._epoch == 0 or self._is_full else None,
            },
        )
        if response.error_code:
            self._coordinator.forget()
            code = ErrorCode(response.error_code)
            if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
                self._epoch, self._assigned = 0, {}
            raise ClientError(code, "heartbeat")
        self._epoch = response.member_epoch
        if response.assignment is not None:
            await self._take(response.assignment)

    async def _take(self, assignment: Any) -> None:
        names = {topic.topic_id: topic.name for topic in self._client.view.topics.values()}
        if any(row.topic_id not in names for row in assignment.topic_partitions):
            await self._client.refresh(sorted({one.topic for one in self._shares.partitions}))
            names = {topic.topic_id: topic.name for topic in self._client.view.topics.values()}
        self._assigned = {
            TopicPartition(names[row.topic_id], number): row.topic_id
            for row in assignment.topic_partitions
            if row.topic_id in names
            for number in row.partitions
        }

    async def leave(self) -> None:
        body = {"group_id": self._group, "member_id": self._member_id, "member_epoch": -1}
        try:
            await self._coordinator.ask(SHARE_GROUP_HEARTBEAT, body)
        except MqError as error:
            self._shares.refused[error.code.name] += 1

    # -- records

    async def live(self) -> None:
        """Open sessions with the leaders of the assigned partitions, one at a time."""
        sessions = self._chance.choice([1, 3, 10])
        while sessions > 0 or self._shares.draining.is_set():
            if not self._assigned:
                await trio.sleep(0.05)
                continue
            sessions -= 1
            try:
                await self._session()
            except MqError as error:
                self._shares.refused[error.code.name] += 1
                await self._refresh()
            except (OSError, ProtocolError, trio.TooSlowError):
                self._shares.refused["connection"] += 1
                await self._refresh()

    async def _refresh(self) -> None:
        await pause(self._chance, PAUSE_SECONDS)
        try:
            await self._client.refresh(sorted({one.topic for one in self._shares.partitions}))
        except MqError:
            await trio.sleep(PAUSE_SECONDS)

    async def _session(self) -> None:
        chance, client = self._chance, self._client
        one = chance.choice(sorted(self._assigned))
        leader = await client.leader(one, deadline=trio.current_time() + RESPONSE_SECONDS)
        places = {
            place: topic_id
            for place, topic_id in self._assigned.items()
            if (info := client.view.partition(place)) is not None and info.leader == leader.node_id
        }
        async with open_stream(client, leader.address) as wire:
            session = Session(
                wire,
                self._shares.ledger,
                group=self._group,
                member=self._member_id,
                member_id=self._member_id,
                places=places,
                term=lambda partition: self._shares._term(leader.node_id, partition),
                lock_seconds=self._shares._lock_seconds,
                wall_between=partial(self._shares._wall_between, leader.node_id),
                features=self._shares.features,
            )
            try:
                await self._rounds(session)
            finally:
                session.ended()
        if session.is_refused:
            await self._refresh()

    async def _rounds(self, session: Session) -> None:
        chance, draining = self._chance, self._shares.draining
        chosen: dict[TopicPartition, Chosen] = {}
        # In the order by key, a fetch has at most one record of each key.
        for _ in range(_DRAIN_ROUNDS if draining.is_set() else chance.choice([1, 5, 20])):
            wanted = Wanted(
                chance.choice([0, FETCH_WAIT_MS]),
                500 if draining.is_set() else chance.choice([1, 10, 500]),
                chance.choice([1, 10, 500]),
                chance.random() < 0.5,
            )
            count = await session.fetch(wanted, chosen)
            chosen = {}
            if session.is_refused:
                break
            if not count:
                if draining.is_set() and not any(session.held.values()):
                    break
                await pause(chance, IDLE_SECONDS)
            elif not draining.is_set():
                await pause(chance, chance.choice(WORK_SECONDS))
                if chance.random() < 0.03:
                    await trio.sleep(1.2 * self._shares._lock_seconds)
            if chance.random() < _INTRUDES and not draining.is_set():
                await session.intrude(chance)
            chosen, renewed = self._choose(session)
            if renewed:
                await session.acknowledge(renewed)
            if chosen and chance.random() < 0.3:
                await session.acknowledge(chosen)
                chosen = {}
        if draining.is_set() or chance.random() < 0.6:
            await session.acknowledge(chosen, closes=True)

    def _choose(
        self, session: Session
    ) -> tuple[dict[TopicPartition, Chosen], dict[TopicPartition, Chosen]]:
        """The final acknowledgements of records that the session holds, and the renewals. Renewed
        records, and some others, stay held."""
        final: dict[TopicPartition, Chosen] = {}
        renewed: dict[TopicPartition, Chosen] = {}
        for partition, holds in session.held.items():
            done: list[tuple[Hold, AcknowledgeType]] = []
            renewals: list[tuple[Hold, AcknowledgeType]] = []
            kept: list[Hold] = []
            for hold in holds:
                kind = self._kind()
                if kind is None or kind is AcknowledgeType.RENEW:
                    kept.append(hold)
                    if kind is not None:
                        renewals.append((hold, kind))
                else:
                    if kind is AcknowledgeType.RELEASE:
                        self._delay(hold)
                    done.append((hold, kind))
            session.held[partition] = kept
            if done:
                final[partition] = done
            if renewals:
                renewed[partition] = renewals
        return final, renewed

    def _delay(self, hold: Hold) -> None:
        """Choose when a released record is delivered again."""
        if self._chance.random() < _DELAYED:
            hold.named_delay_ms = hold.delay_ms = self._chance.choice(DELAYS_MS)
        else:
            hold.delay_ms = self._shares.features.delay_after(hold.count)

    def _kind(self) -> AcknowledgeType | None:
        if self._shares.draining.is_set():
            return AcknowledgeType.ACCEPT
        return self._chance.choices(_KINDS, _LIKELIHOODS)[0]
