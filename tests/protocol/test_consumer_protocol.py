from __future__ import annotations

import struct

import pytest

from mqd.errors import ProtocolError
from mqd.limits import REQUEST_ELEMENTS_MAX
from mqd.protocol.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    read_topics,
    topics_count,
)
from mqd.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_subscriptions_as_kafka_writes_them() -> None:
    everything = Subscription(("b", "a"), (A1, A0, B0), 7, "r1", b"\0\0\0\7")
    assert encode_subscription(everything) == bytes.fromhex(
        "0003"  # version
        "00000002 000161 000162"  # topics
        "00000004 00000007"  # user data
        "00000002 000161 00000002 00000000 00000001 000162 00000001 00000000"  # owned
        "00000007"  # generation
        "00027231"  # rack
    )
    assert decode_subscription(memoryview(encode_subscription(everything))) == Subscription(
        ("a", "b"), (A0, A1, B0), 7, "r1", b"\0\0\0\7"
    )
    assert encode_subscription(Subscription(("a",)), 0) == bytes.fromhex(
        "0000 00000001 000161 ffffffff"
    )


@pytest.mark.parametrize("version", range(4))
def test_older_versions_lack_fields(version: int) -> None:
    result = Subscription(("a",), (A0,), 7, "r1", None)
    read = decode_subscription(encode_subscription(result, version))
    assert read == Subscription(
        ("a",),
        (A0,) if version >= 1 else (),
        7 if version >= 2 else -1,
        "r1" if version >= 3 else None,
    )


def test_a_newer_version_is_read_as_the_newest_known() -> None:
    newer = b"\0\x09" + encode_subscription(Subscription(("a",), (A0,), 7, "r1"))[2:] + b"more"
    assert decode_subscription(newer) == Subscription(("a",), (A0,), 7, "r1")


def test_assignments() -> None:
    assert encode_assignment([A1, A0], 1) == bytes.fromhex(
        "0001 00000001 000161 00000002 00000000 00000001 ffffffff"
    )
    assert decode_assignment(encode_assignment([B0, A0])) == (A0, B0)
    assert decode_assignment(b"") == ()


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\xff\xff\0\0\0\0", b"\0\1\0\0\0\1\0\5a", b"\0\0\x7f\xff\xff\xff"]
)
def test_damage_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_subscription(data)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_topics_are_read_without_the_rest(version: int) -> None:
    data = encode_subscription(Subscription(("b", "a", "c\u00e9"), user_data=b"more"), version)
    end = data.index(b"more") - 4
    assert read_topics(data) == ([b"a", b"b", "c\u00e9".encode()], end)
    assert topics_count(data) == 3
    assert read_topics(data, size_max=2) == ([b"a", b"b"], end)
    assert read_topics(encode_subscription(Subscription(()), version)) == ([], 6)
    for size in range(end):
        with pytest.raises(ProtocolError):
            read_topics(data[:size])
    with pytest.raises(ProtocolError):
        read_topics(data, names_max=2)
    for wrong in (
        b"",
        b"\0\0\0\0\0\1\xff\xff",
        b"\0\0\0\0\0\1\0\2a",
        b"\0\0\x7f\xff\xff\xff\0\0",
    ):
        with pytest.raises(ProtocolError):
            read_topics(wrong)


def test_a_subscription_with_too_many_topics_is_refused() -> None:
    data = struct.pack(">hi", 0, REQUEST_ELEMENTS_MAX + 1) + b"\0\0" * (REQUEST_ELEMENTS_MAX + 1)
    with pytest.raises(ProtocolError):
        read_topics(data)
