"""A few seeds of the simulation on every run, and proof that it detects the faults that it looks
for.
"""

from __future__ import annotations

from typing import Any

import pytest

from mqd.raft.codec import AppendEntries, Message
from mqd.raft.node import RaftNode
from tests.raft.simulate import Life, Violation, World


@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_seeds(nodes: int) -> None:
    acknowledged = crashes = 0
    for seed in range(4):
        world = World(seed, nodes=nodes, seconds=6.0, observers=seed % 2, wipes=True).run()
        acknowledged += len(world.acknowledged)
        crashes += world.crashes
    assert acknowledged > 100 and crashes > 3


def test_a_seed_replays() -> None:
    runs = [World(3, seconds=3.0).run() for _ in range(2)]
    assert runs[0].events == runs[1].events and runs[0].acknowledged == runs[1].acknowledged


class CountsUnsynced(RaftNode):
    def _durable_index(self) -> int:
        return self._journal.last_index


class BelievesPrevious(RaftNode):
    """Appends without comparing the previous entry."""

    def _on_append(self, node: object, message: AppendEntries) -> None:
        journal, previous = self._journal, message.previous_index
        if message.entries and journal.base_index <= previous <= journal.last_index:
            message = AppendEntries(
                message.term,
                message.commit_index,
                previous,
                journal.term_at(previous),
                message.entries,
            )
        super()._on_append(node, message)


class Forgets(RaftNode):
    """A voter with an empty disk votes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self._recovery is not None:
            self._end_recovery()


class CountsObservers(RaftNode):
    """Counts a message of an observer as a voter's."""

    def receive(self, now: float, sender: int, message: Message) -> None:
        super().receive(now, min(sender, 3), message)


class LeadsOn(RaftNode):
    """A leader without responses from any voter continues to lead."""

    def turn(self, now: float) -> None:
        peers = self.voters - {self._node_id}
        for node in (self._nodes[peer] for peer in peers) if self.is_leader else ():
            self._SyncObj__lastResponseTime[node] = max(
                self._SyncObj__lastResponseTime[node], now - 1.0
            )
        super().turn(now)


class SendsBeforeItIsDurable(World):
    def turn(self, life: Life) -> None:
        if not life.busy and self.alive(life):
            super().turn(life)
            messages, life.node._outbox.messages = life.node._outbox.messages, []
            for peer, message in messages:
                self.send(life.node_id, peer, message)


def breaks(world: type[World], node_class: type[RaftNode], seeds: range, **options: Any) -> bool:
    """Whether one of the seeds finds the fault. The seeds after it do not run."""
    for seed in seeds:
        try:
            world(seed, seconds=6.0, node_class=node_class, **options).run()
        except (Violation, AssertionError):
            return True
    return False


def test_it_detects_each_disabled_protection() -> None:
    assert breaks(World, CountsUnsynced, range(3))
    assert breaks(SendsBeforeItIsDurable, RaftNode, range(2))
    assert breaks(World, BelievesPrevious, range(19, 20))  # rarer: one seed in ten


def test_it_detects_wiped_voters_lone_leaders_and_counted_observers() -> None:
    assert breaks(World, Forgets, range(28, 36), wipes=True)
    assert breaks(World, LeadsOn, range(4, 6))
    assert breaks(World, CountsObservers, range(4), observers=1)
