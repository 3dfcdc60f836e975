"""A log that is empty at a clean shutdown, which syncs none of its files. So the next process must
sync them, with its first records (I1).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mqd.client.admin import Admin
from mqd.client.consumer import open_consumer
from mqd.client.producer import open_producer
from mqd.log.disk.sync_plan import plan_sync
from mqd.testing import Cluster, run
from mqd.types import TopicPartition
from tests.log.support import Harness, batch

ORDERS = TopicPartition("orders", 0)


@pytest.mark.parametrize("seed", range(5))
def test_acknowledged_records_survive_a_power_failure_after_a_clean_restart(seed: int) -> None:
    """Seed 116 of 3 nodes: `partition.metadata` was never synced, and a start removed the log as an
    interrupted creation.
    """

    async def main() -> None:
        async with Cluster(nodes=1, options={"log.flush.before.ack": "true"}) as cluster:
            client, node = await cluster.client(), cluster.nodes[1]
            await Admin(client).create_topic("orders", 1, 1)
            await trio.sleep(1)
            await node.stop()
            await node.start()
            async with open_producer(client) as producer:
                acknowledged = await producer.send("orders", b"kept")
                await producer.flush()
            assert acknowledged is not None
            node.power_cut()
            await node.start()
            async with open_consumer(
                await cluster.client(), {ORDERS: "beginning"}, end={ORDERS: 1}
            ) as consumer:
                with trio.fail_after(20):
                    found = [record.value async for batch in consumer for record in batch.records]
            assert found == [b"kept"]

    run(main, seed=seed)


async def test_the_first_sync_after_a_clean_stop_includes_files_of_empty_logs(
    tmp_path: Path,
) -> None:
    harness = Harness(tmp_path)
    await harness.service.start()
    harness.open()
    await harness.service.close()
    await harness.restart()
    assert harness.service.registry.clean_start
    log = harness.open()
    harness.write(log, batch())
    plan = plan_sync(harness.disk, log, whole=True)
    assert log.path / "partition.metadata" in plan.indexes and plan.directories == [
        log.path,
        tmp_path,
    ]
    plan.run(harness.disk)
    assert log.on_synced(plan.end_offset)
    await harness.service.close()
    await harness.restart()
    assert plan_sync(harness.disk, harness.open(), whole=True).directories == [], (
        "a log with records was synced by the stop"
    )
    harness.kill()
