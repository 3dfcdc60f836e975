"""What a shard of groups and a shard of transactions do with a log that they cannot read
completely.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqd.coordinator.group.record_codec import encode as encode_group
from mqd.coordinator.group.records import (
    ConsumerGroupMetadata,
    ConsumerGroupMetadataKey,
    GroupMetadata,
    GroupMetadataKey,
)
from mqd.coordinator.group.shard import GroupShard
from mqd.coordinator.loading import SkippedRecords, replay_batches
from mqd.coordinator.shard import CoordinatorRecord, Shard
from mqd.coordinator.txn import records
from mqd.coordinator.txn.shard import TransactionShard
from mqd.coordinator.txn.transaction import Transaction
from mqd.protocol.batch_builder import build_batch
from tests.coordinator.group.support import Options, Topics


def group_shard() -> GroupShard:
    return GroupShard(Topics(), Options(), lambda: "never")


def transaction_shard() -> TransactionShard:
    return TransactionShard(Topics(), Options(), 0, transaction_version=lambda: 2)


def group(name: str) -> CoordinatorRecord:
    return encode_group(GroupMetadataKey(name), GroupMetadata("consumer", 3, None, None))


def transaction(name: str) -> CoordinatorRecord:
    return records.encode(name, Transaction(7, 0, 60_000), version=1)


def names(shard: Shard) -> list[str]:
    if isinstance(shard, GroupShard):
        return list(shard.state.by_id)
    assert isinstance(shard, TransactionShard)
    return list(shard.store.transactions)


def load(shard: Shard, *batches: bytearray) -> SkippedRecords:
    skipped = SkippedRecords()
    for batch in batches:
        replay_batches(shard, bytes(batch), 0, skipped)
    return skipped


BOTH = pytest.mark.parametrize(
    ("make", "record"), [(group_shard, group), (transaction_shard, transaction)]
)


@BOTH
def test_unknown_kinds_and_versions_are_skipped(
    make: Callable[[], Shard], record: Callable[[str], CoordinatorRecord]
) -> None:
    known = record("b")
    assert known.value is not None
    shard = make()
    rows = [
        record("a"),
        (b"\x00\x63" + known.key[2:], known.value),
        (known.key, b"\x00\x63" + known.value[2:]),
        (known.key, known.value[:-3]),
        (b"\x00", known.value),
        record("c"),
    ]
    skipped = load(shard, build_batch(rows, timestamp=1))
    assert names(shard) == ["a", "c"]
    assert skipped.records == 4
    assert "first_offset=1 reason=RecordFormatError" in str(skipped)
    assert "kind 99 is unknown" in str(skipped)


@BOTH
def test_a_damaged_batch_is_skipped_from_the_damage_on(
    make: Callable[[], Shard], record: Callable[[str], CoordinatorRecord]
) -> None:
    batch = build_batch([record("a"), record("b"), record("c")], timestamp=1)
    batch[batch.index(record("b").key) - 1] = 0x7E  # the length of the key
    shard = make()
    skipped = load(shard, batch, build_batch([record("d")], timestamp=1))
    assert names(shard) == ["a", "d"]
    assert skipped.records == 2


@BOTH
def test_any_other_exception_in_replay_is_a_bug_and_is_raised(
    make: Callable[[], Shard],
    record: Callable[[str], CoordinatorRecord],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shard = make()

    def replay(*arguments: object) -> None:
        raise KeyError("a bug")

    if isinstance(shard, GroupShard):
        monkeypatch.setattr(shard.classic.rebalance, "replay", replay)
    else:
        monkeypatch.setattr("mqd.coordinator.txn.ending.last_epoch_after", replay)
    with pytest.raises(KeyError) as raised:
        load(shard, build_batch([record("a"), record("b")], timestamp=1))
    assert raised.value.__notes__ == ["in the replay of the record at offset 0"]


def test_a_group_with_an_inconsistent_log_is_not_skipped() -> None:
    rows = [
        group("a"),
        encode_group(ConsumerGroupMetadataKey("a"), ConsumerGroupMetadata(4)),
    ]
    with pytest.raises(AssertionError):
        load(group_shard(), build_batch(rows, timestamp=1))
