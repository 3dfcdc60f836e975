"""Logs of one partition agree after any leader changes, and nothing committed is ever truncated:
KIP-101, KIP-279, and random failovers.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqd.log.manager.reading import storage_error
from mqd.log.partition_log import PartitionLog
from tests.log.support import batch
from tests.replica.followers import Replica, fetch_until_stable, receive_leader

Rule = Callable[[Replica], None]


def by_epochs(follower: Replica) -> None:
    """What becoming a follower does: nothing. The first response shows where the logs diverge."""


def by_high_watermark(follower: Replica) -> None:
    """What Kafka did before KIP-101."""
    follower.logs.truncate_to(follower.log, follower.partition.high_watermark)
    follower.partition.log_replaced()


def replicas_in(path: Path, count: int = 2) -> list[Replica]:
    return [Replica(node_id, path / str(node_id)) for node_id in range(1, count + 1)]


def lost_after_a_restart(path: Path, becoming_follower: Rule) -> None:
    """KIP-101, scenario 1: a follower that has a committed record without a high watermark above it
    restarts, and leads next.
    """
    a, b = replicas = replicas_in(path)
    receive_leader(replicas, 1, 1, (1, 2))
    a.append(b"m1")
    fetch_until_stable(replicas, a)
    a.append(b"m2")
    b.fetch(a)
    answered = a.partition.high_watermark
    a.row(b.requested(), 2)  # b fetches again: m2 is committed, and the response is lost
    assert a.partition.high_watermark == 2 > answered and b.partition.high_watermark == 1
    b.note_high_watermark()
    b.kill()
    receive_leader([b], 1, 1, (1, 2))
    becoming_follower(b)
    receive_leader(replicas, 2, 2, (1, 2))
    becoming_follower(a)
    fetch_until_stable(replicas, b)
    assert a.values() == b.values() == [(0, b"m1"), (1, b"m2")]
    assert a.cuts == b.cuts == 0


def parted_after_two_restarts(path: Path, becoming_follower: Rule) -> None:
    """KIP-101, scenario 2: a replica without the last record leads (uncleanly) and writes at its
    offset; the other one restarts.
    """
    a, b = replicas = replicas_in(path)
    receive_leader(replicas, 1, 1, (1, 2))
    a.append(b"m1")
    fetch_until_stable(replicas, a)
    a.assign(a.assignment_with_isr((1,)))
    a.append(b"m2")
    assert a.partition.high_watermark == 2
    receive_leader(replicas, 2, 2, (2,))
    b.append(b"m3")
    becoming_follower(a)
    fetch_until_stable(replicas, b)
    assert a.values() == b.values() == [(0, b"m1"), (1, b"m3")]
    assert a.content() == b.content()
    assert a.cuts == 1  # it receives the unclean election


def two_failovers_in_a_row(path: Path, becoming_follower: Rule) -> None:
    """KIP-279: each leads alone for a moment, and no replica fetches in between."""
    a, b = replicas = replicas_in(path)
    receive_leader(replicas, 1, 1, (1, 2))
    a.append(b"m1")
    a.append(b"m2")
    fetch_until_stable(replicas, a)
    a.append(b"a3")
    a.append(b"a4")
    receive_leader([b], 2, 2, (2,))
    b.append(b"b3")
    receive_leader([a], 1, 3, (1,))
    a.append(b"a5")
    receive_leader(replicas, 1, 3, (1,))
    becoming_follower(b)
    fetch_until_stable(replicas, a)
    assert a.values() == b.values() == [(0, b"m1"), (1, b"m2"), (2, b"a3"), (3, b"a4"), (4, b"a5")]
    assert a.content() == b.content()
    assert a.log.epochs.entries() == b.log.epochs.entries() == [(1, 0), (3, 4)]


@pytest.mark.parametrize("change", ["", "assigned again", "disk full"])
def test_many_segments_are_truncated_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Other tasks run between two portions. The log may stay as a portion leaves it."""
    monkeypatch.setattr("mqd.replica.fetchers.SEGMENTS_RETIRED_AT_ONCE", 3)
    a, b = replicas = replicas_in(tmp_path)
    receive_leader(replicas, 1, 1, (1, 2))
    a.append(b"m1")
    fetch_until_stable(replicas, a)
    a.assign(a.assignment_with_isr((1,)))
    for _ in range(40):
        a.append(b"x" * 100)
        a.note_high_watermark()
        a._sync()
    assert len(a.log.segments) > 8
    receive_leader([b], 2, 2, (2,))
    b.append(b"m2")
    receive_leader([a], 2, 2, (2,))
    truncate_to = a.logs.truncate_to
    ends: list[int] = []

    def noted(log: PartitionLog, offset: int) -> None:
        if ends and change == "disk full":
            raise storage_error("cannot truncate", OSError(errno.ENOSPC, "No space left"))
        before = len(log.segments)
        truncate_to(log, offset)
        ends.append(log.log_end_offset)
        assert before - len(log.segments) <= 3
        if change == "assigned again":
            a.core.unfollow(a.partition)

    monkeypatch.setattr(a.logs, "truncate_to", noted)
    a.fetch(b)
    if change:
        assert len(ends) == 1 and 1 < a.log.log_end_offset < 41
        receive_leader([a], 2, 3, (2,))
        receive_leader([b], 2, 3, (2,))
        change = ""  # the next portions are carried out
    assert ends == sorted(set(ends), reverse=True)
    fetch_until_stable(replicas, b)
    assert a.values() == b.values() == [(0, b"m1"), (1, b"m2")]
    assert len(ends) > 2 and ends[-1] == 1


