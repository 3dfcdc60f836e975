"""The checker finds every planted anomaly in a history, and none in a clean one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqd.testing.checker import History, Promise
from mqd.types import NO_OFFSET, TopicPartition

TP = TopicPartition("t", 0)
Log = list[tuple[int, bytes]]


def clean() -> tuple[History, Log]:
    """Ten acknowledged records of one producer, one of unknown outcome, one refused, five that only
    guarantee order.
    """
    history = History()
    log: Log = []
    for number in range(10):
        send = history.send("a", TP, b"a%d" % number, Promise.ALL)
        send.ok(len(log))
        log.append((len(log), send.value))
    history.send("a", TP, b"maybe", Promise.ALL).info()
    history.send("a", TP, b"refused", Promise.ALL).fail()
    history.send("a", TP, b"pending", Promise.ALL)
    for number in range(5):
        send = history.send("c/1", TP, b"c%d" % number, Promise.ORDER)
        send.ok(40 + number)
        if number != 2:  # lost, which acks=1 allows
            log.append((len(log), send.value))
    history.begin_reading("r", TP, 0)
    history.polled("r", TP, log[:6], high_watermark=6)
    set_outcome(history, high_watermark=6)
    history.polled("r", TP, log[6:8], high_watermark=14)
    set_outcome(history, high_watermark=14)
    return history, log


def set_outcome(
    history: History,
    *,
    node: int = 1,
    leader_epoch: int = 0,
    log_start: int = 0,
    last_stable: int = 0,
    high_watermark: int,
) -> None:
    history.fetched(
        "r",
        TP,
        node=node,
        leader_epoch=leader_epoch,
        log_start=log_start,
        last_stable=last_stable,
        high_watermark=high_watermark,
    )


def test_nothing_is_found_in_a_clean_history() -> None:
    history, log = clean()
    assert history.check({TP: log}) == []


def test_a_send_of_unknown_outcome_may_be_stored_late_or_not() -> None:
    history, log = clean()
    late = history.send("a", TP, b"after", Promise.ALL)
    late.ok(len(log))
    log += [(len(log), b"after"), (len(log) + 1, b"maybe")]
    assert history.check({TP: log}) == []


def test_partitions_of_deleted_topics_are_left_out() -> None:
    history, _ = clean()
    assert history.check({}) == []


def renumbered(log: Log) -> Log:
    return [(offset, value) for offset, (_, value) in enumerate(log)]


def plant_lost(history: History, log: Log) -> Log:
    return renumbered([row for row in log if row[1] != b"a9"])


def plant_duplicate(history: History, log: Log) -> Log:
    return [*log, (len(log), b"a3")]


def plant_misplaced(history: History, log: Log) -> Log:
    log[9], log[10] = (9, log[10][1]), (10, log[9][1])
    return log


def plant_reordered(history: History, log: Log) -> Log:
    log[8], log[9] = (8, log[9][1]), (9, log[8][1])
    return log


def plant_reordered_without_promise(history: History, log: Log) -> Log:
    log[12], log[13] = (12, log[13][1]), (13, log[12][1])
    return log


def plant_late_after_acknowledged(history: History, log: Log) -> Log:
    """A record of unknown outcome before one that had been acknowledged when it was sent."""
    log.insert(4, (4, b"maybe"))
    return renumbered(log)


def plant_gap(history: History, log: Log) -> Log:
    return [*log[:-1], (log[-1][0] + 1, log[-1][1])]


def plant_unknown(history: History, log: Log) -> Log:
    return [*log, (len(log), b"whose?")]


def plant_aborted(history: History, log: Log) -> Log:
    return [*log, (len(log), b"refused")]


def plant_inconsistent(history: History, log: Log) -> Log:
    history.begin_reading("s", TP, 7)
    history.polled("s", TP, [(7, b"maybe")], high_watermark=14)
    return log


def plant_lost_read(history: History, log: Log) -> Log:
    history.begin_reading("s", TP, 14)
    history.polled("s", TP, [(14, b"maybe")], high_watermark=15)
    return log


def plant_skip(history: History, log: Log) -> Log:
    history.polled("r", TP, [log[9]], high_watermark=14)
    return log


def plant_back(history: History, log: Log) -> Log:
    history.polled("r", TP, [log[7]], high_watermark=14)
    return log


def plant_watermark_back(history: History, log: Log) -> Log:
    set_outcome(history, high_watermark=13)
    return log


def plant_disagreement(history: History, log: Log) -> Log:
    set_outcome(history, last_stable=15, high_watermark=14)
    return log


def plant_beyond(history: History, log: Log) -> Log:
    history.polled("r", TP, [log[8]], high_watermark=8)
    return log


def plant_a_later_epoch(history: History, log: Log) -> Log:
    history.beyond_epoch("r", TP, "8 by node 1: epoch 2, asked in 1")
    return log


def plant_out_of_range(history: History, log: Log) -> Log:
    history.out_of_range("r", TP, "8")
    return log


def plant_damage(history: History, log: Log) -> Log:
    history.unreadable("r", TP, "the CRC is wrong")
    return log


def plant_early_ack(history: History, log: Log) -> Log:
    history.not_committed(TP, 9)
    return log


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (plant_lost, "lost"),
        (plant_duplicate, "duplicate"),
        (plant_misplaced, "misplaced"),
        (plant_reordered, "reordered"),
        (plant_reordered_without_promise, "reordered"),
        (plant_late_after_acknowledged, "reordered"),
        (plant_gap, "gap"),
        (plant_unknown, "unknown"),
        (plant_aborted, "aborted-read"),
        (plant_inconsistent, "inconsistent"),
        (plant_lost_read, "lost-read"),
        (plant_skip, "poll-skip"),
        (plant_back, "poll-back"),
        (plant_watermark_back, "watermark-back"),
        (plant_disagreement, "watermarks-disagree"),
        (plant_beyond, "beyond-watermark"),
        (plant_out_of_range, "out-of-range"),
        (plant_a_later_epoch, "beyond-epoch"),
        (plant_damage, "unreadable"),
        (plant_early_ack, "ack-not-committed"),
    ],
)
def test_planted_anomalies(plant: Callable[[History, Log], Log], kind: str) -> None:
    history, log = clean()
    found = history.check({TP: plant(history, log)})
    assert kind in {anomaly.kind for anomaly in found}
    assert all(str(anomaly) for anomaly in found)


def test_an_acknowledgement_without_an_offset_is_not_misplaced() -> None:
    history = History()
    history.send("a", TP, b"x", Promise.ALL).ok(NO_OFFSET)
    assert history.check({TP: [(0, b"x")]}) == []


def test_a_new_leader_or_restarted_node_may_have_a_lower_watermark() -> None:
    history, log = clean()
    set_outcome(history, node=2, leader_epoch=1, high_watermark=10)
    history.restarted(1)
    set_outcome(history, high_watermark=12)
    assert history.check({TP: log}) == []
