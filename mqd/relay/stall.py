"""Since when a relay fails to write records that are due, and what is logged about it. Pure.

Failures of a moment are normal, such as those after a failover. A relay that fails for longer needs
an operator.
"""

from __future__ import annotations

from typing import Final

from mqd.errors import ErrorCode, MqError

PATIENCE_SECONDS: Final = 5.0
WARN_EVERY_SECONDS: Final = 300.0
_REMEDY: Final = "see `mqctl cluster health`"
_REPLICAS: Final = "start the brokers of the partition, or lower its min.insync.replicas"
_COORDINATOR: Final = (
    "start the brokers of __transaction_state and __consumer_offsets: see `mqctl cluster health`"
)
_REMEDIES: Final = {
    ErrorCode.CONCURRENT_TRANSACTIONS: "an earlier transaction cannot end: a partition of its "
    "topics has no leader, too few in-sync replicas or no disk space: see `mqctl cluster health`",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _COORDINATOR,
    ErrorCode.NOT_COORDINATOR: _COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: "free disk space on the leader of the partition, or replace its "
    "disk: see its log",
    ErrorCode.LEADER_NOT_AVAILABLE: "start the brokers of the partition: see `mqctl cluster "
    "health`",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create the topic, or change the configs of the delay "
    "topic",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "set mqd.producer.access=shared on the target "
    "and the dead-letter topic",
    ErrorCode.NOT_ENOUGH_REPLICAS: _REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _REPLICAS,
}


class Stall:
    """The failures of one relay since its last success."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._warned_at: float | None = None
        self._is_noted = False

    def failed(self, now: float) -> float | None:
        """A failure. Returns for how many seconds there were only failures if that is to be logged
        now.
        """
        if self._since is None:
            self._since = now
        seconds = now - self._since
        last = self._warned_at
        if seconds < PATIENCE_SECONDS or (last is not None and now - last < WARN_EVERY_SECONDS):
            return None
        self._warned_at = now
        self._is_noted = True
        return seconds

    def note(self) -> bool:
        """Whether nothing was logged about these failures yet."""
        was_noted, self._is_noted = self._is_noted, True
        return not was_noted

    def ended(self) -> bool:
        """A success. Returns whether the failures before were logged."""
        was_logged = self._warned_at is not None
        self._since = self._warned_at = None
        self._is_noted = False
        return was_logged


def remedy_of(error: MqError) -> str:
    """What an operator can do about a failure that stays."""
    return _REMEDIES.get(error.code, _REMEDY)
