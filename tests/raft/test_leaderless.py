"""A voter that finds no majority logs a warning periodically, and stops when there is a leader.

In virtual time.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trio
from trio.testing import MockClock

from mqd.io.clock import SystemClock
from mqd.io.entropy import RandomEntropy
from mqd.io.net import Listener, Poller, Stream
from mqd.raft.codec import AppendEntries, PreVote, encode_message
from mqd.raft.handshake import Credentials
from mqd.raft.handshake_listener import ListenerHandshake
from mqd.raft.journal_start import open_journal
from mqd.raft.service import TICK_SECONDS_MAX, RaftService
from mqd.raft.snapshots import Work
from mqd.raft.voters import VoterSet, VoterView
from tests.raft.callers import Calling
from tests.raft.memory_disk import MemoryDisk


class Machine:
    def apply(self, index: int, command: bytes) -> int:
        return 1

    def snapshot(self) -> Iterator[bytes]:
        return iter(())

    def restoring(self, state: bytes) -> Work[Callable[[], None]]:
        yield
        return lambda: None


class Silent:
    """A connection to a node that introduces itself, accepts all further bytes and never responds,
    until `gone`.
    """

    def __init__(self, gone: trio.Event, node_id: int, voters: frozenset[int]) -> None:
        self.gone = gone
        position = VoterView(voters, VoterSet(0, voters), VoterSet(0, voters), intact=True)
        credentials = Credentials(
            cluster_id="c",
            node_id=node_id,
            nodes=frozenset(range(1, 9)),
            incarnation=uuid4(),
            secret=None,
            new_uuid=uuid4,
            voter_view=lambda: position,
        )
        self.handshake = ListenerHandshake(credentials, Calling(), 0.0)
        self.answers = bytearray()

    async def receive_into(self, view: memoryview) -> int:
        if not self.answers:
            await self.gone.wait()
        taken = bytes(self.answers[: len(view)])
        del self.answers[: len(view)]
        view[: len(taken)] = taken
        return len(taken)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        if self.handshake.node_id is None:
            self.answers += self.handshake.receive(bytes(data[14:]), 0)

    def close(self) -> None: ...


class SomeNetwork:
    """Some addresses respond, some refuse, some respond late."""

    def __init__(self, *answering: int) -> None:
        self.answering = set(answering)
        self.gone = trio.Event()
        self.voters: frozenset[int] = frozenset()
        """The voters in the peers files of the nodes that respond."""

    def fall_silent(self) -> None:
        """Every connection ends, and new ones are not possible."""
        self.answering.clear()
        self.gone.set()

    async def connect(self, host: str, port: int, *, timeout: float = 10.0) -> Stream:
        await trio.lowlevel.checkpoint()
        if port in self.answering:
            return Silent(self.gone, port - 41_000, self.voters)
        # as Trio does
        raise ConnectionRefusedError(
            errno.ECONNREFUSED, f"Error connecting to {(host, port)}: Connection refused"
        )

    async def listen(self, host: str, port: int) -> Listener:
        raise AssertionError(host, port)

    def poller(self) -> Poller:
        raise AssertionError


async def in_place(call: Callable[[], Any]) -> Any:
    await trio.lowlevel.checkpoint()
    return call()


def formed_disk() -> MemoryDisk:
    """The disk of a voter that is not new."""
    disk = MemoryDisk()
    journal = open_journal(disk, Path("raft"), cluster_id="c", node_id=1, new_uuid=uuid4)
    journal.set_intact()
    journal.flush()
    journal.close()
    return disk


def voter(
    network: SomeNetwork, *others: int, disk: MemoryDisk | None = None, observing: bool = False
) -> RaftService:
    addresses = {i: ("localhost", 41_000 + i) for i in (1, *others)}
    observers = {1: addresses.pop(1)} if observing else {}
    network.voters = frozenset(addresses)
    return RaftService(
        node_id=1,
        voters=addresses,
        observers=observers,
        cluster_id="c",
        directory=Path("raft"),
        disk=disk if disk is not None else formed_disk(),
        clock=SystemClock(),
        entropy=RandomEntropy(),
        network=network,
        machine=Machine(),
        in_thread=in_place,
    )


async def warnings_of(
    raft: RaftService,
    seconds: float,
    caplog: pytest.LogCaptureFixture,
    *,
    speaking: Collection[int] = (),
) -> list[str]:
    """Its warnings. `speaking`: nodes that report to it that they have no leader either."""
    caplog.clear()
    async with trio.open_nursery() as nursery:
        await nursery.start(raft.run)
        with trio.move_on_after(seconds):
            while True:
                for peer in speaking:
                    raft.receive(peer, encode_message(PreVote(1, 0, 0)))
                await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_without_a_majority_it_names_the_missing_voters(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    line = (
        "waiting for a leader voters=2 reachable=1 majority=False "
        "reason=no response from node 2 at "
        "localhost:41002 (Connection refused)"
    )
    assert await warnings_of(voter(SomeNetwork(), 2), 1.9, caplog) == []
    assert await warnings_of(voter(SomeNetwork(), 2), 12.5, caplog) == [line] * 3


async def test_only_missing_voters_are_named(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = await warnings_of(
        voter(SomeNetwork(41_002, 41_003), 2, 3, 4), 2.1, caplog, speaking=(2, 3)
    )
    assert line.startswith(
        "waiting for a leader voters=4 reachable=3 majority=True "
        "reason=no response from node 4 at localhost:41004"
    )
    assert "node 2" not in line


async def test_a_connected_silent_node_is_not_reachable(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Two processes are stopped (SIGSTOP): their kernels keep the connections."""
    lines = await warnings_of(voter(SomeNetwork(41_002, 41_003), 2, 3), 7.1, caplog)
    why = "(its process hangs, or it follows a leader)"
    assert lines == [
        "waiting for a leader voters=3 reachable=1 majority=False reason="
        + ", ".join(
            f"node {peer} at localhost:{41_000 + peer} is connected but silent for {silent} s {why}"
            for peer in (2, 3)
        )
        for silent in (2, 7)
    ]
    lines = await warnings_of(voter(SomeNetwork(41_002, 41_003), 2, 3), 12.1, caplog, speaking=(2,))
    assert len(lines) == 3
    for line in lines:
        assert line.startswith(
            "waiting for a leader voters=3 reachable=2 majority=True "
            "reason=node 3 at localhost:41003 is "
            "connected but silent for "
        )


