"""The network on real loopback sockets: connecting, streams, non-blocking sockets, the
poller, an overloaded accept.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mqd.io.disk import OsDisk
from mqd.io.net import (
    HANG_UP,
    READABLE,
    WRITABLE,
    EpollPoller,
    OsListener,
    OsNetwork,
    OsSocket,
    OsStream,
)

HOST = "127.0.0.1"
DEADLINE_S = 10.0


class Waiting:
    """A callback of the poller."""

    used = 0.0

    def on_ready(self, events: int) -> None:
        raise AssertionError("the poller's owner calls, not the poller")


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[OsStream, OsSocket]]:
    """A stream and the accepted socket at its other end."""
    network = OsNetwork()
    listener = await network.listen(HOST, 0)
    stream = await network.connect(HOST, listener.port)
    accepted = await listener.accept()
    listener.close()
    try:
        yield stream, accepted
    finally:
        stream.close()
        accepted.close()


async def receive(accepted: OsSocket, size: int) -> bytes:
    """Exactly that many bytes from a non-blocking socket."""
    found = b""
    view = memoryview(bytearray(size))
    with trio.fail_after(DEADLINE_S):
        while len(found) < size:
            try:
                got = accepted.receive_into(view[: size - len(found)])
            except BlockingIOError:
                await trio.lowlevel.wait_readable(accepted.fileno())
                continue
            assert got, "the stream ended early"
            found += view[:got]
    return found


async def all_of(stream: OsStream) -> bytes:
    found = b""
    view = memoryview(bytearray(65536))
    with trio.fail_after(DEADLINE_S):
        while got := await stream.receive_into(view):
            found += view[:got]
    return found


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


# -- connecting


async def test_connection_to_a_closed_port() -> None:
    with pytest.raises(ConnectionRefusedError):
        await OsNetwork().connect(HOST, closed_port())


async def test_no_such_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(trio.socket, "getaddrinfo", unknown)
    with pytest.raises(OSError, match="not known"):
        await OsNetwork().connect("nowhere", 1)


async def test_connecting_to_an_unresponsive_peer_times_out(mock_clock: MockClock) -> None:
    """A listener whose backlog is full drops the handshake, like an absent host."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind((HOST, 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex((HOST, port))
        outcome: list[BaseException] = []

        async def connect() -> None:
            try:
                (await OsNetwork().connect(HOST, port, timeout=3)).close()
            except OSError as error:
                outcome.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            await trio.to_thread.run_sync(lambda: None)
            await wait_all_tasks_blocked(0.01)
            mock_clock.jump(2.9)
            await wait_all_tasks_blocked()
            assert not outcome
            mock_clock.jump(0.2)
        assert isinstance(outcome[0], TimeoutError)
        assert f"{HOST}:{port} within 3 s" in str(outcome[0])


async def test_the_next_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = await OsNetwork().listen(HOST, 0)
    addresses = [(HOST, closed_port()), (HOST, listener.port)]

    async def both(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in addresses]

    monkeypatch.setattr(trio.socket, "getaddrinfo", both)
    stream = await OsNetwork().connect("two", 1)
    (await listener.accept()).close()
    stream.close()
    listener.close()


async def test_a_port_in_use_cannot_be_listened_on() -> None:
    listener = await OsNetwork().listen(HOST, 0)
    with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
        await OsNetwork().listen(HOST, listener.port)
    listener.close()
    (await OsNetwork().listen(HOST, listener.port)).close()


@pytest.mark.parametrize("has_ipv6", [True, False])
async def test_an_empty_host_listens_on_all_addresses(
    monkeypatch: pytest.MonkeyPatch, has_ipv6: bool
) -> None:
    """IPv4 addresses look the same on a listener that has IPv6, too: ACLs name them."""
    if has_ipv6 and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: has_ipv6)
    listener = await OsNetwork().listen("", 0)
    for host in ("127.0.0.1", "::1") if has_ipv6 else ("127.0.0.1",):
        stream = await OsNetwork().connect(host, listener.port)
        accepted = await listener.accept()
        assert accepted.peer.rpartition(":")[0] == host
        stream.close()
        accepted.close()
    listener.close()


