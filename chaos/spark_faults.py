"""Broker faults while a query runs: a thread that injects the faults of the seed."""

from __future__ import annotations

import threading
from collections import Counter

from .ensemble import Ensemble
from .fault_injector import inject_fault
from .nemesis import Target, steps
from .spark_verdict import Topic

REST = 3
"""The pause between two faults, in multiples of the pause of the step: a driver needs 10 s to
start.
"""


class BrokerFaults(threading.Thread):
    """Kills, suspends and restarts nodes, among them leaders of `topic`."""

    def __init__(self, cluster: Ensemble, topic: Topic, seed: int) -> None:
        super().__init__(name="broker faults")
        self.done: Counter[str] = Counter()
        self.failure: Exception | None = None
        """The error of a node that ended by itself, or does not start."""
        self._cluster = cluster
        self._topic = topic
        self._seed = seed
        self._over = threading.Event()

    def stop(self) -> None:
        """Stop after the current fault. Raises the error of a failed node."""
        self._over.set()
        if self.ident is not None:
            self.join()
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        try:
            for step in steps(self._seed, self._cluster.session_ms / 1000):
                if self._over.wait(step.before_s * REST):
                    return
                victims = self._victims(step.target, step.choice)
                inject_fault(self._cluster, step, victims)
                self.done[step.name] += 1
                for node_id in victims:
                    self._cluster.nodes[node_id].wait_ready()
        except Exception as error:
            self.failure = error

    def _victims(self, target: Target, choice: float) -> list[int]:
        running = self._cluster.running
        if target is Target.ALL:
            return running
        found: set[int | None] = set()
        if target in (Target.LEADER, Target.LEADER_AND_CONTROLLER):
            partition = int(choice * self._topic.partitions)
            found.add(self._cluster.leader(self._topic.name, partition))
        if target in (Target.CONTROLLER, Target.LEADER_AND_CONTROLLER):
            found.add(self._cluster.controller())
        named = [node_id for node_id in running if node_id in found]
        return named or [running[int(choice * len(running))]]
