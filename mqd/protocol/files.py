"""The files of a data directory, bytes <-> values: Apache Kafka's formats, to the byte.

Pure. The log writes the results of `encode_*`; `decode_*` rejects invalid files with
`FileFormatError`. mqctl reads the same files offline. Batches themselves are in `batch.py`.

    <topic>-<partition>/ 00000000000000000000.log        batches v2, one after the other; the name
                                                         is the base offset
                         00000000000000000000.index      (relative last offset int32, position of
                                                         that batch int32)*
                         00000000000000000000.timeindex  (largest timestamp so far int64, relative
                                                         offset of its batch int32)*
                         00000000000000000000.txnindex   (version int16, producer id, first, last
                                                         and last stable offset int64)*
                         00000000000000000000.keyfilter  which parts of the segment may have a key
                                                         (mqd's own: key_filter.py)
                         00000000000000000042.snapshot   producers as of offset 42 (Kafka's
                                                         ProducerSnapshot, version 1)
                         00000000000000000000-00000000000000000042.timers
                                                         timers of a delay topic for the records
                                                         from offset 0 to 41: mqd's own
                                                         (relay/timer_format.py)
                         leader-epoch-checkpoint         text: version 0, count, "epoch
                                                         start-offset" lines
                         partition.metadata              text: version 0 and the topic id
    meta.properties, recovery-point-offset-checkpoint, log-start-offset-checkpoint,
    replication-offset-checkpoint, cleaner-offset-checkpoint, .kafka_cleanshutdown: one each a log
    directory.
"""

from __future__ import annotations

import json
import re
from array import array
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from operator import lt
from struct import Struct
from sys import byteorder
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from mqd.errors import StorageError
from mqd.limits import RECOVERY_BATCH_BYTES_MAX, SCAN_BYTES
from mqd.protocol.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC, BatchHeader, parse_header
from mqd.types import NO_OFFSET, TopicPartition

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
KEY_FILTER_SUFFIX: Final = ".keyfilter"
"""mqd's own: see key_filter.py."""
SNAPSHOT_SUFFIX: Final = ".snapshot"
TIMERS_SUFFIX: Final = ".timers"
DELETED_SUFFIX: Final = ".deleted"
"""Suffix of a segment file that is removed later."""
LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
PARTITION_METADATA_BYTES: Final = 43
META_PROPERTIES: Final = "meta.properties"
RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"

INDEX_ENTRY: Final = Struct(">ii")
TIME_INDEX_ENTRY: Final = Struct(">qi")
RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""The maximum offset in a segment, relative to its base offset: index entries have four bytes."""

_DELETE_SUFFIX = "-delete"
_NAME_CHARS_MAX = 255  # of a file name, on common file systems
_SEGMENT_FILE = re.compile(
    r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot|\.keyfilter)"
)
_TIMERS_FILE = re.compile(rf"([0-9]{{20}})-([0-9]{{20}}){re.escape(TIMERS_SUFFIX)}")
_PARTITION_DIRECTORY = re.compile(r"([A-Za-z0-9._-]{1,249})-([0-9]{1,10})")
_DELETED_DIRECTORY = re.compile(r"[A-Za-z0-9._-]+-[0-9]{1,10}\.[0-9a-f]{32}-delete")
_TXN_INDEX_ENTRY = Struct(">hqqqq")
_TXN_INDEX_VERSION = 0
_SNAPSHOT_HEAD = Struct(">hIi")
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
_SNAPSHOT_CRC_START = 6
_TEXT_VERSION = 0


class FileFormatError(StorageError):
    """A file of the data directory has a content that its name does not allow."""


# -- segments


class BadBatch(Exception):
    """The bytes at `position` of a segment are not a batch; the message has the reason."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"byte {position}: {reason}")
        self.position = position
        self.reason = reason


