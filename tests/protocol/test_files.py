"""File formats: compared with bytes that Apache Kafka 4.3.1 wrote, round trips, and damage at every
byte.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from mqd.protocol import files
from mqd.protocol.files import BadBatch, FileFormatError, MetaProperties, ProducerSnapshotEntry
from mqd.types import TopicPartition

KAFKA = Path(__file__).parent.parent / "log" / "kafka-4.3.1"


def test_names() -> None:
    assert files.segment_file_name(42, ".log") == "00000000000000000042.log"
    assert files.parse_segment_file_name("00000000000000000042.timeindex") == (42, ".timeindex")
    for name in (
        "-1.log",
        "42.log",
        "0000000000000000004x.log",
        "00000000000000000042.log.deleted",
        "99999999999999999999.log",
    ):
        assert files.parse_segment_file_name(name) is None
    assert files.parse_partition_directory("a-b-12") == TopicPartition("a-b", 12)
    for name in (
        "a",
        "a-",
        "-1",
        "a-01",
        "a-99999999999",
        "a-0.abc-delete",
        "..-0",
        "a b-0",
        "é-0",
        "a-0-future",
    ):
        assert files.parse_partition_directory(name) is None
    topic_id = UUID(int=5)
    assert (
        files.deleted_directory_name(TopicPartition("t", 3), topic_id)
        == f"t-3.{topic_id.hex}-delete"
    )
    longest = files.deleted_directory_name(TopicPartition("x" * 249, 3), topic_id)
    assert (
        len(longest) == 255
        and files.is_deleted_directory(longest)
        and files.parse_partition_directory(longest) is None
    )


def test_the_files_of_a_real_kafka() -> None:
    def read(name: str) -> bytes:
        return (KAFKA / name).read_bytes()

    entries = files.decode_producer_snapshot(read("00000000000000002000.snapshot"))
    assert [(entry.producer_id, entry.last_sequence, entry.last_offset) for entry in entries] == [
        (1, 499, 499), (2, 499, 999), (3, 499, 1499), (4, 499, 1999),
    ]  # fmt: skip
    assert files.encode_producer_snapshot(entries) == read("00000000000000002000.snapshot")
    topic_id = files.decode_partition_metadata(read("partition.metadata"))
    assert files.encode_partition_metadata(topic_id) == read("partition.metadata")
    assert files.encode_leader_epochs(
        files.decode_leader_epochs(read("leader-epoch-checkpoint"))
    ) == read("leader-epoch-checkpoint")
    log_size = len(read("00000000000000000000.log"))
    index = files.decode_index(read("00000000000000000000.index"), log_size)
    assert files.encode_index(*index) == read("00000000000000000000.index") and len(index[0]) == 2
    time_index = files.decode_time_index(read("00000000000000000000.timeindex"))
    assert files.encode_time_index(*time_index) == read("00000000000000000000.timeindex")


def test_what_kafka_writes_beside_the_partitions() -> None:
    text = (
        b"#\n#Sat Nov 21 11:38:21 UTC "
        b"2026\nnode.id=1\ndirectory.id=c3VrLLPw-SgT9dboTuaA_A\nversion=1\n"
    )
    text += b"cluster.id=MQDBARSCLUSTERID00000w\n"
    meta = files.decode_meta_properties(text)
    assert (meta.node_id, meta.cluster_id) == (1, "MQDBARSCLUSTERID00000w")
    assert files.decode_meta_properties(files.encode_meta_properties(meta)) == meta
    assert files.decode_offset_checkpoint(b"0\n2\nt 0 8862\nc 0 0\n") == {
        TopicPartition("t", 0): 8862,
        TopicPartition("c", 0): 0,
    }
    assert files.decode_offset_checkpoint(b"") == {}
    assert files.encode_clean_shutdown(12) == b'{"version":0,"brokerEpoch":12}'
    markers = (b'{"version":0,"brokerEpoch":12}', b"", b"[]", b'{"brokerEpoch":"x"}')
    assert [files.decode_clean_shutdown(data) for data in markers] == [12, -1, -1, -1]


OFFSETS = st.integers(0, 2**63 - 1)
PARTITIONS = st.builds(
    TopicPartition,
    st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True),
    st.integers(0, 2**31 - 1),
)


@given(st.dictionaries(PARTITIONS, OFFSETS))
def test_offset_checkpoints_round_trip(offsets: dict[TopicPartition, int]) -> None:
    assert files.decode_offset_checkpoint(files.encode_offset_checkpoint(offsets)) == offsets


ENTRY = st.builds(
    ProducerSnapshotEntry,
    OFFSETS,
    st.integers(0, 2**15 - 1),
    st.integers(-1, 2**31 - 1),
    OFFSETS,
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
)


@given(st.lists(ENTRY, max_size=5), st.data())
def test_snapshots_round_trip_and_no_damage_passes(
    entries: list[ProducerSnapshotEntry], data: st.DataObject
) -> None:
    encoded = files.encode_producer_snapshot(entries)
    assert files.decode_producer_snapshot(encoded) == entries
    damaged = bytearray(encoded)
    damaged[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    for wrong in (
        bytes(damaged),
        encoded[: data.draw(st.integers(0, len(encoded) - 1))],
        encoded + b"\0",
    ):
        with pytest.raises(FileFormatError):
            files.decode_producer_snapshot(wrong)


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_expected_errors(data: bytes) -> None:
    decoders = (
        files.decode_offset_checkpoint,
        files.decode_leader_epochs,
        files.decode_producer_snapshot,
        files.decode_partition_metadata,
        files.decode_meta_properties,
        files.decode_time_index,
        lambda data: files.decode_index(data, 1000),
    )
    for decode in decoders:
        try:
            decode(data)
        except FileFormatError:
            pass
    assert isinstance(files.decode_clean_shutdown(data), int)
    try:
        list(
            files.scan_batches(
                lambda position, size: data[position : position + size], 0, len(data)
            )
        )
    except BadBatch as bad:
        assert 0 <= bad.position <= len(data)


SENSELESS = (
    "0\n1\n5 5\n6 6\n",
    "0\n2\n5 5\n5 6\n",
    "0\n2\n5 5\n6 4\n",
    "1\n0\n",
    "0\n1\n5\n",
    "0\n1\n\xb2 5\n",
    "0\n1\n-5 5\n",
)


@pytest.mark.parametrize("text", SENSELESS)
def test_impossible_epochs(text: str) -> None:
    with pytest.raises(FileFormatError):
        files.decode_leader_epochs(text.encode())


@pytest.mark.parametrize(
    "data, says",
    [
        (b"version=1\nnode.id=1\ncluster.id=c\n", "directory.id"),
        (b"version=0\nnode.id=1\ncluster.id=c\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAA\n", "version 0"),
        (b"version=1\nnode.id=one\ncluster.id=c\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAA\n", "natural"),
        (b"version=1\nnode.id=1\ncluster.id=c\ndirectory.id=short\n", "not an id"),
        (b"what is this\n", "="),
        (b"\xff\xfe", "text"),
    ],
)
def test_impossible_meta_properties(data: bytes, says: str) -> None:
    with pytest.raises(FileFormatError, match=says):
        files.decode_meta_properties(data)
    assert MetaProperties("c", 1, UUID(int=1)).node_id == 1


def test_a_batch_length_is_checked_before_anything_is_read() -> None:
    requested = []

    def read_at(position: int, size: int) -> bytes:
        requested.append(size)
        return (b"\0" * 8 + b"\x7f\xff\xff\xff" + b"\0\0\0\0\2" + b"\0" * 100)[
            position : position + size
        ]

    with pytest.raises(BadBatch):
        list(files.scan_batches(read_at, 0, 2**31 - 1))
    assert max(requested) <= 1 << 20
