"""Configs of delay topics are refused if they lead nowhere, or back."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from mqd.config import NodeConfig
from mqd.controller.configs import (
    AlterConfigs,
    Change,
    Operation,
    ResourceChanges,
    ResourceType,
    decide_alter_configs,
)
from mqd.controller.create_topics import NewTopic
from mqd.controller.delay_topics import Relays, check_dead_letter_access, check_delay_configs
from mqd.controller.delta import Delta
from mqd.controller.image import GROUP, TOPIC, MetadataImage
from mqd.controller.records import CreateTopic, SetConfigs
from mqd.controller.replay import replay
from mqd.errors import ErrorCode, MqError
from mqd.resource_configs import GROUP_DEAD_LETTERS
from tests.controller.cluster import Replica, create_topics, new_topic, with_brokers

CONFIG = NodeConfig.load()
ACCESS = "mqd.producer.access"
TARGET, DLQ, BACKOFF = "mqd.delay.target", "mqd.dlq.topic", "mqd.retry.backoff"


def image() -> MetadataImage:
    """`a` relays to `b`, and `b` to `c`."""
    found = MetadataImage()
    for number, (name, configs) in enumerate(
        (
            ("c", ()),
            ("b", ((TARGET, "c"),)),
            ("a", ((TARGET, "b"),)),
            ("__consumer_offsets", ()),
            ("one", ((ACCESS, "exclusive"),)),
            ("dead", ()),
        )
    ):
        topic = CreateTopic(name, UUID(int=number + 1), (), configs)
        replay(found, topic, number + 1, Delta(number + 1))
    replay(found, SetConfigs(GROUP, "g", ((GROUP_DEAD_LETTERS, "dead"),)), 9, Delta(9))
    return found


def test_a_chain_of_delay_topics_is_allowed() -> None:
    check_delay_configs(Relays(image()), "new", None, {TARGET: "a", DLQ: "c", BACKOFF: "1s,1m"})
    check_delay_configs(Relays(image()), "c", {}, {"retention.ms": "1"})


@pytest.mark.parametrize(
    ("topic", "present", "after", "problem"),
    [
        ("c", {}, {TARGET: "a"}, "relays them back"),
        ("b", {TARGET: "c"}, {TARGET: "c", DLQ: "a"}, "relays them back"),
        ("c", {}, {DLQ: "a"}, "relays them back"),
        ("c", {}, {TARGET: "c"}, "name another"),
        ("new", None, {TARGET: "c", DLQ: "c"}, "are the same topic"),
        ("c", {}, {TARGET: "__consumer_offsets"}, "name another"),
        ("c", {}, {TARGET: "nowhere"}, "Create it first"),
        ("c", {}, {TARGET: "", BACKOFF: "1s"}, "cannot change"),
        ("b", {TARGET: "c", BACKOFF: "1s"}, {TARGET: "c"}, "cannot change"),
        ("new", None, {BACKOFF: "1s"}, "needs mqd.delay.target"),
        ("new", None, {TARGET: "c", BACKOFF: "soon"}, "is not a time"),
        ("new", None, {TARGET: "c", "cleanup.policy": "compact"}, "cannot be compacted"),
        ("b", {TARGET: "c"}, {TARGET: "c", "cleanup.policy": "compact"}, "cannot be compacted"),
        ("new", None, {TARGET: "one"}, "one producer"),
        ("new", None, {DLQ: "one"}, "one producer"),
        ("c", {}, {ACCESS: "wait"}, "'b' relays records to it"),
        ("dead", {}, {ACCESS: "exclusive"}, "dead letters of group 'g'"),
        ("c", {}, {DLQ: "c"}, "its own dead letters"),
        ("new", None, {DLQ: "new"}, "its own dead letters"),
        ("new", None, {"mqd.delay.replace": "true"}, "needs mqd.delay.target"),
    ],
)
def test_refused(
    topic: str, present: dict[str, str] | None, after: dict[str, str], problem: str
) -> None:
    with pytest.raises(MqError, match=problem) as raised:
        check_delay_configs(Relays(image()), topic, present, after)
    assert raised.value.code is ErrorCode.INVALID_CONFIG


def test_dead_letters_of_a_group_need_a_shared_topic() -> None:
    check_dead_letter_access(Relays(image()), "dead")
    check_dead_letter_access(Relays(image()), "not created yet")
    with pytest.raises(MqError, match="one producer"):
        check_dead_letter_access(Relays(image()), "one")


def test_a_chain_has_at_most_100_topics() -> None:
    """The search for a cycle ends there."""
    found = MetadataImage()
    for number in range(103):
        configs = ((TARGET, f"t{number - 1}"),) if number else ()
        topic = CreateTopic(f"t{number}", UUID(int=number + 1), (), configs)
        replay(found, topic, number + 1, Delta(number + 1))
    check_delay_configs(Relays(found), "new", None, {TARGET: "t99"})
    for name, present, target in (("new", None, "t100"), ("t0", {}, "t102")):
        with pytest.raises(MqError, match="more than 100 topics"):
            check_delay_configs(Relays(found), name, present, {TARGET: target})


Configs = dict[str, str | None]


def resource(
    name: str, configs: Mapping[str, str | None], kind: int = ResourceType.TOPIC
) -> ResourceChanges:
    """A value of None deletes the config."""
    return ResourceChanges(
        kind,
        name,
        tuple(
            Change(key, Operation.DELETE if value is None else Operation.SET, value)
            for key, value in configs.items()
        ),
    )


def alter(replica: Replica, *resources: ResourceChanges, **rest: bool) -> list[str]:
    """The problems of the resources; "" for an accepted one."""
    rows = replica.run(decide_alter_configs, AlterConfigs(resources, CONFIG, **rest))
    return [row.error_message or "" for row in rows]


def create(replica: Replica, *topics: NewTopic) -> list[str]:
    return [row.error_message or "" for row in create_topics(replica, *topics)]


def topic_with(name: str, **configs: str) -> NewTopic:
    return new_topic(name, configs=tuple(configs.items()))


def cluster_of(*names: str) -> Replica:
    replica = with_brokers(1)
    create(replica, *(new_topic(name) for name in names))
    return replica


def is_refused(problem: str, results: list[str]) -> bool:
    """Whether the last result is this problem, and there is no other."""
    return not any(results[:-1]) and problem in results[-1]


@pytest.mark.parametrize("incremental", [True, False])
@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ((("a", {TARGET: "b"}), ("b", {TARGET: "a"})), "relays them back"),
        ((("a", {DLQ: "b"}), ("b", {DLQ: "a"})), "relays them back"),
        ((("a", {TARGET: "b"}), ("b", {DLQ: "c"}), ("c", {TARGET: "a"})), "relays them back"),
        ((("c", {TARGET: "b"}), ("b", {TARGET: "a"}), ("a", {TARGET: "b"})), "relays them back"),
        (
            (("c", {DLQ: "b"}), ("d", {DLQ: "c"}), ("b", {DLQ: "a"}), ("a", {DLQ: "c"})),
            "relays them back",
        ),
        ((("a", {ACCESS: "wait"}), ("b", {TARGET: "a"})), "one producer"),
        ((("a", {ACCESS: "wait"}), ("b", {DLQ: "a"})), "one producer"),
        ((("b", {TARGET: "a"}), ("a", {ACCESS: "exclusive"})), "'b' relays records to it"),
    ],
)
def test_the_resources_of_a_request_are_checked_against_each_other(
    rows: tuple[tuple[str, Configs], ...], problem: str, incremental: bool
) -> None:
    """Otherwise one request makes a cycle, in which records circle without end."""
    replica = cluster_of(*"abcd")
    resources = [resource(*row) for row in rows]
    for validate_only in (True, False):
        results = alter(replica, *resources, incremental=incremental, validate_only=validate_only)
        assert is_refused(problem, results), results


def test_the_topics_of_a_request_are_checked_against_each_other() -> None:
    for topics, problem in (
        ((topic_with("a", **{DLQ: "b"}), topic_with("b", **{DLQ: "a"})), "relays them back"),
        (
            (new_topic("c"), topic_with("a", **{DLQ: "b"}), topic_with("b", **{TARGET: "a"})),
            "relays them back",
        ),
        ((topic_with("a", **{ACCESS: "wait"}), topic_with("b", **{DLQ: "a"})), "one producer"),
        ((topic_with("a", **{ACCESS: "wait"}), topic_with("b", **{TARGET: "a"})), "one producer"),
        ((topic_with("b", **{DLQ: "a"}), topic_with("a", **{ACCESS: "wait"})), "'b' relays"),
    ):
        results = create(with_brokers(1), *topics)
        assert is_refused(problem, results), results


def test_a_target_may_be_created_by_the_same_request() -> None:
    orders, delay = new_topic("orders"), topic_with("orders.delay", **{TARGET: "orders"})
    assert create(with_brokers(1), orders, delay) == ["", ""]
    assert "Create it first" in create(with_brokers(1), delay, orders)[0]


def test_a_refused_resource_does_not_count_for_those_after_it() -> None:
    replica = cluster_of("a", "b")
    wrong = resource("a", {TARGET: "b", "retention.ms": "soon"})
    assert alter(replica, wrong, resource("b", {TARGET: "a"}))[1] == ""


def test_a_name_that_a_request_removes_is_free_for_the_rest_of_it() -> None:
    replica = cluster_of("a", "b")
    assert alter(replica, resource("a", {TARGET: "b"})) == [""]
    assert alter(replica, resource("a", {TARGET: None}), resource("b", {ACCESS: "exclusive"})) == [
        "",
        "",
    ]
    assert alter(replica, resource("b", {ACCESS: None}), resource("a", {TARGET: "b"})) == ["", ""]
    assert alter(replica, resource("a", {TARGET: None}), resource("b", {TARGET: "a"})) == ["", ""]


@pytest.mark.parametrize("name", ["a", " a "])
def test_dead_letters_of_groups_are_checked_against_the_rest_of_the_request(name: str) -> None:
    """White space around the name is ignored, as where it is used."""
    group = resource("g", {GROUP_DEAD_LETTERS: name}, ResourceType.GROUP)
    exclusive = resource("a", {ACCESS: "exclusive"})
    for first, second, problem in (
        (group, exclusive, "dead letters of group 'g'"),
        (exclusive, group, "one producer"),
    ):
        assert is_refused(problem, alter(cluster_of("a"), first, second))
        replica = cluster_of("a")
        assert is_refused(problem, [*alter(replica, first), *alter(replica, second)])


def test_a_request_makes_no_chain_of_more_than_100_topics() -> None:
    names = [f"t{number}" for number in range(102)]
    chain = [resource(name, {TARGET: to}) for to, name in pairwise(names)]
    assert is_refused("more than 100 topics", alter(cluster_of(*names), *chain))
    new = [topic_with(name, **{TARGET: to}) for to, name in pairwise(names)]
    assert is_refused("more than 100 topics", create(with_brokers(1), new_topic("t0"), *new))


@pytest.mark.parametrize("seed", range(40))
def test_a_request_has_the_results_of_one_request_for_each_of_its_resources(seed: int) -> None:
    dice = random.Random(seed)
    names = "abcde"
    together, alone = cluster_of(*names), cluster_of(*names)

    def configs() -> Configs:
        found: Configs = {}
        for key, values in (
            (TARGET, (None, *names)),
            (DLQ, (None, *names, "f", "g")),
            (ACCESS, (None, None, "exclusive")),
        ):
            if dice.random() < 0.5:
                found[key] = dice.choice(values)
        return found

    for _ in range(6):
        resources = [resource(name, configs()) for name in dice.sample(names, 4)]
        dead_letters = {GROUP_DEAD_LETTERS: dice.choice(names)}
        resources.append(resource(dice.choice("gh"), dead_letters, ResourceType.GROUP))
        dice.shuffle(resources)
        rest = {"incremental": dice.random() < 0.8}
        if not rest["incremental"]:  # a legacy change has no deletions
            resources = [
                resource._replace(changes=tuple(c for c in resource.changes if c.value is not None))
                for resource in resources
            ]
        expected = [alter(alone, one, **rest)[0] for one in resources]
        assert alter(together, *resources, **rest) == expected
    new = [
        topic_with(name, **{key: value for key, value in configs().items() if value is not None})
        for name in "fgh"
    ]
    assert create(together, *new) == [create(alone, one)[0] for one in new]
    assert together.image.configs == alone.image.configs


class Counted(dict[Any, Any]):
    """Counts walks through all keys."""

    walks = 0

    def __iter__(self) -> Iterator[Any]:
        self.walks += 1
        return super().__iter__()

    def keys(self) -> Any:
        self.walks += 1
        return super().keys()

    def items(self) -> Any:
        self.walks += 1
        return super().items()


def test_a_request_walks_once_through_the_configs() -> None:
    """Not once for each exclusive topic: that blocks other clients of the controller."""
    replica = cluster_of(*"abcdef")
    counted = replica.image.configs = Counted(replica.image.configs)
    assert not any(create(replica, *(topic_with(name, **{ACCESS: "wait"}) for name in "uvwxyz")))
    assert counted.walks == 1
    assert not any(alter(replica, *(resource(name, {ACCESS: "wait"}) for name in "abcdef")))
    assert counted.walks == 2


def test_a_request_follows_the_chain_of_a_target_once() -> None:
    """Until one of its topics is altered."""
    relays = Relays(image())
    chain = relays.graph.reached("a")
    relays.take(SetConfigs(GROUP, "g", ((GROUP_DEAD_LETTERS, "c"),)))
    relays.take(CreateTopic("new", UUID(int=9), (), ((TARGET, "a"),)))
    assert relays.graph.reached("a") is chain
    relays.take(SetConfigs(TOPIC, "c", ((DLQ, "dead"),)))
    assert chain == {"a", "b", "c"} and relays.graph.reached("a") == {*chain, "dead"}
