"""Defects of relays (mqd/relay/), which runs with the load `delay` must find."""

from __future__ import annotations

from typing import Any

import trio

from mqd.delay_names import CRON
from mqd.relay import delay_records
from mqd.relay.delay_headers import RecordTimes
from mqd.relay.delay_progress import TimerProgress
from mqd.relay.delay_relay import DelayRelay
from mqd.relay.producer import RelayProducer
from tests.sim.planting import Patches, bug

GAP_SECONDS = 0.3
"""Between two transactions that must be one."""


@bug("a relay commits its progress before the records that it covers", load="delay")
def progress_before_records() -> Patches:
    original = RelayProducer.write

    async def write(self: RelayProducer, records: Any, progress: Any, build: Any = None) -> None:
        await original(self, {}, progress)
        with trio.move_on_after(GAP_SECONDS):
            await trio.Event().wait()
        await original(self, records, progress, build)

    yield RelayProducer, "write", write


def write_in_two_transactions() -> Any:
    """A RelayProducer.write that commits the records, and then their progress."""
    original = RelayProducer.write

    async def write(self: RelayProducer, records: Any, progress: Any, build: Any = None) -> None:
        [(place, new)] = progress.items()
        found = await self.progress([place])
        await original(self, records, found or {place: new._replace(metadata="")}, build)
        with trio.move_on_after(GAP_SECONDS):
            await trio.Event().wait()
        await original(self, {}, progress)

    return write


@bug("a relay commits its progress after the records that it covers", load="delay")
def progress_after_records() -> Patches:
    yield RelayProducer, "write", write_in_two_transactions()


@bug("a relay does not read the progress that an earlier leader has committed", load="delay")
def committed_progress_ignored() -> Patches:
    async def committed_progress(self: DelayRelay) -> TimerProgress:
        return self._loaded or TimerProgress()

    yield DelayRelay, "_committed_progress", committed_progress


@bug("a relay does not look for tombstones", load="delay")
def tombstones_ignored() -> Patches:
    async def is_cancelled(self: DelayRelay, entry: Any, record: Any) -> bool:
        return False

    yield DelayRelay, "_is_cancelled", is_cancelled


@bug("a relay is half a second early", load="delay")
def relayed_early() -> Patches:
    original = DelayRelay._write_due

    async def write_due(self: DelayRelay, now_ms: int) -> bool:
        return await original(self, now_ms + 500)

    yield DelayRelay, "_write_due", write_due


@bug("a relay ignores the TTL of records", load="delay")
def relayed_after_expiry() -> Patches:
    yield RecordTimes, "is_expired", lambda self, now_ms: False


@bug("a retry topic never gives up", load="delay")
def retries_have_no_end() -> Patches:
    yield delay_records, "is_exhausted", lambda topic, times: False


@bug("a tombstone does not cancel the next occurrences of a schedule", load="delay")
def schedules_outlive_their_tombstone() -> Patches:
    original = DelayRelay._is_cancelled

    async def is_cancelled(self: DelayRelay, entry: Any, record: Any) -> bool:
        repeats = any(name == CRON for name, _ in record.headers)
        return not repeats and await original(self, entry, record)

    yield DelayRelay, "_is_cancelled", is_cancelled
