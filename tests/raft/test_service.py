"""The real service under Trio, on real files and loopback sockets: alone, and three together."""

from __future__ import annotations

import errno
import math
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from struct import unpack_from
from typing import Any
from uuid import uuid4

import pytest
import trio

from mqd import limits
from mqd.errors import MqError, ProtocolError, StorageError
from mqd.io.clock import SystemClock
from mqd.io.disk import Disk, OsDisk
from mqd.io.entropy import RandomEntropy
from mqd.io.net import OsNetwork
from mqd.raft import codec, transport
from mqd.raft.codec import TimeoutNow, encode_message
from mqd.raft.handshake import Credentials
from mqd.raft.handshake_caller import CallerHandshake
from mqd.raft.handshake_listener import ListenerHandshake
from mqd.raft.incarnations import Incarnations
from mqd.raft.service import NotLeader, OutcomeUnknown, RaftService, Role, Timing
from mqd.raft.snapshots import Work
from tests.raft.callers import Calling
from tests.raft.memory_disk import MemoryDisk

QUICK = Timing(election_timeout_min=0.16, election_timeout_max=0.4, heartbeat=0.04)


class Log:
    """A state machine that stores its commands."""

    def __init__(self) -> None:
        self.applied: list[tuple[int, bytes]] = []

    def apply(self, index: int, command: bytes) -> int:
        self.applied.append((index, command))
        return 1

    def snapshot(self) -> Iterator[bytes]:
        return iter((b"\n".join(b"%d %s" % pair for pair in self.applied),))

    def restoring(self, state: bytes) -> Work[Callable[[], None]]:
        yield
        return lambda: self.restore(state)

    def restore(self, state: bytes) -> None:
        pairs = (line.split(b" ", 1) for line in state.splitlines())
        self.applied = [(int(index), command) for index, command in pairs]

    @property
    def commands(self) -> list[bytes]:
        return [command for _, command in self.applied]


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    with trio.fail_after(seconds):
        while not condition():  # the services have no event for it  # noqa: ASYNC110
            await trio.sleep(0.002)


def is_ready(raft: RaftService) -> bool:
    return raft.status().ready


def alone(
    directory: Path, machine: Log, *, disk: Disk | None = None, **options: Any
) -> RaftService:
    return RaftService(
        node_id=1,
        voters={1: ("127.0.0.1", 1)},
        cluster_id="c",
        directory=directory,
        disk=disk if disk is not None else OsDisk(),
        clock=SystemClock(),
        entropy=RandomEntropy(),
        network=OsNetwork(),
        machine=machine,
        **options,
    )


async def test_a_quorum_of_one(tmp_path: Path) -> None:
    for life in range(3):
        machine = Log()
        raft = alone(tmp_path / "raft", machine)
        with pytest.raises(NotLeader):
            await raft.propose(b"too early")
        async with trio.open_nursery() as nursery:
            began = trio.current_time()
            await nursery.start(raft.run)
            await until(partial(is_ready, raft))
            assert trio.current_time() - began < 1.0  # 15 ms on an idle machine
            status = raft.status()
            assert status.role is Role.LEADER and status.ready and status.leader_id == 1
            assert machine.commands == [b"a", b"b"] * life
            first = await raft.propose(b"a")
            assert await raft.propose(b"b") == first + 1
            assert machine.applied[-2:] == [(first, b"a"), (first + 1, b"b")]
            assert await raft.read_barrier() == first + 2
            assert raft.status().durable_index == raft.status().applied_index == first + 2
            await raft.stop()
        assert not raft.status().ready
        with pytest.raises(NotLeader):
            await raft.propose(b"too late")


async def test_concurrent_proposals_share_a_flush(tmp_path: Path) -> None:
    machine = Log()
    raft = alone(tmp_path / "raft", machine)
    async with trio.open_nursery() as nursery:
        await nursery.start(raft.run)
        await until(lambda: raft.status().ready)
        before = raft.statistics().flushes
        async with trio.open_nursery() as proposals:
            for k in range(200):
                proposals.start_soon(raft.propose, b"%d" % k)
        assert raft.statistics().flushes - before <= 3
        assert sorted(machine.commands) == sorted(b"%d" % k for k in range(200))
        nursery.cancel_scope.cancel()


