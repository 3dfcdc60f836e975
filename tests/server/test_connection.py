"""A connection with a scripted socket: the order of responses, slow readers, and the end."""

from __future__ import annotations

import math
from pathlib import Path

from mqd.errors import ProtocolError
from mqd.io.disk import FileRange, OsDisk
from mqd.io.net import HANG_UP, READABLE
from mqd.limits import SENDFILE_BYTES_MIN
from tests.server.scripted import ScriptedOwner, frame


def test_responses_are_sent_in_the_order_of_the_requests() -> None:
    owner = ScriptedOwner(echo=False)
    owner.sock.incoming = [frame(b"request1") + frame(b"request2") + frame(b"request3")]
    owner.run()
    owner.slots[2].complete([b"three"])
    owner.slots[1].complete([b"two"])
    owner.run()
    assert not owner.sock.sent
    owner.slots[0].complete([b"one"])
    owner.run()
    assert bytes(owner.sock.sent) == b"onetwothree"


def test_a_slow_reader_gets_everything_and_is_not_read_meanwhile(tmp_path: Path) -> None:
    file = OsDisk().open(tmp_path / "file", create=True)
    content = bytes(range(256)) * 1024
    file.append([content])
    owner = ScriptedOwner(echo=False)
    owner.sock.incoming = [frame(b"request1")]
    owner.run()
    small = FileRange(file, 100, 1000)
    large = FileRange(file, 5, SENDFILE_BYTES_MIN + 1)
    owner.slots[0].complete([b"head", small, b"middle", large, b"tail"])
    expected = (
        b"head" + content[100:1100] + b"middle" + content[5 : 5 + SENDFILE_BYTES_MIN + 1] + b"tail"
    )
    for room in (0, 1, 3, 1000, 7, 60_000, 1, 10_000):
        owner.sock.room = room
        owner.turn()
    owner.sock.room = 1 << 30
    owner.run()
    assert bytes(owner.sock.sent) == expected
    file.close()


def test_a_file_shorter_than_announced_closes_the_connection(tmp_path: Path) -> None:
    file = OsDisk().open(tmp_path / "file", create=True)
    file.append([b"short"])
    owner = ScriptedOwner(echo=False)
    owner.sock.incoming = [frame(b"request1")]
    owner.run()
    owner.slots[0].complete([b"head", FileRange(file, 0, 100)])
    owner.run()
    assert owner.sock.closed
    file.close()


def test_half_closed_after_a_request_gets_the_response_then_closes() -> None:
    owner = ScriptedOwner(echo=False)
    owner.sock.incoming = [frame(b"request1"), b""]
    owner.run()
    owner.turn()
    assert not owner.sock.closed
    owner.slots[0].complete([b"response"])
    owner.run()
    assert bytes(owner.sock.sent) == b"response"
    assert owner.sock.closed


def test_a_hang_up_closes_a_connection_that_is_not_read() -> None:
    owner = ScriptedOwner(echo=False)
    owner.connection.barrier = True
    owner.sock.incoming = [frame(b"request1")]
    owner.run()
    owner.connection.on_ready(HANG_UP)
    assert owner.sock.closed
    assert owner.requests_pool.bytes == 0


def test_a_protocol_error_in_a_request_closes_this_connection() -> None:
    owner = ScriptedOwner()

    def refuse(*_: object) -> bool:
        raise ProtocolError("no such thing")

    owner.dispatch = refuse  # type: ignore[method-assign, assignment]  # replaced by the test
    owner.sock.incoming = [frame(b"12345678")]
    owner.run()
    assert owner.sock.closed


def test_after_the_end_of_the_stream_nothing_more_is_received() -> None:
    """After a process died, its successor under the same node id need not wait for that."""
    owner = ScriptedOwner(echo=False)
    owner.now = 5.0
    owner.sock.incoming.append(b"\0\0\0\x08" + bytes(8))
    owner.connection.on_ready(READABLE)
    assert owner.connection.received_at == 5.0
    owner.sock.incoming.append(b"")
    owner.connection.on_ready(READABLE)
    assert owner.connection.open and owner.connection.received_at == -math.inf
