"""The log end checkpoint of a node: a start detects a disk that is an older copy, and correct
changes raise no alarm.
"""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
import trio

from mqd.errors import MqError
from mqd.log.disk import log_end_checkpoint
from mqd.log.disk.log_end_checkpoint import load_log_ends
from mqd.log.log_config import LogConfig
from mqd.log.log_end import (
    LOG_END_CHECKPOINT,
    LOG_END_VOID,
)
from mqd.log.service import LogService
from mqd.protocol.batch import parse_header
from tests.log.support import PARTITION, Harness, batch

SMALL = LogConfig(segment_bytes=400, file_delete_delay_ms=0)


class Node:
    """A node with one log, whose machine keeps running, and whose disk may be replaced by an older
    copy of itself.
    """

    def __init__(self, home: Path) -> None:
        self.home = home / "logs"
        self.copies = home / "copies"
        self.harness = Harness(self.home)
        self.values: list[bytes] = []

    @property
    def service(self) -> LogService:
        return self.harness.service

    async def begin(self, config: LogConfig) -> None:
        await self.service.start()
        self.log = self.harness.open(config)

    def write(self, count: int = 1, epoch: int = 0) -> None:
        for _ in range(count):
            self.harness.write(
                self.log, batch(b"%d" % random.getrandbits(60) + b"x" * 60), epoch=epoch
            )

    async def checkpoint(self) -> None:
        await self.service.checkpoint_recovery_points()

    def copy(self, number: int) -> None:
        shutil.copytree(self.home, self.copies / str(number))

    def roll_back(self, number: int, *, but: str = "") -> None:
        """`but`: a file that stays unchanged, as if on another disk."""
        self.harness.kill()
        kept = (self.home / but).read_bytes() if but else b""
        shutil.rmtree(self.home)
        shutil.copytree(self.copies / str(number), self.home)
        if but:
            (self.home / but).write_bytes(kept)

    async def next_life(self, *, survival_proven: bool = True) -> None:
        self.harness.kill()
        self.harness.new_service(survival_proven=survival_proven)
        await self.service.start()

    @property
    def is_lost(self) -> bool:
        return PARTITION in self.service.offline and self.service.registry.may_lack_records


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    await made.begin(LogConfig())
    return made


@pytest.fixture
async def small(tmp_path: Path) -> Node:
    """Two batches in each segment."""
    made = Node(tmp_path)
    await made.begin(SMALL)
    return made


