"""The records of `__consumer_offsets` are Kafka's: each of these bytes was written by the
serializer of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from mqd.coordinator.group.record_codec import (
    DecodedRecord,
    decode,
    decode_as_declared,
    encode,
    encode_as_declared,
    tombstone,
)
from mqd.coordinator.group.records import (
    ClassicMember,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMetadata,
    ConsumerGroupMetadataKey,
    CurrentMemberAssignment,
    CurrentMemberAssignmentKey,
    GroupMetadata,
    GroupMetadataKey,
    Key,
    MemberMetadata,
    MemberMetadataKey,
    OffsetCommit,
    OffsetCommitKey,
    OwnedPartitions,
    PartitionMetadata,
    PartitionMetadataKey,
    PartitionRacks,
    RegularExpression,
    RegularExpressionKey,
    TargetAssignmentMember,
    TargetAssignmentMemberKey,
    TargetAssignmentMetadata,
    TargetAssignmentMetadataKey,
    TopicMetadata,
    TopicPartitions,
    Value,
)
from mqd.coordinator.record_format import RecordFormatError
from mqd.coordinator.shard import CoordinatorRecord
from mqd.types import ZERO_UUID

FIRST = UUID("01234567-89ab-cdef-1122-334455667788")
SECOND = UUID("ffffffff-ffff-ffff-0000-000000000007")

_MEMBERS = (
    ClassicMember("m-1", "static", "c", "/127.0.0.1", 300_000, 45_000, b"\x01\x02\x03", b""),
    ClassicMember("m-2", None, "", "/::1", 1, 2, b"", b"\xff"),
)
_GROUP = GroupMetadata("consumer", 42, "range", "m-1", 1700000000456, _MEMBERS)

WRITTEN: list[tuple[Key, Value, str, str]] = [
    (
        OffsetCommitKey("группа", "orders", 7),
        OffsetCommit(123456789012, 5, "note", 1700000000123, topic_id=FIRST),
        "0001000cd0b3d180d183d0bfd0bfd0b000066f726465727300000007",
        "00040000001cbe991a1400000005056e6f74650000018bcfe5687b0100100123456789abcdef11223344"
        "55667788",
    ),
    (
        OffsetCommitKey("g", "t", 0),
        OffsetCommit(0, commit_timestamp=1),
        "000100016700017400000000",
        "00040000000000000000ffffffff01000000000000000100",
    ),
    (
        OffsetCommitKey("g", "t", 0),
        OffsetCommit(9, -1, "m", 2, expire_timestamp=3),
        "000100016700017400000000",
        "0001000000000000000900016d00000000000000020000000000000003",
    ),
    (
        GroupMetadataKey("g"),
        _GROUP,
        "0002000167",
        (
            "00030008636f6e73756d65720000002a000572616e676500036d2d310000018bcfe569c800000002"
            "00036d2d31000673"
            "7461746963000163000a2f3132372e302e302e31000493e00000afc8000000030102030000000000"
            "036d2d32ffff0000"
            "00042f3a3a3100000001000000020000000000000001ff"
        ),
    ),
    (
        GroupMetadataKey("g"),
        GroupMetadata("", 0, None, None),
        "0002000167",
        "0003000000000000ffffffffffffffffffffffff00000000",
    ),
    (
        ConsumerGroupMetadataKey("cg"),
        ConsumerGroupMetadata(10, -5),
        "000300026367",
        "00000000000a010008fffffffffffffffb",
    ),
    (ConsumerGroupMetadataKey("cg"), ConsumerGroupMetadata(10), "000300026367", "00000000000a00"),
    (
        PartitionMetadataKey("cg"),
        PartitionMetadata((TopicMetadata(FIRST, "orders", 2, (PartitionRacks(1, ("a", "b")),)),)),
        "000400026367",
        "0000020123456789abcdef1122334455667788076f72646572730000000202000000010302610262000000",
    ),
    (
        MemberMetadataKey("cg", "m"),
        MemberMetadata("i", "r", "c", "/h", ("a", "b"), "x.*", 300_000, "uniform"),
        "00050002636700016d",
        "0000026902720263032f68030261026204782e2a000493e008756e69666f726d00",
    ),
    (
        MemberMetadataKey("cg", "m"),
        MemberMetadata(
            None,
            None,
            "c",
            "/h",
            (),
            None,
            -1,
            None,
            ClassicMemberMetadata(45_000, (ClassicProtocol("range", b"\x09\x08"),)),
        ),
        "00050002636700016d",
        "000000000263032f680100ffffffff00010011010000afc8020672616e67650309080000",
    ),
    (
        TargetAssignmentMetadataKey("cg"),
        TargetAssignmentMetadata(11, 1700000000789),
        "000600026367",
        "00000000000b0100080000018bcfe56b15",
    ),
    (
        TargetAssignmentMetadataKey("cg"),
        TargetAssignmentMetadata(11),
        "000600026367",
        "00000000000b00",
    ),
    (
        TargetAssignmentMemberKey("cg", "m"),
        TargetAssignmentMember((TopicPartitions(FIRST, (0, 2)), TopicPartitions(SECOND, (1,)))),
        "00070002636700016d",
        (
            "0000030123456789abcdef112233445566778803000000000000000200ffffffffffffffff000000"
            "000000000702000000010000"
        ),
    ),
    (
        CurrentMemberAssignmentKey("cg", "m"),
        CurrentMemberAssignment(
            5, 4, 1, (OwnedPartitions(FIRST, (0, 2), (3, 5)),), (OwnedPartitions(SECOND, (1,)),)
        ),
        "00080002636700016d",
        (
            "0000000000050000000401020123456789abcdef1122334455667788030000000000000002010009"
            "0300000003000000"
            "0502ffffffffffffffff000000000000000702000000010000"
        ),
    ),
    (
        RegularExpressionKey("cg", "x.*"),
        RegularExpression(("x1", "x2"), 12, 13),
        "0010000263670003782e2a",
        "000003037831037832000000000000000c000000000000000d00",
    ),
]
"""Key, value, and the bytes of both, in the versions that Kafka 4.3 writes."""

GONE: list[tuple[Key, str]] = [
    (OffsetCommitKey("g", "t", 3), "000100016700017400000003"),
    (GroupMetadataKey("g"), "0002000167"),
    (ConsumerGroupMetadataKey("cg"), "000300026367"),
    (PartitionMetadataKey("cg"), "000400026367"),
    (MemberMetadataKey("cg", "m"), "00050002636700016d"),
    (TargetAssignmentMetadataKey("cg"), "000600026367"),
    (TargetAssignmentMemberKey("cg", "m"), "00070002636700016d"),
    (CurrentMemberAssignmentKey("cg", "m"), "00080002636700016d"),
    (RegularExpressionKey("cg", "x.*"), "0010000263670003782e2a"),
]


def _without(
    member: ClassicMember, *, instance: bool = False, rebalance_timeout: bool = False
) -> ClassicMember:
    return ClassicMember(
        member.member_id,
        None if instance else member.group_instance_id,
        member.client_id,
        member.client_host,
        -1 if rebalance_timeout else member.rebalance_timeout,
        member.session_timeout,
        member.subscription,
        member.assignment,
    )


_OLD_MEMBERS = tuple(_without(member, instance=True) for member in _MEMBERS)
_OLDEST_MEMBERS = tuple(
    _without(member, instance=True, rebalance_timeout=True) for member in _MEMBERS
)

READ: list[tuple[Key, Value, str, str]] = [
    (
        OffsetCommitKey("g", "t", 0),
        OffsetCommit(9, -1, "m", 2),
        "000100016700017400000000",
        "0000000000000000000900016d0000000000000002",
    ),
    (
        OffsetCommitKey("g", "t", 0),
        OffsetCommit(9, -1, "m", 2),
        "000100016700017400000000",
        "0002000000000000000900016d0000000000000002",
    ),
    (
        OffsetCommitKey("g", "t", 0),
        OffsetCommit(9, 4, "m", 2),
        "000100016700017400000000",
        "000300000000000000090000000400016d0000000000000002",
    ),
    (
        GroupMetadataKey("g"),
        GroupMetadata("consumer", 42, "range", "m-1", -1, _OLDEST_MEMBERS),
        "0002000167",
        (
            "00000008636f6e73756d65720000002a000572616e676500036d2d310000000200036d2d31000163"
            "000a2f3132372e30"
            "2e302e310000afc8000000030102030000000000036d2d32000000042f3a3a310000000200000000"
            "00000001ff"
        ),
    ),
    (
        GroupMetadataKey("g"),
        GroupMetadata("consumer", 42, "range", "m-1", -1, _OLD_MEMBERS),
        "0002000167",
        (
            "00010008636f6e73756d65720000002a000572616e676500036d2d310000000200036d2d31000163"
            "000a2f3132372e30"
            "2e302e31000493e00000afc8000000030102030000000000036d2d32000000042f3a3a3100000001"
            "0000000200000000"
            "00000001ff"
        ),
    ),
    (
        GroupMetadataKey("g"),
        GroupMetadata("consumer", 42, "range", "m-1", 1700000000456, _OLD_MEMBERS),
        "0002000167",
        (
            "00020008636f6e73756d65720000002a000572616e676500036d2d310000018bcfe569c800000002"
            "00036d2d31000163"
            "000a2f3132372e302e302e31000493e00000afc8000000030102030000000000036d2d3200000004"
            "2f3a3a3100000001"
            "000000020000000000000001ff"
        ),
    ),
    (
        GroupMetadataKey("g"),
        _GROUP,
        "0002000167",
        (
            "000409636f6e73756d65720000002a0672616e6765046d2d310000018bcfe569c803046d2d310773"
            "746174696302630b"
            "2f3132372e302e302e31000493e00000afc8040102030100046d2d320001052f3a3a310000000100"
            "0000020102ff0000"
        ),
    ),
]
"""Versions that earlier releases wrote, or that only Kafka's next releases write."""


