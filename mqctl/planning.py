"""Which replicas should be where: moves that were asked for, a node to be emptied, leaders to be
sent away. Pure.

A plan names for each partition its replicas before and after, preferred leader first. What it moves
is little: a replica stays where it is unless it was asked to go. Where it goes: to a rack that the
partition does not use yet if there is one, then to the node with the fewest replicas. No single
replica that the plan places could go to another node with two fewer at the same or a better spread
over racks. What cannot be done is told with its reason and left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mqd.types import TopicPartition

Assignment = tuple[int, ...]


class Move(NamedTuple):
    """One partition's replicas, preferred leader first."""

    before: Assignment
    after: Assignment

    @property
    def adding(self) -> Assignment:
        return tuple(node for node in self.after if node not in self.before)

    @property
    def removing(self) -> Assignment:
        return tuple(node for node in self.before if node not in self.after)


@dataclass(slots=True)
class Plan:
    """What to do, and what cannot be done and why."""

    moves: dict[TopicPartition, Move] = field(default_factory=dict)
    impossible: dict[TopicPartition, str] = field(default_factory=dict)

    def add(self, tp: TopicPartition, before: Assignment, after: Assignment) -> None:
        """Note a move; one that changes nothing is none."""
        if before != after:
            self.moves[tp] = Move(before, after)


# -- what was asked for


def parse_target(text: str) -> tuple[TopicPartition, Assignment]:
    """`topic:partition=1,2,3`. Raises ValueError."""
    place, equals, nodes = text.partition("=")
    topic, colon, partition = place.rpartition(":")
    numbers = nodes.split(",")
    if (
        not equals
        or not colon
        or not topic
        or not partition.isdecimal()
        or not all(each.strip().isdecimal() for each in numbers)
    ):
        raise ValueError(
            f"invalid move {text!r}: expected TOPIC:PARTITION=NODE,NODE,.., for example "
            "orders:0=1,2,3"
        )
    return TopicPartition(topic, int(partition)), tuple(int(each) for each in numbers)


def parse_partition(text: str) -> tuple[str, int | None]:
    """`topic` or `topic:partition`. Raises ValueError."""
    topic, colon, partition = text.rpartition(":")
    if not colon:
        return text, None
    if not topic or not partition.isdecimal():
        raise ValueError(
            f"invalid partition {text!r}: expected TOPIC or TOPIC:PARTITION, for example orders:0"
        )
    return topic, int(partition)