async def test_socket_buffers_reach_accepted_connections() -> None:
    network = OsNetwork(send_buffer_bytes=20_000, receive_buffer_bytes=30_000)
    listener = await network.listen(HOST, 0)
    stream = await network.connect(HOST, listener.port)
    accepted = await listener.accept()
    sizes = [
        accepted._socket.getsockopt(socket.SOL_SOCKET, option)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)
    ]
    assert sizes == [40_000, 60_000]  # Linux doubles the requested size
    assert accepted._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    for one in (stream, accepted, listener):
        one.close()


async def test_the_other_end_has_a_name() -> None:
    async with pair() as (stream, accepted):
        assert accepted.peer == "{}:{}".format(*stream._socket.getsockname())


# -- streams


async def test_bytes_pass_in_both_directions_and_the_end_is_detected() -> None:
    async with pair() as (stream, accepted):
        await stream.send_all(b"there")
        assert await receive(accepted, 5) == b"there"
        assert accepted.send(b"and back") == 8
        accepted.close()
        assert await all_of(stream) == b"and back"


async def test_a_half_closed_stream_still_receives() -> None:
    async with pair() as (stream, accepted):
        stream._socket.shutdown(socket.SHUT_WR)
        await trio.lowlevel.wait_readable(accepted.fileno())
        assert accepted.receive_into(memoryview(bytearray(10))) == 0
        assert accepted.send(b"answer") == 6
        accepted.close()
        assert await all_of(stream) == b"answer"


async def test_more_than_the_buffers_hold_waits_for_the_reader() -> None:
    data = os.urandom(8 << 20)
    async with pair() as (stream, accepted), trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data)
        await wait_all_tasks_blocked(0.01)
        assert len(nursery.child_tasks) == 1
        assert await receive(accepted, len(data)) == data


async def test_a_reset_is_an_os_error() -> None:
    async with pair() as (stream, accepted):
        accepted._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        accepted.close()
        with pytest.raises(ConnectionResetError):
            await all_of(stream)


@pytest.mark.parametrize("action", ["receive", "send"])
async def test_closing_wakes_waiters(action: str) -> None:
    outcome: list[OSError] = []

    async def work(stream: OsStream) -> None:
        try:
            if action == "receive":
                await stream.receive_into(memoryview(bytearray(10)))
            else:
                await stream.send_all(bytes(64 << 20))
        except OSError as error:
            outcome.append(error)

    async with pair() as (stream, _accepted):
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, stream)
                await wait_all_tasks_blocked(0.01)
                stream.close()
        stream.close()
    assert [one.errno for one in outcome] == [errno.EBADF]


async def test_a_cancelled_receive_takes_no_bytes() -> None:
    async with pair() as (stream, accepted):
        with trio.move_on_after(0) as scope:
            await stream.receive_into(memoryview(bytearray(10)))
        assert scope.cancelled_caught
        accepted.send(b"still there")
        accepted.close()
        assert await all_of(stream) == b"still there"


# -- non-blocking sockets


async def test_a_socket_without_bytes_or_room_raises_blocking_io_error() -> None:
    async with pair() as (_stream, accepted):
        with pytest.raises(BlockingIOError):
            accepted.receive_into(memoryview(bytearray(10)))
        with pytest.raises(BlockingIOError):
            for _ in range(1000):
                accepted.send(bytes(1 << 20))


async def test_a_part_is_sent_with_more_to_come() -> None:
    async with pair() as (stream, accepted):
        assert accepted.send_more(b"head,") == 5
        assert accepted.send(b"tail") == 4
        accepted.close()
        assert await all_of(stream) == b"head,tail"


async def test_a_file_is_sent_from_its_position(tmp_path: Path) -> None:
    file = OsDisk().open(tmp_path / "f", create=True)
    file.append([b"0123456789"])
    async with pair() as (stream, accepted):
        assert accepted.send_file(file, 2, 5) == 5
        assert accepted.send_file(file, 8, 5) == 2
        accepted.close()
        assert await all_of(stream) == b"2345689"


async def test_a_shortened_file_is_an_error_and_not_an_endless_response(
    tmp_path: Path,
) -> None:
    file = OsDisk().open(tmp_path / "f", create=True)
    file.append([b"0123456789"])
    file.truncate(4)
    async with pair() as (_stream, accepted):
        with pytest.raises(OSError, match="ends before position 9") as failed:
            accepted.send_file(file, 4, 5)
        assert failed.value.errno == errno.EIO


