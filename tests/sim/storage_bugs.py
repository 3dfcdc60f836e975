"""Defects to plant in logs: recovery after a crash, compaction, retention and DeleteRecords."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mqd.log.compaction import BatchRewriter, CleanedTransactions, OffsetMapBuilder
from mqd.log.disk import recovery, segment_scan
from mqd.log.disk.segment_rewrite import SegmentRewrite
from mqd.log.manager import compaction_pass, housekeeping
from mqd.log.offset_map import OffsetMap
from mqd.log.partition_log import PartitionLog
from mqd.log.recovery_report import CheckpointedState
from mqd.log.retention import plan_retention
from mqd.replica.service import ReplicaService
from mqd.server.handlers import delete_records
from mqd.server.partitions import leading
from mqd.types import NO_OFFSET
from tests.sim.planting import Patches, bug

_Loader = recovery._Loader


class _Without:
    """A file or a disk with some disabled methods; `open` returns such files."""

    def __init__(self, real: Any, *names: str) -> None:
        self.real = real
        self._names = names

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            return lambda *_, **__: None
        return getattr(self.real, name)

    def open(self, *args: Any, **how: Any) -> Any:
        return _Without(self.real.open(*args, **how), *self._names)


# -- recovery


@bug("recovery finds a torn tail and leaves it in the file")
def torn_tail_left_in_the_file() -> Patches:
    original = _Loader._end_at

    def end_at(self: Any, bad: Any, segment: Any, later: Any) -> None:
        file = segment.file
        segment.file = _Without(file, "truncate")
        original(self, bad, segment, later)
        segment.file = file

    yield _Loader, "_end_at", end_at


@bug("after a crash the last segment is believed as after a clean shutdown")
def crash_taken_for_a_clean_shutdown() -> Patches:
    def known(clean: bool, *rest: Any) -> CheckpointedState:
        return CheckpointedState(True, *rest)

    from mqd.log.disk import directory_loading

    yield directory_loading, "CheckpointedState", known


@bug("recovery reads no checksums")
def checksums_not_read() -> Patches:
    yield segment_scan, "crc_of", lambda view, *_: int.from_bytes(view[17:21], "big")


# -- compaction


@bug("the cleaner drops keys that have nothing new in the dirty part", load="groups")
def keys_without_news_dropped() -> Patches:
    original = OffsetMap.get

    def get(self: OffsetMap, key: bytes) -> int:
        found = original(self, key)
        return 2**63 - 1 if found == NO_OFFSET else found

    yield OffsetMap, "get", get


@bug("records of aborted transactions count as the newest of their keys", load="copy")
def aborted_records_count_as_newest() -> Patches:
    def indexing(keys: OffsetMap, transactions: Any, start: int) -> OffsetMapBuilder:
        return OffsetMapBuilder(keys, CleanedTransactions((), start), start)

    yield compaction_pass, "OffsetMapBuilder", indexing


@bug("markers go before the records of their transactions", load="copy")
def markers_go_early() -> Patches:
    def control_batch(self: BatchRewriter, header: Any, view: Any) -> Any:
        self.transactions.is_gone(header, view)
        return None

    yield BatchRewriter, "_control_batch", control_batch


@bug("a cleaned segment takes the place of others before it is on stable storage", load="groups")
def cleaned_segment_not_synced() -> Patches:
    original = SegmentRewrite.__init__

    def init(self: SegmentRewrite, disk: Any, *what: Any, **how: Any) -> None:
        original(self, _Without(disk, "sync", "sync_directory"), *what, **how)

    yield SegmentRewrite, "__init__", init


# -- retention and DeleteRecords


@bug("retention removes what is not committed")
def retention_beyond_the_high_watermark() -> Patches:
    def plan(log: PartitionLog, now_ms: int) -> tuple[int, str]:
        high_watermark, log.checkpointed_high_watermark = (
            log.checkpointed_high_watermark,
            log.log_end_offset,
        )
        try:
            return plan_retention(log, now_ms)
        finally:
            log.checkpointed_high_watermark = high_watermark

    yield housekeeping, "plan_retention", plan


@bug("retention.ms=-1 is a limit like any other")
def no_limit_is_a_limit() -> Patches:
    def plan(log: PartitionLog, now_ms: int) -> tuple[int, str]:
        config = log.config
        log.config = replace(config, retention_ms=max(config.retention_ms, 0))
        try:
            return plan_retention(log, now_ms)
        finally:
            log.config = config

    yield housekeeping, "plan_retention", plan


@bug("a follower does not take over its leader's log start")
def followers_ignore_the_log_start() -> Patches:
    yield ReplicaService, "follower_advanced", lambda self, partition: partition.log_replaced()


@bug("DeleteRecords takes the end of the log for the high watermark")
def delete_records_beyond_the_high_watermark() -> Patches:
    def delete(context: Any, topic: str, index: int, offset: int) -> Any:
        partition = leading(context.node, topic, index)
        offset = partition.log.written_end_offset if offset < 0 else offset
        context.node.replica.delete_records(partition, offset)
        return partition, offset

    yield delete_records, "_delete", delete
