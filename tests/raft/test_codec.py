"""Messages: encoded messages decode again, any other bytes raise ProtocolError."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, strategies as st

from mqd import limits
from mqd.errors import ProtocolError
from mqd.raft import codec
from mqd.raft.codec import (
    COMMAND,
    NO_OP,
    AppendEntries,
    AppendReply,
    Entry,
    InstallSnapshot,
    Message,
    PreVote,
    PreVoteReply,
    RecoveryQuery,
    RecoveryReply,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    Vote,
    decode_message,
    encode_message,
)
from mqd.raft.voters import VoterSet

numbers = st.integers(0, (1 << 62) - 1)


@st.composite
def appends(draw: st.DrawFn) -> AppendEntries:
    term, previous = draw(numbers), draw(st.integers(0, 1 << 61))
    commands = draw(
        st.lists(
            st.one_of(st.just(NO_OP), st.binary(max_size=50).map(lambda data: COMMAND + data)),
            max_size=5,
        )
    )
    entries = tuple(
        Entry(command, previous + 1 + k, draw(st.integers(0, term)))
        for k, command in enumerate(commands)
    )
    return AppendEntries(term, draw(numbers), previous, draw(numbers), entries)


@st.composite
def chunks(draw: st.DrawFn) -> InstallSnapshot:
    data, offset = draw(st.binary(max_size=100)), draw(st.integers(0, 1000))
    size = offset + len(data) + draw(st.integers(0, 1000))
    return InstallSnapshot(draw(numbers), draw(numbers), draw(numbers), size, offset, data)


THREE = VoterSet(1, frozenset({1, 2, 3}))
voter_sets = st.builds(
    VoterSet,
    st.integers(0, 2**32 - 1),
    st.frozensets(st.integers(0, 2**31 - 1), min_size=1, max_size=9),
)

messages: st.SearchStrategy[Message] = st.one_of(
    appends(),
    chunks(),
    st.builds(RequestVote, numbers, numbers, numbers),
    st.builds(Vote, numbers),
    st.builds(AppendReply, numbers, numbers, st.booleans(), st.booleans()),
    st.builds(SnapshotReply, numbers, numbers, numbers),
    st.builds(TimeoutNow, numbers),
    st.builds(PreVote, numbers, numbers, numbers),
    st.builds(PreVoteReply, numbers, st.booleans()),
    st.builds(RecoveryQuery, numbers, numbers),
    st.builds(RecoveryReply, numbers, numbers, numbers, st.booleans(), voter_sets),
)


@given(messages)
def test_round_trip(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@given(messages, st.data())
def test_any_damage_is_a_protocol_error(message: Message, data: st.DataObject) -> None:
    body = bytearray(encode_message(message))
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ProtocolError):
        decode_message(bytes(body))
    with pytest.raises(ProtocolError):
        decode_message(bytes(body[: data.draw(st.integers(0, len(body) - 1))]))


@given(st.binary(max_size=200))
def test_bytes_with_a_valid_checksum_decode_or_are_refused(data: bytes) -> None:
    try:
        message = decode_message(struct.pack(">I", crc32c(data)) + data)
    except ProtocolError:
        return
    assert encode_message(message)[4:] == data


def refused(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode_message(struct.pack(">I", crc32c(data)) + data)


def test_malformed_messages() -> None:
    refused(b"\x63", "unknown type 99")
    refused(b"\x02\x00", "Vote of 2 bytes")
    refused(b"\x02" + (1 << 62).to_bytes(8, "big"), "out of range")
    refused(struct.pack(">BQQQQI", 3, 1, 1, 1, 1, 1 << 31), "claims 2147483648 entries")
    refused(
        struct.pack(">BQQQQI", 3, 1, 1, 1, 1, 1) + struct.pack(">QI", 1, 1 << 30) + b"\x00",
        "an entry of 1073741824 bytes",
    )
    refused(
        struct.pack(">BQQQQI", 3, 1, 1, 1, 1, 1) + struct.pack(">QI", 2, 1) + b"\x00",
        "newer than its leader",
    )
    refused(
        struct.pack(">BQQQQI", 3, 1, 1, 1, 1, 1) + struct.pack(">QI", 1, 2) + b"\x01x",
        "neither a command, a voter set nor a no-op",
    )
    refused(struct.pack(">BQQQQI", 3, 1, 1, 1, 1, 0) + b"x", "after its last entry")
    refused(struct.pack(">BQQQQQ", 5, 1, 1, 1, 1 << 40, 0), "snapshot chunk")
    refused(struct.pack(">BQQQQQ", 5, 1, 1, 1, 5, 4) + b"xx", "snapshot chunk")
    with pytest.raises(ProtocolError, match="bytes"):
        decode_message(bytes(limits.RAFT_MESSAGE_BYTES_MAX + 5))


TERM, LAST = 7, 100
FAR_TERM = TERM + codec.TERM_LEAP_MAX
FAR_INDEX = LAST + codec.INDEX_LEAP_MAX


@pytest.mark.parametrize(
    ("plausible", "absurd"),
    [
        (
            RequestVote(FAR_TERM, FAR_INDEX, 0),
            [RequestVote(FAR_TERM + 1, 0, 0), RequestVote(TERM, FAR_INDEX + 1, 0)],
        ),
        (Vote(FAR_TERM), [Vote(FAR_TERM + 1)]),
        (
            AppendEntries(FAR_TERM, FAR_INDEX, FAR_INDEX, 0, ()),
            [
                AppendEntries(FAR_TERM + 1, 0, 0, 0, ()),
                AppendEntries(TERM, FAR_INDEX + 1, 0, 0, ()),
                AppendEntries(TERM, 0, FAR_INDEX + 1, 0, ()),
            ],
        ),
        (
            AppendReply(FAR_TERM, FAR_INDEX, True, False),
            [
                AppendReply(FAR_TERM + 1, 1, True, False),
                AppendReply(TERM, FAR_INDEX + 1, False, True),
            ],
        ),
        (
            InstallSnapshot(FAR_TERM, FAR_INDEX, 1, 0, 0, b""),
            [
                InstallSnapshot(FAR_TERM + 1, 1, 1, 0, 0, b""),
                InstallSnapshot(TERM, FAR_INDEX + 1, 1, 0, 0, b""),
            ],
        ),
        (
            SnapshotReply(FAR_TERM, FAR_INDEX, 0),
            [SnapshotReply(FAR_TERM + 1, 1, 0), SnapshotReply(TERM, FAR_INDEX + 1, 0)],
        ),
        (TimeoutNow(FAR_TERM), [TimeoutNow(FAR_TERM + 1)]),
        (
            PreVote(FAR_TERM, FAR_INDEX, 0),
            [PreVote(FAR_TERM + 1, 0, 0), PreVote(TERM, FAR_INDEX + 1, 0)],
        ),
        (PreVoteReply(FAR_TERM, True), [PreVoteReply(FAR_TERM + 1, False)]),
        (RecoveryQuery(FAR_TERM, 0), [RecoveryQuery(FAR_TERM + 1, 0)]),
        (
            RecoveryReply(FAR_TERM, 0, FAR_INDEX, True, THREE),
            [
                RecoveryReply(FAR_TERM + 1, 0, 0, True, THREE),
                RecoveryReply(TERM, 0, FAR_INDEX + 1, True, THREE),
            ],
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_messages_that_no_voter_can_send_are_refused(
    plausible: Message, absurd: list[Message]
) -> None:
    codec.check_plausible(plausible, term=TERM, last_index=LAST)
    for message in absurd:
        with pytest.raises(ProtocolError, match=type(message).__name__):
            codec.check_plausible(message, term=TERM, last_index=LAST)
