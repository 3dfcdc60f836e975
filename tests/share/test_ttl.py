"""Records that have expired are given up."""

from __future__ import annotations

import pytest

from mqd.errors import MqError
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.record_reader import Record
from mqd.share import giving_up, reading
from mqd.share.dead_letters import Archiving
from mqd.share.giving_up import give_up_expired
from mqd.share.reading import ReadRecords, read_batches, read_records
from mqd.share.record_states import Batch, RecordState
from mqd.share.share_partition import SharePartition
from mqd.share.ttl import OFF, are_apart, expires_at_ms
from mqd.share.values import Acknowledgement, AcknowledgeType, Limits, Update
from tests.share.support import acknowledge, acquire, complete

LIMITS = Limits(delivery_count=3, record_locks=40, lock_seconds=10.0, state_bytes=1 << 20)
LETTERS = LIMITS._replace(dead_letters=True)


@pytest.mark.parametrize(
    ("headers", "ttl_ms", "expected"),
    [
        ([], 100, 1100),
        ([], 0, None),
        ([("mqd-ttl", b"7")], OFF, None),
        ([("mqd-ttl", b"7")], 0, 1007),
        ([("mqd-ttl", b"7")], 100, 1007),
        ([("mqd-ttl", b"700")], 100, 1100),
        ([("mqd-ttl", b"0")], 100, 1000),
        ([("mqd-ttl", b"5"), ("mqd-ttl", b"9"), ("x", b"1")], 0, 1009),
        *(([("mqd-ttl", bad)], 100, 1100) for bad in (None, b"", b"x", b"-1", b"1.5", b"9" * 19)),
    ],
)
def test_when_a_record_expires(
    headers: list[tuple[str, bytes | None]], ttl_ms: int, expected: int | None
) -> None:
    assert expires_at_ms(Record(0, 1000, None, b"v", headers), ttl_ms) == expected


def batch(offset: int, *timestamps: int, control: bool = False) -> bytes:
    records = [Record(0, at, b"k%d" % at, b"v") for at in timestamps]
    return bytes(build_batch(records, base_offset=offset, control=control))


def read(
    data: bytes, first: int = 0, *, keys_known_end: int | None = None, ttl_ms: int, now_ms: int
) -> ReadRecords:
    batches = read_batches(lambda start, size: data[start : start + size], len(data), None)
    return read_records(
        data, batches, first, keys_known_end=keys_known_end, ttl_ms=ttl_ms, now_ms=now_ms
    )


def test_expired_records_of_batches() -> None:
    marker = batch(3, 0, control=True)
    damaged = bytearray(batch(20, 0, 0))
    damaged[65] = 0xFF
    data = batch(0, 10, 10, 500) + marker + batch(4, 10, 500, 10) + batch(7, 10) + bytes(damaged)
    found = read(data, ttl_ms=100, now_ms=110)
    assert found.expired == [(0, 1), (4, 4), (6, 7)]
    assert [one.last_offset for one in found.batches] == [2, 3, 6, 7, 21]
    assert read(data, 5, ttl_ms=100, now_ms=110).expired == [(6, 7)]
    assert read(data, ttl_ms=100, now_ms=109).expired == []
    assert read(data, ttl_ms=OFF, now_ms=999).expired == []
    with pytest.raises(MqError):
        read(data, keys_known_end=0, ttl_ms=OFF, now_ms=0)


def test_one_read_decodes_a_few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RECORDS_DECODED_MAX", 3)
    data = batch(0, *range(10)) + batch(10, 7)
    found = read(data, 4, ttl_ms=1, now_ms=999)
    assert found.expired == [(4, 6)]
    assert [one.last_offset for one in found.batches] == [6]
    found = read(data, 8, keys_known_end=9, ttl_ms=OFF, now_ms=0)
    assert [one.offset for one in found.keys] == [8, 9, 10]
    assert [one.last_offset for one in found.batches] == [9, 10]
    assert read(data, 4, keys_known_end=10, ttl_ms=OFF, now_ms=0).batches[0].last_offset == 9


def acquired(partition: SharePartition, *batches: tuple[int, int]) -> list[tuple[int, int]]:
    rows = acquire(partition, "a", *batches)
    return [(one.first_offset, one.last_offset) for one in rows]


