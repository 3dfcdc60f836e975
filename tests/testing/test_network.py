"""The in-memory network behaves like TCP, as far as programs can observe it."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mqd.io.net import HANG_UP, READABLE, WRITABLE
from mqd.testing import current_world, simulated
from mqd.testing.disk import MemoryDisk
from mqd.testing.fabric import BUFFER_BYTES, Fabric, Host
from mqd.testing.network import HostNetwork
from mqd.testing.process import Killed, Process
from mqd.testing.process_disk import ProcessDisk
from mqd.testing.sockets import MemorySocket, MemoryStream


class Two:
    """Two hosts: "a" listens and "b" connects."""

    def __init__(self) -> None:
        world = current_world()
        self.fabric = Fabric(world.clock, world.random("network"))
        self.a, self.b = self.fabric.host("a", "10.0.0.1"), self.fabric.host("b", "10.0.0.2")
        self.process_a, self.process_b = Process(1, "a", world.clock), Process(2, "b", world.clock)
        self.at_a, self.at_b = (
            self.network(self.a, self.process_a),
            self.network(self.b, self.process_b),
        )

    def network(self, host: Host, process: Process) -> HostNetwork:
        return HostNetwork(self.fabric, host, process)

    def hold(self) -> None:
        self.fabric.hold(self.a, self.b)
        self.fabric.hold(self.b, self.a)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Two, MemorySocket, MemoryStream]]:
    two = Two()
    listener = await two.at_a.listen("10.0.0.1", 9092)
    stream = await two.at_b.connect("10.0.0.1", 9092)
    sock = await listener.accept()
    yield two, sock, stream
    stream.close()


async def received(stream: MemoryStream, size: int) -> bytes:
    view, got = memoryview(bytearray(size)), 0
    while got < size:
        more = await stream.receive_into(view[got:])
        if not more:
            break
        got += more
    return bytes(view[:got])


class Readiness:
    used = 0.0

    def __init__(self) -> None:
        self.events: list[int] = []

    def on_ready(self, events: int) -> None:
        self.events.append(events)


@simulated(seed=1)
async def test_bytes_arrive_in_order_after_some_time_in_pieces_cut_anywhere() -> None:
    async with connected() as (_two, sock, stream):
        sent = bytes(range(256)) * 400
        before = trio.current_time()
        for start in range(0, len(sent), 1024):
            assert sock.send(sent[start : start + 1024]) == 1024
        assert trio.current_time() == before
        assert await received(stream, len(sent)) == sent
        assert 0.0 < trio.current_time() - before < 0.1


@simulated()
async def test_a_slow_reader_makes_the_sender_wait_until_the_poller_wakes_it() -> None:
    async with connected() as (two, sock, stream):
        poller, readiness = two.at_a.poller(), Readiness()
        assert sock.send(bytes(BUFFER_BYTES + 10)) == BUFFER_BYTES
        with pytest.raises(BlockingIOError):
            sock.send(b"more")
        poller.watch(sock, readiness, WRITABLE)
        await trio.sleep(1)
        assert poller.ready_nowait() == []
        await received(stream, 1000)
        await poller.wait_ready()
        assert poller.ready_nowait() == [(readiness, WRITABLE)]
        assert sock.send(bytes(5000)) == 1000


@simulated()
async def test_readiness_is_reported_until_everything_is_read() -> None:
    async with connected() as (two, sock, stream):
        poller, readiness = two.at_a.poller(), Readiness()
        poller.watch(sock, readiness, READABLE)
        await stream.send_all(b"hello")
        await poller.wait_ready()
        await trio.sleep(0.1)
        assert poller.ready_nowait() == [(readiness, READABLE)]
        assert sock.receive_into(memoryview(bytearray(3))) == 3
        assert poller.ready_nowait() == [(readiness, READABLE)]
        assert sock.receive_into(memoryview(bytearray(9))) == 2
        assert poller.ready_nowait() == []
        stream.close()
        await poller.wait_ready()
        assert sock.receive_into(memoryview(bytearray(9))) == 0


@simulated()
async def test_a_host_without_a_listener_refuses_and_an_isolated_one_is_silent() -> None:
    two = Two()
    with pytest.raises(ConnectionRefusedError):
        await two.at_b.connect("10.0.0.1", 9092)
    await two.at_a.listen("10.0.0.1", 9092)
    two.hold()
    before = trio.current_time()
    with pytest.raises(TimeoutError):
        await two.at_b.connect("10.0.0.1", 9092, timeout=2.0)
    assert trio.current_time() - before == pytest.approx(2.0, abs=0.01)


@simulated()
async def test_no_connection_is_made_where_one_way_is_held() -> None:
    two = Two()
    await two.at_a.listen("10.0.0.1", 9092)
    for source, target in ((two.a, two.b), (two.b, two.a)):
        two.fabric.hold(source, target)
        with pytest.raises(TimeoutError):
            await two.at_b.connect("10.0.0.1", 9092, timeout=2.0)
        two.fabric.heal()


@simulated()
async def test_a_connection_is_made_once_the_link_heals() -> None:
    two = Two()
    await two.at_a.listen("10.0.0.1", 9092)
    two.hold()
    current_world().clock.after(0.5, two.fabric.heal)
    before = trio.current_time()
    await two.at_b.connect("10.0.0.1", 9092)
    # TCP retries after a second
    assert trio.current_time() - before == pytest.approx(1.0, abs=0.05)


@simulated()
async def test_bytes_of_a_held_link_arrive_in_order_after_it_heals() -> None:
    async with connected() as (two, sock, stream):
        two.fabric.hold(two.a, two.b)
        sock.send(b"one")
        await trio.sleep(3)
        sock.send(b"two")
        await stream.send_all(b"the other way is open")
        with trio.move_on_after(5) as waiting:
            await received(stream, 6)
        assert waiting.cancelled_caught
        assert sock.receive_into(memoryview(bytearray(100))) == 21
        two.fabric.heal()
        two.fabric.hold(two.a, two.b)  # retried before any of it has arrived
        await trio.sleep(3)
        sock.send(b"three")
        await trio.sleep(3)
        two.fabric.heal()
        assert await received(stream, 11) == b"onetwothree"


@simulated()
async def test_the_end_of_a_process_ends_its_connections_after_what_it_had_sent() -> None:
    async with connected() as (two, sock, stream):
        sock.send(b"last words")
        two.process_a.end()
        two.fabric.process_ended(two.a)
        assert await received(stream, 100) == b"last words"
        with pytest.raises(ConnectionRefusedError):
            await two.at_b.connect("10.0.0.1", 9092)
        await stream.send_all(b"to nobody")
        with pytest.raises(OSError) as caught:
            while True:
                await trio.sleep(0.01)
                await stream.send_all(b"to nobody")
        assert caught.value.errno == errno.EPIPE


@simulated()
async def test_unread_bytes_make_the_end_a_reset() -> None:
    async with connected() as (_two, sock, stream):
        await stream.send_all(b"never read")
        await trio.sleep(0.1)
        sock.close()
        with pytest.raises(ConnectionResetError):
            await received(stream, 1)


@simulated()
async def test_a_power_failure_is_silence_until_the_machine_restarts() -> None:
    async with connected() as (two, _sock, stream):
        two.process_a.end()
        two.fabric.power_cut(two.a)
        with trio.move_on_after(60) as silent:
            await received(stream, 1)
        assert silent.cancelled_caught
        await stream.send_all(b"anybody there?")
        await trio.sleep(60)
        two.fabric.power_on(two.a)
        with pytest.raises(ConnectionResetError):
            await received(stream, 1)


@simulated()
async def test_a_broken_connection_is_reset_on_both_sides() -> None:
    async with connected() as (two, sock, stream):
        poller, readiness = two.at_a.poller(), Readiness()
        poller.watch(sock, readiness, 0)
        assert two.fabric.break_connections(two.b, two.a) == 1
        assert poller.ready_nowait() == [(readiness, HANG_UP)]
        with pytest.raises(ConnectionResetError):
            await received(stream, 1)


@simulated()
async def test_closing_a_stream_ends_the_wait_of_its_own_reader() -> None:
    async with connected() as (_two, _sock, stream):
        current_world().clock.after(1, stream.close)
        with pytest.raises(OSError) as caught:
            await received(stream, 1)
        assert caught.value.errno == errno.EBADF


@simulated()
async def test_a_dead_process_neither_sends_nor_closes() -> None:
    async with connected() as (two, sock, stream):
        two.process_a.end()
        with pytest.raises(Killed):
            sock.send(b"from the grave")
        sock.close()
        assert sock.endpoint.is_open
        two.process_b.end()
        stream.close()
        await trio.sleep(1)
        assert not sock.endpoint.readable()


@simulated()
async def test_a_range_of_a_file_is_sent_as_far_as_there_is_room() -> None:
    async with connected() as (two, sock, stream):
        world = current_world()
        disk = ProcessDisk(MemoryDisk("a", world.clock, world.random("disk")), two.process_a)
        file = disk.open(Path("/f"), create=True)
        file.append([bytes(range(256)) * 2000])
        assert sock.send_file(file, 1, 400_000) == BUFFER_BYTES
        assert (await received(stream, 10)) == bytes(range(1, 11))
        with pytest.raises(OSError, match="ends before"):
            sock.send_file(file, 512_000, 10)
