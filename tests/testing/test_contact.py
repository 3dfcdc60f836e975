"""A leader without contact to the controller for a session serves no client: partitioned from the
nodes but not from clients, or paused for long.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mqd.client.admin import Admin
from mqd.client.peer import PeerConnection
from mqd.errors import ErrorCode
from mqd.protocol import apis
from mqd.testing import Cluster, run, simulated
from tests.log.support import batch
from tests.seeds import seeds

SESSION_SECONDS = 9.0


async def ask(connection: PeerConnection, name: str, version: int, body: dict[str, Any]) -> Any:
    api = apis.by_name(name)
    assert api is not None
    return await connection.request(api, body, version, timeout_s=60)


async def produce(connection: PeerConnection, acks: int) -> ErrorCode:
    data = {"name": "t", "partition_data": [{"index": 0, "records": batch(b"v")}]}
    answer = await ask(
        connection, "produce", 9, {"acks": acks, "timeout_ms": 50_000, "topic_data": [data]}
    )
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


async def fetch(connection: PeerConnection) -> ErrorCode:
    row = {
        "partition": 0,
        "fetch_offset": 0,
        "current_leader_epoch": -1,
        "partition_max_bytes": 1 << 20,
    }
    body = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [{"topic": "t", "partitions": [row]}],
    }
    answer = await ask(connection, "fetch", 12, body)
    return ErrorCode(answer.responses[0].partitions[0].error_code)


async def known_leader(connection: PeerConnection) -> int:
    answer = await ask(connection, "metadata", 9, {"topics": [{"name": "t"}]})
    leader: int = answer.topics[0].partitions[0].leader_id
    return leader


def leader_of(cluster: Cluster) -> int:
    leader: int = next(
        cluster.daemon(one).machine.image.topics["t"].partitions[0].leader
        for one in cluster.nodes
        if cluster.daemon(one)
    )
    return leader


@simulated(seed=3)
async def test_a_partitioned_leader_refuses_clients_until_it_reconnects() -> None:
    async with Cluster(nodes=3) as cluster:
        await Admin(await cluster.client()).create_topic("t", 1, 3)
        await trio.sleep(2)
        leader = leader_of(cluster)
        waiting, asking = await cluster.connect(leader), await cluster.connect(leader)
        assert await known_leader(asking) == leader
        assert await produce(waiting, -1) is ErrorCode.NONE
        cluster.network.isolate(leader, breaks=False)
        with trio.fail_after(SESSION_SECONDS + 3):
            # it waited, and there was no other request
            assert await produce(waiting, -1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        for acks in (1, -1):
            assert await produce(asking, acks) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await fetch(asking) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await known_leader(asking) == -1
        cluster.network.heal()
        await trio.sleep(15)
        again = await cluster.connect(leader_of(cluster))
        assert await produce(again, -1) is ErrorCode.NONE
        assert cluster.daemon(leader).replica.in_contact


@pytest.mark.parametrize("seed", seeds(2, range(5)))
def test_a_leader_paused_for_a_session_serves_no_waiting_requests(
    seed: int,
) -> None:
    async def main() -> None:
        async with Cluster(nodes=3) as cluster:
            await Admin(await cluster.client()).create_topic("t", 1, 3)
            await trio.sleep(2)
            leader = leader_of(cluster)
            connections = [await cluster.connect(leader) for _ in range(2)]
            codes: dict[str, ErrorCode] = {}

            async def producing() -> None:
                codes["produce"] = await produce(connections[0], 1)

            async def fetching() -> None:
                codes["fetch"] = await fetch(connections[1])

            cluster.nodes[leader].pause(15)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(producing)
                nursery.start_soon(fetching)
            assert codes == dict.fromkeys(("produce", "fetch"), ErrorCode.NOT_LEADER_OR_FOLLOWER)
            with trio.fail_after(10):
                while not cluster.daemon(leader).replica.in_contact:  # noqa: ASYNC110
                    await trio.sleep(0.1)

    run(main, seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_a_single_node_continues_to_serve_after_a_pause(seed: int) -> None:
    async def main() -> None:
        async with Cluster(nodes=1) as cluster:
            await Admin(await cluster.client()).create_topic("t", 1, 1)
            connection = await cluster.connect(1)
            cluster.nodes[1].pause(15)
            assert await produce(connection, 1) is ErrorCode.NONE
            assert await fetch(connection) is ErrorCode.NONE

    run(main, seed=seed)


@pytest.mark.parametrize("seed", seeds(2, range(6)))
def test_a_former_leader_serves_no_client_before_new_metadata(seed: int) -> None:
    """A heartbeat gets its response before the metadata arrives: other nodes lead the partitions of
    this node by then.
    """
    options = {"broker.session.timeout.ms": "600", "broker.heartbeat.interval.ms": "200"}

    async def main() -> None:
        async with Cluster(nodes=3, options=options) as cluster:
            await Admin(await cluster.client()).create_topic("t", 3, 3)
            await trio.sleep(2)
            former = leader_of(cluster)
            others = [one for one in cluster.nodes if one != former]
            cluster.network.isolate(former)
            led = {
                place: one.leader_epoch
                for place, one in _partitions(cluster, former).items()
                if one.is_leader
            }
            with trio.fail_after(15):
                while not all(  # noqa: ASYNC110
                    _partitions(cluster, one)[place].leader_epoch > led[place]
                    for one in others
                    for place in led
                ):
                    await trio.sleep(0.05)
                while cluster.daemon(former).replica.in_contact:  # noqa: ASYNC110
                    await trio.sleep(0.05)
            served: list[int] = []

            def look(node_id: int) -> None:
                if node_id == former and cluster.nodes[former].running:
                    now = _partitions(cluster, former)
                    served.extend(
                        place
                        for place, epoch in led.items()
                        if now[place].serves and now[place].leader_epoch == epoch
                    )

            cluster.on_event(look)
            cluster.network.heal()
            with trio.fail_after(15):
                while not cluster.daemon(former).replica.in_contact:  # noqa: ASYNC110
                    await trio.sleep(0.1)
            assert led and served == []

    run(main, seed=seed)


def _partitions(cluster: Cluster, node_id: int) -> dict[int, Any]:
    partitions: dict[int, Any] = cluster.daemon(node_id).replica.by_name[b"t"]
    return partitions


@pytest.mark.parametrize("seed", seeds(1, range(2)))
@pytest.mark.parametrize("pause", [1.3, 4.2])
def test_a_controller_paused_for_half_a_session_extends_no_contact(pause: float, seed: int) -> None:
    """It and one leader are partitioned from the other three voters, which elect another controller
    while it does not run. Heartbeats of that leader, and old replies of voters, wait for it. If one
    of them extended the contact, this would last until a session after the pause.
    """
    options = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "200"}

    async def main() -> None:
        async with Cluster(nodes=5, options=options) as cluster:
            await Admin(await cluster.client()).create_topic("t", 10, 5)
            await trio.sleep(3)
            old = next(one for one in cluster.nodes if cluster.daemon(one).raft.status().ready)
            leader = next(
                one
                for one in cluster.nodes
                if one != old and any(p.is_leader for p in _partitions(cluster, one).values())
            )
            led = {
                place: one.leader_epoch
                for place, one in _partitions(cluster, leader).items()
                if one.is_leader
            }
            others = [one for one in cluster.nodes if one not in (old, leader)]
            both: list[tuple[float, int]] = []
            done: list[bool] = []

            def look(_node_id: int) -> None:
                for place, epoch in led.items() if not done else ():
                    here = _partitions(cluster, leader)[place]
                    if here.serves and here.leader_epoch == epoch:
                        there = (_partitions(cluster, one)[place] for one in others)
                        both.extend(
                            (trio.current_time(), place)
                            for one in there
                            if one.is_leader and one.leader_epoch > epoch
                        )

            cluster.on_event(look)
            cluster.network.partition([old, leader], others, breaks=False)
            cluster.nodes[old].pause(pause)
            await trio.sleep(pause + SESSION_SECONDS + 5)
            done.append(True)
            assert any(
                _partitions(cluster, one)[place].leader_epoch > epoch
                for one in others
                for place, epoch in led.items()
            )
            assert led and both == []

    run(main, seed=seed)
