"""The primitive types: what they accept, what they refuse, and that refusing costs no memory."""

from __future__ import annotations

import tracemalloc
import uuid
from contextlib import suppress
from io import BytesIO
from typing import Any

import pytest
from construct import Construct
from hypothesis import given, strategies as st

from mqd import limits
from mqd.errors import ProtocolError
from mqd.protocol.primitives import Cursor, pack_unsigned_varint, read_unsigned_varint
from mqd.protocol.schema import (
    BOOLEAN,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    TEXT,
    UINT16,
    UUID,
    VARINT,
    VARLONG,
    FieldKind,
    array,
    field,
    message,
)
from mqd.protocol.structures import bytes_min
from mqd.types import ZERO_UUID

A_BILLION = "3b9aca00"
A_BILLION_COMPACT = "81 94 eb dc 03"


def parse(
    kind: FieldKind, data: str | bytes, *, flexible: bool = False, nullable: bool = False
) -> Any:
    cursor = Cursor(
        bytes.fromhex(data) if isinstance(data, str) else data, 0, limits.REQUEST_ELEMENTS_MAX
    )
    value = kind.at(0, flexible=flexible, nullable=nullable)._parse(cursor, None, "")
    assert cursor.position == cursor.end, "bytes left"
    return value


def build(kind: FieldKind, value: Any, *, flexible: bool = False, nullable: bool = False) -> str:
    stream = BytesIO()
    kind.at(0, flexible=flexible, nullable=nullable)._build(value, stream, None, "")
    return stream.getvalue().hex()


NUMBERS = [
    (BOOLEAN, "01", True),
    (BOOLEAN, "00", False),
    (INT8, "80", -128),
    (INT16, "7fff", 32767),
    (UINT16, "ffff", 65535),
    (INT32, "fffffffe", -2),
    (INT64, "8000000000000000", -(2**63)),
    (UUID, "00" * 16, ZERO_UUID),
    (UUID, "000102030405060708090a0b0c0d0e0f", uuid.UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")),
    (VARINT, "00", 0),
    (VARINT, "01", -1),
    (VARINT, "ac02", 150),
    (VARINT, "ffffffff0f", -(2**31)),
    (VARLONG, "feffffffffffffffff01", 2**63 - 1),
    (VARLONG, "ffffffffffffffffff01", -(2**63)),
]


@pytest.mark.parametrize(("kind", "data", "value"), NUMBERS)
def test_numbers(kind: FieldKind, data: str, value: Any) -> None:
    assert parse(kind, data) == value
    assert build(kind, value) == data
    with pytest.raises(ProtocolError):
        parse(kind, data[:-2])


def test_any_byte_but_0_is_true() -> None:
    assert parse(BOOLEAN, "7f") is True


@given(value=st.integers(0, 2**64 - 1))
def test_unsigned_varints(value: int) -> None:
    packed = pack_unsigned_varint(value)
    cursor = Cursor(packed, 0, 0)
    assert read_unsigned_varint(cursor, 10) == value
    assert cursor.position == len(packed)
    if value < 2**32:
        assert read_unsigned_varint(Cursor(packed, 0, 0)) == value
    else:
        with pytest.raises(ProtocolError):
            read_unsigned_varint(Cursor(packed, 0, 0))


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_signed_varints(value: int) -> None:
    assert parse(VARLONG, build(VARLONG, value)) == value
    if -(2**31) <= value < 2**31:
        assert build(VARINT, value) == build(VARLONG, value)
    else:
        with pytest.raises(AssertionError):
            build(VARINT, value)


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (VARINT, "", "cut off"),
        (VARINT, "80", "cut off"),
        (VARINT, "8080808000", None),  # longer than necessary, which is allowed
        (VARINT, "808080808000", "longer than 5"),
        (VARINT, "ffffffff1f", "too large"),
        (VARLONG, "8080808080808080808000", "longer than 10"),
        (VARLONG, "ffffffffffffffffff02", "too large"),
    ],
)
def test_invalid_varints(kind: FieldKind, data: str, message: str | None) -> None:
    if message is None:
        assert parse(kind, data) == 0
    else:
        with pytest.raises(ProtocolError, match=message):
            parse(kind, data)


