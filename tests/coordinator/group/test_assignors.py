"""What assignors guarantee for any group: each partition has one subscribed owner, shares are fair,
few partitions move, replicas are near.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from time import process_time
from typing import NamedTuple
from uuid import UUID

from hypothesis import given, settings, strategies as st

from mqd.coordinator.group import assignment, assignors
from mqd.coordinator.group.assignment import Assignment, Partitions, Topic

TOPICS = [UUID(int=number) for number in range(1, 6)]
A, B, C = TOPICS[:3]
STEPS_AT_ONCE_MAX = 60_000
"""Steps of one chunk of work, for the small groups here."""


class Subscriber(NamedTuple):
    """As assignment.Subscriber, with the ids of topics."""

    topics: frozenset[UUID]
    held: Partitions
    rack: str | None = None
    instance_id: str | None = None


def assign(
    name: str, members: Mapping[str, Subscriber], topics: Mapping[UUID, Topic]
) -> dict[str, Assignment]:
    """The whole work of an assignor, with the ids of topics."""
    ids = sorted(topics)
    numbers = {topic_id: number for number, topic_id in enumerate(ids)}
    subscribers = {
        member_id: assignment.Subscriber(
            tuple(sorted(numbers[topic_id] for topic_id in member.topics)),
            {numbers[one]: held for one, held in member.held.items() if one in numbers},
            member.rack,
            member.instance_id,
        )
        for member_id, member in members.items()
    }
    work = assignors.ASSIGNORS[name](subscribers, [topics[topic_id] for topic_id in ids])
    try:
        while True:
            assert 0 <= next(work) <= STEPS_AT_ONCE_MAX
    except StopIteration as end:
        shares = end.value
    return {
        member_id: {ids[number]: partitions for number, partitions in share.items()}
        for member_id, share in shares.items()
    }


assign_uniform = partial(assign, "uniform")
assign_range = partial(assign, "range")
ASSIGNORS = {"uniform": assign_uniform, "range": assign_range}


def subscriber(
    *topics: UUID,
    held: Mapping[UUID, tuple[int, ...]] | None = None,
    rack: str | None = None,
    instance: str | None = None,
) -> Subscriber:
    return Subscriber(frozenset(topics), held or {}, rack, instance)


def sizes(assigned: Mapping[str, Assignment]) -> dict[str, int]:
    return {
        member_id: sum(len(partitions) for partitions in share.values())
        for member_id, share in assigned.items()
    }


def again(
    members: Mapping[str, Subscriber], assigned: Mapping[str, Assignment]
) -> dict[str, Subscriber]:
    return {
        member_id: member._replace(held=assigned[member_id])
        for member_id, member in members.items()
    }


def moved(before: Mapping[str, Assignment], after: Mapping[str, Assignment]) -> int:
    """Partitions that another member has now."""
    owners = {
        (topic, p): member_id
        for member_id, share in before.items()
        for topic, partitions in share.items()
        for p in partitions
    }
    return sum(
        owners.get((topic, p), member_id) != member_id
        for member_id, share in after.items()
        for topic, partitions in share.items()
        for p in partitions
    )


@st.composite
def groups(
    draw: st.DrawFn, *, alike: bool = False
) -> tuple[dict[str, Subscriber], dict[UUID, Topic]]:
    """Members with any subscriptions and any previous assignment, also one that contradicts itself
    or names deleted topics.
    """
    chance = Random(draw(st.integers(0, 2**32)))  # its random numbers cost a tenth of Hypothesis's
    topics = {}
    for topic_id in TOPICS[: draw(st.integers(0, len(TOPICS)))]:
        near = [frozenset(chance.choice(["", "x", "y", "xy"])) for _ in range(12)]
        topics[topic_id] = Topic(draw(st.integers(1, 12)), near.__getitem__)

    def subscription() -> frozenset[UUID]:
        return frozenset(topic_id for topic_id in topics if chance.random() < 0.7)

    same = subscription()
    members = {}
    for number in range(draw(st.integers(0, 7))):
        held = {
            topic_id: tuple(sorted(chance.sample(range(14), chance.randrange(5))))
            for topic_id in TOPICS
            if chance.random() < 0.4
        }
        instance = f"static-{9 - number}" if chance.random() < 0.3 else None
        members[f"m{number}"] = Subscriber(
            same if alike else subscription(), held, chance.choice([None, "x", "y"]), instance
        )
    return members, topics


@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
def test_every_subscribed_partition_has_one_subscribed_owner(
    group: tuple[dict[str, Subscriber], dict[UUID, Topic]], name: str
) -> None:
    members, topics = group
    assigned = ASSIGNORS[name](members, topics)
    assert assigned.keys() == members.keys()
    given_out = Counter(
        (topic, p)
        for share in assigned.values()
        for topic, partitions in share.items()
        for p in partitions
    )
    subscribed = {topic for member in members.values() for topic in member.topics}
    assert given_out == Counter(
        {(topic, p): 1 for topic in subscribed for p in range(topics[topic].partitions)}
    )
    for member_id, share in assigned.items():
        assert share.keys() <= members[member_id].topics
        assert all(
            partitions and list(partitions) == sorted(partitions) for partitions in share.values()
        )
        assert list(share) == sorted(share)


@given(groups(), st.sampled_from(sorted(ASSIGNORS)), st.integers(0, 2**32).map(Random))
def test_the_order_of_members_and_topics_does_not_matter(
    group: tuple[dict[str, Subscriber], dict[UUID, Topic]], name: str, chance: Random
) -> None:
    members, topics = group
    shuffled, topics_shuffled = list(members.items()), list(topics.items())
    chance.shuffle(shuffled)
    chance.shuffle(topics_shuffled)
    assert ASSIGNORS[name](members, topics) == ASSIGNORS[name](
        dict(shuffled), dict(topics_shuffled)
    )


@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
def test_an_assignment_stays_when_nothing_changes(
    group: tuple[dict[str, Subscriber], dict[UUID, Topic]], name: str
) -> None:
    members, topics = group
    assigned = ASSIGNORS[name](members, topics)
    assert ASSIGNORS[name](again(members, assigned), topics) == assigned


@given(groups(alike=True))
def test_uniform_gives_equal_shares_for_equal_subscriptions(
    group: tuple[dict[str, Subscriber], dict[UUID, Topic]],
) -> None:
    members, topics = group
    shares = sizes(assign_uniform(members, topics)).values()
    assert max(shares, default=0) - min(shares, default=0) <= 1


def fairest(members: Mapping[str, Subscriber], topics: Mapping[UUID, Topic]) -> list[int]:
    """The most equal sizes that subscriptions allow: each partition in turn goes to the least
    loaded member that a chain of moves reaches.
    """
    ids = sorted(members)
    load = dict.fromkeys(ids, 0)
    owned: dict[str, Counter[UUID]] = {member_id: Counter() for member_id in ids}
    for topic_id in sorted(topics):
        for _ in range(topics[topic_id].partitions):
            first = [member_id for member_id in ids if topic_id in members[member_id].topics]
            if not first:
                break
            came: dict[str, tuple[str | None, UUID]] = dict.fromkeys(first, (None, topic_id))
            wave = list(first)
            for giver in wave:
                for topic in +owned[giver]:
                    for taker in ids:
                        if topic in members[taker].topics and taker not in came:
                            came[taker] = giver, topic
                            wave.append(taker)
            end: str | None = min(came, key=lambda member_id: load[member_id])
            assert end is not None
            load[end] += 1
            while end is not None:
                giver_or_none, topic = came[end]
                owned[end][topic] += 1
                if giver_or_none is not None:
                    owned[giver_or_none][topic] -= 1
                end = giver_or_none
    return sorted(load.values())


@settings(max_examples=100)
@given(groups())
def test_uniform_is_as_fair_as_subscriptions_allow(
    group: tuple[dict[str, Subscriber], dict[UUID, Topic]],
) -> None:
    members, topics = group
    assert sorted(sizes(assign_uniform(members, topics)).values()) == fairest(members, topics)


@given(groups(alike=True), st.integers(0, 6))
def test_uniform_moves_no_more_than_fairness_requires(
    group: tuple[dict[str, Subscriber], dict[UUID, Topic]], leaving: int
) -> None:
    members, topics = group
    before = assign_uniform(members, topics)
    stay = again(members, before)
    stay.pop(f"m{leaving}", None)
    assert moved(before, assign_uniform(stay, topics)) <= sum(
        sizes({m: s for m, s in before.items() if m not in stay}).values()
    )
    if members:
        joined = again(members, before) | {"n": next(iter(members.values()))._replace(held={})}
        after = assign_uniform(joined, topics)
        assert moved(before, after) == sizes(after)["n"]


def test_uniform_moves_a_chain_where_no_single_move_helps() -> None:
    members = {
        "a": subscriber(A, held={A: (0, 1, 2)}),
        "b": subscriber(A, B, held={B: (0, 1)}),
        "c": subscriber(B, held={B: (2,)}),
    }
    assert sizes(assign_uniform(members, {A: Topic(3), B: Topic(3)})) == {"a": 2, "b": 2, "c": 2}


def in_rack(names: list[str]) -> Callable[[int], frozenset[str]]:
    return lambda partition: frozenset({names[partition]})


def test_a_thousand_members_with_different_topics_cost_milliseconds() -> None:
    """An assignment delays all other requests of the node."""
    topics = {UUID(int=number): Topic(50) for number in range(20)}
    ids = sorted(topics)
    members = {
        f"m{number:04}": Subscriber(frozenset(ids[number % 10 : number % 10 + 1 + number % 9]), {})
        for number in range(1_000)
    }
    began = process_time()
    for _ in range(3):
        assigned = assign_uniform(members, topics)
        members = {
            member_id: one._replace(held=assigned[member_id]) for member_id, one in members.items()
        }
    assert process_time() - began < 1.0


def test_the_effort_to_balance_different_subscriptions_is_bounded() -> None:
    """A large topic, many small ones, and members that each subscribe to different ones."""
    topics = {UUID(int=1): Topic(10_000)} | {UUID(int=2 + n): Topic(1) for n in range(3_000)}
    ids = sorted(topics)
    members: dict[str, Subscriber] = {}
    longest = 0.0
    for count in (50, 60, 100, 150):
        for number in range(len(members), count):
            wanted = ids[:1] + ids[1 + number % 7 :: 1 + number % 5]
            members[f"m{number}"] = Subscriber(frozenset(wanted), {})
        began = process_time()
        assigned = assign_uniform(members, topics)
        longest = max(longest, process_time() - began)
        assert sum(sizes(assigned).values()) == 13_000
        members = again(members, assigned)
    assert longest < 1.0


def test_uniform_puts_partitions_near_their_replicas() -> None:
    topics = {A: Topic(6, in_rack(["x", "y", "x", "y", "x", "y"]))}
    members = {"m1": subscriber(A, rack="y"), "m2": subscriber(A, rack="x")}
    assert assign_uniform(members, topics) == {"m1": {A: (1, 3, 5)}, "m2": {A: (0, 2, 4)}}
    assert assign_uniform(members | {"m0": subscriber(A, B, rack="x")}, topics | {B: Topic(1)})[
        "m1"
    ] == {A: (1, 3, 5)}


def test_uniform_gives_away_far_partitions_first() -> None:
    topics = {A: Topic(4, in_rack(["x", "y", "x", "y"]))}
    members = {"m1": subscriber(A, rack="x", held={A: (0, 1, 2, 3)}), "m2": subscriber(A, rack="y")}
    assert assign_uniform(members, topics) == {"m1": {A: (0, 2)}, "m2": {A: (1, 3)}}


def test_range_gives_the_same_run_of_copartitioned_topics() -> None:
    members = {"m1": subscriber(A, B), "m2": subscriber(A, B), "m3": subscriber(A, B, C)}
    assert assign_range(members, {A: Topic(7), B: Topic(7), C: Topic(2)}) == {
        "m1": {A: (0, 1, 2), B: (0, 1, 2)},
        "m2": {A: (3, 4), B: (3, 4)},
        "m3": {A: (5, 6), B: (5, 6), C: (0, 1)},
    }


@given(groups())
def test_range_gives_runs_of_equal_length(
    group: tuple[dict[str, Subscriber], dict[UUID, Topic]],
) -> None:
    members, topics = group
    assigned = assign_range(members, topics)
    for topic_id in topics:
        runs = [
            assigned[member_id].get(topic_id, ())
            for member_id in members
            if topic_id in members[member_id].topics
        ]
        assert all(run == tuple(range(run[0], run[0] + len(run))) for run in runs if run)
        assert max(map(len, runs), default=0) - min(map(len, runs), default=0) <= 1


def test_range_keeps_the_order_of_members() -> None:
    members = {"z": subscriber(A), "y": subscriber(A)}
    topics = {A: Topic(4)}
    joined = again(members, assign_range(members, topics)) | {"a": subscriber(A)}
    assert assign_range(members, topics) == {"y": {A: (0, 1)}, "z": {A: (2, 3)}}
    assert assign_range(joined, topics) == {"y": {A: (0, 1)}, "z": {A: (2,)}, "a": {A: (3,)}}


def test_range_orders_static_members_by_instance() -> None:
    members = {
        "b": subscriber(A, instance="i1"),
        "a": subscriber(A, instance="i2"),
        "0": subscriber(A),
    }
    assert assign_range(members, {A: Topic(3)}) == {"b": {A: (0,)}, "a": {A: (1,)}, "0": {A: (2,)}}


def test_racks_are_looked_up_a_few_times_a_partition() -> None:
    """A member gives half of a large topic to another: the search for the next partition to give
    does not start again each time.
    """
    large, small = UUID(int=1), UUID(int=2)
    looked_up = 0

    def racks(partition: int) -> frozenset[str]:
        nonlocal looked_up
        looked_up += 1
        return frozenset("ab"[partition % 2])

    members = {
        "a": Subscriber(frozenset([large]), {large: tuple(range(1000))}, "a"),
        "b": Subscriber(frozenset([large, small]), {}, "b"),
    }
    found = assign_uniform(members, {large: Topic(1000, racks), small: Topic(1)})
    assert (
        abs(len(found["a"][large]) - 500) <= 1
        and sum(partition % 2 for partition in found["a"][large]) <= 1
    )
    assert looked_up < 10 * 1000