def scan_batches(
    read_at: Callable[[int, int], bytes], position: int, end: int, chunk_bytes: int = SCAN_BYTES
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, bytes) of each complete batch in `[position, end)`, read in large chunks.
    Only the shape is checked.

    `read_at(position, size)` reads the segment. BadBatch where the bytes cannot be a batch or the
    last one is cut off. Memory: one chunk or one batch.
    """
    chunk, chunk_start = memoryview(b""), position
    while position < end:
        start = position - chunk_start
        if len(chunk) - start < HEADER_BYTES:
            chunk, chunk_start, start = (
                memoryview(read_at(position, min(chunk_bytes, end - position))),
                position,
                0,
            )
            if len(chunk) < HEADER_BYTES:
                raise BadBatch(position, f"{len(chunk)} bytes are less than a header")
        header = parse_header(chunk, start)
        size = header.batch_length + LOG_OVERHEAD_BYTES
        if header.magic != MAGIC:
            raise BadBatch(position, f"magic {header.magic}")
        if not HEADER_BYTES <= size <= RECOVERY_BATCH_BYTES_MAX:
            raise BadBatch(position, f"a batch length of {header.batch_length}")
        if position + size > end:
            raise BadBatch(position, f"a batch of {size} bytes is cut off after {end - position}")
        if header.base_offset < 0 or header.last_offset_delta < 0:
            raise BadBatch(
                position,
                f"base offset {header.base_offset}, last offset delta {header.last_offset_delta}",
            )
        if len(chunk) - start < size:
            chunk, chunk_start, start = (
                memoryview(read_at(position, max(size, min(chunk_bytes, end - position)))),
                position,
                0,
            )
            if len(chunk) < size:
                raise BadBatch(position, "the file ends inside a batch")
        yield position, header, chunk[start : start + size]
        position += size


# -- names


def segment_file_name(offset: int, suffix: str) -> str:
    """A name such as `00000000000000000042.log`."""
    assert offset >= 0, offset
    return f"{offset:020d}{suffix}"


def parse_segment_file_name(name: str) -> tuple[int, str] | None:
    """(offset, suffix) of a segment file or a snapshot; None for any other name, such as
    `-1.log`.
    """
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None:
        return None
    offset = int(match[1])
    return (offset, match[2]) if offset < 2**63 else None


def timers_file_name(start: int, end: int) -> str:
    """The file with the timers of the records at offsets from `start` to below `end`."""
    return f"{start:020d}-{end:020d}{TIMERS_SUFFIX}"


def parse_timers_file_name(name: str) -> tuple[int, int] | None:
    """The inverse of `timers_file_name`; None for any other name."""
    match = _TIMERS_FILE.fullmatch(name)
    if match is None or not int(match[1]) < int(match[2]) < 2**63:
        return None
    return int(match[1]), int(match[2])


def parse_partition_directory(name: str) -> TopicPartition | None:
    """The partition of a directory name; None for deleted partitions and for other names."""
    match = _PARTITION_DIRECTORY.fullmatch(name)
    if (
        match is None
        or match[1] in (".", "..")
        or str(int(match[2])) != match[2]
        or int(match[2]) >= 2**31
    ):
        return None
    return TopicPartition(match[1], int(match[2]))


def deleted_directory_name(topic_partition: TopicPartition, topic_id: UUID) -> str:
    """The directory name of a deleted partition, at most as long as a file name may be."""
    suffix = f"-{topic_partition.partition}.{topic_id.hex}{_DELETE_SUFFIX}"
    return topic_partition.topic[: _NAME_CHARS_MAX - len(suffix)] + suffix


def is_deleted_directory(name: str) -> bool:
    """Whether this is the directory name of a deleted partition, from `deleted_directory_name` or
    Kafka. Other names with the suffix do not match.
    """
    return _DELETED_DIRECTORY.fullmatch(name) is not None


# -- indexes


def decode_index(data: bytes, log_size: int) -> tuple[array[int], array[int]]:
    """(relative offsets, positions) of an offset index. Both ascend strictly, and positions are
    inside the log.
    """
    values = _ints(data, INDEX_ENTRY.size)
    offsets, positions = values[0::2], values[1::2]
    if (
        not _ascends(offsets)
        or not _ascends(positions)
        or (offsets and (offsets[0] < 0 or positions[0] < 0))
    ):
        raise FileFormatError("entries of the offset index do not ascend")
    if positions and positions[-1] >= log_size:
        raise FileFormatError(
            f"the offset index points to byte {positions[-1]} of a log of {log_size} bytes"
        )
    return offsets, positions


def encode_index(offsets: Iterable[int], positions: Iterable[int]) -> bytes:
    return b"".join(map(INDEX_ENTRY.pack, offsets, positions))


def decode_time_index(data: bytes) -> tuple[array[int], array[int]]:
    """(timestamps in ms, relative offsets) of a time index. Timestamps ascend strictly, offsets do
    not descend.
    """
    if len(data) % TIME_INDEX_ENTRY.size:
        raise FileFormatError(f"a time index of {len(data)} bytes has no whole number of entries")
    timestamps, offsets = array("q"), array("i")
    for timestamp, offset in TIME_INDEX_ENTRY.iter_unpack(data):
        timestamps.append(timestamp)
        offsets.append(offset)
    if (
        not _ascends(timestamps)
        or any(b < a for a, b in pairwise(offsets))
        or (offsets and offsets[0] < 0)
    ):
        raise FileFormatError("entries of the time index do not ascend")
    return timestamps, offsets


def encode_time_index(timestamps: Iterable[int], offsets: Iterable[int]) -> bytes:
    return b"".join(map(TIME_INDEX_ENTRY.pack, timestamps, offsets))


class AbortedTransaction(NamedTuple):
    """Records of this producer between these offsets are aborted: read_committed consumers skip
    them.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the marker."""
    last_stable_offset: int
    """The last stable offset at the append of the marker. A transaction that ends later begins at
    or after it.
    """


def encode_txn_index(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(_TXN_INDEX_ENTRY.pack(_TXN_INDEX_VERSION, *entry) for entry in entries)


def encode_txn_index_columns(columns: Iterable[array[int]]) -> bytes:
    """The same, from one array for each field: five times as fast."""
    fields = [array("q", column) for column in columns]
    words = array("H", bytes(_TXN_INDEX_ENTRY.size * len(fields[0])))
    assert _TXN_INDEX_VERSION == 0, "zeros"
    for number, field in enumerate(fields):
        if byteorder == "little":
            field.byteswap()
        halves = array("H", field.tobytes())
        for word in range(4):
            words[1 + 4 * number + word :: _TXN_INDEX_ENTRY.size // 2] = halves[word::4]
    return words.tobytes()


def decode_txn_index(data: bytes) -> list[AbortedTransaction]:
    """Aborted transactions in the order of their markers."""
    return list(map(AbortedTransaction._make, zip(*decode_txn_index_columns(data))))


def decode_txn_index_columns(data: bytes) -> tuple[array[int], ...]:
    """The same, as one array for each field: ten times as fast."""
    if len(data) % _TXN_INDEX_ENTRY.size:
        raise FileFormatError(
            f"a transaction index of {len(data)} bytes has no whole number of entries"
        )
    words = array("H", data)  # 2 bytes each, because entries are not aligned to 8
    entry_words = _TXN_INDEX_ENTRY.size // 2
    versions = words[::entry_words]
    if byteorder == "little":
        versions.byteswap()
    for version in set(versions) - {_TXN_INDEX_VERSION}:
        raise FileFormatError(
            f"an entry of the transaction index has version {version}; only "
            f"{_TXN_INDEX_VERSION} is known"
        )
    columns = []
    for first_word in range(1, entry_words, 4):
        column = array("H", bytes(8 * len(versions)))
        for word in range(4):
            column[word::4] = words[first_word + word :: entry_words]
        numbers = array("q", column.tobytes())
        if byteorder == "little":
            numbers.byteswap()
        columns.append(numbers)
    _, first_offsets, last_offsets, _ = columns
    if not (
        min(first_offsets, default=0) >= 0
        and all(map(lt, first_offsets, last_offsets))
        and all(map(lt, last_offsets, last_offsets[1:]))
    ):
        raise FileFormatError("entries of the transaction index do not ascend")
    return tuple(columns)


def _ints(data: bytes, entry_size: int) -> array[int]:
    if len(data) % entry_size:
        raise FileFormatError(f"an index of {len(data)} bytes has no whole number of entries")
    values = array("i", data)
    assert values.itemsize == 4
    if byteorder == "little":
        values.byteswap()
    return values


def _ascends(values: array[int]) -> bool:
    return all(a < b for a, b in pairwise(values))


# -- checkpoints: a version, a count, and as many lines


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """`topic partition offset` lines: the recovery points, log start offsets or high watermarks of
    one log directory.
    """
    return _encode_lines([f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()])


def decode_offset_checkpoint(data: bytes) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for line in _decode_lines(data):
        parts = line.split(" ")
        if len(parts) != 3:
            raise FileFormatError(f"checkpoint line {line!r} is not 'topic partition offset'")
        topic_partition = TopicPartition(parts[0], _natural(parts[1]))
        if topic_partition in offsets:
            raise FileFormatError(f"{topic_partition} is in the checkpoint twice")
        offsets[topic_partition] = _natural(parts[2])
    return offsets


def encode_leader_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """`epoch start-offset` lines (KIP-101)."""
    return _encode_lines([f"{epoch} {start}" for epoch, start in epochs])


def decode_leader_epochs(data: bytes) -> list[tuple[int, int]]:
    """(epoch, start offset) pairs; epochs ascend strictly, offsets do not descend."""
    epochs: list[tuple[int, int]] = []
    for line in _decode_lines(data):
        parts = line.split(" ")
        if len(parts) != 2:
            raise FileFormatError(f"epoch line {line!r} is not 'epoch offset'")
        epochs.append((_natural(parts[0]), _natural(parts[1])))
    if any(b[0] <= a[0] or b[1] < a[1] for a, b in pairwise(epochs)):
        raise FileFormatError("leader epochs do not ascend")
    return epochs


def _encode_lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in (str(_TEXT_VERSION), str(len(lines)), *lines)).encode()


def _decode_lines(data: bytes) -> list[str]:
    """The lines after version and count. An empty file is an empty checkpoint, because Kafka
    creates it empty.
    """
    if not data:
        return []
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        raise FileFormatError("a checkpoint is ASCII text") from None
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if len(lines) < 2 or lines[0] != str(_TEXT_VERSION):
        raise FileFormatError(
            f"a checkpoint begins with version {_TEXT_VERSION} and a count, not {text[:40]!r}"
        )
    if _natural(lines[1]) != len(lines) - 2:
        raise FileFormatError(f"a checkpoint declares {lines[1]} lines and has {len(lines) - 2}")
    return lines[2:]


def _natural(text: str) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 19:
        raise FileFormatError(f"{text[:40]!r} is not a natural number")
    value = int(text)
    if value >= 2**63:
        raise FileFormatError(f"{text} does not fit 63 bits")
    return value


# -- producer snapshots


class ProducerSnapshotEntry(NamedTuple):
    """A recent batch of one producer id in one partition, usually the last one. The file may have
    several rows of an id, the newest last. Apache Kafka writes one row for each id, and uses the
    last row if there are several.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    """Last offset minus first offset of that batch."""
    timestamp: int
    """The largest timestamp of that batch, in ms."""
    coordinator_epoch: int = -1
    current_txn_first_offset: int = NO_OFFSET


