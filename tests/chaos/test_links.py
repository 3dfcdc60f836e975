"""chaos/links.py: a cut link delays bytes and closes nothing; the link of a dead node refuses."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from chaos.links import Links

HELD_S = 0.2


@pytest.fixture
def links() -> Iterator[Links]:
    made = Links()
    yield made
    made.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(10)
        yield made


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 10)


def test_bytes_pass_wait_and_pass_again(links: Links, listener: socket.socket) -> None:
    port = links.add(1, 2, listener.getsockname()[1])
    links.add(1, 3, listener.getsockname()[1])
    with connect(port) as near, listener.accept()[0] as far:
        far.settimeout(10)
        near.sendall(b"one")
        assert far.recv(10) == b"one"
        links.cut(2, 1)
        near.sendall(b"two")
        far.sendall(b"back")
        far.settimeout(HELD_S)
        near.settimeout(HELD_S)
        with pytest.raises(TimeoutError):
            far.recv(10)
        with pytest.raises(TimeoutError):
            near.recv(10)
        links.heal()
        far.settimeout(10)
        near.settimeout(10)
        assert far.recv(10) == b"two"
        assert near.recv(10) == b"back"


def test_only_the_links_of_an_isolated_node_are_cut(links: Links, listener: socket.socket) -> None:
    ports = {pair: links.add(*pair, listener.getsockname()[1]) for pair in ((1, 2), (2, 1), (2, 3))}
    links.isolate([1])
    for pair, port in ports.items():
        with connect(port) as near:
            near.sendall(b"x")
            if 1 in pair:
                listener.settimeout(HELD_S)
                with pytest.raises(TimeoutError):
                    listener.accept()
            else:
                listener.settimeout(10)
                with listener.accept()[0] as far:
                    far.settimeout(10)
                    assert far.recv(10) == b"x"


def test_the_end_of_a_connection_goes_through_and_waits_while_cut(
    links: Links, listener: socket.socket
) -> None:
    port = links.add(1, 2, listener.getsockname()[1])
    near = connect(port)
    with listener.accept()[0] as far:
        far.settimeout(HELD_S)
        links.cut(1, 2)
        near.close()
        with pytest.raises(TimeoutError):
            far.recv(1)
        links.heal()
        far.settimeout(10)
        assert far.recv(1) == b""


def test_a_dead_node_refuses_until_it_is_started(links: Links, listener: socket.socket) -> None:
    port = links.add(1, 2, listener.getsockname()[1])
    links.down(2)
    with pytest.raises(ConnectionRefusedError):
        connect(port)
    links.up(2)
    with connect(port) as near, listener.accept()[0] as far:
        near.sendall(b"x")
        far.settimeout(10)
        assert far.recv(1) == b"x"