def parse_json(text: str) -> dict[TopicPartition, Assignment]:
    """The file that kafka-reassign-partitions reads. Raises ValueError that says what is wrong."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    rows = data.get("partitions") if isinstance(data, dict) else None
    if not isinstance(rows, list) or data.get("version", 1) != 1:
        raise ValueError(
            'expected {"version": 1, "partitions": [{"topic": "orders", "partition": 0, '
            '"replicas": [1, 2, 3]}]}'
        )
    targets: dict[TopicPartition, Assignment] = {}
    for row in rows:
        good = (
            isinstance(row, dict)
            and isinstance(row.get("topic"), str)
            and _is_number(row.get("partition"))
        )
        replicas = row.get("replicas") if good else None
        if not isinstance(replicas, list) or not all(map(_is_number, replicas)):
            raise ValueError(
                f"{json.dumps(row)} lacks a topic, a partition, or replicas as a list of node ids"
            )
        tp = TopicPartition(row["topic"], row["partition"])
        if tp in targets:
            raise ValueError(f"duplicate partition {tp}")
        targets[tp] = tuple(replicas)
    return targets


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def to_json(assignments: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    """What parse_json reads, ready for JSON: also kafka-reassign-partitions takes it."""
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "replicas": list(nodes)}
        for tp, nodes in sorted(assignments.items())
    ]
    return {"version": 1, "partitions": rows}


def plan_targets(
    current: Mapping[TopicPartition, Assignment],
    targets: Mapping[TopicPartition, Assignment],
    alive: Collection[int],
    *,
    fewer: bool = False,
) -> Plan:
    """The moves to these replicas. A new replica must be on a node that lives: a move to another
    would not end.

    With `fewer`, replicas are given up where fewer are named than there are, unless the last one
    that lives is among them.
    """
    plan = Plan()
    for tp, after in sorted(targets.items()):
        before = current.get(tp)
        missing = [node for node in after if node not in alive and node not in (before or ())]
        if before is None:
            plan.impossible[tp] = "the partition does not exist"
        elif not after:
            plan.impossible[tp] = "a partition needs at least one replica"
        elif len(set(after)) < len(after):
            plan.impossible[tp] = f"duplicate node in {_names(after)}"
        elif missing:
            plan.impossible[tp] = f"node {_names(missing)} is unknown or not alive"
        elif before != after and _is_lost(before, alive):
            plan.impossible[tp] = _nothing_to_copy(before)
        elif len(after) < len(before) and not fewer:
            plan.impossible[tp] = (
                f"only {len(after)} of {len(before)} replicas would remain: add "
                "--allow-fewer-replicas to permit this"
            )
        elif len(after) < len(before) and _is_lost(after, alive):
            plan.impossible[tp] = "no other replica is alive"
        else:
            plan.add(tp, before, after)
    return plan


def _is_lost(replicas: Assignment, alive: Collection[int]) -> bool:
    """No replica lives: a move would not end."""
    return not any(node in alive for node in replicas)


def _nothing_to_copy(replicas: Assignment) -> str:
    return (
        "none of its replicas is alive, so there is no source to copy from: restart node "
        f"{_names(replicas)} first"
    )


def plan_swap(current: Mapping[TopicPartition, Assignment], leaving: int, joining: int) -> Plan:
    """Every replica on one node goes to one other, in its place."""
    plan = Plan()
    for tp, before in sorted(current.items()):
        if leaving not in before:
            continue
        if joining in before:
            plan.impossible[tp] = f"node {joining} already has a replica"
        else:
            plan.add(tp, before, tuple(joining if node == leaving else node for node in before))
    return plan


# -- emptying a node


def plan_drain(
    current: Mapping[TopicPartition, Assignment],
    racks: Mapping[int, str | None],
    leaving: int,
    *,
    fewer: bool = False,
) -> Plan:
    """Every replica on `leaving` goes to another node of `racks`: the nodes that live, and where
    each is.

    With `fewer`, a replica for which no node is left is given up, unless it is the last one that
    lives.
    """
    alive = set(racks)
    racks = {node: rack for node, rack in racks.items() if node != leaving}
    load = Counter(node for nodes in current.values() for node in nodes)
    stays = {
        tp: tuple(node for node in before if node != leaving)
        for tp, before in sorted(current.items())
        if leaving in before
    }
    placed: dict[TopicPartition, int] = {}
    plan = Plan()
    for tp in [tp for tp in stays if _is_lost(current[tp], alive)]:
        del stays[tp]
        plan.impossible[tp] = _nothing_to_copy(current[tp])
    for tp, others in stays.items():
        free = [node for node in racks if node not in others]
        if free:
            placed[tp] = min(free, key=lambda node: (_crowd(node, others, racks), load[node], node))
            load[placed[tp]] += 1
        elif not fewer:
            plan.impossible[tp] = (
                f"{len(others) + 1} replicas need {len(others) + 1} other nodes; alive: "
                f"{len(racks)}"
                if others
                else "no other node is alive"
            )
        elif not any(node in racks for node in others):
            plan.impossible[tp] = "no other replica is alive"
    _level(placed, stays, racks, load)
    _choose_leaders(plan, current, stays, placed, racks, leaving)
    return plan


def _crowd(node: int, others: Iterable[int], racks: Mapping[int, str | None]) -> int:
    """How many of the others are in the node's rack.

    Nodes without a rack are each in one of their own.
    """
    rack = racks[node]
    return 0 if rack is None else sum(racks.get(other) == rack for other in others)


def _level(
    placed: dict[TopicPartition, int],
    stays: Mapping[TopicPartition, Assignment],
    racks: Mapping[int, str | None],
    load: Counter[int],
) -> None:
    """Move single placed replicas until none can go to a node with two fewer.

    Ends: each step lowers the sum of squares.
    """
    restless = True
    while restless:
        restless = False
        for tp, node in placed.items():
            others = stays[tp]
            best = min(
                (
                    other
                    for other in racks
                    if other not in others
                    and _crowd(other, others, racks) <= _crowd(node, others, racks)
                ),
                key=lambda other: (load[other], other),
            )
            if load[best] + 2 <= load[node]:
                load[node] -= 1
                load[best] += 1
                placed[tp] = best
                restless = True


def _choose_leaders(
    plan: Plan,
    current: Mapping[TopicPartition, Assignment],
    stays: Mapping[TopicPartition, Assignment],
    placed: Mapping[TopicPartition, int],
    racks: Mapping[int, str | None],
    leaving: int,
) -> None:
    """The new replica takes the place of the old; where that was the preferred leader's,
    the replica with the fewest such places does.
    """
    leads = Counter(nodes[0] for nodes in current.values())
    for tp, others in stays.items():
        if tp in plan.impossible:
            continue
        before = current[tp]
        after = tuple(placed.get(tp, leaving) if node == leaving else node for node in before)
        after = tuple(node for node in after if node != leaving)
        if before[0] == leaving:
            living = [node for node in after if node in racks]
            first = min(living, key=lambda node: (leads[node], node not in others, node))
            leads[first] += 1
            after = (first, *(node for node in after if node != first))
        plan.add(tp, before, after)


def plan_leaders(
    current: Mapping[TopicPartition, Assignment],
    in_sync: Mapping[TopicPartition, Collection[int]],
    leading: Mapping[TopicPartition, int],
    leaving: int,
) -> Plan:
    """Another replica that is in sync becomes the preferred leader wherever `leaving` leads or is
    preferred; no data moves.

    After the moves, preferred leaders are to be elected.
    """
    plan = Plan()
    leads = Counter(nodes[0] for nodes in current.values() if nodes[0] != leaving)
    for tp, before in sorted(current.items()):
        if leaving not in before or (leaving not in (before[0], leading.get(tp))):
            continue
        able = [node for node in before if node != leaving and node in in_sync[tp]]
        if not able:
            plan.impossible[tp] = (
                "no other replica is in sync" if len(before) > 1 else "it has no other replica"
            )
            continue
        first = before[0] if before[0] in able else min(able, key=lambda node: (leads[node], node))
        leads[first] += before[0] != first
        plan.moves[tp] = Move(
            before, (first, *(node for node in before if node not in (first, leaving)), leaving)
        )
    return plan


def _names(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes))
