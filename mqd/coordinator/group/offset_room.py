"""The memory that one OffsetCommit may add to a shard (account.py)."""

from __future__ import annotations

import logging

from mqd.coordinator.group.offset_store import WAITING_BYTES, OffsetStore, topic_weight
from mqd.coordinator.group.state import State, group_bytes
from mqd.coordinator.shard import Moment
from mqd.errors import ErrorCode

logger = logging.getLogger(__name__)


class ShardRoom:
    """For one commit: its offsets, and their topics and group if they are new."""

    def __init__(
        self,
        state: State,
        store: OffsetStore,
        group_id: str,
        *,
        transactional: bool,
        now: Moment,
    ) -> None:
        self._state = state
        self._store = store
        self._group_id = group_id
        self._transactional = transactional
        self._now = now
        self._topics: set[str] = set()
        self._taken = 0

    def take(self, topic: str, more: int, *, is_new: bool) -> ErrorCode:
        """NONE, or an error. A transaction gets an error that its producer retries; any other would
        end the producer."""
        if more <= 0:
            return ErrorCode.NONE
        if is_new and self._transactional:
            more += WAITING_BYTES
        if topic not in self._topics and self._group_id not in self._store.groups_of(topic):
            more += topic_weight(topic)
        if not self._taken and self._group_id not in self._state.by_id:
            more += group_bytes(self._group_id)
        wanted = self._taken + more
        if wanted > self._state.account.available(wanted, self._now.seconds):
            logger.warning(
                "offset rejected, the memory bound is reached group=%s topic=%s",
                self._group_id,
                topic,
            )
            return (
                ErrorCode.COORDINATOR_NOT_AVAILABLE
                if self._transactional
                else ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            )
        self._taken = wanted
        self._topics.add(topic)
        return ErrorCode.NONE
