"""Names of the configs that make delay topics, retry topics and dead-letter topics, and of the
headers of their records (docs/DELAY.md). Pure.
"""

from __future__ import annotations

from typing import Final

RESERVED_PREFIX: Final = "__mqd_relay"
"""Transactional ids and groups whose names begin so are written by nodes only. Clients can read
them."""

TARGET_CONFIG: Final = "mqd.delay.target"
REPLACE_CONFIG: Final = "mqd.delay.replace"
BACKOFF_CONFIG: Final = "mqd.retry.backoff"
TTL_CONFIG: Final = "mqd.message.ttl.ms"
DEAD_LETTERS_CONFIG: Final = "mqd.dlq.topic"

DELIVER_AT: Final = "mqd-deliver-at"
DELAY: Final = "mqd-delay"
TTL: Final = "mqd-ttl"
CRON: Final = "mqd-cron"
ATTEMPTS: Final = "mqd-attempts"
FIRST_FAILURE: Final = "mqd-first-failure"
FROM_TOPIC: Final = "mqd-delay-topic"
FROM_PARTITION: Final = "mqd-delay-partition"
FROM_OFFSET: Final = "mqd-delay-offset"
FROM_TIMESTAMP: Final = "mqd-delay-timestamp"
ORIGIN_TOPIC: Final = "mqd-origin-topic"
"""In a record that a consumer sends to a retry topic: where it failed first. See docs/DELAY.md."""
ORIGIN_PARTITION: Final = "mqd-origin-partition"
ORIGIN_OFFSET: Final = "mqd-origin-offset"
ORIGIN_TIMESTAMP: Final = "mqd-origin-timestamp"
ORIGIN_GROUP: Final = "mqd-origin-group"
DUE: Final = "mqd-due"
ERROR: Final = "mqd-error"
"""Why the headers of a record could not be read. It was relayed at once."""
REPEATS: Final = "mqd-cron-since"
"""In the next occurrence of a repeating record: the relay knew the log below this offset."""
CANCELS: Final = "mqd-cancels"
"""In a tombstone: it cancels only the record at this offset."""
DLQ_TARGET: Final = "mqd-dlq-target"
"""The topic to which `mqctl dlq redrive` writes the record."""

DLQ_PREFIX: Final = "__dlq.errors."
"""The headers of dead letters begin so. Their names are those of KIP-1191 where it has them."""
DLQ_TOPIC: Final = f"{DLQ_PREFIX}topic"
DLQ_PARTITION: Final = f"{DLQ_PREFIX}partition"
DLQ_OFFSET: Final = f"{DLQ_PREFIX}offset"
DLQ_TIMESTAMP: Final = f"{DLQ_PREFIX}timestamp"
"""Only mqd has it: the time stamp of the original record."""
DLQ_GROUP: Final = f"{DLQ_PREFIX}group"
DLQ_COUNT: Final = f"{DLQ_PREFIX}delivery.count"
DLQ_MESSAGE: Final = f"{DLQ_PREFIX}message"

RELAY_HEADERS: Final = frozenset(
    {
        *(DELIVER_AT, DELAY, TTL, CRON, REPEATS, CANCELS),
        *(ATTEMPTS, FIRST_FAILURE, DUE, ERROR),
        *(FROM_TOPIC, FROM_PARTITION, FROM_OFFSET, FROM_TIMESTAMP),
        *(ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET, ORIGIN_TIMESTAMP, ORIGIN_GROUP),
        DLQ_TARGET,
    }
)
"""Headers that delay topics and retry topics read or add."""


def is_of_letter(name: str) -> bool:
    """Whether only the node that makes a dead letter sets this header, because `mqctl dlq redrive`
    trusts it. A header of the record with such a name is not copied to its letter."""
    return name == DLQ_TARGET or name.startswith(DLQ_PREFIX)
