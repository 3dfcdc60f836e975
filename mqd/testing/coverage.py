"""Counts rare events inside the nodes of a run. A simulation that never reaches an event proves
nothing about it.
"""

from __future__ import annotations

from collections import Counter

from mqd.daemon import Daemon

EVENTS = (
    "metadata_snapshots",
    "metadata_restores",
    "compactions",
    "retired_segments",
    "deleted_records",
    "log_resets",
    "memory_waits",
    "evicted_connections",
    "stalled_connections",
    "refused_connections",
    "coordinator_refusals",
    "metadata_refusals",
)
"""Each event must happen once in 50 seeds (`--require-coverage`)."""


class Coverage:
    """Reads the counters of every process of a run, also of ended ones."""

    def __init__(self) -> None:
        self._daemons: list[Daemon] = []

    def begin_life(self, daemon: Daemon) -> None:
        self._daemons.append(daemon)

    def counts(self) -> Counter[str]:
        """Event -> how often it happened, over all processes of all nodes. The clients count
        DeleteRecords and rejections, which only responses show.
        """
        counts: Counter[str] = Counter()
        for daemon in self._daemons:
            raft = daemon.raft.statistics()
            counts["metadata_snapshots"] += raft.snapshots_taken
            counts["metadata_restores"] += raft.snapshots_installed
            counts["compactions"] += daemon.logs.compactor.passes
            counts["retired_segments"] += daemon.logs.housekeeping.retired_segments
            counts["log_resets"] += daemon.fetchers.resets
            if daemon.server is not None:
                server = daemon.server.statistics()
                counts["memory_waits"] += server.memory_waits
                counts["evicted_connections"] += (
                    server.evicted_connections - server.stalled_connections
                )
                counts["stalled_connections"] += server.stalled_connections
                counts["refused_connections"] += server.refused_connections
                counts["handler_bugs"] += server.bugs
        return counts
