"""What clients sent and received: the acknowledgements of every producer and the records of every
consumer.

A value is one integer: producer << NUMBER_BITS | number. A producer numbers its records 0, 1, 2 ...
in each partition, in the order in which it sends them, so a value names its producer, and the
records that must precede it. All are stored in arrays of 64-bit integers, because a run at full
speed has some ten million records. No client, no clock; `checker.check` judges it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

NOT_ACKED = -1
ACKED_SOMEWHERE = -2
"""The broker has the batch, at an unknown offset: librdkafka had retried it, and got
DUPLICATE_SEQUENCE_NUMBER.
"""
NUMBER_BITS = 40
_NUMBER_MASK = (1 << NUMBER_BITS) - 1

Key = tuple[str, int]
"""Topic and partition."""


def value_of(producer: int, number: int) -> int:
    """The value of a producer's record of that number."""
    return producer << NUMBER_BITS | number


def producer_of(value: int) -> int:
    """The producer that sent it."""
    return value >> NUMBER_BITS


def number_of(value: int) -> int:
    """Its place among what that producer sent to that partition."""
    return value & _NUMBER_MASK


def longs() -> array[int]:
    """An empty array of 64-bit integers."""
    return array("q")


@dataclass(slots=True)
class Reads:
    """What one consumer got of one partition, in its order: `offsets` beside `values`.

    It read each offset once, from the start.
    """

    offsets: array[int] = field(default_factory=longs)
    values: array[int] = field(default_factory=longs)

    def add(self, offset: int, value: int) -> None:
        """The next record."""
        self.offsets.append(offset)
        self.values.append(value)


@dataclass(slots=True)
class History:
    """A whole run.

    `sends[producer][key][number]` is the offset that the acknowledgement named, ACKED_SOMEWHERE, or
    NOT_ACKED.
    """

    sends: dict[int, dict[Key, array[int]]] = field(default_factory=dict)
    reads: dict[int, dict[Key, Reads]] = field(default_factory=dict)
    """Consumer -> key -> what it read during the faults."""
    final: dict[Key, Reads] = field(default_factory=dict)
    """What is there in the end."""

    @property
    def acked(self) -> int:
        """Acknowledged records."""
        return sum(
            len(rows) - rows.count(NOT_ACKED)
            for keys in self.sends.values()
            for rows in keys.values()
        )
