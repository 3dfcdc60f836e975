"""The runtime of coordinators on a real log: a shard's decisions are in the log before any client
gets a response, and its state is the log.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mqd.coordinator.account import unbounded
from mqd.coordinator.partitioning import partition_for
from mqd.coordinator.record_format import RecordFormatError
from mqd.coordinator.service import CoordinatorService
from mqd.coordinator.shard import (
    NO_PRODUCER,
    NOTHING,
    CoordinatorRecord,
    CoordinatorResult,
    Moment,
    Producer,
    Ticket,
)
from mqd.errors import ErrorCode, MqError
from mqd.logs import RepeatFilter
from mqd.protocol.batch import write_crc
from mqd.protocol.batch_builder import build_batch
from mqd.replica.partition import Partition
from tests.log.support import FaultyDisk, wait_until
from tests.replica.replicas import ME, TWO, Replicas

TOPIC = "__consumer_offsets"


class Registers:
    """A shard that keeps a value for each key, and records the events that a test checks."""

    def __init__(self) -> None:
        self.account = unbounded()
        self.values: dict[bytes, bytes] = {}
        self.pending: dict[Producer, dict[bytes, bytes]] = {}
        self.loaded = 0
        self.is_loaded = trio.Event()
        self.woken: list[float] = []
        self.deadline: float | None = None
        self.metadata = 0
        self.forgotten: set[Ticket] = set()
        self.refused: bytes | None = None
        self.breaks: bytes | None = None
        self.breaks_at_marker = False
        self.due_after_marker: float | None = None
        self.refuses_life = False

    def handle(self, ticket: Ticket, op: Any, now: Moment) -> CoordinatorResult:
        match op:
            case ("get", key):
                return CoordinatorResult(responses=((ticket, {"value": self.values.get(key)}),))
            case ("put", key, value):
                return CoordinatorResult(
                    (CoordinatorRecord(key, value),),
                    ((ticket, {"before": self.values.get(key)}),),
                    effects=(f"put {key!r}",),
                )
            case ("put-with", producer, key, value):
                return CoordinatorResult(
                    (CoordinatorRecord(key, value),), ((ticket, {}),), producer=producer
                )
            case ("put-and-wait", key, value):
                return CoordinatorResult((CoordinatorRecord(key, value),))
            case ("wait",):
                return NOTHING
            case ("wake", at):
                self.deadline = at
                return CoordinatorResult(responses=((ticket, {}),))
            case ("refuse",):
                raise MqError(ErrorCode.INVALID_GROUP_ID)
            case _:
                raise AssertionError("a bug")

    def replay(self, record: CoordinatorRecord, producer: Producer = NO_PRODUCER) -> None:
        if self.refused == record.key:
            raise RecordFormatError("no version that is known here")
        if self.breaks == record.key:
            raise ValueError("a bug in replay")
        values = self.values if producer == NO_PRODUCER else self.pending.setdefault(producer, {})
        if record.value is None:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value

    def replay_end(self, producer: Producer, committed: bool) -> None:
        if self.breaks_at_marker:
            raise ValueError("a bug in replay_end")
        self.deadline = self.due_after_marker
        pending = self.pending.pop(producer, {})
        if committed:
            self.values.update(pending)

    def on_loaded(self, now: Moment) -> CoordinatorResult:
        if self.refuses_life:
            raise ValueError("what was loaded makes no sense")
        self.loaded += 1
        self.is_loaded.set()
        return NOTHING

    def on_absence(self, seconds: float) -> None:
        assert self.deadline is not None
        self.deadline += seconds

    def on_metadata(self, now: Moment) -> CoordinatorResult:
        self.metadata += 1
        return NOTHING

    def next_deadline(self) -> float | None:
        return self.deadline

    def on_deadline(self, now: Moment) -> CoordinatorResult:
        self.woken.append(now.seconds)
        self.deadline = None
        return NOTHING

    def abandoned(self, tickets: Collection[Ticket]) -> None:
        self.forgotten.update(tickets)


def check(op: Any) -> None:
    if op == ("refuse",):
        raise MqError(ErrorCode.INVALID_GROUP_ID)


class Runtime(Replicas):
    def __init__(self, directory: Path, disk: FaultyDisk | None = None) -> None:
        super().__init__(directory, disk=disk)
        self.shards: list[Registers] = []
        self.performed: list[tuple[int, int, Any, int]] = []
        self.coordinator = CoordinatorService(
            topic=TOPIC,
            make_shard=self.make_shard,
            check=check,
            partitions=lambda: 2,
            replica=self.replica,
            logs=self.service,
            clock=self.clock,
            disk=self.disk,
            perform=lambda *what: self.performed.append(what),
        )
        self.ports.on_role_changed = self.coordinator.role_changed

        self.refused: bytes | None = None
        """The key of a record that no shard can decode any more."""
        self.breaks: dict[int, bytes] = {}
        """By partition: the key of a record whose replay raises an exception."""
        self.refuses_life = False

    def make_shard(self, index: int) -> Registers:
        self.shards.append(Registers())
        self.shard.refused = self.refused
        self.shard.breaks = self.breaks.get(index)
        self.shard.refuses_life = self.refuses_life
        return self.shards[-1]

    @property
    def shard(self) -> Registers:
        return self.shards[-1]

    def lead(self, epoch: int = 0, **options: Any) -> Partition:
        return self.held(TOPIC, epoch=epoch, **options)

    async def loaded(self) -> None:
        """Wait until every shard led here is ready; a thread reads its log."""
        with trio.fail_after(10):
            await self.shard.is_loaded.wait()

    async def loaded_with(self, values: Mapping[bytes, bytes]) -> None:
        """Like `loaded`, for the shard that is ready."""
        await wait_until(lambda: self.shard.loaded and self.shard.values == values)

    async def ask(self, *op: Any, index: int = 0) -> Mapping[str, Any]:
        return await self.coordinator.call_shard(index, op)


@asynccontextmanager
async def running(
    directory: Path, disk: FaultyDisk | None = None
) -> AsyncIterator[tuple[Runtime, trio.Nursery]]:
    runtime = Runtime(directory, disk)
    await runtime.service.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.replica.run)
        nursery.start_soon(runtime.coordinator.run)
        yield runtime, nursery
        nursery.cancel_scope.cancel()


async def code_of(runtime: Runtime, *op: Any) -> ErrorCode:
    with pytest.raises(MqError) as refused:
        await runtime.ask(*op)
    return refused.value.code


def test_keys_are_spread_as_apache_kafka_spreads_them() -> None:
    assert [
        partition_for(key, 50)
        for key in ("", "a", "my-group", "polygenelubricants", "grüße", "\U0001f600")
    ] == [0, 47, 12, 0, 23, 49]


async def test_written_values_are_in_the_log_and_read_by_the_next_leader(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as (runtime, _):
        runtime.lead(1)
        await wait_all_tasks_blocked()
        assert await runtime.ask("put", b"k", b"1") == {"before": None}
        assert await runtime.ask("put", b"k", b"2") == {"before": b"1"}
        runtime.lead(2, leader=TWO, replicas=(ME, TWO))
        assert await code_of(runtime, "get", b"k") is ErrorCode.NOT_COORDINATOR
        runtime.lead(3)
        assert await code_of(runtime, "get", b"k") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await runtime.loaded()
        assert await runtime.ask("get", b"k") == {"value": b"2"}
        assert [shard.loaded for shard in runtime.shards] == [1, 1]


async def test_uncommitted_state_is_not_returned_even_to_reads(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as (runtime, nursery):
        partition = runtime.lead(replicas=(ME, TWO))
        await wait_all_tasks_blocked()
        received: list[str] = []

        async def ask(name: str, *op: Any) -> None:
            await runtime.ask(*op)
            received.append(name)

        nursery.start_soon(ask, "put", "put", b"k", b"1")
        await wait_all_tasks_blocked()
        nursery.start_soon(ask, "get", "get", b"k")
        await wait_all_tasks_blocked()
        assert (received, runtime.performed, partition.log.written_end_offset) == ([], [], 1)
        runtime.replica.follower_fetched(partition, TWO, -1, 1, 0)
        await wait_all_tasks_blocked()
        assert sorted(received) == ["get", "put"]
        assert runtime.performed == [(0, 0, "put b'k'", 1)]


async def test_a_refusal_waits_until_the_state_behind_it_is_committed(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, nursery):
        partition = runtime.lead(replicas=(ME, TWO))
        await wait_all_tasks_blocked()
        received: list[ErrorCode] = []

        async def ask() -> None:
            received.append(await code_of(runtime, "refuse"))

        nursery.start_soon(runtime.ask, "put", b"k", b"1")
        await wait_all_tasks_blocked()
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        assert received == []
        runtime.replica.follower_fetched(partition, TWO, -1, 1, 0)
        await wait_all_tasks_blocked()
        assert received == [ErrorCode.INVALID_GROUP_ID]
        assert await code_of(runtime, "refuse") is ErrorCode.INVALID_GROUP_ID, (
            "at once, when nothing is uncommitted"
        )


async def test_a_deposed_coordinator_sends_no_refusal_from_uncommitted_state(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as (runtime, nursery):
        runtime.lead(replicas=(ME, TWO))
        await wait_all_tasks_blocked()
        received: list[ErrorCode] = []

        async def ask(*op: Any) -> None:
            received.append(await code_of(runtime, *op))

        for op in (("put", b"k", b"1"), ("refuse",)):
            nursery.start_soon(ask, *op)
            await wait_all_tasks_blocked()
        runtime.lead(leader=TWO, replicas=(ME, TWO), epoch=1)
        await wait_all_tasks_blocked()
        assert received == [ErrorCode.NOT_COORDINATOR] * 2


async def test_a_late_commit_times_out_and_its_effect_follows_the_commit(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with running(tmp_path) as (runtime, _):
        partition = runtime.lead(replicas=(ME, TWO))
        await wait_all_tasks_blocked()
        assert await code_of(runtime, "put", b"k", b"1") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert runtime.performed == []
        runtime.replica.follower_fetched(partition, TWO, -1, 1, 0)
        await trio.sleep(1)
        assert runtime.performed == [(0, 0, "put b'k'", 1)]


async def test_the_effect_follows_the_commit_before_any_deadline(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with running(tmp_path) as (runtime, _):
        partition = runtime.lead(replicas=(ME, TWO))
        await wait_all_tasks_blocked()
        runtime.shard.deadline = runtime.clock.monotonic() + 3600
        runtime.coordinator.topics_changed()
        await wait_all_tasks_blocked()
        assert await code_of(runtime, "put", b"k", b"1") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        runtime.replica.follower_fetched(partition, TWO, -1, 1, 0)
        await trio.sleep(1)
        assert runtime.performed == [(0, 0, "put b'k'", 1)]


async def test_no_coordinator_has_the_shard_of_another_leader(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, _):
        runtime.lead(1)
        assert runtime.coordinator.holds(0, 1)
        assert not runtime.coordinator.holds(0, 0) and not runtime.coordinator.holds(1, 1)
        runtime.lead(2, leader=TWO, replicas=(ME, TWO))
        assert not runtime.coordinator.holds(0, 1) and not runtime.coordinator.holds(0, 2)


async def test_waiters_get_an_error_when_another_leads(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, nursery):
        runtime.lead(replicas=(ME, TWO))
        await wait_all_tasks_blocked()
        codes: list[ErrorCode] = []

        async def wait(*op: Any) -> None:
            codes.append(await code_of(runtime, *op))

        nursery.start_soon(wait, "wait")
        nursery.start_soon(wait, "put", b"k", b"1")
        await wait_all_tasks_blocked()
        runtime.lead(1, leader=TWO, replicas=(ME, TWO))
        await wait_all_tasks_blocked()
        assert codes == [ErrorCode.NOT_COORDINATOR] * 2


async def test_only_records_that_cannot_be_decoded_are_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as (runtime, _):
        partition = runtime.lead(1)
        await runtime.loaded()
        for key in (b"a", b"bad", b"b", b"bad"):
            await runtime.ask("put", key, b"1")
        runtime.refused = b"bad"
        runtime.lead(2)
        await runtime.loaded_with({b"a": b"1", b"b": b"1"})
        assert await runtime.ask("put", b"c", b"1") == {"before": None}
    [record] = [record for record in caplog.records if "skipped" in record.getMessage()]
    assert RepeatFilter(lambda: 0.0).filter(record) and vars(record)["always"]
    assert record.getMessage() == (
        f"skipped records that cannot be decoded partition={partition.log.topic_partition} "
        "records=2 first_offset=1 "
        "reason=RecordFormatError('no version that is known here')"
    )


async def test_a_bug_in_replay_takes_down_only_its_shard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqd.coordinator.loader.RELOAD_AFTER_BUG_SECONDS", 0.05)
    async with running(tmp_path) as (runtime, _):
        for index in range(2):
            runtime.held(TOPIC, index, epoch=1)
            await runtime.loaded()
            for key in (b"a", b"k", b"b"):
                await runtime.ask("put", key, b"1", index=index)
        runtime.breaks[0] = b"k"
        for index in range(2):
            runtime.held(TOPIC, index, epoch=2)
        await wait_until(lambda: "bug: cannot load a coordinator" in caplog.text)
        for op in (("get", b"a"), ("put", b"c", b"1")):
            assert await code_of(runtime, *op) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        await wait_until(lambda: [s.loaded for s in runtime.shards].count(1) == 3)
        assert await runtime.ask("get", b"b", index=1) == {"value": b"1"}
        # while it is retried
        assert await code_of(runtime, "get", b"a") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert b"a" not in runtime.shards[-1].values or not runtime.shards[-1].loaded
        runtime.breaks.clear()
        await runtime.loaded_with({b"a": b"1", b"k": b"1", b"b": b"1"})
        assert await runtime.ask("get", b"k") == {"value": b"1"}
    first = next(record for record in caplog.records if "bug: cannot load" in record.getMessage())
    assert (
        first.levelname == "ERROR"
        and first.getMessage()
        == f"bug: cannot load a coordinator, its requests fail partition={TOPIC}-0"
    )
    assert first.exc_info is not None and isinstance(first.exc_info[1], ValueError)
    assert first.exc_info[1].__notes__ == ["in the replay of the record at offset 1"]


async def test_a_bug_in_live_replay_fails_the_loading_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as (runtime, _):
        runtime.breaks[0] = b"k"
        runtime.lead(1)
        await runtime.loaded()
        with pytest.raises(ValueError, match="a bug in replay"):
            await runtime.ask("put", b"k", b"1")
        await wait_until(lambda: "bug: cannot load a coordinator" in caplog.text)
        assert await code_of(runtime, "get", b"k") is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_bug_in_the_replay_of_a_marker_reloads_the_shard(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, _):
        partition = runtime.lead(1)
        await runtime.loaded()
        producer = Producer(7, 0)
        guard = partition.log.producers.guard(7, 0, -1, False, runtime.clock.now_ms)
        assert guard is not None
        guard.confirmed = True
        await runtime.ask("put-with", producer, b"k", b"1")
        runtime.shard.breaks_at_marker = True
        with pytest.raises(ValueError, match="a bug in replay_end"):
            await runtime.coordinator.write_marker(0, producer, 5, True)
        await runtime.loaded_with({b"k": b"1"})  # read from the log, marker included
        assert len(runtime.shards) == 2


async def test_the_unreadable_part_of_a_damaged_batch_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as (runtime, _):
        partition = runtime.lead(1)
        await runtime.loaded()
        await runtime.ask("put", b"a", b"1")
        torn = build_batch([(b"x", b"1"), (b"y", b"2")])
        torn[-9] = 0x7F  # the length of the last record
        write_crc(torn)
        runtime.replica.append_nowait(partition, memoryview(torn), -1, 0)
        runtime.replica.end_of_turn()
        await runtime.ask("put", b"b", b"1")
        runtime.lead(2)
        await runtime.loaded_with({b"a": b"1", b"x": b"1", b"b": b"1"})
    assert "records=1 first_offset=1 reason=MqError" in caplog.text


async def test_a_shard_that_fails_to_load_is_retried_with_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqd.coordinator.loader.RELOAD_AFTER_BUG_SECONDS", 0.2)
    async with running(tmp_path) as (runtime, _):
        runtime.refuses_life = True
        began = trio.current_time()
        runtime.lead(1)
        await wait_until(lambda: len(runtime.shards) >= 4)  # the fourth waits for its retry
        assert trio.current_time() - began >= 0.4
        assert await code_of(runtime, "get", b"k") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        runtime.refuses_life = False
        await runtime.loaded_with({})


async def test_shards_are_read_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as (runtime, _):
        for index in range(2):
            runtime.held(TOPIC, index, epoch=1)
            await runtime.loaded()
            await runtime.ask("put", b"k%d" % index, b"1", index=index)
        reading = most = 0

        async def offload(function: Any, *arguments: Any) -> Any:
            nonlocal reading, most
            reading += 1
            most = max(most, reading)
            await wait_all_tasks_blocked()
            reading -= 1
            return function(*arguments)

        monkeypatch.setattr(runtime.disk, "offload", offload)
        for index in range(2):
            runtime.held(TOPIC, index, epoch=2, leader=TWO, replicas=(ME, TWO))
            runtime.held(TOPIC, index, epoch=3)
        await wait_until(
            lambda: (
                [len(shard.values) for shard in runtime.shards[-2:]] == [1, 1]
                and all(s.loaded for s in runtime.shards)
            )
        )
        assert most == 1


async def test_a_refused_append_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, _):
        runtime.lead(replicas=(ME, TWO), isr=(ME,), minimum=2)
        await wait_all_tasks_blocked()
        assert await code_of(runtime, "put", b"k", b"1") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        with trio.fail_after(5):
            assert (
                await code_of(runtime, "put-and-wait", b"k", b"1")
                is ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        assert len(runtime.shards) == 1
        assert runtime.shard.values == {}


async def test_a_failed_write_resets_the_shard_to_the_log(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with running(tmp_path, disk) as (runtime, _):
        runtime.lead()
        await wait_all_tasks_blocked()
        await runtime.ask("put", b"k", b"1")
        disk.write_error = errno.ENOSPC
        assert await code_of(runtime, "put", b"k", b"2") is ErrorCode.NOT_COORDINATOR
        disk.write_error = 0
        await runtime.loaded()
        assert runtime.shard.values == {b"k": b"1"}
        assert len(runtime.shards) == 2


async def test_a_bug_in_a_shard_reloads_it_and_loses_no_records(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, _):
        runtime.lead()
        await wait_all_tasks_blocked()
        await runtime.ask("put", b"k", b"1")
        with pytest.raises(AssertionError):
            await runtime.ask("bug")
        await runtime.loaded()
        assert len(runtime.shards) == 2
        assert await runtime.ask("get", b"k") == {"value": b"1"}


async def test_invalid_requests_are_refused_without_a_shard(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, _):
        for op, code in (
            (("refuse",), ErrorCode.INVALID_GROUP_ID),
            (("get", b"k"), ErrorCode.NOT_COORDINATOR),
        ):
            with pytest.raises(MqError) as refused:
                await runtime.coordinator.call("key", op)
            assert refused.value.code is code


async def test_a_refusal_by_the_shard_is_the_response(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, _):
        runtime.lead()
        await wait_all_tasks_blocked()
        assert await code_of(runtime, "refuse") is ErrorCode.INVALID_GROUP_ID
        assert len(runtime.shards) == 1


async def test_a_cancelled_caller_is_removed(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, _):
        runtime.lead()
        await wait_all_tasks_blocked()
        with trio.move_on_after(0.01):
            await runtime.ask("wait")
        assert len(runtime.shard.forgotten) == 1


async def test_shards_are_called_at_their_deadlines(tmp_path: Path, autojump_clock: Any) -> None:
    async with running(tmp_path) as (runtime, _):
        runtime.lead()
        await wait_all_tasks_blocked()
        at = runtime.clock.monotonic() + 30
        await runtime.ask("wake", at + 10)
        await runtime.ask("wake", at)
        await trio.sleep(60)
        assert runtime.shard.woken == [at]


async def test_a_released_shard_decides_nothing_more(tmp_path: Path, autojump_clock: Any) -> None:
    async with running(tmp_path) as (runtime, _):
        runtime.lead(0)
        runtime.held(TOPIC, 1, epoch=0)
        await wait_all_tasks_blocked()
        first, second = runtime.shards
        at = runtime.clock.monotonic() + 30

        def elected_again(now: Moment) -> CoordinatorResult:
            first.deadline = None
            # as if it arrived while the loop iterates over the shards
            runtime.held(TOPIC, 1, epoch=1)
            return NOTHING

        first.on_deadline = elected_again  # type: ignore[method-assign]  # replaced by the test
        await runtime.ask("wake", at, index=0)
        await runtime.ask("wake", at, index=1)
        await trio.sleep(60)
        assert len(runtime.shards) == 3 and second.woken == []


async def test_deadlines_are_delayed_by_the_time_without_service(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with running(tmp_path) as (runtime, _):
        runtime.lead()
        await wait_all_tasks_blocked()
        at = runtime.clock.monotonic() + 30
        await runtime.ask("wake", at)
        await trio.sleep(10)
        runtime.replica.set_in_contact(False)
        await trio.sleep(100)
        assert runtime.shard.woken == []
        runtime.replica.set_in_contact(True)
        await trio.sleep(19)
        assert runtime.shard.woken == []
        await trio.sleep(2)
        assert runtime.shard.woken == [pytest.approx(at + 100, abs=1)]


async def test_many_changes_of_topics_are_reported_once(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, _):
        runtime.lead()
        await wait_all_tasks_blocked()
        for _ in range(5):
            runtime.coordinator.topics_changed()
        await wait_all_tasks_blocked()
        assert runtime.shard.metadata == 1


@pytest.mark.parametrize("committed", [True, False])
async def test_records_of_a_transaction_count_when_its_marker_commits_them(
    tmp_path: Path, committed: bool
) -> None:
    producer = Producer(7, 0)
    async with running(tmp_path) as (runtime, _):
        partition = runtime.lead(1)
        await runtime.loaded()
        guard = partition.log.producers.guard(7, 0, -1, False, runtime.clock.now_ms)
        assert guard is not None
        guard.confirmed = True
        await runtime.ask("put-with", producer, b"k", b"1")
        assert await runtime.ask("get", b"k") == {"value": None}
        runtime.shard.due_after_marker = 0.0  # as a group shard that has more to do
        await runtime.coordinator.write_marker(0, producer, 5, committed)
        await wait_all_tasks_blocked()
        assert len(runtime.shard.woken) == 1
        wanted = {"value": b"1" if committed else None}
        assert await runtime.ask("get", b"k") == wanted
        runtime.lead(2)
        await runtime.loaded()
        assert await runtime.ask("get", b"k") == wanted
        assert runtime.shard.pending == {}


async def test_offsets_of_a_prepared_transaction_are_sealed_and_wait_for_its_marker(
    tmp_path: Path,
) -> None:
    """KIP-939: the sealed epoch writes nothing more, here and with the next coordinator."""
    producer = Producer(7, 0)
    async with running(tmp_path) as (runtime, _):
        partition = runtime.lead(1)
        await runtime.loaded()
        guard = partition.log.producers.guard(7, 0, -1, False, runtime.clock.now_ms)
        assert guard is not None
        guard.confirmed = True
        await runtime.ask("put-with", producer, b"k", b"1")
        for _ in range(2):
            await runtime.coordinator.write_seal(0, Producer(7, 1), 5)
        for epoch in (1, 2):
            with pytest.raises(MqError) as caught:
                await runtime.ask("put-with", producer, b"k", b"2")
            assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
            runtime.lead(epoch + 1)
            await runtime.loaded()
        assert await runtime.ask("get", b"k") == {"value": None}
        assert partition.log.producers.open
        await runtime.coordinator.write_marker(0, Producer(7, 1), 5, True, 1)
        assert not partition.log.producers.open


async def test_everywhere_means_every_shard_led_here(tmp_path: Path) -> None:
    async with running(tmp_path) as (runtime, _):
        runtime.lead()
        runtime.lead(index=1)
        await wait_all_tasks_blocked()
        await runtime.ask("put", b"k", b"1", index=1)
        assert await runtime.coordinator.call_everywhere(("get", b"k")) == [
            {"value": None},
            {"value": b"1"},
        ]
