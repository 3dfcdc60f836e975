"""Snapshots are built beside the event loop: commands are applied meanwhile, and the snapshot has
the state of one moment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, thread_time
from uuid import UUID

import pytest
import trio
import trio.lowlevel

from mqd.controller.delta import Delta
from mqd.controller.machine import MetadataMachine
from mqd.controller.records import CreateTopic, Placement, SetConfigs
from mqd.controller.replay import replay
from mqd.controller.snapshot import encode_snapshot
from mqd.io.clock import SystemClock
from mqd.io.disk import OsDisk
from mqd.io.entropy import RandomEntropy
from mqd.io.net import OsNetwork
from mqd.limits import MIB
from mqd.raft.machine import Machine
from mqd.raft.service import RaftService
from mqd.raft.snapshots import Compaction, Work, all_steps
from mqd.types import NodeId
from tests.raft.directed import Ours
from tests.seeds import slow

ENTRIES = 5
LOOP_SECONDS_MAX = 0.05


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    with trio.fail_after(seconds):
        while not condition():  # the service has no event for it  # noqa: ASYNC110
            await trio.sleep(0.002)


def alone(directory: Path, machine: Machine, compaction: Compaction) -> RaftService:
    return RaftService(
        node_id=1,
        voters={1: ("127.0.0.1", 1)},
        cluster_id="c",
        directory=directory,
        disk=OsDisk(),
        clock=SystemClock(),
        entropy=RandomEntropy(),
        network=OsNetwork(),
        machine=machine,
        compaction=compaction,
    )


class Held:
    """A list of commands whose snapshots wait for the test, in whatever thread builds them."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.gate = threading.Event()
        self.threads: set[int] = set()

    def apply(self, index: int, command: bytes) -> int:
        self.commands.append(command)
        return 1

    def snapshot(self) -> Iterator[bytes]:
        return self._pieces(tuple(self.commands))

    def _pieces(self, commands: tuple[bytes, ...]) -> Iterator[bytes]:
        for command in commands:
            self.threads.add(threading.get_ident())
            assert self.gate.wait(30)
            yield command + b"\n"

    def restoring(self, state: bytes) -> Work[Callable[[], None]]:
        yield
        return lambda: self.restore(state)

    def restore(self, state: bytes) -> None:
        self.commands = state.splitlines()


async def test_commands_are_applied_while_a_snapshot_is_built(tmp_path: Path) -> None:
    machine = Held()
    raft = alone(tmp_path, machine, Compaction(entries_max=ENTRIES, entries_kept=0))
    async with trio.open_nursery() as nursery:
        await nursery.start(raft.run)
        await until(lambda: raft.status().ready)
        with trio.fail_after(20):
            for number in range(20):
                await raft.propose(b"%d" % number)
        assert raft.statistics().snapshots_taken == 0
        applied = raft.status().applied_index
        machine.gate.set()
        await until(lambda: raft.statistics().snapshots_taken >= 1)
        assert 0 < raft.status().snapshot_index < applied
        await raft.stop()
    assert machine.threads and threading.get_ident() not in machine.threads
    again = Held()
    again.gate.set()
    raft = alone(tmp_path, again, Compaction())
    async with trio.open_nursery() as nursery:
        await nursery.start(raft.run)
        await until(lambda: raft.status().ready)
        assert again.commands == [b"%d" % number for number in range(20)]
        await raft.stop()


async def test_an_unfinished_snapshot_does_not_delay_the_stop(tmp_path: Path) -> None:
    machine = Held()
    raft = alone(tmp_path, machine, Compaction(entries_max=ENTRIES, entries_kept=0))
    async with trio.open_nursery() as nursery:
        await nursery.start(raft.run)
        await until(lambda: raft.status().ready)
        for number in range(9):
            await raft.propose(b"%d" % number)
        nursery.start_soon(raft.stop)
        await trio.lowlevel.checkpoint()
        machine.gate.set()
    again = Held()
    again.gate.set()
    raft = alone(tmp_path, again, Compaction())
    async with trio.open_nursery() as nursery:
        await nursery.start(raft.run)
        await until(lambda: raft.status().ready)
        assert again.commands == [b"%d" % number for number in range(9)]
        await raft.stop()


def test_a_leaders_snapshot_that_arrives_first_wins() -> None:
    ours = Ours(3)
    late: list[Callable[[], None]] = []
    ours.nodes[2]._snapshots._build = lambda pieces, done: late.append(
        lambda: done(b"".join(pieces))
    )
    ours.elect(1, [2, 3])
    ours.exchange([1, 2, 3])
    ours.nodes[2]._snapshots._compaction = Compaction(entries_max=2, entries_kept=0)
    for number in range(3):
        ours.add(1, f"v{number}")
        ours.exchange([1, 2, 3])
    ours.tick(2)
    assert len(late) == 1, "one at a time"
    for number in range(3, 6):
        ours.add(1, f"v{number}")
        ours.exchange([1, 3])
    ours.compact(1)
    ours.nodes[1].disconnected(2)
    ours.nodes[1].restarted(2)
    ours.connect(1, 2)
    ours.exchange([1, 2, 3], 12)
    taken = ours.journals[2].snapshot_index
    assert ours.nodes[2].snapshots_installed == 1 and taken == ours.journals[1].snapshot_index
    late[0]()
    assert ours.journals[2].snapshot_index == taken and ours.nodes[2].snapshots_taken == 0
    ours.add(1, "v6")
    ours.exchange([1, 2, 3])
    assert ours.values(2) == [f"v{number}" for number in range(7)]


