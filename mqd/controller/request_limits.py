"""Bounds on one request, so that its decision does not delay other clients."""

from __future__ import annotations

from collections.abc import Iterable, Sized

from mqd.errors import ErrorCode, MqError
from mqd.limits import CONFIG_BYTES_PER_REQUEST_MAX, PARTITIONS_PER_REQUEST_MAX


def check_topic_count(topics: Sized, most: int) -> None:
    """Raise POLICY_VIOLATION if a request names too many topics."""
    if len(topics) > most:
        raise MqError(
            ErrorCode.POLICY_VIOLATION, f"A request names at most {most} topics: split the request."
        )


def check_config_bytes(configs: Iterable[tuple[str, str | None]]) -> None:
    """Raise POLICY_VIOLATION, as Apache Kafka does for excessively large batches, if the names and
    values of a request are too large together. An ASCII character is a byte.
    """
    total = sum(len(name) + len(value or "") for name, value in configs)
    if total > CONFIG_BYTES_PER_REQUEST_MAX:
        raise MqError(
            ErrorCode.POLICY_VIOLATION,
            "Unable to perform excessively large batch operation: the configs of the request and "
            f"the present ones of its resources have {total} characters. At most "
            f"{CONFIG_BYTES_PER_REQUEST_MAX} are allowed. Split the request.",
        )


def check_partition_count(partitions: int) -> None:
    """Raise POLICY_VIOLATION if a request names too many partitions."""
    if partitions > PARTITIONS_PER_REQUEST_MAX:
        raise MqError(
            ErrorCode.POLICY_VIOLATION,
            f"A request names at most {PARTITIONS_PER_REQUEST_MAX} partitions: split the request.",
        )
