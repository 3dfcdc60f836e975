"""The in-memory disk keeps what a real one keeps, and may lose what a real one may lose."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mqd.testing import current_world, simulated
from mqd.testing.disk import MemoryDisk
from mqd.testing.process import Killed, Process
from mqd.testing.process_disk import ProcessDisk
from mqd.testing.scheduler import VirtualClock

FILE = Path("/d/f")


class Machine:
    def __init__(self, seed: int = 0) -> None:
        self.clock = VirtualClock()
        self.disk = MemoryDisk(1, self.clock, random.Random(seed))
        self.restart()

    def restart(self) -> None:
        self.process = Process(1, "node 1", self.clock)
        self.seen = ProcessDisk(self.disk, self.process)

    def power_cut(self) -> None:
        self.process.end()
        self.disk.power_cut()
        self.restart()


def outcomes(
    prepare: Callable[[Machine], None], look: Callable[[Machine], object], count: int = 300
) -> Counter[object]:
    """The contents after a power failure, over many seeds."""
    found: Counter[object] = Counter()
    for seed in range(count):
        machine = Machine(seed)
        prepare(machine)
        machine.power_cut()
        found[look(machine)] += 1
    return found


def content(machine: Machine) -> bytes | None:
    return machine.seen.read_bytes(FILE) if machine.seen.exists(FILE) else None


def synced(machine: Machine) -> None:
    machine.seen.make_directory(FILE.parent)
    file = machine.seen.open(FILE, create=True)
    file.append([b"one", b"two"])
    file.sync()
    machine.seen.sync_directory(FILE.parent)


def test_synced_data_survives_a_power_failure() -> None:
    assert outcomes(synced, content) == {b"onetwo": 300}


def test_writes_without_a_sync_may_be_kept_lost_torn_or_zeros_in_any_order() -> None:
    def prepare(machine: Machine) -> None:
        synced(machine)
        file = machine.seen.open(FILE)
        file.append([b"AAAA"])
        file.append([b"BBBB"])

    found = outcomes(prepare, content)
    assert all(isinstance(data, bytes) and data.startswith(b"onetwo") for data in found)
    for expected in (
        b"onetwo",
        b"onetwoAAAA",
        b"onetwoAAAABBBB",
        b"onetwo\0\0\0\0BBBB",
        b"onetwoAA",
        b"onetwoAAAA\0\0\0\0",
    ):
        assert found[expected], expected


def test_a_new_file_may_be_gone_where_its_directory_was_not_synced() -> None:
    def prepare(machine: Machine) -> None:
        machine.seen.make_directory(FILE.parent)
        file = machine.seen.open(FILE, create=True)
        file.append([b"data"])
        file.sync()

    assert set(outcomes(prepare, content)) == {None, b"data"}


def test_a_rename_without_a_sync_happened_or_did_not() -> None:
    def prepare(machine: Machine) -> None:
        synced(machine)
        file = machine.seen.open(FILE.with_name("new"), create=True)
        file.append([b"new"])
        file.sync()
        machine.seen.sync_directory(FILE.parent)
        machine.seen.rename(FILE.with_name("new"), FILE, durable=False)

    def look(machine: Machine) -> object:
        return content(machine), tuple(machine.seen.list(FILE.parent))

    assert set(outcomes(prepare, look)) == {(b"onetwo", ("f", "new")), (b"new", ("f",))}


def test_a_removed_file_may_be_back() -> None:
    def prepare(machine: Machine) -> None:
        synced(machine)
        machine.seen.remove(FILE)

    assert set(outcomes(prepare, content)) == {None, b"onetwo"}


def test_a_truncation_may_not_have_happened() -> None:
    def prepare(machine: Machine) -> None:
        synced(machine)
        machine.seen.open(FILE).truncate(3)

    assert set(outcomes(prepare, content)) == {b"one", b"onetwo"}


def test_an_atomic_write_is_all_or_nothing_wherever_the_power_fails() -> None:
    found: Counter[object] = Counter()
    for seed in range(300):
        machine = Machine(seed)
        synced(machine)
        machine.disk.cut_in_write(seed % 8, machine.process.end)
        try:
            machine.seen.write_atomic(FILE, b"new")
        except Killed:
            found["killed"] += 1
        machine.power_cut()
        found[content(machine)] += 1
    assert set(found) == {"killed", b"onetwo", b"new"}


def test_a_killed_process_loses_nothing_that_it_wrote() -> None:
    machine = Machine()
    synced(machine)
    file = machine.seen.open(FILE)
    file.append([b"three"])
    before = machine.seen.boot_id()
    machine.process.end()
    with pytest.raises(Killed):
        file.append([b"from the grave"])
    with pytest.raises(Killed):
        machine.seen.remove(FILE)
    machine.restart()
    assert content(machine) == b"onetwothree"
    assert machine.seen.boot_id() == before
    machine.power_cut()
    assert machine.seen.boot_id() != before


def test_a_kill_in_the_middle_of_a_write_leaves_a_part_of_it() -> None:
    sizes = set()
    for seed in range(50):
        machine = Machine(seed)
        synced(machine)
        machine.disk.cut_in_write(0, machine.process.end)
        with pytest.raises(Killed):
            machine.seen.open(FILE).append([b"1234567890"])
        machine.restart()
        data = content(machine)
        assert data is not None and b"onetwo1234567890".startswith(data)
        sizes.add(len(data))
    assert len(sizes) > 5


def test_a_failed_sync_loses_its_data_and_the_next_one_succeeds() -> None:
    def prepare(machine: Machine) -> None:
        synced(machine)
        file = machine.seen.open(FILE)
        file.append([b"AAAA"])
        machine.disk.fail_sync("/d/")
        with pytest.raises(OSError) as caught:
            file.sync()
        assert caught.value.errno == errno.EIO
        file.append([b"BBBB"])
        file.sync()
        assert content(machine) == b"onetwoAAAABBBB"  # in the page cache everything is intact

    found = outcomes(prepare, content)
    assert set(found) == {b"onetwoAAAABBBB", b"onetwo\0\0\0\0BBBB"}
    assert found[b"onetwo\0\0\0\0BBBB"] > 100


def test_a_full_disk_takes_a_part_and_removing_makes_room() -> None:
    machine = Machine()
    synced(machine)
    machine.disk.fill(leaving=4)
    file = machine.seen.open(FILE)
    with pytest.raises(OSError) as caught:
        file.append([b"1234567890"])
    assert caught.value.errno == errno.ENOSPC
    assert content(machine) == b"onetwo1234"
    assert machine.seen.free_bytes(FILE) == 0
    file.truncate(6)
    assert machine.seen.free_bytes(FILE) == 4
    machine.disk.free()
    file.append([b"1234567890"])


def test_a_corrupted_byte_stays_corrupted() -> None:
    machine = Machine()
    synced(machine)
    assert machine.disk.corrupt(FILE, 2) == 2
    machine.power_cut()
    data = content(machine)
    assert data is not None and data[:2] == b"on" and data[2:3] != b"e" and data[3:] == b"two"


def test_errors_are_those_of_the_system() -> None:
    machine = Machine()
    with pytest.raises(FileNotFoundError):
        machine.seen.open(FILE)
    with pytest.raises(FileNotFoundError):
        machine.seen.list(FILE.parent)
    synced(machine)
    with pytest.raises(NotADirectoryError):
        machine.seen.list(FILE)
    with pytest.raises(FileNotFoundError):
        machine.seen.rename(Path("/d/none"), FILE)
    machine.disk.die("/d")
    with pytest.raises(OSError) as caught:
        machine.seen.read_bytes(FILE)
    assert caught.value.errno == errno.EIO


def test_a_lock_ends_with_its_process() -> None:
    machine = Machine()
    lock = machine.seen.lock(Path("/.lock"))
    with pytest.raises(BlockingIOError):
        machine.seen.lock(Path("/.lock"))
    lock.close()
    machine.seen.lock(Path("/.lock"))
    machine.process.end()
    machine.restart()
    machine.seen.lock(Path("/.lock"))


def test_a_renamed_directory_keeps_what_is_in_it() -> None:
    def prepare(machine: Machine) -> None:
        synced(machine)
        machine.seen.rename(FILE.parent, Path("/e"))

    assert outcomes(prepare, lambda machine: machine.seen.read_bytes(Path("/e/f"))) == {
        b"onetwo": 300
    }


@simulated()
async def test_an_offloaded_call_takes_time_and_death_ends_it() -> None:
    world = current_world()
    process = Process(1, "node 1", world.clock)
    disk = ProcessDisk(MemoryDisk(1, world.clock, world.random("disk")), process)
    before = trio.current_time()
    assert await disk.offload(lambda: "done") == "done"
    assert trio.current_time() > before
    world.clock.after(0.00001, process.end)
    with pytest.raises(Killed):
        await disk.offload(lambda: None)
