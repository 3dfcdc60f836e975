"""The relays of a node: one for each partition of a delay topic that this node leads.

A relay begins when this node begins to lead the partition, or when the topic becomes a delay topic.
It ends with the leadership or the config, and begins again when its configs change. Where two nodes
believe that they lead, the transaction coordinator fences one of them (producer.py).

The relays of one partition run one after another, because they share the files of its timer index.
When the topic is no delay topic any more, each node removes its files.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import trio

from mqd.delay_names import TARGET_CONFIG
from mqd.errors import StorageError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.io.entropy import Entropy
from mqd.log.service import LogService
from mqd.relay.delay_relay import DelayRelay, Environment
from mqd.relay.delay_topic import DelayTopic
from mqd.relay.ports import Calls
from mqd.relay.sharing import Shared
from mqd.relay.timer_files import delete_runs
from mqd.replica.partition import Partition
from mqd.replica.service import ReplicaService
from mqd.types import TopicPartition

logger = logging.getLogger(__name__)

JUMP_MS: Final = 1_000
"""A wall clock that differs more from the monotonic one than before has jumped."""
_AGAIN_SECONDS: Final = 5.0
"""The pause after an error of the disk."""


class ClockWatch:
    """Logs jumps of the wall clock. Due times are wall time: a jump forwards makes records due, a
    jump backwards delays them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._difference_ms = self._difference()

    def _difference(self) -> int:
        return self._clock.wall_ms() - round(self._clock.monotonic() * 1000)

    def check(self) -> None:
        difference = self._difference()
        jump = difference - self._difference_ms
        self._difference_ms = difference
        if abs(jump) > JUMP_MS:
            logger.warning("wall clock jumped seconds=%.3f", jump / 1000)


class _Led:
    """A relay that runs."""

    def __init__(self, partition: Partition, topic: DelayTopic) -> None:
        self.key = (partition.leader_epoch, topic)
        self.partition = partition
        self.topic = topic
        self.scope = trio.CancelScope()


class Turns:
    """The users of the timer files of a partition, one after another (I56)."""

    def __init__(self) -> None:
        self.ends: dict[TopicPartition, trio.Event] = {}
        """Set when the last one that has come has ended."""

    @asynccontextmanager
    async def turn(self, topic_partition: TopicPartition) -> AsyncIterator[None]:
        before = self.ends.get(topic_partition)
        ended = self.ends[topic_partition] = trio.Event()
        try:
            if before is not None:
                await before.wait()
            yield
        finally:
            ended.set()
            if self.ends.get(topic_partition) is ended:
                del self.ends[topic_partition]


class RelayService:
    """All relays of one node."""

    def __init__(
        self,
        *,
        replica: ReplicaService,
        logs: LogService,
        disk: Disk,
        clock: Clock,
        entropy: Entropy,
        calls: Calls,
        configs_of: Callable[[str], Mapping[str, str]],
        partitions_of: Callable[[str], int],
    ) -> None:
        """`configs_of(topic)`: the overrides of a topic. `partitions_of(topic)`: 0 for none."""
        self._replica = replica
        self._configs_of = configs_of
        watch = ClockWatch(clock)
        self._env = Environment(
            replica, logs, disk, clock, entropy, calls, partitions_of, watch.check, Shared()
        )
        self._disk = disk
        self._turns = Turns()
        self._delay_topics: set[str] = set()
        """Whose partitions on this node may have files, also where it follows."""
        self._led: dict[TopicPartition, _Led] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Own the relays, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for led in list(self._led.values()):
                nursery.start_soon(self._run, led)
            await trio.sleep_forever()

    def role_changed(self, partition: Partition) -> None:
        """The leadership or the configs of a partition on this node may have changed."""
        topic_partition = partition.assignment.topic_partition
        led = self._led.get(topic_partition)
        topic = DelayTopic.of(self._configs_of(topic_partition.topic))
        if topic_partition.topic.encode() not in self._replica.by_name:
            self._delay_topics.discard(topic_partition.topic)
        elif topic is not None:
            self._delay_topics.add(topic_partition.topic)
        reason = f"its topic has no {TARGET_CONFIG}" if topic is None else ""
        if partition.is_internal or not partition.is_leader:
            topic, reason = None, "this node no longer leads the partition"
        if led is not None and (
            topic is None
            or led.partition is not partition
            or led.key != (partition.leader_epoch, topic)
        ):
            led.scope.cancel()
            del self._led[topic_partition]
            if not reason:
                is_same = topic == led.topic
                reason = "a leader epoch began" if is_same else "the configs of its topic changed"
            logger.info("relay ends partition=%s reason=%r", topic_partition, reason)
            led = None
        if topic is not None and led is None:
            led = self._led[topic_partition] = _Led(partition, topic)
            if self._nursery is not None:
                self._nursery.start_soon(self._run, led)

    def configs_changed(self, topic: str) -> None:
        partitions = list(self._replica.by_name.get(topic.encode(), {}).values())
        for partition in partitions:
            self.role_changed(partition)
        if topic in self._delay_topics and DelayTopic.of(self._configs_of(topic)) is None:
            self._delay_topics.remove(topic)
            if self._nursery is not None:
                self._nursery.start_soon(self._remove_files, topic, partitions)

    async def _remove_files(self, topic: str, partitions: list[Partition]) -> None:
        """The topic is no delay topic any more, unless it is one again."""
        for partition in partitions:
            async with self._turns.turn(partition.assignment.topic_partition):
                if DelayTopic.of(self._configs_of(topic)) is not None:
                    return
                path = partition.log.path
                try:
                    await self._disk.offload(delete_runs, self._disk, path)
                except OSError as error:
                    logger.warning("cannot remove timers directory=%s reason=%s", path, error)

    async def _run(self, led: _Led) -> None:
        if led.scope.cancel_called:
            return
        async with self._turns.turn(led.partition.assignment.topic_partition):
            with led.scope:
                await self._relay(led)

    async def _relay(self, led: _Led) -> None:
        while True:
            logger.info(
                "relay begins partition=%s target=%s",
                led.partition.assignment.topic_partition,
                led.topic.target,
            )
            try:
                await DelayRelay(self._env, led.partition, led.topic).run()
            except* (StorageError, OSError) as errors:
                logger.error(
                    "relay failed, will retry partition=%s reason=%s",
                    led.partition.assignment.topic_partition,
                    errors.exceptions[0],
                )
            await trio.sleep(_AGAIN_SECONDS)
