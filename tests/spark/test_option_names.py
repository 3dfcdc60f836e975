"""Names of options: what has no effect is refused where it looks like one of ours."""

from __future__ import annotations

import logging

import click
import pytest

from pyspark_mqd.errors import OptionError
from pyspark_mqd.option_names import check_sink_names, check_source_names, refuse_unknown_client
from pyspark_mqd.options import parse_options
from pyspark_mqd.pipelines import cli
from pyspark_mqd.sink_options import parse_sink_options
from pyspark_mqd.warnings_once import warn_once

BASE = {"kafka.bootstrap.servers": "h:1"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("startOffsets", "startingOffsets"),
        ("starting_offsets", "startingOffsets"),
        ("kafka.startingOffsets", "startingOffsets"),
        ("kafka.startingOffset", "startingOffsets"),
        ("kafka.deliveryGuarantee", "deliveryGuarantee"),
        ("kafka.isolation.levl", "kafka.isolation.level"),
        ("isolation.levl", "isolation.level"),
        ("kafka.group_id", "kafka.group.id"),
        ("FAILONDATALOST", "failOnDataLoss"),
    ],
)
def test_a_misspelled_option_of_the_source_is_refused(name: str, meant: str) -> None:
    with pytest.raises(OptionError, match=rf"'{name}' is unknown.*Did you mean '{meant}'\?"):
        parse_options({**BASE, "subscribe": "t", name: "x"}, streaming=True)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("deliveryGarantee", "deliveryGuarantee"),
        ("delivery.guarantee", "deliveryGuarantee"),
        ("kafka.deliveryGuarantee", "deliveryGuarantee"),
        ("topics", "topic"),
        ("exactlyOnceID2", "exactlyOnceId"),
        ("kafka.compresion.type", "kafka.compression.type"),
        ("kafka.startingOffsets", "startingOffsets"),
    ],
)
def test_a_misspelled_option_of_the_sink_is_refused(name: str, meant: str) -> None:
    with pytest.raises(OptionError, match=rf"Did you mean '{meant}'\?"):
        parse_sink_options({**BASE, "topic": "t", name: "x"})


def test_options_of_the_other_side_are_one_warning() -> None:
    (line,) = check_source_names(["subscribe", "topic", "DELIVERYGUARANTEE", "includeHeaders"])
    assert line.startswith("Options of the sink have no effect on the source: ")
    assert "'deliveryGuarantee', 'topic'" in line
    (line,) = check_sink_names(["topic", "startingOffsets", "includeHeaders"])
    assert "source have no effect on the sink: 'startingOffsets'" in line


def test_other_unknown_names_are_one_warning() -> None:
    (line,) = check_source_names([*BASE, "colour", "kafka.nothing.known", "subscribe"])
    assert line == (
        "Unknown options have no effect: 'colour', 'kafka.nothing.known'. Correct or remove them."
    )


def test_names_of_spark_and_of_kafkas_clients_are_accepted() -> None:
    assert check_source_names(["path", "kafka.max.poll.records", "fetch.min.bytes"]) == []
    assert check_sink_names(["checkpointLocation", "path", "kafka.linger.ms", "acks"]) == []


def test_all_options_of_sparks_guide_are_known() -> None:
    names = (
        *("assign", "subscribe", "subscribePattern", "startingTimestamp"),
        *("startingOffsetsByTimestamp", "startingOffsets", "endingTimestamp"),
        *("endingOffsetsByTimestamp", "endingOffsets", "failOnDataLoss"),
        *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
        *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions"),
        *("maxRecordsPerPartition", "groupIdPrefix", "kafka.group.id", "includeHeaders"),
        *("startingOffsetsByTimestampStrategy", "kafka.bootstrap.servers"),
    )
    assert check_source_names(names) == []
    assert check_sink_names(["kafka.bootstrap.servers", "topic", "includeHeaders"]) == []


def test_a_warning_is_logged_once_a_query(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pyspark_mqd"):
        for query in ("a", "a", "b"):
            warn_once(query, "Unknown options have no effect: 'x'.")
    assert len(caplog.records) == 2


def test_unknown_client_properties_are_refused() -> None:
    refuse_unknown_client(["request.timeout.ms", "ssl.truststore.location"])
    with pytest.raises(OptionError, match=r"Did you mean 'request.timeout.ms'\?"):
        refuse_unknown_client(["request.timout.ms"])
    with pytest.raises(OptionError, match=r"'colour' is not a property of Kafka's clients"):
        refuse_unknown_client(["colour"])


@pytest.mark.parametrize("name", ["request.timout.ms", "kafka.request.timout.ms"])
def test_an_unknown_client_option_is_wrong_usage(name: str) -> None:
    with pytest.raises(click.BadParameter, match=r"Did you mean 'request.timeout.ms'\?"):
        cli.settings_of({"client": (f"{name}=5",)})
