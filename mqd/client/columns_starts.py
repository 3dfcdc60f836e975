"""Finds where the records of a batch begin: the only step that must go record by record.

A record begins where the one before it ends, and only its length shows that. A loop reads the
lengths, or AwkwardForth if the optional package awkward-cpp is installed. The loop handles runs of
records of one size at once. A test checks that all ways give the same positions. Invariants of a
result: positions ascend, none lies outside its span, and the last record of a finished span ends
with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from mqd.client.columns_varints import BYTES_MAX_32, Bytes, Ints, skip_varints
from mqd.protocol.batch import Buffer, corrupt

RECORD_BYTES_MIN = 7
"""Length, attributes, timestamp, offset, key, value, headers: a byte each."""


class Span(NamedTuple):
    """Consecutive records in `[begin, end)`. `finished`: the last records of the batch."""

    begin: int
    end: int
    records: int
    finished: bool = True


def find_starts(data: Buffer, array: Bytes, spans: list[Span]) -> tuple[Ints, Ints]:
    """For the records of all spans, in order: (where each record starts, after its length; where it
    ends).

    `array` is `data` as numpy sees it. Each span has at least one record. Raises MqError
    CORRUPT_MESSAGE if the lengths do not fit.
    """
    counts = np.array([span.records for span in spans], np.int64)
    try:
        if _pays(int(counts.sum())) and not _is_even(array, spans[0]):
            lengths, stops = _by_forth(array, spans)
        else:
            lengths, stops = _by_loop(data, array, spans)
        starts = skip_varints(array, lengths, BYTES_MAX_32)
    except IndexError:
        raise corrupt("a record is cut off") from None
    if (array[lengths] & 1).any():
        raise corrupt("a record's length is negative")
    limits = np.array([span.end for span in spans], np.int64)
    if (stops > limits).any():
        raise corrupt("a record does not end within its batch")
    if (stops < limits)[[span.finished for span in spans]].any():
        raise corrupt("bytes follow the last record of a batch")
    ends = np.empty_like(starts)
    ends[:-1] = lengths[1:]
    ends[np.cumsum(counts) - 1] = stops
    assert (ends >= starts).all()
    return starts, ends


# -- by AwkwardForth


_FORTH = """
input data
input spans
output starts int64
output stops int64
begin
  spans end invert
while
  spans q-> stack
  data seek
  spans q-> stack
  0 do
    data pos starts <- stack
    data zigzag-> stack
    data skip
  loop
  data pos stops <- stack
repeat
"""
"""The program for AwkwardForth: 22 ns for each record, where the loop takes 110. Spans are pairs of
begin and count.

The machine checks every read and seek against the input. A negative length moves it backwards; its
caller detects this.
"""

FORTH_RECORDS_MIN = 4096
"""Smaller responses do not import AwkwardForth: the import takes as long as a million records in
the loop.
"""


@cache
def forth_machine() -> Callable[[str], Any] | None:
    """AwkwardForth, where the optional package awkward-cpp is installed."""
    try:
        from awkward_cpp.lib._ext import ForthMachine64
    except (ImportError, AttributeError, OSError):
        return None
    machine: Callable[[str], Any] = ForthMachine64
    return machine


def _pays(records: int) -> bool:
    return records >= FORTH_RECORDS_MIN and forth_machine() is not None


def _by_forth(array: Bytes, spans: list[Span]) -> tuple[Ints, Ints]:
    make = forth_machine()
    assert make is not None
    machine = make(_FORTH)  # 10 us; nothing is shared between threads, or kept
    wanted = np.array([(span.begin, span.records) for span in spans], np.int64)
    try:
        machine.run({"data": array, "spans": wanted.view(np.uint8).reshape(-1)})
    except ValueError:
        raise corrupt("a record is cut off") from None
    return np.asarray(machine.output("starts")), np.asarray(machine.output("stops"))


# -- by a loop

RUN_RECORDS_MIN = 16
"""Shorter runs cost more than the loop: finding a run takes about 10 us, then 4 ns for each record.
"""
_RUN_MISSES_MAX = 2
"""After this many short runs, the loop stops searching for runs in the span."""


def _by_loop(data: Buffer, array: Bytes, spans: list[Span]) -> tuple[Ints, Ints]:
    starts: list[int] = []
    stops = [_walk(data, array, span.begin, span.records, starts) for span in spans]
    return np.array(starts, np.int64), np.array(stops, np.int64)


def _walk(data: Buffer, array: Bytes, position: int, count: int, starts: list[int]) -> int:
    """Append where `count` records begin, and return where the last one ends."""
    misses = 0
    while count >= 2 * RUN_RECORDS_MIN and misses < _RUN_MISSES_MAX:
        run, size = _run_of_one_size(array, position, count)
        if run < RUN_RECORDS_MIN:
            misses += 1
            run = RUN_RECORDS_MIN
            position = _step(data, position, run, starts)
        else:
            starts.extend(range(position, position + run * size, size))
            position += run * size
        count -= run
    return _step(data, position, count, starts)


def _is_even(array: Bytes, span: Span) -> bool:
    """Whether the first records of a span have one size."""
    enough = 2 * RUN_RECORDS_MIN
    return span.records >= enough and _run_of_one_size(array, span.begin, enough)[0] == enough


def _run_of_one_size(array: Bytes, position: int, count: int) -> tuple[int, int]:
    """Returns (the number of consecutive records of one size from `position`, that size in bytes).
    A record of this size is followed by the length of the next one, `size` bytes later. So the run
    lasts while the bytes at `position + n * size` repeat the length of the first record.
    """
    raw = width = 0
    while True:
        byte = int(array[position + width])
        raw |= (byte & 0x7F) << (7 * width)
        width += 1
        if byte < 0x80:
            break
        if width == BYTES_MAX_32:
            raise corrupt("a record's length does not end")
    size = width + (raw >> 1)
    count = min(count, (len(array) - position - width) // size + 1)
    same = np.ones(count, bool)
    for place in range(position, position + width):
        same &= array[place : place + (count - 1) * size + 1 : size] == array[place]
    return count if same.all() else int(same.argmin()), size


def _step(data: Buffer, position: int, count: int, starts: list[int]) -> int:
    """The same as `_walk`, record by record."""
    add = starts.append
    for _ in range(count):
        add(position)
        byte = data[position]
        if byte < 0x80:
            position += 1 + (byte >> 1)
            continue
        more = data[position + 1]
        if more < 0x80:
            position += 2 + ((byte & 0x7F | more << 7) >> 1)
            continue
        size = byte & 0x7F | (more & 0x7F) << 7
        position += 2
        shift = 14
        while True:
            more = data[position]
            position += 1
            size |= (more & 0x7F) << shift
            if more < 0x80:
                break
            shift += 7
            if shift > 28:
                raise corrupt("a record's length does not end")
        if size >> 32:
            raise corrupt("a record's length does not end")
        position += size >> 1
    return position
