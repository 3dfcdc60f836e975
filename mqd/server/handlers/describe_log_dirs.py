"""DescribeLogDirs, v1 to v5: the replicas in each log directory, and the usage of its disk (v4,
KIP-827). Partitions in memory are in a directory of their own, if there are any.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.io.disk import Disk
from mqd.io.memory_files import MEMORY
from mqd.security.acls import Operation
from mqd.server.authorization import require_cluster
from mqd.server.context import Context
from mqd.server.slices import SLICE_ROWS, Pace, listed_in_slices, others_first
from mqd.types import TopicPartition


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_cluster(context, Operation.DESCRIBE)
    wanted: set[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = set()
        pace = Pace()
        for topic in request.topics:
            await pace.row()
            wanted.update(
                await listed_in_slices((topic.topic, index) for index in topic.partitions)
            )
    node = context.node
    results = []
    for directory in node.logs.registry.directories.values():
        if directory.path == MEMORY and not node.logs.has_logs_in_memory:
            continue
        if directory.failed is not None:
            results.append(
                {
                    "error_code": int(ErrorCode.KAFKA_STORAGE_ERROR),
                    "log_dir": str(directory.path),
                    "topics": [],
                }
            )
            continue
        topics: dict[str, list[dict[str, Any]]] = {}
        for number, ((name, index), log) in enumerate(sorted(node.logs.logs.items()), 1):
            if number % SLICE_ROWS == 0:
                await others_first()
            if log.directory != directory.path or (
                wanted is not None and (name, index) not in wanted
            ):
                continue
            partition = node.replica.get(TopicPartition(name, index))
            high_watermark = (
                partition.high_watermark if partition is not None else log.log_end_offset
            )
            topics.setdefault(name, []).append(
                {
                    "partition_index": index,
                    "partition_size": log.size_bytes,
                    "offset_lag": max(0, high_watermark - log.log_end_offset),
                    "is_future_key": False,
                }
            )
        results.append(
            {
                "error_code": 0,
                "log_dir": str(directory.path),
                "topics": [
                    {"name": name, "partitions": partitions} for name, partitions in topics.items()
                ],
                **_volume(node.disk, directory.path),
            }
        )
    return {"error_code": 0, "results": results}


def failed(request: Any, error: MqError) -> dict[str, Any]:
    """Before version 3 there is no error for the whole request: the list is empty."""
    return {"error_code": error.code, "results": []}


def _volume(disk: Disk, path: Path) -> dict[str, int]:
    """Total and free bytes of the disk; -1 if they are unknown."""
    try:
        return {"total_bytes": disk.total_bytes(path), "usable_bytes": disk.free_bytes(path)}
    except OSError:
        return {"total_bytes": -1, "usable_bytes": -1}
