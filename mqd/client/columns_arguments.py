"""Checks the arguments of `columns.encode` before any row is encoded."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from mqd.client.columns_schema import HEADERS_TYPE
from mqd.client.columns_varints import Ints
from mqd.client.errors import ClientError
from mqd.errors import ErrorCode

STAMP_MAX: Final = 2**62
"""The largest timestamp: differences of timestamps must fit into 64 bits."""


def checked_timestamps(
    count: int,
    keys: pa.Array,
    values: pa.Array,
    partitions: np.ndarray[Any, Any],
    timestamps_ms: int | pa.Array,
    headers: pa.Array | None,
    batch_bytes: int,
) -> int | Ints:
    """The timestamps in the form that `encode` needs. Raises ClientError, which names the invalid
    argument.
    """
    for name, column in (("keys", keys), ("values", values)):
        if column.type != pa.binary():
            raise _refused(f"'{name}' has type {column.type}", "cast it to binary")
    lengths = {"keys": len(keys), "partitions": len(partitions)}
    if headers is not None:
        lengths["headers"] = len(headers)
    if not isinstance(timestamps_ms, int):
        lengths["timestamps_ms"] = len(timestamps_ms)
    for name, length in lengths.items():
        if length != count:
            raise _refused(
                f"'{name}' has {length} rows, 'values' has {count}", "pass columns of one length"
            )
    if batch_bytes < 1:
        raise _refused(f"'batch_bytes' is {batch_bytes}", "choose at least 1")
    if count and int(partitions.min()) < 0:
        raise _refused("'partitions' has a negative number", "choose a partition for each row")
    if headers is not None:
        if headers.type != HEADERS_TYPE:
            raise _refused(f"'headers' has type {headers.type}", f"cast it to {HEADERS_TYPE}")
        flat = headers.flatten()
        if flat.null_count or flat.field(0).null_count:
            raise _refused("'headers' has a header without a key", "give each header a key")
    if isinstance(timestamps_ms, int):
        if abs(timestamps_ms) > STAMP_MAX:
            raise _refused(f"'timestamps_ms' has {timestamps_ms}", "pass milliseconds since 1970")
        return timestamps_ms
    if timestamps_ms.type != pa.int64():
        raise _refused(
            f"'timestamps_ms' has type {timestamps_ms.type}", "cast it to int64, milliseconds"
        )
    if timestamps_ms.null_count:
        raise _refused("'timestamps_ms' has a null", "fill nulls with the current time")
    stamps: Ints = timestamps_ms.to_numpy()
    if count and max(int(stamps.max()), -int(stamps.min())) > STAMP_MAX:
        far = stamps[np.argmax(np.abs(stamps))]
        raise _refused(f"'timestamps_ms' has {far}", "pass milliseconds since 1970")
    return stamps


def _refused(what: str, remedy: str) -> ClientError:
    return ClientError(ErrorCode.INVALID_REQUEST, f"cannot encode: {what}", remedy=remedy)
