"""DescribeLogDirs through the whole server."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from mqd.errors import ErrorCode
from tests.log.support import batch
from tests.server.rig import Client, rig


async def describe(client: Client, version: int = 4, topics: Any = None) -> Any:
    response = await client.request("describe_log_dirs", version, {"topics": topics})
    assert version < 3 or response.error_code == 0
    (result,) = response.results
    return result


@pytest.mark.parametrize("version", range(1, 6))
async def test_every_version_lists_the_logs(tmp_path: Path, version: int) -> None:
    async with rig(tmp_path) as node:
        node.create("b")
        node.create("a", partitions=2)
        client = await node.connect()
        await client.produce("a", batch(b"x"), partition=1)
        result = await describe(client, version)
        assert (result.error_code, result.log_dir) == (0, str(tmp_path))
        found = {
            topic.name: [
                (row.partition_index, row.partition_size, row.offset_lag)
                for row in topic.partitions
            ]
            for topic in result.topics
        }
        assert found == {
            "a": [(0, 0, 0), (1, node.partition("a", 1).log.size_bytes, 0)],
            "b": [(0, 0, 0)],
        }
        assert not any(row.is_future_key for topic in result.topics for row in topic.partitions)
        if version >= 4:
            assert (result.usable_bytes, result.total_bytes >= 0) == (node.disk.free, True)


async def test_only_requested_partitions_are_listed(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("a", partitions=2)
        client = await node.connect()
        requested = [{"topic": "a", "partitions": [1, 7]}, {"topic": "missing", "partitions": [0]}]
        result = await describe(client, topics=requested)
        assert [
            (topic.name, [row.partition_index for row in topic.partitions])
            for topic in result.topics
        ] == [("a", [1])]
        assert list((await describe(client, topics=[])).topics) == []


async def test_an_offline_directory(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        node.disk.write_error = errno.EIO
        await client.produce("t", batch(b"x"))
        result = await describe(client)
        assert (result.error_code, list(result.topics)) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


async def test_a_disk_of_unknown_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(tmp_path) as node:
        client = await node.connect()

        def broken(path: Path) -> int:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(node.disk, "total_bytes", broken)
        result = await describe(client)
        assert (result.error_code, result.total_bytes, result.usable_bytes) == (0, -1, -1)
