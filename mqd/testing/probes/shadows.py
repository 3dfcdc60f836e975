"""The state of each replica, which the probes read from its files, and the committed batches.

- Every replica has a *shadow*: the headers of all batches in its files. It survives the process.
- A batch is *committed* when the high watermark of any leader has passed it: one list of batches
  for each partition, which only grows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from mqd.daemon import Daemon
from mqd.protocol.batch import HEADER_BYTES, parse_header
from mqd.testing.probes.counts import Counts
from mqd.testing.violation import Violation

Key = tuple[UUID, int]
"""Topic id and partition. A topic that is created again has another id."""


class World(Protocol):
    """The parts of the simulated cluster that the probes use."""

    def daemon(self, node_id: int) -> Daemon | None:
        """The live parts of the node; None while it is down."""
        ...

    def contents(self, node_id: int, path: Path) -> bytes | bytearray:
        """The bytes of a file on a node's disk as its processes see them; empty when there
        is no such file.
        """
        ...


class Batch(NamedTuple):
    """The identity of one batch."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int
    size: int
    """Bytes in the file."""


@dataclass(slots=True, eq=False)
class Shadow:
    """One replica, as read from its files. `batches` survives the process."""

    batches: list[Batch] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    """(base offset of the segment, position in its file) of each batch."""
    start: int = 0
    """The first offset of its files."""
    end: int = 0
    cuts: int = -1
    cleanings: int = 0
    life: int = 0
    high_watermark: int = 0
    stable: int = 0
    """The last stable offset at the last check."""
    open: dict[int, int] = field(default_factory=dict)
    """Producer id -> first offset of its transaction, if the files have no marker that ends it."""
    state: tuple[Any, ...] = ()
    """The state at the last check."""
    log_start_offset: int = 0
    agreed: int = 0
    """The number of first batches that were compared with the committed ones and are equal."""
    compared_below: int = 0
    """In a compacted log, batches below this offset were compared with the committed ones since the
    last complete read of its files.
    """
    lost_power: bool = False
    """Whether its unsynced records may be lost; False again after its restart."""
    set_aside: bool = False
    """Whether its log is fenced (corrupt) or removed: no check applies until it has fetched its
    records again.
    """
    unassigned: bool = False
    """Whether the metadata has removed the replica from its node since its log was read: the node
    may have deleted it, and created another one.
    """
    latest_epoch: int = -1
    """The last entry of its leader epochs."""

    def lies_below(self, cleaned_to: int) -> bool:
        """Whether it ends inside offsets that another replica has compacted. A leader without a
        batch of the replica's last epoch lets it restart before the gap. Newer committed records,
        which the replica does not have yet, supersede all records that it loses. So it is in no ISR
        and no ELR.
        """
        return self.end <= cleaned_to


@dataclass(slots=True, eq=False)
class Committed:
    """The batches of one partition that were ever below a leader's high watermark."""

    batches: list[Batch] = field(default_factory=list)
    leader_epochs: list[int] = field(default_factory=list)
    """For each batch, the epoch of the leader whose high watermark first passed it."""
    first_offset: int = 0
    cleaned_to: int = 0
    """Some replica has compacted offsets below this one: there, any replica may lack batches or
    records.
    """

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.first_offset

    def end_before(self, leader_epoch: int) -> int:
        """The end of the batches that leaders of earlier epochs have committed, which a leader of
        this epoch must have. If a node becomes a leader late, when another one already leads, it
        need not have the batches that the other one has committed.
        """
        count = next(
            (at for at, epoch in enumerate(self.leader_epochs) if epoch >= leader_epoch),
            len(self.batches),
        )
        return self.batches[count - 1].next_offset if count else self.first_offset


def extend(
    world: World, node_id: int, log: Any, shadow: Shadow, where: str, counts: Counts
) -> None:
    """Read the batches of the files of `log` that `shadow` does not have."""
    for segment in log.segments[log.segment_index(shadow.end) :]:
        position = 0
        if shadow.places and shadow.places[-1][0] == segment.base_offset:
            position = shadow.places[-1][1] + shadow.batches[-1].size
        if position >= segment.size:
            continue
        data = world.contents(node_id, log.path / file_name(segment.base_offset, segment.suffix))
        while position < segment.size:
            if position + HEADER_BYTES > len(data):
                raise Violation(
                    f"I3: {where}: the file of segment {segment.base_offset} ends before "
                    f"position {segment.size}"
                )
            header = parse_header(memoryview(data), position)
            if header.base_offset != shadow.end and not (
                log.cleaned_to is not None and header.base_offset > shadow.end
            ):
                raise Violation(
                    f"I3: {where}: a batch begins at {header.base_offset}, the one before "
                    f"it ended at {shadow.end}"
                )
            if shadow.batches and header.partition_leader_epoch < shadow.batches[-1].leader_epoch:
                raise Violation(
                    f"{where}: leader epoch {header.partition_leader_epoch} after "
                    f"{shadow.batches[-1].leader_epoch}"
                )
            shadow.batches.append(
                Batch(
                    header.base_offset,
                    header.next_offset,
                    header.partition_leader_epoch,
                    header.crc,
                    header.size,
                )
            )
            shadow.places.append((segment.base_offset, position))
            shadow.end = header.next_offset
            if header.is_control:
                shadow.open.pop(header.producer_id, None)
            elif header.is_transactional:
                shadow.open.setdefault(header.producer_id, header.base_offset)
            position += header.size
            counts.batches += 1
    shadow.cuts, shadow.cleanings = log.truncations, log.cleanings


def file_name(base_offset: int, suffix: str) -> str:
    """The file name of a segment. Probes read a compacted segment before it is renamed, while the
    replaced file still has the name (`Segment.suffix`).
    """
    return f"{base_offset:020d}.log{suffix}"
