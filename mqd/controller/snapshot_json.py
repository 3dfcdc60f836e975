"""JSON objects as deflated bytes, written and read in pieces of some milliseconds.

A worker thread can do that beside the event loop. One call of `json.loads` would hold Python's lock
for seconds.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

from mqd.limits import KIB

ItemT = TypeVar("ItemT")

ROWS_PER_PIECE = 250
_SORTED_AT_ONCE = 2_000
_TEXT_BYTES_PER_PIECE = 64 * KIB
_SPACE = re.compile(r"[ \t\n\r]*").match
_VALUE = json.JSONDecoder().raw_decode

# -- writing


def in_order(items: Sequence[ItemT]) -> Iterator[ItemT]:
    """Sorted, without one long call that would hold Python's lock."""
    runs = (
        sorted(items[start : start + _SORTED_AT_ONCE])  # type: ignore[type-var]
        for start in range(0, len(items), _SORTED_AT_ONCE)
    )
    return merge(*runs)  # type: ignore[type-var]


def json_rows(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """The elements of a JSON array, without its brackets."""
    left = iter(rows)
    comma = ""
    while several := list(islice(left, ROWS_PER_PIECE)):
        yield comma + json_text(several)[1:-1]
        comma = ","


def json_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def deflated(text: Iterator[str]) -> Iterator[bytes]:
    """The text as one zlib stream, in pieces of some milliseconds of work."""
    deflater = zlib.compressobj(6)
    waiting: list[str] = []
    size = 0
    for part in text:
        waiting.append(part)
        size += len(part)
        if size >= _TEXT_BYTES_PER_PIECE:
            yield deflater.compress("".join(waiting).encode())
            waiting, size = [], 0
    yield deflater.compress("".join(waiting).encode()) + deflater.flush()


# -- reading


def inflate(data: bytes) -> str:
    """The text that `deflated` compressed. Raises ValueError.

    Its size has no bound: every node must load what was decided, also after a restart. Decisions
    are bounded (I45, size.py).
    """
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(data)
    except zlib.error as error:
        raise ValueError(f"metadata snapshot does not inflate: {error}") from error
    if not inflater.eof:
        raise ValueError("metadata snapshot is cut off")
    return text.decode()


def elements(reader: JsonReader) -> Iterator[list[Any]]:
    """The elements of an array, some at a time."""
    if not reader.opens("[", "]"):
        return
    more = True
    while more:
        values = [reader.value()]
        while (more := reader.continues("]")) and len(values) < ROWS_PER_PIECE:
            values.append(reader.value())
        yield values


class JsonReader:
    """A position in a JSON text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def value(self) -> Any:
        found, self._position = _VALUE(self._text, self._place())
        return found

    def expect(self, mark: str) -> None:
        if not self._passes(mark):
            raise self._unexpected(mark)

    def opens(self, mark: str, end: str) -> bool:
        """Whether the array or object that begins here has an element."""
        self.expect(mark)
        return not self._passes(end)

    def continues(self, end: str) -> bool:
        """Whether another element follows."""
        if self._passes(","):
            return True
        self.expect(end)
        return False

    def end(self) -> None:
        if self._place() < len(self._text):
            raise self._unexpected("the end")

    def _passes(self, mark: str) -> bool:
        place = self._place()
        if not self._text.startswith(mark, place):
            return False
        self._position = place + 1
        return True

    def _place(self) -> int:
        place = _SPACE(self._text, self._position)
        assert place is not None
        return place.end()

    def _unexpected(self, wanted: str) -> ValueError:
        found = self._text[self._position : self._position + 20]
        return ValueError(f"metadata snapshot: {found!r} at {self._position}, {wanted!r} expected")
