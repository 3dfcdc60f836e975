"""Messages and handshakes: what is encoded is decoded, anything else is a ProtocolError."""

from __future__ import annotations

import struct
from uuid import UUID

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
    Handshake,
    InstallSnapshot,
    Message,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    Vote,
    decode_message,
    encode_message,
)
from mqd.raft.transport import Doorkeeper

numbers = st.integers(0, (1 << 62) - 1)


@st.composite
def appends(draw: st.DrawFn) -> AppendEntries:
    term, previous = draw(numbers), draw(st.integers(0, 1 << 61))
    commands = draw(st.lists(st.one_of(st.just(NO_OP), st.binary(max_size=50).map(lambda data: COMMAND + data)), max_size=5))
    entries = tuple(Entry(command, previous + 1 + k, draw(st.integers(0, term))) for k, command in enumerate(commands))
    return AppendEntries(term, draw(numbers), previous, draw(numbers), entries)


@st.composite
def chunks(draw: st.DrawFn) -> InstallSnapshot:
    data, offset = draw(st.binary(max_size=100)), draw(st.integers(0, 1000))
    size = offset + len(data) + draw(st.integers(0, 1000))
    return InstallSnapshot(draw(numbers), draw(numbers), draw(numbers), size, offset, data)


messages: st.SearchStrategy[Message] = st.one_of(
    appends(),
    chunks(),
    st.builds(RequestVote, numbers, numbers, numbers),
    st.builds(Vote, numbers),
    st.builds(AppendReply, numbers, numbers, st.booleans(), st.booleans()),
    st.builds(SnapshotReply, numbers, numbers, numbers),
    st.builds(TimeoutNow, numbers),
)


@given(messages)
def test_round_trip(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@given(messages, st.data())
def test_any_damage_is_a_protocol_error(message: Message, data: st.DataObject) -> None:
    body = bytearray(encode_message(message))
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ProtocolError):
        decode_message(body)
    with pytest.raises(ProtocolError):
        decode_message(bytes(body[: data.draw(st.integers(0, len(body) - 1))]))


@given(st.binary(max_size=200))
def test_bytes_with_a_right_checksum_decode_or_are_refused(data: bytes) -> None:
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
    refused(struct.pack(">BQQQQI", 3, 1, 1, 1, 1, 1) + struct.pack(">QI", 1, 1 << 30) + b"\x00", "an entry of 1073741824 bytes")
    refused(struct.pack(">BQQQQI", 3, 1, 1, 1, 1, 1) + struct.pack(">QI", 2, 1) + b"\x00", "newer than its leader")
    refused(struct.pack(">BQQQQI", 3, 1, 1, 1, 1, 1) + struct.pack(">QI", 1, 2) + b"\x01x", "neither a command nor a no-op")
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
        (RequestVote(FAR_TERM, FAR_INDEX, 0), [RequestVote(FAR_TERM + 1, 0, 0), RequestVote(TERM, FAR_INDEX + 1, 0)]),
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
            [AppendReply(FAR_TERM + 1, 1, True, False), AppendReply(TERM, FAR_INDEX + 1, False, True)],
        ),
        (
            InstallSnapshot(FAR_TERM, FAR_INDEX, 1, 0, 0, b""),
            [InstallSnapshot(FAR_TERM + 1, 1, 1, 0, 0, b""), InstallSnapshot(TERM, FAR_INDEX + 1, 1, 0, 0, b"")],
        ),
        (SnapshotReply(FAR_TERM, FAR_INDEX, 0), [SnapshotReply(FAR_TERM + 1, 1, 0), SnapshotReply(TERM, FAR_INDEX + 1, 0)]),
        (TimeoutNow(FAR_TERM), [TimeoutNow(FAR_TERM + 1)]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_no_voter_can_have_come_to_send(plausible: Message, absurd: list[Message]) -> None:
    codec.check_plausible(plausible, term=TERM, last_index=LAST)
    for message in absurd:
        with pytest.raises(ProtocolError, match=type(message).__name__):
            codec.check_plausible(message, term=TERM, last_index=LAST)


def test_handshakes() -> None:
    handshake = Handshake("clüster", 2, 1, UUID(int=5))
    body = codec.encode_handshake(handshake)
    assert codec.decode_handshake(memoryview(body)) == handshake
    for bad, reason in [
        (b"", "0 bytes"),
        (b"GET " + body[4:], "not an mqd node"),
        (body[:4] + b"\x00\x09" + body[6:], "protocol version 9"),
        (body[:-1], "cut or overlong"),
        (body + b"x", "cut or overlong"),
        (body[:-7] + b"\xff" * 7, "not UTF-8"),
    ]:
        with pytest.raises(ProtocolError, match=reason):
            codec.decode_handshake(bad)


def test_only_the_right_caller_is_let_in() -> None:
    def doors(cluster: str = "c", node: int = 1) -> Doorkeeper:
        return Doorkeeper(cluster_id=cluster, node_id=node, voters=frozenset({1, 2, 3}), incarnation=UUID(int=1))

    def greeting(caller: Doorkeeper, receiver: int) -> bytes:
        frame = caller.greeting(receiver)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert frame[4:14] == struct.pack(">hhih", codec.API_KEY_HANDSHAKE, 0, 0, -1)
        return frame[14:]

    assert doors().admit(greeting(doors(node=2), 1), "a:1") == 2
    for caller, receiver, reason in [
        (doors("d", 2), 1, "a:1 says that it is node 2 of cluster 'd'; this is cluster 'c'"),
        (doors(node=2), 3, "wants node 3; this is node 1: check the peers files"),
        (doors(node=1), 1, "two nodes run under one id"),
        (doors(node=9), 1, r"no voter; the voters are \[1, 2, 3\]"),
    ]:
        with pytest.raises(ProtocolError, match=reason):
            doors().admit(greeting(caller, receiver), "a:1")
