"""Shows files of the data directory of a stopped node, for `log dump`: segments and small files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mqctl.offline import CHECKPOINTS, METADATA_FOLDER, Row, read_batches
from mqd.errors import MqError
from mqd.protocol.batch import crc_of
from mqd.protocol.compression import Codec
from mqd.protocol.files import (
    INDEX_SUFFIX,
    KEY_FILTER_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    BadBatch,
    FileFormatError,
    decode_index,
    decode_leader_epochs,
    decode_meta_properties,
    decode_offset_checkpoint,
    decode_partition_metadata,
    decode_producer_snapshot,
    decode_time_index,
    parse_segment_file_name,
)
from mqd.protocol.key_filter import KeyFilter
from mqd.protocol.record_reader import iterate_records

METADATA_FILES = {
    "journal": "metadata journal of the Raft quorum",
    "snapshot": "metadata snapshot of the Raft quorum",
    "quorum-state": "state of this voter in the Raft quorum",
    "reserve": "disk space reserved for the Raft quorum",
}


def dump_batches(path: Path) -> Iterator[Row]:
    """A row for each batch of a segment. If the rest is damaged, the last row has the reason."""
    try:
        for position, header, view in read_batches(path):
            yield {
                "file": path.name,
                "position": position,
                "base_offset": header.base_offset,
                "last_offset": header.last_offset,
                "records": header.records_count,
                "bytes": header.size,
                "codec": codec_name(header.codec),
                "max_timestamp": header.max_timestamp,
                "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
                "leader_epoch": header.partition_leader_epoch,
                "producer_id": header.producer_id,
                "producer_epoch": header.producer_epoch,
                "base_sequence": header.base_sequence,
                "transactional": header.is_transactional,
                "control": header.is_control,
                "crc": "ok" if crc_of(view, 0, len(view)) == header.crc else "WRONG",
            }
    except BadBatch as bad:
        yield {"file": path.name, "position": bad.position, "crc": bad.reason}


def dump_records(path: Path) -> Iterator[Row]:
    """A row for each record of a segment. A batch that cannot be decoded gives one row with the
    reason.
    """
    try:
        for position, header, view in read_batches(path):
            try:
                for record in iterate_records(view, header=header):
                    yield {
                        "offset": record.offset,
                        "timestamp": record.timestamp,
                        "key": _text(record.key),
                        "value": _text(record.value),
                        "headers": [
                            {"name": name, "value": _text(value)} for name, value in record.headers
                        ],
                    }
            except MqError as error:
                yield {
                    "offset": header.base_offset,
                    "value": f"batch at byte {position} cannot be read: {error.message}",
                }
    except BadBatch as bad:
        yield {"value": str(bad)}


def codec_name(codec: int) -> str:
    return Codec(codec).name.lower() if codec <= Codec.ZSTD else f"unknown ({codec})"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def dump_small(path: Path) -> list[Row]:
    """The rows of an index, a key filter, a producer snapshot, a checkpoint or a properties file.

    Raises FileFormatError for other or damaged files.
    """
    if path.parent.name == METADATA_FOLDER and path.name in METADATA_FILES:
        raise FileFormatError(
            f"this is the {METADATA_FILES[path.name]}, which is not in Kafka's format; mqctl "
            "cannot read it"
        )
    data = path.read_bytes()
    parsed = parse_segment_file_name(path.name)
    if parsed is not None:
        base, suffix = parsed
        if suffix == INDEX_SUFFIX:
            log = path.with_suffix(LOG_SUFFIX)
            size = log.stat().st_size if log.exists() else 2**31
            return [
                {"offset": base + offset, "position": position}
                for offset, position in zip(*decode_index(data, size))
            ]
        if suffix == TIME_INDEX_SUFFIX:
            return [
                {"timestamp": timestamp, "offset": base + offset}
                for timestamp, offset in zip(*decode_time_index(data))
            ]
        if suffix == KEY_FILTER_SUFFIX:
            found = KeyFilter(lambda position, size: data[position : position + size])
            found.check()
            return [
                {"section": number, **section._asdict(), "end": found.end_of(number)}
                for number, section in enumerate(found.sections)
            ]
        if suffix == SNAPSHOT_SUFFIX:
            return [entry._asdict() for entry in decode_producer_snapshot(data)]
    if path.name == LEADER_EPOCH_CHECKPOINT:
        return [
            {"epoch": epoch, "start_offset": start} for epoch, start in decode_leader_epochs(data)
        ]
    if path.name in CHECKPOINTS:
        return [
            {"topic": tp.topic, "partition": tp.partition, "offset": offset}
            for tp, offset in decode_offset_checkpoint(data).items()
        ]
    if path.name == PARTITION_METADATA:
        return [{"topic_id": str(decode_partition_metadata(data))}]
    if path.name == META_PROPERTIES:
        return [
            {name: str(value) for name, value in decode_meta_properties(data)._asdict().items()}
        ]
    raise FileFormatError(f"{path.name!r} is not a file of a data directory")
