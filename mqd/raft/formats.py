"""The three files of a voter as bytes. Pure: bytes in, values out; journal.py does the I/O.

`quorum-state`  one JSON line (term, vote, identity of this node), then a line with its CRC-32C. The
                formatting of a node creates it: a node that has it, and no journal, has lost
                entries.
`snapshot`      the machine's state after one entry, and the cluster that it belongs to, with one
                CRC-32C.
`journal`       a header with its owner and the log entry before its first one, then entries. It is
                append-only.

An entry of the journal: 4 bytes magic, uint32 CRC-32C, uint32 payload size, uint8 kind, uint64
index, uint64 term, uint64 durable position, payload. The CRC covers everything after it, and the
entry's own position in the file, so a complete entry at another position is invalid. An entry whose
index is not above the last one replaces all entries from there on: a truncation is an append.

`durable position` is the part of the file that was fsynced when the entry was written. It
distinguishes a torn tail from corruption. If no later entry has a durable position above the
damage, the tail is torn, and the file is truncated. Otherwise the file is corrupt, and the start
fails. A durable mark has only that position; it is written when no more entries arrive.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from mqd import limits
from mqd.errors import ProtocolError
from mqd.raft.codec import Entry
from mqd.raft.voters import Forced, VoterSet, decode_set, encode_set

FORMAT_VERSION = 1


class Damaged(Exception):
    """These bytes cannot be a complete file of this node: the text has the reason."""


# -- quorum-state


@dataclass(frozen=True, slots=True)
class QuorumState:
    """The term and vote of a voter, and its identity."""

    cluster_id: str
    node_id: int
    node_uuid: UUID
    term: int
    vote: int | None
    intact: bool = True
    """False from formatting until this voter is a full one (voter_recovery.py)."""
    voters: frozenset[int] | None = None
    """The voter set of epoch 0 (voters.py); None until this node replied to another one."""
    forced: Forced | None = None
    metadata_version: int | None = None
    """The highest finalized version that this node has applied (versions.py); None if there is
    none.
    """


def encode_state(state: QuorumState) -> bytes:
    fields = {
        "version": FORMAT_VERSION,
        "cluster_id": state.cluster_id,
        "node_id": state.node_id,
        "node_uuid": str(state.node_uuid),
        "term": state.term,
        "vote": state.vote,
        "formed": state.intact,
        "voters": None if state.voters is None else sorted(state.voters),
        "metadata_version": state.metadata_version,
    }
    if (forced := state.forced) is not None:
        fields["forced"] = {
            "epoch": forced.voter_set.epoch,
            "voters": sorted(forced.voter_set.voters),
            "term": forced.term,
        }
    line = json.dumps(fields).encode()
    return b"%s\n%08x\n" % (line, crc32c(line))


def decode_state(data: bytes) -> QuorumState:
    """Raises Damaged."""
    line, _, checksum_line = data.partition(b"\n")
    if checksum_line != b"%08x\n" % crc32c(line):
        raise Damaged("its checksum does not match")
    fields = json.loads(line)
    if fields["version"] != FORMAT_VERSION:
        raise Damaged(f"it has format version {fields['version']}, this mqd reads {FORMAT_VERSION}")
    uuid = UUID(fields["node_uuid"])
    intact = fields.get("formed", True)  # the first release did not write it
    voters = None if fields.get("voters") is None else frozenset(fields["voters"])
    forced = None
    if (found := fields.get("forced")) is not None:
        forced = Forced(VoterSet(found["epoch"], frozenset(found["voters"])), found["term"])
    version = fields.get("metadata_version", 1)  # the previous release did not write it
    return QuorumState(
        fields["cluster_id"],
        fields["node_id"],
        uuid,
        fields["term"],
        fields["vote"],
        intact,
        voters,
        forced,
        version,
    )


# -- snapshot


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The machine's state after entry (`index`, `term`)."""

    cluster_id: str
    index: int
    term: int
    state: bytes
    voters: VoterSet | None = None
    """The voter set after that entry; None before epoch 1 (voters.py)."""


