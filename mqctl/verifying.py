"""Checks the data directory of a stopped node, for `log verify`. A damaged file gives a finding,
never a traceback.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mqctl.offline import CHECKPOINTS, is_partition, read_batches, segments_of
from mqd.errors import MqError
from mqd.log.epochs import LeaderEpochs
from mqd.protocol.batch import crc_of
from mqd.protocol.files import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    INDEX_SUFFIX,
    KEY_FILTER_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    BadBatch,
    FileFormatError,
    decode_index,
    decode_leader_epochs,
    decode_meta_properties,
    decode_offset_checkpoint,
    decode_partition_metadata,
    decode_producer_snapshot,
    decode_time_index,
    parse_partition_directory,
    parse_segment_file_name,
)
from mqd.protocol.key_filter import KeyFilter, hash_of
from mqd.protocol.record_reader import iterate_records
from mqd.types import NO_EPOCH, Offset

_NEVER = 1 << 63


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of one file."""

    file: str
    problem: str


class Verifier:
    """Reads partitions and log directories, and collects findings. Calls `on_partition` with the
    path of each partition before it is read.

    Missing offsets are findings, except in partitions of the cleaner's checkpoint. Those are or
    were compacted, on this node or on the one that they were copied from. With `allow_gaps`,
    missing offsets are not findings in any partition.
    """

    def __init__(self, on_partition: Callable[[str], None], *, allow_gaps: bool = False) -> None:
        self.findings: list[Finding] = []
        self.partitions = self.batches = self.size_bytes = 0
        self._on_partition = on_partition
        self._always_allow_gaps = self._allow_gaps = allow_gaps
        self._checkpoints: dict[Path, dict[Any, Offset]] = {}
        """The offsets of each checkpoint file."""

    def directory(self, path: Path) -> None:
        """Verify a log directory and all its partitions."""
        if not path.is_dir():
            self._found(path, "missing, although it is a log directory of the node")
            return
        ends: dict[Any, tuple[int, int]] = {}
        for one in sorted(path.iterdir()):
            if is_partition(one):
                ends[parse_partition_directory(one.name)] = self.partition(one)
        if (path / META_PROPERTIES).exists():
            self._decoded(path / META_PROPERTIES, decode_meta_properties)
        for name in CHECKPOINTS:
            offsets = (
                self._decoded(path / name, decode_offset_checkpoint)
                if (path / name).exists()
                else None
            )
            for partition, offset in (offsets or {}).items():
                if partition in ends and offset > ends[partition][1]:
                    self._found(
                        path / name,
                        f"{partition} has offset {offset}, but its log ends at "
                        f"{ends[partition][1]}",
                    )

    def partition(self, path: Path) -> tuple[int, int]:
        """Verify a partition's directory; returns its log start and log end."""
        self._on_partition(str(path))
        self.partitions += 1
        self._allow_gaps = self._always_allow_gaps or parse_partition_directory(
            path.name
        ) in self._checkpoint(path.parent / CLEANER_CHECKPOINT)
        if (path / PARTITION_METADATA).exists():
            self._decoded(path / PARTITION_METADATA, decode_partition_metadata)
        else:
            self._found(path / PARTITION_METADATA, "missing")
        epochs_path = path / LEADER_EPOCH_CHECKPOINT
        epochs = LeaderEpochs(
            (self._decoded(epochs_path, decode_leader_epochs) if epochs_path.exists() else None)
            or []
        )
        segments = segments_of(path)
        if not segments:
            self._found(path, "no segment")
            return 0, 0
        first = end = int(segments[0].stem)
        scanned_from = (
            self._scanned_from(path, [int(segment.stem) for segment in segments])
            if epochs_path.exists()
            else first
        )
        epochs.truncate_from_end(scanned_from)
        for number, segment in enumerate(segments):
            if int(segment.stem) < end:
                self._found(segment, f"overlaps the previous segment, which ends at offset {end}")
            elif int(segment.stem) > end and not self._allow_gaps:
                self._found(
                    segment, f"offsets {end} to {int(segment.stem) - 1} before it are missing"
                )
            end = self._segment(segment, epochs, scanned_from, last=number == len(segments) - 1)
        self._snapshots(path, end)
        for epoch, start in epochs.entries()[-1:]:
            if start > end:
                self._found(
                    epochs_path,
                    f"epoch {epoch} starts at offset {start}, but the log ends at {end}",
                )
        return first, end

    def _scanned_from(self, path: Path, bases: list[Offset]) -> Offset:
        """The base offset of the first segment that recovery will scan. _NEVER after a clean
        shutdown.

        From there on the epoch checkpoint may lack entries. It is written before the recovery point
        passes an entry, but not when the node is killed. Recovery takes these epochs from batches.
        """
        home = path.parent
        if (home / CLEAN_SHUTDOWN).exists():
            return _NEVER
        point = self._checkpoint(home / RECOVERY_POINT_CHECKPOINT).get(
            parse_partition_directory(path.name), 0
        )
        return bases[max(0, bisect_right(bases, point) - 1)]

    def _checkpoint(self, path: Path) -> dict[Any, Offset]:
        """The offsets of a checkpoint; none if it is missing or damaged. `directory` reports
        damage.
        """
        if path not in self._checkpoints:
            self._checkpoints[path] = {}
            with suppress(OSError, FileFormatError):
                self._checkpoints[path] = decode_offset_checkpoint(path.read_bytes())
        return self._checkpoints[path]

    def _segment(
        self, path: Path, epochs: LeaderEpochs, scanned_from: Offset, *, last: bool
    ) -> int:
        """Verify the batches of a segment, then its indexes; returns its end offset.

        Adds the epochs of batches at or after `scanned_from` to `epochs`.
        """
        expected = base = int(path.stem)
        starts: dict[int, int] = {}
        lasts: list[int] = []
        largest: list[int] = []
        try:
            for position, header, view in read_batches(path):
                self.batches += 1
                self.size_bytes += header.size
                if crc_of(view, 0, len(view)) != header.crc:
                    self._found(
                        path,
                        f"byte {position}: the batch at offset {header.base_offset} has a wrong "
                        "CRC-32C",
                    )
                if header.base_offset < expected:
                    self._found(
                        path,
                        f"byte {position}: base offset {header.base_offset} follows offset "
                        f"{expected - 1}",
                    )
                elif header.base_offset > expected and not self._allow_gaps:
                    self._found(
                        path,
                        f"byte {position}: offsets {expected} to {header.base_offset - 1} are "
                        "missing",
                    )
                if header.base_offset >= scanned_from:
                    if header.partition_leader_epoch > epochs.latest:
                        epochs.assign(header.partition_leader_epoch, header.base_offset)
                    elif header.partition_leader_epoch < epochs.latest:
                        self._found(
                            path,
                            f"byte {position}: leader epoch {header.partition_leader_epoch} "
                            f"follows epoch {epochs.latest}",
                        )
                elif (epoch := epochs.epoch_of(header.base_offset)) not in (
                    header.partition_leader_epoch,
                    NO_EPOCH,
                ):
                    self._found(
                        path,
                        f"byte {position}: leader epoch {header.partition_leader_epoch}, but "
                        f"{epoch} in the checkpoint",
                    )
                expected = max(expected, header.next_offset)
                starts[position] = header.last_offset
                lasts.append(header.last_offset)
                largest.append(max(header.max_timestamp, largest[-1] if largest else -1))
        except BadBatch as bad:
            self._found(path, f"{bad}{' (the next start truncates a torn tail)' if last else ''}")
        for suffix, check in ((INDEX_SUFFIX, self._index), (TIME_INDEX_SUFFIX, self._time_index)):
            index = path.with_suffix(suffix)
            if not index.exists():
                self._found(index, "missing")
                continue
            check(index, base, path.stat().st_size, starts, lasts, largest)
        if not last and path.with_suffix(KEY_FILTER_SUFFIX).exists():
            self._key_filter(path.with_suffix(KEY_FILTER_SUFFIX), path)
        return expected

    def _key_filter(self, path: Path, segment: Path) -> None:
        """Every key of the segment is in its filter, in the section of its batch."""
        try:
            data = path.read_bytes()
            found = KeyFilter(lambda position, size: data[position : position + size])
            found.check()
            if found.state.size != segment.stat().st_size:
                raise FileFormatError("is of an earlier state of the segment")
            positions = [section.position for section in found.sections]
            for position, header, view in read_batches(segment):
                if header.is_control:
                    continue
                section = bisect_right(positions, position) - 1
                for record in iterate_records(view, header=header):
                    if record.key is not None and section not in found.candidates(
                        hash_of(record.key)
                    ):
                        raise FileFormatError(f"lacks the key of offset {record.offset}")
        except FileFormatError as error:
            self._found(path, f"{error} (the node builds another one)")
        except OSError as error:
            self._found(path, f"cannot be read: {error.strerror}")
        except (BadBatch, MqError):
            pass  # the finding of the segment

    def _index(
        self,
        path: Path,
        base: int,
        log_size: int,
        starts: dict[int, int],
        _lasts: list[int],
        _largest: list[int],
    ) -> None:
        decoded = self._decoded(path, lambda data: decode_index(data, log_size))
        for relative, position in zip(*decoded) if decoded else ():
            if starts.get(position) != base + relative:
                self._found(
                    path,
                    f"wrong entry: no batch at byte {position} ends at offset {base + relative}",
                )

    def _time_index(
        self,
        path: Path,
        base: int,
        _log_size: int,
        _starts: dict[int, int],
        lasts: list[int],
        largest: list[int],
    ) -> None:
        decoded = self._decoded(path, decode_time_index)
        for timestamp, relative in zip(*decoded) if decoded else ():
            batch = bisect_right(lasts, base + relative - 1)
            if batch >= len(lasts) or largest[batch] != timestamp:
                self._found(
                    path,
                    f"wrong entry: {timestamp} is not the largest timestamp up to offset "
                    f"{base + relative}",
                )

    def _snapshots(self, path: Path, end: int) -> None:
        for one in sorted(path.glob(f"*{SNAPSHOT_SUFFIX}")):
            parsed = parse_segment_file_name(one.name)
            entries = self._decoded(one, decode_producer_snapshot)
            if parsed is not None and parsed[0] > end:
                self._found(one, f"is beyond the end of the log, {end}")
            for entry in entries or ():
                if parsed is not None and entry.last_offset >= parsed[0]:
                    self._found(one, f"producer {entry.producer_id} has offset {entry.last_offset}")

    def _decoded(self, path: Path, decode: Callable[[bytes], Any]) -> Any:
        try:
            return decode(path.read_bytes())
        except FileFormatError as error:
            self._found(path, str(error))
        except OSError as error:
            self._found(path, f"cannot be read: {error.strerror}")
        return None

    def _found(self, path: Path, problem: str) -> None:
        self.findings.append(Finding(str(path), problem))