class SlowDisk(MemoryDisk):
    """Syncs in a worker thread wait for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def spend(self) -> bool:
        assert self.gate.wait(10)
        return super().spend()


async def test_nothing_is_applied_during_the_fsync_and_the_loop_continues() -> None:
    disk, machine = SlowDisk(), Log()
    raft = alone(Path("raft"), machine, disk=disk)
    async with trio.open_nursery() as nursery:
        await nursery.start(raft.run)
        await until(lambda: raft.status().ready)
        disk.gate.clear()
        done = trio.Event()

        async def propose() -> None:
            await raft.propose(b"x")
            done.set()

        nursery.start_soon(propose)
        for _ in range(50):
            await trio.sleep(0.001)  # the loop turns while the disk is stalled
        assert machine.applied == [] and not done.is_set()
        with pytest.raises(OutcomeUnknown):
            await raft.propose(b"y", timeout=0.01)
        disk.gate.set()
        await done.wait()
        await until(lambda: machine.commands == [b"x", b"y"])  # unknown, and written
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_a_journal_that_cannot_be_written_stops_the_node(code: int) -> None:
    disk, machine = MemoryDisk(), Log()
    raft = alone(Path("raft"), machine, disk=disk)
    results: list[str] = []

    async def propose() -> None:
        try:
            await raft.propose(b"x")
        except OutcomeUnknown:
            results.append("unknown")

    with pytest.RaisesGroup(StorageError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(raft.run)
            await until(lambda: raft.status().ready)
            disk.fail_with = OSError(code, "no")
            with trio.CancelScope(shield=True):
                await propose()
    assert results == ["unknown"] and machine.applied == []
    with pytest.raises(NotLeader):
        await raft.propose(b"later")


async def test_too_many_proposals_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RAFT_PROPOSALS_MAX", 0)
    raft = alone(tmp_path / "raft", Log())
    async with trio.open_nursery() as nursery:
        await nursery.start(raft.run)
        await until(lambda: raft.status().ready)
        with pytest.raises(MqError, match="THROTTLING_QUOTA_EXCEEDED"):
            await raft.propose(b"x")
        nursery.cancel_scope.cancel()


class Voters:
    """Three services, each with a peer listener like the server's."""

    def __init__(
        self, directory: Path, nursery: trio.Nursery, listeners: dict[int, trio.SocketListener]
    ) -> None:
        self.directory, self.nursery, self.listeners = directory, nursery, listeners
        self.addresses = {
            i: ("127.0.0.1", listener.socket.getsockname()[1]) for i, listener in listeners.items()
        }
        self.machines: dict[int, Log] = {}
        self.services: dict[int, RaftService] = {}
        self.scopes: dict[int, trio.CancelScope] = {}
        self.refused: list[str] = []
        self.streams: dict[int, set[trio.SocketStream]] = {i: set() for i in listeners}
        self.options: dict[str, Any] = {}
        self.observing: set[int] = set()
        self.make: Callable[..., RaftService] = RaftService
        for i in listeners:
            nursery.start_soon(self._serve, i)

    async def start(self, i: int, *, cluster: str = "c", **options: Any) -> None:
        self.machines[i] = Log()
        options = {"timing": QUICK, **self.options, **options}
        voters = {j: address for j, address in self.addresses.items() if j not in self.observing}
        self.services[i] = self.make(
            node_id=i,
            voters=voters,
            observers={j: address for j, address in self.addresses.items() if j in self.observing},
            cluster_id=cluster,
            directory=self.directory / f"{cluster}-{i}",
            disk=OsDisk(),
            clock=SystemClock(),
            entropy=RandomEntropy(),
            network=OsNetwork(),
            machine=self.machines[i],
            **options,
        )
        self.scopes[i] = trio.CancelScope()
        await self.nursery.start(self._run, i)

    async def _run(self, i: int, task_status: trio.TaskStatus[None]) -> None:
        with self.scopes[i]:
            await self.services[i].run(task_status=task_status)

    def break_connections(self) -> None:
        for stream in [stream for streams in self.streams.values() for stream in streams]:
            stream.socket.close()

    def end_process(self, i: int) -> None:
        """Everything ends at once: listener, connections, service."""
        self.listeners[i].socket.close()
        self.kill(i)
        for stream in list(self.streams[i]):
            stream.socket.close()

    def kill(self, i: int) -> None:
        self.scopes[i].cancel()
        del self.services[i]

    async def _serve(self, i: int) -> None:
        async with trio.open_nursery() as connections:
            while True:
                try:
                    stream = await self.listeners[i].accept()
                except trio.ClosedResourceError:
                    return
                connections.start_soon(self._connection, i, stream)

    async def _connection(self, i: int, stream: trio.SocketStream) -> None:
        self.streams[i].add(stream)
        try:
            await self._hear(i, stream)
        except (trio.ClosedResourceError, trio.BrokenResourceError, OSError):
            pass
        finally:
            self.streams[i].discard(stream)

    async def _hear(self, i: int, stream: trio.SocketStream) -> None:
        calling = Calling("127.0.0.1:1", SystemClock().monotonic())
        try:
            await self._hear_calling(i, stream, calling)
        finally:
            calling.close()

    async def _hear_calling(self, i: int, stream: trio.SocketStream, calling: Calling) -> None:
        handshake, buffer = (
            self.services[i].begin_handshake(calling) if i in self.services else None,
            bytearray(),
        )
        async with stream:
            while (
                handshake is not None
                and i in self.services
                and (data := await stream.receive_some(65536))
            ):
                calling.received_at = SystemClock().monotonic()
                buffer += data
                while len(buffer) >= 4 and len(buffer) >= 4 + (
                    size := unpack_from(">i", buffer)[0]
                ):
                    frame = bytes(buffer[4 : 4 + size])
                    del buffer[: 4 + size]
                    if i not in self.services:
                        return
                    try:
                        if handshake.node_id is None:
                            key, _, correlation_id, client_id_bytes = unpack_from(">hhih", frame)
                            assert (key, client_id_bytes) == (codec.API_KEY_HANDSHAKE, -1)
                            await stream.send_all(
                                self.services[i].receive_handshake(
                                    handshake, frame[10:], correlation_id
                                )
                            )
                            if handshake.refusal is not None:
                                self.refused.append(handshake.refusal)
                                return
                        else:
                            assert unpack_from(">hh", frame) == (codec.API_KEY_MESSAGE, 0)
                            self.services[i].receive(
                                handshake.node_id, frame[10:], handshake.incarnation
                            )
                    except ProtocolError as error:
                        self.refused.append(str(error))
                        return

    def leader(self) -> int | None:
        ready = [i for i, service in self.services.items() if service.status().ready]
        return ready[0] if len(ready) == 1 else None

    async def wait_leader(self, *, other_than: int | None = None, seconds: float = 10.0) -> int:
        await until(lambda: self.leader() not in (None, other_than), seconds)
        leader = self.leader()
        assert leader is not None
        return leader


