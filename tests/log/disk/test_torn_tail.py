"""A torn tail is a torn tail, whatever its payload; a damaged length in the middle of a log
is damage.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from struct import pack_into

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mqd.log.disk.torn_tail import batch_after, find_batch
from mqd.log.log_config import LogConfig
from mqd.protocol.batch import parse_header, seal
from mqd.protocol.compression import Codec
from tests.log.support import PARTITION, FaultyDisk, Harness, batch

_directories = count()


def at_offset(data: bytearray, offset: int) -> bytes:
    """The batch as it lies in a log: its base offset is outside of what the CRC covers."""
    pack_into(">q", data, 0, offset)
    seal(data)
    return bytes(data)


embedded = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(
            lambda offset, value: at_offset(batch(value), offset),
            st.integers(min_value=0, max_value=30),
            st.binary(max_size=30),
        ),
    ),
    max_size=4,
).map(b"".join)
"""Payloads that contain whole, valid batches: raw segments, or an attack."""


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batches=st.lists(
        st.tuples(st.lists(embedded, min_size=1, max_size=3), st.sampled_from(Codec)),
        min_size=1,
        max_size=5,
    ),
    cut_share=st.floats(min_value=0, max_value=1),
)
async def test_a_kill_leaves_all_whole_batches_whatever_they_contain(
    tmp_path: Path, batches: list[tuple[list[bytes], Codec]], cut_share: float
) -> None:
    directory = tmp_path / str(next(_directories))
    directory.mkdir()
    harness = Harness(directory)
    await harness.service.start()
    log = harness.open(LogConfig())
    for values, codec in batches:
        harness.write(log, batch(*values, codec=codec))
    harness.kill()
    path = next((directory / str(PARTITION)).glob("*.log"))
    whole = path.read_bytes()
    cut = round(cut_share * len(whole))
    position, end_offset = 0, 0
    while position < len(whole) and position + parse_header(whole, position).size <= cut:
        header = parse_header(whole, position)
        position, end_offset = position + header.size, header.last_offset + 1
    path.write_bytes(whole[:cut])
    await harness.restart()
    assert PARTITION in harness.service.logs, harness.service.fenced
    assert harness.service.logs[PARTITION].log_end_offset == end_offset
    assert path.read_bytes() == whole[:position]
    harness.kill()


@pytest.mark.parametrize(
    "payload", [b"x" * 40, at_offset(batch(b"inside"), 9)], ids=["plain", "embedded"]
)
@pytest.mark.parametrize("damaged", [0, 3, 7])
async def test_a_length_that_was_damaged_in_the_middle_is_corruption(
    tmp_path: Path, damaged: int, payload: bytes
) -> None:
    """The claimed end is behind the file's, as in a torn write, but the CRC-32C ends where
    the next batch begins.
    """
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(LogConfig())
    for _ in range(9):
        harness.write(log, batch(payload))
    harness.kill()
    path = next((tmp_path / str(PARTITION)).glob("*.log"))
    data = bytearray(path.read_bytes())
    position = parse_header(data, 0).size * damaged
    data[position + 8 + 1] ^= 1  # 65,536 bytes more
    path.write_bytes(data)
    await harness.restart()
    assert PARTITION not in harness.service.logs
    assert "corruption" in harness.service.fenced[PARTITION]
    assert path.read_bytes() == bytes(data)
    harness.kill()


def test_bytes_that_were_synced_are_never_torn(tmp_path: Path) -> None:
    inside = at_offset(batch(b"inside"), 1)
    whole = at_offset(batch(inside), 0)
    path = tmp_path / "f"
    path.write_bytes(whole[:-1])
    file = FaultyDisk().open(path)
    assert batch_after(file, 0, 0, may_be_torn=True) is None
    assert batch_after(file, 0, 0, may_be_torn=False) == (whole.index(inside), 1)


def test_find_batch_crosses_chunks_and_ignores_lower_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqd.log.disk.torn_tail.SCAN_BYTES", 128)
    data = at_offset(batch(b"x" * 50), 9)
    for before in range(0, 300, 7):
        path = tmp_path / "f"
        path.write_bytes(b"\x02\0\x02" * before + data + b"\x02")
        file = FaultyDisk().open(path)
        assert find_batch(file, 0, 9) == (3 * before, 9)
        assert find_batch(file, 0, 10) is None
        assert find_batch(file, 3 * before + 1, 0) is None
