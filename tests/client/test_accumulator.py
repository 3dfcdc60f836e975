from __future__ import annotations

from typing import Any

import pytest

from mqd.client.accumulator import Accumulator, Batch, Sequences, record_bytes
from mqd.client.errors import error_from_wire
from mqd.protocol.batch import parse_header
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from mqd.protocol.record_reader import Record
from mqd.types import TopicPartition

A, B, C = (TopicPartition("t", index) for index in range(3))
ERROR = error_from_wire(19, "t")


def queue(**options: float) -> Accumulator:
    given: dict[str, Any] = {
        "batch_bytes": 1000,
        "request_bytes": 2000,
        "buffer_bytes_max": 10_000,
        "linger_s": 1.0,
        "delivery_timeout_s": 10.0,
    } | options
    return Accumulator(**given)


def put(
    accumulator: Accumulator, tp: TopicPartition, now: float = 0.0, size: int = 100
) -> tuple[Batch, int]:
    return accumulator.append(tp, Record(0, 0, None, b"x"), size, now)


def drained(accumulator: Accumulator, now: float, **options: Any) -> list[Batch]:
    ready, _ = accumulator.drain(now, lambda tp: 1, **options)
    return ready.get(1, [])


def test_a_batch_is_due_after_its_linger() -> None:
    accumulator = queue()
    batch, index = put(accumulator, A, now=5.0)
    assert (index, put(accumulator, A)[1]) == (0, 1)
    assert drained(accumulator, 5.5) == [] and accumulator.next_deadline(5.5) == 6.0
    assert drained(accumulator, 6.0) == [batch]
    assert drained(accumulator, 7.0, flush=True) == []  # it is under way


def test_a_full_batch_and_a_flush_do_not_linger() -> None:
    accumulator = queue()
    first, _ = put(accumulator, A, size=900)
    second, _ = put(accumulator, A, size=900)
    assert second is not first
    assert drained(accumulator, 0.0) == [first]
    accumulator.complete(first)
    assert drained(accumulator, 0.0) == [] and drained(accumulator, 0.0, flush=True) == [second]


def test_a_request_is_bounded_but_has_at_least_one_batch() -> None:
    accumulator = queue()
    for tp in (A, B, C):
        put(accumulator, tp, size=900)
    assert [batch.tp for batch in drained(accumulator, 0.0, flush=True)] == [A, B]
    assert [batch.tp for batch in drained(accumulator, 0.0, flush=True)] == [C]
    accumulator = queue()
    huge, _ = put(accumulator, A, size=9_000)
    assert drained(accumulator, 0.0, flush=True) == [huge]


def test_room_is_bounded_and_returned() -> None:
    accumulator = queue(buffer_bytes_max=2000)
    assert accumulator.has_room(50_000)
    batch, _ = put(accumulator, A, size=900)
    assert accumulator.has_room(900) and not accumulator.has_room(1100)
    (taken,) = drained(accumulator, 0.0, flush=True)
    accumulator.complete(taken)
    assert taken is batch and accumulator.buffered_bytes == 0 and len(accumulator) == 0


def test_a_retried_batch_keeps_its_place_and_its_bytes() -> None:
    accumulator, sequences = queue(), Sequences()
    sequences.restart(7, 0)
    first, _ = put(accumulator, A)
    (batch,) = drained(accumulator, 0.0, flush=True)
    encoded = bytes(sequences.encode(batch, Codec.NONE))
    later, _ = put(accumulator, A)
    assert later is not first
    accumulator.retry(batch, at=3.0, error=ERROR)
    assert drained(accumulator, 2.9, flush=True) == [] and accumulator.next_deadline(2.9) == 3.0
    assert drained(accumulator, 3.0) == [batch]
    assert (
        sequences.encode(batch, Codec.NONE) == encoded and parse_header(encoded).base_sequence == 0
    )
    accumulator.complete(batch)
    (next_one,) = drained(accumulator, 3.0, flush=True)
    assert (
        next_one is later and parse_header(sequences.encode(later, Codec.NONE)).base_sequence == 1
    )


def test_only_doubtful_batches_are_sent_until_all_outcomes_are_known() -> None:
    accumulator = queue()
    put(accumulator, A)
    (outcome_uncertain,) = drained(accumulator, 0.0, flush=True)
    put(accumulator, B)
    assert not accumulator.all_outcomes_known()
    outcome_uncertain.maybe_appended = True
    accumulator.retry(outcome_uncertain, at=1.0, error=ERROR)
    assert not accumulator.all_outcomes_known()
    assert drained(accumulator, 1.0, flush=True, maybe_appended_only=True) == [outcome_uncertain]
    accumulator.complete(outcome_uncertain)
    assert accumulator.all_outcomes_known()


def test_batches_expire_in_order_but_not_in_flight() -> None:
    accumulator = queue()
    first, _ = put(accumulator, A, now=0.0, size=900)
    second, _ = put(accumulator, A, now=1.0, size=900)
    drained(accumulator, 0.0)
    assert accumulator.expire(50.0) == []
    accumulator.retry(first, at=5.0, error=ERROR)
    assert accumulator.expire(10.0) == [first]
    assert accumulator.next_deadline(10.0) == 11.0 and accumulator.expire(11.0) == [second]
    assert accumulator.buffered_bytes == 0


def test_a_missing_leader_is_named() -> None:
    accumulator = queue()
    put(accumulator, A)
    assert accumulator.drain(0.0, lambda tp: None, flush=True) == ({}, {"t"})


def test_halves_are_split_by_index_and_keep_the_byte_count() -> None:
    accumulator = queue()
    records = [put(accumulator, A, size=record_bytes(None, b"x", ()))[0] for _ in range(5)]
    (batch,) = drained(accumulator, 0.0, flush=True)
    assert set(map(id, records)) == {id(batch)}
    accumulator.split(batch)
    assert batch.split_into is not None
    left, right = batch.split_into
    assert [batch.locate(index) for index in range(5)] == [
        (left, 0),
        (left, 1),
        (right, 0),
        (right, 1),
        (right, 2),
    ]
    assert accumulator.buffered_bytes == left.size_estimate + right.size_estimate
    assert drained(accumulator, 0.0) == [left]


def test_sequences_wrap_and_begin_again() -> None:
    sequences = Sequences()
    sequences.restart(7, 3)
    sequences._next[A] = 2**31 - 1

    def encoded() -> int:
        batch = Batch(A, created=0, expires=1)
        batch.records = [Record(0, 0, None, b"x")]
        return parse_header(sequences.encode(batch, Codec.NONE)).base_sequence

    assert [encoded(), encoded(), encoded()] == [2**31 - 1, 0, 1]
    sequences.restart(8, 0)
    assert encoded() == 0


def test_without_an_id_there_are_no_sequences() -> None:
    batch = Batch(A, created=0, expires=1)
    batch.records = [Record(0, 0, None, b"x")]
    header = parse_header(Sequences().encode(batch, Codec.NONE))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 100_000])
def test_the_estimate_is_never_too_small(size: int) -> None:
    headers = (("ż" * 10, b"x" * size), ("n", None))
    batch = build_batch([Record(0, 0, b"k" * size, b"v" * size, headers)])
    assert (
        len(batch) - 61 <= record_bytes(b"k" * size, b"v" * size, headers) <= len(batch) - 61 + 100
    )
