"""Broker faults while a query runs: a thread that carries out the steps of the seed's nemesis."""

from __future__ import annotations

import threading
from collections import Counter

from .ensemble import Ensemble
from .fault_injector import inject_fault
from .nemesis import Target, steps
from .spark_verdict import Topic

REST = 3
"""Between two faults, in multiples of the step's own pause: a driver needs 10 s for its start."""


class BrokerFaults(threading.Thread):
    """Kills, freezes and restarts nodes. Leaders of `topic` are its victims, too."""

    def __init__(self, cluster: Ensemble, topic: Topic, seed: int) -> None:
        super().__init__(name="broker faults")
        self.done: Counter[str] = Counter()
        self.failure: Exception | None = None
        """A node that has ended by itself, or does not start."""
        self._cluster = cluster
        self._topic = topic
        self._seed = seed
        self._over = threading.Event()

    def stop(self) -> None:
        """After the fault that is being carried out. Raises what went wrong, if anything."""
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
