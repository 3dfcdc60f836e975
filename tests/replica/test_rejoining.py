"""Whole clusters: a live node that was fenced, or unregistered and registered again, is in sync
again, also where no producer writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from uuid import UUID

import pytest
import trio

from mqd.client.admin import Admin
from mqd.client.cluster_admin import ClusterAdmin
from mqd.client.producer import open_producer
from mqd.controller.brokers import Unregister
from mqd.controller.image import PartitionImage
from mqd.controller.replica_reports import ReplicaReports
from mqd.errors import ErrorCode, MqError
from mqd.testing import Cluster, run
from mqd.types import NodeId

ALL = {1, 2, 3}
Harm = Callable[[Cluster, int, int], None]


def forget(cluster: Cluster, victim: int, controller: int) -> None:
    async def unregister() -> None:
        await ClusterAdmin(await cluster.client()).unregister_broker(victim)

    cluster.nursery.start_soon(unregister)


def pause(cluster: Cluster, victim: int, controller: int) -> None:
    cluster.nodes[victim].pause(15)


def cut_off_from_the_controller(cluster: Cluster, victim: int, controller: int) -> None:
    """It still reaches its leaders, and continues to fetch from them."""
    cluster.network.partition([victim], [controller], breaks=False)

    async def heal() -> None:
        await trio.sleep(15)
        cluster.network.heal()

    cluster.nursery.start_soon(heal)


@pytest.mark.parametrize("harm", [forget, pause, cut_off_from_the_controller])
def test_a_follower_outside_the_isr_of_idle_partitions_rejoins(harm: Harm) -> None:
    async def main() -> None:
        async with Cluster(nodes=3) as cluster:
            await Admin(await cluster.client()).create_topic("t", 6, 3)
            await trio.sleep(2)
            controller = cluster.daemon(1).raft.status().leader_id
            victim = next(one for one in cluster.nodes if one != controller)
            before = cluster.daemon(controller).machine.image.brokers[victim].epoch

            def partitions() -> tuple[PartitionImage, ...]:
                found: tuple[PartitionImage, ...] = (
                    cluster.daemon(controller).machine.image.topics["t"].partitions
                )
                return found

            harm(cluster, victim, controller)
            with trio.fail_after(60):
                while any(victim in one.isr for one in partitions()):  # noqa: ASYNC110
                    await trio.sleep(0.01)
            with trio.fail_after(60):
                while any(set(one.isr) != ALL for one in partitions()):  # noqa: ASYNC110
                    await trio.sleep(0.1)
            registered_anew = (
                cluster.daemon(controller).machine.image.brokers[victim].epoch != before
            )
            assert registered_anew is (harm is forget)

    run(main, seed=7)


@pytest.mark.parametrize("how", ["it is forgotten", "a controller answers that knows less"])
def test_a_start_survives_a_lost_registration_before_the_report_of_losses(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It registers again, and is not unfenced before every loss is reported."""

    async def main() -> None:
        async with Cluster(nodes=3) as cluster:
            client = await cluster.client()
            await Admin(client).create_topic("t", 1, 3)
            async with open_producer(client) as producer:
                for _ in range(3):
                    await producer.send("t", b"x")
                    await producer.flush()
            controller = cluster.daemon(1).raft.status().leader_id
            victim = next(one for one in cluster.nodes if one != controller)
            node = cluster.nodes[victim]
            reported: list[str] = []
            node.kill()
            log = next(path for path in cluster.disk(victim).files("t-0") if path.suffix == ".log")
            cluster.disk(victim).corrupt(log, 70)
            tell = ReplicaReports.report_offline

            async def report_offline(
                service: ReplicaReports, partitions: Collection[tuple[UUID, int]]
            ) -> None:
                if not reported:
                    reported.append("first")
                    if how != "it is forgotten":
                        raise MqError(ErrorCode.BROKER_ID_NOT_REGISTERED)
                    await cluster.daemon(controller).controller.submit(Unregister(NodeId(victim)))
                assert not cluster.daemon(controller).machine.image.is_alive(NodeId(victim))
                await tell(service, partitions)
                reported.append("heard")

            monkeypatch.setattr(ReplicaReports, "report_offline", report_offline)
            await node.start()
            assert reported == ["first", "heard"]
            with trio.fail_after(60):
                while (  # noqa: ASYNC110
                    set(cluster.daemon(controller).machine.image.topics["t"].partitions[0].isr)
                    != ALL
                ):
                    await trio.sleep(0.1)

    run(main, seed=7)