@pytest.mark.parametrize(
    ("kind", "flexible", "data", "value"),
    [
        (STRING, False, "0000", ""),
        (STRING, False, "0003e282ac", "€"),
        (STRING, False, "ffff", None),
        (STRING, True, "01", ""),
        (STRING, True, "04e282ac", "€"),
        (STRING, True, "00", None),
        (BYTES, False, "00000002cafe", b"\xca\xfe"),
        (BYTES, True, "03cafe", b"\xca\xfe"),
        (RECORDS, False, "ffffffff", None),
        (RECORDS, True, "00", None),
        (RECORDS, True, "01", b""),
        (array(INT16), False, "00000002 0001 ffff", [1, -1]),
        (array(INT16), True, "03 0001 ffff", [1, -1]),
        (array(INT16), True, "00", None),
        (array(STRING), True, "03 02 61 01", ["a", ""]),
        (array(UUID), False, "ffffffff", None),
        (message(field("a", INT8)), False, "01 07", {"a": 7}),
        (message(field("a", INT8)), True, "01 07 00", {"a": 7}),
        (message(field("a", INT8)), True, "ff", None),
    ],
)
def test_behind_lengths(kind: FieldKind, flexible: bool, data: str, value: Any) -> None:
    data = data.replace(" ", "")
    assert parse(kind, data, flexible=flexible, nullable=True) == value
    assert build(kind, value, flexible=flexible, nullable=True) == data


@pytest.mark.parametrize(
    ("kind", "flexible", "data", "message"),
    [
        (STRING, False, "fffe", "negative length -2"),
        (STRING, False, "ffff", "null"),
        (STRING, True, "00", "null"),
        (STRING, False, "000261", "2 bytes needed at 2, 1 left"),
        (STRING, True, A_BILLION_COMPACT, "string of"),
        (STRING, False, "0002c328", "not UTF-8"),
        (STRING, False, "0003eda080", "not UTF-8"),  # half a surrogate pair
        (BYTES, False, "80000000", "negative length"),
        (BYTES, False, "ffffffff", "null"),
        (BYTES, False, A_BILLION, "bytes needed"),
        (BYTES, True, A_BILLION_COMPACT, "bytes needed"),
        (array(INT8), False, "fffffffe", "negative length"),
        (array(INT8), False, "ffffffff", "null"),
        (array(INT8), False, A_BILLION, "array of 1000000000 elements in 0 bytes"),
        (array(INT8), True, A_BILLION_COMPACT, "array of 1000000000 elements in 0 bytes"),
        (array(INT32), False, "00000002 00000000", "array of 2 elements in 4 bytes"),
        (
            array(field("a", INT32), field("b", STRING)),
            False,
            "00000002" + "00" * 11,
            "array of 2 elements in 11 bytes",
        ),
        (
            array(field("a", array(INT8)), field("b", UUID)),
            True,
            "03" + "00" * 35,
            "array of 2 elements in 35 bytes",
        ),
    ],
)
def test_invalid_lengths(kind: FieldKind, flexible: bool, data: str, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        parse(kind, data, flexible=flexible)


@pytest.mark.parametrize(
    "kind", [STRING, BYTES, array(INT8), array(STRING), array(field("a", array(STRING)))]
)
@pytest.mark.parametrize("data", ["7fff", A_BILLION, A_BILLION_COMPACT, "7fffffff", "ffffffff0f"])
@pytest.mark.parametrize("flexible", [False, True])
def test_a_length_of_a_billion_costs_no_memory(kind: FieldKind, data: str, flexible: bool) -> None:
    construct = kind.at(0, flexible=flexible, nullable=False)
    cursor = Cursor(bytes.fromhex(data) + bytes(20), 0, limits.REQUEST_ELEMENTS_MAX)
    tracemalloc.start()
    try:
        with suppress(ProtocolError):
            construct._parse(cursor, None, "")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_arrays_above_the_limit_are_refused_though_their_bytes_are_there() -> None:
    count = limits.ARRAY_ELEMENTS_MAX + 1
    buffer = count.to_bytes(4, "big") + bytes(count)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="at most 1000000"):
            parse(array(INT8), buffer)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_strings_on_the_way_out() -> None:
    longest = "x" * limits.STRING_BYTES_MAX
    assert parse(STRING, build(STRING, longest)) == longest
    assert parse(STRING, build(STRING, longest, flexible=True), flexible=True) == longest
    with pytest.raises(AssertionError):
        build(STRING, longest + "x")
    cut = parse(TEXT, build(TEXT, "€" * limits.STRING_BYTES_MAX))
    assert cut == "€" * (limits.STRING_BYTES_MAX // 3)


@pytest.mark.parametrize("kind", [STRING, TEXT, BYTES, array(INT8), array(STRING)])
def test_null_is_written_only_where_allowed(kind: FieldKind) -> None:
    with pytest.raises(AssertionError, match="null"):
        build(kind, None)


TAGGED = message(
    field("a", INT8),
    field("two", array(STRING), tag=2),
    field("one", INT16, tag=1, default=-1),
    field("four", message(field("x", INT32, default=-1)), tag=4),
)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("05 00", {}),
        ("05 01  01 02 0007", {"one": 7}),
        ("05 01  02 03 020261", {"two": ["a"]}),
        ("05 01  04 05 00000009 00", {"four": {"x": 9}}),
        (
            "05 03  01 02 0007  02 03 020261  04 05 00000009 00",
            {"one": 7, "two": ["a"], "four": {"x": 9}},
        ),
    ],
)
def test_tagged_fields(data: str, value: dict[str, Any]) -> None:
    expected = {"a": 5, "one": -1, "two": [], "four": {"x": -1}} | value
    assert parse(TAGGED, data, flexible=True) == expected
    assert build(TAGGED, expected, flexible=True) == data.replace(" ", "")