@asynccontextmanager
async def three_voters(directory: Path) -> AsyncIterator[Voters]:
    listeners = {i: (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0] for i in (1, 2, 3)}
    async with trio.open_nursery() as nursery:
        voters = Voters(directory, nursery, listeners)
        try:
            yield voters
        finally:
            nursery.cancel_scope.cancel()
            for listener in listeners.values():
                listener.socket.close()


async def test_three_elect_replicate_and_survive_restarts(tmp_path: Path) -> None:
    async with three_voters(tmp_path) as voters:
        for i in (1, 2, 3):
            await voters.start(i)
        leader = await voters.wait_leader()
        expected = [b"%d" % k for k in range(20)]
        for command in expected:
            await voters.services[leader].propose(command)
        await until(
            lambda: all(machine.commands == expected for machine in voters.machines.values())
        )

        follower = next(i for i in (1, 2, 3) if i != leader)
        with pytest.raises(NotLeader) as caught:
            await voters.services[follower].propose(b"x")
        assert caught.value.leader_id == leader

        voters.kill(leader)  # like kill -9: no transfer of leadership
        second = await voters.wait_leader(other_than=leader)
        await voters.services[second].propose(b"after")
        await voters.start(leader)
        await until(lambda: voters.machines[leader].commands == [*expected, b"after"])

        for i in (1, 2, 3):
            voters.kill(i)
        for i in (1, 2, 3):
            await voters.start(i)
        leader = await voters.wait_leader()
        await voters.services[leader].read_barrier()
        assert voters.machines[leader].commands == [*expected, b"after"]
        await until(
            lambda: all(
                machine.commands == [*expected, b"after"] for machine in voters.machines.values()
            )
        )


