"""AlterClientQuotas with unusual numbers."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from .wire import Wire, until

INVALID_REQUEST = 42
BYTES, PERCENT, MUTATIONS = "producer_byte_rate", "request_percentage", "controller_mutation_rate"
CONNECTIONS = "connection_creation_rate"


def positive(key: str) -> str:
    return f"Quota {key} must be greater than 0"


def whole(key: str) -> str:
    return f"{key} cannot be a fractional value."


def too_large(key: str, name: str) -> str:
    return f"Proposed value for {key} is too large for {name}."


CASES: list[tuple[str, float, str | None]] = [
    *((key, value, positive(key)) for key in (BYTES, PERCENT) for value in (0.0, -0.0, -1.0, -inf)),
    (CONNECTIONS, 0.0, positive(CONNECTIONS)),
    (BYTES, 0.5, whole(BYTES)),
    (BYTES, 1.5, whole(BYTES)),
    (BYTES, 1.00001, whole(BYTES)),
    (BYTES, 1.0000001, None),
    (BYTES, 5e-324, None),
    (BYTES, 2.0**63 - 1025, None),
    (BYTES, 2.0**63, None),
    (BYTES, 9.3e18, too_large(BYTES, "a LONG")),
    (BYTES, inf, too_large(BYTES, "a LONG")),
    (CONNECTIONS, 2.0**31 - 1, None),
    (CONNECTIONS, 2.0**31, too_large(CONNECTIONS, "an INT")),
    (CONNECTIONS, inf, too_large(CONNECTIONS, "an INT")),
    (CONNECTIONS, 1.5, whole(CONNECTIONS)),
    *((key, value, None) for key in (PERCENT, MUTATIONS) for value in (5e-324, 0.5, 1e300, inf)),
]


def alter(wire: Wire, name: str, key: str, value: float, *, validate_only: bool = True) -> Any:
    kind, entity = ("ip", "10.0.0.1") if key == CONNECTIONS else ("user", name)
    entry = {
        "entity": [{"entity_type": kind, "entity_name": entity}],
        "ops": [{"key": key, "value": value, "remove": False}],
    }
    (row,) = wire.ask("AlterClientQuotas", 1, entries=[entry], validate_only=validate_only).entries
    return row.error_code, row.error_message


def test_values(wire: Wire, new_name: Callable[[], str]) -> None:
    found = [(key, value, *alter(wire, new_name(), key, value)) for key, value, _ in CASES]
    assert found == [
        (key, value, INVALID_REQUEST if message else 0, message) for key, value, message in CASES
    ]


@pytest.mark.mqd_only
def test_not_a_number(wire: Wire, new_name: Callable[[], str]) -> None:
    """Apache Kafka stores it. As a rate of connections it then refuses every connection; all other
    quotas throttle nobody, in place of a default quota, too.
    """
    for key in (BYTES, "consumer_byte_rate", PERCENT, MUTATIONS, CONNECTIONS):
        assert alter(wire, new_name(), key, nan) == (INVALID_REQUEST, positive(key))


def test_an_infinite_quota_is_described(wire: Wire, new_name: Callable[[], str]) -> None:
    name = new_name()
    assert alter(wire, name, PERCENT, inf, validate_only=False) == (0, None)
    component = {"entity_type": "user", "match_type": 0, "match": name}

    def values() -> list[tuple[str, float]]:
        answer = wire.ask("DescribeClientQuotas", 1, components=[component], strict=True)
        return [(row.key, row.value) for entry in answer.entries for row in entry.values]

    until(lambda: values() == [(PERCENT, inf)], "the quota")
