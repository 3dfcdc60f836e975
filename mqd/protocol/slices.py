"""Work on one large message, a slice at a time, so that the event loop does other work between two
slices. Pure: generators, and two ways to run them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from mqd import limits

Message = TypeVar("Message")
Slices = Generator[int, None, Message]
"""Yields the number of rows that were read or written since, and returns the message."""
WHOLE_SLICE = 200
"""What a step yields that is as much work as a slice by itself: rows of the server's
slices, one to three milliseconds.
"""
SLICE_ROWS = limits.DECODED_AT_ONCE_ROWS
SLICE_BYTES = 32 * limits.KIB
"""Of a request without its records: a row may have thousands of tagged fields."""


def first_slice(work: Slices[Message]) -> Message | None:
    """The message, where one slice is enough."""
    try:
        next(work)
    except StopIteration as end:
        message: Message = end.value
        return message
    return None


def all_slices(work: Slices[Message]) -> Message:
    while True:
        try:
            next(work)
        except StopIteration as end:
            message: Message = end.value
            return message
