"""Numbers in headers of records, as relays, share groups and clients read them."""

from __future__ import annotations

import pytest

from mqd.client.retry import attempts_of
from mqd.delay_names import CANCELS
from mqd.header_numbers import INT64_MAX, last_number, number_of
from mqd.protocol.record_reader import Record
from mqd.relay.delay_headers import BadHeader, DelayOptions, times_of
from mqd.relay.delay_records import cancelled_only
from mqd.share.ttl import expires_at_ms

AT = 1_000


@pytest.mark.parametrize(
    ("content", "number"),
    [
        (b"0", 0),
        (b"007", 7),
        (b"%d" % INT64_MAX, INT64_MAX),
        (b"%d" % (INT64_MAX + 1), None),
        (b"9" * 19, None),
        (b"0" * 20, None),
        *((bad, None) for bad in (None, b"", b"-1", b"+1", b"1.5", b" 1", "\u0661".encode())),
    ],
)
def test_all_readers_agree(content: bytes | None, number: int | None) -> None:
    assert number_of(content) == number
    record = Record(0, AT, b"k", None, [("mqd-ttl", content)])
    times = times_of(record.headers, AT, DelayOptions())
    expires = expires_at_ms(record, 0)
    if number is None:
        assert isinstance(times, BadHeader) and expires is None
    else:
        assert not isinstance(times, BadHeader)
        assert times.expires_ms == min(AT + number, INT64_MAX)
        assert expires == AT + number
    assert attempts_of(Record(0, AT, b"k", b"v", [("mqd-attempts", content)])) == (number or 0)
    assert cancelled_only(record._replace(headers=[(CANCELS, content)])) == number


def test_the_last_header_counts() -> None:
    for last, number in ((b"2", 2), (b"x", None), (None, None)):
        headers = [("mqd-ttl", b"1"), ("x", b"3"), ("mqd-ttl", last)]
        record = Record(0, AT, b"k", None, headers)
        assert last_number(headers, "mqd-ttl") == number
        assert expires_at_ms(record, 0) == (None if number is None else AT + number)
        both = [(CANCELS, b"1"), (CANCELS, last)]
        assert cancelled_only(record._replace(headers=both)) == number
    assert last_number([], "mqd-ttl") is None