async def test_a_page_cache_lost_without_a_reboot_is_a_loss_of_the_log(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.write(2)
    active = node.log.active.file
    assert active is not None
    path = active.path
    durable = path.stat().st_size
    node.write(2)
    await node.checkpoint()
    with path.open("r+b") as file:
        file.truncate(durable)  # at a boundary of batches: no batch looks torn
    await node.next_life()
    assert node.is_lost
    assert "orders-0: the checkpoint names end offset 4, leader epoch 0, CRC " in caplog.text
    assert (
        "found: end offset 2" in caplog.text and "this node copies the log from it" in caplog.text
    )
    with pytest.raises(MqError):
        node.harness.open()


async def test_the_alarm_is_repeated_until_the_log_is_abandoned(node: Node) -> None:
    node.write(3)
    node.copy(1)
    node.write(3)
    await node.checkpoint()
    await node.service.close()
    node.roll_back(1, but=LOG_END_CHECKPOINT)
    (node.home / "recovery-point-offset-checkpoint").write_bytes(b"0\n1\norders 0 6\n")
    for _ in range(2):
        await node.next_life()
        assert node.is_lost
        await node.service.close()
    await node.next_life()
    assert node.service.discard_corrupt(PARTITION)
    node.log = node.harness.open(SMALL)
    node.write(1)
    await node.next_life()
    assert not node.service.offline and not node.service.registry.may_lack_records, (
        "a new log is not compared with the old one"
    )


async def test_the_same_end_with_another_batch_is_a_loss(node: Node) -> None:
    node.copy(1)
    node.write(3)
    await node.checkpoint()
    await node.next_life()
    lost = [node.is_lost]
    node.harness.kill()
    other = Node(node.home.parent / "other")
    await other.begin(LogConfig())
    other.write(3)
    other.harness.kill()
    name = f"{0:020d}.log"
    (node.home / "orders-0" / name).write_bytes((other.home / "orders-0" / name).read_bytes())
    await node.next_life()
    assert [*lost, node.is_lost] == [False, True]
    assert "found there: end offset 3, leader epoch 0" in node.service.offline[PARTITION]


async def test_after_a_power_failure_without_proof_nothing_is_compared(node: Node) -> None:
    node.write(3)
    await node.checkpoint()
    active = node.log.active.file
    assert active is not None
    path = active.path
    with path.open("r+b") as file:
        file.truncate(0)
    await node.next_life(survival_proven=False)
    assert not node.is_lost and node.service.logs[PARTITION].log_end_offset == 0
    await node.next_life()
    assert not node.is_lost, "the state that the first start found is the new reference"


async def test_the_end_of_a_clean_stop_is_compared_also_after_a_reboot(node: Node) -> None:
    node.write(3)
    await node.service.close(broker_epoch=7)
    path = node.home / "orders-0" / f"{0:020d}.log"
    size = parse_header(path.read_bytes()).size
    path.write_bytes(path.read_bytes()[:size])
    await node.next_life(survival_proven=False)
    assert node.is_lost


async def test_directories_without_the_file_start_as_before(node: Node) -> None:
    node.write(3)
    await node.service.close()
    (node.home / LOG_END_CHECKPOINT).unlink()
    await node.next_life()
    assert (
        not node.is_lost
        and node.service.registry.clean_start
        and node.service.housekeeping.disk_serial == 0
    )


async def test_a_release_that_writes_only_recovery_points_voids_the_file(node: Node) -> None:
    node.write(3)
    await node.checkpoint()
    node.service.truncate_to(node.log, 1)
    (node.log.path / LOG_END_VOID).unlink()  # which that release does not support
    (node.home / "recovery-point-offset-checkpoint").write_bytes(b"0\n1\norders 0 1\n")
    assert load_log_ends(node.harness.disk, node.home).lines == {}
    await node.next_life()
    assert not node.is_lost


def truncates(node: Node) -> None:
    node.service.truncate_to(node.log, 2)


def truncates_all(node: Node) -> None:
    node.service.truncate_to(node.log, 0)


def begins_anew(node: Node) -> None:
    node.service.reset(node.log, 1)


def begins_anew_beyond(node: Node) -> None:
    node.service.reset(node.log, 100)


def is_deleted(node: Node) -> None:
    node.service.delete(PARTITION)


def returns(node: Node) -> None:
    """The replica was reassigned and returned, with the same topic id."""
    node.service.delete(PARTITION)
    node.log = node.harness.open(SMALL)


def is_another_topic(node: Node) -> None:
    node.service.delete(PARTITION)
    node.log = node.service.open(PARTITION, UUID(int=9), SMALL)


def loses_all_records(node: Node) -> None:
    node.service.delete_records(node.log, node.log.log_end_offset)


@pytest.mark.parametrize(
    "change",
    [
        truncates,
        truncates_all,
        begins_anew,
        begins_anew_beyond,
        is_deleted,
        returns,
        is_another_topic,
        loses_all_records,
    ],
)
@pytest.mark.parametrize(
    "killed_after", ["at once", "a write", "a checkpoint", "a checkpoint and a write", "a stop"]
)
async def test_a_correct_change_is_not_a_loss(
    small: Node, change: Callable[[Node], None], killed_after: str
) -> None:
    node = small
    node.write(5)
    await node.checkpoint()
    change(node)
    if "checkpoint" in killed_after:
        await node.checkpoint()
        await node.service.retain()
    if "write" in killed_after and PARTITION in node.service.logs:
        node.write(1, epoch=1)
    if killed_after == "a stop":
        await node.service.close()
    for _ in range(2):
        await node.next_life()
        assert not node.service.offline and not node.service.registry.may_lack_records
        if (log := node.service.logs.get(PARTITION)) is not None:
            node.log = node.service.open(PARTITION, log.topic_id, SMALL)
            node.write(1, epoch=2)
        await node.checkpoint()


async def test_a_truncation_during_a_checkpoint_is_not_a_loss(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is planned, the log is truncated, and then the file with the old end is
    written.
    """
    node.write(5)
    write_atomic = node.harness.disk.write_atomic

    def cut_first(path: Path, data: bytes) -> None:
        if path.name == LOG_END_CHECKPOINT:
            trio.from_thread.run_sync(node.service.truncate_to, node.log, 2)
        write_atomic(path, data)

    monkeypatch.setattr(node.harness.disk, "write_atomic", cut_first)
    await node.checkpoint()
    monkeypatch.setattr(node.harness.disk, "write_atomic", write_atomic)
    assert (
        b" 5 " in (node.home / LOG_END_CHECKPOINT).read_bytes()
        and (node.log.path / LOG_END_VOID).exists()
    )
    await node.next_life()
    assert not node.is_lost
    node.log = node.harness.open(SMALL)
    assert node.log.log_end_offset == 2 and not (node.log.path / LOG_END_VOID).exists()


async def test_without_the_mark_nothing_is_truncated(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.write(5)
    await node.checkpoint()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(log_end_checkpoint, "create_void_mark", full)
    with pytest.raises(Exception, match="cannot truncate"):
        node.service.truncate_to(node.log, 2)
    assert node.log.log_end_offset == 5 and node.log.failure is None


async def test_an_idle_node_writes_nothing(node: Node) -> None:
    node.write(3)
    await node.checkpoint()
    serial, content = (
        node.service.housekeeping.disk_serial,
        (node.home / LOG_END_CHECKPOINT).read_bytes(),
    )
    assert serial == 1
    written = (node.home / LOG_END_CHECKPOINT).stat().st_ino
    await node.checkpoint()
    assert (
        node.service.housekeeping.disk_serial == serial
        and (node.home / LOG_END_CHECKPOINT).read_bytes() == content
    )
    assert (node.home / LOG_END_CHECKPOINT).stat().st_ino == written
    node.write(1)
    await node.checkpoint()
    assert node.service.housekeeping.disk_serial == 2


async def test_the_serial_is_that_of_all_directories(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "a", tmp_path / "b")
    await harness.service.start()
    log = harness.open(SMALL)
    harness.write(log, batch())
    await harness.service.checkpoint_recovery_points()
    assert [load_log_ends(harness.disk, tmp_path / name).serial for name in "ab"] == [1, 1]
    harness.kill()
    harness.new_service(survival_proven=True)
    await harness.service.start()
    assert harness.service.housekeeping.disk_serial == 1