_SNAPSHOT = struct.Struct(">8sIHQQQH")
_SNAPSHOT_MAGIC = b"mqdSNAP\n"
_CRC_END = 12
_SNAPSHOT_WITH_VOTERS = 2
"""Format version of a snapshot with a voter set, between the cluster id and the state."""


def encode_snapshot(snapshot: Snapshot) -> bytes:
    cluster = snapshot.cluster_id.encode()
    size = len(snapshot.state)
    version = FORMAT_VERSION if snapshot.voters is None else _SNAPSHOT_WITH_VOTERS
    voters = b"" if snapshot.voters is None else encode_set(snapshot.voters)
    rest = _SNAPSHOT.pack(
        _SNAPSHOT_MAGIC, 0, version, snapshot.index, snapshot.term, size, len(cluster)
    )[_CRC_END:]
    body = b"".join((rest, cluster, voters, snapshot.state))
    return _SNAPSHOT_MAGIC + struct.pack(">I", crc32c(body)) + body


def decode_snapshot(data: bytes) -> Snapshot:
    """Raises Damaged."""
    if len(data) < _SNAPSHOT.size or data[:8] != _SNAPSHOT_MAGIC:
        raise Damaged("it does not begin as a snapshot")
    _, crc, version, index, term, size, cluster_size = _SNAPSHOT.unpack_from(data)
    if crc != crc32c(memoryview(data)[_CRC_END:]):
        raise Damaged("its checksum does not match")
    if version not in (FORMAT_VERSION, _SNAPSHOT_WITH_VOTERS):
        raise Damaged(
            f"it has format version {version}, this mqd reads {FORMAT_VERSION} to "
            f"{_SNAPSHOT_WITH_VOTERS}"
        )
    start = cluster_end = _SNAPSHOT.size + cluster_size
    voters = None
    if version == _SNAPSHOT_WITH_VOTERS:
        try:
            voters, start = decode_set(data, cluster_end)
        except ProtocolError as error:
            raise Damaged(f"its voter set is malformed: {error}") from error
    if len(data) != start + size:
        raise Damaged(f"it has {len(data)} bytes, {start + size} expected")
    return Snapshot(data[_SNAPSHOT.size : cluster_end].decode(), index, term, data[start:], voters)


# -- journal


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """The owner of the journal, and the entry before its first entry (the base: from the snapshot,
    or the empty beginning).
    """

    cluster_id: str
    node_id: int
    node_uuid: UUID
    base_index: int
    base_term: int


_HEADER = struct.Struct(">8sIHi16sQQH")
_HEADER_MAGIC = b"mqdJOUR\n"


def encode_header(header: JournalHeader) -> bytes:
    cluster = header.cluster_id.encode()
    fields = (
        FORMAT_VERSION,
        header.node_id,
        header.node_uuid.bytes,
        header.base_index,
        header.base_term,
        len(cluster),
    )
    rest = _HEADER.pack(_HEADER_MAGIC, 0, *fields)[_CRC_END:] + cluster
    return _HEADER_MAGIC + struct.pack(">I", crc32c(rest)) + rest


def decode_header(data: bytes) -> tuple[JournalHeader, int]:
    """The header and its size. Raises Damaged."""
    if len(data) < _HEADER.size or data[:8] != _HEADER_MAGIC:
        raise Damaged("it does not begin as a journal")
    _, crc, version, node_id, uuid, base_index, base_term, cluster_size = _HEADER.unpack_from(data)
    end = _HEADER.size + cluster_size
    if len(data) < end or crc != crc32c(data[_CRC_END:end]):
        raise Damaged("the checksum of its header does not match")
    if version != FORMAT_VERSION:
        raise Damaged(f"it has format version {version}, this mqd reads {FORMAT_VERSION}")
    return JournalHeader(
        data[_HEADER.size : end].decode(), node_id, UUID(bytes=uuid), base_index, base_term
    ), end


KIND_LOG_ENTRY = 1
KIND_DURABLE_MARK = 2

