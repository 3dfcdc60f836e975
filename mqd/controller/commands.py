"""Commands of the metadata log: what one Raft entry contains.

A command holds the index of the last command that its decider had applied, and records. Bytes are
ours (no pickle, no reflection):

    command  = format 0x01, encoding (0 plain, 1 zlib), body
    body     = uvarint base_index, uvarint count, then the records (record_codec.py)

Invariants: decode(encode(c)) == c; a command is never larger than limits.RAFT_COMMAND_BYTES_MAX;
decompression is bounded before it allocates; an unknown format is an error.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mqd.controller.record_codec import decode_record, encode_record
from mqd.controller.record_fields import FieldReader, put_uvarint
from mqd.controller.records import AddPartitions, CreateTopic, MetadataRecord, UpdatePartitions
from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    METADATA_COMMAND_DECOMPRESSED_MAX,
    METADATA_COMMAND_PLAIN_BYTES,
    METADATA_COMMAND_ROWS,
    RAFT_COMMAND_BYTES_MAX,
)

_FORMAT = 1
_PLAIN = 0
_ZLIB = 1
_COMPRESS_FROM_BYTES = 512
_INDEX_LARGEST = 2**63 - 1


class Command(NamedTuple):
    """`base_index`: the index of the last command that its decider had applied.

    The command takes effect only if no other one took effect in between (machine.py).
    """

    base_index: int
    records: tuple[MetadataRecord, ...]


class CommandTooLarge(Exception):
    """The records do not fit into one Raft entry, even compressed."""


def encode_command(command: Command) -> bytes:
    """Bytes for `RaftService.propose`. Raises CommandTooLarge."""
    body = bytearray()
    put_uvarint(body, command.base_index)
    put_uvarint(body, len(command.records))
    for record in command.records:
        body += encode_record(record)
    if len(body) > METADATA_COMMAND_DECOMPRESSED_MAX:
        raise CommandTooLarge(f"{len(body)} bytes before compression")
    encoded = bytes((_FORMAT, _PLAIN)) + body
    if len(body) >= _COMPRESS_FROM_BYTES:
        packed = bytes((_FORMAT, _ZLIB)) + zlib.compress(body, 6)
        if len(packed) < len(encoded):
            encoded = packed
    if len(encoded) > RAFT_COMMAND_BYTES_MAX:
        raise CommandTooLarge(f"{len(encoded)} bytes after compression")
    return encoded


def decode_command(data: bytes) -> Command:
    """The inverse. Raises ValueError for bytes that `encode_command` did not write."""
    if len(data) < 2 or data[0] != _FORMAT:
        raise ValueError(
            f"metadata command of unknown format {bytes(data[:2]).hex()}: written by another "
            "version of mqd?"
        )
    body = bytes(data[2:])
    if data[1] == _ZLIB:
        inflater = zlib.decompressobj()
        try:
            body = inflater.decompress(body, METADATA_COMMAND_DECOMPRESSED_MAX)
        except zlib.error as error:
            raise ValueError(f"metadata command does not inflate: {error}") from error
        if not inflater.eof or inflater.unused_data:
            raise ValueError("metadata command inflates beyond its limit, is cut off or has a tail")
    elif data[1] != _PLAIN:
        raise ValueError(f"metadata command with unknown encoding {data[1]}")
    reader = FieldReader(body)
    base_index = reader.uvarint()
    records = tuple(decode_record(reader) for _ in range(reader.count()))
    reader.finish()
    return Command(base_index, records)


def check_fits(record: MetadataRecord) -> None:
    """Raise POLICY_VIOLATION if one record alone is too large for a command. For decisions whose
    size a client chooses. Compresses only a record that does not fit as it is.
    """
    if len(encode_record(record)) <= METADATA_COMMAND_PLAIN_BYTES:
        return
    try:
        encode_command(Command(_INDEX_LARGEST, (record,)))
    except CommandTooLarge as error:
        raise MqError(
            ErrorCode.POLICY_VIOLATION,
            f"one metadata record holds at most {RAFT_COMMAND_BYTES_MAX} bytes, this change "
            f"needs {error}; "
            "use fewer partitions, a regular assignment, or shorter names and values",
        ) from error


def split_records(records: Iterable[MetadataRecord]) -> Iterator[tuple[MetadataRecord, ...]]:
    """Split records into runs that each fit one command, in order. Each record fits (check_fits).

    A command of several records is so small that it takes each node some 10 ms. A record is
    atomic, so the state after any prefix of the runs is valid.
    """
    run: list[MetadataRecord] = []
    rows_left, bytes_left = METADATA_COMMAND_ROWS, METADATA_COMMAND_PLAIN_BYTES
    for record in records:
        rows, size = _rows(record), len(encode_record(record))
        if run and (rows > rows_left or size > bytes_left):
            yield tuple(run)
            run = []
            rows_left, bytes_left = METADATA_COMMAND_ROWS, METADATA_COMMAND_PLAIN_BYTES
        run.append(record)
        rows_left -= rows
        bytes_left -= size
    if run:
        yield tuple(run)


def _rows(record: MetadataRecord) -> int:
    match record:
        case CreateTopic() | AddPartitions():
            return len(record.partitions)
        case UpdatePartitions():
            return len(record.updates)
        case _:
            return 1
