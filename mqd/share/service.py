"""The share partitions that this node leads (KIP-932), as requests use them.

share_partition.py and its neighbours decide, the share coordinator stores. The parts that wait:
led_partitions.py   which share partitions there are, and their tasks
loading.py          reads the state of one
acquiring.py        reads and acquires records for members
state_writer.py     stores changes
ending_timer.py     ends acquisition locks and delays
waiting.py          fetches that wait for records
unaccepted_log.py   counts and logs records that no member accepted
partition_letters.py   the task that writes the dead letters of a share partition
dead_letter_writer.py   its steps (dead_letters.py: the content of letters)

An acknowledgement is returned when it is stored, so that it survives the next leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import trio

from mqd.io.clock import Clock
from mqd.io.disk import Disk
from mqd.log.service import LogService
from mqd.protocol.slices import Slices, all_slices
from mqd.replica.partition import Partition
from mqd.share import acknowledging, endings
from mqd.share.acquiring import Acquirer
from mqd.share.ending_timer import EndingTimer
from mqd.share.group_options import ShareOptions
from mqd.share.led_partitions import LedSharePartition, LedSharePartitions
from mqd.share.loading import Loader, OffsetForTime
from mqd.share.memory import ShareMemory
from mqd.share.partition_letters import DeadLetterPort, LetterTasks
from mqd.share.ports import GroupOption, InSlices, Persister, ShareKey
from mqd.share.sessions import SessionKey, ShareSession, ShareSessions
from mqd.share.state_writer import BATCHES_AT_ONCE, StateWriter
from mqd.share.unaccepted_log import UnacceptedLog
from mqd.share.values import Acknowledgement


class ShareService:
    """All share partitions and share sessions of one node."""

    def __init__(
        self,
        *,
        logs: LogService,
        disk: Disk,
        clock: Clock,
        persister: Persister,
        option: GroupOption,
        offset_for_time: OffsetForTime,
        dead_letters: DeadLetterPort,
        in_slices: InSlices,
        sessions_max: int,
        memory_bytes_max: int,
    ) -> None:
        """`memory_bytes_max`: of all share partitions (memory_plan.py)."""
        self.sessions = ShareSessions(sessions_max)
        self.options = ShareOptions(option, dead_letters)
        self.partitions = LedSharePartitions(self.sessions.has_group)
        self.memory = ShareMemory(memory_bytes_max, self.partitions.all)
        unaccepted = UnacceptedLog(clock)
        self.unaccepted = unaccepted.counts
        self._clock = clock
        self._in_slices = in_slices
        self._releases: dict[SessionKey, trio.Event] = {}
        """Members whose session has ended, until their records are released."""
        self._timer = EndingTimer(self.partitions, clock, in_slices)
        self._loader = Loader(
            partitions=self.partitions,
            options=self.options,
            memory=self.memory,
            unaccepted=unaccepted,
            persister=persister,
            clock=clock,
            offset_for_time=offset_for_time,
        )
        self._writer = StateWriter(
            partitions=self.partitions,
            persister=persister,
            timer=self._timer,
            in_slices=in_slices,
            unaccepted=unaccepted,
            written=self._written,
        )
        self._letters = LetterTasks(
            partitions=self.partitions,
            dead_letters=dead_letters,
            logs=logs,
            disk=disk,
            store=self._writer.store,
        )
        self.acquirer = Acquirer(
            partitions=self.partitions,
            options=self.options,
            memory=self.memory,
            unaccepted=unaccepted,
            logs=logs,
            disk=disk,
            clock=clock,
            in_slices=in_slices,
            writer=self._writer,
            timer=self._timer,
        )

    async def run(self) -> None:
        """Own the tasks of share partitions, and end acquisition locks; until cancelled."""
        async with trio.open_nursery() as nursery:
            with self.partitions.running(nursery):
                await self._timer.run(self._writer.write)

    # -- share partitions --------------------------------------------------------------------------

    def role_changed(self, partition: Partition) -> None:
        """The leadership of a partition on this node has changed: drop its share partitions."""
        for led in self.partitions:
            if led.partition is partition and not led.is_current:
                self.partitions.drop(led)
        if not partition.is_leader:
            assigned = partition.assignment
            self.unaccepted.forget_partition(assigned.topic_id, assigned.topic_partition.partition)

    async def led(self, key: ShareKey, partition: Partition) -> LedSharePartition:
        """The share partition, loaded. Raises MqError."""
        led = self.partitions.get(key)
        if led is None or led.partition is not partition or not led.is_current:
            if not self.partitions.is_running:
                raise partition.not_leader()
            led = self.partitions.add(key, partition)
            self.partitions.start(self._loader.load, led, self._loaded)
        if led.loaded_core is None:
            await led.loaded.wait()
            if led.load_error is not None:
                raise led.load_error
        return led

    def _loaded(self, led: LedSharePartition) -> None:
        self._timer.expect(led)
        self._letters.write_soon(led)

    def _written(self, led: LedSharePartition) -> None:
        self._letters.write_soon(led)
        self.partitions.drop_unused(led)

    # -- acknowledge -------------------------------------------------------------------------------

    async def acknowledge(
        self, led: LedSharePartition, member_id: str, acknowledgements: Sequence[Acknowledgement]
    ) -> None:
        """Returns when the share coordinator has stored it. Raises MqError."""
        if not led.is_current:
            raise led.partition.not_leader()
        core, now, wall_ms = led.core, self._clock.monotonic(), self._clock.wall_ms()
        core.limits = core.limits._replace(state_bytes=self.memory.part(now))
        start_offset = core.states.start_offset
        is_late = any(one.first_offset < start_offset for one in acknowledgements)
        work = acknowledging.begin(core, member_id, acknowledgements, now, wall_ms=wall_ms)
        with self.partitions.dropped_after_bug(led), closing(work):
            if sum(len(one.types) for one in acknowledgements) <= BATCHES_AT_ONCE:
                update = all_slices(work)
            else:
                update = await self._in_slices(work)
        self._timer.expect(led)
        if update is None:
            if not is_late:
                return
            # The records are done, but the next leader may not know that yet.
            update = core.start_to_store()
        if led.is_dropped:
            raise led.partition.not_leader()
        # Also if the node has lost contact meanwhile: else the records would stay as they are.
        await self._writer.store(led, update)

    # -- sessions that end -------------------------------------------------------------------------

    async def release(self, session: ShareSession) -> None:
        """The session has ended: its records are available again."""
        done = self._releases.setdefault(session.key, trio.Event())
        try:
            await self._in_slices(self._releasing(session))
        finally:
            done.set()
            self._releases.pop(session.key, None)

    async def released(self, key: SessionKey) -> None:
        """Returns when no release is in progress for this member: it would also release what the
        member acquires in its next session."""
        while (done := self._releases.get(key)) is not None:
            await done.wait()

    def _releasing(self, session: ShareSession) -> Slices[None]:
        group_id, member_id = session.key
        for topic_id, partition in list(session.places):
            yield 1
            led = self.partitions.get(ShareKey(group_id, topic_id, partition))
            if led is None or led.loaded_core is None:
                continue
            try:
                update = yield from endings.release(led.loaded_core, member_id)
            except Exception:
                self.partitions.bug(led)
                continue
            if update is not None and not led.is_dropped:  # also if the node has lost contact
                self._writer.write(led, update)
                led.waiters.wake_one()
        if not self.sessions.has_group(group_id):
            for led in self.partitions:
                yield 1
                if led.key.group_id == group_id and not self.sessions.has_group(group_id):
                    self.partitions.drop_unused(led)

    def connection_closed(self, peer: str) -> None:
        """The sessions of this connection have ended."""
        for session in self.sessions.end_of_peer(peer):
            if self.partitions.is_running:
                self._releases[session.key] = trio.Event()
                self.partitions.start(self.release, session)
