"""Work on one large message in slices, so that the event loop does other work between two slices.

Pure: generators, two functions that run them, and rows that are made one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

from mqd import limits

Message = TypeVar("Message")
Slices = Generator[int, None, Message]
"""Yields the number of rows that were read or written since the last yield, and returns the
message.
"""
WHOLE_SLICE = 200
"""The number of rows to yield after a step that is a whole slice of work: one to three
milliseconds.
"""
SLICE_ROWS = limits.DECODED_AT_ONCE_ROWS
SLICE_BYTES = 32 * limits.KIB
"""Request bytes without records in one slice: a row may have thousands of tagged fields."""


class Rows:
    """Rows of a response that are made while it is encoded, which is in slices. `sources` must not
    change until then.
    """

    def __init__(self, sources: Sequence[Any], make: Callable[[Any], Any]) -> None:
        self._sources = sources
        self._make = make

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, self._sources)


def first_slice(work: Slices[Message]) -> Message | None:
    """The message, if one slice is enough; otherwise None."""
    try:
        next(work)
    except StopIteration as end:
        message: Message = end.value
        return message
    return None


def all_slices(work: Generator[object, None, Message]) -> Message:
    while True:
        try:
            next(work)
        except StopIteration as end:
            message: Message = end.value
            return message
