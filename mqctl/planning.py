"""Plans moves of replicas: to given brokers, off a broker, or only of preferred leaders. Pure.

A plan lists for each partition its replicas before and after, the preferred leader first. It moves
only replicas that must move. Impossible moves are listed with the reason.

A drained replica goes to a rack without a replica of its partition, if there is one; there, to the
broker with the fewest replicas. The result is balanced. No placed replica could move to a broker
with at least two fewer replicas and an equal or better spread over racks.
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
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def removing(self) -> Assignment:
        return tuple(broker for broker in self.before if broker not in self.after)


@dataclass(slots=True)
class MovePlan:
    """The moves, and the reasons of the impossible ones."""

    moves: dict[TopicPartition, Move] = field(default_factory=dict)
    impossible: dict[TopicPartition, str] = field(default_factory=dict)

    def add(self, tp: TopicPartition, before: Assignment, after: Assignment) -> None:
        """Add a move, unless it changes nothing."""
        if before != after:
            self.moves[tp] = Move(before, after)


# -- explicit moves


def parse_target(text: str) -> tuple[TopicPartition, Assignment]:
    """`topic:partition=1,2,3`. Raises ValueError."""
    place, equals, brokers = text.partition("=")
    topic, colon, partition = place.rpartition(":")
    numbers = brokers.split(",")
    if (
        not equals
        or not colon
        or not topic
        or not partition.isdecimal()
        or not all(each.strip().isdecimal() for each in numbers)
    ):
        raise ValueError(
            f"invalid move {text!r}: expected TOPIC:PARTITION=BROKER,BROKER,.., for example "
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
    """The moves in a file for kafka-reassign-partitions. Raises ValueError if it is invalid."""
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
        is_partition = (
            isinstance(row, dict)
            and isinstance(row.get("topic"), str)
            and _is_number(row.get("partition"))
        )
        replicas = row.get("replicas") if is_partition else None
        if not isinstance(replicas, list) or not all(map(_is_number, replicas)):
            raise ValueError(
                f"{json.dumps(row)} lacks a topic, a partition, or replicas as a list of broker ids"
            )
        tp = TopicPartition(row["topic"], row["partition"])
        if tp in targets:
            raise ValueError(f"duplicate partition {tp}")
        targets[tp] = tuple(replicas)
    return targets


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def to_json(assignments: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    """Assignments in the format of kafka-reassign-partitions, which parse_json reads."""
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "replicas": list(brokers)}
        for tp, brokers in sorted(assignments.items())
    ]
    return {"version": 1, "partitions": rows}


def plan_targets(
    current: Mapping[TopicPartition, Assignment],
    targets: Mapping[TopicPartition, Assignment],
    alive: Collection[int],
    *,
    fewer: bool = False,
) -> MovePlan:
    """The moves to these replicas. New replicas must be on live brokers: other moves would not end.

    With `fewer`, a target may have fewer replicas than the partition, but at least one live one.
    """
    plan = MovePlan()
    for tp, after in sorted(targets.items()):
        before = current.get(tp)
        missing = [
            broker for broker in after if broker not in alive and broker not in (before or ())
        ]
        if before is None:
            plan.impossible[tp] = "the partition does not exist"
        elif not after:
            plan.impossible[tp] = "a partition needs at least one replica"
        elif len(set(after)) < len(after):
            plan.impossible[tp] = f"duplicate broker in {_names(after)}"
        elif missing:
            plan.impossible[tp] = f"broker {_names(missing)} is unknown or not alive"
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
    """Whether no replica is on a live broker: a move would not end."""
    return not any(broker in alive for broker in replicas)


def _nothing_to_copy(replicas: Assignment) -> str:
    return (
        "none of its replicas is alive, so there is no source to copy from: restart broker "
        f"{_names(replicas)} first"
    )


def plan_swap(current: Mapping[TopicPartition, Assignment], leaving: int, joining: int) -> MovePlan:
    """Move every replica from one broker to another, at the same place of the replica list."""
    plan = MovePlan()
    for tp, before in sorted(current.items()):
        if leaving not in before:
            continue
        if joining in before:
            plan.impossible[tp] = f"broker {joining} already has a replica"
        else:
            plan.add(
                tp, before, tuple(joining if broker == leaving else broker for broker in before)
            )
    return plan


# -- draining a broker


def plan_drain(
    current: Mapping[TopicPartition, Assignment],
    racks: Mapping[int, str | None],
    leaving: int,
    *,
    fewer: bool = False,
) -> MovePlan:
    """Move every replica on `leaving` to another live broker. `racks` has the live brokers and
    their racks.

    With `fewer`, a replica that no other broker can take is dropped, unless it is the last live
    one.
    """
    alive = set(racks)
    racks = {broker: rack for broker, rack in racks.items() if broker != leaving}
    load = Counter(broker for brokers in current.values() for broker in brokers)
    stays = {
        tp: tuple(broker for broker in before if broker != leaving)
        for tp, before in sorted(current.items())
        if leaving in before
    }
    placed: dict[TopicPartition, int] = {}
    plan = MovePlan()
    for tp in [tp for tp in stays if _is_lost(current[tp], alive)]:
        del stays[tp]
        plan.impossible[tp] = _nothing_to_copy(current[tp])
    for tp, others in stays.items():
        free = [broker for broker in racks if broker not in others]
        if free:
            placed[tp] = min(
                free,
                key=lambda broker: (_replicas_in_rack(broker, others, racks), load[broker], broker),
            )
            load[placed[tp]] += 1
        elif not fewer:
            plan.impossible[tp] = (
                f"{len(others) + 1} replicas need {len(others) + 1} other brokers; alive: "
                f"{len(racks)}"
                if others
                else "no other broker is alive"
            )
        elif not any(broker in racks for broker in others):
            plan.impossible[tp] = "no other replica is alive"
    _balance(placed, stays, racks, load)
    _add_moves(plan, current, stays, placed, racks, leaving)
    return plan


def _replicas_in_rack(broker: int, others: Iterable[int], racks: Mapping[int, str | None]) -> int:
    """How many of the other replicas are in the broker's rack; 0 for a broker without a rack."""
    rack = racks[broker]
    return 0 if rack is None else sum(racks.get(other) == rack for other in others)


