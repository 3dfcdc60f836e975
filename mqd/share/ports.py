"""What share partitions need of other parts of the node: pure declarations."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

from mqd.share.record_states import Batch
from mqd.types import Offset

Result = TypeVar("Result")


class ShareKey(NamedTuple):
    """A share partition: one partition for one group."""

    group_id: str
    topic_id: UUID
    partition: int


class StoredState(NamedTuple):
    """The state of a share partition, as the share coordinator has it."""

    state_epoch: int
    start_offset: Offset
    """-1: not known yet."""
    batches: tuple[Batch, ...]


class Persister(Protocol):
    """The share coordinators of the cluster (Kafka's name). All methods raise MqError, after
    retries for a few seconds where the error may pass."""

    def read(self, key: ShareKey, leader_epoch: int) -> Awaitable[StoredState]: ...

    def write(
        self,
        key: ShareKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: Offset,
        done_after_start: int,
        batches: Iterable[Batch],
    ) -> Awaitable[None]: ...


class GroupOption(Protocol):
    """The present value of an option of a group, such as share.record.lock.duration.ms."""

    def __call__(self, group_id: str, name: str) -> Any: ...


class InSlices(Protocol):
    """Runs work in slices, with those of other requests in turn. The work yields the number of rows
    since its last yield."""

    def __call__(self, work: Generator[int, None, Result]) -> Awaitable[Result]: ...
