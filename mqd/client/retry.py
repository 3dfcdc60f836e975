"""Retry topics of mqd: the check before a failed record is sent to one, and the number of failures
of a record (docs/DELAY.md).
"""

from __future__ import annotations

from typing import Final

from mqd.client.arguments import shown
from mqd.client.cluster import ClusterClient
from mqd.client.errors import ClientError, invalid_type, invalid_value
from mqd.client.topic_configs import topic_configs
from mqd.delay_names import ATTEMPTS, BACKOFF_CONFIG, TARGET_CONFIG
from mqd.errors import ErrorCode
from mqd.protocol.record_reader import Record

_DIGITS_MAX: Final = 19
_REMEDY: Final = "create one with `mqctl retry setup TOPIC --back-off 1s,10s,1m`"


def attempts_of(record: Record) -> int:
    """How often a record has failed: the number of its retries by a retry topic, 0 at first.

    It is 0 also if the header `mqd-attempts` is no number: the retry topic makes such a record a
    dead letter.
    """
    check_failed_record(record)
    content = dict(record.headers).get(ATTEMPTS)
    if content is None or not content.isdigit() or len(content) > _DIGITS_MAX:
        return 0
    return int(content)


def check_failed_record(record: object) -> None:
    """Raises InvalidType."""
    if not isinstance(record, Record):
        raise invalid_type(f"record is {shown(record)}", "give a Record of a consumer")


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
