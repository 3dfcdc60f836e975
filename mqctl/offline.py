"""Reads the data directory of a stopped node, for `log dump` and `log verify`.

Files are opened read-only and read in chunks. A damaged file gives a finding, never a traceback.
Formats are in mqd/protocol/files.py and batch.py.
"""

from __future__ import annotations

import fcntl
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mqd.errors import MqError
from mqd.io.disk import OsDisk
from mqd.log.disk import known_directories
from mqd.log.disk.known_directories import load_known_directories
from mqd.log.epochs import LeaderEpochs
from mqd.protocol.batch import BatchHeader, crc_of
from mqd.protocol.compression import Codec
from mqd.protocol.files import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOCK,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
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
    scan_batches,
    segment_file_name,
)
from mqd.protocol.record_reader import iterate_records
from mqd.types import NO_EPOCH, Offset

CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    CLEANER_CHECKPOINT,
)
METADATA_FOLDER = "metadata"
METADATA_FILES = {
    "journal": "metadata journal of the Raft quorum",
    "snapshot": "metadata snapshot of the Raft quorum",
    "quorum-state": "state of this voter in the Raft quorum",
    "reserve": "disk space reserved for the Raft quorum",
}
Row = dict[str, Any]
_NEVER = 1 << 63


def read_batches(path: Path) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, bytes) of each batch of a segment. Raises BadBatch at bytes that are not a
    batch.
    """
    with path.open("rb", buffering=0) as file:
        descriptor = file.fileno()
        yield from scan_batches(
            lambda position, size: os.pread(descriptor, size, position),
            0,
            os.fstat(descriptor).st_size,
        )


# -- dump


def segments_of(path: Path) -> list[Path]:
    """The segment files in a partition's directory, by base offset."""
    return sorted(
        one
        for one in path.iterdir()
        if (parsed := parse_segment_file_name(one.name)) and parsed[1] == LOG_SUFFIX
    )


def dump_batches(path: Path) -> Iterator[Row]:
    """A row for each batch of a segment. If the rest is damaged, the last row has the reason."""
    try:
        for position, header, view in read_batches(path):
            yield {
                "file": path.name,
                "position": position,
                "base_offset": header.base_offset,
                "last_offset": header.last_offset,
                "records": header.records_count,
                "bytes": header.size,
                "codec": codec_name(header.codec),
                "max_timestamp": header.max_timestamp,
                "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
                "leader_epoch": header.partition_leader_epoch,
                "producer_id": header.producer_id,
                "producer_epoch": header.producer_epoch,
                "base_sequence": header.base_sequence,
                "transactional": header.is_transactional,
                "control": header.is_control,
                "crc": "ok" if crc_of(view, 0, len(view)) == header.crc else "WRONG",
            }
    except BadBatch as bad:
        yield {"file": path.name, "position": bad.position, "crc": bad.reason}


def dump_records(path: Path) -> Iterator[Row]:
    """A row for each record of a segment. A batch that cannot be decoded gives one row with the
    reason.
    """
    try:
        for position, header, view in read_batches(path):
            try:
                for record in iterate_records(view, header=header):
                    yield {
                        "offset": record.offset,
                        "timestamp": record.timestamp,
                        "key": _text(record.key),
                        "value": _text(record.value),
                        "headers": [
                            {"name": name, "value": _text(value)} for name, value in record.headers
                        ],
                    }
            except MqError as error:
                yield {
                    "offset": header.base_offset,
                    "value": f"batch at byte {position} cannot be read: {error.message}",
                }
    except BadBatch as bad:
        yield {"value": str(bad)}


def codec_name(codec: int) -> str:
    return Codec(codec).name.lower() if codec <= Codec.ZSTD else f"unknown ({codec})"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def dump_small(path: Path) -> list[Row]:
    """The rows of an index, a producer snapshot, a checkpoint or a properties file.

    Raises FileFormatError for other or damaged files.
    """
    if path.parent.name == METADATA_FOLDER and path.name in METADATA_FILES:
        raise FileFormatError(
            f"this is the {METADATA_FILES[path.name]}, which is not in Kafka's format; mqctl "
            "cannot read it"
        )
    data = path.read_bytes()
    parsed = parse_segment_file_name(path.name)
    if parsed is not None:
        base, suffix = parsed
        if suffix == INDEX_SUFFIX:
            log = path.with_suffix(LOG_SUFFIX)
            size = log.stat().st_size if log.exists() else 2**31
            return [
                {"offset": base + offset, "position": position}
                for offset, position in zip(*decode_index(data, size))
            ]
        if suffix == TIME_INDEX_SUFFIX:
            return [
                {"timestamp": timestamp, "offset": base + offset}
                for timestamp, offset in zip(*decode_time_index(data))
            ]
        if suffix == SNAPSHOT_SUFFIX:
            return [entry._asdict() for entry in decode_producer_snapshot(data)]
    if path.name == LEADER_EPOCH_CHECKPOINT:
        return [
            {"epoch": epoch, "start_offset": start} for epoch, start in decode_leader_epochs(data)
        ]
    if path.name in CHECKPOINTS:
        return [
            {"topic": tp.topic, "partition": tp.partition, "offset": offset}
            for tp, offset in decode_offset_checkpoint(data).items()
        ]
    if path.name == PARTITION_METADATA:
        return [{"topic_id": str(decode_partition_metadata(data))}]
    if path.name == META_PROPERTIES:
        return [
            {name: str(value) for name, value in decode_meta_properties(data)._asdict().items()}
        ]
    raise FileFormatError(f"{path.name!r} is not a file of a data directory")


# -- verify


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
        """The base offset of the first segment that recovery will scan; _NEVER after a clean stop.

        From there on the epoch checkpoint may lack entries: it is written before the recovery point
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
        return expected

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


def log_directories(path: Path) -> list[Path]:
    """The log directories at `path`: `path` itself if it contains partitions; else the log.dirs
    that the node has recorded in this data directory; else its folder `logs`.

    In a copy of a data directory, log directories inside of it are found by name. Raises
    StorageError if the record cannot be read.
    """
    if any(is_partition(one) for one in path.iterdir()):
        return [path]
    known = load_known_directories(OsDisk(), path / known_directories.NAME).paths.values()
    found = [Path(one) for one in known]
    found = [
        path / one.name if not one.is_dir() and (path / one.name).is_dir() else one for one in found
    ]
    if not found and (path / "logs").is_dir():
        found = [path / "logs"]
    return found or [path]


def is_partition(path: Path) -> bool:
    """Whether `path` is a partition's directory by its name. A data directory may have such a name
    (node-1), but contains directories.
    """
    return (
        path.is_dir()
        and parse_partition_directory(path.name) is not None
        and not any(one.is_dir() for one in path.iterdir())
    )


def in_use(path: Path) -> bool:
    """Whether a running node has locked the data or log directory that is or contains `path`. Takes
    and releases a shared lock.
    """
    for directory in (path, *path.resolve().parents[:2]):
        try:
            with (directory / LOCK).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            continue
    return False


def is_segment(path: Path) -> bool:
    parsed = parse_segment_file_name(path.name)
    return parsed is not None and path.name == segment_file_name(parsed[0], LOG_SUFFIX)
