"""Plans of moves, drains and preferred leaders."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from mqctl.planning import (
    Assignment,
    Move,
    parse_json,
    parse_partition,
    parse_target,
    plan_drain,
    plan_leaders,
    plan_swap,
    plan_targets,
    to_json,
)
from mqd.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

Clusters = tuple[dict[int, str | None], dict[TopicPartition, Assignment], int]


@st.composite
def clusters(draw: st.DrawFn) -> Clusters:
    """Racks of the live brokers, replicas (some on dead brokers), and the broker
    that is to be emptied.
    """
    nodes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=8, unique=True))
    kinds = draw(st.sampled_from(((None,), ("x", "y"), ("x", "y", "z"), (None, "x", "y"))))
    # its random numbers cost a tenth of Hypothesis's
    partitions, chance = draw(st.integers(0, 25)), Random(draw(st.integers(0, 2**32)))
    racks = {node: chance.choice(kinds) for node in nodes}
    holders = [*nodes, 13]
    assignments = {
        TopicPartition(*named): tuple(
            chance.sample(holders, chance.randint(1, min(4, len(holders))))
        )
        for named in chance.sample(
            [(topic, index) for topic in "abc" for index in range(10)], partitions
        )
    }
    return racks, assignments, chance.choice(holders)


def crowd(nodes: Assignment, racks: dict[int, str | None]) -> int:
    """Pairs of replicas in one rack."""
    counts = Counter(rack for node in nodes if (rack := racks.get(node)) is not None)
    return sum(count * (count - 1) // 2 for count in counts.values())


@settings(max_examples=300, deadline=None)
@given(clusters(), st.booleans())
def test_a_drain_moves_all_replicas_of_the_node_and_no_others(
    cluster: Clusters, fewer: bool
) -> None:
    racks, current, leaving = cluster
    plan = plan_drain(current, racks, leaving, fewer=fewer)
    assert plan.moves.keys() | plan.impossible.keys() == {
        tp for tp, nodes in current.items() if leaving in nodes
    }
    assert not plan.moves.keys() & plan.impossible.keys()
    for tp, (before, after) in plan.moves.items():
        assert before == current[tp] and leaving not in after
        assert len(set(after)) == len(after)
        assert set(before) - {leaving} <= set(after)
        new = set(after) - set(before)
        assert new <= set(racks)
        free = set(racks) - set(before) - {leaving}
        assert len(new) == (1 if free else 0)
        if before[0] != leaving and new:
            assert [node for node in after if node not in new] == [
                node for node in before if node != leaving
            ]
            assert after[0] == before[0]
    for tp in plan.impossible:
        free = set(racks) - set(current[tp]) - {leaving}
        assert not free or not set(racks) & set(current[tp]), (
            "there is room, and a source to copy from"
        )
        assert not fewer or not (set(current[tp]) - {leaving}) & set(racks)


@settings(max_examples=300, deadline=None)
@given(clusters())
def test_a_new_replica_goes_to_a_new_rack_and_balances_the_nodes(cluster: Clusters) -> None:
    racks, current, leaving = cluster
    plan = plan_drain(current, racks, leaving)
    final = {
        tp: plan.moves[tp].after if tp in plan.moves else nodes for tp, nodes in current.items()
    }
    load = Counter(node for nodes in final.values() for node in nodes)
    for move in plan.moves.values():
        (new,) = set(move.after) - set(move.before)
        others = tuple(node for node in move.after if node != new)
        for other in set(racks) - set(move.after) - {leaving}:
            assert crowd((*others, new), racks) <= crowd((*others, other), racks)
            if crowd((*others, other), racks) == crowd((*others, new), racks):
                assert load[new] < load[other] + 2


@settings(max_examples=100, deadline=None)
@given(clusters())
def test_the_same_cluster_gives_the_same_plan(cluster: Clusters) -> None:
    racks, current, leaving = cluster
    backwards = dict(reversed(current.items()))
    assert plan_drain(current, racks, leaving) == plan_drain(
        backwards, dict(reversed(racks.items())), leaving
    )


def test_a_partition_without_a_live_replica_is_not_moved() -> None:
    """There is no source to copy from: such a reassignment would not end."""
    lost, kept = TopicPartition("a", 0), TopicPartition("a", 1)
    current = {lost: (3,), kept: (3, 1)}
    for plan in (
        plan_drain(current, {1: None, 2: None}, 3),
        plan_targets(current, {lost: (2,), kept: (2, 1)}, [1, 2]),
    ):
        assert list(plan.moves) == [kept] and "restart broker 3 first" in plan.impossible[lost]
    assert plan_drain(current, {1: None, 2: None, 3: None}, 3).impossible == {}, (
        "it leaves a live broker"
    )


def test_preferred_leaders_of_a_drained_node_are_distributed() -> None:
    current = {TopicPartition("a", index): (1, 2, 3) for index in range(9)}
    plan = plan_drain(current, {1: None, 2: None, 3: None, 4: None}, 1)
    assert Counter(move.after[0] for move in plan.moves.values()) == {2: 3, 3: 3, 4: 3}


def test_racks_come_before_balance() -> None:
    current = {A0: (1, 2), **{TopicPartition("b", index): (3,) for index in range(5)}}
    assert plan_drain(current, {1: "x", 2: "y", 3: "x", 4: "y"}, 1).moves[A0] == Move(
        (1, 2), (2, 3)
    )


def test_without_another_node_a_replica_stays_or_is_dropped() -> None:
    current = {A0: (1, 2, 3), B0: (3,)}
    racks = {1: None, 2: None, 3: None}
    plan = plan_drain(current, racks, 3)
    assert plan.impossible == {A0: "3 replicas need 3 other brokers; alive: 2"} and plan.moves[
        B0
    ] == Move((3,), (1,))
    assert plan_drain(current, racks, 3, fewer=True).moves[A0] == Move((1, 2, 3), (1, 2))
    assert plan_drain({A0: (3, 9)}, {3: None}, 3, fewer=True).impossible == {
        A0: "no other replica is alive"
    }
    assert plan_drain({A0: (3,)}, {3: None}, 3).impossible == {A0: "no other broker is alive"}


@settings(max_examples=200, deadline=None)
@given(clusters(), st.integers(0, 2**32).map(Random))
def test_leaders_go_to_replicas_in_sync_and_no_replica_moves(
    cluster: Clusters, random: Random
) -> None:
    _racks, current, leaving = cluster
    choose = random.choice
    in_sync = {tp: {choose(nodes), choose(nodes)} for tp, nodes in current.items()}
    leading = {tp: choose([-1, *sorted(in_sync[tp])]) for tp in current}
    plan = plan_leaders(current, in_sync, leading, leaving)
    wanted = {tp for tp, nodes in current.items() if leaving in (nodes[0], leading[tp])}
    assert plan.moves.keys() | plan.impossible.keys() == {
        tp for tp in wanted if leaving in current[tp]
    }
    for tp, (before, after) in plan.moves.items():
        assert sorted(before) == sorted(after) and after[-1] == leaving
        assert after[0] in in_sync[tp] and after[0] != leaving
    for tp in plan.impossible:
        assert in_sync[tp] <= {leaving}


def test_a_swap_keeps_the_order() -> None:
    plan = plan_swap({A0: (1, 2, 3), A1: (4, 1), B0: (2, 3)}, 1, 4)
    assert plan.moves == {A0: Move((1, 2, 3), (4, 2, 3))} and plan.impossible == {
        A1: "broker 4 already has a replica"
    }
    assert plan.moves[A0].adding == (4,) and plan.moves[A0].removing == (1,)


def test_targets_are_checked() -> None:
    current: dict[TopicPartition, Assignment] = {A0: (1, 2), A1: (1, 9), B0: (2, 1)}
    targets: dict[TopicPartition, Assignment] = {
        A0: (1, 2),
        A1: (9, 1),
        B0: (3, 3),
        TopicPartition("c", 0): (1,),
    }
    plan = plan_targets(current, targets, {1, 2, 3})
    # the order changes; no replica is new, so that 9 need not be live
    assert plan.moves == {A1: Move((1, 9), (9, 1))}
    assert plan.impossible == {
        B0: "duplicate broker in 3, 3",
        TopicPartition("c", 0): "the partition does not exist",
    }
    assert plan_targets(current, {A0: (1, 7), A1: ()}, {1, 2}).impossible == {
        A0: "broker 7 is unknown or not alive",
        A1: "a partition needs at least one replica",
    }


def test_replicas_are_dropped_only_with_the_option() -> None:
    current: dict[TopicPartition, Assignment] = {A0: (1, 2, 3), A1: (1, 2, 9), B0: (1,)}
    targets: dict[TopicPartition, Assignment] = {A0: (4, 2), A1: (9,), B0: (1, 2)}
    plan = plan_targets(current, targets, {1, 2, 3, 4})
    assert list(plan.moves) == [B0]
    assert plan.impossible == {
        A0: "only 2 of 3 replicas would remain: add --allow-fewer-replicas to permit this",
        A1: "only 1 of 3 replicas would remain: add --allow-fewer-replicas to permit this",
    }
    plan = plan_targets(current, targets, {1, 2, 3, 4}, fewer=True)
    assert list(plan.moves) == [A0, B0] and plan.impossible == {A1: "no other replica is alive"}


def test_moves_and_partitions_are_parsed() -> None:
    assert parse_target("a.b-c:10=3, 1") == (TopicPartition("a.b-c", 10), (3, 1))
    assert parse_partition("a.b") == ("a.b", None) and parse_partition("a:3") == ("a", 3)
    for bad in ("a=1", "a:0", "a:0=", "a:x=1", ":0=1", "a:0=1,x"):
        with pytest.raises(ValueError, match="invalid move"):
            parse_target(bad)
    for bad in (":1", "a:", "a:x"):
        with pytest.raises(ValueError, match="invalid partition"):
            parse_partition(bad)


def test_the_file_of_kafka_reassign_partitions() -> None:
    text = (
        '{"version":1,"partitions":[{"topic":"a","partition":0,"replicas":[1,2],"log_dirs'
        '":["any","any"]}]}'
    )
    assert parse_json(text) == {A0: (1, 2)}
    assert to_json({A1: (3,), A0: (1, 2)})["partitions"] == [
        {"topic": "a", "partition": 0, "replicas": [1, 2]},
        {"topic": "a", "partition": 1, "replicas": [3]},
    ]
    twice = (
        '{"partitions":[{"topic":"a","partition":0,"replicas":[1]},{"topic":"a","partitio'
        'n":0,"replicas":[2]}]}'
    )
    for bad in (
        "{",
        "[]",
        "{}",
        '{"partitions":[{"topic":"a","partition":0}]}',
        twice,
        '{"version":2,"partitions":[]}',
    ):
        with pytest.raises(ValueError, match=r"not JSON|expected \{|lacks|duplicate"):
            parse_json(bad)
