"""Frames from a stream, in pieces of any size."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, strategies as st

from mqd.errors import ProtocolError
from mqd.protocol.frame import FrameReader


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def frames(reader: FrameReader) -> list[bytes]:
    taken = []
    while (frame := reader.next_frame()) is not None:
        taken.append(bytes(frame))
    return taken


BODIES = [b"1234", b"a longer one", b"\x00" * 300]
STREAM = b"".join(map(framed, BODIES))


def test_a_stream_cut_anywhere() -> None:
    for cut in range(len(STREAM) + 1):
        reader = FrameReader()
        reader.receive_data(STREAM[:cut])
        before = frames(reader)
        assert reader.pending_bytes == cut - sum(map(len, map(framed, before))), cut
        reader.receive_data(STREAM[cut:])
        assert before + frames(reader) == BODIES, cut
        assert reader.pending_bytes == 0, cut


@given(
    bodies=st.lists(st.binary(min_size=4, max_size=40), max_size=6),
    sizes=st.lists(st.integers(1, 30), min_size=1),
)
def test_pieces_of_any_size(bodies: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(map(framed, bodies))
    reader = FrameReader()
    taken: list[bytes] = []
    position = 0
    while position < len(stream):
        size = sizes[position % len(sizes)]
        reader.receive_data(memoryview(stream)[position : position + size])
        taken += frames(reader)
        position += size
    assert taken == bodies


@pytest.mark.parametrize("length", [0, 1, 3, -1, -(2**31), 1001, 2**31 - 1])
def test_a_length_outside_the_bounds_is_refused_before_its_frame(length: int) -> None:
    reader = FrameReader(bytes_max=1000)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=f"frame of {length} bytes; 4 to 1000"):
            reader.receive_data(length.to_bytes(4, "big", signed=True))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000
    with pytest.raises(ProtocolError):
        reader.next_frame()
    with pytest.raises(ProtocolError):
        reader.receive_data(b"more")


def test_a_bad_length_behind_a_good_frame_is_found_when_its_turn_comes() -> None:
    reader = FrameReader()
    reader.receive_data(framed(b"good") + b"\xff\xff\xff\xff")
    assert bytes(reader.next_frame() or b"") == b"good"
    with pytest.raises(ProtocolError):
        reader.next_frame()


def test_the_largest_frame_is_accepted() -> None:
    reader = FrameReader(bytes_max=1000)
    reader.receive_data(framed(bytes(1000)))
    assert len(reader.next_frame() or b"") == 1000


def test_a_frame_outlives_later_ones() -> None:
    reader = FrameReader()
    reader.receive_data(framed(b"first"))
    first = reader.next_frame()
    reader.receive_data(framed(b"second"))
    assert bytes(first or b"") == b"first"
    assert bytes(reader.next_frame() or b"") == b"second"


def test_large_frames_are_not_copied_and_outlive_later_ones() -> None:
    reader = FrameReader()
    bodies = [
        bytes([number]) * (size << 10)
        for number, size in enumerate((100, 3, 64, 300, 1, 5000, 5000, 2))
    ]
    stream = b"".join(map(framed, bodies))
    for cut in (1, 1000, 65_536, 100_003, 10**9):
        taken = []
        for start in range(0, len(stream), cut if cut > 1 else 77_777):
            reader.receive_data(stream[start : start + (cut if cut > 1 else 77_777)])
            while (frame := reader.next_frame()) is not None:
                assert frame.readonly
                taken.append(frame)
        assert [bytes(frame) for frame in taken] == bodies and reader.pending_bytes == 0


def test_a_large_frame_is_not_written_over() -> None:
    reader = FrameReader(receive_bytes=1 << 20)
    reader.receive_data(framed(b"x" * 100_000) + framed(b"small"))
    large, small = reader.next_frame(), reader.next_frame()
    reader.receive_data(framed(b"y" * 200_000))
    assert bytes(large or b"") == b"x" * 100_000 and bytes(small or b"") == b"small"


def test_memory_grows_with_received_bytes_and_not_announced_ones() -> None:
    reader = FrameReader(bytes_max=1 << 30)
    reader.receive_data((1 << 29).to_bytes(4, "big") + bytes(100))
    for _ in range(100):
        reader.receive_data(bytes(1000))
        assert len(reader.room()) < 600_000
    small = FrameReader()
    small.receive_data(framed(bytes(3 << 20)))
    frame = small.next_frame()
    assert frame is not None
    small.receive_data(framed(b"small"))
    room = len(small.room())
    assert bytes(small.next_frame() or b"") == b"small" and room < 10_000
