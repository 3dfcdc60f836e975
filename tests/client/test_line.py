"""A connection of one task: in pieces of any size, responses are in order, a cancelled wait loses
nothing, and memory is reserved only for received bytes.
"""

from __future__ import annotations

import struct
from functools import partial

import pytest
import trio
import trio.testing

from mqd import limits
from mqd.client.errors import ConnectionBroken
from mqd.client.line import Line
from mqd.errors import ProtocolError
from mqd.protocol.apis import by_key
from mqd.protocol.schema import Api
from tests.client.fake import API_VERSIONS, METADATA, MemoryStream, stream_pair


def api(key: int) -> Api:
    found = by_key(key)
    assert found is not None
    return found


def lines(chunk: int = 1 << 20) -> tuple[Line, MemoryStream]:
    ours, theirs = stream_pair(chunk)
    return Line(ours, peer="x:1", client_id="me"), theirs


def frame(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


async def round_trip(line: Line, peer: MemoryStream, body: bytes, correlation_id: int) -> bytes:
    await line.send(api(METADATA), 0, b"?")
    await peer.send_all(frame(correlation_id, body))
    taken, position = await line.response()
    return bytes(taken[position:])


@pytest.mark.parametrize("chunk", [1, 3, 100_000, 1 << 20])
async def test_responses_of_all_sizes_in_any_pieces(chunk: int) -> None:
    line, peer = lines(chunk)
    sizes = (
        [0, 1, 5, 300]
        if chunk < 100
        else [0, 7, 300_000, 262_136, 262_137, 3_000_000, 2, 2_999_999, 1]
    )
    for number, size in enumerate(sizes):
        body = bytes([number]) * size
        assert await round_trip(line, peer, body, number) == body


async def test_a_request_is_framed_and_sent_at_once() -> None:
    line, peer = lines()
    await line.send(api(METADATA), 0, b"body")
    assert peer.other.sent_calls == 1
    assert bytes(peer._incoming) == struct.pack(">ihhih", 16, 3, 0, 0, 2) + b"me" + b"body"


async def test_an_unwanted_response_is_skipped() -> None:
    line, peer = lines()
    await line.send(api(METADATA), 0, b"")
    await line.send(api(API_VERSIONS), 0, b"", wanted=False)
    await line.send(api(METADATA), 0, b"")
    await peer.send_all(frame(0, b"first") + frame(1, b"unwanted") + frame(2, b"second"))
    assert [bytes((await line.response())[0][4:]) for _ in range(2)] == [b"first", b"second"]


async def test_a_cancelled_wait_loses_nothing() -> None:
    line, peer = lines()
    await line.send(api(METADATA), 0, b"")
    whole = frame(0, b"abcdefgh")
    for byte in whole[:-1]:
        with trio.move_on_after(0) as scope:
            await line.response()
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.send_all, bytes([byte]))
            with trio.move_on_after(0.001):
                await line.response()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.send_all, whole[-1:])
        taken, position = await line.response()
    assert bytes(taken[position:]) == b"abcdefgh"


async def test_a_length_alone_costs_nothing() -> None:
    line, peer = lines()
    await line.send(api(METADATA), 0, b"")
    await peer.send_all(struct.pack(">ii", limits.RESPONSE_BYTES_MAX, 0) + bytes(300_000))
    with trio.move_on_after(0.01):
        await line.response()
    assert len(line._buffer) == 4 * limits.CLIENT_RECEIVE_BYTES


async def test_memory_of_large_responses_is_freed_after_them() -> None:
    line, peer = lines()
    assert len(await round_trip(line, peer, bytes(1_000_000), 0)) == 1_000_000
    assert len(await round_trip(line, peer, bytes(1_000_000), 1)) == 1_000_000
    assert len(line._buffer) == 1_000_008
    for number in (2, 3):
        await round_trip(line, peer, b"small", number)
    assert len(line._buffer) == limits.CLIENT_RECEIVE_BYTES


@pytest.mark.parametrize(
    "sent",
    [
        frame(7, b""),
        struct.pack(">i", 3),
        struct.pack(">i", limits.RESPONSE_BYTES_MAX + 1),
        frame(0, b"") + frame(1, b""),
    ],
)
async def test_invalid_bytes_are_refused(sent: bytes) -> None:
    line, peer = lines()
    await line.send(api(METADATA), 0, b"")
    await peer.send_all(sent)
    with pytest.raises(ProtocolError):
        for _ in range(2):
            await line.response()


async def test_a_broken_connection_fails_new_and_waiting_requests() -> None:
    line, peer = lines()
    await line.send(api(METADATA), 0, b"")
    peer.close()
    with pytest.raises(ConnectionBroken, match="closed the connection"):
        await line.response()
    with pytest.raises(ConnectionBroken, match="writing"):
        await line.send(api(METADATA), 0, b"")
    line.close("enough of it")
    line.close("and once more")
    with pytest.raises(ConnectionBroken, match="enough of it"):
        await line.response()


async def test_concurrent_requests_are_sent_whole_and_in_order(
    nursery: trio.Nursery,
) -> None:
    line, peer = lines()
    for wanted in (True, False, False):  # the first send is incomplete when the others start
        nursery.start_soon(partial(line.send, api(METADATA), 0, b"?", wanted=wanted))
    await trio.testing.wait_all_tasks_blocked()
    assert len(peer._incoming) == 3 * len(struct.pack(">ihhih", 13, 3, 0, 0, 2) + b"me?")
    await peer.send_all(b"".join(frame(number, b"") for number in range(3)))
    await line.response()


async def test_other_tasks_run_while_bytes_keep_arriving(nursery: trio.Nursery) -> None:
    line, peer = lines()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    nursery.start_soon(other)
    for number in range(100):
        await round_trip(line, peer, b"", number)
    assert turns > 5
    nursery.cancel_scope.cancel()
