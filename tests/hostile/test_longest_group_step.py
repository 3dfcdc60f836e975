"""Steps of a coordinator that few bytes request, while members, offsets and transactions are as
large as the bounds permit: the upgrade of a classic group, its subscriptions, markers.

Times are CPU time of one decision with its replay. A run with a step above the bound is repeated:
each step counts with its shortest time.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest

from mqd.coordinator.group.classic_group import ClassicGroup
from mqd.coordinator.group.consumer_group import ConsumerGroup
from mqd.coordinator.group.records import OffsetCommit, OffsetCommitKey
from mqd.coordinator.shard import Producer
from mqd.coordinator.txn.operations import AddPartitions
from mqd.errors import ErrorCode, MqError
from mqd.limits import GROUP_MIGRATION_ELEMENTS_MAX, TRANSACTION_PARTITIONS_MAX
from mqd.protocol.consumer_protocol import Subscription, encode_subscription
from mqd.types import TopicPartition
from tests.coordinator.group.consumer_support import GROUP, Group
from tests.coordinator.group.offset_support import commit
from tests.coordinator.txn.transactions import Transactions
from tests.hostile.machine import TRIES, longest_step
from tests.hostile.test_longest_assignment import timed, timed_deadlines

SECONDS_MAX = 0.05
MARKER_SECONDS_MAX = 0.02
OFFSETS = 50_000
HEARTBEAT = {
    "group_id": GROUP,
    "member_id": "",
    "member_epoch": 0,
    "rebalance_timeout_ms": 60_000,
    "subscribed_topic_names": ["a"],
    "topic_partitions": [],
}
LEAVE = {"group_id": GROUP, "member_epoch": -1}

pytestmark = [pytest.mark.slow]


def check(what: str, run: Callable[[], list[float]], seconds_max: float = SECONDS_MAX) -> None:
    """`run` returns the times of some steps."""
    longest = longest_step(run, seconds_max)
    print(f"{what}: {longest * 1000:.0f} ms")
    assert longest < seconds_max


def metadata(first: int, names: int) -> bytes:
    return encode_subscription(Subscription(tuple(f"{first + n:06x}" for n in range(names))), 0)


def classic_group(subscriptions: list[bytes]) -> Group:
    """All members have joined a generation, and nobody has sent SyncGroup."""
    group = Group(group_initial_rebalance_delay_ms=0)
    assert commit(group.harness, (0, 1), topic="a", group_id=GROUP) == {0: 0}
    for one in subscriptions:
        request = {
            "group_id": GROUP,
            "member_id": "",
            "session_timeout_ms": 1_000_000,
            "rebalance_timeout_ms": 3_000_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": one}],
        }
        group.harness.ask("join_group", 3, request)
    group.later(1)
    assert group.harness.shard.state.by_id[GROUP].state_name() == "CompletingRebalance"
    return group


def heartbeat(group: Group, **more: Any) -> str:
    """The member id; the error code's name for a refusal."""
    try:
        answer = group.harness.call("consumer_group_heartbeat", 1, {**HEARTBEAT, **more})
    except MqError as error:
        return error.code.name
    return str(answer["member_id"])


@pytest.mark.parametrize(("members", "names"), [(190, 10_000), (2, 100_000), (190, 30)])
def test_an_upgrade_that_is_refused(members: int, names: int) -> None:
    """By the names of the members, of one member, and by the size of the group."""
    group = classic_group([metadata(0, names)] * members)
    if names == 30:
        group.options.own["group.consumer.max.size"] = members

    def run() -> list[float]:
        return [timed(lambda: refused.append(heartbeat(group, member_id="m")))]

    refused: list[str] = []
    check(f"refused upgrade of {members} members with {names} topics", run)
    expected = "GROUP_MAX_SIZE_REACHED" if names == 30 else "GROUP_ID_NOT_FOUND"
    assert set(refused) == {expected}
    assert isinstance(group.harness.shard.state.get(GROUP), ClassicGroup)


