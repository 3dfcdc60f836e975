"""Which batches a share group gets, and how little of them is read."""

from __future__ import annotations

from mqd.protocol.batch_builder import build_batch
from mqd.protocol.markers import EndMarker, build_end_marker
from mqd.share.reading import ReadBatch, read_batches

PRODUCER, OTHER = 7, 8


def batch(offset: int, producer_id: int = -1, size: int = 100, count: int = 2) -> bytes:
    made = build_batch(
        [(None, bytes(size))] * count,
        base_offset=offset,
        producer_id=producer_id,
        transactional=producer_id >= 0,
    )
    return bytes(made)


def marker(offset: int, producer_id: int, *, committed: bool) -> bytes:
    made = build_end_marker(producer_id, 0, EndMarker(committed, 0), 0)
    made[:8] = offset.to_bytes(8, "big")
    return bytes(made)


class Part:
    """The bytes of a log, and how many were read."""

    def __init__(self, *batches: bytes) -> None:
        self.data = b"".join(batches)
        self.read = 0

    def read_at(self, start: int, size: int) -> bytes:
        found = self.data[start : start + size]
        self.read += len(found)
        return found

    def batches(self, aborted: list[tuple[int, int]] | None = None) -> list[ReadBatch]:
        return list(read_batches(self.read_at, len(self.data), aborted))


def test_batches_have_their_positions() -> None:
    first, second = batch(0), batch(5, count=3)
    assert Part(first, second, first[:-1]).batches() == [
        ReadBatch(0, len(first), 0, 1, False),
        ReadBatch(len(first), len(first + second), 5, 7, False),
    ]
    assert Part(first[:60]).batches() == Part().batches() == Part(bytes(200)).batches() == []


def test_records_are_not_read() -> None:
    part = Part(*(batch(2 * number, size=500_000) for number in range(10)))
    assert [one.first_offset for one in part.batches()] == list(range(0, 20, 2))
    assert part.read < 100_000
    part = Part(*(batch(2 * number) for number in range(1_000)))
    assert next(read_batches(part.read_at, len(part.data), None)).last_offset == 1
    assert part.read < 10_000, "no more than is wanted"


def test_aborted_batches_are_marked() -> None:
    log = (
        *(batch(0, PRODUCER), batch(2, OTHER), batch(4)),
        *(marker(6, PRODUCER, committed=False), batch(7, PRODUCER)),
        *(marker(9, OTHER, committed=True), batch(10, OTHER)),
    )
    found = Part(*log).batches([(PRODUCER, 0)])
    assert [one.first_offset for one in found if one.is_aborted] == [0]
    assert [one.first_offset for one in found if not one.has_records] == [6, 9]
    assert not any(one.is_aborted for one in Part(*log).batches(None))
    found = Part(*log).batches([(PRODUCER, 0), (OTHER, 2)])
    assert [one.first_offset for one in found if one.is_aborted] == [0, 2, 10]
