"""Defects of relays (mqd/relay/), which runs with the load `delay` must find."""

from __future__ import annotations

from typing import Any

import trio

from mqd.relay.delay_progress import Progress as DelayProgress
from mqd.relay.delay_relay import DelayRelay
from mqd.relay.producer import RelayProducer
from tests.sim.planting import Patches, bug

GAP_SECONDS = 0.3
"""Between two transactions that must be one."""


@bug("a relay commits its progress before the records that it covers", load="delay")
def progress_before_records() -> Patches:
    original = RelayProducer.write

    async def write(self: RelayProducer, records: Any, progress: Any) -> None:
        await original(self, {}, progress)
        with trio.move_on_after(GAP_SECONDS):
            await trio.Event().wait()
        await original(self, records, progress)

    yield RelayProducer, "write", write


@bug("a relay commits its progress after the records that it covers", load="delay")
def progress_after_records() -> Patches:
    original = RelayProducer.write

    async def write(self: RelayProducer, records: Any, progress: Any) -> None:
        [(place, new)] = progress.items()
        found = await self.progress([place])
        await original(self, records, found or {place: new._replace(metadata="")})
        with trio.move_on_after(GAP_SECONDS):
            await trio.Event().wait()
        await original(self, {}, progress)

    yield RelayProducer, "write", write


@bug("a relay does not read the progress that an earlier leader has committed", load="delay")
def committed_progress_ignored() -> Patches:
    async def committed_progress(self: DelayRelay) -> DelayProgress:
        return self._loaded or DelayProgress()

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
