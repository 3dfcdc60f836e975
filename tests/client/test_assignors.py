from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings, strategies as st

from mqd.client.assignors import ASSIGNORS, Assignment, Member
from mqd.protocol.consumer_protocol import Subscription
from mqd.types import TopicPartition


def member(
    name: str,
    topics: str = "a",
    owned: tuple[TopicPartition, ...] = (),
    generation: int = -1,
    instance: str | None = None,
) -> Member:
    return Member(name, Subscription(tuple(topics), owned, generation), instance)


def shown(made: Assignment) -> dict[str, str]:
    return {
        name: " ".join(f"{tp.topic}{tp.partition}" for tp in sorted(given))
        for name, given in made.items()
    }


def test_range_assigns_runs_by_topic_and_the_rest_to_the_first() -> None:
    made = ASSIGNORS["range"].assign(
        [member("y", "ab"), member("x", "ab"), member("z", "b")], {"a": 3, "b": 4}
    )
    assert shown(made) == {"x": "a0 a1 b0 b1", "y": "a2 b2", "z": "b3"}


def test_static_members_come_first_in_the_order_of_their_names() -> None:
    made = ASSIGNORS["range"].assign(
        [member("x"), member("z", instance="s1"), member("y", instance="s0")], {"a": 3}
    )
    assert shown(made) == {"y": "a0", "z": "a1", "x": "a2"}


def test_round_robin_assigns_all_topics_and_skips_non_subscribers() -> None:
    made = ASSIGNORS["roundrobin"].assign(
        [member("x", "a"), member("y", "ab"), member("z", "abc")], {"a": 1, "b": 2, "c": 3}
    )
    assert shown(made) == {"x": "a0", "y": "b0", "z": "b1 c0 c1 c2"}


def test_a_moving_partition_of_a_cooperative_group_waits_for_a_round() -> None:
    owned = tuple(TopicPartition("a", index) for index in range(4))
    assign = ASSIGNORS["cooperative-sticky"].assign
    first = assign([member("x", owned=owned, generation=1), member("y")], {"a": 4})
    assert shown(first) == {"x": "a0 a1", "y": ""}
    second = assign(
        [member("x", owned=tuple(first["x"]), generation=2), member("y", generation=2)], {"a": 4}
    )
    assert shown(second) == {"x": "a0 a1", "y": "a2 a3"}


def test_a_partition_that_two_members_claim_stays_with_the_later_generation() -> None:
    a0 = (TopicPartition("a", 0),)
    assign = ASSIGNORS["cooperative-sticky"].assign
    made = assign(
        [member("x", owned=a0, generation=4), member("y", owned=a0, generation=3)], {"a": 2}
    )
    assert shown(made) == {"x": "", "y": "a1"}


def test_the_generation_of_old_clients_is_in_their_user_data() -> None:
    cooperative = ASSIGNORS["cooperative-sticky"]
    old = Member(
        "x", Subscription(("a",), (TopicPartition("a", 0),), -1, None, cooperative.user_data(5))
    )
    made = cooperative.assign(
        [old, member("y", owned=(TopicPartition("a", 0),), generation=4)], {"a": 1}
    )
    assert shown(made) == {"x": "", "y": ""}  # x has it, and y must revoke it first
    assert ASSIGNORS["range"].user_data(5) is None


groups = st.lists(st.sets(st.sampled_from("abc"), min_size=1), min_size=1, max_size=7)
topics = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))


@pytest.mark.parametrize("name", list(ASSIGNORS))
@given(wants=groups, counts=topics)
@settings(max_examples=150, deadline=None)
def test_every_subscribed_partition_has_one_subscribed_owner(
    name: str, wants: list[set[str]], counts: Mapping[str, int]
) -> None:
    members = [member(f"m{index}", "".join(sorted(each))) for index, each in enumerate(wants)]
    made = ASSIGNORS[name].assign(members, counts)
    given_out = [tp for each in made.values() for tp in each]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == {
        TopicPartition(topic, index)
        for topic in counts
        for index in range(counts[topic])
        if topic in set().union(*wants)
    }
    for each in members:
        assert {tp.topic for tp in made[each.member_id]} <= set(each.subscription.topics)
    assert ASSIGNORS[name].assign(list(reversed(members)), counts) == made


@given(
    steps=st.lists(st.tuples(st.sampled_from("uvwxyz"), st.booleans()), min_size=1, max_size=8),
    count=st.integers(0, 13),
)
@settings(max_examples=100, deadline=None)
def test_cooperative_members_converge_balanced_with_few_moves(
    steps: list[tuple[str, bool]], count: int
) -> None:
    """Members join and leave; after each change rounds continue until no member revokes
    anything.
    """
    assign = ASSIGNORS["cooperative-sticky"].assign
    owned: dict[str, tuple[TopicPartition, ...]] = {"m": ()}
    generation = 0
    for name, joins in steps:
        if joins:
            owned.setdefault(name, ())
        else:
            owned.pop(name, None)
        before = {each: set(kept) for each, kept in owned.items()}
        for _ in range(3):
            generation += 1
            made = assign(
                [member(each, "a", kept, generation - 1) for each, kept in owned.items()],
                {"a": count},
            )
            taken = [tp for each, kept in owned.items() for tp in kept if tp not in made[each]]
            readers = [tp for each in owned for tp in set(made[each]) | set(owned[each])]
            assert len(readers) == len(set(readers)), "two members own one partition"
            owned = {each: tuple(made[each]) for each in owned}
            if not taken:
                break
        else:
            raise AssertionError("it does not come to rest")
        sizes = [len(kept) for kept in owned.values()]
        assert sum(sizes) == count and max(sizes) - min(sizes) <= 1
        for each, kept in owned.items():
            assert len(before[each] & set(kept)) >= min(len(before[each]), count // len(owned))
