"""Compares the replicas of a partition on the disks of stopped nodes: they must be identical below
the high watermark.

Reads segment files by their batch headers only (RecordBatch v2), which are the same for mqd and
Apache Kafka. Replicas may begin segments at different offsets, so batches are compared, not files.

Compacted partitions are compared by key, because each node compacts independently, so one may have
removed records that another still has. Records at the same offset must be equal, and so must the
newest committed record of each key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mqd.protocol.batch import parse_header
from mqd.protocol.files import CLEANER_CHECKPOINT, FileFormatError, decode_offset_checkpoint
from mqd.protocol.markers import parse_end_marker
from mqd.protocol.record_reader import Record, iterate_records

from .history import Key

_HEADER = struct.Struct(">qi")  # base offset, length of the rest
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT = 23
_BATCH_BYTES_MIN = 61


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch on disk."""

    base_offset: int
    next_offset: int
    data: bytes


def partition_directory(data_directory: Path, key: Key) -> Path | None:
    """The directory of a node's replica, if it has one."""
    found = [path for path in data_directory.rglob(f"{key[0]}-{key[1]}") if path.is_dir()]
    return found[0] if found else None


def batches(directory: Path) -> Iterator[Batch]:
    """Every whole batch of a replica, in order, up to the first torn one."""
    for segment in sorted(directory.glob("*.log")):
        data = segment.read_bytes()
        at = 0
        while at + _BATCH_BYTES_MIN <= len(data):
            base_offset, length = _HEADER.unpack_from(data, at)
            end = at + _HEADER.size + length
            if length < _BATCH_BYTES_MIN - _HEADER.size or end > len(data):
                return
            (delta,) = _LAST_OFFSET_DELTA.unpack_from(data, at + _LAST_OFFSET_DELTA_AT)
            yield Batch(base_offset, base_offset + delta + 1, data[at:end])
            at = end


def differences(replicas: Mapping[int, Path], key: Key, high_watermark: int) -> list[str]:
    """The differences between the replicas of a partition (node -> data directory) as text; empty
    if there are none.
    """
    found = []
    streams = {}
    for node_id, data_directory in replicas.items():
        directory = partition_directory(data_directory, key)
        if directory is None:
            found.append(f"{key[0]}-{key[1]}: node {node_id} has no replica")
        else:
            streams[node_id] = batches(directory)
    if not streams:
        return found
    if any(_is_compacted(data_directory, key) for data_directory in replicas.values()):
        directories = [
            partition_directory(data_directory, key) for data_directory in replicas.values()
        ]
        start = max(
            int(min(one.glob("*.log")).stem)
            for one in directories
            if one is not None and any(one.glob("*.log"))
        )
        return found + _differences_of_records(streams, key, start, high_watermark)
    first, *others = streams
    end = dict.fromkeys(streams, 0)
    while min(end.values()) < high_watermark:
        row = {node_id: next(stream, None) for node_id, stream in streams.items()}
        for node_id, batch in row.items():
            if batch is None:
                found.append(
                    f"{key[0]}-{key[1]}: node {node_id} ends at {end[node_id]}, the high "
                    f"watermark is {high_watermark}"
                )
                return found
            end[node_id] = batch.next_offset
        for node_id in others:
            if row[node_id] != row[first]:
                offset = min(batch.base_offset for batch in row.values() if batch is not None)
                found.append(
                    f"{key[0]}-{key[1]}: nodes {first} and {node_id} differ in the batch at "
                    f"offset {offset}"
                )
                return found
    return found


def _is_compacted(data_directory: Path, key: Key) -> bool:
    """Whether the node has compacted its replica."""
    directory = partition_directory(data_directory, key)
    if directory is None:
        return False
    try:
        return key in decode_offset_checkpoint((directory.parent / CLEANER_CHECKPOINT).read_bytes())
    except (FileNotFoundError, FileFormatError):
        return False


class _Replica:
    """The records of one replica below the high watermark. `start`: the highest log start of all
    replicas.
    """

    def __init__(self, stream: Iterator[Batch], start: int, high_watermark: int) -> None:
        self.records: dict[int, Record] = {}
        self.newest: dict[bytes | None, Record] = {}
        """The newest record of each key, without tombstones: replicas remove a tombstone at
        different times.
        """
        self.end = 0
        ongoing: dict[int, list[Record]] = {}
        committed: list[Record] = []
        for batch in stream:
            if batch.next_offset > high_watermark:
                break
            self.end = batch.next_offset
            header = parse_header(batch.data)
            if header.is_control:
                marker, ended = parse_end_marker(batch.data), ongoing.pop(header.producer_id, [])
                committed += ended if marker is not None and marker.committed else []
                continue
            records = list(iterate_records(batch.data, header=header))
            self.records.update((record.offset, record) for record in records)
            if header.is_transactional:
                ongoing.setdefault(header.producer_id, []).extend(records)
            else:
                committed += records
        for record in sorted(committed, key=lambda record: record.offset):
            self.newest.pop(record.key, None)
            if record.value is not None and record.offset >= start:
                self.newest[record.key] = record


def _differences_of_records(
    streams: Mapping[int, Iterator[Batch]], key: Key, start: int, high_watermark: int
) -> list[str]:
    found = []
    replicas = {
        node_id: _Replica(stream, start, high_watermark) for node_id, stream in streams.items()
    }
    (first, one), *others = replicas.items()
    for node_id, replica in replicas.items():
        if replica.end < high_watermark:
            found.append(
                f"{key[0]}-{key[1]}: node {node_id} ends at {replica.end}, the high watermark "
                f"is {high_watermark}"
            )
    for node_id, other in others:
        offsets = sorted(
            offset
            for offset in one.records.keys() & other.records.keys()
            if one.records[offset] != other.records[offset]
        )
        if offsets:
            found.append(
                f"{key[0]}-{key[1]}: nodes {first} and {node_id} differ in the record at "
                f"offset {offsets[0]}"
            )
        keys = sorted(
            name or b""
            for name in one.newest.keys() | other.newest.keys()
            if one.newest.get(name) != other.newest.get(name)
        )
        if keys:
            what = f"differ in the newest record of {len(keys)} keys, of {keys[0]!r} first"
            found.append(f"{key[0]}-{key[1]}: nodes {first} and {node_id} {what}")
    return found
