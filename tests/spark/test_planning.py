"""Plans of the source. Numbers marked JVM come from Spark's own Kafka source 4.2.0."""

from __future__ import annotations

import random

import pytest

from mqd.types import TopicPartition
from pyspark_mqd.errors import OptionError
from pyspark_mqd.offsets import StreamOffset, TopicState
from pyspark_mqd.planning import (
    OffsetRange,
    batch_ranges,
    changes,
    describe_losses,
    effective_start,
    is_delayed,
    limit_bytes,
    limit_offsets,
    overtaken,
    plan_ranges,
    split_ranges,
)

T = [TopicPartition("t", index) for index in range(6)]


def ranges(*rows: tuple[int, int, int]) -> list[OffsetRange]:
    return [OffsetRange(T[index], start, end) for index, start, end in rows]


# -- limits


def test_shares_are_proportional_and_floored() -> None:
    """JVM: 300 of 1,200 in four partitions of 401, 399, 300 and 100."""
    starts = dict.fromkeys(T[:4], 0)
    latest = dict(zip(T, (401, 399, 300, 100), strict=False))
    assert limit_offsets(300, starts, latest) == dict(zip(T, (100, 99, 75, 25), strict=False))


def test_small_partitions_are_not_starved() -> None:
    starts, latest = {T[0]: 0, T[1]: 10}, {T[0]: 100_000, T[1]: 11}
    assert limit_offsets(10, starts, latest) == {T[0]: 9, T[1]: 11}


def test_partitions_without_backlog_keep_their_end() -> None:
    starts, latest = {T[0]: 5, T[1]: 7}, {T[0]: 5, T[1]: 100, T[2]: 9}
    assert limit_offsets(10, starts, latest) == {T[0]: 5, T[1]: 17, T[2]: 9}
    assert limit_offsets(10, {T[0]: 5}, {T[0]: 5}) == {T[0]: 5}


def test_a_limit_never_passes_the_end() -> None:
    rng = random.Random(5)
    for _ in range(300):
        starts = {tp: rng.randrange(100) for tp in T}
        latest = {tp: starts[tp] + rng.choice((0, 1, 5, 1000)) for tp in T}
        ends = limit_offsets(rng.randrange(1, 3000), starts, latest)
        assert all(starts[tp] <= ends[tp] <= latest[tp] for tp in T)
        assert ends != starts or latest == starts


def test_bytes_become_offsets_by_the_mean_size() -> None:
    starts, latest = {T[0]: 0, T[1]: 0}, {T[0]: 1000, T[1]: 1000}
    sizes = {T[0]: 100.0, T[1]: 300.0}
    assert limit_bytes(40_000, starts, latest, sizes) == {T[0]: 100, T[1]: 100}
    assert limit_bytes(500_000, starts, latest, sizes) == latest
    assert limit_bytes(1, starts, latest, sizes) == {T[0]: 1, T[1]: 1}


def test_a_batch_waits_for_its_minimum_or_its_delay() -> None:
    starts, latest = {T[0]: 5}, {T[0]: 14}
    assert is_delayed(10, starts, latest, waited_s=1, max_delay_s=2)
    assert not is_delayed(9, starts, latest, waited_s=1, max_delay_s=2)
    assert not is_delayed(10, starts, latest, waited_s=2, max_delay_s=2)


# -- splitting


@pytest.mark.parametrize(
    ("given", "min_partitions", "expected"),
    [
        (
            ((0, 970, 979), (1, 49, 49), (2, 374, 384)),
            3,
            ((0, 970, 979), (2, 374, 379), (2, 379, 384)),
        ),
        (((0, 570, 573),), 2, ((0, 570, 571), (0, 571, 573))),
        (
            ((0, 674, 677), (1, 851, 853)),
            5,
            ((0, 674, 675), (0, 675, 676), (0, 676, 677), (1, 851, 852), (1, 852, 853)),
        ),
        (((0, 411, 412), (1, 838, 840)), 1, ((0, 411, 412), (1, 838, 840))),
        (((0, 0, 1), (1, 0, 1000)), 2, ((0, 0, 1), (1, 0, 1000))),  # enough already
    ],
)
def test_minimum_of_partitions(
    given: tuple[tuple[int, int, int], ...],
    min_partitions: int,
    expected: tuple[tuple[int, int, int], ...],
) -> None:
    """JVM: KafkaOffsetRangeCalculator; 400 random plans were equal."""
    assert split_ranges(ranges(*given), min_partitions, None) == ranges(*expected)


def test_maximum_of_records() -> None:
    parts = split_ranges(ranges((0, 0, 10), (1, 5, 5)), None, 4)
    assert parts == ranges((0, 0, 3), (0, 3, 6), (0, 6, 10))


