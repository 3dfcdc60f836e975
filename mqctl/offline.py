"""Finds and reads the files of a stopped node, for dumping.py and verifying.py.

Files are opened read-only and read in chunks. Formats are in mqd/protocol/files.py and batch.py.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mqd.io.disk import OsDisk
from mqd.log.disk import known_directories
from mqd.log.disk.known_directories import load_known_directories
from mqd.protocol.batch import BatchHeader
from mqd.protocol.files import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOCK,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    RECOVERY_POINT_CHECKPOINT,
    parse_partition_directory,
    parse_segment_file_name,
    scan_batches,
    segment_file_name,
)

CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    CLEANER_CHECKPOINT,
)
METADATA_FOLDER = "metadata"
_NODE_DIRECTORY = re.compile(r"node-[0-9]+")
Row = dict[str, Any]


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


# -- verify


def log_directories(path: Path) -> list[Path]:
    """The log directories at `path`: `path` itself if it contains partitions; else those of the
    nodes below it. Else the log.dirs that the node has recorded in this data directory; else its
    folder `logs`.

    In a copy of a data directory, log directories inside of it are found by name. Raises
    StorageError if the record cannot be read.
    """
    if any(is_partition(one) for one in path.iterdir()):
        return [path]
    nodes = node_directories(path)
    if nodes:
        return [one for node in nodes for one in log_directories(node)]
    known = load_known_directories(OsDisk(), path / known_directories.NAME).paths.values()
    found = [Path(one) for one in known]
    found = [
        path / one.name if not one.is_dir() and (path / one.name).is_dir() else one for one in found
    ]
    if not found and (path / "logs").is_dir():
        found = [path / "logs"]
    return found or [path]


def node_directories(path: Path) -> list[Path]:
    """The data directories `node-ID` below the directory of `mqd dev`; none if `path` is another
    directory."""
    named = (one for one in path.iterdir() if _NODE_DIRECTORY.fullmatch(one.name))
    nodes = [one for one in named if one.is_dir() and not is_partition(one)]
    return sorted(nodes, key=lambda one: int(one.name.removeprefix("node-")))


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