async def test_silence_is_measured_from_the_last_message(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    raft = voter(SomeNetwork(41_002), 2)
    async with trio.open_nursery() as nursery:
        await nursery.start(raft.run)
        for _ in range(12):
            await trio.sleep(1.0)
            raft.receive(2, encode_message(PreVote(1, 0, 0)))
        assert (
            caplog.messages[-1] == "waiting for a leader voters=2 reachable=2 majority=True "
            "reason=no leader is elected yet"
        )
        await trio.sleep(46.0)
        assert (
            "reachable=1 majority=False "
            "reason=node 2 at localhost:41002 is connected but silent for 45 s"
            in caplog.messages[-1]
        )
        nursery.cancel_scope.cancel()


async def test_a_new_connection_gets_time_before_it_counts_as_silent(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    network = SomeNetwork()
    async with trio.open_nursery() as nursery:
        await nursery.start(voter(network, 2).run)
        await trio.sleep(10.9)
        network.answering.add(41_002)
        await trio.sleep(7.0)
        nursery.cancel_scope.cancel()
    refused, again, connected, silent = (
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    )
    assert "(Connection refused)" in refused and refused == again
    assert (
        connected
        == "waiting for a leader voters=2 reachable=2 majority=True reason=no leader is elected yet"
    )
    assert silent.startswith(
        "waiting for a leader voters=2 reachable=1 majority=False "
        "reason=node 2 at localhost:41002 is "
        "connected but silent for "
    )


async def test_an_observer_without_messages_names_its_connections(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    raft = voter(SomeNetwork(41_002), 2, 3, observing=True)
    (line,) = await warnings_of(raft, 2.1, caplog)
    assert (
        line == "waiting for a leader voters=2 reachable=1 majority=False "
        "reason=no response from node 3 at "
        "localhost:41003 (Connection refused)"
    )


async def test_a_voter_with_an_empty_log_reports_what_it_waits_for(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    raft = voter(SomeNetwork(41_002), 2, 3, disk=MemoryDisk())
    (line,) = await warnings_of(raft, 2.1, caplog, speaking=(2,))
    assert line.startswith(
        "waiting for a leader voters=3 reachable=2 majority=True reason=no response from node 3"
    )
    assert line.endswith(
        "this voter starts with an empty log, so it does not vote yet: "
        "it waits for a reply from node 2 and node 3"
    )
    assert raft.status().term == 0


async def test_with_a_leader_there_are_no_warnings(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    assert await warnings_of(voter(SomeNetwork()), 30.0, caplog) == []


async def test_a_leader_that_was_lost_with_the_majority_is_reported(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A follower that receives no messages keeps its leader's name; only the connection shows the
    loss.
    """
    network = SomeNetwork(41_002)
    raft = voter(network, 2)
    lines: list[list[str]] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(raft.run)
        for _ in range(50):
            raft.receive(2, encode_message(AppendEntries(1, 1, 1, 0, ())))
            await trio.sleep(0.2)
        lines.append(
            [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        )
        assert raft.status().leader_id == 2
        network.fall_silent()
        for seconds in (1.9, 0.3):
            with trio.move_on_after(seconds):
                await trio.sleep_forever()
            lines.append(
                [
                    record.getMessage()
                    for record in caplog.records
                    if record.levelno == logging.WARNING
                ]
            )
        nursery.cancel_scope.cancel()
    assert lines[0] == lines[1] == []
    assert lines[2][0].startswith(
        "waiting for a leader voters=2 reachable=1 majority=False "
        "reason=no response from node 2 at "
        "localhost:41002 ("
    )


async def test_a_voter_without_connections_does_not_spin(autojump_clock: MockClock) -> None:
    raft = voter(SomeNetwork(), 2, 3)
    async with trio.open_nursery() as nursery:
        await nursery.start(raft.run)
        await trio.sleep(20.0)
        nursery.cancel_scope.cancel()
    assert raft.statistics().turns < 20.0 / TICK_SECONDS_MAX * 1.5
