"""Where the records of a batch begin: the one thing that must be done record by record.

Each record states its length, so a record is found by its predecessor alone. Every way below gives the same positions, by test.
What holds of an answer: positions ascend strictly, none lies outside its span, and the last record of a finished span ends with it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mqd.client.columns_varints import Bytes, Ints
from mqd.protocol.batch import Buffer, corrupt

RECORD_BYTES_MIN = 7
"""Length, attributes, timestamp, offset, key, value, headers: a byte each."""


class Span(NamedTuple):
    """Records that lie one behind the other in `[begin, end)`. `finished`: they are all that the batch has from here on."""

    begin: int
    end: int
    records: int
    finished: bool = True


def find_starts(data: Buffer, array: Bytes, spans: list[Span]) -> tuple[Ints, Ints]:
    """(where each record begins, where it ends) for the records of all spans, in order.

    `array` is `data` as numpy sees it. The position is that of the record's length, which is not negative.
    MqError(CORRUPT_MESSAGE) where lengths do not fit their span.
    """
    starts: list[int] = []
    lasts, stops = [], []
    for span in spans:
        try:
            stop = _walk(data, span.begin, span.records, starts)
        except IndexError:
            raise corrupt("a record is cut off") from None
        if stop > span.end:
            raise corrupt("a record does not end within its batch")
        if span.finished and stop != span.end:
            raise corrupt(f"{span.end - stop} bytes follow the last of {span.records} records")
        if span.records:
            lasts.append(len(starts) - 1)
            stops.append(stop)
    begins = np.array(starts, np.int64)
    if (array[begins] & 1).any():
        raise corrupt("a record's length is negative")
    ends = np.empty_like(begins)
    ends[:-1] = begins[1:]
    ends[lasts] = stops
    return begins, ends


def _walk(data: Buffer, position: int, count: int, starts: list[int]) -> int:
    """Append where `count` records begin, and return where the last one ends."""
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
