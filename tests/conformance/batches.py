"""Record batches written by hand, so that a test can set any field to a wrong value.

Layout of magic 2: https://kafka.apache.org/documentation/#recordbatch. This is deliberately not
mqd's builder.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import cramjam
import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
CRC_START = 21
"""The CRC covers everything from the attributes on."""
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
NOW_MS = 1_700_000_000_000


def varint(value: int) -> bytes:
    """Zig-zag variable-length integer."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def sized(data: bytes | None) -> bytes:
    """Varint length and bytes; None has length -1."""
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    value: bytes | None = b"v",
    *,
    key: bytes | None = None,
    offset_delta: int = 0,
    timestamp_delta: int = 0,
    headers: Sequence[tuple[bytes | None, bytes | None]] = (),
) -> bytes:
    """One record of a batch, with its length in front."""
    body = (
        b"\0"
        + varint(timestamp_delta)
        + varint(offset_delta)
        + sized(key)
        + sized(value)
        + varint(len(headers))
    )
    for header_key, header_value in headers:
        body += sized(header_key) + sized(header_value)
    return varint(len(body)) + body


def records(*values: bytes | None, timestamps_ms: Sequence[int] | None = None) -> list[bytes]:
    """Records with increasing offset deltas; timestamps relative to the first one's."""
    stamps = timestamps_ms or [NOW_MS] * len(values)
    return [
        record(value, offset_delta=i, timestamp_delta=stamps[i] - stamps[0])
        for i, value in enumerate(values)
    ]


def compress(codec: int, data: bytes) -> bytes:
    """As Kafka clients compress: gzip, snappy in xerial's framing, lz4 frame, zstd."""
    match codec:
        case 0:
            return data
        case 1:
            return gzip.compress(data)
        case 2:
            block = bytes(cramjam.snappy.compress_raw(data))
            return b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block
        case 3:
            # Frame: 64 KiB independent blocks (Kafka accepts no linked ones), the header checksum
            # of exactly these flags.
            blocks = [
                bytes(cramjam.lz4.compress_block(data[i : i + 65536], store_size=False))
                for i in range(0, len(data), 65536)
            ]
            return (
                b"\x04\x22\x4d\x18\x60\x40\x82"
                + b"".join(struct.pack("<I", len(b)) + b for b in blocks)
                + bytes(4)
            )
        case 4:
            return bytes(cramjam.zstd.compress(data))
    raise ValueError(codec)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch whose every field can be set; None means "what a correct client writes"."""

    records: Iterable[bytes] = (record(),)
    codec: int = 0
    attributes: int = 0
    base_offset: int = 0
    length: int | None = None
    leader_epoch: int = -1
    magic: int = 2
    crc: int | None = None
    last_offset_delta: int | None = None
    first_timestamp_ms: int = NOW_MS
    max_timestamp_ms: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int | None = None
    payload: bytes | None = None

    def encode(self) -> bytes:
        parts = list(self.records)
        payload = compress(self.codec, b"".join(parts)) if self.payload is None else self.payload
        count = len(parts) if self.count is None else self.count
        tail = struct.pack(
            ">hiqqqhii",
            self.attributes | self.codec,
            len(parts) - 1 if self.last_offset_delta is None else self.last_offset_delta,
            self.first_timestamp_ms,
            self.first_timestamp_ms if self.max_timestamp_ms is None else self.max_timestamp_ms,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            count,
        )
        crc = crc32c.crc32c(tail + payload) if self.crc is None else self.crc
        length = 9 + len(tail) + len(payload) if self.length is None else self.length
        return (
            struct.pack(">qiibI", self.base_offset, length, self.leader_epoch, self.magic, crc)
            + tail
            + payload
        )


def batch(
    *values: bytes | None, timestamps_ms: Sequence[int] | None = None, codec: int = 0
) -> bytes:
    """A correct batch of these values."""
    stamps = timestamps_ms or [NOW_MS] * len(values)
    return Batch(
        records=records(*values, timestamps_ms=stamps),
        codec=codec,
        first_timestamp_ms=stamps[0],
        max_timestamp_ms=max(stamps),
    ).encode()


@dataclass(frozen=True)
class StoredBatch:
    """A fetched batch: the header's fields, and the values if the batch is uncompressed."""

    base_offset: int
    leader_epoch: int
    attributes: int
    last_offset: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    payload: bytes


def parse(data: bytes | None) -> list[StoredBatch]:
    """Whole batches in `data` (an incomplete last one is skipped, as the protocol allows); asserts
    size, magic and CRC of each.
    """
    stored = []
    position = 0
    data = bytes(data or b"")
    while position + HEADER.size <= len(data):
        (
            base,
            length,
            leader_epoch,
            magic,
            crc,
            attributes,
            last_delta,
            first,
            last,
            pid,
            epoch,
            sequence,
            count,
        ) = HEADER.unpack_from(data, position)
        end = position + 12 + length
        if end > len(data):
            break
        assert magic == 2
        assert crc == crc32c.crc32c(data[position + CRC_START : end])
        payload = data[position + HEADER.size : end]
        stored.append(
            StoredBatch(
                base,
                leader_epoch,
                attributes,
                base + last_delta,
                first,
                last,
                pid,
                epoch,
                sequence,
                count,
                payload,
            )
        )
        position = end
    return stored
