"""chaos/nemesis.py and chaos/replicas.py: the same seed gives the same faults; every kind occurs;
replicas that differ are reported.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from chaos.nemesis import CUTS, WEIGHTS, Fault, steps
from chaos.replicas import differences
from mqd.protocol.batch_builder import build_batch
from mqd.protocol.files import CLEANER_CHECKPOINT, encode_offset_checkpoint
from mqd.protocol.markers import EndMarker, build_end_marker
from mqd.protocol.record_reader import Record
from mqd.types import TopicPartition

KEY = ("topic", 1)


def test_a_seed_repeats_its_steps() -> None:
    assert list(islice(steps(5, 3.0), 100)) == list(islice(steps(5, 3.0), 100))
    assert list(islice(steps(5, 3.0), 100)) != list(islice(steps(6, 3.0), 100))


def test_every_kind_of_fault_occurs_and_cuts_need_links() -> None:
    assert {(step.fault, step.target) for step in islice(steps(1, 3.0), 500)} == set(WEIGHTS)
    assert {(step.fault, step.target) for step in islice(steps(1, 3.0, cuts=True), 500)} == set(
        WEIGHTS
    ) | set(CUTS)


def test_absences_are_shorter_and_longer_than_the_session() -> None:
    away = [step.down_s for step in islice(steps(1, 3.0), 500) if step.fault is Fault.KILL]
    assert min(away) < 3.0 < max(away)


def replica(directory: Path, *segments: list[bytes], first_offset: int = 0) -> Path:
    """A data directory with one partition; each batch holds one record."""
    home = directory / "data" / "topic-1"
    home.mkdir(parents=True)
    offset = first_offset
    for values in segments:
        data = b""
        base = offset
        for value in values:
            data += bytes(build_batch([(None, value)], timestamp=1, base_offset=offset))
            offset += 1
        (home / f"{base:020}.log").write_bytes(data)
    return directory / "data"


def test_the_same_batches_in_other_segments_are_the_same(tmp_path: Path) -> None:
    one = replica(tmp_path / "1", [b"a", b"b"], [b"c"])
    other = replica(tmp_path / "2", [b"a"], [b"b", b"c"])
    assert differences({1: one, 2: other}, KEY, 3) == []


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        ([[b"a", b"x", b"c"]], "differ in the batch at offset 1"),
        ([[b"a", b"b"]], "node 2 ends at 2, the high watermark is 3"),
        ([], "node 2 ends at 0"),
    ],
)
def test_a_replica_that_differs_is_reported(
    tmp_path: Path, segments: list[list[bytes]], words: str
) -> None:
    one = replica(tmp_path / "1", [b"a", b"b", b"c"])
    other = replica(tmp_path / "2", *segments)
    (found,) = differences({1: one, 2: other}, KEY, 3)
    assert words in found


def test_above_the_high_watermark_replicas_may_differ(tmp_path: Path) -> None:
    one = replica(tmp_path / "1", [b"a", b"b", b"c"])
    other = replica(tmp_path / "2", [b"a", b"b", b"x", b"y"])
    assert differences({1: one, 2: other}, KEY, 2) == []


def test_a_missing_replica_is_reported(tmp_path: Path) -> None:
    (tmp_path / "2").mkdir()
    assert differences({1: replica(tmp_path / "1", [b"a"]), 2: tmp_path / "2"}, KEY, 1) == [
        "topic-1: node 2 has no replica"
    ]


def test_a_torn_tail_ends_a_replica(tmp_path: Path) -> None:
    one = replica(tmp_path / "1", [b"a", b"b"])
    other = replica(tmp_path / "2", [b"a", b"b"])
    (path,) = other.rglob("*.log")
    path.write_bytes(path.read_bytes()[:-1])
    assert differences({1: one, 2: other}, KEY, 1) == []
    assert "node 2 ends at 1" in differences({1: one, 2: other}, KEY, 2)[0]


Row = tuple[int, bytes, bytes | None]


def compacted(directory: Path, *rows: Row, aborted: Row | None = None, end: int = 10) -> Path:
    """A replica that was cleaned: records of these offsets, keys and values, one per batch; an
    empty one at the end.
    """
    home = directory / "data" / "topic-1"
    home.mkdir(parents=True)
    (home.parent / CLEANER_CHECKPOINT).write_bytes(
        encode_offset_checkpoint({TopicPartition("topic", 1): 5})
    )
    batches = [
        (
            row[0],
            build_batch([Record(row[0], 1, row[1], row[2])], base_offset=row[0], keep_offsets=True),
        )
        for row in rows
    ]
    if aborted is not None:
        offset = aborted[0]
        record = Record(offset, 1, aborted[1], aborted[2])
        batches.append(
            (
                offset,
                build_batch(
                    [record],
                    base_offset=offset,
                    producer_id=1,
                    producer_epoch=0,
                    transactional=True,
                ),
            )
        )
        marker = build_end_marker(1, 0, EndMarker(committed=False, coordinator_epoch=0), 1)
        marker[:8] = (offset + 1).to_bytes(8, "big")
        batches.append((offset + 1, marker))
    last = build_batch([Record(end - 1, 1, b"last", None)], base_offset=end - 1)
    (home / f"{0:020}.log").write_bytes(
        b"".join(bytes(batch) for _, batch in sorted(batches)) + bytes(last)
    )
    return directory / "data"


@pytest.mark.parametrize(
    ("rows", "aborted", "words"),
    [
        ([(1, b"a", b"old"), (4, b"a", b"new"), (5, b"b", b"b")], None, None),
        ([(4, b"a", b"new"), (5, b"b", b"b"), (6, b"c", None)], None, None),
        ([(4, b"a", b"new"), (5, b"b", b"b")], (6, b"a", b"never"), None),
        ([(4, b"a", b"other"), (5, b"b", b"b")], None, "differ in the record at offset 4"),
        ([(5, b"b", b"b")], None, "differ in the newest record of 1 keys, of b'a' first"),
        ([(4, b"a", b"new"), (5, b"b", b"b"), (6, b"b", None)], None, "of b'b' first"),
    ],
)
def test_of_compacted_replicas_the_newest_records_are_compared(
    tmp_path: Path, rows: list[Row], aborted: Row | None, words: str | None
) -> None:
    one = compacted(tmp_path / "1", (4, b"a", b"new"), (5, b"b", b"b"))
    other = compacted(tmp_path / "2", *rows, aborted=aborted)
    found = differences({1: one, 2: other}, KEY, 10)
    assert (words is None) == (found == []), found
    assert words is None or any(words in difference for difference in found)
    assert "node 1 ends at 10" in differences({1: one, 2: other}, KEY, 11)[0]
