"""Dead letters: exactly one for each record that is given up, whatever crashes in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest
import trio
import trio.testing

from mqd.errors import ErrorCode, MqError
from mqd.protocol.record_reader import Record
from mqd.relay.ports import CommittedProgress
from mqd.relay.producer import RecordsRefused
from mqd.relay.stall import WARN_EVERY_SECONDS
from mqd.share import dead_letter_writer
from mqd.share.dead_letter_writer import DeadLetterWriter
from mqd.share.dead_letters import (
    EXPIRED,
    LETTERS_AT_ONCE,
    REJECTED,
    TOO_OFTEN,
    Archiving,
    Source,
    Target,
    cause_of,
    decode_written,
    encode_written,
    letter,
    progress_group,
    transactional_id,
)
from mqd.share.giving_up import archive, archiving
from mqd.share.record_states import Batch, RecordState
from mqd.share.share_partition import SharePartition
from mqd.share.values import Acknowledgement, AcknowledgeType, Limits
from mqd.types import Offset, TopicPartition
from tests.share.support import acknowledge, acquire, complete, expire, stored_batches

SOURCE = Source("g", "orders", 5)
DLQ = TopicPartition("orders.dlq", 2)
TARGET = Target("orders.dlq", 3, copies=True)
LIMITS = Limits(
    delivery_count=2, record_locks=400, lock_seconds=10.0, state_bytes=1 << 20, dead_letters=True
)


class Crash(Exception):
    """The leader is gone."""


class World:
    """What survives a crash: the state at the share coordinator, and what transactions committed.
    `crash_at`: the number of the step at which the leader crashes."""

    def __init__(self, waiting: int) -> None:
        self.archiving = {
            Offset(3 * number): Archiving(Offset(3 * number), 2, 1000 + number)
            for number in range(waiting)
        }
        self.letters: list[Record] = []
        self.progress: CommittedProgress | None = None
        self.producer_epoch = 0
        self.leader = 0
        self.steps = 0
        self.crash_at = -1
        self.paused: trio.Event | None = None
        """The leader waits here instead, as a former leader that does not know yet."""

    async def step(self) -> None:
        await trio.lowlevel.checkpoint()
        self.steps += 1
        if self.steps == self.crash_at:
            if self.paused is None:
                raise Crash
            await self.paused.wait()


class Leader:
    """The share partition as the writer of one leader sees it, and its producer."""

    def __init__(self, world: World, *, per_transaction: int = 100) -> None:
        self.world = world
        world.leader += 1
        self.number = world.leader
        self.archiving = dict(world.archiving)
        self.epoch = -1
        self.per_transaction = per_transaction
        self.per_read = 3
        self.too_large: set[bytes] = set()

    # -- records

    def is_current(self) -> bool:
        return True  # it learns of its end late

    def waiting(self, most: int) -> list[Archiving]:
        return sorted(self.archiving.values())[:most]

    async def read(self, offsets: Sequence[Offset]) -> dict[Offset, Record | None]:
        await self.world.step()
        some = offsets[: self.per_read]
        return {each: Record(each, 77, b"k", b"v%d" % each, [("h", b"x")]) for each in some}

    async def archive(self, offsets: Sequence[Offset]) -> None:
        await self.world.step()
        if self.number != self.world.leader:
            raise Crash  # FENCED_LEADER_EPOCH: the share partition is dropped
        for offset in offsets:
            del self.world.archiving[offset]
        await self.world.step()
        for offset in offsets:
            del self.archiving[offset]

    async def give_up(self, offsets: Sequence[Offset]) -> None:
        await self.archive(offsets)

    def expires_at_ms(self, record: Record | None) -> int | None:
        return None

    def delivery_limit(self) -> int:
        return 2

    # -- the producer

    def explained(self, error: MqError, topics: Sequence[str]) -> MqError:
        return error

    async def begin_epoch(self) -> None:
        await self.world.step()
        self.world.producer_epoch += 1
        self.epoch = self.world.producer_epoch
        await self.world.step()

    async def progress(
        self, places: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedProgress]:
        await self.world.step()
        progress = self.world.progress
        return {} if progress is None else {places[0]: progress}

    async def write(
        self,
        records: Mapping[TopicPartition, Sequence[Record]],
        progress: Mapping[TopicPartition, CommittedProgress],
    ) -> None:
        await self.world.step()
        if self.epoch != self.world.producer_epoch:
            raise MqError(ErrorCode.PRODUCER_FENCED)
        [(place, letters)] = records.items()
        assert place == DLQ
        if len(letters) > self.per_transaction or any(
            one.value in self.too_large for one in letters
        ):
            raise RecordsRefused(place, MqError(ErrorCode.MESSAGE_TOO_LARGE))
        self.world.letters += letters
        [self.world.progress] = progress.values()
        await self.world.step()

    async def run(self, target: Target | None = TARGET) -> None:
        writer = DeadLetterWriter(
            SOURCE,
            self,
            self,  # type: ignore[arg-type]
            target=lambda: target,
            create=lambda name: False,
            wall_ms=lambda: 99,
        )
        await writer.run()


def offsets_of(world: World) -> Counter[int]:
    return Counter(int(dict(one.headers)["__dlq.errors.offset"] or b"") for one in world.letters)


async def check_crash(crash_at: int, waiting: int, per_transaction: int) -> bool:
    """Returns whether the leader crashed."""
    world = World(waiting)
    expected = Counter(list(world.archiving))
    world.crash_at = crash_at
    try:
        await Leader(world, per_transaction=per_transaction).run()
        crashed = False
    except Crash:
        crashed = True
    world.crash_at = -1
    await Leader(world, per_transaction=per_transaction).run()
    assert offsets_of(world) == expected, crash_at
    assert not world.archiving
    return crashed


@pytest.mark.parametrize(("waiting", "per_transaction"), [(1, 1), (5, 2), (70, 64)])
async def test_a_crash_between_any_two_steps(
    autojump_clock: trio.abc.Clock, waiting: int, per_transaction: int
) -> None:
    crash_at = 1
    while await check_crash(crash_at, waiting, per_transaction):
        crash_at += 1
    assert crash_at > 8


async def test_a_former_leader_that_continues(autojump_clock: trio.abc.Clock) -> None:
    """It pauses before any step, while its follower works."""
    for crash_at in range(1, 25):
        world = World(5)
        expected = Counter(list(world.archiving))
        world.crash_at, world.paused = crash_at, trio.Event()
        async with trio.open_nursery() as nursery:

            async def former(world: World = world) -> None:
                try:
                    with trio.move_on_after(60):
                        await Leader(world, per_transaction=2).run()
                except Crash:
                    pass

            nursery.start_soon(former)
            await trio.testing.wait_all_tasks_blocked()
            world.crash_at = -1
            await Leader(world, per_transaction=2).run()
            world.paused.set()
        assert offsets_of(world) == expected, crash_at


async def test_letters_that_are_refused(autojump_clock: trio.abc.Clock) -> None:
    """Fewer at a time, then without the copy of the record."""
    world = World(6)
    leader = Leader(world, per_transaction=4)
    leader.too_large = {b"v9"}
    await leader.run()
    assert len(world.letters) == 6 and set(offsets_of(world).values()) == {1}
    without_copy = [one for one in world.letters if one.value is None]
    assert [dict(one.headers)["__dlq.errors.offset"] for one in without_copy] == [b"9"]


async def test_without_a_topic_any_more(autojump_clock: trio.abc.Clock) -> None:
    world = World(70)
    await Leader(world).run(None)
    assert not world.archiving and not world.letters


async def test_a_topic_that_does_not_exist(
    autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(1)
    with trio.move_on_after(10 * dead_letter_writer.RETRY_SECONDS):
        await Leader(world).run(Target("orders.dlq", 0, True))
    assert world.archiving and not world.letters
    assert caplog.text.count("does not exist") == 1
    caplog.clear()
    with trio.move_on_after(WARN_EVERY_SECONDS + 2):
        await Leader(world).run(Target("orders.dlq", 0, True))
    assert caplog.text.count("does not exist") == 2, "it repeats while it lasts"


def test_a_letter() -> None:
    """Its producer does not choose where the letter is redriven."""
    own = [("h", b"x"), ("__dlq.errors.topic", b"older"), ("mqd-dlq-target", b"payments")]
    record = Record(7, 77, b"k", b"v", own)
    made = letter(
        SOURCE, Archiving(Offset(7), 2, 5), record, cause=REJECTED, copies=True, now_ms=99
    )
    expected = [
        ("h", b"x"),
        ("__dlq.errors.topic", b"orders"),
        ("__dlq.errors.partition", b"5"),
        ("__dlq.errors.offset", b"7"),
        ("__dlq.errors.group", b"g"),
        ("__dlq.errors.delivery.count", b"2"),
        ("__dlq.errors.message", b"Offset rejected by client."),
        ("__dlq.errors.timestamp", b"77"),
    ]
    assert made == Record(0, 99, b"k", b"v", expected)
    bare = letter(
        SOURCE, Archiving(Offset(7), 2, 5), record, cause=REJECTED, copies=False, now_ms=99
    )
    assert bare == Record(0, 99, None, None, expected[1:])
    gone = letter(SOURCE, Archiving(Offset(7), 2, 5), None, cause=TOO_OFTEN, copies=True, now_ms=99)
    assert (gone.key, gone.value, len(gone.headers)) == (None, None, 6)


def test_causes() -> None:
    def cause(count: int, expires: int | None) -> str:
        one = Archiving(Offset(7), count, 100)
        return cause_of(one, delivery_limit=2, expires_at_ms=expires)

    assert cause(1, None) == cause(1, 101) == REJECTED
    assert cause(2, None) == TOO_OFTEN
    assert cause(1, 100) == EXPIRED


def test_the_list_of_a_transaction() -> None:
    some = [Archiving(Offset(10**15 + n), 3, 1_800_000_000_000) for n in range(LETTERS_AT_ONCE)]
    text = encode_written(some)
    assert decode_written(text) == {(one.offset, one.since_ms) for one in some}
    assert len(text) < 4096, "the default of offset.metadata.max.bytes"
    assert decode_written("") == frozenset()


def test_names() -> None:
    topic_id = UUID(int=7)
    assert progress_group("g") == "__mqd_relay.share.g"
    assert transactional_id("g", topic_id, 3) == f"__mqd_relay.share.{topic_id}.3.g"
    assert len(transactional_id("x" * 4096, topic_id, 3)) < 200


def test_the_state_of_a_share_partition() -> None:
    """Given up, stored as ARCHIVING, then archived: the start offset waits for the last step."""
    partition = SharePartition.loaded(Offset(0), (), LIMITS)

    def acquired(now: float = 0.0) -> int:
        rows = acquire(partition, "a", (0, 9), now=now)
        return sum(one.last_offset - one.first_offset + 1 for one in rows)

    assert acquired() == 10
    rejected = Acknowledgement(0, 1, [AcknowledgeType.REJECT])
    gap = Acknowledgement(2, 2, [AcknowledgeType.GAP])
    released = Acknowledgement(3, 4, [AcknowledgeType.RELEASE])
    accepted = Acknowledgement(5, 9, [AcknowledgeType.ACCEPT])
    update = acknowledge(partition, "a", [rejected, gap, released, accepted], 0.0, wall_ms=50)
    assert update is not None
    assert update.batches[0] == Batch(0, 1, RecordState.ARCHIVING, 1, 50)
    assert archiving(partition, 9) == [], "before it is stored"
    complete(partition, update, stored=True)
    assert archiving(partition, 9) == [Archiving(Offset(0), 1, 50), Archiving(Offset(1), 1, 50)]
    assert partition.states.start_offset == 0 and partition.acquired_count == 0
    assert acquired() == 2
    update = expire(partition, 10.0, wall_ms=60)  # the second delivery is the last
    assert update is not None and update.batches == (Batch(3, 4, RecordState.ARCHIVING, 2, 60),)
    assert len(archiving(partition, 9)) == 2
    complete(partition, update, stored=True)
    loaded = SharePartition.loaded(Offset(0), stored_batches(partition), LIMITS)
    assert archiving(loaded, 9) == archiving(partition, 9)
    assert [one.offset for one in archiving(loaded, 9)] == [0, 1, 3, 4]
    assert [one.offset for one in archiving(loaded, 3)] == [0, 1, 3]
    for stored in (False, True):
        update = archive(loaded, [0, 1, 3])
        assert update is not None and update.batches[0].state is RecordState.ARCHIVED
        assert [one.offset for one in archiving(loaded, 9)] == [4], "the others are in flight"
        complete(loaded, update, stored=stored)
    assert loaded.states.start_offset == 4
    update = archive(loaded, [4])
    complete(loaded, update, stored=True)
    assert loaded.states.start_offset == 10 and not archiving(loaded, 9) and not loaded.gives_up
