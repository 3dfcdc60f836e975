"""A log is deleted, and perhaps another one made under its name, while somebody works on it: that harms nobody else."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
import trio

from mqd.log.partition_log import LogConfig
from mqd.types import TopicPartition
from tests.log.support import NOW, PARTITION, Harness, batch

NEXT_ID = UUID(int=99, version=4)


@pytest.mark.parametrize("again", [False, True])
async def test_retention_leaves_a_log_alone_that_was_deleted_meanwhile(tmp_path: Path, again: bool) -> None:
    h = Harness(tmp_path)
    await h.service.start()
    config = LogConfig(retention_ms=1000, file_delete_delay_ms=0)
    first, log = h.open(config, TopicPartition("first", 0)), h.open(config)
    for one in (first, log):
        h.write(one, batch())
        h.service.checkpoint_high_watermark(one.topic_partition, 1)
    h.clock.now_ms = NOW + 5000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(h.service.retain)
        while not first.log_start_offset:
            await trio.lowlevel.checkpoint()
        h.service.delete(PARTITION)
        if again:
            h.write(h.service.open(PARTITION, NEXT_ID, config), batch(b"kept", timestamp=h.clock.now_ms))
    assert not h.failed
    if again:
        await h.restart()
        assert [record.value for record in h.read_all(h.service.open(PARTITION, NEXT_ID, config))] == [b"kept"]
    h.kill()
