"""The wall times of the nodes of one run: their clocks may be wrong, and jump."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from mqd.testing.node import SimulatedNode


class WallTimes:
    """Times are virtual seconds, wall times milliseconds since 1970."""

    def __init__(self, nodes: Mapping[int, SimulatedNode]) -> None:
        self._nodes = nodes

    def between(self, node_id: int, since: float, until: float) -> tuple[int, int]:
        """The earliest and the latest wall time of a node."""
        return self._nodes[node_id].clock.wall_between(since, until)

    def latest(self, since: float = 0.0, until: float | None = None) -> int:
        """The latest wall time that any node has had, by default until now."""
        until = trio.current_time() if until is None else until
        return max(node.clock.wall_between(since, until)[1] for node in self._nodes.values())

    def jump(self, seconds: float = 0.0) -> None:
        """Set the clocks of all nodes to the one that was ahead most, and so many seconds more.
        What waits for a time of that clock would take too long otherwise.
        """
        ahead = max(node.clock.skew_seconds_max for node in self._nodes.values())
        for node in self._nodes.values():
            node.skew(ahead + seconds)
