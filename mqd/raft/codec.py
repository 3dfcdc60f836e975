"""The messages between nodes of the quorum, as bytes. Pure, and without pickle.

A frame on the peer listener is an ordinary request: int32 length, then request header v1, then the
body below. The header has int16 api key, int16 version 0, int32 correlation id, and nullable string
client id. Two private keys are used: 32000 opens a connection (handshake.py), 32001 carries a
message and has no response.

Body of a message: uint32 CRC-32C of the rest, uint8 type, fixed fields, then entries or a
snapshot's bytes. Bytes that do not decode to exactly one message within its bounds raise
ProtocolError, and the connection is closed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from crc32c import crc32c

from mqd import limits
from mqd.errors import ProtocolError
from mqd.raft.voters import CONFIGURATION, VoterSet, decode_entry, decode_set, encode_set

API_KEY_HANDSHAKE = 32000
API_KEY_MESSAGE = 32001

COMMAND = b"\x00"
"""First byte of a command entry; the other bytes are for the state machine."""
NO_OP = b"\x01"
"""Content of a no-op entry: the first entry of a leader in its term, or a read barrier."""

_NUMBER_MAX = 1 << 62
"""Upper bound of terms and indexes, so that no peer can cause an overflow."""
TERM_LEAP_MAX = 1 << 32
INDEX_LEAP_MAX = 1 << 48
"""Maximum distance between the terms or indexes of two voters. A partitioned node increases its
term about once a second, and a node with an empty log lacks the whole log. The bound allows a
century of elections, and any log. A larger number is not from a voter. A term near the maximum,
once accepted, would leave no term for an election.
"""


class Entry(NamedTuple):
    """One entry of the replicated log; the field order is PySyncObj's."""

    command: bytes
    index: int  # type: ignore[assignment]  # hides tuple.index, of no use for an entry
    term: int


@dataclass(frozen=True, slots=True)
class RequestVote:
    term: int
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class Vote:
    """A granted vote; a voter does not reply to refuse one."""

    term: int


@dataclass(frozen=True, slots=True)
class AppendEntries:
    """Entries follow `previous_index` without gaps; none is a heartbeat."""

    term: int
    commit_index: int
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class AppendReply:
    """success: the follower's log equals the leader's below `next_index`. reset: the leader retries
    from `next_index`. Neither: only `term` matters.
    """

    term: int
    next_index: int
    success: bool
    reset: bool


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Bytes `offset`..

    of a snapshot of `size` bytes that ends with entry (`index`, `index_term`).
    """

    term: int
    index: int
    index_term: int
    size: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SnapshotReply:
    """The follower has the first `offset` bytes of the snapshot at `index`."""

    term: int
    index: int
    offset: int


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The receiver starts an election immediately, because its leader steps down."""

    term: int


@dataclass(frozen=True, slots=True)
class PreVote:
    """Requests whether the receiver would vote for the sender in `term`, a later term than the
    sender's (Raft, 9.6).
    """

    term: int
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class PreVoteReply:
    """granted: the receiver would vote in `term`. Otherwise only `term` matters: the term of the
    candidate is older.
    """

    term: int
    granted: bool


@dataclass(frozen=True, slots=True)
class RecoveryQuery:
    """A recovering voter requests the state of the receiver (voter_recovery.py).

    `nonce` identifies the sender's process.
    """

    term: int
    nonce: int


@dataclass(frozen=True, slots=True)
class RecoveryReply:
    """The reply to RecoveryQuery `nonce`.

    `intact`: the sender is a voter that is not recovering itself."""

    term: int
    nonce: int
    last_index: int
    intact: bool
    voter_set: VoterSet | None
    """The voter set in the sender's log; None from a node of the previous release, and to one
    (versions.py).
    """


Message = (
    RequestVote
    | Vote
    | AppendEntries
    | AppendReply
    | InstallSnapshot
    | SnapshotReply
    | TimeoutNow
    | PreVote
    | PreVoteReply
    | RecoveryQuery
    | RecoveryReply
)


