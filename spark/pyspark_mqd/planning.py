"""Plans of the source: where a micro-batch ends, which ranges its tasks read, what was lost. Pure.

Rate limits and range splits equal those of Spark's Kafka source, number by number. Invariant: the
ranges of a batch depend on (start, end, options) only. So a batch that runs again reads the same
rows in the same tasks. Exactly-once sinks rely on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mqd.types import TopicPartition

from .errors import OptionError
from .offsets import Offsets, StreamOffset

_OFFSET_MAX = 2**63 - 1


class OffsetRange(NamedTuple):
    """Records of one partition; `end` is exclusive."""

    tp: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """Offsets in the range; compaction and transactions leave fewer records."""
        return self.end - self.start


class Loss(NamedTuple):
    """Records that are gone before the query has read them."""

    tp: TopicPartition
    reason: str


# -- where a micro-batch ends


def effective_start(
    start: StreamOffset, end: StreamOffset, begins: Offsets
) -> dict[TopicPartition, int]:
    """Where each partition of `end` is read from: `begins` win, for they are part of the batch."""
    starts = {}
    for tp in end.ends:
        place = begins.get(tp)
        if place is None and not start.is_replaced(tp.topic, end):
            place = start.ends.get(tp)
        if place is not None:
            starts[tp] = place
    return starts


def limit_offsets(limit: int, starts: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    """Ends of a batch of about `limit` offsets (`maxOffsetsPerTrigger`).

    Each partition gets a share by its backlog: floored, but ceiled where it is below one.
    """
    sizes = {
        tp: end - starts[tp] for tp, end in latest.items() if tp in starts and end > starts[tp]
    }
    total = float(sum(sizes.values()))
    if total < 1:
        return dict(latest)
    ends = {}
    for tp, end in latest.items():
        size = sizes.get(tp)
        if size is None:
            ends[tp] = end
            continue
        share = float(limit) * (float(size) / total)
        count = math.ceil(share) if share < 1 else math.floor(share)
        ends[tp] = min(end, starts[tp] + count, _OFFSET_MAX)
    return ends


def limit_bytes(
    limit: int, starts: Offsets, latest: Offsets, offset_bytes: Mapping[TopicPartition, float]
) -> dict[TopicPartition, int]:
    """Ends of a batch of about `limit` bytes (`maxBytesPerTrigger`); at least one offset each.

    `offset_bytes` is the mean size of an offset of each partition.
    """
    sizes = {
        tp: (end - starts[tp]) * offset_bytes.get(tp, 0.0)
        for tp, end in latest.items()
        if tp in starts and end > starts[tp]
    }
    total = sum(sizes.values())
    if total <= limit:
        return dict(latest)
    ends = {}
    for tp, end in latest.items():
        size = sizes.get(tp, 0.0)
        if size <= 0:
            ends[tp] = end
            continue
        count = max(1, math.floor((end - starts[tp]) * (limit / total)))
        ends[tp] = min(end, starts[tp] + count)
    return ends


def is_delayed(
    min_offsets: int, starts: Offsets, latest: Offsets, *, waited_s: float, max_delay_s: float
) -> bool:
    """Whether a batch waits for more records (`minOffsetsPerTrigger`, `maxTriggerDelay`)."""
    if waited_s >= max_delay_s:
        return False
    return sum(end - starts.get(tp, 0) for tp, end in latest.items()) < min_offsets


# -- which ranges the tasks read


def plan_ranges(
    start: StreamOffset, end: StreamOffset, begins: Offsets
) -> tuple[list[OffsetRange], list[Loss]]:
    """The ranges of a micro-batch in order of topic and partition, and what is missing in them.

    `begins`: first offsets of partitions that `start` does not have, and others that `end` records.
    """
    losses = changes(start, end, begins)
    lost = {loss.tp for loss in losses}
    starts = effective_start(start, end, begins)
    ranges = []
    for tp in sorted(end.ends):
        first = starts.get(tp)
        if first is None:
            losses.append(Loss(tp, f"the first offset of partition {tp} cannot be found"))
            continue
        if tp not in start.ends and first > 0:
            losses.append(Loss(tp, f"added partition {tp} starts from {first} instead of 0"))
        if end.ends[tp] > first:
            ranges.append(OffsetRange(tp, first, end.ends[tp]))
        elif end.ends[tp] < first and tp not in lost:
            losses.append(_went_back(tp, first, end.ends[tp]))
    return ranges, losses


def split_ranges(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """One range a task (`minPartitions`, `maxRecordsPerPartition`); empty ranges are dropped."""
    left = [each for each in ranges if each.size > 0]
    if max_records is not None:
        left = [
            part
            for each in left
            for part in _divided(each, math.ceil(float(each.size) / float(max_records)))
        ]
    if min_partitions is None or min_partitions <= len(left):
        return left
    total = sum(each.size for each in left)
    whole = [each for each in left if _part_count(each.size, total, min_partitions) == 1]
    whole_partitions = {each.tp for each in whole}
    split_total = total - sum(each.size for each in whole)
    split_parts = max(min_partitions - len(whole), 1)
    parts = []
    for each in left:
        one = each.tp in whole_partitions
        count = 1 if one else _part_count(each.size, split_total, split_parts)
        parts += _divided(each, count)
    return parts


def _part_count(size: int, total: int, min_parts: int) -> int:
    return max(math.floor(float(size) / total * min_parts + 0.5), 1)


def _divided(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """About equal parts, the last of them takes what division leaves."""
    found = []
    first, remaining = whole.start, whole.size
    parts = min(parts, whole.size)  # more would be empty
    for part in range(parts):
        size = remaining // (parts - part)
        remaining -= size
        end = min(first + size, whole.end)
        if end > first:
            found.append(OffsetRange(whole.tp, first, end))
        first = end
    return found


def batch_ranges(starts: Offsets, ends: Offsets) -> list[OffsetRange]:
    """The ranges of a batch query from resolved offsets. Raises OptionError."""
    ranges = []
    for tp in sorted(ends):
        start, end = starts[tp], ends[tp]
        if start > end:
            raise OptionError(
                f"The resolved start offset {start} is greater than the resolved end offset {end} "
                f"for topic {tp.topic} partition {tp.partition}. The start is beyond the log, "
                "or start and end are given in different ways. Compare the options "
                "'startingOffsets', 'startingTimestamp', 'endingOffsets' and 'endingTimestamp' "
                "with the partition's offsets."
            )
        ranges.append(OffsetRange(tp, start, end))
    return ranges


# -- what was lost


def changes(start: StreamOffset, latest: StreamOffset, begins: Offsets | None = None) -> list[Loss]:
    """Losses that two offsets show: topics and partitions that are gone, or shorter."""
    losses = []
    for tp in sorted(start.ends):
        begun = start.ends[tp]
        if start.is_replaced(tp.topic, latest):
            losses.append(
                Loss(
                    tp,
                    f"topic '{tp.topic}' was deleted and created again (topic id "
                    f"{start.topic_id(tp.topic)} became {latest.topic_id(tp.topic)}), so records "
                    f"of the old partition {tp} from offset {begun} on are gone",
                )
            )
        elif tp not in latest.ends:
            reason = f"partition {tp} was deleted, so its records from offset {begun} on are gone"
            losses.append(Loss(tp, reason))
        elif latest.ends[tp] < begun and tp not in (begins or ()):
            losses.append(_went_back(tp, begun, latest.ends[tp]))
    return losses


def truncations(start: StreamOffset, cuts: Offsets) -> list[Loss]:
    """Losses of partitions whose logs were cut off below `start`: partition -> where."""
    return [
        Loss(
            tp,
            f"the log of partition {tp} was truncated to {cuts[tp]} by an unclean leader election, "
            f"so what was at offsets [{cuts[tp]}, {start.ends[tp]}) is gone",
        )
        for tp in sorted(cuts)
    ]


def _went_back(tp: TopicPartition, before: int, now: int) -> Loss:
    return Loss(
        tp,
        f"partition {tp} offset was changed from {before} to {now}: the start offset is beyond "
        "the log end, or the topic was deleted and created again",
    )


def overtaken(ranges: Iterable[OffsetRange], log_starts: Offsets) -> list[Loss]:
    """Ranges that begin before the log does: retention or DeleteRecords was faster."""
    losses = []
    for each in ranges:
        log_start = log_starts.get(each.tp, 0)
        if each.start < log_start and each.size > 0:
            losses.append(
                Loss(
                    each.tp,
                    f"offsets [{each.start}, {min(each.end, log_start)}) of partition {each.tp} "
                    f"were deleted: its log starts at {log_start} now",
                )
            )
    return losses


def describe_losses(losses: Sequence[Loss]) -> str:
    """One sentence about what was lost and why: the start of Spark's own message, so that a search
    finds it."""
    shown = "; ".join(loss.reason for loss in losses[:20])
    more = f"; and {len(losses) - 20} more" if len(losses) > 20 else ""
    return (
        "Some data may have been lost because they are not available in Kafka any more: "
        f"{shown}{more}."
    )