async def test_a_stopping_leader_transfers_leadership(tmp_path: Path) -> None:
    async with three_voters(tmp_path) as voters:
        for i in (1, 2, 3):
            await voters.start(i)
        leader = await voters.wait_leader()
        service = voters.services[leader]
        await until(lambda: len(service.status().connected) == 2)
        assert await service.transfer_leadership()
        assert service.status().role is Role.FOLLOWER
        leader = await voters.wait_leader()
        await voters.services[leader].stop()
        del voters.services[leader]
        await voters.wait_leader(other_than=leader)


async def test_a_leader_without_a_majority_reports_an_unknown_outcome(tmp_path: Path) -> None:
    async with three_voters(tmp_path) as voters:
        for i in (1, 2, 3):
            await voters.start(i)
        leader = await voters.wait_leader()
        for i in (1, 2, 3):
            if i != leader:
                voters.kill(i)
        service = voters.services[leader]
        with pytest.raises(OutcomeUnknown):
            await service.propose(b"x", timeout=5.0)
        await until(lambda: service.status().role is not Role.LEADER)
        with pytest.raises(NotLeader):
            await service.propose(b"y")
        assert b"x" not in voters.machines[leader].commands


async def test_a_node_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async with three_voters(tmp_path) as voters:
        for i in (1, 2, 3):
            await voters.start(i)
        await voters.wait_leader()
        voters.kill(3)
        leader = await voters.wait_leader()
        term = voters.services[leader].status().term
        await voters.start(3, cluster="d")
        await until(
            lambda: any(
                "The cluster ids or the cluster secrets differ" in reason
                for reason in voters.refused
            )
        )
        assert (
            voters.services[leader].status().ready and voters.services[leader].status().term == term
        )


async def test_malformed_messages_are_the_callers_fault(tmp_path: Path) -> None:
    raft = alone(tmp_path / "raft", Log())
    with pytest.raises(ProtocolError):
        raft.receive(2, b"garbage")
    async with trio.open_nursery() as nursery:
        await nursery.start(raft.run)
        raft.receive(2, encode_message(TimeoutNow(9)))  # not a voter
        await until(lambda: raft.status().ready)
        assert raft.statistics().messages_received == 1
        nursery.cancel_scope.cancel()


async def test_one_message_of_the_last_term_does_not_end_all_elections(tmp_path: Path) -> None:
    last = (1 << 62) - 1
    async with three_voters(tmp_path) as voters:
        for node_id in (1, 2, 3):
            await voters.start(node_id)
        leader = await voters.wait_leader()
        follower = next(node_id for node_id in (1, 2, 3) if node_id != leader)
        for message in (
            codec.RequestVote(last, 0, 0),
            codec.Vote(last),
            TimeoutNow(last),
            codec.AppendEntries(last, 0, 0, 0, ()),
        ):
            for target, sender in ((leader, follower), (follower, leader)):
                with pytest.raises(ProtocolError, match="term 4611686018427387903"):
                    voters.services[target].receive(sender, encode_message(message))
        await voters.services[leader].propose(b"x")
        assert voters.services[leader].status().term < 100


def test_only_nodes_of_the_cluster_have_a_service(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"node 1 is not among the nodes \[2\]"):
        RaftService(
            node_id=1,
            voters={2: ("127.0.0.1", 1)},
            cluster_id="c",
            directory=tmp_path,
            disk=OsDisk(),
            clock=SystemClock(),
            entropy=RandomEntropy(),
            network=OsNetwork(),
            machine=Log(),
        )