def test_expired_records_are_archived() -> None:
    partition = SharePartition.loaded(0, (), LIMITS)
    assert give_up_expired(partition, [(1, 2), (5, 6)], 50) is None
    assert partition.start_update() is None, "there is nothing to store"
    assert give_up_expired(partition, [(0, 0)], 50) is None
    assert partition.states.start_offset == 3
    assert partition.start_update() == Update((), 3, 2), "the start offset has moved"
    assert partition.start_update() is None
    assert acquired(partition, (0, 9)) == [(3, 4), (7, 9)]
    assert give_up_expired(partition, [(0, 9)], 60) is None
    assert partition.acquired_count == 5, "a member keeps what it has"


def test_the_start_offset_is_stored_after_the_record_before_expired_ones() -> None:
    partition = SharePartition.loaded(0, (), LIMITS)
    assert acquired(partition, (0, 0)) == [(0, 0)]
    assert give_up_expired(partition, [(1, 9)], 50) is None and partition.start_update() is None
    accepted = Acknowledgement(0, 0, [AcknowledgeType.ACCEPT])
    update = acknowledge(partition, "a", [accepted])
    assert update is not None and update.start_offset == 0
    complete(partition, update)
    assert partition.start_update() == Update((), 10, 0)
    assert partition.start_update() is None
    assert acquired(partition, (10, 10)) == [(10, 10)]
    complete(
        partition, acknowledge(partition, "a", [accepted._replace(first_offset=10, last_offset=10)])
    )
    assert partition.start_update() is None, "the share coordinator knows this record"


def test_expired_records_get_dead_letters() -> None:
    partition = SharePartition.loaded(0, (), LETTERS)
    assert acquired(partition, (0, 3)) == [(0, 3)]
    released = Acknowledgement(1, 2, [AcknowledgeType.RELEASE])
    update = acknowledge(partition, "a", [released], 0.0)
    complete(partition, update, stored=True)
    for stored in (False, True):
        update = give_up_expired(partition, [(0, 2), (4, 5)], 50)
        assert update is not None
        assert update.batches == (
            Batch(1, 2, RecordState.ARCHIVING, 1, 50),
            Batch(4, 5, RecordState.ARCHIVING, 0, 50),
        )
        assert giving_up.archiving(partition, 9) == [] and acquired(partition, (0, 5)) == []
        complete(partition, update, stored=stored)
        assert bool(giving_up.archiving(partition, 9)) == stored
    assert giving_up.archiving(partition, 9)[0] == Archiving(1, 1, 50)
    assert [one.offset for one in giving_up.archiving(partition, 9)] == [1, 2, 4, 5]
    update = giving_up.archive(partition, [1, 2, 4, 5])
    complete(partition, update, stored=True)
    assert partition.states.start_offset == 0 and partition.acquired_count == 2
    accepted = Acknowledgement(0, 0, [AcknowledgeType.ACCEPT])
    update = acknowledge(partition, "a", [accepted], 0.0)
    complete(partition, update, stored=True)
    assert partition.states.start_offset == 3


def test_rows_and_expired_ranges() -> None:
    rows = [(0, 3, 1), (6, 9, 1), (12, 12, 2)]
    assert are_apart(rows, [(4, 5), (10, 11), (13, 20)]) and are_apart(rows, [])
    assert not are_apart(rows, [(3, 5)]) and not are_apart(rows, [(4, 5), (10, 12)])


def test_records_before_those_that_were_read_are_not_acquired() -> None:
    """They became available meanwhile, and may have expired."""
    partition = SharePartition.loaded(0, (), LIMITS)
    assert acquired(partition, (0, 9)) == [(0, 9)]
    release = [Acknowledgement(0, 3, [AcknowledgeType.RELEASE.value])]
    update = acknowledge(partition, "a", release, 0.0)
    assert update is not None
    complete(partition, update)
    rows = partition.acquire(
        "b", [(0, 12)], read_from=4, max_records=500, batch_size=500, exact=False, now=0.0
    )
    assert [(one.first_offset, one.last_offset) for one in rows] == [(10, 12)]
    assert partition.next_fetch_offset() == 0
