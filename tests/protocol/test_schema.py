"""Declarations, APIs and headers; and arbitrary bytes, which may only raise ProtocolError."""

from __future__ import annotations

import random
import tracemalloc
import uuid
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mqd import limits
from mqd.errors import ProtocolError
from mqd.protocol.apis import all_apis, by_name
from mqd.protocol.primitives import pack_unsigned_varint
from mqd.protocol.request_header import RequestHeader, decode_request_header
from mqd.protocol.schema import (
    INT8,
    INT16,
    STRING,
    Api,
    Message,
    UnsupportedApi,
    array,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    field,
    message,
)
from tests.protocol.messages import SIDES, VERSIONS, declared, decode, encode

PETS = message(
    field("count", INT8),
    field("owner", STRING, since=1, nullable_since=2),
    field("old", INT16, until=1, default=-1),
    field("cats", array(field("name", STRING), field("lives", INT8, since=2, default=9)), since=1),
    field("note", STRING, since=3, tag=0, default=None),
)
API = Api(
    key=99,
    name="Pets",
    versions=(0, 3),
    advertised=(0, 3),
    flexible_from=3,
    request=PETS,
    response=message(),
)


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (0, "02 ffff"),
        (1, "02 0001 6f  ffff  00000001 0001 63"),
        (2, "02 0001 6f  00000001 0001 63 09"),
        (3, "02 02 6f  02 02 63 09 00  01 00 03 03 6869"),
    ],
)
def test_since_until_nullable_and_tag(version: int, data: str) -> None:
    value = {"count": 2, "owner": "o", "cats": [{"name": "c"}], "note": "hi"}
    assert API.encode_request(version, value) == bytes.fromhex(data)
    back = API.decode_request(version, bytes.fromhex(data))
    assert list(PETS.new()) == ["count", "owner", "old", "cats", "note"]
    assert back.count == 2
    assert back.old == -1
    assert back.owner == ("o" if version >= 1 else "")
    assert back.cats == ([{"name": "c", "lives": 9}] if version >= 1 else [])
    assert back["note"] == ("hi" if version == 3 else None)


def test_null_only_from_its_version_on() -> None:
    assert API.decode_request(2, bytes.fromhex("02 ffff 00000000")).owner is None
    with pytest.raises(ProtocolError, match="Pets v1 request: owner: null"):
        API.decode_request(1, bytes.fromhex("02 ffff ffff 00000000"))


def test_constructs_are_made_once() -> None:
    assert PETS.at(1, flexible=False) is PETS.at(1, flexible=False)


def test_decoding_starts_at_its_position_and_ignores_bytes_after_a_request() -> None:
    """librdkafka 2.16 requests all topics with three bytes too many: Metadata v13 of its
    `list_topics`.
    """
    assert API.decode_request(0, b"\xee\xee" + bytes.fromhex("02ffff"), 2).count == 2
    assert API.decode_request(0, memoryview(bytearray.fromhex("02ffff"))).count == 2
    assert API.decode_request(0, bytes.fromhex("02ffff00")).count == 2
    metadata = by_name("metadata")
    assert metadata is not None
    assert metadata.decode_request(13, bytes.fromhex("0000000000010000")).topics is None


def test_unsupported_versions() -> None:
    for version in (-1, 4):
        assert not API.supports(version)
        with pytest.raises(UnsupportedApi):
            API.decode_request(version, b"")
        with pytest.raises(UnsupportedApi):
            API.decode_response(version, b"")
        with pytest.raises(AssertionError):
            API.encode_response(version, {})
    assert API.is_flexible(4)


# -- headers


@given(
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    client_id=st.none() | st.text(st.characters(codec="utf-8")),
    at=st.data(),
)
def test_headers_come_back(correlation_id: int, client_id: str | None, at: Any) -> None:
    api, version = at.draw(st.sampled_from(VERSIONS))
    frame = encode_request_header(api, version, correlation_id, client_id)
    for buffer in (frame + b"body", memoryview(bytearray(frame + b"body"))):
        assert decode_request_header(buffer) == RequestHeader(
            api.key, version, correlation_id, client_id, len(frame)
        )
    frame = encode_response_header(api, version, correlation_id)
    assert decode_response_header(api, version, frame + b"body") == (correlation_id, len(frame))


def test_tagged_fields_of_a_request_header_are_skipped() -> None:
    frame = bytes.fromhex("0003 0009 00000001 0001 63  02 00 01 ff 07 02 ffff  abcd")
    assert decode_request_header(frame) == RequestHeader(3, 9, 1, "c", 19)
    assert decode_response_header(
        by_name("Metadata"), 9, bytes.fromhex("00000001 01 00 01 ff abcd")
    ) == (1, 8)


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        ("", "too short"),
        ("0003 0009 00000001 00", "too short"),
        ("0003 0009 00000001 fffe 00", "client id of -2"),
        ("0003 0009 00000001 0005 6363", "client id of 5 bytes in a frame of 12"),
        ("0003 0009 00000001 0001 ff 00", "not UTF-8"),
        ("0003 0009 00000001 ffff", "cut off"),
        ("0003 0009 00000001 ffff 02 01 00 01 00", "tag 1 after tag 1"),
        ("0003 0009 00000001 ffff ffffff", "cut off"),
        ("0003 0009 00000001 ffff ffffffff0f", "4294967295 tagged fields"),
        ("0004 0000 00000001 ffff", "unknown API key 4$"),
        ("7fff 0000 00000001 ffff", "unknown API key 32767$"),
        ("0003 000e 00000001 ffff 00", "Metadata version 14 is not supported"),
        ("1603 0102 00010001 fc03 03", "unknown API key 5635"),  # the hello of TLS
        ("4745 5420 2f204854 5450 2f31", "unknown API key 18245"),  # GET / HTTP/1
    ],
)
def test_invalid_request_headers(frame: str, error: str) -> None:
    with pytest.raises(ProtocolError, match=error):
        decode_request_header(bytes.fromhex(frame))


