"""The replicas of a partition on disk, of stopped nodes: byte for byte the same below the high watermark?

Reads segment files by their batch headers only (RecordBatch v2), which are the same for mqd and Apache Kafka. Segments may
begin at different offsets on different replicas, so batches are compared, not files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .history import Key

_HEADER = struct.Struct(">qi")  # base offset, length of what follows
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT = 23
_BATCH_BYTES_MIN = 61


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as it lies on disk."""

    base_offset: int
    next_offset: int
    data: bytes


def partition_directory(data_directory: Path, key: Key) -> Path | None:
    """Where a node keeps its replica, if it has one."""
    found = [path for path in data_directory.rglob(f"{key[0]}-{key[1]}") if path.is_dir()]
    return found[0] if found else None


def batches(directory: Path) -> Iterator[Batch]:
    """Every whole batch of a replica, in order. What follows a torn one is not looked at."""
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
    """What is wrong with the replicas of a partition (node -> its data directory), in words; nothing, if they are the same."""
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
    first, *others = streams
    end = dict.fromkeys(streams, 0)
    while min(end.values()) < high_watermark:
        row = {node_id: next(stream, None) for node_id, stream in streams.items()}
        for node_id, batch in row.items():
            if batch is None:
                found.append(f"{key[0]}-{key[1]}: node {node_id} ends at {end[node_id]}, the high watermark is {high_watermark}")
                return found
            end[node_id] = batch.next_offset
        for node_id in others:
            if row[node_id] != row[first]:
                offset = min(batch.base_offset for batch in row.values() if batch is not None)
                found.append(f"{key[0]}-{key[1]}: nodes {first} and {node_id} differ in the batch at offset {offset}")
                return found
    return found
