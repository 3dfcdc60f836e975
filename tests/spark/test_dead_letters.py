"""The parts of `mqd-spark dlq` that need no Spark: headers, choices, and wrong usage."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from pyspark_mqd.pipelines import dlq
from pyspark_mqd.pipelines.dead_letters import Choice, Moment, error_headers, is_error_header


def test_our_own_headers_name_the_error_and_the_place() -> None:
    try:
        int("x")
    except ValueError as error:
        headers = dict(error_headers(error, "orders", 3, 41))
    assert headers == {
        "mqd.error.class": b"ValueError",
        "mqd.error.message": b"invalid literal for int() with base 10: 'x'",
        "mqd.error.topic": b"orders",
        "mqd.error.partition": b"3",
        "mqd.error.offset": b"41",
    }
    assert all(is_error_header(name) for name in headers)


@pytest.mark.parametrize(
    ("name", "is_error"),
    [
        ("__connect.errors.stage", True),
        ("kafka_dlt-exception-fqcn", True),
        ("__streams.errors.offset", True),
        ("trace-id", False),
        ("kafka_receivedTopic", False),
    ],
)
def test_headers_of_errors_are_known_by_their_prefix(name: str, is_error: bool) -> None:
    assert is_error_header(name) is is_error


def test_a_choice_is_described() -> None:
    assert Choice().described() == "all"
    assert (
        Choice(error="Timeout", original_topic="orders").described()
        == "error Timeout, original topic orders"
    )


def test_times_without_a_zone_are_utc() -> None:
    assert Moment().convert("2026-11-23T08:00:00", None, None) == datetime(
        2026, 11, 23, 8, tzinfo=UTC
    )
    assert Moment().convert("2026-11-23T09:00:00+01:00", None, None) == datetime(
        2026, 11, 23, 8, tzinfo=UTC
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["summary", "--topics", "d", "--by", "colour"], "choose among error, topic"),
        (["sample", "--topics", "d", "--since", "yesterday"], "'yesterday' is not a time"),
        (
            ["park", "--topics", "d", "--checkpoint", "c"],
            "Specify the target: --to DIR or --to-topic TOPIC",
        ),
        (
            ["park", "--topics", "d,e", "--checkpoint", "c", "--to-topic", "e"],
            "Topic 'e' is also a source",
        ),
        (["redrive", "--topics", "d"], "Missing option '--checkpoint'"),
    ],
)
def test_wrong_usage_is_refused_before_spark_starts(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(dlq.command, arguments)
    assert result.exit_code == 2
    assert message in result.output
