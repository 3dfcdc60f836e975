"""Which partition of its internal topic coordinates a group or a transactional id."""

from __future__ import annotations

from mqd.errors import ErrorCode, MqError
from mqd.limits import COORDINATOR_KEY_BYTES_MAX


def partition_for(key: str, partitions: int) -> int:
    """The partition that coordinates a group or a transactional id.

    Java's: |hashCode| mod partitions. The hash runs over UTF-16 code units, and |-2^31| is 0.
    """
    value = 0
    units = key.encode("utf-16-be")
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    if value == 0x80000000:
        return 0
    return (value if value < 0x80000000 else 0x100000000 - value) % partitions


def check_key(key: str) -> None:
    """MqError INVALID_REQUEST for a group id or a transactional id that is too long."""
    most = COORDINATOR_KEY_BYTES_MAX
    if len(key) > most or len(key.encode()) > most:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"The name of a group or a transaction has at most {most} bytes.",
        )