def encode_producer_snapshot(entries: Iterable[ProducerSnapshotEntry]) -> bytes:
    rows = [_SNAPSHOT_ENTRY.pack(*entry) for entry in entries]
    body = bytearray(_SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, 0, len(rows)))
    body += b"".join(rows)
    _SNAPSHOT_HEAD.pack_into(
        body, 0, _SNAPSHOT_VERSION, crc32c(memoryview(body)[_SNAPSHOT_CRC_START:]), len(rows)
    )
    return bytes(body)


def decode_producer_snapshot(data: bytes) -> list[ProducerSnapshotEntry]:
    if len(data) < _SNAPSHOT_HEAD.size:
        raise FileFormatError(f"a producer snapshot of {len(data)} bytes is cut off")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise FileFormatError(
            f"producer snapshot version {version}; only {_SNAPSHOT_VERSION} is known"
        )
    if crc32c(memoryview(data)[_SNAPSHOT_CRC_START:]) != crc:
        raise FileFormatError("the CRC of a producer snapshot is wrong")
    if count < 0 or len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
        raise FileFormatError(
            f"a producer snapshot of {len(data)} bytes cannot hold {count} entries"
        )
    rows = _SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[_SNAPSHOT_HEAD.size :])
    return [ProducerSnapshotEntry(*row) for row in rows]


