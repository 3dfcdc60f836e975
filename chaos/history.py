"""The history of a run: the acknowledgements of every producer and the records of every consumer.

A value is one integer: producer << NUMBER_BITS | number. A producer numbers its records 0, 1, 2 ...
in each partition, in send order. So a value identifies its producer and the records that must
precede it. Arrays of 64-bit integers store all values, because a run at full speed has about ten
million records. `checker.check` finds the anomalies. No client, no clock.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

NOT_ACKED = -1
ACKED_SOMEWHERE = -2
"""The broker has the batch at an unknown offset: librdkafka got DUPLICATE_SEQUENCE_NUMBER for a
retry.
"""
NUMBER_BITS = 40
_NUMBER_MASK = (1 << NUMBER_BITS) - 1

Key = tuple[str, int]
"""Topic and partition."""


def value_of(producer: int, number: int) -> int:
    """The value of the producer's record with that number."""
    return producer << NUMBER_BITS | number


def producer_of(value: int) -> int:
    """The producer of a value."""
    return value >> NUMBER_BITS


def number_of(value: int) -> int:
    """The number of a value: its position among the producer's records in the partition."""
    return value & _NUMBER_MASK


def longs() -> array[int]:
    """An empty array of 64-bit integers."""
    return array("q")


@dataclass(slots=True)
class Reads:
    """The records that one consumer got of one partition, in its order: `offsets` and their
    `values`. It read from the start, each offset once.
    """

    offsets: array[int] = field(default_factory=longs)
    values: array[int] = field(default_factory=longs)

    def add(self, offset: int, value: int) -> None:
        """The next record."""
        self.offsets.append(offset)
        self.values.append(value)


@dataclass(slots=True)
class History:
    """A whole run. `sends[producer][key][number]`: the acknowledged offset, ACKED_SOMEWHERE, or
    NOT_ACKED.
    """

    sends: dict[int, dict[Key, array[int]]] = field(default_factory=dict)
    reads: dict[int, dict[Key, Reads]] = field(default_factory=dict)
    """Consumer -> key -> the records that it read during the faults."""
    final: dict[Key, Reads] = field(default_factory=dict)
    """The records at the end of the run."""

    @property
    def acked(self) -> int:
        """The number of acknowledged records."""
        return sum(
            len(rows) - rows.count(NOT_ACKED)
            for keys in self.sends.values()
            for rows in keys.values()
        )
