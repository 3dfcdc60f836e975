"""Changes of subscriptions of client metrics (KIP-714), with the code and the message of Apache
Kafka 4.3.1. tests/conformance/test_wire_client_metrics.py sends them to a broker.
"""

from __future__ import annotations

from typing import Final

SET, DELETE, APPEND, SUBTRACT = range(4)
NONE, INVALID_CONFIG, INVALID_REQUEST = 0, 40, 42

Answer = tuple[int, str | None]
VALID: Final[Answer] = (NONE, None)


def out_of_range(interval: str) -> Answer:
    return (
        INVALID_REQUEST,
        f"Invalid value {interval} for interval.ms, interval must be between 100 and 3600000 "
        "(1 hour)",
    )


def no_number(value: str) -> Answer:
    return (
        INVALID_CONFIG,
        f"Invalid value {value} for configuration interval.ms: Not a number of type INT",
    )


def illegal(pattern: str) -> Answer:
    return INVALID_CONFIG, f"Illegal client matching pattern: {pattern}"


def empty(key: str) -> Answer:
    return INVALID_CONFIG, f"Configuration '{key}' values must not be empty."


def not_a_list(operation: str, key: str) -> Answer:
    return INVALID_CONFIG, f"Can't {operation} to key {key} because its type is not LIST."


UNKNOWN_KEY: Final[Answer] = (INVALID_REQUEST, "Unknown client metrics configuration: foo")

VALUES: Final[tuple[tuple[str, str, Answer], ...]] = (
    ("interval.ms", "100", VALID),
    ("interval.ms", "3600000", VALID),
    ("interval.ms", " +0500 ", VALID),
    ("interval.ms", "99", out_of_range("99")),
    ("interval.ms", "-1", out_of_range("-1")),
    ("interval.ms", "3600001", out_of_range("3600001")),
    ("interval.ms", "", no_number("")),
    ("interval.ms", "abc", no_number("abc")),
    ("interval.ms", "1.5", no_number("1.5")),
    ("interval.ms", "99999999999", no_number("99999999999")),
    ("metrics", "", VALID),
    ("metrics", " ", VALID),
    ("metrics", "*", VALID),
    ("metrics", "a,a", VALID),
    ("metrics", ",", empty("metrics")),
    ("metrics", " a , b,", empty("metrics")),
    ("match", "", VALID),
    ("match", " client_id = a ", VALID),
    ("match", "client_id=a,client_id=b", VALID),
    ("match", "client_instance_id=x,client_source_address=1,client_source_port=9", VALID),
    ("match", "client_software_name=x,client_software_version=1.*", VALID),
    ("match", "client_id=a=", VALID),
    ("match", "client_id=a=b", illegal("client_id=a=b")),
    ("match", "client_id==a", illegal("client_id==a")),
    ("match", "client_id", illegal("client_id")),
    ("match", "client_id=a,client_id", illegal("client_id")),
    ("match", "client_id= ", illegal("client_id=")),
    ("match", "=a", illegal("=a")),
    ("match", "foo=b", illegal("foo=b")),
    ("match", "CLIENT_ID=a", illegal("CLIENT_ID=a")),
    ("match", ",client_id=a", empty("match")),
    ("match", r"client_id=a++(?<x>b)\p{Alpha}\1[a&&b]\Qa[\E(?i)a\z", VALID),
    ("match", "client_id=[", illegal("client_id=[")),
    ("match", "client_id=(a", illegal("client_id=(a")),
    ("match", "client_id=a)", illegal("client_id=a)")),
    ("match", "client_id=*", illegal("client_id=*")),
    ("match", "client_id=a{1", illegal("client_id=a{1")),
    ("match", "client_id=(?P<x>a)", illegal("client_id=(?P<x>a)")),
    ("match", "client_id=\\", illegal("client_id=\\")),
    ("foo", "bar", UNKNOWN_KEY),
)
"""The answer when a key is set."""

CHANGES: Final[tuple[tuple[tuple[tuple[str, int, str | None], ...], Answer], ...]] = (
    ((), VALID),
    ((("foo", DELETE, None),), VALID),
    ((("interval.ms", DELETE, "x"),), VALID),
    ((("foo", SET, "1"), ("interval.ms", SET, "a")), UNKNOWN_KEY),
    ((("interval.ms", SET, "1"), ("match", SET, "a")), out_of_range("1")),
    ((("interval.ms", SET, "1"), ("match", SET, ",")), empty("match")),
    ((("metrics", APPEND, "a"),), not_a_list("APPEND", "metrics")),
    ((("match", SUBTRACT, "a"),), not_a_list("SUBTRACT", "match")),
    ((("foo", APPEND, "a"),), not_a_list("APPEND", "foo")),
)
"""The answer to several changes, or to changes other than SET."""
NO_NAME: Final[Answer] = (INVALID_REQUEST, "Subscription name can't be empty")
