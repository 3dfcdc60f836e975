"""Whole clusters: a live node that was fenced, or forgotten and registered anew, is in sync again where nothing is written, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from mqd.client.admin import Admin
from mqd.client.cluster_admin import ClusterAdmin
from mqd.controller.image import PartitionImage
from mqd.testing import Cluster, run

ALL = {1, 2, 3}
Harm = Callable[[Cluster, int, int], None]


def forget(cluster: Cluster, victim: int, controller: int) -> None:
    async def unregister() -> None:
        await ClusterAdmin(await cluster.client()).unregister_broker(victim)

    cluster.nursery.start_soon(unregister)


def pause(cluster: Cluster, victim: int, controller: int) -> None:
    cluster.nodes[victim].pause(15)


def cut_off_from_the_controller(cluster: Cluster, victim: int, controller: int) -> None:
    """Its leaders it reaches still, and goes on to fetch from them."""
    cluster.network.partition([victim], [controller], breaks=False)

    async def heal() -> None:
        await trio.sleep(15)
        cluster.network.heal()

    cluster.nursery.start_soon(heal)


@pytest.mark.parametrize("harm", [forget, pause, cut_off_from_the_controller])
def test_who_was_out_of_the_isr_of_idle_partitions_comes_back(harm: Harm) -> None:
    async def main() -> None:
        async with Cluster(nodes=3) as cluster:
            await Admin(await cluster.client()).create_topic("t", 6, 3)
            await trio.sleep(2)
            controller = cluster.daemon(1).raft.status().leader_id
            victim = next(one for one in cluster.nodes if one != controller)
            before = cluster.daemon(controller).machine.image.brokers[victim].epoch

            def partitions() -> tuple[PartitionImage, ...]:
                found: tuple[PartitionImage, ...] = cluster.daemon(controller).machine.image.topics["t"].partitions
                return found

            harm(cluster, victim, controller)
            with trio.fail_after(60):
                while any(victim in one.isr for one in partitions()):  # noqa: ASYNC110 -- in virtual time
                    await trio.sleep(0.01)
            with trio.fail_after(60):
                while any(set(one.isr) != ALL for one in partitions()):  # noqa: ASYNC110 -- in virtual time
                    await trio.sleep(0.1)
            registered_anew = cluster.daemon(controller).machine.image.brokers[victim].epoch != before
            assert registered_anew is (harm is forget)

    run(main, seed=7)
