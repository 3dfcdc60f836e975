"""Subscriptions of client metrics (KIP-714): their keys and valid values. Pure.

A subscription is a configured resource with a name that the administrator chooses. mqd keeps it. A
broker without a receiver of telemetry pushes nothing to anybody. So clients are not asked for
metrics, as in Apache Kafka (GetTelemetrySubscriptions is not served).

Codes and messages are Apache Kafka 4.3's, which clients show. Lists may repeat an element; Kafka
keeps the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mqd.errors import ErrorCode, MqError
from mqd.java_pattern import check_java_pattern
from mqd.limits import CLIENT_METRICS_NAME_BYTES_MAX
from mqd.options import INT, LIST, Option, Status, Value

INTERVAL_MS: Final = "interval.ms"
MATCH: Final = "match"
METRICS: Final = "metrics"

CLIENT_METRICS_OPTIONS: Final[Mapping[str, Option]] = {
    name: Option(
        name, of_type, default, frozenset({"client-metrics"}), Status.IMPLEMENTED, "", meaning
    )
    for name, of_type, default, meaning in (
        (INTERVAL_MS, INT, 300_000, "Interval at which clients push metrics, in milliseconds"),
        (MATCH, LIST, (), "Clients that push metrics: NAME=EXPRESSION, separated by commas"),
        (METRICS, LIST, (), "Prefixes of the names of metrics; '*' is all metrics"),
    )
}

_INTERVAL_MS: Final = range(100, 3_600_000 + 1)
_MATCH_NAMES: Final = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)


def check_subscription_name(name: str) -> None:
    """Raise INVALID_REQUEST if the name is empty or too long."""
    if not name:
        raise MqError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    size = len(name.encode())
    if size > CLIENT_METRICS_NAME_BYTES_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"The name of the subscription has {size} bytes; at most "
            f"{CLIENT_METRICS_NAME_BYTES_MAX} are allowed.",
        )


def parse_client_metrics_option(name: str, text: str) -> Value:
    """The typed value of a key. Raises MqError INVALID_CONFIG."""
    option = CLIENT_METRICS_OPTIONS[name]
    if option.type is LIST:
        elements = [element.strip() for element in text.split(",")] if text.strip() else []
        if "" in elements:
            raise MqError(
                ErrorCode.INVALID_CONFIG, f"Configuration '{name}' values must not be empty."
            )
        return tuple(dict.fromkeys(elements))
    try:
        return option.parse(text)
    except ValueError:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {text} for configuration {name}: Not a number of type INT",
        ) from None


def validate_client_metrics_configs(configs: Mapping[str, str]) -> None:
    """Validate all keys of a subscription together, in Apache Kafka's order.

    Raises MqError: INVALID_REQUEST (unknown key, interval out of range) or INVALID_CONFIG.
    """
    for name in configs:
        if name not in CLIENT_METRICS_OPTIONS:
            raise MqError(
                ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}"
            )
    values = {name: parse_client_metrics_option(name, text) for name, text in configs.items()}
    interval_ms = values.get(INTERVAL_MS)
    if interval_ms is not None and interval_ms not in _INTERVAL_MS:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval_ms} for {INTERVAL_MS}, interval must be between 100 and "
            "3600000 (1 hour)",
        )
    patterns = values.get(MATCH, ())
    assert isinstance(patterns, tuple)
    for pattern in patterns:
        _check_pattern(pattern)


def _check_pattern(pattern: str) -> None:
    """Raise INVALID_CONFIG unless `pattern` is NAME=EXPRESSION."""
    name, *rest = pattern.rstrip("=").split("=")  # Java's split omits empty strings at the end
    try:
        if name.strip() not in _MATCH_NAMES or len(rest) != 1:
            raise ValueError
        check_java_pattern(rest[0].strip())
    except ValueError:
        raise MqError(
            ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {pattern}"
        ) from None