# -- the poller


@asynccontextmanager
async def polled() -> AsyncIterator[tuple[EpollPoller, OsStream, OsSocket]]:
    poller = OsNetwork().poller()
    async with pair() as (stream, accepted):
        yield poller, stream, accepted
        poller.forget(accepted)
        poller.close()


async def test_a_ready_source_is_reported_until_it_is_handled() -> None:
    async with polled() as (poller, stream, accepted):
        waiting = Waiting()
        poller.watch(accepted, waiting, READABLE)
        assert poller.ready_nowait() == []
        await stream.send_all(b"x")
        with trio.fail_after(DEADLINE_S):
            await poller.wait_ready()
        assert poller.ready_nowait() == poller.ready_nowait() == [(waiting, READABLE)]
        poller.watch(accepted, waiting, 0)
        assert poller.ready_nowait() == []
        poller.watch(accepted, waiting, READABLE | WRITABLE)
        assert poller.ready_nowait() == [(waiting, READABLE | WRITABLE)]
        poller.forget(accepted)
        poller.forget(accepted)
        assert poller.ready_nowait() == []


async def test_a_hang_up_is_named_whatever_is_watched() -> None:
    async with polled() as (poller, stream, accepted):
        waiting = Waiting()
        poller.watch(accepted, waiting, 0)
        stream._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        stream.close()
        with trio.fail_after(DEADLINE_S):
            await poller.wait_ready()
        ((who, events),) = poller.ready_nowait()
        assert who is waiting
        assert events & HANG_UP


# -- accept


class Scripted:
    """A listening socket with scripted results of accept."""

    def __init__(self, real: socket.socket, *script: OSError) -> None:
        self.real = real
        self.script = list(script)

    def accept(self) -> tuple[socket.socket, object]:
        if self.script:
            raise self.script.pop(0)
        return self.real.accept()

    def fileno(self) -> int:
        return self.real.fileno()


@asynccontextmanager
async def scripted(*script: OSError) -> AsyncIterator[tuple[OsListener, list[OsSocket]]]:
    """A listener that gets these errors first, and a client that waits to be accepted."""
    listener = await OsNetwork().listen(HOST, 0)
    real = listener._socket
    listener._socket = Scripted(real, *script)  # type: ignore[assignment]  # a scripted socket
    with socket.create_connection((HOST, listener.port)):
        accepted: list[OsSocket] = []
        yield listener, accepted
        for one in accepted:
            one.close()
    real.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_an_overloaded_accept_waits_and_retries(mock_clock: MockClock, number: int) -> None:
    async with scripted(OSError(number, "full"), OSError(number, "full")) as (listener, accepted):

        async def accept() -> None:
            accepted.append(await listener.accept())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            for _ in range(2):
                await wait_all_tasks_blocked()
                assert not accepted
                mock_clock.jump(0.11)
        assert len(accepted) == 1


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EPERM, errno.EPROTO])
async def test_a_peer_that_disconnected_does_not_delay_the_next(number: int) -> None:
    async with scripted(OSError(number, "gone")) as (listener, accepted):
        with trio.fail_after(DEADLINE_S):
            accepted.append(await listener.accept())


async def test_any_other_failure_of_accept_rises() -> None:
    async with scripted(OSError(errno.EBADF, "ours")) as (listener, _accepted):
        with pytest.raises(OSError, match="ours"):
            await listener.accept()


async def test_accept_can_be_cancelled() -> None:
    listener = await OsNetwork().listen(HOST, 0)
    with trio.move_on_after(0) as scope:
        await listener.accept()
    assert scope.cancelled_caught
    listener.close()


async def test_a_flood_of_connections_leaves_room_for_others() -> None:
    listener = await OsNetwork().listen(HOST, 0)
    socks = [socket.create_connection((HOST, listener.port)) for _ in range(200)]
    order: list[str] = []

    async def accept() -> None:
        for _ in socks:
            (await listener.accept()).close()
            order.append("accept")

    async def other() -> None:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
            order.append("other")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        nursery.start_soon(other)
    for sock in socks:
        sock.close()
    listener.close()
    assert "other" in order[: len(socks)]


def test_events_are_epoll_s() -> None:
    assert (READABLE, WRITABLE) == (select.EPOLLIN, select.EPOLLOUT)