def test_the_largest_upgrade_and_downgrade() -> None:
    names = GROUP_MIGRATION_ELEMENTS_MAX // 100 - 26

    def run() -> list[float]:
        group = classic_group([metadata(100_000 * member, names) for member in range(100)])
        steps = [timed(lambda: heartbeat(group, member_id="m"))]
        steps += timed_deadlines(group, 5)
        assert isinstance(group.harness.shard.state.get(GROUP), ConsumerGroup)
        steps.append(timed(lambda: group.leave("m")))
        assert isinstance(group.harness.shard.state.get(GROUP), ClassicGroup)
        return steps

    check(f"upgrade and downgrade of 100 members with {names} topics", run)


def test_members_of_a_consumer_group_leave() -> None:
    """As many as one portion of LeaveGroup has."""

    def run() -> list[float]:
        group = Group()
        for number in range(10):
            names = [f"{number}-{index}" for index in range(10_000)]
            group.join(f"m{number}", names)
        rows = [{"member_id": f"m{number}"} for number in range(8)]
        return [
            timed(
                lambda: group.harness.call("leave_group", 5, {"group_id": GROUP, "members": rows})
            )
        ]

    check("8 members with 10,000 topics leave", run)


# -- subscriptions of a classic group


@cache
def many_rows(names: int) -> bytes:
    return b"".join(b"\0\7~~%05x" % number for number in range(names))


def many_names(member: int, names: int) -> bytes:
    """No two members have a name in common."""
    rows = many_rows(names).replace(b"~~", bytes((0x30 + member // 70, 0x30 + member % 70)))
    return struct.pack(">hi", 0, names) + rows + b"\xff" * 4


@pytest.mark.parametrize(("members", "names"), [(40, 100_000), (5, 9_900), (3_000, 10)])
def test_subscribed_topics_of_a_classic_group(members: int, names: int) -> None:
    """OffsetDelete, and the search for expired offsets."""
    request = {"group_id": GROUP, "topics": [{"name": "a", "partitions": [{"partition_index": 0}]}]}

    def run() -> list[float]:
        group = classic_group([many_names(member, names) for member in range(members)])
        allocated = sys.getallocatedblocks()
        deleted = [timed(partial(group.harness.ask, "offset_delete", 0, request))]
        assert sys.getallocatedblocks() < allocated + 1_000, "nothing that was read is kept"
        return deleted + timed_deadlines(group, 601)

    check(f"topics of {members} members with {names} topics", run)


# -- offsets of ended transactions


@pytest.mark.parametrize("committed", [True, False])
def test_the_end_of_a_transaction_with_many_offsets(committed: bool) -> None:
    def run() -> list[float]:
        group = Group({"a": OFFSETS})
        store = group.harness.shard.offsets.store
        for partition in range(OFFSETS):
            store.put(OffsetCommitKey(GROUP, "a", partition), OffsetCommit(5), 7)
        steps = [timed(lambda: group.harness.mark(Producer(7, 0), committed))]
        steps += timed_deadlines(group, 10)
        offsets = store.group(GROUP)
        assert not store.has_ended and (offsets is not None) == committed
        return steps

    check(f"the end of a transaction with {OFFSETS} offsets", run, MARKER_SECONDS_MAX)


# -- partitions of a transaction


@pytest.mark.parametrize("per_topic", [1_000, 1])
def test_one_more_partition_of_a_large_transaction(per_topic: int) -> None:
    transactions = Transactions()
    topics = TRANSACTION_PARTITIONS_MAX // (5 + per_topic) - 1
    producer = transactions.init()
    places = [TopicPartition(f"t{n}", p) for n in range(topics) for p in range(per_topic)]
    transactions.add(producer, *places)
    more = iter(range(TRIES))

    def run() -> list[float]:
        added = TopicPartition("t0", per_topic + next(more))
        op = AddPartitions("t", producer, (added,), 2)
        return [timed(lambda: transactions.ask_now(op))]

    check(f"one more partition of a transaction with {len(places)}", run)
    with pytest.raises(MqError) as refused:
        transactions.add(producer, *(TopicPartition(f"u{n}", 0) for n in range(2_000)))
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    transactions.add(producer, TopicPartition("__consumer_offsets", 3))
