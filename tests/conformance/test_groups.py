"""Consumer groups of stock clients: members join, leave, rejoin and die, and every record is
consumed once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from .conftest import Broker, known_everywhere
from .members import KINDS, SESSION_MS, SETTLE_S, Feeder, Group, leave_together, steady
from .wire import Wire, create_topic, until

PARTITIONS = 6
MEMBERS, MANY = 20, 100
STATIC = ("eager", "kafka-python", "aiokafka")
"""KIP-848 members of librdkafka leave permanently when they close."""
PATIENT_MS = 10_000
"""A session timeout that no busy machine exceeds."""


@pytest.fixture
def six(broker: Broker, wire: Wire, new_name: Callable[[], str]) -> str:
    """A topic of six partitions."""
    name = create_topic(wire, new_name(), partitions=PARTITIONS)
    known_everywhere(broker, name, PARTITIONS)
    return name


@pytest.fixture
def new_group(
    broker: Broker, six: str, new_name: Callable[[], str]
) -> Iterator[Callable[..., Group]]:
    """Creates groups of a kind of client that consume that topic."""
    groups: list[Group] = []

    def make(kind: str, session_ms: int = SESSION_MS) -> Group:
        groups.append(Group(kind, broker.address, new_name(), six, session_ms=session_ms))
        return groups[-1]

    yield make
    for group in groups:
        group.end()


@pytest.fixture
def feed(broker: Broker, six: str) -> Iterator[Callable[[], Feeder]]:
    """Starts to fill that topic."""
    feeders: list[Feeder] = []

    def make() -> Feeder:
        feeders.append(Feeder(broker.address, six, PARTITIONS))
        return feeders[-1]

    yield make
    for feeder in feeders:
        feeder.stop()


def described(broker: Broker, group: str) -> tuple[str, int]:
    """State of a group and its number of members, from an admin client."""
    # a separate variable: its futures do not keep it alive
    admin = AdminClient({"bootstrap.servers": broker.address})
    found = admin.describe_consumer_groups([group])[group].result(20)
    return found.state.name, len(found.members)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("kind", KINDS)
def test_every_record_is_consumed_once_while_members_change(
    broker: Broker, six: str, new_group: Callable[..., Group], feed: Callable[[], Feeder], kind: str
) -> None:
    group = new_group(kind)
    feeder = feed()
    first = group.join()
    group.wait_owned(PARTITIONS, first)
    second = group.join()
    group.wait_owned(PARTITIONS, first, second)
    third = group.join()
    group.wait_owned(PARTITIONS, first, second, third)
    third.hold()
    third.kill()
    group.wait_owned(PARTITIONS, first, second)
    second.leave()
    group.wait_owned(PARTITIONS, first)
    fourth = group.join()
    group.wait_owned(PARTITIONS, first, fourth)
    grown = PARTITIONS + 2
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_partitions([NewPartitions(six, grown)])[six].result(20)
    known_everywhere(broker, six, grown)
    feeder.partitions = grown
    group.wait_owned(grown, first, fourth)
    group.wait_consumed(feeder.finish())
    # each member may have detected the growth of the topic
    until(lambda: described(broker, group.group) == ("STABLE", 2), "the group is stable")
    leave_together((first, fourth))
    until(lambda: described(broker, group.group) == ("EMPTY", 0), "the group is empty")


@pytest.mark.parametrize("kind", ["cooperative", "consumer"])
def test_a_member_that_keeps_a_partition_never_revokes_it(
    six: str, new_group: Callable[..., Group], kind: str
) -> None:
    group = new_group(kind, PATIENT_MS)
    first = group.join()
    group.wait_owned(PARTITIONS, first)
    second = group.join()
    group.wait_owned(PARTITIONS, first, second)
    assert [len(rows) for rows in first.revoked] == [PARTITIONS // 2] and second.revoked == []
    kept = first.owned
    second.leave()
    group.wait_owned(PARTITIONS, first)
    assert len(first.revoked) == 1 and all(rows >= kept for rows in first.assignments)


@pytest.mark.parametrize("kind", STATIC)
def test_a_static_member_that_returns_in_time_causes_no_rebalance(
    six: str, new_group: Callable[..., Group], kind: str
) -> None:
    group = new_group(kind, PATIENT_MS)
    first, second = group.join("one"), group.join("two")
    group.wait_owned(PARTITIONS, first, second)
    steady(lambda: (len(first.assignments), len(second.assignments)), 1.0)
    owned, changes = second.owned, len(first.assignments)
    second.hold()
    second.leave()
    again = group.join("two")
    until(lambda: again.owned, "the member is back", SETTLE_S, details=lambda: again.failures)
    assert again.owned == owned
    assert len(first.assignments) == changes and group.owns(PARTITIONS, first, again)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("protocol", ["classic", "cooperative", "consumer"])
def test_twenty_members_share_a_hundred_partitions(
    broker: Broker, wire: Wire, new_name: Callable[[], str], protocol: str
) -> None:
    topic, group = create_topic(wire, new_name(), partitions=MANY), new_name()
    known_everywhere(broker, topic, MANY)
    assignor = "cooperative-sticky" if protocol == "cooperative" else "roundrobin"
    how = (
        {"group.protocol": "consumer"}
        if protocol == "consumer"
        else {
            "partition.assignment.strategy": assignor,
            "session.timeout.ms": PATIENT_MS,
            "heartbeat.interval.ms": 500,
        }
    )
    settings = {
        "bootstrap.servers": broker.address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    members = [confluent_kafka.Consumer(settings | how) for _ in range(MEMBERS)]

    def shares() -> list[set[int]]:
        found = []
        for member in members:
            message = member.poll(0)
            error = None if message is None else message.error()
            assert error is None or not error.fatal(), error
            found.append({row.partition for row in member.assignment()})
        return found

    def wait_for(count: int) -> None:
        def even() -> bool:
            found = shares()
            return all(len(rows) == MANY // count for rows in found) and set().union(*found) == set(
                range(MANY)
            )

        until(
            even,
            f"{count} members own {MANY // count} partitions each",
            60,
            details=lambda: [len(rows) for rows in shares()],
        )

    try:
        for member in members:
            member.subscribe([topic])
        wait_for(MEMBERS)
        until(
            lambda: len(shares()) == MEMBERS and described(broker, group) == ("STABLE", MEMBERS),
            "the group is stable",
            60,
        )
        for member in members[MEMBERS // 2 :]:
            member.close()
        del members[MEMBERS // 2 :]
        wait_for(MEMBERS // 2)
    finally:
        for member in members:
            member.close()


def test_a_group_changes_its_protocol_while_it_is_active(
    broker: Broker, six: str, new_group: Callable[..., Group], feed: Callable[[], Feeder]
) -> None:
    """A KIP-848 member joins a classic group, which changes its protocol while it is active; then
    the classic one leaves.
    """
    feeder = feed()
    group = new_group("eager")
    other = Group("consumer", broker.address, group.group, six)
    try:
        first = group.join()
        group.wait_owned(PARTITIONS, first)
        second = other.join()
        until(
            lambda: first.owned and second.owned and not first.owned & second.owned,
            "both own",
            SETTLE_S,
        )
        until(
            lambda: first.owned | second.owned == set(range(PARTITIONS)), "all is owned", SETTLE_S
        )
        first.hold()
        first.leave()
        other.wait_owned(PARTITIONS, second)
        produced = feeder.finish()
        until(
            lambda: len(group.done() + other.done()) >= len(produced), "all is consumed", SETTLE_S
        )
        done = group.done() + other.done()
        assert set(done) == set(produced) and max(done.values()) == 1
    finally:
        other.end()


def test_extra_members_own_nothing_until_they_are_needed(
    broker: Broker, wire: Wire, new_name: Callable[[], str]
) -> None:
    topic = create_topic(wire, new_name())
    group = Group("cooperative", broker.address, new_name(), topic)
    try:
        active = group.join()
        until(lambda: active.owned == {0}, "the first owns the partition", SETTLE_S)
        spare = group.join()
        until(lambda: described(broker, group.group) == ("STABLE", 2), "both are members", SETTLE_S)
        assert [bool(active.owned), bool(spare.owned)].count(True) == 1
        owner, other = (active, spare) if active.owned else (spare, active)
        owner.kill()
        began = time.monotonic()
        until(lambda: other.owned == {0}, "the spare takes over", SETTLE_S)
        assert time.monotonic() - began < SETTLE_S
    finally:
        group.end()


def test_a_group_is_listed_with_its_state_and_deleted_when_it_is_empty(
    broker: Broker, six: str, new_group: Callable[..., Group]
) -> None:
    group = new_group("consumer")
    member = group.join()
    group.wait_owned(PARTITIONS, member)
    admin = AdminClient({"bootstrap.servers": broker.address})

    def listed() -> dict[str, tuple[str, str]]:
        found = admin.list_consumer_groups().result(20)
        assert not found.errors
        return {row.group_id: (row.state.name, row.type.name) for row in found.valid}

    assert listed()[group.group] == ("STABLE", "CONSUMER")
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        admin.delete_consumer_groups([group.group])[group.group].result(20)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.NON_EMPTY_GROUP
    member.leave()
    until(lambda: listed()[group.group][0] == "EMPTY", "the group is empty")
    admin.delete_consumer_groups([group.group])[group.group].result(20)
    assert group.group not in listed()


def test_groups_are_independent_and_resume_at_their_offsets(
    new_group: Callable[..., Group], feed: Callable[[], Feeder]
) -> None:
    groups = [new_group(kind) for kind in ("eager", "kafka-python")]
    produced: list[tuple[int, int]] = []
    for _ in range(2):
        feeder = feed()
        for group in groups:
            group.wait_owned(PARTITIONS, group.join())
        produced += feeder.finish()
        for group in groups:
            group.wait_consumed(produced)
        leave_together(group.members[-1] for group in groups)
