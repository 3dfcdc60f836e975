"""Checks of a record before it is queued: in a batch it would spoil the others. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import NoneType
from typing import Any

from mqd.client.arguments import check_topic, shown
from mqd.client.errors import invalid_type, invalid_value

Headers = Sequence[tuple[str, bytes | None]]
BYTES = (bytes, bytearray, memoryview, NoneType)
_TIMESTAMP_MAX = 2**63 - 1


def check_record(
    value: object,
    key: object,
    headers: tuple[object, ...],
    timestamp: object,
    partition: object,
) -> None:
    """Raises InvalidType or InvalidValue."""
    for what, data in (("value", value), ("key", key)):
        if not isinstance(data, BYTES):
            message = f"the {what} of a record is {type(data).__name__}, not bytes"
            raise invalid_type(message, "encode it: text with .encode()")
    for header in headers:
        _check_header(header)
    if timestamp is not None:
        allowed = "give milliseconds since 1970 as an int, or leave it out"
        if isinstance(timestamp, bool) or not isinstance(timestamp, int):
            raise invalid_type(f"the timestamp of a record is {shown(timestamp)}", allowed)
        if not 0 <= timestamp <= _TIMESTAMP_MAX:
            raise invalid_value(f"the timestamp of a record is {timestamp}", allowed)
    check_partition(partition)


def as_headers(headers: object) -> tuple[Any, ...]:
    """Several headers. Raises InvalidType."""
    if not isinstance(headers, Iterable):
        message = f"the headers of a record are {shown(headers)}"
        raise invalid_type(message, "give pairs of a name (str) and a value (bytes or None)")
    return tuple(headers)


def check_partition(partition: object) -> None:
    """Raises InvalidType or InvalidValue. Whether the topic has the partition is found out
    later.
    """
    if partition is None:
        return
    allowed = "give an int from 0 on, or leave it out"
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise invalid_type(f"the partition of a record is {shown(partition)}", allowed)
    if partition < 0:
        raise invalid_value(f"the partition of a record is {partition}", allowed)


def check_destination(topic: object, partition: object) -> None:
    """Raises InvalidType or InvalidValue."""
    check_topic(topic)
    check_partition(partition)


def _check_header(header: object) -> None:
    if not (
        isinstance(header, tuple)
        and len(header) == 2
        and isinstance(header[0], str)
        and isinstance(header[1], BYTES)
    ):
        message = f"a header of a record is {shown(header)}"
        raise invalid_type(message, "give pairs of a name (str) and a value (bytes or None)")
    try:
        header[0].encode()
    except UnicodeEncodeError:
        message = f"the name of a header is {shown(header[0])}, which is not valid UTF-8"
        raise invalid_value(message, "use valid Unicode text") from None