@pytest.mark.parametrize(("key", "value", "key_bytes", "value_bytes"), WRITTEN)
def test_records_are_written_and_read_as_kafka_does(
    key: Key, value: Value, key_bytes: str, value_bytes: str
) -> None:
    record = CoordinatorRecord(bytes.fromhex(key_bytes), bytes.fromhex(value_bytes))
    assert encode(key, value) == record
    assert decode(record) == DecodedRecord(key, value)


@pytest.mark.parametrize(("key", "key_bytes"), GONE)
def test_tombstones_are_written_and_read_as_kafka_does(key: Key, key_bytes: str) -> None:
    record = CoordinatorRecord(bytes.fromhex(key_bytes), None)
    assert tombstone(key) == record
    assert decode(record) == DecodedRecord(key, None)


@pytest.mark.parametrize(("key", "value", "key_bytes", "value_bytes"), READ)
def test_values_of_other_versions_are_read(
    key: Key, value: Value, key_bytes: str, value_bytes: str
) -> None:
    assert decode(
        CoordinatorRecord(bytes.fromhex(key_bytes), bytes.fromhex(value_bytes))
    ) == DecodedRecord(key, value)


def test_keys_of_the_old_version_are_offsets_too() -> None:
    assert decode(
        CoordinatorRecord(bytes.fromhex("000000016700017400000003"), None)
    ) == DecodedRecord(OffsetCommitKey("g", "t", 3), None)


