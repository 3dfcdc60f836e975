"""Plans of what is synced; a plan from before a truncation does not count after it."""

from __future__ import annotations

from pathlib import Path

from mqd.log.disk.sync_plan import plan_sync
from mqd.log.durability import NO_TRUNCATION
from mqd.log.log_config import LogConfig
from mqd.protocol.files import AbortedTransaction, decode_txn_index
from mqd.protocol.markers import EndMarker, build_end_marker
from tests.log.support import Harness, batch


async def test_a_plan_names_only_what_is_not_durable(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(LogConfig(segment_bytes=400))
    for number in range(8):
        harness.write(log, batch(b"x" * 100, producer_id=1, sequence=number), epoch=1)
    rolled = plan_sync(harness.disk, log, whole=False)
    assert (
        rolled.end_offset == log.active.base_offset and len(rolled.files) == len(log.segments) - 1
    )
    assert (
        [path.suffix for path, _ in rolled.writes] == [""]
        and rolled.snapshots
        and rolled.directories == [log.path, tmp_path]
    )
    rolled.run(harness.disk)
    assert log.on_synced(rolled.end_offset) and not log.on_synced(rolled.end_offset)
    whole = plan_sync(harness.disk, log, whole=True)
    assert (whole.end_offset, len(whole.files), whole.writes, whole.directories) == (8, 1, [], [])
    assert plan_sync(harness.disk, log, whole=False).files == []
    harness.kill()


async def test_a_sync_from_before_a_truncation_proves_nothing(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(LogConfig(segment_bytes=400))
    for number in range(8):
        harness.write(log, batch(b"x" * 100, producer_id=1, sequence=number))
    plan = plan_sync(harness.disk, log, whole=True)
    harness.service.truncate_to(log, 1)
    plan.run(harness.disk)
    assert not list(log.path.glob("*.snapshot")), "the thread knew of the truncation"
    log.durability.lowest_truncation, cut = NO_TRUNCATION, log.durability.lowest_truncation
    plan.run(harness.disk)
    log.durability.lowest_truncation = cut
    assert list(log.path.glob("*.snapshot")), (
        "the truncation was too late for the thread: it wrote snapshots of truncated offsets"
    )
    harness.service.after_sync(plan)
    assert (
        not list(log.path.glob("*.snapshot"))
        and log.durability.end_offset == 0
        and harness.durable == []
    )
    harness.kill()


async def test_a_durable_segment_has_its_aborted_transactions_on_disk(
    tmp_path: Path,
) -> None:
    """No later plan checks it again, and recovery believes the file: without it, readers would get
    aborted records.
    """
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(LogConfig(segment_bytes=400))
    guard = log.producers.guard(1, 0, -1, False, 0)
    assert guard is not None
    guard.confirmed = True
    harness.append(log, batch(b"x" * 100, producer_id=1, transactional=True), client=False)
    harness.append(
        log, build_end_marker(1, 0, EndMarker(False, 0), harness.clock.now_ms), client=False
    )
    assert harness.service.flush() == []
    plan = plan_sync(harness.disk, log, whole=True)
    plan.run(harness.disk)
    harness.service.after_sync(plan)
    harness.write(log, batch(b"y" * 300))
    assert len(log.segments) == 2 and log.durability.end_offset == log.active.base_offset
    assert decode_txn_index((log.path / f"{0:020d}.txnindex").read_bytes()) == [
        AbortedTransaction(1, 0, 1, 2)
    ]
    harness.kill()