# -- the owner of a directory


def encode_uuid(value: UUID) -> str:
    """Kafka's text form of a UUID: 22 characters of URL-safe base64."""
    return urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> UUID:
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (Base64Error, ValueError):
        data = b""
    if len(data) != 16:
        raise FileFormatError(f"{text[:40]!r} is not an id")
    return UUID(bytes=data)


def encode_partition_metadata(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode()


def decode_partition_metadata(data: bytes) -> UUID:
    """The topic id."""
    fields = _fields(data, ":")
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise FileFormatError("partition.metadata has no version 0 and topic_id")
    return decode_uuid(fields["topic_id"])


class MetaProperties(NamedTuple):
    """The owner of a log directory (KIP-858)."""

    cluster_id: str
    node_id: int
    directory_id: UUID


def encode_meta_properties(meta: MetaProperties) -> bytes:
    lines = (
        "#",
        f"node.id={meta.node_id}",
        f"directory.id={encode_uuid(meta.directory_id)}",
        "version=1",
        f"cluster.id={meta.cluster_id}",
    )
    return "".join(f"{line}\n" for line in lines).encode()


def decode_meta_properties(data: bytes) -> MetaProperties:
    fields = _fields(data, "=")
    missing = [
        name
        for name in ("version", "cluster.id", "node.id", "directory.id")
        if not fields.get(name)
    ]
    if missing:
        raise FileFormatError(f"meta.properties lacks {', '.join(missing)}")
    if fields["version"] != "1":
        raise FileFormatError(f"meta.properties has version {fields['version']}; only 1 is known")
    return MetaProperties(
        fields["cluster.id"], _natural(fields["node.id"]), decode_uuid(fields["directory.id"])
    )


def _fields(data: bytes, separator: str) -> dict[str, str]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise FileFormatError("not a text file") from None
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            name, found, value = line.partition(separator)
            if not found:
                raise FileFormatError(f"line {line[:40]!r} has no {separator!r}")
            fields[name.strip()] = value.strip()
    return fields


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """The marker of a clean shutdown, with the broker epoch that the next registration is compared
    with (KIP-966).
    """
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def decode_clean_shutdown(data: bytes) -> int:
    """The broker epoch; -1 for the empty marker of an older release."""
    try:
        epoch = json.loads(data)["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return -1
    return epoch if isinstance(epoch, int) else -1