def test_unknown_tags_are_skipped_at_every_depth() -> None:
    data = "05 04  00 00  03 02 ffff  04 09 00000009 01 ee01 01 ff  ff7f 03 010203"
    assert parse(TAGGED, data, flexible=True) == {"a": 5, "one": -1, "two": [], "four": {"x": 9}}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("05", "varint at 1 is cut off"),
        ("05 02  01 02 0007  01 02 0007", "tag 1 after tag 1"),
        ("05 02  09 00  08 00", "tag 8 after tag 9"),
        ("05 01  01 03 000700", "one leaves 1 of its 3 bytes"),
        ("05 01  01 01 00 00", "2 bytes needed at 4, 1 left"),
        ("05 01  01 02 00", "2 bytes needed"),
        ("05 01  09 ffffffff0f 00", "4294967295 bytes needed"),
        ("05 01  04 04 00000009 00", "cut off"),
        ("05 e907", "1001 tagged fields"),
        ("05 e807", "cut off"),
    ],
)
def test_invalid_tagged_fields(data: str, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        parse(TAGGED, data, flexible=True)


def test_the_least_size_of_a_value_is_the_size_of_its_empty_encoding() -> None:
    kinds: list[FieldKind] = [
        BOOLEAN,
        INT64,
        UUID,
        VARINT,
        STRING,
        BYTES,
        array(INT32),
        TAGGED,
        message(field("a", array(STRING))),
    ]
    for kind in kinds:
        for flexible in (False, True):
            if flexible or kind is not TAGGED:
                construct: Construct = kind.at(0, flexible=flexible, nullable=False)
                assert bytes_min(construct) == len(build(kind, kind.new(), flexible=flexible)) // 2


def test_errors_name_the_field() -> None:
    nested = message(field("topics", array(field("name", STRING), field("ids", array(INT32)))))
    with pytest.raises(ProtocolError, match=r"^topics: ids: array of 9 elements in 0 bytes"):
        parse(nested, "00000001 0001 61 00000009")
    with pytest.raises(AssertionError) as caught:
        build(nested, {"topics": [{"name": None}]})
    assert caught.value.__notes__ == ["while encoding name", "while encoding topics"]