def test_a_leaders_snapshot_is_loaded_between_other_turns() -> None:
    """Until it is loaded, its leader's messages are accepted and entries after it are stored, but
    nothing is applied.
    """
    ours = Ours(3)
    late: list[Callable[[], None]] = []
    ours.nodes[2]._receiver._load = lambda work, done: late.append(lambda: done(all_steps(work)))
    ours.elect(1, [2, 3])
    ours.exchange([1, 2, 3])
    before, commit = ours.values(2), ours.nodes[2].commit_index
    for number in range(4):
        ours.add(1, f"v{number}")
        ours.exchange([1, 3])
    ours.compact(1)
    ours.nodes[1].disconnected(2)
    ours.nodes[1].restarted(2)
    ours.connect(1, 2)
    ours.exchange([1, 2, 3], 12)
    ours.add(1, "v4")
    ours.exchange([1, 2, 3], 12)
    assert len(late) == 1, "one at a time"
    assert (ours.values(2), ours.nodes[2].commit_index, ours.nodes[2].leader_id) == (
        before,
        commit,
        1,
    )
    late[0]()
    ours.exchange([1, 2, 3], 12)
    assert ours.nodes[2].snapshots_installed == 1
    assert ours.values(2) == ours.values(1) == [f"v{number}" for number in range(5)]


def large_image(size: int, topics: int) -> MetadataMachine:
    """Overrides of 60 KiB each, and topics of 1,000 partitions."""
    machine = MetadataMachine()
    everywhere = (NodeId(1), NodeId(2), NodeId(3))
    for number in range(topics):
        placements = (Placement(everywhere, NodeId(-1), everywhere),) * 1_000
        topic = CreateTopic(f"topic-{number}", UUID(int=number + 1), placements, ())
        replay(machine.image, topic, 1, Delta(1))
    text = ",".join(f"{number}:{number % 100}" for number in range(8_000))[: 60 * 1024]
    for number in range(size // len(text)):
        replay(machine.image, SetConfigs("group", f"g{number}", (("a", text),)), 1, Delta(1))
    machine.image.index = 0
    return machine


class Steps(trio.abc.Instrument):
    """The longest step of any task, in seconds of this thread's processor time."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._began = thread_time()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, thread_time() - self._began)


@pytest.mark.parametrize("mebibytes", [16, slow(64)])
async def test_a_large_snapshot_hardly_delays_the_loop(
    tmp_path: Path, mebibytes: int, record_property: Callable[[str, object], None]
) -> None:
    machine = large_image(mebibytes * MIB, 50)
    steps = Steps()
    raft = alone(tmp_path, machine, Compaction(entries_max=ENTRIES, entries_kept=0))
    async with trio.open_nursery() as nursery:
        await nursery.start(raft.run)
        await until(lambda: raft.status().ready)
        trio.lowlevel.add_instrument(steps)
        began = monotonic()
        for _ in range(ENTRIES):
            await raft.read_barrier()
        await until(lambda: raft.statistics().snapshots_taken == 1)
        await until(lambda: raft.status().durable_index >= raft.status().applied_index)
        trio.lowlevel.remove_instrument(steps)
        took = monotonic() - began
        await raft.stop()
    record_property("longest_step_ms", round(1000 * steps.longest, 1))
    if os.environ.get("MQD_SHOW"):
        print(f"longest step {1000 * steps.longest:.1f} ms, snapshot after {took:.2f} s")
    assert steps.longest < LOOP_SECONDS_MAX


@pytest.mark.parametrize("changed", ["topics", "configs"])
def test_pieces_have_the_state_of_the_moment_of_the_request(changed: str) -> None:
    machine = large_image(1 * MIB, 10)
    before = encode_snapshot(machine.image)
    pieces = machine.snapshot()
    first = next(pieces)
    if changed == "topics":
        everywhere = (NodeId(1),)
        placements = (Placement(everywhere, NodeId(-1), everywhere),)
        replay(machine.image, CreateTopic("another", UUID(int=77), placements, ()), 2, Delta(2))
        machine.image.topics["topic-9"].partitions[3] = machine.image.topics["another"].partitions[
            0
        ]
    else:
        replay(machine.image, SetConfigs("group", "g3", (("a", None), ("b", "c"))), 2, Delta(2))
    assert first + b"".join(pieces) == before
    assert encode_snapshot(machine.image) != before