SECRET = b"a secret of all three"


async def test_with_a_secret_only_nodes_that_have_it_are_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with three_voters(tmp_path) as voters:
        voters.options = {"secret": SECRET}
        for i in (1, 2, 3):
            await voters.start(i)
        await voters.wait_leader()
        voters.kill(3)
        leader = await voters.wait_leader()
        term = voters.services[leader].status().term
        reason = "The cluster ids or the cluster secrets differ"

        def count_lines(what: str) -> int:
            lines = [record.getMessage() for record in caplog.records if record.levelno >= 30]
            return sum(what in line and reason in line for line in lines)

        for secret in (b"another secret, a guess", None):
            voters.refused.clear()
            caplog.clear()
            await voters.start(3, secret=secret)
            await until(lambda: sum(reason in why for why in voters.refused) > 12)
            await until(
                lambda: (
                    count_lines("peer handshake failed") >= 2
                    and count_lines("peer connection refused") >= 1
                )
            )
            assert count_lines("peer handshake failed") <= 4  # once in each of four directions
            assert (
                count_lines("peer connection refused") <= 3
            )  # once on each node: the caller has no name
            assert not any(SECRET.decode() in record.getMessage() for record in caplog.records)
            assert voters.services[3].status().connected == ()
            assert reason in voters.services[leader].no_connection_reason(3)
            assert voters.services[leader].no_connection_reason(3 - leader) == ""
            assert voters.services[leader].no_connection_reason(leader) == ""
            voters.kill(3)
        assert (
            voters.services[leader].status().ready and voters.services[leader].status().term == term
        )
        await voters.start(3)
        await until(lambda: voters.services[3].status().leader_id == leader)