SCENARIOS = [lost_after_a_restart, parted_after_two_restarts, two_failovers_in_a_row]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_epochs_make_logs_agree(tmp_path: Path, scenario: Callable[[Path, Rule], None]) -> None:
    scenario(tmp_path, by_epochs)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_high_watermarks_do_not_make_logs_agree(
    tmp_path: Path, scenario: Callable[[Path, Rule], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with the old rule, and with followers that do not send their last epoch."""
    monkeypatch.setattr("mqd.log.partition_log.PartitionLog.last_epoch", -1)
    with pytest.raises((AssertionError, ValueError)):
        scenario(tmp_path, by_high_watermark)


def test_a_response_of_a_fetch_older_than_kip_279_is_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-101's first rule, without the loop: for an unknown epoch, the leader returns the start of
    the next one.
    """
    monkeypatch.setattr(
        "mqd.replica.follower.truncation_offset",
        lambda partition, epoch, end_offset: min(end_offset, partition.log.log_end_offset),
    )
    with pytest.raises(AssertionError):
        two_failovers_in_a_row(tmp_path, by_epochs)


def test_epochs_without_records_do_not_stop_a_follower(tmp_path: Path) -> None:
    """A leader that wrote nothing follows one that has records of the previous epoch: its own entry
    conflicts, and is removed.
    """
    a, b = replicas = replicas_in(tmp_path)
    receive_leader(replicas, 1, 1, (1, 2))
    a.append(b"m1")
    fetch_until_stable(replicas, a)
    a.append(b"m2")
    receive_leader([b], 2, 2, (1, 2))
    assert b.log.epochs.latest == 2
    receive_leader(replicas, 1, 3, (1, 2))
    fetch_until_stable(replicas, a)
    assert a.content() == b.content() and b.log.epochs.entries() == [(1, 0)]


def test_producers_are_equal_on_leader_and_follower(tmp_path: Path) -> None:
    a, b = replicas = replicas_in(tmp_path)
    receive_leader(replicas, 1, 1, (1, 2))
    for number in range(12):
        a.append(b"v", b"w", producer_id=7 + number % 2, sequence=2 * (number // 2))
    fetch_until_stable(replicas, a)
    assert a.content() == b.content() and list(a.log.producers.entries()) == list(
        b.log.producers.entries()
    )
    receive_leader(replicas, 2, 2, (1, 2))
    again = b.harness.append(b.log, batch(b"v", b"w", producer_id=8, sequence=10), epoch=2)
    assert again.duplicate and again.base_offset == 22
    first = b.harness.append(b.log, batch(b"v", b"w", producer_id=8, sequence=2), epoch=2)
    assert first.duplicate and first.base_offset == 6, (
        "the last five batches are known, as on the leader"
    )


def test_a_follower_below_the_leaders_start_resets_its_log(tmp_path: Path) -> None:
    a, b = replicas = replicas_in(tmp_path)
    receive_leader(replicas, 1, 1, (1, 2))
    for number in range(10):
        a.append(b"%d" % number * 30, b"x")
    b.fetch(a)
    assert 0 < b.log.log_end_offset < 15
    a.assign(a.assignment_with_isr((1,)))
    a.append(b"y")
    a.logs.delete_records(a.log, 17)  # within a batch
    fetch_until_stable(replicas, a)
    assert b.log.log_start_offset in (16, 17) and b.log.log_end_offset == a.log.log_end_offset
    assert [pair for pair in b.values() if pair[0] >= 17] == [
        pair for pair in a.values() if pair[0] >= 17
    ]
    b.kill()
    receive_leader([b], 1, 1, (1, 2))
    assert b.log.log_end_offset == a.log.log_end_offset and not b.logs.offline


class Failovers(RuleBasedStateMachine):
    """Three replicas that all stay in the ISR: any of them may lead next.

    Each record that was ever committed is in every log in the end.
    """

    @initialize()
    def begin(self) -> None:
        self.replicas = replicas_in(Path(tempfile.mkdtemp()), 3)
        self.epoch = 1
        self.counter = 0
        self.leader = self.replicas[0]
        receive_leader(self.replicas, 1, 1, (1, 2, 3))
        self.written: dict[int, bytes] = {}
        self.committed: dict[int, bytes] = {}

    @rule(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3))
    def append(self, sizes: list[int]) -> None:
        for size in sizes:
            values = [b"%04d" % (self.counter + number) * 12 for number in range(size)]
            self.counter += size
            self.leader.append(*values)
        self.note()

    @rule(node=st.integers(0, 2))
    def fetch(self, node: int) -> None:
        replica = self.replicas[node]
        if replica is not self.leader:
            replica.fetch(self.leader, now=1e9)
        self.note()

    def note(self) -> None:
        high_watermark = self.leader.partition.high_watermark
        if len(self.committed) < high_watermark:
            for offset, value in self.leader.values():
                if offset < high_watermark:
                    assert self.committed.setdefault(offset, value or b"") == value

    @rule(node=st.integers(0, 2), reported=st.sets(st.integers(0, 2)))
    def elect(self, node: int, reported: set[int]) -> None:
        """A new leader; only some of the other replicas receive it before the next one."""
        self.epoch += 1
        self.leader = self.replicas[node]
        for index in sorted(reported | {node}):
            receive_leader([self.replicas[index]], node + 1, self.epoch, (1, 2, 3))

    @rule(node=st.integers(0, 2), noted=st.booleans())
    def kill(self, node: int, noted: bool) -> None:
        replica = self.replicas[node]
        if noted:
            replica.note_high_watermark()
        replica.kill()
        self.epoch += 1
        if replica is self.leader:
            self.leader = self.replicas[(node + 1) % 3]
        receive_leader([self.leader], int(self.leader.node_id), self.epoch, (1, 2, 3))

    @precondition(lambda self: self.counter)
    @rule()
    def converge(self) -> None:
        self.epoch += 1
        receive_leader(self.replicas, int(self.leader.node_id), self.epoch, (1, 2, 3))
        fetch_until_stable(self.replicas, self.leader)
        self.note()
        contents = [replica.content() for replica in self.replicas]
        assert contents[0] == contents[1] == contents[2]
        entries = [replica.log.epochs.entries() for replica in self.replicas]
        known = [
            [entry for entry in one if entry[1] < self.leader.log.log_end_offset] for one in entries
        ]
        assert known[0] == known[1] == known[2]
        producers = [list(replica.log.producers.entries()) for replica in self.replicas]
        assert producers[0] == producers[1] == producers[2]
        values = dict(self.leader.values())
        assert {offset: values.get(offset) for offset in self.committed} == self.committed

    @invariant()
    def nothing_committed_was_cut(self) -> None:
        assert [replica.cuts for replica in self.replicas] == [0, 0, 0]


TestFailovers = Failovers.TestCase
TestFailovers.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
