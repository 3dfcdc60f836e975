"""The file of the log end checkpoint, and the comparison of its lines with logs."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from mqd.log.log_end import (
    NO_CRC,
    LogEnd,
    LogEndCheckpoint,
    decode_log_ends,
    encode_log_ends,
    loss_reason,
)
from mqd.protocol.files import FileFormatError
from mqd.types import NO_EPOCH, TopicPartition
from tests.log.support import PARTITION, TOPIC_ID

NAMES = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True)
OFFSETS = st.integers(0, 2**63 - 1)
LINES = st.one_of(
    st.builds(LogEnd, st.uuids(), OFFSETS, st.integers(-1, 2**31 - 1), st.integers(0, 2**32 - 1)),
    st.builds(LogEnd, st.uuids(), OFFSETS, st.just(NO_EPOCH), st.just(NO_CRC)),
)


# -- the file


PARTITIONS = st.builds(TopicPartition, NAMES, st.integers(0, 2**31 - 1))


@given(
    st.builds(
        LogEndCheckpoint,
        OFFSETS,
        st.integers(0, 2**32 - 1),
        st.dictionaries(PARTITIONS, LINES, max_size=4),
    )
)
def test_round_trip(written: LogEndCheckpoint) -> None:
    assert decode_log_ends(encode_log_ends(written)) == written


@given(st.binary(max_size=80), st.data())
def test_other_bytes_are_refused(data: bytes, draw: st.DataObject) -> None:
    written = encode_log_ends(LogEndCheckpoint(3, 5, {PARTITION: LogEnd(TOPIC_ID, 42, 1, 77)}))
    for bad in (data, written[: draw.draw(st.integers(0, len(written) - 1))], written + b"x\n"):
        with pytest.raises(FileFormatError):
            decode_log_ends(bad)


# -- the comparison


CLAIM = LogEnd(TOPIC_ID, 42, 3, 0x9F2C11D0)


@pytest.mark.parametrize(
    ("found_end", "last", "lost"),
    [
        (42, CLAIM, False),
        (50, CLAIM, False),
        (50, None, False),
        (41, None, True),
        (0, None, True),
        (50, CLAIM._replace(crc=1), True),
        (50, CLAIM._replace(leader_epoch=4), True),
        (50, CLAIM._replace(end_offset=45), True),
    ],
)
def test_a_log_must_contain_the_named_batch(
    found_end: int, last: LogEnd | None, lost: bool
) -> None:
    reason = loss_reason(CLAIM, found_end, last)
    assert (reason is not None) == lost
    if reason is not None:
        assert "end offset 42, leader epoch 3, CRC 9f2c11d0" in reason and "found" in reason


def test_a_line_without_a_batch_compares_the_end_alone() -> None:
    claim = LogEnd(TOPIC_ID, 42)
    assert (claim.leader_epoch, claim.crc) == (NO_EPOCH, NO_CRC)
    assert loss_reason(claim, 42, CLAIM) is None and loss_reason(claim, 41, None) is not None