async def test_another_node_leads_at_once_when_the_leader_s_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its listener ends with it, as when any process ends; other nodes would wait for a whole
    election timeout.
    """
    async with three_voters(tmp_path) as voters:
        # as if all had been connected for a long time
        monkeypatch.setattr(transport, "STEADY_SECONDS", 0.0)
        gone: list[tuple[int, int]] = []
        # 1 leads at once, unless the machine stands still
        for i, shortest in ((2, 5.0), (3, 5.0), (1, 0.5)):
            await voters.start(
                i,
                timing=Timing(
                    election_timeout_min=shortest,
                    election_timeout_max=shortest * 1.8,
                    heartbeat=0.05,
                ),
            )
            voters.services[i].peer_links.on_peer_gone = lambda peer, i=i: gone.append((i, peer))
        leader = await voters.wait_leader(seconds=30.0)
        await voters.services[leader].propose(b"x")
        await until(lambda: all(machine.commands == [b"x"] for machine in voters.machines.values()))
        await until(
            lambda: all(
                len(service.status().connected) == 2 for service in voters.services.values()
            )
        )
        # they do not stand at the same time, nor before both detect the loss
        for drawn, other in zip((0.2, 0.8), sorted({1, 2, 3} - {leader})):
            monkeypatch.setattr(voters.services[other]._node, "_random", lambda drawn=drawn: drawn)
        began = trio.current_time()
        voters.end_process(leader)
        second = await voters.wait_leader(other_than=leader, seconds=30.0)
        # the shortest timeout is 5 s, and a prompt one at most 2.5 s
        assert trio.current_time() - began < 4.0
        assert sorted(gone) == [(i, leader) for i in (1, 2, 3) if i != leader]
        assert voters.services[second].status().majority_replied_at > began


async def test_a_broken_connection_is_not_a_dead_process(tmp_path: Path) -> None:
    async with three_voters(tmp_path) as voters:
        voters.options = {
            "timing": Timing(election_timeout_min=2.0, election_timeout_max=4.0, heartbeat=0.05)
        }
        gone: list[int] = []
        for i in (1, 2, 3):
            await voters.start(i)
            voters.services[i].peer_links.on_peer_gone = gone.append
        leader = await voters.wait_leader()
        term = voters.services[leader].status().term
        for _ in range(3):
            await until(
                lambda: all(
                    len(service.status().connected) == 2 for service in voters.services.values()
                )
            )
            voters.break_connections()
            await until(
                lambda: any(
                    len(service.status().connected) < 2 for service in voters.services.values()
                )
            )
        await until(
            lambda: all(
                len(service.status().connected) == 2 for service in voters.services.values()
            )
        )
        assert gone == [] and voters.services[leader].status().term == term


async def test_leadership_is_transferred_in_less_than_200_ms(tmp_path: Path) -> None:
    async with three_voters(tmp_path) as voters:
        voters.options = {
            "timing": Timing(election_timeout_min=1.0, election_timeout_max=2.0, heartbeat=0.04)
        }
        for i in (1, 2, 3):
            await voters.start(i)

        def has_both(service: RaftService) -> bool:
            return len(service.status().connected) == 2

        took = []
        for _ in range(5):
            leader = await voters.wait_leader()
            await until(partial(has_both, voters.services[leader]))
            await voters.services[leader].propose(b"x")
            began = trio.current_time()
            assert await voters.services[leader].transfer_leadership()
            await voters.wait_leader(other_than=leader)
            took.append(trio.current_time() - began)
        # without the transfer, an election timeout of a second or more passes first
        assert min(took) < 0.2 and sorted(took)[2] < 0.9, took


async def test_an_observer_follows_and_does_not_count_towards_the_quorum(tmp_path: Path) -> None:
    async with three_voters(tmp_path) as voters:
        voters.observing = {3}
        for i in (1, 2, 3):
            await voters.start(i)
        leader = await voters.wait_leader()
        await voters.services[leader].propose(b"a")
        await until(lambda: voters.machines[3].commands == [b"a"])
        status = voters.services[leader].status()
        assert (status.voters, status.observers) == ((1, 2), (3,))
        with pytest.raises(NotLeader) as caught:
            await voters.services[3].propose(b"x")
        assert caught.value.leader_id == leader
        voters.kill(3)
        await voters.services[leader].propose(b"b")
        await voters.start(3)
        await until(lambda: voters.machines[3].commands == [b"a", b"b"])
        assert await voters.services[3].transfer_leadership()  # it never led
        voters.kill(3 - leader)
        # an observer does not count towards a majority
        await until(lambda: not voters.services[leader].status().ready)


async def test_a_wiped_voter_catches_up_and_then_votes(tmp_path: Path) -> None:
    async with three_voters(tmp_path) as voters:
        for i in (1, 2, 3):
            await voters.start(i)
        leader = await voters.wait_leader()
        await voters.services[leader].propose(b"kept")
        wiped, other = (i for i in (1, 2, 3) if i != leader)
        voters.kill(wiped)
        shutil.rmtree(tmp_path / f"c-{wiped}")
        voters.kill(other)
        await voters.start(wiped)
        await until(
            lambda: (
                "waits for a reply from node"
                in (voters.services[wiped].status().not_voting_reason or "")
            )
        )
        turns = voters.services[wiped].statistics().turns
        await until(lambda: voters.services[wiped].statistics().turns > turns + 8)
        assert (
            voters.machines[wiped].commands == []
            and voters.services[wiped].status().not_voting_reason is not None
        )
        await voters.start(other)
        await until(
            lambda: (
                voters.machines[wiped].commands == [b"kept"]
                and voters.services[wiped].status().not_voting_reason is None
            )
        )
        voters.kill(await voters.wait_leader())
        await voters.wait_leader()
        assert all(b"kept" in voters.machines[i].commands for i in voters.services)


async def test_messages_of_an_earlier_process_of_a_node_do_not_count(tmp_path: Path) -> None:
    async with three_voters(tmp_path) as voters:
        for i in (1, 2, 3):
            await voters.start(i)
        leader = await voters.wait_leader()
        follower = next(i for i in (1, 2, 3) if i != leader)
        service = voters.services[leader]
        before = incarnations_of(service).current(follower)
        voters.kill(follower)
        await voters.start(follower)
        await until(lambda: incarnations_of(service).current(follower) != before)
        with pytest.raises(
            ProtocolError, match=f"of node {follower} from another process than the current one"
        ):
            service.receive(follower, encode_message(TimeoutNow(1)), before)


def incarnations_of(service: RaftService) -> Incarnations:
    return service.peer_links.handshakes.incarnations


def handshake_as(node_id: int, to: RaftService, calling: Calling) -> ListenerHandshake:
    """Another process introduces itself as this node, and can prove it."""
    everyone = frozenset({1, 2, 3})
    credentials = Credentials(
        cluster_id="c",
        node_id=node_id,
        nodes=everyone,
        incarnation=uuid4(),
        secret=None,
        new_uuid=uuid4,
        voter_view=to._voter_view,
    )
    call = CallerHandshake(credentials, to._node_id)
    handshake = to.begin_handshake(calling)
    challenge = to.receive_handshake(handshake, call.hello()[14:], 0)
    proven = to.receive_handshake(handshake, call.prove(challenge[4:])[14:], 1)
    to.receive_handshake(handshake, call.name(proven[4:])[14:], 2)
    return handshake


async def test_a_second_process_with_the_id_of_a_connected_node_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with three_voters(tmp_path) as voters:
        for i in (1, 2, 3):
            await voters.start(i)
        leader = await voters.wait_leader()
        service = voters.services[leader]
        follower = next(i for i in (1, 2, 3) if i != leader)
        await until(
            lambda: (
                follower in service.status().connected
                and incarnations_of(service).current(follower) is not None
            )
        )
        real, term = (
            incarnations_of(service).current(follower),
            service.status().term,
        )
        handshake = handshake_as(
            follower, service, Calling("10.9.9.9:1", service._clock.monotonic())
        )
        assert handshake.node_id is None and f"two nodes run under id {follower}" in (
            handshake.refusal or ""
        )
        assert "address=10.9.9.9:1 reason=claims to be node" in caplog.text
        assert incarnations_of(service).current(follower) == real
        await service.propose(b"goes on")
        await until(lambda: voters.machines[follower].commands == [b"goes on"])
        assert service.status().term == term


async def test_a_displaced_node_is_accepted_again_when_the_other_has_ended(
    tmp_path: Path,
) -> None:
    async with three_voters(tmp_path) as voters:
        for i in (1, 2, 3):
            await voters.start(i)
        leader = await voters.wait_leader()
        service = voters.services[leader]
        follower = next(i for i in (1, 2, 3) if i != leader)
        await until(lambda: incarnations_of(service).current(follower) is not None)
        real = incarnations_of(service).current(follower)
        # as if it had no recent messages
        incarnations_of(service)._silence = -math.inf
        other = Calling("10.9.9.9:1", service._clock.monotonic())
        handshake = handshake_as(follower, service, other)
        assert (
            handshake.node_id == follower
            and incarnations_of(service).current(follower) == handshake.incarnation != real
        )
        incarnations_of(service)._silence = QUICK.election_timeout_max
        with pytest.raises(ProtocolError, match="another process"):
            service.receive(follower, encode_message(TimeoutNow(1)), real)
        other.close()
        await until(lambda: incarnations_of(service).current(follower) == real)
        await voters.wait_leader()
        await voters.services[await voters.wait_leader()].propose(b"goes on")
        await until(lambda: voters.machines[follower].commands == [b"goes on"])


@pytest.mark.parametrize(
    ("host", "secret", "warned"),
    [("10.0.0.1", None, 1), ("10.0.0.1", SECRET, 0), ("127.0.0.1", None, 0)],
)
async def test_an_open_peer_port_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str, secret: bytes | None, warned: int
) -> None:
    raft = RaftService(
        node_id=1,
        voters={1: (host, 1), 2: ("127.0.0.1", 1)},
        cluster_id="c",
        directory=tmp_path,
        disk=OsDisk(),
        clock=SystemClock(),
        entropy=RandomEntropy(),
        network=OsNetwork(),
        machine=Log(),
        secret=secret,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(raft.run)
        nursery.cancel_scope.cancel()
    assert (
        sum(
            "open to the network without a cluster secret" in record.getMessage()
            for record in caplog.records
        )
        == warned
    )
