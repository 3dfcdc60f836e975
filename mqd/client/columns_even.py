"""Encodes records of one shape: all keys have one size (or are null), and so have all values.

Such records differ in length only by their offset's varint. So the records of a batch are a few
runs of equal length, and numpy writes each field of a run with one call. All timestamps are equal,
and there are no headers. This takes about a third of the time of the general way.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from mqd import limits
from mqd.client.columns_buffers import data_of, offsets_of
from mqd.client.columns_varints import Bytes, Ints
from mqd.protocol.primitives import pack_unsigned_varint

RECORD_BYTES_MAX: Final = 64 * limits.KIB
"""Larger records are not faster this way."""
ROWS_MIN: Final = 16
"""Smaller batches are not faster this way."""

Fields = np.ndarray[Any, Any]
"""One item of a numpy void type for each row. None: all are null, or have no bytes."""


class EvenRecords:
    """Records whose keys have one size, and whose values have one size. Use `EvenRecords.of` to
    make them.
    """

    def __init__(
        self,
        keys: Fields | None,
        values: Fields | None,
        key_size: int,
        value_size: int,
        count_max: int,
    ) -> None:
        """A size of -1: all are null."""
        self._keys = keys
        self._values = values
        key_length, self._value_length = _varint(key_size), _varint(value_size)
        key_bytes, value_bytes = max(key_size, 0), max(value_size, 0)
        self._runs: list[tuple[int, int, Fields, np.dtype[Any]]] = []
        """For each run of one record length: (first offset, end offset, prefix of each record,
        layout).
        """
        first, offset_bytes = 0, 1
        while first < count_max:
            behind = min(1 << (7 * offset_bytes - 1), count_max)
            size = 2 + offset_bytes + len(key_length) + key_bytes
            size += len(self._value_length) + value_bytes + 1
            length = _varint(size)
            # attributes and the timestamp are 0
            before, after = length + b"\0\0", key_length
            prefixes = _prefixes(first, behind, offset_bytes, before, after)
            layout = _layout(
                prefixes.dtype.itemsize, key_bytes, len(self._value_length), value_bytes
            )
            assert layout.itemsize == len(length) + size
            self._runs.append((first, behind, prefixes, layout))
            first, offset_bytes = behind, offset_bytes + 1

    @classmethod
    def of(cls, keys: pa.Array, values: pa.Array, count_max: int) -> EvenRecords | None:
        """The records of these rows, in batches of at most `count_max` rows. None if sizes
        differ.
        """
        key_size, value_size = _one_size(keys), _one_size(values)
        if key_size is None or value_size is None or count_max < ROWS_MIN:
            return None
        if key_size + value_size > RECORD_BYTES_MAX:
            return None
        return cls(
            _fields(keys, key_size), _fields(values, value_size), key_size, value_size, count_max
        )

    def bytes_of(self, count: int) -> int:
        """The size of the first `count` records of a batch."""
        return sum(
            (min(behind, count) - first) * layout.itemsize
            for first, behind, _, layout in self._runs
            if first < count
        )

    def write(self, out: Bytes, rows: Ints | slice, count: int) -> None:
        """Write the records of `rows` as the first ones of a batch. `out` must have space for
        them.
        """
        keys = None if self._keys is None else self._keys[rows]
        values = None if self._values is None else self._values[rows]
        value_length = np.frombuffer(self._value_length, f"V{len(self._value_length)}")
        at = 0
        for first, behind, prefixes, layout in self._runs:
            behind = min(behind, count)
            if first >= behind:
                break
            size = (behind - first) * layout.itemsize
            records = out[at : at + size].view(layout)
            records["prefix"] = prefixes[: behind - first]
            if keys is not None:
                records["key"] = keys[first:behind]
            records["value length"] = value_length
            if values is not None:
                records["value"] = values[first:behind]
            records["headers"] = 0
            at += size
        assert at == len(out)


def _one_size(column: pa.Array) -> int | None:
    """The common size of all values; -1 if all are null, None if sizes differ."""
    if column.null_count:
        return -1 if column.null_count == len(column) else None
    offsets = offsets_of(column)
    size = int(offsets[1] - offsets[0])
    return size if (offsets[1:] - offsets[:-1] == size).all() else None


def _fields(column: pa.Array, size: int) -> Fields | None:
    if size <= 0:
        return None
    start = int(offsets_of(column)[0])
    return data_of(column)[start : start + size * len(column)].view(f"V{size}")


def _varint(number: int) -> bytes:
    return pack_unsigned_varint(number << 1 if number >= 0 else (-number << 1) - 1)


def _prefixes(first: int, behind: int, offset_bytes: int, before: bytes, after: bytes) -> Fields:
    """For each offset in `[first, behind)`: `before`, the offset as a varint, `after`."""
    out = np.empty((behind - first, len(before) + offset_bytes + len(after)), np.uint8)
    out[:, : len(before)] = np.frombuffer(before, np.uint8)
    out[:, len(before) + offset_bytes :] = np.frombuffer(after, np.uint8)
    rest = np.arange(first, behind) << 1
    for index in range(offset_bytes):
        more = 0 if index == offset_bytes - 1 else 0x80
        out[:, len(before) + index] = (rest & 0x7F) | more
        rest >>= 7
    return out.view(f"V{out.shape[1]}")[:, 0]


def _layout(prefix: int, key: int, value_length: int, value: int) -> np.dtype[Any]:
    """The fields of a record as a numpy structure, without fields of no bytes."""
    sizes = {"prefix": prefix, "key": key, "value length": value_length, "value": value}
    fields = [(name, f"V{size}") for name, size in sizes.items() if size]
    return np.dtype([*fields, ("headers", np.uint8)])
