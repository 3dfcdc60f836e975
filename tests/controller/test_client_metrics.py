"""Subscriptions of client metrics (KIP-714) in the metadata: answers, bounds, versions."""

from __future__ import annotations

import pytest

from mqd.config import NodeConfig
from mqd.controller.configs import (
    AlterConfigs,
    Change,
    ResourceAltered,
    ResourceChanges,
    decide_alter_configs,
)
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import CLIENT_METRICS
from mqd.controller.records import SetFeature
from mqd.controller.size import recount, recount_groups
from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    CLIENT_METRICS_MATCH_BYTES_MAX,
    CLIENT_METRICS_NAME_BYTES_MAX,
    CLIENT_METRICS_SUBSCRIPTIONS_MAX,
    CONFIG_RESOURCES_MAX,
    MIB,
)
from mqd.raft import versions
from tests.controller.client_metrics import CHANGES, DELETE, NO_NAME, SET, VALUES, Answer
from tests.controller.cluster import Replica, with_brokers

CONFIG = NodeConfig.load()
KIND = 16
FULL = ErrorCode.POLICY_VIOLATION


def of(name: str, *changes: tuple[str, int, str | None]) -> ResourceChanges:
    return ResourceChanges(KIND, name, tuple(Change(*change) for change in changes))


def alter(
    replica: Replica,
    *resources: ResourceChanges,
    incremental: bool = True,
    options: DecisionOptions | None = None,
) -> list[Answer]:
    rows: list[ResourceAltered] = replica.run(
        decide_alter_configs,
        AlterConfigs(resources, CONFIG, incremental),
        options or DecisionOptions(),
    )
    image = replica.image
    assert (image.size, image.groups_size) == (recount(image), recount_groups(image))
    return [(int(row.error_code), row.error_message) for row in rows]


@pytest.mark.parametrize(("key", "value", "answer"), VALUES)
def test_values(key: str, value: str, answer: Answer) -> None:
    for incremental in (True, False):
        replica = with_brokers(1)
        assert alter(replica, of("s", (key, SET, value)), incremental=incremental) == [answer]
        assert replica.image.client_metrics_configs("s") == ({} if answer[0] else {key: value})


@pytest.mark.parametrize(("changes", "answer"), CHANGES)
def test_changes(changes: tuple[tuple[str, int, str | None], ...], answer: Answer) -> None:
    assert alter(with_brokers(1), of("s", *changes)) == [answer]


def test_a_subscription_exists_while_it_has_a_key() -> None:
    replica = with_brokers(1)
    interval, metrics = ("interval.ms", SET, "500"), ("metrics", SET, "a")
    assert alter(replica, of("", interval)) == [NO_NAME]
    alter(replica, of("s", interval, metrics))
    alter(replica, of("s", interval), incremental=False)
    assert replica.image.configs == {(CLIENT_METRICS, "s"): {"interval.ms": "500"}}
    alter(replica, of("s", ("interval.ms", DELETE, None)))
    assert not replica.image.configs
    assert not replica.image.groups_size


def test_number_and_names_are_bounded() -> None:
    replica = with_brokers(1)
    interval = ("interval.ms", SET, "500")
    longest = "n" * CLIENT_METRICS_NAME_BYTES_MAX
    ((code, _),) = alter(replica, of(longest + "n", interval))
    assert code == ErrorCode.INVALID_REQUEST
    assert alter(replica, of(longest, interval)) == [(0, None)]
    codes = []
    for start in range(0, CLIENT_METRICS_SUBSCRIPTIONS_MAX, CONFIG_RESOURCES_MAX):
        names = range(start, min(start + CONFIG_RESOURCES_MAX, CLIENT_METRICS_SUBSCRIPTIONS_MAX))
        codes += [code for code, _ in alter(replica, *(of(f"s{n}", interval) for n in names))]
    assert codes.count(FULL) == 1, "the longest name is one of them"
    assert codes[-1] == FULL
    assert alter(replica, of("s0", ("interval.ms", SET, "600"))) == [(0, None)], "it exists"
    alter(replica, of("s0", ("interval.ms", DELETE, None)))
    assert alter(replica, of("another", interval)) == [(0, None)]


def test_subscriptions_cannot_fill_the_metadata() -> None:
    replica = with_brokers(1)
    options = DecisionOptions(image_bytes_max=MIB)
    answers = []
    for n in range(50):
        metrics = ("metrics", SET, "m" * 16_000)
        answers += alter(replica, of(f"s{n}", metrics), options=options)
    assert FULL in [code for code, _ in answers]
    assert replica.image.groups_size <= MIB / 4, "topics still have room"


def test_expressions_of_one_request_are_bounded() -> None:
    replica = with_brokers(1)
    value = "client_id=" + "a" * 16_000
    many = [of(f"s{n}", ("match", SET, value)) for n in range(3)]
    assert 3 * len(value) > CLIENT_METRICS_MATCH_BYTES_MAX >= 2 * len(value)
    with pytest.raises(MqError) as error:
        alter(replica, *many)
    assert error.value.code is FULL
    assert alter(replica, *many[:2]) == [(0, None)] * 2


def test_releases_before_never_read_one() -> None:
    replica = with_brokers(1)
    replica.commit((SetFeature(versions.FEATURE, 2),))
    ((code, message),) = alter(replica, of("s", ("interval.ms", SET, "500")))
    assert code == ErrorCode.UNSUPPORTED_VERSION
    assert message is not None
    assert "mqctl feature upgrade" in message
    assert not replica.image.configs
