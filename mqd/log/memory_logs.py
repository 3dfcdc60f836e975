"""The logs in memory of a node (`mqd.storage=memory`): how they share its memory, and where a lost
one begins. A core.

Each log has at most `mqd.memory.max.bytes`, and at most an equal share of the node's bound
(`memory.topics.max.bytes`). The share is at least SHARE_BYTES_MIN: the controller creates no more
partitions. A log has eight segments or more of that size. The oldest one leaves as
soon as a new one begins, so the sizes of a log are:

    six eighths, by retention + the oldest one, which is removed whole + the active one

A process that ends loses its logs. If no other replica has the records, a leader begins an empty
log at `first_offset(leader_epoch)`, beyond all offsets of earlier leader epochs. So no offset ever
has two records, and a position from before the loss is out of range (I59).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mqd.limits import MIB
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.types import Offset

SEGMENTS: Final = 8
"""The number of segments that fill a log in memory."""
SHARE_BYTES_MIN: Final = MIB
"""A batch must fit into a segment: one of 128 KiB always does."""
EPOCH_BITS: Final = 40
"""A leader epoch has 2**40 offsets: twelve days of a million records a second."""
EPOCHS_MAX: Final = 1 << 62 - EPOCH_BITS
LOST: Final = "its records were in memory (mqd.storage=memory) and ended with the last process"


def first_offset(leader_epoch: int) -> Offset:
    """Where a log begins that was lost before this leader epoch. A new partition has epoch 0."""
    assert 0 <= leader_epoch < EPOCHS_MAX, leader_epoch
    return leader_epoch << EPOCH_BITS


def has_offsets_for_a_segment(log: PartitionLog, base_offset: Offset) -> bool:
    """Whether all offsets of a segment that begins now are below those of the next leader epoch
    (I59).
    """
    leader_epoch = max(0, log.epochs.latest)
    return base_offset + (1 << 31) < leader_epoch + 1 << EPOCH_BITS


def partitions_max(bytes_max: int) -> int:
    """How many partitions in memory a node may have."""
    return max(1, min(bytes_max // SHARE_BYTES_MIN, 2**31 - 1))


class MemoryLogs:
    """See the head of this file. `bytes_max`: of all logs together."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._wanted: dict[PartitionLog, LogConfig] = {}
        """The configuration of each log, without the node's bound."""
        self._largest = 0
        """The largest size that a log may have by its topic."""

    @property
    def share(self) -> int:
        """Bytes for each log."""
        return self._bytes_max // _rounded_up(max(1, len(self._wanted)))

    def configure(self, log: PartitionLog, config: LogConfig) -> None:
        """A log was opened, or has another configuration."""
        before = self.share
        self._wanted[log] = config
        self._largest = max(self._largest, config.memory_bytes)
        log.update_config(within(config, self.share))
        self._share_changed(before)

    def forget(self, log: PartitionLog) -> None:
        """A log was deleted."""
        before = self.share
        if self._wanted.pop(log, None) is not None:
            self._share_changed(before)

    def _share_changed(self, before: int) -> None:
        if self.share == before or min(self.share, before) >= self._largest:
            return
        for log, config in self._wanted.items():
            log.update_config(within(config, self.share))


def _rounded_up(count: int) -> int:
    """The next number with four significant bits. So the share of all logs changes at most eight
    times while their number doubles, not with each one."""
    step = 1 << max(0, count.bit_length() - 4)
    return -(-count // step) * step


def within(config: LogConfig, share: int) -> LogConfig:
    """The configuration with the segments and the retention of `share` bytes, or of its own bound
    if that is less.
    """
    bytes_max = min(config.memory_bytes, share)
    segment_bytes = max(1, min(config.segment_bytes, bytes_max // SEGMENTS))
    retention_bytes = max(0, bytes_max - 2 * segment_bytes)
    if config.retention_bytes >= 0:
        retention_bytes = min(retention_bytes, config.retention_bytes)
    return replace(config, segment_bytes=segment_bytes, retention_bytes=retention_bytes)
