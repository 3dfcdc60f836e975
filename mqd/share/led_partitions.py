"""The share partitions that this node leads, and their tasks.

A share partition is dropped when the leadership ends, when the share coordinator refuses a write,
and after an unexpected exception. The next request loads it again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from mqd.errors import ErrorCode, MqError
from mqd.replica.partition import Partition
from mqd.share.memory import LED_BYTES
from mqd.share.ports import ShareKey
from mqd.share.share_partition import SharePartition
from mqd.share.unaccepted_counts import LineCount
from mqd.share.values import Update
from mqd.share.waiting import Waiters

logger = logging.getLogger(__name__)


class Write:
    """Changes that wait until the share coordinator has stored them."""

    def __init__(self, update: Update) -> None:
        self.update = update
        self.done = trio.Event()
        self.error: MqError | None = None


@dataclass(eq=False)
class LedSharePartition:
    """A share partition that this node leads in one leader epoch."""

    key: ShareKey
    partition: Partition
    leader_epoch: int
    loaded_core: SharePartition | None = None
    """None until it is loaded."""
    state_epoch: int = 0
    loaded: trio.Event = field(default_factory=trio.Event)
    load_error: MqError | None = None
    writes: list[Write] = field(default_factory=list)
    in_flight: list[Write] = field(default_factory=list)
    """What the share coordinator stores now."""
    is_writing: bool = False
    is_dropped: bool = False
    """The next request loads it again."""
    writes_letters: bool = False
    """A task writes dead letters."""
    ends_at: float = math.inf
    """Monotonic seconds at which the timer visits it (ending_timer.py)."""
    expired_line: LineCount = field(default_factory=LineCount)
    given_up_line: LineCount = field(default_factory=LineCount)
    waiters: Waiters = field(init=False)
    """Fetches that wait for available records."""

    def __post_init__(self) -> None:
        self.waiters = Waiters(self.partition, self._has_records)

    @property
    def core(self) -> SharePartition:
        assert self.loaded_core is not None, "it is loaded"
        return self.loaded_core

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return LED_BYTES + (0 if self.loaded_core is None else self.loaded_core.size)

    @property
    def topic(self) -> str:
        return self.partition.assignment.topic_partition.topic

    @property
    def is_current(self) -> bool:
        return (
            not self.is_dropped
            and self.partition.serves
            and self.partition.leader_epoch == self.leader_epoch
        )

    def _has_records(self) -> bool:
        """Whether a fetch may acquire records now, or gets an error."""
        if not self.is_current:
            return True
        offset = self.core.next_fetch_offset()
        return offset is not None and offset < self.partition.high_watermark


class LedSharePartitions:
    """All share partitions of one node."""

    def __init__(self, has_sessions: Callable[[str], bool]) -> None:
        """`has_sessions(group_id)`: whether any member of the group has a session."""
        self._has_sessions = has_sessions
        self._led: dict[ShareKey, LedSharePartition] = {}
        self._nursery: trio.Nursery | None = None
        """None before `running`, and after it: connections that the node closes then end
        sessions."""
        self.bugs = 0
        """Share partitions that were dropped because of an unexpected exception."""

    def __len__(self) -> int:
        return len(self._led)

    def __iter__(self) -> Iterator[LedSharePartition]:
        return iter(list(self._led.values()))

    def all(self) -> Collection[LedSharePartition]:
        return self._led.values()

    def get(self, key: ShareKey) -> LedSharePartition | None:
        return self._led.get(key)

    def add(self, key: ShareKey, partition: Partition) -> LedSharePartition:
        """A share partition that is not loaded yet, in place of the former one."""
        former = self._led.get(key)
        if former is not None:
            self.drop(former)
        led = self._led[key] = LedSharePartition(key, partition, partition.leader_epoch)
        return led

    # -- tasks -------------------------------------------------------------------------------------

    @contextmanager
    def running(self, nursery: trio.Nursery) -> Iterator[None]:
        """Run the tasks of share partitions in this nursery."""
        self._nursery = nursery
        try:
            yield
        finally:
            self._nursery = None

    @property
    def is_running(self) -> bool:
        return self._nursery is not None

    def start(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Start a task, unless the node stops."""
        if self._nursery is not None:
            self._nursery.start_soon(work, *args)

    # -- drop --------------------------------------------------------------------------------------

    def drop(self, led: LedSharePartition) -> None:
        led.is_dropped = True
        if self._led.get(led.key) is led:
            del self._led[led.key]
        led.waiters.wake_all()

    def drop_unused(self, led: LedSharePartition) -> None:
        """Without sessions of its group, drop it once all changes are stored: the offsets of the
        group may be set or deleted now."""
        if (
            led.loaded_core is not None
            and not led.is_writing
            and not led.writes_letters
            and not self._has_sessions(led.key.group_id)
        ):
            self.drop(led)

    def bug(self, led: LedSharePartition) -> MqError:
        """An unexpected exception was caught: log it, and drop the share partition, whose state may
        be anything. Others, and the node, are not affected (I42). Returns the error of its
        requests.
        """
        self.bugs += 1
        logger.exception(
            "bug in a share partition, dropping it group=%s partition=%s",
            led.key.group_id,
            led.partition.assignment.topic_partition,
        )
        self.drop(led)
        return MqError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "The state of the share partition is unusable. It is loaded again. See the log.",
        )

    @contextmanager
    def dropped_after_bug(self, led: LedSharePartition) -> Iterator[None]:
        """Around what a request changes: the exception then closes its connection."""
        try:
            yield
        except MqError:
            raise
        except Exception:
            self.drop(led)
            raise
