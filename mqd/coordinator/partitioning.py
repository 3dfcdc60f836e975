"""Which partition of its internal topic coordinates a group or a transactional id."""

from __future__ import annotations

from functools import cache

from mqd.errors import ErrorCode, MqError
from mqd.limits import COORDINATOR_KEY_BYTES_MAX


def partition_for(key: str, partitions: int) -> int:
    """The partition that coordinates a group or a transactional id.

    Java's: |hashCode| mod partitions, and |-2^31| is 0.
    """
    value = _java_hash(key)
    if value == 0x80000000:
        return 0
    return (value if value < 0x80000000 else 0x100000000 - value) % partitions


def _java_hash(key: str) -> int:
    """Java's `String.hashCode()` over UTF-16 code units, modulo 2^32.

    A loop over 4,000 code units would take a millisecond. Here one long integer holds all code
    units, in lanes of equal width. Each multiplication combines half of the lanes with the other
    half. Leading zeros do not change the hash.
    """
    units = key.encode("utf-16-be")
    lanes = 1 << max(2, (len(units) // 2 - 1).bit_length())
    value = int.from_bytes(units, "big")
    for bits, power in ((16, 31), (32, 31**2)):  # neighbours, until a lane has room for a product
        lanes //= 2
        mask = _low_halves(2 * bits, lanes)
        value = (value >> bits & mask) * power + (value & mask)
    power = 31**4
    while lanes > 1:
        lanes //= 2
        weight = pow(power, lanes, 1 << 32)
        upper, lower = value >> 64 * lanes, value & (1 << 64 * lanes) - 1
        value = upper * weight + lower & _low_halves(64, lanes)
    return value & 0xFFFFFFFF


@cache
def _low_halves(bits: int, lanes: int) -> int:
    """A mask of the lower half of each lane of `bits` bits."""
    return int.from_bytes((bytes(bits // 16) + b"\xff" * (bits // 16)) * lanes, "big")


def check_key(key: str) -> None:
    """Raises MqError INVALID_REQUEST for a group id or a transactional id that is too long."""
    most = COORDINATOR_KEY_BYTES_MAX
    if len(key) > most or len(key.encode()) > most:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"The name of a group or a transaction has at most {most} bytes.",
        )