def _balance(
    placed: dict[TopicPartition, int],
    stays: Mapping[TopicPartition, Assignment],
    racks: Mapping[int, str | None],
    load: Counter[int],
) -> None:
    """Balance: move placed replicas while one can go to a broker with at least two fewer.

    This ends, because each step lowers the sum of the squared loads.
    """
    changed = True
    while changed:
        changed = False
        for tp, broker in placed.items():
            others = stays[tp]
            best = min(
                (
                    other
                    for other in racks
                    if other not in others
                    and _replicas_in_rack(other, others, racks)
                    <= _replicas_in_rack(broker, others, racks)
                ),
                key=lambda other: (load[other], other),
            )
            if load[best] + 2 <= load[broker]:
                load[broker] -= 1
                load[best] += 1
                placed[tp] = best
                changed = True


def _add_moves(
    plan: MovePlan,
    current: Mapping[TopicPartition, Assignment],
    stays: Mapping[TopicPartition, Assignment],
    placed: Mapping[TopicPartition, int],
    racks: Mapping[int, str | None],
    leaving: int,
) -> None:
    """Add a move for each partition: the new replica takes the place of the old one.

    If that place is the preferred leader's, the live replica whose broker is the preferred leader
    of the fewest partitions takes it.
    """
    leads = Counter(brokers[0] for brokers in current.values())
    for tp, others in stays.items():
        if tp in plan.impossible:
            continue
        before = current[tp]
        after = tuple(placed.get(tp, leaving) if broker == leaving else broker for broker in before)
        after = tuple(broker for broker in after if broker != leaving)
        if before[0] == leaving:
            living = [broker for broker in after if broker in racks]
            first = min(living, key=lambda broker: (leads[broker], broker not in others, broker))
            leads[first] += 1
            after = (first, *(broker for broker in after if broker != first))
        plan.add(tp, before, after)


def plan_leaders(
    current: Mapping[TopicPartition, Assignment],
    in_sync: Mapping[TopicPartition, Collection[int]],
    leading: Mapping[TopicPartition, int],
    leaving: int,
) -> MovePlan:
    """Make another in-sync replica the preferred leader of each partition that `leaving` leads or
    should lead; `leaving` becomes the last replica. No data moves.

    The caller must elect preferred leaders after the moves.
    """
    plan = MovePlan()
    leads = Counter(brokers[0] for brokers in current.values() if brokers[0] != leaving)
    for tp, before in sorted(current.items()):
        if leaving not in before or (leaving not in (before[0], leading.get(tp))):
            continue
        candidates = [broker for broker in before if broker != leaving and broker in in_sync[tp]]
        if not candidates:
            plan.impossible[tp] = (
                "no other replica is in sync" if len(before) > 1 else "it has no other replica"
            )
            continue
        first = (
            before[0]
            if before[0] in candidates
            else min(candidates, key=lambda broker: (leads[broker], broker))
        )
        leads[first] += before[0] != first
        plan.moves[tp] = Move(
            before,
            (first, *(broker for broker in before if broker not in (first, leaving)), leaving),
        )
    return plan


def _names(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers))