def test_records_of_unknown_kinds_cannot_be_decoded() -> None:
    # of a share group
    with pytest.raises(RecordFormatError, match="kind 9 is unknown"):
        decode(CoordinatorRecord(bytes.fromhex("0009000167"), b"\x00\x00"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", None),
        (b"\x00", None),
        (b"\x00\x02", None),  # not a group
        (bytes.fromhex("0002000567"), None),  # the group id is truncated
        (bytes.fromhex("0002000167"), b""),
        (bytes.fromhex("0002000167"), b"\x00\x05"),  # a version still to come
        (bytes.fromhex("0002000167"), b"\xff\xff"),
        (bytes.fromhex("0002000167"), bytes.fromhex("0003000363")),
        # more members than bytes
        (
            bytes.fromhex("0002000167"),
            bytes.fromhex("0003000000000000ffffffffffffffffffffffff7fffffff"),
        ),
    ],
)
def test_malformed_records_are_refused(key: bytes, value: bytes | None) -> None:
    with pytest.raises(RecordFormatError):
        decode(CoordinatorRecord(key, value))


def test_decoded_records_do_not_reference_the_bytes() -> None:
    buffer = bytearray(encode(GroupMetadataKey("g"), _GROUP).value or b"")
    entry = decode(CoordinatorRecord(encode(GroupMetadataKey("g"), _GROUP).key, memoryview(buffer)))  # type: ignore[arg-type]  # bytes in a view
    assert entry is not None
    buffer[:] = bytes(len(buffer))
    assert entry.value == _GROUP


uuids = st.one_of(st.just(ZERO_UUID), st.uuids())
offset_keys = st.builds(
    OffsetCommitKey, st.text(max_size=20), st.text(max_size=20), st.integers(-(2**31), 2**31 - 1)
)
offset_commits = st.builds(
    OffsetCommit,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.one_of(st.text(max_size=20), st.text("xж", min_size=100, max_size=140)),
    st.integers(-(2**63), 2**63 - 1),
    st.one_of(st.just(-1), st.integers(0, 2**63 - 1)),
    uuids,
)


@given(offset_keys, offset_commits)
def test_the_fast_codec_equals_the_declared_schema(
    key: OffsetCommitKey, value: OffsetCommit
) -> None:
    record = encode(key, value)
    assert record == encode_as_declared(key, value)
    assert decode(record) == decode_as_declared(record)
    assert decode(tombstone(key)) == decode_as_declared(tombstone(key)) == DecodedRecord(key, None)


@given(offset_keys, offset_commits, st.data())
def test_the_fast_codec_reads_damaged_records_like_the_schema(
    key: OffsetCommitKey, value: OffsetCommit, data: st.DataObject
) -> None:
    record = encode(key, value)
    assert record.value is not None
    parts = [bytearray(record.key), bytearray(record.value)]
    for part in parts:
        if data.draw(st.booleans()):
            part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
        del part[data.draw(st.one_of(st.just(len(part)), st.integers(0, len(part)))) :]
    damaged = CoordinatorRecord(bytes(parts[0]), bytes(parts[1]))
    try:
        expected = decode_as_declared(damaged)
    except RecordFormatError:
        with pytest.raises(RecordFormatError):
            decode(damaged)
    else:
        assert decode(damaged) == expected
