"""For `mqctl dlq redrive`: what dead letters contain, and which of a partition are done. Pure.

The progress of a partition is a committed offset. Its metadata lists the letters below it that were
left. Invariant: each letter below `next_offset` is redriven, or in `left`, but never both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mqd.delay_names import (
    DLQ_OFFSET,
    DLQ_PARTITION,
    DLQ_PREFIX,
    DLQ_TARGET,
    DLQ_TIMESTAMP,
    DLQ_TOPIC,
    RELAY_HEADERS,
)
from mqd.protocol.record_reader import Record
from mqd.types import TopicPartition

_LEFT: Final = "left:"
METADATA_CHARACTERS_MAX: Final = 4000
"""`offset.metadata.max.bytes` is 4,096 by default."""

Headers = Sequence[tuple[str, bytes | None]]


class Origin(NamedTuple):
    """Where the original of a letter without a copy is."""

    tp: TopicPartition
    offset: int
    timestamp: int


def is_letter(record: Record) -> bool:
    return any(name.startswith(DLQ_PREFIX) for name, _ in record.headers)


def has_copy(record: Record) -> bool:
    """Whether a letter has key, value and headers of the original.

    A relay adds headers of its own to each letter, also to one without a copy. A copy of a record
    that has nothing else looks like a letter without a copy.
    """
    return (
        record.key is not None or record.value is not None or bool(restored_headers(record.headers))
    )


def target_of(record: Record) -> str | None:
    """The topic that a letter names."""
    headers = _texts(record)
    return headers.get(DLQ_TARGET) or headers.get(DLQ_TOPIC) or None


def plan_of(topic: str, targets: Mapping[str | None, int]) -> str:
    """For the confirmation: how many letters go where. None: letters that name no topic."""
    if not targets:
        return f"All dead letters of {topic!r} are redriven."
    rows = [f"  {name!r}: {count}" for name, count in sorted(targets.items(), key=str) if name]
    if targets.get(None):
        rows.append(f"  none, so they are left: {targets[None]}")
    return "\n".join([f"Write the dead letters of {topic!r} to these topics:", *rows])


def origin_of(record: Record) -> Origin | None:
    """None if the headers do not name one, or if the original was gone when the letter was made."""
    headers = _texts(record)
    try:
        tp = TopicPartition(headers[DLQ_TOPIC], int(headers[DLQ_PARTITION]))
        return Origin(tp, int(headers[DLQ_OFFSET]), int(headers[DLQ_TIMESTAMP]))
    except (KeyError, ValueError):
        return None


def restored_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    """The record begins again: no attempt, and no delay, was made before."""
    return [
        header
        for header in headers
        if not header[0].startswith(DLQ_PREFIX) and header[0] not in RELAY_HEADERS
    ]


def _texts(record: Record) -> dict[str, str]:
    return {
        name: value.decode(errors="replace") for name, value in record.headers if value is not None
    }


@dataclass(slots=True)
class PartitionProgress:
    """Which letters of one partition are done."""

    next_offset: int = 0
    left: set[int] = field(default_factory=set)
    """Below `next_offset`: not redriven yet."""

    @property
    def start(self) -> int:
        """The first offset to read."""
        return min(self.left, default=self.next_offset)

    def wants(self, offset: int) -> bool:
        return offset >= self.next_offset or offset in self.left

    def redriven(self, offset: int) -> None:
        self.left.discard(offset)
        self.next_offset = max(self.next_offset, offset + 1)

    def leave(self, offset: int) -> bool:
        """Returns False, and changes nothing, if the metadata has no room for this letter."""
        if len(encode_left([*self.left, offset])) > METADATA_CHARACTERS_MAX:
            return False
        self.left.add(offset)
        self.next_offset = max(self.next_offset, offset + 1)
        return True

    def finish(self, log_start: int, end: int) -> None:
        """All letters from `log_start` to `end` were looked at."""
        self.left = {offset for offset in self.left if offset >= log_start}
        self.next_offset = max(self.next_offset, end)


def encode_left(offsets: Iterable[int]) -> str:
    """The metadata of a progress, such as `left:3-5,9`."""
    ranges: list[list[int]] = []
    for offset in sorted(offsets):
        if ranges and offset <= ranges[-1][1] + 1:
            ranges[-1][1] = offset
        else:
            ranges.append([offset, offset])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return _LEFT + ",".join(texts) if texts else ""


def decode_progress(offset: int, metadata: str) -> PartitionProgress:
    """The reverse. Metadata that others wrote counts as none."""
    progress = PartitionProgress(offset)
    if not metadata.startswith(_LEFT):
        return progress
    try:
        for text in metadata.removeprefix(_LEFT).split(","):
            first, _, last = text.partition("-")
            progress.left.update(range(int(first), min(int(last or first) + 1, offset)))
    except ValueError:
        return PartitionProgress(offset)
    return progress
