"""Three nodes over real peer sockets: one quorum, one image, requests forwarded to the controller,
a restart of one.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from chaos.node import free_ports
from mqd.client.errors import ClientError
from mqd.peers import Peers, parse_peers
from tests.nodes import (
    READY_SECONDS,
    RunningNode,
    ask,
    batch,
    connected,
    create_topic,
    fetch,
    node,
    produce,
)


def three_peers() -> Peers:
    ports = free_ports(6)
    nodes = "".join(
        f'[[node]]\nid = {number + 1}\nhost = "127.0.0.1"\nport = '
        f"{ports[2 * number]}\npeer_port = {ports[2 * number + 1]}\n"
        for number in range(3)
    )
    return parse_peers(f'cluster_id = "three"\n{nodes}', Path("peers.toml"))


async def leaders(running: RunningNode, topic: str) -> dict[int, int]:
    """Partition -> leader, according to this node; empty while it does not respond."""
    try:
        async with connected(running) as connection:
            answer = await ask(
                connection,
                "metadata",
                9,
                {"topics": [{"name": topic}], "allow_auto_topic_creation": False},
            )
    except OSError:
        return {}
    return {
        partition.partition_index: partition.leader_id for partition in answer.topics[0].partitions
    }


async def all_alive(via: RunningNode, count: int) -> None:
    """Wait until that many nodes may get replicas."""
    with trio.fail_after(READY_SECONDS):
        async with connected(via) as connection:
            while True:
                answer = await ask(connection, "metadata", 9, {"topics": []})
                if len(answer.brokers) == count:
                    return
                await trio.sleep(0.02)


async def agreed(nodes: list[RunningNode], topic: str, partitions: int) -> dict[int, int]:
    """The leaders, once all nodes agree and every partition has one."""
    with trio.fail_after(READY_SECONDS):
        while True:
            views = [await leaders(one, topic) for one in nodes]
            if (
                all(view == views[0] for view in views)
                and len(views[0]) == partitions
                and min(views[0].values()) > 0
            ):
                return views[0]
            await trio.sleep(0.02)


async def test_three_nodes_share_one_image_and_survive_a_restart(tmp_path: Path) -> None:
    peers = three_peers()
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(
                node(tmp_path / str(node_id), peers=peers, node_id=node_id, wait=False)
            )
            for node_id in (1, 2)
        ]
        async with node(tmp_path / "3", peers=peers, node_id=3) as third:
            await all_alive(third, 3)
            # on any node: those that are not the controller forward
            for one in (*nodes, third):
                async with connected(one) as connection:
                    await create_topic(connection, f"of-{one.port}", partitions=6)
            for one in (*nodes, third):
                found = await agreed([*nodes, third], f"of-{one.port}", 6)
                assert set(found.values()) == {1, 2, 3}
            topic = f"of-{third.port}"
            led = {leader: partition for partition, leader in found.items()}
            async with connected(third) as connection:
                assert (await produce(connection, topic, batch(b"kept"), led[3])).error_code == 0
                assert (await produce(connection, topic, batch(b"astray"), led[1])).error_code == 6
        async with node(tmp_path / "3", peers=peers, node_id=3) as third:
            await agreed([*nodes, third], topic, 6)
            async with connected(third) as connection:
                assert (await fetch(connection, topic, 0, led[3])).high_watermark == 1


async def test_an_observer_follows_serves_and_forwards(tmp_path: Path) -> None:
    ports = free_ports(4)
    text = 'cluster_id = "c"\ncluster_secret = "known to both of them"\n'
    for number, votes in ((1, "true"), (2, "false")):
        text += (
            f'[[node]]\nid = {number}\nhost = "127.0.0.1"\nport = '
            f"{ports.pop()}\npeer_port = {ports.pop()}\nvoter = {votes}\n"
        )
    peers = parse_peers(text, Path("peers.toml"))
    async with (
        node(tmp_path / "1", peers=peers, node_id=1) as voter,
        node(tmp_path / "2", peers=peers, node_id=2) as observer,
    ):
        async with connected(observer) as connection:
            await create_topic(connection, "t", partitions=4)
        assert set((await agreed([voter, observer], "t", 4)).values()) == {1, 2}


class Changing:
    """Three nodes, each with its own peers file, that restart one at a time."""

    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        self.directory, self.nursery = directory, nursery
        self.ports = free_ports(6)
        self.stops: dict[int, tuple[trio.Event, trio.Event]] = {}
        """For each running node: the event that stops it, and the event of its end."""
        self.running: dict[int, RunningNode] = {}

    async def start(self, node_id: int, voters: set[int]) -> None:
        text = 'cluster_id = "changing"\ncluster_secret = "known to all three of them"\n'
        for number in (1, 2, 3):
            port, peer_port = self.ports[2 * number - 2 : 2 * number]
            vote = str(number in voters).lower()
            text += (
                f'[[node]]\nid = {number}\nhost = "127.0.0.1"\nport = {port}\npeer_port = '
                f"{peer_port}\nvoter = {vote}\n"
            )
        peers = parse_peers(text, Path("peers.toml"))
        await self.nursery.start(self._run, peers, node_id)

    async def _run(self, peers: Peers, node_id: int, task_status: trio.TaskStatus[None]) -> None:
        stop, stopped = self.stops[node_id] = trio.Event(), trio.Event()
        async with node(
            self.directory / str(node_id), peers=peers, node_id=node_id, wait=False
        ) as self.running[node_id]:
            task_status.started()
            await stop.wait()
        stopped.set()

    async def stop(self, node_id: int) -> None:
        stop, stopped = self.stops[node_id]
        stop.set()
        await stopped.wait()

    async def voters(self, via: int) -> set[int]:
        body = {
            "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        }
        try:
            async with connected(self.running[via]) as connection:
                answer = await ask(connection, "describe_quorum", 2, body)
        except ClientError:
            return set()
        return {
            row.replica_id
            for topic in answer.topics
            for one in topic.partitions
            for row in one.current_voters
        }

    async def until_alive(self, count: int, via: int) -> None:
        with trio.fail_after(READY_SECONDS):
            while True:
                try:
                    await all_alive(self.running[via], count)
                    return
                except ClientError:  # it does not serve yet
                    await trio.sleep(0.02)

    async def until_voters(self, wanted: set[int], via: int) -> None:
        with trio.fail_after(READY_SECONDS):
            while await self.voters(via) != wanted:  # another process would send the same request  # noqa: ASYNC110
                await trio.sleep(0.02)


@pytest.mark.slow
async def test_a_voter_is_added_and_removed_by_rolling_restarts(
    tmp_path: Path,
) -> None:
    async with trio.open_nursery() as nursery:
        nodes = Changing(tmp_path, nursery)
        for node_id in (1, 2, 3):
            await nodes.start(node_id, {1, 2})
        await nodes.until_voters({1, 2}, via=1)
        for node_id in (3, 1, 2):  # the new voter first
            await nodes.stop(node_id)
            await nodes.start(node_id, {1, 2, 3})
            await nodes.until_alive(3, via=node_id)
        await nodes.until_voters({1, 2, 3}, via=3)
        await nodes.stop(1)
        await nodes.until_voters({1, 2, 3}, via=2)  # two of three are a majority
        await nodes.until_alive(2, via=2)
        async with connected(nodes.running[2]) as connection:
            await create_topic(connection, "with-two-of-three")
        await nodes.start(1, {1, 2, 3})
        await nodes.until_voters({1, 2, 3}, via=1)
        for node_id in (2, 3, 1):  # the removed one last
            await nodes.stop(node_id)
            await nodes.start(node_id, {2, 3})
            await nodes.until_alive(3, via=node_id)
        await nodes.until_voters({2, 3}, via=1)
        async with connected(nodes.running[1]) as connection:
            await create_topic(connection, "created-by-an-observer")
        nursery.cancel_scope.cancel()
