"""How much one request may contain, so that its decision does not delay other clients."""

from __future__ import annotations

from collections.abc import Sized

from mqd.errors import ErrorCode, MqError
from mqd.limits import PARTITIONS_PER_REQUEST_MAX


def check_topic_count(topics: Sized, most: int) -> None:
    """Raise POLICY_VIOLATION if a request names too many topics."""
    if len(topics) > most:
        raise MqError(
            ErrorCode.POLICY_VIOLATION, f"A request names at most {most} topics: split the request."
        )


def check_partition_count(partitions: int) -> None:
    """Raise POLICY_VIOLATION if a request names too many partitions."""
    if partitions > PARTITIONS_PER_REQUEST_MAX:
        raise MqError(
            ErrorCode.POLICY_VIOLATION,
            f"A request names at most {PARTITIONS_PER_REQUEST_MAX} partitions: split the request.",
        )
