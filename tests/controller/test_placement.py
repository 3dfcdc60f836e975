"""Balance and racks, for any number of brokers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from mqd.controller.placement import (
    Load,
    check_replication_factor,
    default_replication_factor,
    place,
)
from mqd.errors import ErrorCode, MqError
from mqd.types import NodeId


@given(
    brokers=st.integers(1, 12),
    factor=st.integers(1, 5),
    partitions=st.integers(1, 60),
    start=st.integers(0, 2**128 - 1),
)
def test_leaders_are_even_and_replicas_differ(
    brokers: int, factor: int, partitions: int, start: int
) -> None:
    factor = min(factor, brokers)
    lists = place({NodeId(n): None for n in range(1, brokers + 1)}, partitions, factor, start)
    assert len(lists) == partitions
    assert all(len(set(replicas)) == factor for replicas in lists)
    leaders = Counter(replicas[0] for replicas in lists)
    counts = [leaders[NodeId(n)] for n in range(1, brokers + 1)]
    assert max(counts) - min(counts) <= 1


@given(
    racks=st.integers(2, 4),
    each=st.integers(1, 3),
    factor=st.integers(1, 4),
    start=st.integers(0, 1000),
)
def test_replicas_are_in_as_many_racks_as_they_can(
    racks: int, each: int, factor: int, start: int
) -> None:
    where: dict[NodeId, str | None] = {NodeId(n): f"r{n % racks}" for n in range(racks * each)}
    factor = min(factor, racks * each)
    for replicas in place(where, 30, factor, start):
        assert len({where[node] for node in replicas}) == min(factor, racks)


def test_followers_of_one_leader_are_spread() -> None:
    lists = place({NodeId(n): None for n in range(5)}, 40, 2, 0)
    assert len({replicas[1] for replicas in lists if replicas[0] == 0}) == 4


@pytest.mark.parametrize("factor", [0, -2, 2, 32767])
def test_impossible_replication_factors_are_refused(factor: int) -> None:
    with pytest.raises(MqError) as refusal:
        check_replication_factor(factor, 1)
    assert refusal.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_the_default_factor_is_capped_by_the_number_of_brokers() -> None:
    assert default_replication_factor(3, 1) == 1
    assert default_replication_factor(3, 5) == 3
    assert default_replication_factor(1, 0) == 1


def test_small_topics_fill_up_the_empty_brokers() -> None:
    brokers: dict[NodeId, str | None] = {NodeId(n): None for n in range(1, 5)}
    load = {NodeId(1): Load(5, 9), NodeId(2): Load(4, 9), NodeId(3): Load(4, 8)}
    assert place(brokers, 1, 3, load=load) == [(4, 3, 2)]


def test_fenced_brokers_are_used_last_and_never_preferred() -> None:
    brokers: dict[NodeId, str | None] = {NodeId(n): None for n in range(1, 5)}
    fenced = {NodeId(2), NodeId(4)}
    assert all(set(replicas) == {1, 3} for replicas in place(brokers, 8, 2, fenced=fenced))
    lists = place(brokers, 8, 3, fenced=fenced)
    assert all(set(replicas[:2]) == {1, 3} and len(set(replicas)) == 3 for replicas in lists)
    assert Counter(replicas[2] for replicas in lists) == {2: 4, 4: 4}
