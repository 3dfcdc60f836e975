"""mqctl's commands about groups and transactions: the same for mqd and for Apache Kafka, except for
information that only mqd returns.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.ran import Ran

from .classic_members import Members
from .clients import TIMEOUT_S
from .conftest import Broker
from .test_wire_groups import REBALANCE_IN_PROGRESS
from .wire import until

ROOT = Path(__file__).parents[2]
SESSION = "consumer.session.timeout.ms"


Mqctl = Callable[..., Ran]


@pytest.fixture
def mqctl(broker: Broker) -> Mqctl:
    def run(*arguments: str) -> Ran:
        command = [sys.executable, "-m", "mqctl", "-b", broker.address, "-o", "json", *arguments]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    return run


def delayed_rebalance(members: Members, **more: Any) -> tuple[str, Callable[[], Any]]:
    """A group of one member that does not rejoin when another joins. Returns the member, and the
    response to the other.
    """
    one, two = members.connect(), members.connect()
    patient: dict[str, Any] = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000}
    member = members.alone(one, **patient, **more)
    waiting = members.join(two, 3, **patient)
    instance = {"group_instance_id": more["instance"]} if "instance" in more else {}
    until(
        lambda: members.heartbeat(member, 1, **instance) == REBALANCE_IN_PROGRESS,
        "the rebalance has begun",
    )
    return member, lambda: two.answer(waiting)


def test_a_member_that_delays_a_rebalance_is_removed(mqctl: Mqctl, members: Members) -> None:
    member, other = delayed_rebalance(members)
    (described,) = mqctl("group", "describe", members.group).data
    assert described["state"] == "PreparingRebalance" and len(described["members"]) == 2
    ran = mqctl(
        "group", "remove-member", members.group, "--member", "nobody", "--member", member, "-y"
    )
    assert ran.code == 3 and ran.data == [
        {"member": "nobody", "removed": False},
        {"member": member, "removed": True},
    ]
    assert "'nobody'" in ran.err and "not in the group" in ran.err
    assert len(other().members) == 1


def test_a_static_member_that_delays_a_rebalance_is_removed(mqctl: Mqctl, members: Members) -> None:
    _, other = delayed_rebalance(members, instance="A")
    assert mqctl("group", "remove-member", members.group, "--instance", "A", "-y").code == 0
    assert len(other().members) == 1
    assert mqctl("group", "remove-member", members.group, "--instance", "A", "-y").code == 1


@pytest.mark.mqd_only  # Kafka's protocol has no field for it
def test_a_rebalance_reports_the_members_that_it_waits_for(mqctl: Mqctl, members: Members) -> None:
    member, other = delayed_rebalance(members)
    (described,) = mqctl("group", "describe", members.group).data
    assert described["rebalancing_since"] and [
        each["member"] for each in described["members"] if each["awaited"]
    ] == [member]
    assert members.leave((member, None)) == [0]
    other()


def test_the_configuration_of_a_group(mqctl: Mqctl, new_name: Callable[[], str]) -> None:
    group = new_name()

    def values(*more: str) -> dict[str, str]:
        return {
            row["name"]: row["value"] for row in mqctl("group", "config", "get", group, *more).data
        }

    default = values()[SESSION]
    assert values("--changed") == {}
    assert mqctl("group", "config", "set", group, f"{SESSION}=4321", "--dry-run").code == 0
    assert mqctl("group", "config", "set", group, f"{SESSION}=4321").code == 0
    until(lambda: values("--changed") == {SESSION: "4321"}, "every node knows the new value")
    for wrong in (f"{SESSION}=1", f"{SESSION}=long", "no.such.key=1"):
        assert mqctl("group", "config", "set", group, wrong).code == 1, wrong
    assert mqctl("group", "config", "unset", group, SESSION).code == 0
    until(
        lambda: values()[SESSION] == default and not values("--changed"),
        "every node knows that it is gone",
    )


def test_groups_are_deleted_by_pattern(
    mqctl: Mqctl, topic: str, new_name: Callable[[], str]
) -> None:
    stem = new_name()
    for number in range(3):
        assert (
            mqctl("group", "seek", f"{stem}-{number}", topic, "--to", "end", "--execute").code == 0
        )
    ran = mqctl("group", "delete", f"{stem}-*")
    assert ran.code == 2 and f"{stem}-0, {stem}-1, {stem}-2" in ran.err
    ran = mqctl("group", "delete", f"{stem}-?", "-y")
    assert ran.code == 0 and ran.data == [
        {"group": f"{stem}-{number}", "deleted": True} for number in range(3)
    ]
    assert mqctl("group", "list", f"{stem}*").data == []


def test_transactions_that_are_open_hang_or_do_not_exist(
    mqctl: Mqctl, broker: Broker, topic: str, new_name: Callable[[], str]
) -> None:
    idle, busy, typo = new_name(), new_name(), new_name()
    for name in (idle, busy):
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.address, "transactional.id": name}
        )
        producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"x")
    producer.flush(TIMEOUT_S)

    def listed(*more: str) -> list[str]:
        return [
            row["transactional_id"]
            for row in mqctl("txn", "list", *more).data
            if row["transactional_id"] in (idle, busy, typo)
        ]

    assert sorted(listed()) == sorted([idle, busy])
    assert until(lambda: listed("--longer-than", "1ms"), "it is old enough") == [busy]
    ran = mqctl("txn", "find-hanging", "--topic", topic, "--older-than", "1ms")
    assert (ran.code, ran.data, ran.err) == (0, [], "no hanging transactions\n")
    assert mqctl("txn", "abort", f"{topic}:0", "--start-offset", "0", "-y").code == 1, (
        "it has a coordinator"
    )
    ran = mqctl("txn", "fence", typo, "-y")
    assert ran.code == 1 and "does not exist." in ran.err and typo not in listed()
    assert mqctl("txn", "fence", busy, "-y").code == 0
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(TIMEOUT_S)
