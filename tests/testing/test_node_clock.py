"""The wall clocks of simulated nodes: which times they have shown."""

from __future__ import annotations

import trio

from mqd.testing import Cluster, simulated
from mqd.testing.wall_times import WallTimes


@simulated()
async def test_the_times_that_a_clock_has_shown_between_two_moments() -> None:
    cluster = Cluster(2, start=False)
    node, walls = cluster.nodes[1], WallTimes(cluster.nodes)
    began, wall_ms = trio.current_time(), node.clock.wall_ms()
    await trio.sleep(1)
    node.skew(10.0)
    await trio.sleep(1)
    node.skew(-5.0)
    await trio.sleep(1)
    ended = trio.current_time()

    def shown(since: float, until: float) -> tuple[int, int]:
        first, last = walls.between(1, since, until)
        return round(first - wall_ms, -1), round(last - wall_ms, -1)

    assert shown(began, began + 0.5) == (0, 500)
    assert shown(began + 0.5, began + 1.5) == (500, 11_500)
    assert shown(began + 0.5, ended) == (-3000, 12_000)
    assert round(walls.latest() - wall_ms, -1) == 12_000
    assert round(walls.latest(began + 2.5) - wall_ms, -1) == 3000, "the other clock is right"
    walls.jump(60.0)
    assert {one.clock.wall_ms() - wall_ms for one in cluster.nodes.values()} == {73_000}
