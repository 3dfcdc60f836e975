"""Real nodes in the simulated world: started, killed in every way, paused, partitioned, and used by
clients.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio

from mqd.client.admin import Admin
from mqd.client.cluster import ClusterClient
from mqd.client.producer import open_producer
from mqd.io.disk import Disk
from mqd.testing import Cluster, run, simulated
from mqd.testing.process import Killed
from mqd.testing.scheduler import current_node
from mqd.types import TopicPartition


async def one_record(client: ClusterClient, value: bytes = b"v") -> int:
    async with open_producer(client, delivery_timeout_s=30) as producer:
        return (await producer.send("t", value, partition=0)).offset


@simulated(seed=1)
async def test_three_nodes_serve_and_outlive_the_end_of_each() -> None:
    async with Cluster(nodes=3) as cluster:
        client = await cluster.client()
        await Admin(client).create_topic("t", 1, 1, {"flush.before.ack": "true"})
        assert await one_record(client) == 0
        for number, how in enumerate(("kill", "power_cut", "stop"), start=1):
            for node in cluster.nodes.values():
                if how == "stop":
                    await node.stop()
                    assert node.failure is None
                else:
                    getattr(node, how)()
                assert not node.running
                assert cluster.daemon(node.id) is None
                await node.start()
            assert await one_record(client) == number


@simulated(seed=2)
async def test_a_raw_connection_is_negotiated() -> None:
    async with Cluster(nodes=1) as cluster:
        connection = await cluster.connect(1)
        assert connection.versions
        assert cluster.daemon(1).me.id == 1


@simulated(seed=3)
async def test_a_paused_node_does_nothing_and_then_continues() -> None:
    async with Cluster(nodes=1) as cluster:
        steps: list[float] = []
        cluster.on_event(lambda node_id: steps.append(cluster.time))
        node = cluster.nodes[1]
        node.pause(5)
        await trio.sleep(0.001)
        steps.clear()
        paused_at = cluster.time
        await trio.sleep(10)
        assert steps[0] - paused_at == pytest.approx(5, abs=0.01)
        node.pause(1000)
        node.kill()
        await node.start()


@simulated(seed=4)
async def test_a_dead_node_does_not_change_its_disk() -> None:
    """`finally` blocks of its tasks run, because Trio cancels them: their calls must have no
    effect.
    """
    async with Cluster(nodes=1) as cluster:
        node = cluster.nodes[1]
        disk: Disk = cluster.daemon(1).seams.disk
        writes, files = node.disk.writes, node.disk.files()
        node.kill()
        with pytest.raises(Killed):
            disk.exists(node.disk.files()[0])
        await node.wait_gone()
        assert (node.disk.writes, node.disk.files()) == (writes, files)
        assert not any(path.name == ".kafka_cleanshutdown" for path in files)


@simulated(seed=5)
async def test_a_partition_removes_a_node_s_majority_until_it_heals() -> None:
    async with Cluster(nodes=3) as cluster:
        leader = next(
            node_id for node_id in cluster.nodes if cluster.daemon(node_id).raft.status().ready
        )
        cluster.network.isolate(leader)
        await trio.sleep(10)
        others = [node_id for node_id in cluster.nodes if node_id != leader]
        assert any(cluster.daemon(node_id).raft.status().ready for node_id in others)
        assert not cluster.daemon(leader).raft.status().ready
        cluster.network.heal()
        await trio.sleep(5)
        assert (
            len({cluster.daemon(node_id).raft.status().leader_id for node_id in cluster.nodes}) == 1
        )


@simulated(seed=6)
async def test_a_node_stamps_appends_with_its_own_wall_clock() -> None:
    async with Cluster(nodes=1) as cluster:
        cluster.nodes[1].skew(1000)
        client = await cluster.client()
        await Admin(client).create_topic("t", 1, 1, {"message.timestamp.type": "LogAppendTime"})
        async with open_producer(client) as producer:
            metadata = await producer.send("t", b"v")
        assert metadata.timestamp_ms - cluster.clock.wall_ms() == pytest.approx(1_000_000, abs=1000)


@simulated(seed=7)
async def test_kills_in_the_middle_of_writes_are_survived() -> None:
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        await Admin(client).create_topic("t", 1, 1)
        node = cluster.nodes[1]
        for after in range(30):
            node.kill_in_write(after)
            with trio.move_on_after(3):
                await one_record(client)
                await Admin(client).create_topic(f"t{after}", 1, 1)
            if node.running:
                node.kill()
            await node.start()
            node.disk.disarm()
        log = cluster.daemon(1).replica.get(TopicPartition("t", 0)).log
        assert log.failure is None


def test_an_invariant_that_fails_ends_the_run_at_that_event() -> None:
    async def main() -> None:
        async with Cluster(nodes=3) as cluster:

            def look(node_id: int) -> None:
                assert cluster.time < 3, "too late"

            cluster.on_event(look)
            await trio.sleep(10)

    with pytest.raises(AssertionError, match="too late") as caught:
        run(main, seed=8)
    assert any("seed 8, at 3.0" in note for note in caught.value.__notes__)


def test_a_bug_of_a_node_ends_the_run_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Cluster(nodes=1) as cluster:

            def bug() -> None:
                raise ZeroDivisionError("a bug")

            cluster.daemon(1).raft._publish = lambda node: bug()
            await trio.sleep(10)

    with pytest.raises(ExceptionGroup) as caught:
        run(main)
    assert caught.group_contains(ZeroDivisionError)


@simulated()
async def test_a_node_that_refuses_to_start_reports_the_reason() -> None:
    async with Cluster(nodes=1) as cluster:
        node = cluster.nodes[1]
        node.kill()
        await node.wait_gone()
        node.disk.corrupt("/data/metadata/quorum-state")
        with pytest.raises(RuntimeError, match="does not serve"):
            await node.start()
        assert node.failure is not None
        assert not node.running


@simulated()
async def test_an_exception_of_the_block_rises_unwrapped() -> None:
    with pytest.raises(KeyError):
        async with Cluster(nodes=1):
            raise KeyError


@simulated(seed=3)
async def test_a_node_whose_code_takes_time_does_nothing_else_meanwhile() -> None:
    async with Cluster(nodes=1) as cluster:
        node, process = cluster.nodes[1], cluster.nodes[1].process
        cluster.price_work(0.02)
        ran: list[float] = []

        async def of_the_node() -> None:
            current_node.set(process)
            while True:
                await trio.sleep(0.0001)
                ran.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(of_the_node)
            client = await cluster.client()
            await Admin(client).create_topic("t", 1, 1)
            await trio.sleep(0.5)
            nursery.cancel_scope.cancel()
        gaps = [after - before for before, after in pairwise(ran)]
        assert max(gaps) > 0.005, "without a cost none is longer than the task's own sleep"
        assert cluster.longest_busy_seconds <= max(gaps) + 0.001
        before = node.clock.monotonic()
        assert before > trio.current_time() or node.clock.ahead == 0.0
        assert node.clock.monotonic() >= before, "the clock of a busy node does not decrease"


@simulated()
async def test_requests_take_time_also_if_the_node_does_not_look_at_its_clock() -> None:
    async with Cluster(nodes=1) as cluster:
        cluster.price_work(0.02)
        await trio.sleep(1.0)
        node = cluster.nodes[1]
        node.charge_requests()
        before = node.clock.ahead
        node.daemon.server.dispatcher.requests += 50
        node.charge_requests()
        assert node.clock.ahead > before + 0.1
        ahead = node.clock.ahead
        node.charge_requests()
        assert node.clock.ahead == ahead, "each request is charged once"
