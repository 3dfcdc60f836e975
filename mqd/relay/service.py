"""The relays of a node: one for each partition of a delay topic that this node leads.

A relay begins when this node begins to lead the partition, or when the topic becomes a delay topic.
It ends with the leadership or the config, and begins again when its configs change. Where two nodes
believe that they lead, the transaction coordinator fences one of them (producer.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import trio

from mqd.errors import StorageError
from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.io.entropy import Entropy
from mqd.log.service import LogService
from mqd.relay.delay_relay import DelayRelay, Environment
from mqd.relay.delay_topic import DelayTopic
from mqd.relay.ports import Calls
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
            replica, logs, disk, clock, entropy, calls, partitions_of, watch.check
        )
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
        place = partition.assignment.topic_partition
        led = self._led.get(place)
        topic = None
        if partition.is_leader and not partition.is_internal:
            topic = DelayTopic.of(self._configs_of(place.topic))
        if led is not None and (
            topic is None
            or led.partition is not partition
            or led.key != (partition.leader_epoch, topic)
        ):
            led.scope.cancel()
            del self._led[place]
            led = None
        if topic is not None and led is None:
            led = self._led[place] = _Led(partition, topic)
            if self._nursery is not None:
                self._nursery.start_soon(self._run, led)

    def configs_changed(self, topic: str) -> None:
        for partition in self._replica.by_name.get(topic.encode(), {}).values():
            self.role_changed(partition)

    async def _run(self, led: _Led) -> None:
        with led.scope:
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