def test_invalid_response_headers() -> None:
    for frame in ("000000", "00000001", "00000001 01 00"):
        with pytest.raises(ProtocolError):
            decode_response_header(by_name("Metadata"), 9, bytes.fromhex(frame))


# -- arbitrary bytes


def test_all_arrays_of_a_request_together_have_a_bound() -> None:
    describe = by_name("DescribeLogDirs")
    part = limits.REQUEST_ELEMENTS_MAX // 2 - limits.STRUCTURE_ELEMENTS
    topics = [{"topic": "t", "partitions": range(part + one)} for one in range(2)]
    with pytest.raises(ProtocolError, match="too many elements in one message"):
        describe.decode_request(2, describe.encode_request(2, {"topics": topics}))
    topics[1] = {"topic": "t", "partitions": range(part)}
    assert (
        len(describe.decode_request(2, describe.encode_request(2, {"topics": topics})).topics) == 2
    )


def test_small_structures_cannot_fill_the_memory() -> None:
    count = limits.REQUEST_ELEMENTS_MAX // limits.STRUCTURE_ELEMENTS + 1
    body = pack_unsigned_varint(count + 1) + b"\x01\x00" * count + bytes.fromhex("00000000 ff 00")
    with pytest.raises(ProtocolError, match="too many elements in one message"):
        by_name("DescribeTopicPartitions").decode_request(0, body)


@pytest.mark.parametrize(
    ("name", "version", "body"),
    [
        ("Metadata", 0, "3b9aca00"),
        ("Metadata", 12, "81 94 eb dc 03"),
        ("Metadata", 12, "ff ff ff ff 0f"),
        ("Produce", 3, "ffff ffff 00000000 3b9aca00 0001 74 3b9aca00"),
        ("Produce", 9, "00 ffff 00000000 02 02 74 02 00000000 81 94 eb dc 03"),
        ("CreateTopics", 5, "02 02 74 00000001 0001 81 94 eb dc 03"),
        ("ApiVersions", 3, "81 94 eb dc 03 6d7164"),
        ("ApiVersions", 3, "02 61 02 62 01 00 81 94 eb dc 03"),
    ],
)
def test_a_billion_of_anything_is_refused_with_memory_flat(
    name: str, version: int, body: str
) -> None:
    api = by_name(name)
    api.decode_request(version, api.encode_request(version, {}))  # its construct exists
    data = bytes.fromhex(body) + bytes(100)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=f"^{name} v{version} request: "):
            api.decode_request(version, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000


SEED = 20_260


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("api", all_apis(), ids=lambda api: api.name)
def test_random_and_damaged_bytes_raise_nothing_but_protocol_errors(api: Api, side: str) -> None:
    dice = random.Random(f"{SEED} {api.name} {side}")
    refused = 0
    for version in range(api.versions[0], api.versions[1] + 1):
        whole = encode(api, side, version, full(declared(api, side), version))
        for _ in range(40):
            data = (
                damaged(whole, dice) if dice.random() < 0.8 else dice.randbytes(dice.randrange(60))
            )
            try:
                decode(api, side, version, data)
            except ProtocolError:
                refused += 1
    assert refused or api.request.fields == ()


@pytest.mark.parametrize("api", all_apis(), ids=lambda api: api.name)
def test_random_and_damaged_headers_raise_nothing_but_protocol_errors(api: Api) -> None:
    dice = random.Random(f"{SEED} {api.name}")
    for _ in range(50):
        whole = encode_request_header(api, api.versions[1], dice.getrandbits(31), "client")
        try:
            header = decode_request_header(damaged(whole, dice))
            assert header.body_position >= 10
        except ProtocolError:
            pass


def damaged(data: bytes, dice: random.Random) -> bytes:
    """Bits flipped, bytes removed, repeated or truncated; sometimes a length of many bytes
    inserted.
    """
    damaged = bytearray(data)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(damaged) + 1)
        match dice.randrange(5):
            case 0 if at < len(damaged):
                damaged[at] ^= 1 << dice.randrange(8)
            case 1:
                del damaged[at : at + dice.randrange(5)]
            case 2:
                damaged[at:at] = damaged[at : at + 8]
            case 3:
                del damaged[at:]
            case _:
                damaged[at : at + 4] = dice.choice(
                    (
                        b"\x7f\xff\xff\xff",
                        b"\xff\xff\xff\xff",
                        b"\xff\xff\xff\xff\x0f",
                        b"\x80\x80\x80\x80",
                    )
                )
    return bytes(damaged)


def full(message: Message, version: int) -> dict[str, Any]:
    """One message with something in every array, string and tag."""
    return {
        one.name: full_value(one.kind, version) for one in message.fields if one.in_version(version)
    }


def full_value(kind: Any, version: int) -> Any:
    if isinstance(kind, Message):
        return full(kind, version)
    element = getattr(kind, "element", None)
    if element is not None:
        return [full_value(element, version)] * 2
    match kind.new():
        case str():
            return "name"
        case uuid.UUID():
            return uuid.UUID(int=7)
        case bytes() | None:
            return b"records"
        case default:
            return default + 1