def check_plausible(message: Message, *, term: int, last_index: int) -> None:
    """Raise ProtocolError for a message that no voter can send to a node in `term` whose log ends
    at `last_index`.
    """
    if message.term > term + TERM_LEAP_MAX:
        raise ProtocolError(
            f"{type(message).__name__} of term {message.term}, this node is in term {term}"
        )
    match message:
        case RequestVote() | PreVote() | RecoveryReply():
            numbers: tuple[int, ...] = (message.last_index,)
        case AppendEntries():
            numbers = (message.commit_index, message.previous_index)
        case AppendReply():
            numbers = (message.next_index,)
        case InstallSnapshot() | SnapshotReply():
            numbers = (message.index,)
        case _:
            numbers = ()
    if max(numbers, default=0) > last_index + INDEX_LEAP_MAX:
        raise ProtocolError(
            f"{type(message).__name__} with index {max(numbers)}, the log of this node ends "
            f"at {last_index}"
        )


_CRC = struct.Struct(">I")
_ENTRY = struct.Struct(">QI")
_FIXED: dict[type[Any], tuple[int, struct.Struct]] = {
    RequestVote: (1, struct.Struct(">BQQQ")),
    Vote: (2, struct.Struct(">BQ")),
    AppendEntries: (3, struct.Struct(">BQQQQI")),
    AppendReply: (4, struct.Struct(">BQQ??")),
    InstallSnapshot: (5, struct.Struct(">BQQQQQ")),
    SnapshotReply: (6, struct.Struct(">BQQQ")),
    TimeoutNow: (7, struct.Struct(">BQ")),
    PreVote: (8, struct.Struct(">BQQQ")),
    PreVoteReply: (9, struct.Struct(">BQ?")),
    RecoveryQuery: (10, struct.Struct(">BQQ")),
    RecoveryReply: (11, struct.Struct(">BQQQ?")),
}


def encode_message(message: Message) -> bytes:
    """The body of a frame with API key 32001. Every message fits `RAFT_MESSAGE_BYTES_MAX`."""
    kind, fixed = _FIXED[type(message)]
    match message:
        case AppendEntries(term, commit_index, previous_index, previous_term, entries):
            parts = [
                fixed.pack(kind, term, commit_index, previous_index, previous_term, len(entries))
            ]
            for position, entry in enumerate(entries, previous_index + 1):
                assert entry.index == position, (entry.index, position)
                parts.append(_ENTRY.pack(entry.term, len(entry.command)))
                parts.append(entry.command)
        case InstallSnapshot(term, index, index_term, size, offset, data):
            parts = [fixed.pack(kind, term, index, index_term, size, offset), data]
        case RequestVote(term, last_index, last_term) | PreVote(term, last_index, last_term):
            parts = [fixed.pack(kind, term, last_index, last_term)]
        case AppendReply(term, next_index, success, reset):
            parts = [fixed.pack(kind, term, next_index, success, reset)]
        case SnapshotReply(term, index, offset):
            parts = [fixed.pack(kind, term, index, offset)]
        case Vote(term) | TimeoutNow(term):
            parts = [fixed.pack(kind, term)]
        case PreVoteReply(term, granted):
            parts = [fixed.pack(kind, term, granted)]
        case RecoveryQuery(term, nonce):
            parts = [fixed.pack(kind, term, nonce)]
        case RecoveryReply(term, nonce, last_index, intact, voter_set):
            parts = [
                fixed.pack(kind, term, nonce, last_index, intact),
                encode_set(voter_set) if voter_set is not None else b"",
            ]
    body = b"".join(parts)
    assert len(body) <= limits.RAFT_MESSAGE_BYTES_MAX, len(body)
    return _CRC.pack(crc32c(body)) + body


def decode_message(body: bytes | memoryview) -> Message:
    """The message in `body`. Raises ProtocolError."""
    if not _CRC.size < len(body) <= limits.RAFT_MESSAGE_BYTES_MAX + _CRC.size:
        raise ProtocolError(f"raft message of {len(body)} bytes")
    data = bytes(body[_CRC.size :])
    if _CRC.unpack_from(body)[0] != crc32c(data):
        raise ProtocolError("raft message with a wrong checksum")
    decode = _DECODERS.get(data[0])
    if decode is None:
        raise ProtocolError(f"raft message of unknown type {data[0]}")
    try:
        return decode(data)
    except struct.error as error:
        raise ProtocolError(f"raft message of type {data[0]} is cut short") from error


