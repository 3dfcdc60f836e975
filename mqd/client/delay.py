"""The headers that delay a record in a delay topic of mqd, and the check that a topic is one."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from mqd.client.arguments import shown
from mqd.client.cluster import ClusterClient
from mqd.client.errors import ClientError, invalid_type, invalid_value
from mqd.client.topic_configs import topic_configs
from mqd.delay_names import DELAY, DELIVER_AT, TARGET_CONFIG
from mqd.errors import ErrorCode

_MS_MAX: Final = 2**63 - 1
_YEAR_2000_MS: Final = 946_684_800_000
"""Smaller numbers are seconds since 1970, or delays."""


def delay_header(deliver_at: datetime | int | None, delay: float | None) -> tuple[str, bytes]:
    """`deliver_at`: a datetime with a time zone, or milliseconds since 1970. `delay`: seconds after
    the timestamp of the record. Raises InvalidType or InvalidValue."""
    if deliver_at is not None and delay is not None:
        raise invalid_value("a record has deliver_at and delay", "give one of them")
    if deliver_at is not None:
        return DELIVER_AT, _decimal("deliver_at", _at_ms(deliver_at))
    if isinstance(delay, bool) or not isinstance(delay, int | float):
        raise invalid_type(f"delay is {shown(delay)}", "give seconds as a number")
    if not 0 <= delay < float("inf"):
        raise invalid_value(f"delay is {delay}", "give seconds from 0 on")
    return DELAY, _decimal("delay", round(delay * 1000))


async def check_delay_topic(client: ClusterClient, topic: str, *, timeout_s: float) -> None:
    """Raises ClientError if the topic would deliver a record at once. Without the permission to
    DescribeConfigs, this is unknown, and nothing is raised.
    """
    remedy = f"create one with `mqctl topic create NAME -c {TARGET_CONFIG}={topic}`"
    try:
        found = await topic_configs(client, topic, [TARGET_CONFIG], timeout_s=timeout_s)
    except ClientError as error:
        if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            error.remedy = remedy
        raise
    if not found[TARGET_CONFIG]:
        raise ClientError(
            ErrorCode.INVALID_CONFIG, f"the topic {topic!r} is no delay topic", remedy=remedy
        )


def _at_ms(deliver_at: object) -> int:
    remedy = "give a datetime with a time zone, or milliseconds since 1970"
    if isinstance(deliver_at, datetime):
        if deliver_at.tzinfo is None:
            raise invalid_value("deliver_at has no time zone", remedy)
        return round(deliver_at.timestamp() * 1000)
    if isinstance(deliver_at, bool) or not isinstance(deliver_at, int):
        raise invalid_type(f"deliver_at is {shown(deliver_at)}", remedy)
    if deliver_at < _YEAR_2000_MS:
        raise invalid_value(
            f"deliver_at is {deliver_at}, which is before the year 2000",
            f"{remedy}; for a time from now on, give delay",
        )
    return deliver_at


def _decimal(what: str, ms: int) -> bytes:
    if not 0 <= ms <= _MS_MAX:
        raise invalid_value(f"{what} is {ms} milliseconds", f"choose 0 to {_MS_MAX}")
    return b"%d" % ms