_ENTRY = struct.Struct(">4sIIBQQQ")
_ENTRY_MAGIC = b"\xd3mqR"
_ENTRY_CRC_END = 8
_PAYLOAD_MAX = limits.RAFT_COMMAND_BYTES_MAX + 1


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One entry of the file: a log entry, or a durable mark."""

    kind: int
    index: int
    term: int
    durable_position: int
    payload: bytes
    end: int
    """Position after the entry."""


def _entry_crc(position: int, rest: bytes) -> int:
    return crc32c(rest, crc32c(position.to_bytes(8, "big")))


def encode_entry(
    position: int, kind: int, index: int, term: int, durable_position: int, payload: bytes
) -> bytes:
    """The bytes of an entry at `position` of the file."""
    assert durable_position <= position, (durable_position, position)
    assert len(payload) <= _PAYLOAD_MAX, len(payload)
    rest = (
        _ENTRY.pack(_ENTRY_MAGIC, 0, len(payload), kind, index, term, durable_position)[
            _ENTRY_CRC_END:
        ]
        + payload
    )
    return _ENTRY_MAGIC + struct.pack(">I", _entry_crc(position, rest)) + rest


def read_entry(data: bytes, position: int) -> JournalEntry | None:
    """The entry at `position`; None if it is incomplete or damaged."""
    if position + _ENTRY.size > len(data):
        return None
    magic, crc, size, kind, index, term, durable_position = _ENTRY.unpack_from(data, position)
    end = position + _ENTRY.size + size
    if magic != _ENTRY_MAGIC or size > _PAYLOAD_MAX or end > len(data):
        return None
    if crc != _entry_crc(position, data[position + _ENTRY_CRC_END : end]):
        return None
    return JournalEntry(
        kind, index, term, durable_position, data[position + _ENTRY.size : end], end
    )


class Scan(NamedTuple):
    """The content of a journal: entries after its base, in order, and the end of the valid part."""

    entries: list[Entry]
    end: int
    proven: bool
    """A later entry shows that all of them were synced. Otherwise some may be in the page cache
    only.
    """


def scan_entries(data: bytes, start: int, base: Entry) -> Scan:
    """Replay the entries from `start`.

    A torn tail ends the scan; Damaged is raised for corruption.
    """
    entries: list[Entry] = []
    position = entries_end = start
    durable = 0
    while (found := read_entry(data, position)) is not None:
        if found.kind == KIND_LOG_ENTRY:
            offset = found.index - base.index - 1
            if not 0 <= offset <= len(entries):
                raise Damaged(
                    f"entry {found.index} at byte {position} follows entry "
                    f"{base.index + len(entries)}"
                )
            del entries[offset:]
            if found.term < (entries[-1] if entries else base).term:
                raise Damaged(
                    f"entry {found.index} at byte {position} is of an earlier term than the "
                    "entry before it"
                )
            entries.append(Entry(found.payload, found.index, found.term))
            entries_end = found.end
        elif found.kind != KIND_DURABLE_MARK:
            raise Damaged(f"the journal entry at byte {position} is of unknown kind {found.kind}")
        durable = max(durable, found.durable_position)
        position = found.end
    if (proof := _durable_beyond(data, position)) is not None:
        raise Damaged(
            f"the journal entry at byte {position} is damaged, and byte {proof} shows that it had "
            "been written whole"
        )
    return Scan(entries, position, proven=durable >= entries_end)


def _durable_beyond(data: bytes, position: int) -> int | None:
    """The position of a later entry that proves that `position` was fsynced before; None for a torn
    tail.
    """
    found = data.find(_ENTRY_MAGIC, position)
    while found != -1:
        entry = read_entry(data, found)
        if entry is not None and entry.durable_position > position:
            return found
        found = data.find(_ENTRY_MAGIC, found + 1)
    return None


def encode_journal(header: JournalHeader, entries: Sequence[Entry]) -> bytes:
    """A whole journal, for an atomic write. Its final mark distinguishes later damage from a torn
    tail.
    """
    parts = [encode_header(header)]
    start = position = len(parts[0])
    last = header.base_index
    for entry in entries:
        parts.append(
            encode_entry(position, KIND_LOG_ENTRY, entry.index, entry.term, start, entry.command)
        )
        position += len(parts[-1])
        last = entry.index
    parts.append(encode_entry(position, KIND_DURABLE_MARK, last, 0, position, b""))
    return b"".join(parts)