def _numbers(data: bytes, of: type[Any], *, exact: bool = True) -> tuple[int, ...]:
    fixed = _FIXED[of][1]
    if exact and len(data) != fixed.size:
        raise ProtocolError(f"{of.__name__} of {len(data)} bytes, {fixed.size} expected")
    numbers = fixed.unpack_from(data)[1:]
    if any(number >= _NUMBER_MAX for number in numbers):
        raise ProtocolError(f"{of.__name__} with a number out of range")
    return numbers


def _decode_append(data: bytes) -> AppendEntries:
    term, commit_index, previous_index, previous_term, count = _numbers(
        data, AppendEntries, exact=False
    )
    position = _FIXED[AppendEntries][1].size
    if count * (_ENTRY.size + 1) > len(data) - position:
        raise ProtocolError(f"append_entries claims {count} entries in {len(data)} bytes")
    entries = []
    for index in range(previous_index + 1, previous_index + 1 + count):
        entry_term, size = _ENTRY.unpack_from(data, position)
        position += _ENTRY.size
        command = data[position : position + size]
        position += size
        if len(command) != size or size > limits.RAFT_COMMAND_BYTES_MAX + 1:
            raise ProtocolError(f"append_entries with an entry of {size} bytes")
        if command[:1] == CONFIGURATION:
            decode_entry(command)
        elif command[:1] != COMMAND and command != NO_OP:
            raise ProtocolError(
                "append_entries with an entry that is neither a command, a voter set nor a no-op"
            )
        if entry_term > term:
            raise ProtocolError("append_entries with an entry newer than its leader")
        entries.append(Entry(command, index, entry_term))
    if position != len(data):
        raise ProtocolError("append_entries with bytes after its last entry")
    return AppendEntries(term, commit_index, previous_index, previous_term, tuple(entries))


def _decode_reply(data: bytes) -> AppendReply:
    term, next_index, success, reset = _numbers(data, AppendReply)
    return AppendReply(term, next_index, bool(success), bool(reset))


def _decode_pre_vote_reply(data: bytes) -> PreVoteReply:
    term, granted = _numbers(data, PreVoteReply)
    return PreVoteReply(term, bool(granted))


def _decode_recovery_reply(data: bytes) -> RecoveryReply:
    term, nonce, last_index, intact = _numbers(data, RecoveryReply, exact=False)
    if len(data) == _FIXED[RecoveryReply][1].size:
        return RecoveryReply(term, nonce, last_index, bool(intact), None)
    voter_set, end = decode_set(data, _FIXED[RecoveryReply][1].size)
    if end != len(data):
        raise ProtocolError("RecoveryReply with bytes after its voter set")
    return RecoveryReply(term, nonce, last_index, bool(intact), voter_set)


def _decode_snapshot(data: bytes) -> InstallSnapshot:
    term, index, index_term, size, offset = _numbers(data, InstallSnapshot, exact=False)
    chunk = data[_FIXED[InstallSnapshot][1].size :]
    if (
        size > limits.RAFT_SNAPSHOT_BYTES_MAX
        or offset + len(chunk) > size
        or len(chunk) > limits.RAFT_SNAPSHOT_CHUNK_BYTES
    ):
        raise ProtocolError(f"snapshot chunk of {len(chunk)} bytes at {offset} of {size}")
    return InstallSnapshot(term, index, index_term, size, offset, chunk)


_DECODERS: dict[int, Callable[[bytes], Message]] = {
    1: lambda data: RequestVote(*_numbers(data, RequestVote)),
    2: lambda data: Vote(*_numbers(data, Vote)),
    3: _decode_append,
    4: _decode_reply,
    5: _decode_snapshot,
    6: lambda data: SnapshotReply(*_numbers(data, SnapshotReply)),
    7: lambda data: TimeoutNow(*_numbers(data, TimeoutNow)),
    8: lambda data: PreVote(*_numbers(data, PreVote)),
    9: _decode_pre_vote_reply,
    10: lambda data: RecoveryQuery(*_numbers(data, RecoveryQuery)),
    11: _decode_recovery_reply,
}


# -- frames


_REQUEST = struct.Struct(">hhih")
_LENGTH = struct.Struct(">i")


def encode_frame(api_key: int, correlation_id: int, body: bytes) -> bytes:
    """A whole request with its four length bytes, request header v1 and a null client id."""
    return (
        _LENGTH.pack(_REQUEST.size + len(body))
        + _REQUEST.pack(api_key, 0, correlation_id, -1)
        + body
    )
