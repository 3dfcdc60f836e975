"""The options of `open_group_consumer` as one value.

Names and defaults are those of Kafka's consumer. They are checked at construction.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from mqd import limits
from mqd.client.arguments import (
    check_above_zero,
    check_callable,
    check_choice,
    check_flag,
    check_id,
    check_names,
    check_number,
    check_optional_text,
    check_topics,
    check_whole,
    shown,
)
from mqd.client.assignors import ASSIGNORS
from mqd.client.errors import invalid_value
from mqd.client.topic_weights import check_weights
from mqd.types import TopicPartition

AssignmentCallback = Callable[[list[TopicPartition]], Awaitable[None]]
"""An async function that receives the partitions concerned."""
GroupProtocol = Literal["classic", "consumer"]
Reset = Literal["error", "beginning", "end"]
"""Where to read when an offset is outside of the log: Kafka's none, earliest and latest."""

RESETS: tuple[Reset, ...] = ("beginning", "end", "error")


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """The options of a group consumer. Raises InvalidValue (a ValueError) or InvalidType (a
    TypeError).

    `open_group_consumer(client, "billing", ["orders"], reset="beginning")` takes them as arguments.
    """

    group_id: str
    """The group that the member joins."""
    topics: Sequence[str] = ()
    """Topics to read, by name; stored as a sorted tuple. A topic may be created later."""
    _: KW_ONLY
    pattern: str | None = None
    """Also read each topic whose whole name matches: a regular expression, Python's with the
    classic protocol, RE2's with the consumer protocol."""
    group_protocol: GroupProtocol = "classic"
    """"classic" (JoinGroup, SyncGroup) or "consumer" (KIP-848)."""
    assignors: Sequence[str] = ("range", "cooperative-sticky")
    """Classic protocol: the assignors offered, the preferred one first."""
    server_assignor: str | None = None
    """Consumer protocol: "uniform" or "range"; None leaves the choice to the broker."""
    instance_id: str | None = None
    """Makes the member static (KIP-345): it keeps its partitions over a restart."""
    rack: str | None = None
    """The rack of this client, for assignors that consider it."""
    session_timeout_ms: int = 45_000
    """Classic protocol: the coordinator removes a member after so long without a heartbeat."""
    heartbeat_interval_ms: int = 3_000
    """Classic protocol: the time between heartbeats. With KIP-848 the broker chooses both."""
    max_poll_interval_ms: int = 300_000
    """A member that does not call `next` for so long loses its partitions."""
    metadata_max_age_ms: int = 60_000
    """The interval of metadata requests that find new partitions and new matches of `pattern`."""
    auto_commit: bool = True
    """Commit a batch when the next one is requested, before a revocation, and at the end."""
    auto_commit_interval_ms: int = 5_000
    """The shortest time between two automatic commits while batches are read."""
    reset: Reset = "end"
    """Where to read without a committed offset, or with one outside of the log."""
    read_committed: bool = False
    """Skip records of aborted transactions, and wait for open ones to end."""
    on_assigned: AssignmentCallback | None = None
    """Called with partitions that were assigned, before the first of their records."""
    on_revoked: AssignmentCallback | None = None
    """Called with partitions that go to another member, while commits are still possible."""
    on_lost: AssignmentCallback | None = None
    """Called with partitions that were lost: commits are refused. Default: `on_revoked`."""
    max_wait_ms: int = 500
    """The maximum time that a broker waits until `min_bytes` are available."""
    min_bytes: int = 1
    max_bytes: int = limits.CONSUMER_FETCH_BYTES
    """The size of a response to one fetch, about."""
    partition_max_bytes: int = limits.CONSUMER_PARTITION_FETCH_BYTES
    """The share of one partition in it, about."""
    weights: Mapping[str, int] | None = None
    """By topic: topics that have records are read in this ratio. A topic that is not named has
    weight 1. None: partitions take turns."""
    timeout_s: float = 30.0
    """The bound of each commit and of each lookup of offsets."""
    leave: bool = True
    """Leave the group at the end of the block. False: disappear as a crash would."""
    close_timeout_s: float = 5.0
    """The bound of the last commit, the callbacks and the leave at the end of the block."""

    def __post_init__(self) -> None:
        check_id("group_id", self.group_id, "billing")
        object.__setattr__(self, "topics", tuple(sorted(check_topics("topics", self.topics))))
        object.__setattr__(self, "assignors", check_names("assignors", self.assignors, "range"))
        check_optional_text("pattern", self.pattern, "orders-.*")
        check_choice("group_protocol", self.group_protocol, ("classic", "consumer"))
        check_optional_text("server_assignor", self.server_assignor, "uniform")
        check_optional_text("instance_id", self.instance_id, "billing-1")
        check_optional_text("rack", self.rack, "rack-1")
        for name in ("session_timeout_ms", "heartbeat_interval_ms", "max_poll_interval_ms"):
            check_whole(name, getattr(self, name), 1)
        for name in ("metadata_max_age_ms", "auto_commit_interval_ms", "max_wait_ms", "min_bytes"):
            check_whole(name, getattr(self, name), 0)
        for name in ("max_bytes", "partition_max_bytes"):
            check_whole(name, getattr(self, name), 1)
        for name in ("auto_commit", "read_committed", "leave"):
            check_flag(name, getattr(self, name))
        for name in ("on_assigned", "on_revoked", "on_lost"):
            check_callable(name, getattr(self, name))
        check_weights("weights", self.weights)
        check_choice("reset", self.reset, RESETS)
        check_above_zero("timeout_s", self.timeout_s)
        check_number("close_timeout_s", self.close_timeout_s, 0)
        if not self.topics and self.pattern is None:
            raise invalid_value(
                f"group {self.group_id!r} has nothing to read",
                "give topics, or a pattern, or both",
            )
        if self.group_protocol == "classic":
            self._check_classic()

    def _check_classic(self) -> None:
        choices = ", ".join(map(repr, ASSIGNORS))
        if not self.assignors:
            raise invalid_value("assignors is empty", f"choose among {choices}")
        for name in self.assignors:
            if name not in ASSIGNORS:
                raise invalid_value(f"assignor {shown(name)} is unknown", f"choose among {choices}")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise invalid_value(
                f"heartbeat_interval_ms is {self.heartbeat_interval_ms}, and session_timeout_ms is"
                f" {self.session_timeout_ms}",
                "let a session be three heartbeats long or more",
            )
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise invalid_value(
                    f"pattern is {shown(self.pattern)}, which is no regular expression: {error}",
                    "write it as Python's re module requires",
                ) from None

    @property
    def heartbeat_interval_s(self) -> float:
        return self.heartbeat_interval_ms / 1000

    @property
    def max_poll_interval_s(self) -> float:
        return self.max_poll_interval_ms / 1000
