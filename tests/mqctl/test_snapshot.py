"""Snapshots of a cluster whose brokers respond late or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from mqctl.commands.cluster import gather
from mqctl.moving import PROPAGATION_SECONDS, check_done
from mqctl.planning import Move
from mqctl.snapshot import OPTIONAL_SECONDS, disks, sizes, take_snapshot
from mqd.client.admin import Admin
from mqd.client.cluster import ClusterClient, connect
from mqd.client.errors import ClientError, DeadlineExceeded
from mqd.types import TopicPartition
from tests.client.fake import (
    DESCRIBE_PARTITIONS,
    DESCRIBE_QUORUM,
    LIST_REASSIGNMENTS,
    FakeCluster,
    Hang,
)

DESCRIBE_LOG_DIRS, DESCRIBE_CLUSTER = 35, 60
TIMEOUT = 15.0


@asynccontextmanager
async def client_of(
    cluster: FakeCluster, timeout_s: float = TIMEOUT
) -> AsyncIterator[ClusterClient]:
    async with connect([("fake", 9001)], network=cluster, request_timeout_s=timeout_s) as client:
        yield client


def without_controller(nursery: trio.Nursery) -> FakeCluster:
    """The broker that all others name as controller is down."""
    cluster = FakeCluster(nursery, nodes=2)
    cluster.add_topic("a", 2)
    cluster.controller, cluster.down = 2, {2}
    return cluster


@pytest.mark.parametrize("timeout_s", [3.0, TIMEOUT])
async def test_optional_information_delays_a_snapshot_only_briefly(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, timeout_s: float
) -> None:
    async with client_of(without_controller(nursery), timeout_s) as client:
        began = trio.current_time()
        seen = await take_snapshot(
            Admin(client, timeout_s=timeout_s), began + timeout_s, moves="optional"
        )
        assert trio.current_time() - began <= min(timeout_s, OPTIONAL_SECONDS) + 0.001
    assert len(seen.partitions) == 2 and seen.min_isr == {}
    assert seen.min_isr_error is not None
    assert (
        seen.moves_error is not None
        and "timed out while waiting for the controller" in seen.moves_error.message
    )


@pytest.mark.parametrize("silent", [DESCRIBE_PARTITIONS, LIST_REASSIGNMENTS])
async def test_all_calls_of_a_snapshot_have_one_deadline(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock, silent: int
) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.script(DESCRIBE_CLUSTER, *[{"error_code": 14}] * 12)  # some seconds of retries
    cluster.one.script(silent, *[Hang()] * 9)
    async with client_of(cluster) as client:
        began = trio.current_time()
        with pytest.raises(DeadlineExceeded, match=r"timed out while"):
            await take_snapshot(Admin(client, timeout_s=TIMEOUT), began + TIMEOUT)
        assert trio.current_time() - began <= TIMEOUT + 0.001


async def test_a_finished_move_is_checked_after_all_nodes_know_it(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a", 1)
    tp = TopicPartition("a", 0)
    row = {
        "partition_index": 0,
        "leader_id": 9,
        "leader_epoch": 0,
        "replica_nodes": [9],
        "isr_nodes": [9],
        "offline_replicas": [],
    }
    stale = {
        "topics": [{"name": "a", "topic_id": cluster.ids["a"], "partitions": [row]}],
        "next_cursor": None,
    }
    cluster.one.script(DESCRIBE_PARTITIONS, stale, stale)
    async with client_of(cluster) as client:
        admin = Admin(client, timeout_s=TIMEOUT)
        assert await check_done(admin, {tp: Move((9,), tuple(cluster.partition(tp).held))}) == {}
        began = trio.current_time()
        assert "replaced by another one" in (await check_done(admin, {tp: Move((1,), (7,))}))[tp]
        assert PROPAGATION_SECONDS <= trio.current_time() - began < PROPAGATION_SECONDS + 1


async def test_a_silent_node_does_not_delay_the_disks_of_others(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery, nodes=2)
    cluster.brokers[2].script(DESCRIBE_LOG_DIRS, *[Hang()] * 9)
    async with client_of(cluster) as client:
        began = trio.current_time()
        log_dirs = await disks(Admin(client, timeout_s=TIMEOUT), [2, 1], began + 3)
        assert trio.current_time() - began <= 3.001
        assert list(log_dirs) == [1, 2] and isinstance(log_dirs[1], list)
        assert (
            isinstance(log_dirs[2], ClientError)
            and log_dirs[2].message == "timed out while reading the log directories of broker 2"
        )
        assert list(
            await sizes(Admin(client, timeout_s=TIMEOUT), [1, 2], trio.current_time() + 3)
        ) == [1]


async def test_info_waits_for_the_quorum_leader_within_its_timeout(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.script(DESCRIBE_QUORUM, *[Hang()] * 9)
    async with client_of(cluster) as client:
        for timeout_s, limit in ((3.0, 3.0), (TIMEOUT, 5.0)):
            began = trio.current_time()
            data, unknown = await gather(client, timeout_s, began + timeout_s)
            assert trio.current_time() - began <= limit + 0.1
            assert data["controller"] is None and {row["state"] for row in data["brokers"]} == {
                "unknown"
            }
            assert unknown is not None
