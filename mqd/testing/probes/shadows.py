"""What the probes know of each replica, read from its files, and of what is committed.

- Of every replica there is a *shadow*: the headers of all batches in its files, read as they
  appear. It outlives the process.
- What the high watermark of any leader has passed is *committed*: one list of batches for each
  partition, which only grows.
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
"""Topic id and partition: a topic that is created again under the same name has another id."""


class World(Protocol):
    """What the probes need of the simulated cluster."""

    def daemon(self, node_id: int) -> Daemon | None:
        """The live node, None while there is none."""
        ...

    def contents(self, node_id: int, path: Path) -> bytes | bytearray:
        """The bytes of a file on a node's disk as its processes see them; empty when there
        is no such file.
        """
        ...


class Batch(NamedTuple):
    """What distinguishes one batch from another."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int
    size: int
    """Bytes in the file."""


@dataclass(slots=True, eq=False)
class Shadow:
    """One replica, as read from its files. `batches` outlives the process."""

    batches: list[Batch] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    """(base offset of the segment, position in its file) of each batch."""
    start: int = 0
    """Where its files begin."""
    end: int = 0
    cuts: int = -1
    cleanings: int = 0
    life: int = 0
    high_watermark: int = 0
    stable: int = 0
    """The last stable offset at the latest check."""
    open: dict[int, int] = field(default_factory=dict)
    """Producer id -> first offset of its transaction, where the files hold no marker of its end."""
    state: tuple[Any, ...] = ()
    """The state at the latest check."""
    log_start_offset: int = 0
    agreed: int = 0
    """Batches from the front that were compared with the committed ones and are the same."""
    compared_below: int = 0
    """Of a compacted log: its batches below this offset were compared with the committed
    ones since its files were read whole.
    """
    lost_power: bool = False
    """Whether its unsynced records may be lost; False again after its restart."""
    set_aside: bool = False
    """Whether its log is fenced (corrupt) or removed: no check applies until it has fetched its
    records again.
    """
    unassigned: bool = False
    """Whether the metadata took the replica from its node since its log was read: the node
    may have removed it, and created another.
    """
    latest_epoch: int = -1
    """The last entry of its leader epochs."""

    def lies_below(self, cleaned_to: int) -> bool:
        """Whether it ends inside what another replica has compacted. A leader that has no batch
        left of its last epoch lets it begin again before the gap: all that it loses is superseded
        by committed records that it does not have yet, so it is in no ISR and no ELR.
        """
        return self.end <= cleaned_to


@dataclass(slots=True, eq=False)
class Committed:
    """The batches of one partition that were ever below a leader's high watermark."""

    batches: list[Batch] = field(default_factory=list)
    leader_epochs: list[int] = field(default_factory=list)
    """Of the leader whose high watermark passed each of them first."""
    first_offset: int = 0
    cleaned_to: int = 0
    """Below it some replica was compacted: there batches may be missing, or have lost
    records, on any.
    """

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.first_offset

    def end_before(self, leader_epoch: int) -> int:
        """Up to where it was committed by leaders of earlier epochs: what a leader of this one must
        hold. (One that learns of its leadership late, when another leads already, need not hold
        what that one has committed.)
        """
        count = next(
            (at for at, epoch in enumerate(self.leader_epochs) if epoch >= leader_epoch),
            len(self.batches),
        )
        return self.batches[count - 1].next_offset if count else self.first_offset


def extend(
    world: World, node_id: int, log: Any, shadow: Shadow, where: str, counts: Counts
) -> None:
    """Read the batches that the files of `log` have and `shadow` has not."""
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
    """Of a segment.

    A cleaned one is read before it has its name, while the file that it replaces still has it
    (`Segment.suffix`).
    """
    return f"{base_offset:020d}.log{suffix}"
