"""A torn tail is recognized as such, whatever its payload. A damaged length is corruption where a
checkpoint shows that the batch was complete.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from struct import pack_into

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from mqd.log.disk.torn_tail import batch_after, find_batch
from mqd.log.log_config import LogConfig
from mqd.protocol.batch import crc_of, parse_header, write_crc
from mqd.protocol.compression import Codec
from mqd.protocol.files import HIGH_WATERMARK_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from tests.log.support import PARTITION, FaultyDisk, Harness, batch

_directories = count()


def at_offset(data: bytearray, offset: int) -> bytes:
    """The batch as it is in a log: its base offset is outside the bytes that the CRC covers."""
    pack_into(">q", data, 0, offset)
    write_crc(data)
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


def forged(nested: bytes, before: bytes, behind: bytes) -> bytes:
    """A batch with `nested` in its payload: the CRC-32C of the batch is also the CRC-32C of its
    bytes before `nested`. So its CRC does not show that its length is right.
    """

    def with_bytes(free: int) -> bytes:
        return bytes(batch(before + nested + behind + free.to_bytes(4) + behind))

    plain = with_bytes(0)
    crc = crc_of(plain)
    # The CRC is linear over GF(2): find the free bits whose contributions sum to the difference.
    difference, free = crc ^ crc_of(plain, 0, plain.index(nested)), 0
    pivots: dict[int, tuple[int, int]] = {}
    for index in range(32):
        change, bits = crc_of(with_bytes(1 << index)) ^ crc, 1 << index
        while change and (pivot := pivots.get(change.bit_length())):
            change, bits = change ^ pivot[0], bits ^ pivot[1]
        pivots[change.bit_length()] = (change, bits)
    while difference:
        change, bits = pivots[difference.bit_length()]
        difference, free = difference ^ change, free ^ bits
    data = with_bytes(free)
    assert parse_header(data).crc == crc_of(data, 0, data.index(nested))
    return data


forgeries = st.builds(
    forged,
    st.builds(
        lambda offset, value: at_offset(batch(value), offset),
        st.sampled_from([5, 30, 1 << 40]),
        st.binary(max_size=30),
    ),
    st.binary(max_size=20),
    st.binary(max_size=60),
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batches=st.lists(
        forgeries
        | st.builds(
            lambda values, codec: bytes(batch(*values, codec=codec)),
            st.lists(embedded, min_size=1, max_size=3),
            st.sampled_from(Codec),
        ),
        min_size=1,
        max_size=5,
    ),
    cut_share=st.floats(min_value=0, max_value=1),
)
@example([forged(at_offset(batch(b"inside"), 1 << 40), b"before", b"b" * 60)], 0.95)
async def test_a_kill_leaves_all_whole_batches_with_any_contents(
    tmp_path: Path, batches: list[bytes], cut_share: float
) -> None:
    directory = tmp_path / str(next(_directories))
    directory.mkdir()
    harness = Harness(directory)
    await harness.service.start()
    log = harness.open(LogConfig())
    harness.write(log, *batches)
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
    assert PARTITION in harness.service.logs, harness.service.offline
    assert harness.service.logs[PARTITION].log_end_offset == end_offset
    assert path.read_bytes() == whole[:position]
    harness.kill()


@pytest.mark.parametrize("checkpoint", ["recovery point", "high watermark", "log end", "none"])
@pytest.mark.parametrize(
    "payload", [b"x" * 40, at_offset(batch(b"inside"), 9)], ids=["plain", "embedded"]
)
@pytest.mark.parametrize("damaged", [0, 3, 7])
async def test_a_damaged_length_below_a_checkpoint_is_corruption(
    tmp_path: Path, damaged: int, payload: bytes, checkpoint: str
) -> None:
    """The claimed end is beyond the file's, as in a torn write. Without a checkpoint nothing shows
    that it is not one, because the client chooses all bytes that follow.
    """
    harness = Harness(tmp_path)
    service = harness.service
    await service.start()
    log = harness.open(LogConfig())
    for _ in range(9):
        harness.write(log, batch(payload))
    if checkpoint == "recovery point":
        async with harness.running():
            service.request_sync(log)
            while log.durability.end_offset < 9:
                await service.wait_synced()
        await service.housekeeping.store(RECOVERY_POINT_CHECKPOINT)
    elif checkpoint == "high watermark":
        service.housekeeping.checkpoint_high_watermark(PARTITION, 9)
        async with harness.running():
            await service.housekeeping.store(HIGH_WATERMARK_CHECKPOINT)
    elif checkpoint == "log end":
        await service.housekeeping.checkpoint_recovery_points()
    harness.kill()
    path = next((tmp_path / str(PARTITION)).glob("*.log"))
    data = bytearray(path.read_bytes())
    position = parse_header(data, 0).size * damaged
    data[position + 8 + 1] ^= 1  # 65,536 bytes more
    path.write_bytes(data)
    service = harness.new_service(survival_proven=checkpoint == "log end")
    await service.start()
    if checkpoint == "none":
        assert service.logs[PARTITION].log_end_offset == damaged
        assert path.read_bytes() == bytes(data[:position])
    else:
        assert PARTITION not in service.logs
        assert "corruption" in service.offline[PARTITION]
        assert path.read_bytes() == bytes(data)
    harness.kill()


async def test_an_invalid_checkpoint_leaves_a_torn_tail(tmp_path: Path) -> None:
    """A truncation voids the line of the log end checkpoint. The log is written again below it."""
    harness = Harness(tmp_path)
    await harness.service.start()
    log = harness.open(LogConfig())
    for _ in range(9):
        harness.write(log, batch(b"x" * 99))
    await harness.service.housekeeping.checkpoint_recovery_points()
    harness.service.truncate_to(log, 2)
    harness.write(log, batch(at_offset(batch(b"inside"), 9)))
    harness.kill()
    path = next((tmp_path / str(PARTITION)).glob("*.log"))
    path.write_bytes(path.read_bytes()[:-1])
    service = harness.new_service(survival_proven=True)
    await service.start()
    assert service.logs[PARTITION].log_end_offset == 2
    harness.kill()


def test_a_batch_that_was_complete_is_never_torn(tmp_path: Path) -> None:
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
