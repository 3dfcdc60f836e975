"""The log compared with a list: Hypothesis appends, rolls, truncates, deletes records, kills at any
byte and reopens.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mqd.errors import MqError
from mqd.log.disk.sync_plan import plan_sync
from mqd.log.log_config import LogConfig
from mqd.log.partition_log import PartitionLog
from mqd.protocol.batch import parse_header
from mqd.protocol.compression import Codec
from tests.log.support import PARTITION, Harness, batch

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=150, file_delete_delay_ms=0)


class LogMachine(RuleBasedStateMachine):
    """`batches` is the model: (first offset, values) of each batch that must be there; `sent`:
    (sequence, first offset, values) of each batch of the producer's epoch, all of which are there.
    """

    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp())
        self.batches: list[tuple[int, list[bytes]]] = []
        self.start = 0
        self.epoch = 0
        self.sequence = 0
        self.sent: list[tuple[int, int, list[bytes]]] = []
        self.counter = 0
        self.synced_end = 0

        async def make() -> Harness:
            harness = Harness(self.home)
            await harness.service.start()
            return harness

        self.harness = trio.run(make)
        self.log: PartitionLog = self.harness.open(CONFIG)

    @property
    def end(self) -> int:
        return self.batches[-1][0] + len(self.batches[-1][1]) if self.batches else self.log_base

    log_base = 0

    @rule(
        counts=st.lists(st.integers(1, 4), min_size=1, max_size=4),
        codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]),
    )
    def append(self, counts: list[int], codec: Codec) -> None:
        for count in counts:
            values = [b"%05d" % (self.counter + number) * 10 for number in range(count)]
            self.counter += count
            appended = self.harness.append(
                self.log,
                batch(
                    *values, codec=codec, producer_id=1, epoch=self.epoch, sequence=self.sequence
                ),
                epoch=self.epoch,
            )
            assert appended.base_offset == self.end and not appended.duplicate
            self.sent.append((self.sequence, self.end, values))
            self.batches.append((self.end, values))
            self.sequence += count
        assert self.harness.service.flush() == []

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1
        self.sequence = 0
        self.sent.clear()

    def forget_from(self, offset: int) -> None:
        """The model loses whole batches that reach to `offset`; the producer starts over with a new
        epoch.
        """
        base = self.end if offset >= self.end else offset
        kept = [(first, values) for first, values in self.batches if first + len(values) <= base]
        if not kept:
            self.log_base = self.batches[0][0] if self.batches else self.log_base
        self.batches = kept
        self.new_epoch()

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = self.start + int((self.end - self.start) * share)
        trio.run(self._truncate, offset)
        if offset < self.end:
            self.forget_from(offset)
        self.start = min(self.start, self.end)

    async def _truncate(self, offset: int) -> None:
        self.harness.service.truncate_to(self.log, offset)
        await self.harness.service.checkpoint_recovery_points()
        # no segment begins before the truncation is durable
        plan = plan_sync(self.harness.disk, self.log, whole=True)
        plan.run(self.harness.disk)
        self.harness.service.after_sync(plan)

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = self.start + int((self.end - self.start) * share)
        self.start = self.harness.service.delete_records(self.log, offset)
        assert self.start == offset

    def reopen(self) -> None:
        trio.run(self.harness.restart)
        assert PARTITION in self.harness.service.logs, self.harness.service.offline
        self.log = self.harness.open(CONFIG)

    @rule()
    def stop_and_start(self) -> None:
        trio.run(self.harness.service.close)
        self.reopen()
        assert self.harness.service.registry.clean_start and not self.harness.service.reports

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        """kill -9: the last file keeps any number of its bytes; the log start is the checkpointed
        one, or not.
        """
        path = self.log.path / f"{self.log.active.base_offset:020d}.log"
        base = self.log.active.base_offset
        content = path.read_bytes()
        size = data.draw(st.integers(0, len(content)), "bytes kept")
        left = content[:size] + data.draw(st.sampled_from([b"", b"\0" * 100, b"garbage"]), "tail")
        path.write_bytes(left)
        while size < len(content) and left[: size + 1] == content[: size + 1]:
            size += 1  # the tail may happen to be the truncated bytes
        for index in self.log.path.glob("*index"):
            if data.draw(st.booleans(), index.name):
                index.unlink()
        position, end = 0, base
        while position + 61 <= size and position + parse_header(content, position).size <= size:
            header = parse_header(content, position)
            position, end = position + header.size, header.next_offset
        lost = end < self.end
        self.reopen()
        self.start = self.log.log_start_offset
        if lost:
            self.forget_from(end)
        assert self.log.log_end_offset == max(end, self.start)
        if end < self.start:
            self.batches = []  # the rest is before the log start: the log is reset to it
        if not self.batches:
            self.log_base = self.log.log_end_offset

    @invariant()
    def the_log_is_the_model(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (
            self.start,
            max(self.end, self.start),
        ), (self.batches, self.start)
        expected = [
            (first + number, value)
            for first, values in self.batches
            for number, value in enumerate(values)
        ]
        found = [
            (record.offset, record.value) for record in self.harness.read_all(log, max_bytes=300)
        ]
        assert found == [pair for pair in expected if pair[0] >= self.start]
        assert log.size_bytes == sum(path.stat().st_size for path in log.path.glob("*.log"))
        assert log.epochs.latest <= self.epoch
        for entry in log.producers.entries():
            assert entry.last_offset < log.log_end_offset

    @invariant()
    def the_last_five_batches_may_come_again(self) -> None:
        """And the one before them is refused."""
        for sequence, first, values in self.sent[-5:]:
            again = self.harness.append(
                self.log,
                batch(*values, producer_id=1, epoch=self.epoch, sequence=sequence),
                epoch=self.epoch,
            )
            assert again.duplicate and again.base_offset == first
        for sequence, _first, values in self.sent[-6:-5]:
            with pytest.raises(MqError):
                self.harness.append(
                    self.log,
                    batch(*values, producer_id=1, epoch=self.epoch, sequence=sequence),
                    epoch=self.epoch,
                )

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.kill()
            shutil.rmtree(self.home)


LogMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
test_the_log_is_a_list = LogMachine.TestCase