def test_more_parts_than_offsets_are_not_tried() -> None:
    """The largest number of Java would be a loop of minutes."""
    whole = OffsetRange(TopicPartition("t", 0), 5, 8)
    parts = [(5, 6), (6, 7), (7, 8)]
    assert [each[1:] for each in split_ranges([whole], 2**31 - 1, None)] == parts
    assert [each[1:] for each in split_ranges([whole], None, 1)] == parts


def test_splitting_covers_every_offset_once() -> None:
    rng = random.Random(11)
    for _ in range(300):
        given = ranges(*((index, 7, 7 + rng.choice((0, 1, 3, 900))) for index in range(6)))
        minimum, maximum = rng.choice((None, 1, 4, 40)), rng.choice((None, 1, 50))
        parts = split_ranges(given, minimum, maximum)
        offsets = [(each.tp, place) for each in parts for place in range(each.start, each.end)]
        wanted = [(each.tp, place) for each in given for place in range(each.start, each.end)]
        assert offsets == wanted and all(each.size > 0 for each in parts)
        assert maximum is None or all(each.size <= maximum for each in parts)


# -- micro-batches


def offset(ends: dict[TopicPartition, int], topic_id: str = "", **begins: int) -> StreamOffset:
    numbers = {int(name[1:]): place for name, place in begins.items()}
    return StreamOffset(ends, {"t": TopicState(topic_id, {}, numbers)})


def test_a_plain_plan() -> None:
    planned, losses = plan_ranges(offset({T[1]: 5, T[0]: 3}), offset({T[0]: 9, T[1]: 5}), {})
    assert planned == ranges((0, 3, 9)) and not losses


def test_new_partitions_start_at_their_log_start() -> None:
    before, after = offset({T[0]: 3}), offset({T[0]: 3, T[1]: 9})
    assert plan_ranges(before, after, {T[1]: 0}) == (ranges((1, 0, 9)), [])
    planned, (loss,) = plan_ranges(before, after, {T[1]: 4})
    assert planned == ranges((1, 4, 9))
    assert "added partition t-1 starts from 4 instead of 0" in loss.reason
    planned, (loss,) = plan_ranges(before, after, {})
    assert not planned and "cannot be found" in loss.reason


def test_deleted_partitions_are_named() -> None:
    planned, (loss,) = plan_ranges(offset({T[0]: 3, T[1]: 7}), offset({T[0]: 4}), {})
    assert planned == ranges((0, 3, 4)) and loss.tp == T[1]
    assert "partition t-1 was deleted, so its records from offset 7 on are gone" in loss.reason


def test_an_end_before_the_start_is_a_loss() -> None:
    planned, (loss,) = plan_ranges(offset({T[0]: 500}), offset({T[0]: 300}), {})
    assert not planned and "t-0 offset was changed from 500 to 300" in loss.reason


def test_a_topic_created_again_is_read_from_its_start() -> None:
    """Also where it has grown beyond the old offset, which plain offsets do not show."""
    before, after = offset({T[0]: 500}, "old"), offset({T[0]: 700}, "new")
    planned, (loss,) = plan_ranges(before, after, {T[0]: 0})
    assert planned == ranges((0, 0, 700))
    assert "topic 't' was deleted and created again (topic id old became new)" in loss.reason
    assert effective_start(before, after, {T[0]: 0}) == {T[0]: 0}


def test_changes_between_offsets() -> None:
    assert not changes(offset({T[0]: 3}, "a"), offset({T[0]: 3, T[1]: 0}, "a"))
    assert len(changes(offset({T[0]: 3, T[1]: 3}, "a"), offset({T[0]: 3}, "b"))) == 2


def test_ranges_that_retention_has_overtaken() -> None:
    (loss,) = overtaken(ranges((0, 5, 20), (1, 5, 20), (2, 5, 5)), {T[0]: 12, T[1]: 5, T[2]: 9})
    assert loss.reason == "offsets [5, 12) of partition t-0 were deleted: its log starts at 12 now"
    (loss,) = overtaken(ranges((0, 5, 20)), {T[0]: 100})
    assert "offsets [5, 20) of partition t-0" in loss.reason
    text = describe_losses([loss])
    assert text.startswith("Some data may have been lost because they are not available in Kafka")


def test_long_lists_of_losses_are_cut() -> None:
    losses = changes(offset({TopicPartition("t", index): 1 for index in range(30)}), offset({}))
    assert describe_losses(losses).endswith("; and 10 more.")


# -- batch queries


def test_batch_ranges() -> None:
    assert batch_ranges({T[0]: 1, T[1]: 4}, {T[1]: 9, T[0]: 1}) == ranges((0, 1, 1), (1, 4, 9))
    with pytest.raises(OptionError, match="resolved start offset 5 is greater than"):
        batch_ranges({T[0]: 5}, {T[0]: 4})
