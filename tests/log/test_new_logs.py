"""A log that was never synced has no high watermark in the checkpoint (I8).

After a power cut such a log may have no complete `partition.metadata`. With a checkpointed high
watermark, the next start would keep it offline, because it would miss acknowledged records.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import trio

from mqd.client.admin import Admin
from mqd.client.producer import open_producer
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.protocol.files import HIGH_WATERMARK_CHECKPOINT, decode_offset_checkpoint
from mqd.testing import Cluster, run
from tests.log.support import PARTITION, FaultyDisk, Harness, batch
from tests.seeds import seeds

NEVER_SYNCED = LogConfig(flush_before_ack=False)


def is_durable(log: PartitionLog) -> bool:
    return log.durability.directory_is_durable


def checkpointed(directory: Path) -> int | None:
    data = (directory / HIGH_WATERMARK_CHECKPOINT).read_bytes()
    return decode_offset_checkpoint(data).get(PARTITION)


@pytest.mark.parametrize("seed", seeds(2, range(8)))
def test_a_topic_without_flush_has_a_leader_after_all_brokers_lose_power(seed: int) -> None:
    """Seed 830765 of 5 nodes: no directory had a topic id, each checkpoint had a high watermark, so
    all three replicas stayed offline.
    """

    async def main() -> None:
        async with Cluster(nodes=3) as cluster:
            client = await cluster.client()
            configs = {"flush.before.ack": "false"}
            await Admin(client).create_topic("orders", 1, 3, configs=configs)
            async with open_producer(client) as producer:
                await producer.send("orders", b"first")
            await trio.sleep(7)  # the checkpoint of the high watermarks is written every 5 s
            for node in cluster.nodes.values():
                node.power_cut()
            async with trio.open_nursery() as nursery:
                for node in cluster.nodes.values():
                    nursery.start_soon(node.start)
            with trio.fail_after(60):
                async with open_producer(await cluster.client()) as producer:
                    await producer.send("orders", b"second")

    run(main, seed=seed)


async def test_the_checkpoint_syncs_a_new_log_first(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    service = harness.service
    await service.start()
    log = harness.open(NEVER_SYNCED)
    harness.write(log, batch(), batch())
    service.checkpoint_high_watermark(PARTITION, 2)
    assert not is_durable(log)
    async with harness.running():
        await service.housekeeping.store(HIGH_WATERMARK_CHECKPOINT)
    assert is_durable(log)
    assert checkpointed(tmp_path) == 2
    harness.kill()


@pytest.mark.usefixtures("autojump_clock")
async def test_a_log_that_cannot_be_synced_has_no_high_watermark(tmp_path: Path) -> None:
    disk = FaultyDisk()
    harness = Harness(tmp_path, disk=disk)
    service = harness.service
    await service.start()
    log = harness.open(NEVER_SYNCED)
    harness.write(log, batch())
    service.checkpoint_high_watermark(PARTITION, 1)
    disk.sync_error = errno.EMFILE
    async with harness.running():
        await service.housekeeping.store(HIGH_WATERMARK_CHECKPOINT)
        assert checkpointed(tmp_path) is None
        disk.sync_error = 0
        await service.housekeeping.store(HIGH_WATERMARK_CHECKPOINT)
    assert checkpointed(tmp_path) == 1
    harness.kill()


async def test_a_reset_log_has_no_high_watermark_until_it_is_synced(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    service = harness.service
    await service.start()
    log = harness.open(NEVER_SYNCED)
    async with harness.running():
        service.request_sync(log)
        while not is_durable(log):
            await service.wait_synced()
    service.reset(log, 5)
    assert not is_durable(log)
    harness.kill()
