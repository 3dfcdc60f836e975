"""The memory of a coordinator has a limit: growth beyond it is refused, by kind, and a log of any
size is loaded.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from mqd.coordinator.account import Account
from mqd.coordinator.group.offset_store import OffsetStore
from mqd.coordinator.group.record_codec import encode
from mqd.coordinator.group.records import (
    ClassicMember,
    ConsumerGroupMetadata,
    ConsumerGroupMetadataKey,
    CurrentMemberAssignment,
    CurrentMemberAssignmentKey,
    GroupMetadata,
    GroupMetadataKey,
    MemberMetadata,
    MemberMetadataKey,
    OffsetCommit,
    OffsetCommitKey,
    OwnedPartitions,
    RegularExpression,
    RegularExpressionKey,
    TargetAssignmentMember,
    TargetAssignmentMemberKey,
    TopicPartitions,
)
from mqd.coordinator.group.shard import GroupShard
from mqd.coordinator.shard import NO_PRODUCER, CoordinatorRecord, Moment, Producer
from mqd.coordinator.txn import records as txn_records
from mqd.coordinator.txn.operations import AddPartitions, InitializeProducer
from mqd.coordinator.txn.shard import TransactionShard
from mqd.coordinator.txn.store import weight
from mqd.coordinator.txn.transaction import ONGOING, PREPARE_COMMIT, Transaction, TransactionState
from mqd.errors import ErrorCode, MqError
from mqd.limits import KIB, MIB
from mqd.types import TopicPartition
from tests.coordinator.group.support import Options, Topics
from tests.coordinator.harness import Harness
from tests.coordinator.txn.transactions import Options as TransactionOptions

FULL = ErrorCode.COORDINATOR_NOT_AVAILABLE


class Groups(Harness[GroupShard]):
    """A shard whose share of the memory a test sets."""

    def __init__(self, share: int, topics: dict[str, int] | None = None) -> None:
        self.share = share
        self.topics = Topics(topics or {"t": 1_000})
        ids = count(1)
        super().__init__(
            lambda: GroupShard(
                self.topics, Options(), lambda: f"id-{next(ids)}", share=lambda: self.share
            )
        )

    @property
    def used(self) -> int:
        return self.shard.account.usage().used

    def commit(
        self, group_id: str, *partitions: int, producer: int | None = None, metadata: str = ""
    ) -> list[ErrorCode]:
        rows = [
            {"partition_index": one, "committed_offset": 5, "committed_metadata": metadata}
            for one in partitions or (0,)
        ]
        request: dict[str, Any] = {
            "group_id": group_id,
            "topics": [{"name": "t", "partitions": rows}],
        }
        if producer is None:
            answer = self.call("offset_commit", 8, request)
        else:
            answer = self.call(
                "txn_offset_commit",
                3,
                {"transactional_id": "x", "producer_id": producer, "producer_epoch": 0, **request},
            )
        return [ErrorCode(row["error_code"]) for row in answer["topics"][0]["partitions"]]

    def recounted(self) -> int:
        """The account of a shard that has read the same log."""
        fresh = GroupShard(self.topics, Options(), lambda: "")
        for record, producer in self.log:
            if isinstance(record, CoordinatorRecord):
                fresh.replay(record, producer)
            else:
                fresh.replay_end(producer, record)
        return fresh._exact_bytes() + fresh._count_bytes()


def test_a_full_shard_refuses_new_groups_and_accepts_commits_of_old_ones() -> None:
    groups = Groups(256 * KIB)
    codes = [groups.commit(f"group-{number}")[0] for number in range(500)]
    made = codes.index(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    assert 50 < made < 200 and set(codes[made:]) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert groups.used <= groups.share and groups.recounted() == groups.used
    assert groups.commit("group-0") == [ErrorCode.NONE]
    assert len(groups.shard.groups) == made
    groups.fail_over()
    assert len(groups.shard.groups) == made
    assert groups.commit("group-1") == [ErrorCode.NONE]
    assert groups.commit("another") == [ErrorCode.INVALID_COMMIT_OFFSET_SIZE]


def test_deletions_make_room() -> None:
    groups = Groups(64 * KIB)
    empty = groups.used
    while groups.commit(f"group-{len(groups.shard.groups)}") == [ErrorCode.NONE]:
        pass
    made = len(groups.shard.groups)
    for number in range(made):
        groups.call("delete_groups", 2, {"groups_names": [f"group-{number}"]})
        assert groups.recounted() == groups.used
    assert not groups.shard.groups and groups.used == empty == 0
    assert groups.commit("group-0") == [ErrorCode.NONE]


def test_offsets_and_their_metadata_count() -> None:
    groups = Groups(100 * KIB)
    codes = groups.commit("g", *range(1_000))
    assert codes[0] is ErrorCode.NONE and codes[-1] is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    stored = codes.count(ErrorCode.NONE)
    assert 200 < stored < 320
    assert groups.commit("g", 0, metadata="m" * 4_000) == [ErrorCode.INVALID_COMMIT_OFFSET_SIZE]
    assert groups.used <= groups.share and groups.recounted() == groups.used


def test_pending_offsets_of_transactions_count_and_may_be_retried() -> None:
    groups = Groups(100 * KIB)
    codes = groups.commit("g", *range(1_000), producer=7)
    waiting = codes.count(ErrorCode.NONE)
    assert 50 < waiting < 120 and set(codes[waiting:]) == {FULL}, (
        "with another code the producer would be unusable"
    )
    assert groups.recounted() == groups.used
    groups.mark(Producer(7, 0), True)
    assert groups.recounted() == groups.used
    groups.advance(1)  # the offsets of the ended transaction take less memory
    assert groups.commit("g", *range(waiting, waiting + 10), producer=7) == [ErrorCode.NONE] * 10


def test_an_oversized_log_is_loaded_and_only_growth_is_refused() -> None:
    groups = Groups(MIB)
    for number in range(100):
        groups.commit(f"group-{number}", 0, 1)
    groups.share = 10_000
    groups.fail_over()
    assert len(groups.shard.groups) == 100
    assert groups.commit("group-99", 0, 1) == [ErrorCode.NONE] * 2
    assert groups.commit("group-99", 2) == [ErrorCode.INVALID_COMMIT_OFFSET_SIZE]


def join(group_id: str, member_id: str = "", metadata: bytes = b"") -> dict[str, Any]:
    return {
        "group_id": group_id,
        "session_timeout_ms": 1_000_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }


def joined(groups: Groups, group_id: str) -> Any:
    ticket = groups.ask("JoinGroup", 3, join(group_id))
    groups.advance(3.1)
    return groups.answer(ticket)


def test_members_of_classic_groups_count() -> None:
    groups = Groups(64 * KIB)
    refused = 0
    for number in range(50):
        try:
            joined(groups, f"group-{number}")
        except MqError as error:
            assert error.code is FULL
            refused += 1
    assert 10 < refused < 40
    assert len(groups.shard.groups) == 50 - refused


def test_assignments_of_classic_groups_count() -> None:
    groups = Groups(200 * KIB)
    codes = []
    for number in range(10):
        group_id = f"group-{number}"
        try:
            member = joined(groups, group_id)
        except MqError:
            break
        assignments = [{"member_id": member["member_id"], "assignment": bytes(50 * KIB)}]
        request = {
            "group_id": group_id,
            "generation_id": member["generation_id"],
            "member_id": member["member_id"],
        }
        codes.append(
            groups.call("sync_group", 3, {**request, "assignments": assignments})["error_code"]
        )
    assert codes[:3] == [ErrorCode.NONE] * 3 and FULL in codes
    assert groups.recounted() <= groups.share


def beat(groups: Groups, group_id: str, member_id: str, epoch: int, **more: Any) -> Any:
    return groups.call(
        "consumer_group_heartbeat",
        1,
        {"group_id": group_id, "member_id": member_id, "member_epoch": epoch, **more},
    )


def subscribe(groups: Groups, group_id: str, *topics: str) -> Any:
    wanted = {
        "subscribed_topic_names": list(topics),
        "rebalance_timeout_ms": 30_000,
        "topic_partitions": [],
    }
    return beat(groups, group_id, f"member-of-{group_id}", 0, **wanted)


def test_assignments_of_consumer_groups_count() -> None:
    groups = Groups(2 * MIB)
    made = 0
    with pytest.raises(MqError) as refused:
        for number in range(20):
            subscribe(groups, f"group-{number}", "t")
            made += 1
    assert refused.value.code is FULL and 3 <= made <= 6
    assert groups.recounted() <= groups.share
    assert subscribe(groups, "small", "not-there")["member_epoch"] > 0


def test_a_growing_topic_removes_no_members_of_a_full_shard() -> None:
    groups = Groups(200 * KIB, {"t": 1})
    answers = [subscribe(groups, f"group-{number}", "t") for number in range(20)]
    groups.topics.grow("t", 1_000)
    groups.carry_out(groups.shard.on_metadata(groups.now))
    groups.advance(1.1)
    for number, answer in enumerate(answers):
        again = beat(groups, f"group-{number}", f"member-of-group-{number}", answer["member_epoch"])
        assert again["member_epoch"] == answer["member_epoch"], (
            "no room: the assignment is unchanged"
        )
    groups.share = 20 * MIB
    groups.advance(1.1)
    grown = beat(groups, "group-0", "member-of-group-0", answers[0]["member_epoch"])
    assert grown["member_epoch"] > answers[0]["member_epoch"]


def test_topics_of_expressions_count() -> None:
    groups = Groups(1 * MIB, {f"topic-{number}": 1 for number in range(1_000)})
    wanted = {"subscribed_topic_names": [], "rebalance_timeout_ms": 30_000, "topic_partitions": []}
    made = 0
    with pytest.raises(MqError) as refused:
        for number in range(20):
            beat(
                groups,
                f"group-{number}",
                f"m-{number}",
                0,
                subscribed_topic_regex=".*[0-9]" + "x*" * number,
                **wanted,
            )
            groups.advance(0.1)
            made += 1
    assert refused.value.code is FULL and 1 <= made <= 3
    assert groups.recounted() <= groups.share


class Transactions(Harness[TransactionShard]):
    def __init__(self, share: int) -> None:
        self.share = share
        super().__init__(self._shard)

    def _shard(self) -> TransactionShard:
        topics: Any = None  # a shard of transactions never looks up a topic
        return TransactionShard(
            topics, TransactionOptions(), 0, transaction_version=lambda: 2, share=lambda: self.share
        )

    def ask_now(self, op: Any) -> Any:
        return self.answer(self.operate(op))

    def init(self, name: str) -> Producer:
        return Producer(**self.ask_now(InitializeProducer(name, 60_000, None, 4_000)))


def test_transactional_ids_are_bounded() -> None:
    transactions = Transactions(64 * KIB)
    made = 0
    with pytest.raises(MqError) as refused:
        for number in range(500):
            transactions.init(f"id-{number}")
            made += 1
    assert refused.value.code is FULL and 40 < made < 70
    used = transactions.shard.account.usage().used
    assert used <= transactions.share
    assert transactions.init("id-0").producer_epoch == 1, "a known id may initialize again"
    transactions.fail_over()
    assert transactions.shard.account.usage().used == used
    with pytest.raises(MqError):
        transactions.init("another")


def test_partitions_of_transactions_are_bounded_and_freed_with_the_id() -> None:
    transactions = Transactions(64 * KIB)
    producer = transactions.init("a")
    partitions = tuple(TopicPartition("t", number) for number in range(1_000))
    with pytest.raises(MqError) as refused:
        transactions.ask_now(AddPartitions("a", producer, partitions, 2))
    assert refused.value.code is FULL
    transactions.ask_now(AddPartitions("a", producer, partitions[:100], 2))
    transactions.ask_now(AddPartitions("a", producer, partitions[:100], 2))
    transactions.shard.replay(txn_records.tombstone("a"))
    assert transactions.shard.account.usage().used == 0


# -- the weights are accurate


OWN = UUID(int=9)


def offset(group: str, topic: str, partition: int, metadata: str = "") -> CoordinatorRecord:
    commit = OffsetCommit(
        12_345_678 + partition, 7, metadata, 1_700_000_000_000 + partition, -1, OWN
    )
    return encode(OffsetCommitKey(group, topic, partition), commit)


def classic_member(number: int) -> ClassicMember:
    return ClassicMember(
        f"member-{number:040}", None, "client", "/10.0.0.1", 60_000, 45_000, bytes(100), bytes(100)
    )


def consumer_group(number: int, partitions: int) -> Iterable[CoordinatorRecord]:
    group, member = f"group-{number}", f"member-{number:040}"
    subscribed = MemberMetadata(None, None, "client", "/10.0.0.1", ("topic",), None, 60_000, None)
    all_of_them = tuple(range(1_000, 1_000 + partitions))
    yield encode(MemberMetadataKey(group, member), subscribed)
    yield encode(ConsumerGroupMetadataKey(group), ConsumerGroupMetadata(1, 7))
    yield encode(
        TargetAssignmentMemberKey(group, member),
        TargetAssignmentMember((TopicPartitions(OWN, all_of_them),)),
    )
    owned = (OwnedPartitions(OWN, all_of_them, (1,) * partitions),)
    yield encode(
        CurrentMemberAssignmentKey(group, member), CurrentMemberAssignment(1, 0, 0, owned, ())
    )


def transaction(number: int, partitions: int, state: TransactionState) -> CoordinatorRecord:
    topics = tuple(
        sorted(TopicPartition(f"topic-{one % 10}", one) for one in range(1_000, 1_000 + partitions))
    )
    return txn_records.encode(
        f"transactional-id-{number}",
        Transaction(
            5_000_000 + number,
            3,
            60_000,
            state,
            topics,
            1_700_000_000_000 + number,
            1_700_000_000_000 + number,
        ),
        version=1,
    )


def expressions(number: int) -> Iterable[CoordinatorRecord]:
    group = f"group-{number}"
    yield encode(ConsumerGroupMetadataKey(group), ConsumerGroupMetadata(1, 7))
    for one in range(5):
        topics = tuple(f"topic-{name}" for name in range(1_000))
        yield encode(RegularExpressionKey(group, f".*{one}"), RegularExpression(topics, 1, 1))


def groups_shard() -> GroupShard:
    return GroupShard(Topics({"topic": 10_000}), Options(), lambda: "x")


def transactions_shard() -> TransactionShard:
    topics: Any = None  # a shard of transactions never looks up a topic
    return TransactionShard(topics, TransactionOptions(), 0, transaction_version=lambda: 2)


KINDS: dict[str, tuple[Callable[[], Any], Callable[[], Iterable[CoordinatorRecord]], Producer]] = {
    "group with one offset": (
        groups_shard,
        lambda: (offset(f"group-{n}", "topic", 0) for n in range(800)),
        NO_PRODUCER,
    ),
    "group with ten topics": (
        groups_shard,
        lambda: (offset(f"group-{n // 10}", f"t{n % 10}", 0) for n in range(800)),
        NO_PRODUCER,
    ),
    "offsets of one group": (
        groups_shard,
        lambda: (offset("group", "topic", n) for n in range(800)),
        NO_PRODUCER,
    ),
    "metadata": (
        groups_shard,
        lambda: (offset("group", "topic", n, "m" * 4_000) for n in range(200)),
        NO_PRODUCER,
    ),
    "wide metadata": (
        groups_shard,
        lambda: (offset("group", "topic", n, "\u20ac" * 1_000) for n in range(200)),
        NO_PRODUCER,
    ),
    "widest metadata": (
        groups_shard,
        lambda: (offset("group", "topic", n, "\U0001f600" * 1_000) for n in range(200)),
        NO_PRODUCER,
    ),
    "waiting offsets": (
        groups_shard,
        lambda: (offset("group", "topic", n) for n in range(800)),
        Producer(7, 0),
    ),
    "waiting offset of a group": (
        groups_shard,
        lambda: (offset(f"group-{n}", "topic", 0) for n in range(800)),
        Producer(7, 0),
    ),
    "long names": (
        groups_shard,
        lambda: (offset("g" * 4_000 + str(n), "t" * 249, 0) for n in range(500)),
        NO_PRODUCER,
    ),
    "classic groups": (
        groups_shard,
        lambda: (
            encode(
                GroupMetadataKey(f"group-{n}"),
                GroupMetadata(
                    "consumer", 3, "range", None, 5, (classic_member(0), classic_member(1))
                ),
            )
            for n in range(500)
        ),
        NO_PRODUCER,
    ),
    "consumer groups": (
        groups_shard,
        lambda: (one for n in range(500) for one in consumer_group(n, 1)),
        NO_PRODUCER,
    ),
    "assignments": (
        groups_shard,
        lambda: (one for n in range(20) for one in consumer_group(n, 1_000)),
        NO_PRODUCER,
    ),
    "expressions": (
        groups_shard,
        lambda: (one for n in range(10) for one in expressions(n)),
        NO_PRODUCER,
    ),
    "transactional ids": (
        transactions_shard,
        lambda: (transaction(n, 0, TransactionState.EMPTY) for n in range(1_000)),
        NO_PRODUCER,
    ),
    "open transactions": (
        transactions_shard,
        lambda: (transaction(n, 1, ONGOING) for n in range(1_000)),
        NO_PRODUCER,
    ),
    "large transactions": (
        transactions_shard,
        lambda: (transaction(n, 1_000, ONGOING) for n in range(10)),
        NO_PRODUCER,
    ),
    "decided transactions": (
        transactions_shard,
        lambda: (transaction(n, 1_000, PREPARE_COMMIT) for n in range(10)),
        NO_PRODUCER,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_counted_bytes_match_allocated_bytes(kind: str) -> None:
    """Bytes as Python's allocator counts them; every record comes from the log, so that it has
    strings of its own.
    """
    make_shard, records, producer = KINDS[kind]
    log = [
        (bytes(bytearray(record.key)), bytes(bytearray(record.value or b"")))
        for record in records()
    ]
    shard = make_shard()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for key, value in log:
            shard.replay(
                CoordinatorRecord(bytes(bytearray(key)), bytes(bytearray(value))), producer
            )
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    shard.account.was_loaded()
    shard.account.available(0, 1_000.0)
    counted = shard.account.usage().used
    assert 0.25 * counted < taken < 1.05 * counted, (kind, taken, counted, taken / counted)


# -- the account itself


def test_an_estimate_is_recounted_when_the_bound_is_reached() -> None:
    counted = [0]
    account = Account("a", lambda: 1_000, lambda: 100, lambda: counted[0])
    now = Moment(10.0, 0)
    assert account.available(0, now.seconds) == 900
    account.make_room(500, "x", now.seconds)
    account.reserve(800)
    with pytest.raises(MqError) as refused:
        account.make_room(500, "x", now.seconds)
    assert refused.value.code is FULL, "it was just counted"
    account.make_room(500, "x", 12.0)
    counted[0] = 700
    account.was_loaded()
    assert account.available(0, 14.0) == 200


def test_a_filling_shard_is_reported_once_per_threshold(
    caplog: pytest.LogCaptureFixture,
) -> None:
    groups = Groups(100 * KIB)
    for number in range(100):
        groups.commit(f"group-{number}")
    lines = [
        record.getMessage() for record in caplog.records if "near its bound" in record.getMessage()
    ]
    assert len(lines) == 3 and "share=5" in lines[0] and "share=9" in lines[2]


def test_the_store_counts_its_contents() -> None:
    store = OffsetStore()
    key, other = OffsetCommitKey("g", "t", 0), OffsetCommitKey("g", "t", 1)
    store.put(key, OffsetCommit(1, metadata="abc"), None)
    once = store.bytes
    store.put(key, OffsetCommit(2, metadata="abc"), None)
    assert store.bytes == once == store.recount()
    store.put(other, OffsetCommit(2), 7)
    store.put(other, OffsetCommit(3), 8)
    store.end(7, True)
    assert store.bytes == store.recount()
    store.remove(other)
    assert store.bytes == once
    store.end(8, True)
    store.remove(key)
    assert store.bytes == 0


def test_a_transaction_weighs_as_much_as_its_partitions() -> None:
    assert weight("a", None) == 0
    one = Transaction(1, 0, 1, ONGOING, (TopicPartition("t", 0),))
    assert (
        weight("a", one)
        < weight("ab", one)
        < weight(
            "ab", Transaction(1, 0, 1, ONGOING, (TopicPartition("t", 0), TopicPartition("u", 0)))
        )
    )
