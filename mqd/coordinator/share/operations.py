"""The operations of the share coordinator (KIP-932). Each is about one share partition."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from mqd.share.ports import ShareKey
from mqd.share.record_states import Batch
from mqd.types import Offset


class InitializeState(NamedTuple):
    key: ShareKey
    state_epoch: int
    start_offset: Offset
    """-1: not known yet."""


class ReadState(NamedTuple):
    """The leader of a partition begins to serve a share partition."""

    key: ShareKey
    leader_epoch: int


class ReadSummary(NamedTuple):
    key: ShareKey


class ListStates(NamedTuple):
    """The share partitions of these topics, with their start offsets."""

    topic_ids: frozenset[UUID]


class WriteState(NamedTuple):
    key: ShareKey
    state_epoch: int
    leader_epoch: int
    start_offset: Offset
    """-1: as before."""
    delivery_complete_count: int
    batches: tuple[Batch, ...]


class DeleteState(NamedTuple):
    key: ShareKey


class PruneLog(NamedTuple):
    """An effect: all records before the effect of the same round with `begins` are replaced by
    later ones."""

    round: int
    begins: bool
