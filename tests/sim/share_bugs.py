"""Planted defects of share groups (KIP-932): acquisition locks, stored states, delivery counts."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import trio

from mqd.coordinator.share.operations import ReadState, WriteState
from mqd.coordinator.share.records import ShareSnapshot
from mqd.coordinator.share.shard import ShareShard, ShareState
from mqd.protocol.slices import Slices, all_slices
from mqd.relay.producer import RelayProducer
from mqd.share import acknowledging, endings, reading, share_partition
from mqd.share.key_affinity import KeyAffinity
from mqd.share.led_partitions import LedSharePartition
from mqd.share.record_states import Batch, Range, RecordState
from mqd.share.service import ShareService
from mqd.share.share_partition import SharePartition
from mqd.share.state_writer import StateWriter
from mqd.share.values import Acknowledgement, Limits, Update
from mqd.testing.scheduler import STARTS_AT
from mqd.types import NO_EPOCH, Offset
from tests.sim.planting import Patches, bug
from tests.sim.relay_bugs import write_in_two_transactions

_LATE_UNTIL_SECONDS = 9.0
"""After it, no write is late: members must finish the records after the faults have ended."""


@bug("an acknowledgement is answered before the share coordinator has stored it", load="share")
def acknowledgement_not_stored_first() -> Patches:
    async def acknowledge(
        self: ShareService,
        led: LedSharePartition,
        member_id: str,
        acknowledgements: Sequence[Acknowledgement],
    ) -> None:
        core = led.core
        if not led.is_current:
            raise led.partition.not_leader()
        now = self._clock.monotonic()
        update = all_slices(acknowledging.begin(core, member_id, acknowledgements, now))
        self._timer.expect(led)
        if update is not None:
            self._writer.write(led, update)

    yield ShareService, "acknowledge", acknowledge


@bug("a new leader of a share partition forgets which records are done", load="share")
def stored_states_forgotten() -> Patches:
    original = SharePartition.loaded

    def loaded(
        start_offset: Offset, batches: Iterable[Batch], limits: Limits, *, end_offset: Offset
    ) -> SharePartition:
        return original(start_offset, (), limits, end_offset=end_offset)

    yield SharePartition, "loaded", staticmethod(loaded)


@bug("a fetch also acquires records that another member has acquired", load="share")
def acquired_records_acquired_again() -> Patches:
    original = SharePartition._available_in

    def available_in(
        self: SharePartition, first: Offset, last: Offset
    ) -> list[tuple[Offset, Offset, int]]:
        acquired = [
            (begin, one.last, one.delivery_count)
            for begin, one in self.states.within(first, last)
            if one.state is RecordState.ACQUIRED and one.next_state is None
        ]
        return sorted(original(self, first, last) + acquired)

    yield SharePartition, "_available_in", available_in


@bug("a leader's read of a state does not fence the former leader's writes", load="share")
def former_leader_may_write() -> Patches:
    original_read, original_write = ShareShard._read, ShareShard._write

    def read(self: ShareShard, ticket: Any, op: ReadState) -> Any:
        current = self._initialized(op.key, "Read")
        return original_read(self, ticket, op._replace(leader_epoch=current.leader_epoch))

    def write(self: ShareShard, ticket: Any, op: WriteState, now: Any) -> Any:
        return original_write(self, ticket, op._replace(leader_epoch=NO_EPOCH), now)

    # Some writes arrive after the next leader has begun, if there is one soon.
    send, numbers = StateWriter._stored, count()

    async def late(
        self: StateWriter, led: LedSharePartition, last: Update, batches: Sequence[Batch]
    ) -> Any:
        if next(numbers) % 3 == 0 and trio.current_time() < STARTS_AT + _LATE_UNTIL_SECONDS:
            with trio.move_on_after(1.5):
                while led.is_current:  # noqa: ASYNC110
                    await trio.sleep(0.05)
                await trio.sleep(0.5)
        return await send(self, led, last, batches)

    yield ShareShard, "_read", read
    yield ShareShard, "_write", write
    yield StateWriter, "_stored", late


@bug("a released record forgets how often it was delivered", load="share")
def delivery_count_begins_again() -> Patches:
    original = SharePartition.end_acquisition

    def end_acquisition(
        self: SharePartition,
        begin: Offset,
        acquired: Range,
        state: RecordState,
        count: int,
        time_ms: int,
    ) -> None:
        original(self, begin, acquired, state, 0, time_ms)

    yield SharePartition, "end_acquisition", end_acquisition


@bug("a record is delivered more often than the limit of its group", load="share")
def delivery_limit_ignored() -> Patches:
    yield SharePartition, "state_after", lambda self, state, count: state


@bug("a snapshot of a share partition lacks the states of its records", load="share")
def share_snapshot_lacks_states() -> Patches:
    original = ShareState.snapshot

    def snapshot(self: ShareState, now_ms: int) -> ShareSnapshot:
        return replace(original(self, now_ms), state_batches=())

    yield ShareState, "snapshot", snapshot


@bug("a lock ends with the shortest lock of its share partition", load="share")
def locks_end_early() -> Patches:
    original = endings.expire

    def expire(partition: SharePartition, now: float, *, wall_ms: int = 0) -> Slices[Update | None]:
        locks = partition.locks
        if locks and locks[0][0] <= now and len(locks) > 1:
            now += partition.limits.lock_seconds / 2
        return original(partition, now, wall_ms=wall_ms)

    yield endings, "expire", expire


@bug("the start offset moves behind records that a member has acquired", load="share")
def start_offset_passes_acquired_records() -> Patches:
    original = SharePartition.update

    def update(self: SharePartition, batches: Any, **counts: int) -> Update | None:
        found = original(self, batches, **counts)
        if found is not None:
            done = max(one.last_offset for one in found.batches)
            found = replace(found, start_offset=max(found.start_offset, done))
        return found

    yield SharePartition, "update", update


@bug("a member acknowledges records that another member has acquired", load="share")
def foreign_acknowledgement_accepted() -> Patches:
    original = acknowledging.owned

    def owned(
        partition: SharePartition, member_id: str, first: Offset, last: Offset
    ) -> list[tuple[Offset, Range]]:
        states = partition.states
        found = states.within(max(first, states.start_offset), last)
        if last < states.end_offset and all(
            one.state is RecordState.ACQUIRED and one.next_state is None for _, one in found
        ):
            return found
        return original(partition, member_id, first, last)

    yield acknowledging, "owned", owned


@bug("a record is delivered although an earlier one of its key is not done", load="share")
def keys_do_not_wait() -> Patches:
    def available(self: KeyAffinity, offset: Offset) -> bool:
        if offset not in self._keys or offset in self._ready:
            return False
        insort(self._ready, offset)
        return True

    original = KeyAffinity.done

    def done(self: KeyAffinity, offset: Offset) -> Offset | None:
        found = original(self, offset)
        return None if found is None or found in self._ready else found

    yield KeyAffinity, "available", available
    yield KeyAffinity, "done", done


@bug("dead letters are committed before the progress that lists them", load="share")
def letters_before_their_progress() -> Patches:
    yield RelayProducer, "write", write_in_two_transactions()


@bug("a new leader takes records that wait for their dead letter for archived", load="share")
def waiting_dead_letters_forgotten() -> Patches:
    original = share_partition._sane

    def sane(batch: Batch) -> Batch:
        found = original(batch)
        if found.state is RecordState.ARCHIVING:
            found = found._replace(state=RecordState.ARCHIVED, time_ms=0)
        return found

    yield share_partition, "_sane", sane


@bug("a new leader delivers released records before the end of their delay", load="share")
def delays_forgotten() -> Patches:
    original = share_partition._sane

    def sane(batch: Batch) -> Batch:
        found = original(batch)
        return found._replace(time_ms=0) if found.state is RecordState.AVAILABLE else found

    yield share_partition, "_sane", sane


@bug("expired records are delivered to share groups", load="share")
def expired_records_delivered() -> Patches:
    yield reading, "is_expired", lambda record, ttl_ms, now_ms: False


@bug("an accepted record gets a dead letter if it was delivered as often as allowed", load="share")
def last_delivery_is_given_up() -> Patches:
    original = SharePartition.state_after

    def state_after(self: SharePartition, state: RecordState, count: int) -> RecordState:
        if state is RecordState.ACKNOWLEDGED and count >= self.limits.delivery_count:
            return self.given_up
        return original(self, state, count)

    yield SharePartition, "state_after", state_after
