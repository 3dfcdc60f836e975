"""Formats of records, positions and times on the command line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from mqctl.places import Place, format_time, parse_partitions, parse_place, parse_time
from mqctl.records import Envelope, compile_format, from_envelope, to_envelope, unescape
from mqd.protocol.record_reader import Record

RECORD = Record(42, 1767225600123, b"key", b"va\x00\xff", (("h", b"1"), ("n", None)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t %p %o %T %k", b"top 7 42 1767225600123 key"),
        (r"%v\n%s", b"va\x00\xff\nva\x00\xff"),
        ("%h", b"h=1,n="),
        ("%K %V", b"3 4"),
        ("%k{hex} %v{base64} %h{hex}", b"6b6579 dmEA/w== h=31,n="),
        ("%T{iso}", b"2026-01-01T00:00:00.123Z"),
        (r"100%% \t\r\0\\ \x41\xff", b"100% \t\r\x00\\ A\xff"),
        ("ż", "ż".encode()),
        ("", b""),
    ],
)
def test_formats(text: str, expected: bytes) -> None:
    assert compile_format(text)("top", 7, RECORD) == expected


def test_null_is_printed_as_empty_with_length_minus_one() -> None:
    assert compile_format("[%k][%v][%h] %K %V")("t", 0, Record(0, 0, None, None)) == b"[][][] -1 -1"


def test_control_characters_are_escaped_on_a_terminal() -> None:
    record = Record(0, 0, b"\x1b]0;x\x07", b"a\tb\n\xff")
    assert (
        compile_format(r"%k|%v\n", inert=True)("t", 0, record) == b"\\x1b]0;x\\x07|a\tb\\n\\udcff\n"
    )


@pytest.mark.parametrize("text", ["%x", "%k{base32}", r"\q", "%p{hex}", "%%{x}"])
def test_bad_formats(text: str) -> None:
    with pytest.raises(ValueError, match="unknown"):
        compile_format(text)


def test_unescape() -> None:
    assert unescape(r"\t:%") == b"\t:%"


@given(
    st.binary(),
    st.one_of(st.none(), st.binary()),
    st.lists(st.tuples(st.text(), st.one_of(st.none(), st.binary()))),
)
def test_an_envelope_round_trips(
    key: bytes, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    result = from_envelope(json.dumps(to_envelope("t", 3, Record(9, 5, key, value, headers))))
    assert result == Envelope(key, value, tuple(headers), 5, 3)


def test_envelope_fields_are_optional() -> None:
    assert from_envelope(b'{"value": {"a": 1}}') == Envelope(None, b'{"a":1}', (), None, None)
    assert from_envelope(b'{"key": "k", "headers": {"a": "b"}}') == Envelope(
        b"k", None, (("a", b"b"),), None, None
    )


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"x",
        b"\xff",
        b"[1]",
        b"{}",
        b'{"value":"a","headers":[1]}',
        b'{"value_base64":"?"}',
        b'{"value":"a","timestamp":"now"}',
        b'{"value":"a","partition":true}',
    ],
)
def test_bad_envelopes(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_envelope(line)


NOW = 1_767_225_600_000


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("beginning", Place(word="beginning")),
        ("earliest", Place(word="beginning")),
        ("end", Place(word="end")),
        ("17", Place(offset=17)),
        ("-10", Place(before_end=10)),
        ("@5", Place(timestamp_ms=5)),
        ("@-15m", Place(timestamp_ms=NOW - 900_000)),
        ("@-2h", Place(timestamp_ms=NOW - 7_200_000)),
        ("@2026-01-01T00:00:00Z", Place(timestamp_ms=NOW)),
        ("@2026-01-01T01:00:00+01:00", Place(timestamp_ms=NOW)),
    ],
)
def test_places(text: str, place: Place) -> None:
    assert parse_place(text, NOW) == place


@pytest.mark.parametrize("text", ["", "x", "@", "@x", "--5", "1.5", "@-5y", "@99999-01-01"])
def test_bad_places(text: str) -> None:
    with pytest.raises(ValueError, match=r"^invalid (position|time) '"):
        parse_place(text, NOW)


def test_times() -> None:
    assert format_time(parse_time("2026-01-01T00:00:00.005Z", NOW)) == "2026-01-01T00:00:00.005Z"
    assert format_time(-1) == "1969-12-31T23:59:59.999Z"
    assert format_time(2**62) == str(2**62)


def test_partitions() -> None:
    assert parse_partitions("0, 2,5-7,2") == [0, 2, 5, 6, 7]
    for text in ("", "a", "1-", "-1", "0-9999999"):
        with pytest.raises(ValueError, match="invalid partitions"):
            parse_partitions(text)
