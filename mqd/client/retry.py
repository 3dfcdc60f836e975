"""Retry topics of mqd: the check before a failed record is sent to one, and the number of failures
of a record (docs/DELAY.md).
"""

from __future__ import annotations

from typing import Final

from mqd.client.arguments import check_id, check_number, check_topic, shown
from mqd.client.cluster import ClusterClient
from mqd.client.errors import ClientError, invalid_type, invalid_value
from mqd.client.resource_arguments import check_topic_partition
from mqd.client.topic_configs import topic_configs
from mqd.delay_names import (
    ATTEMPTS,
    BACKOFF_CONFIG,
    ORIGIN_GROUP,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TIMESTAMP,
    ORIGIN_TOPIC,
    TARGET_CONFIG,
)
from mqd.errors import ErrorCode
from mqd.header_numbers import last_number
from mqd.protocol.record_reader import Record
from mqd.types import TopicPartition

_REMEDY: Final = "create one with `mqctl retry setup TOPIC --back-off 1s,10s,1m`"


def attempts_of(record: Record) -> int:
    """How often a record has failed: the number of its retries by a retry topic, 0 at first.

    In a dead letter, the last failure is not counted.

    It is 0 also if the header `mqd-attempts` is no number: the retry topic makes such a record a
    dead letter.
    """
    check_failed_record(record)
    return last_number(record.headers, ATTEMPTS) or 0


def check_failed_record(record: object) -> None:
    """Raises InvalidType."""
    if not isinstance(record, Record):
        raise invalid_type(f"record is {shown(record)}", "give a Record of a consumer")


def origin_headers(
    record: Record, source: TopicPartition | None, group: str | None
) -> list[tuple[str, bytes]]:
    """The headers that say where a record failed first. None if it failed before, or if `source` is
    unknown. Raises InvalidType or InvalidValue.
    """
    if source is not None:
        check_topic_partition("source", source)
    if group is not None:
        check_id("group", group, "billing")
    if source is None or any(name in (ATTEMPTS, ORIGIN_TOPIC) for name, _ in record.headers):
        return []
    found = [
        (ORIGIN_TOPIC, source.topic.encode()),
        (ORIGIN_PARTITION, b"%d" % source.partition),
        (ORIGIN_OFFSET, b"%d" % record.offset),
        (ORIGIN_TIMESTAMP, b"%d" % max(0, record.timestamp)),
    ]
    return found if group is None else [*found, (ORIGIN_GROUP, group.encode())]


def retry_topic_of(topic: str) -> str:
    """The name that `mqctl retry setup` chooses."""
    return f"{topic}.retry"


def check_retrying(handler: object, retry_topic: object, idle_s: object) -> None:
    """The arguments of `consume_with_retry`. Raises InvalidType or InvalidValue."""
    if not callable(handler):
        raise invalid_type(f"handler is {shown(handler)}", "give a function of a record")
    if retry_topic is not None:
        check_topic(retry_topic, "retry_topic")
    if idle_s is not None:
        check_number("idle_s", idle_s, 0)


def check_acks(acks: int) -> None:
    """Raises InvalidValue unless all in-sync replicas acknowledge: another record may be lost after
    the offset of the failed one is committed.
    """
    if acks != -1:
        raise invalid_value(f"acks of the producer is {acks}", "give acks='all' to retry records")


async def check_retry_topic(client: ClusterClient, topic: str, *, timeout_s: float) -> None:
    """Raises ClientError unless records of a topic return after a delay: in another topic, a failed
    record would be lost.
    """
    try:
        found = await topic_configs(
            client, topic, (TARGET_CONFIG, BACKOFF_CONFIG), timeout_s=timeout_s
        )
    except ClientError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            error.remedy = _REMEDY
        raise
    if not (found[TARGET_CONFIG] and found[BACKOFF_CONFIG]):
        raise ClientError(
            ErrorCode.INVALID_CONFIG,
            f"the topic {topic!r} is no retry topic: it needs {TARGET_CONFIG} and {BACKOFF_CONFIG}",
            remedy=_REMEDY,
        )
