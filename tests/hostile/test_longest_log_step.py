"""Steps of the event loop in a log that a client has filled with thousands of segments, open
transactions or aborted ones.

`-s` prints them. Times are CPU time of the event loop; a step above the bound has three tries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from mqd.limits import PRODUCERS_PER_PARTITION_MAX
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.log.producers import Producers
from mqd.protocol.batch import TRANSACTIONAL_MASK
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.files import AbortedTransaction
from mqd.replica.follower import Follower, FollowerOptions, Truncate
from mqd.replica.partition import Partition
from mqd.replica.throttle import Throttle
from mqd.types import NodeId
from tests.hostile.machine import on_reference_machine
from tests.hostile.steps import Steps
from tests.log.compacting import roll, sync_and_commit
from tests.log.support import NOW, Harness, batch
from tests.replica.followers import assignment_of
from tests.replica.test_fetchers import Node
from tests.server.rig import Client, rig, run_until_idle

SECONDS_MAX = 0.05
SEGMENTS_SECONDS_MAX = 0.02
TRIES = 3
SEGMENTS = 1_000
SYNCED_SEGMENTS = 50
ABORTED = 101_000
NEW_PRODUCERS = 300
RETAINED = LogConfig(retention_ms=-1, retention_bytes=0)
COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)

pytestmark = [pytest.mark.slow]


# -- segments


async def of_many_segments(harness: Harness, config: LogConfig) -> PartitionLog:
    """A log whose segments have one record each: a client gets them with `segment.ms=1`."""
    log = harness.open(replace(config, segment_bytes=1 << 20))
    for number in range(SEGMENTS):
        data = build_batch([(b"k%d" % number, b"x")], timestamp=NOW + number)
        harness.write(log, data)
        roll(harness, log)
        if len(log.segments) % SYNCED_SEGMENTS == 0:
            await sync_and_commit(harness, log)
    assert len(log.segments) == SEGMENTS + 1
    return log


async def compact(harness: Harness, log: PartitionLog) -> None:
    assert await harness.service.compactor.clean_one()


async def retain(harness: Harness, log: PartitionLog) -> None:
    await harness.service.retain()


async def truncate(harness: Harness, log: PartitionLog) -> None:
    """As a follower whose leader has one record."""
    partition = Partition(NodeId(2), log, assignment_of(1, 1, (1, 2)), 1)
    core = Follower(NodeId(1), NodeId(2), FollowerOptions(), Throttle())
    core.follow(partition)
    (state,) = core.followed.values()
    await Node(harness).fetchers._apply(core, [Truncate(state, 1)])


async def reset(harness: Harness, log: PartitionLog) -> None:
    harness.service.reset(log, 2 * SEGMENTS)


async def delete(harness: Harness, log: PartitionLog) -> None:
    harness.service.delete(log.topic_partition)


@pytest.mark.parametrize("work", [compact, retain, truncate, reset, delete])
async def test_a_log_of_many_segments(
    tmp_path: Path, work: Callable[[Harness, PartitionLog], Awaitable[None]]
) -> None:
    tried = []
    for number in range(TRIES):
        harness = Harness(tmp_path / str(number))
        await harness.service.start()
        log = await of_many_segments(harness, COMPACTED if work is compact else RETAINED)
        await sync_and_commit(harness, log)
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        steps.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, harness, log)
        trio.lowlevel.remove_instrument(steps)
        harness.kill()
        tried.append(on_reference_machine(steps.longest, SEGMENTS_SECONDS_MAX))
        if tried[-1] < SEGMENTS_SECONDS_MAX:
            break
    print(f"{work.__name__} {SEGMENTS} segments: {1000 * min(tried):.1f} ms")
    assert min(tried) < SEGMENTS_SECONDS_MAX, tried


# -- transactions


def begin_most(producers: Producers) -> None:
    """As many producers in transactions as a partition keeps."""
    for number in range(PRODUCERS_PER_PARTITION_MAX):
        producers.replay(number, 0, 0, number, 0, NOW, TRANSACTIONAL_MASK)


async def longest(client: Client, api: str, version: int, body: Any) -> tuple[float, Any]:
    """The longest step, in seconds on the reference machine, and the response."""
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    steps.begin()
    client.post(api, version, body)
    await run_until_idle()
    trio.lowlevel.remove_instrument(steps)
    (response,) = client.responses()
    return on_reference_machine(steps.longest, SECONDS_MAX), response


async def test_new_producers_beside_the_most_open_transactions(tmp_path: Path) -> None:
    tried = []
    async with rig(tmp_path) as node:
        node.create("t")
        begin_most(node.partition("t").log.producers)
        client = await node.connect()
        for number in range(TRIES):
            first = PRODUCERS_PER_PARTITION_MAX + number * NEW_PRODUCERS
            rows = [
                {"index": 0, "records": bytes(batch(producer_id=first + one, sequence=0))}
                for one in range(NEW_PRODUCERS)
            ]
            body = {
                "acks": 1,
                "timeout_ms": 10_000,
                "topic_data": [{"name": "t", "partition_data": rows}],
            }
            seconds, response = await longest(client, "produce", 9, body)
            (topic,) = response.responses
            assert not any(row.error_code for row in topic.partition_responses)
            tried.append(seconds)
            if seconds < SECONDS_MAX:
                break
    print(f"{NEW_PRODUCERS} new producers beside open transactions: {1000 * min(tried):.1f} ms")
    assert min(tried) < SECONDS_MAX, tried


async def test_a_fetch_of_many_aborted_transactions(tmp_path: Path) -> None:
    """All of them may have a record in the batch that is read."""
    tried = []
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        await client.produce("t", build_batch([(None, b"x")] * (ABORTED + 1), timestamp=NOW))
        index = node.partition("t").log.active.transaction_index
        assert index is not None
        index.extend(AbortedTransaction(one, 0, one + 1, 0) for one in range(ABORTED))
        body = {
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 50 << 20,
            "isolation_level": 1,
            "session_epoch": -1,
            "topics": [
                {"topic": "t", "partitions": [{"partition": 0, "partition_max_bytes": 50 << 20}]}
            ],
        }
        for _ in range(TRIES):
            seconds, response = await longest(client, "fetch", 12, body)
            (row,) = response.responses[0].partitions
            assert len(row.aborted_transactions) == ABORTED
            del response, row
            tried.append(seconds)
            if seconds < SECONDS_MAX:
                break
    print(f"fetch of {ABORTED} aborted transactions: {1000 * min(tried):.1f} ms")
    assert min(tried) < SECONDS_MAX, tried
