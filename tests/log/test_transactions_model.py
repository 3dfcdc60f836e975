"""Transactions of a log compared with a list of appends: Hypothesis writes, ends, rolls, truncates,
kills at any byte, reopens.

After any steps, the last stable offset and the aborted transactions of any range agree with the
list.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import trio
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.protocol.batch import parse_header
from mqd.protocol.files import AbortedTransaction, decode_txn_index
from mqd.protocol.markers import EndMarker, build_end_marker
from mqd.protocol.slices import all_slices
from tests.log.support import PARTITION, Harness, batch, wait_until

CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=150, file_delete_delay_ms=0)
PRODUCERS = range(1, 4)
COORDINATOR_EPOCH = 3


class Event(NamedTuple):
    """One batch of the model. `ends`: None for records, else whether the marker commits."""

    first: int
    last: int
    producer_id: int
    ends: bool | None


def explain(events: list[Event]) -> tuple[dict[int, int], list[AbortedTransaction]]:
    """(producer id -> first offset of its open transaction, the aborted transactions by their
    markers).
    """
    begun: dict[int, int] = {}
    aborted = []
    for event in events:
        if event.ends is None:
            begun.setdefault(event.producer_id, event.first)
        elif event.producer_id in begun:
            first = begun.pop(event.producer_id)
            if not event.ends:
                aborted.append(
                    AbortedTransaction(
                        event.producer_id,
                        first,
                        event.last,
                        min(begun.values(), default=event.last + 1),
                    )
                )
    return begun, aborted


class TransactionMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp())
        self.events: list[Event] = []
        self.start = 0

        async def make() -> Harness:
            harness = Harness(self.home)
            await harness.service.start()
            return harness

        self.harness = trio.run(make)
        self.log: PartitionLog = self.harness.open(CONFIG)

    @property
    def end(self) -> int:
        return self.events[-1].last + 1 if self.events else 0

    @rule(
        producer_id=st.sampled_from(PRODUCERS),
        counts=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    )
    def write(self, producer_id: int, counts: list[int]) -> None:
        """Like a group coordinator: without sequence numbers, and with a confirmed partition."""
        for count in counts:
            guard = self.log.producers.guard(producer_id, 0, -1, False, 0)
            if guard is not None:
                guard.confirmed = True
            values = [b"%05d" % number for number in range(count)]
            appended = self.harness.append(
                self.log, batch(*values, producer_id=producer_id, transactional=True), client=False
            )
            self.events.append(Event(appended.base_offset, appended.last_offset, producer_id, None))
        assert self.harness.service.flush() == []

    @rule(producer_id=st.sampled_from(PRODUCERS), commits=st.booleans())
    def end_one(self, producer_id: int, commits: bool) -> None:
        marker = build_end_marker(
            producer_id, 0, EndMarker(commits, COORDINATOR_EPOCH), self.harness.clock.now_ms
        )
        appended = self.harness.append(self.log, marker, client=False)
        self.events.append(Event(appended.base_offset, appended.last_offset, producer_id, commits))
        assert self.harness.service.flush() == []

    @rule(
        rounds=st.lists(
            st.tuples(st.sampled_from(PRODUCERS), st.booleans()), min_size=4, max_size=10
        )
    )
    def churn(self, rounds: list[tuple[int, bool]]) -> None:
        """Short transactions, enough of them to fill segments."""
        for producer_id, commits in rounds:
            self.write(producer_id, [1])
            self.end_one(producer_id, commits)

    @rule(share=st.floats(0, 1).map(lambda drawn: 1 - drawn**3))
    def truncate(self, share: float) -> None:
        offset = self.start + int((self.end - self.start) * share)
        # no segment begins before a truncation is durable
        trio.run(self._run, lambda: self.harness.service.truncate_to(self.log, offset))
        self.events = [event for event in self.events if event.last < offset]
        self.start = min(self.start, self.end)

    @rule()
    def sync(self) -> None:
        trio.run(self._run, lambda: None)

    async def _run(self, first: Callable[[], None]) -> None:
        """Run an operation, and sync everything."""
        service, log = self.harness.service, self.log
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.run)
            first()
            service.request_sync(log)
            await wait_until(
                lambda: (
                    log.durability.end_offset == log.log_end_offset
                    and log.durability.unsynced_truncation is None
                )
            )
            nursery.cancel_scope.cancel()
        # when no other task syncs: both would use the same temporary file
        await service.checkpoint_recovery_points()

    def reopen(self) -> None:
        trio.run(self.harness.restart)
        assert PARTITION in self.harness.service.logs, self.harness.service.offline
        self.log = self.harness.open(CONFIG)

    @rule()
    def stop_and_start(self) -> None:
        trio.run(self.harness.service.close)
        self.reopen()

    @rule()
    def forget_indexes(self) -> None:
        """Indexes of older segments are read again on demand."""
        for segment in self.log.segments[:-1]:
            if segment.transaction_index is not None and not segment.transaction_index.stale:
                segment.transaction_index = None

    @precondition(lambda self: self.log.active.size)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        """kill -9: the last file keeps any number of its bytes, and unsynced files beside it are
        damaged or missing.
        """
        base = self.log.active.base_offset
        path = self.log.path / f"{base:020d}.log"
        content = path.read_bytes()
        size = data.draw(st.integers(0, len(content)), "bytes kept")
        path.write_bytes(content[:size])
        index = self.log.path / f"{base:020d}.txnindex"
        if data.draw(st.booleans(), "the index is damaged"):
            index.write_bytes(data.draw(st.sampled_from([b"", b"torn", b"\0" * 34])))
        position, end = 0, base
        while position + 61 <= size and position + parse_header(content, position).size <= size:
            header = parse_header(content, position)
            position, end = position + header.size, header.next_offset
        self.reopen()
        self.events = [event for event in self.events if event.last < end]

    @invariant()
    def the_log_is_explained(self) -> None:
        log, end = self.log, self.end
        assert log.log_end_offset == end
        begun, aborted = explain(self.events)
        assert dict(log.producers.open) == {
            first: producer_id
            for producer_id, first in sorted(begun.items(), key=lambda one: one[1])
        }
        assert list(log.producers.open) == sorted(log.producers.open)
        stable = log.last_stable_offset(end)
        assert stable == min(begun.values(), default=end)
        reader = self.harness.service.reader
        for start in range(0, stable + 1, 3):
            for stop in (start + 1, (start + stable) // 2, stable):
                found = reader.aborted(log, start, stop) if stop <= stable else []
                expected = (
                    [one for one in aborted if one.last_offset >= start and one.first_offset < stop]
                    if stop <= stable
                    else []
                )
                assert [one[:3] for one in found] == [
                    one[:3] for one in sorted(expected, key=lambda one: one.first_offset)
                ], (start, stop)
                if stop <= stable:
                    candidates = reader.aborted_candidates(log, start, stop)
                    assert candidates.count >= len(found)
                    assert all_slices(candidates.listed()) == [
                        (one.producer_id, one.first_offset) for one in found
                    ], (start, stop)

    @invariant()
    def files_are_kafkas(self) -> None:
        """Everything below the recovery point can be read from the files alone."""
        _, aborted = explain(self.events)
        for segment in self.log.segments[:-1]:
            if segment.next_offset <= self.log.durability.recovery_point:
                path = self.log.path / f"{segment.base_offset:020d}.txnindex"
                in_file = decode_txn_index(path.read_bytes()) if path.exists() else []
                assert in_file == [
                    one
                    for one in aborted
                    if segment.base_offset <= one.last_offset < segment.next_offset
                ]

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.kill()
            shutil.rmtree(self.home)


TransactionMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
test_transactions_are_what_was_appended = TransactionMachine.TestCase
