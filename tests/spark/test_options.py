"""Options of the source: names, defaults, precedence and refusals of Spark's Kafka source."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mqd.types import TopicPartition
from pyspark_mqd.errors import OptionError
from pyspark_mqd.option_limits import (
    AsOf,
    ByGlobalTimestamp,
    ByOffset,
    ByTimestamp,
    Earliest,
    Latest,
)
from pyspark_mqd.options import (
    Assign,
    SourceOptions,
    Subscribe,
    SubscribePattern,
    columns_of,
    compile_pattern,
    ignored_in_batch,
    parse_options,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def parse(streaming: bool = True, **options: str) -> SourceOptions:
    """Options as keywords: `__` is a dot."""
    given = {key.replace("__", "."): value for key, value in options.items()}
    base = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    if {"assign", "subscribepattern"} & {key.lower() for key in given}:
        del base["subscribe"]
    return parse_options({**base, **given}, streaming=streaming)


def refused(streaming: bool = True, **options: str) -> str:
    with pytest.raises(OptionError) as error:
        parse(streaming, **options)
    return str(error.value)


def test_defaults_are_sparks() -> None:
    stream, batch = parse(), parse(False)
    assert stream.start == Latest() and batch.start == Earliest() and batch.end == Latest()
    assert stream.fail_on_data_loss and not stream.read_committed and not stream.commit_offsets
    assert stream.max_trigger_delay_s == 900 and stream.poll_timeout_s == 120
    assert stream.num_retries == 3 and stream.retry_interval_s == 1.0
    assert stream.columns == (
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType",
    )  # fmt: skip
    assert stream.offset_metadata and not stream.filter_pushdown
    limits = (stream.max_offsets, stream.min_offsets, stream.max_bytes)
    assert (*limits, stream.min_partitions, stream.max_records_per_partition) == (None,) * 5


def test_names_are_case_insensitive_and_the_prefix_is_optional() -> None:
    options = {"BOOTSTRAP.servers": "a:1,b:2", "SUBSCRIBE": " x , y,, x "}
    options |= {"FailOnDataLoss": "FALSE"}
    options |= {"isolation.level": "READ_COMMITTED", "group.id": "g", "commitoffsets": "true"}
    found = parse_options(options, streaming=True)
    assert found.connection.bootstrap == "a:1,b:2"
    assert found.strategy == Subscribe(("x", "y"))
    assert not found.fail_on_data_loss and found.read_committed
    assert found.group_id == "g" and found.commit_offsets


def test_the_form_with_the_prefix_wins() -> None:
    found = parse(bootstrap__servers="other:1", kafka__group__id="a", group__id="b")
    assert found.connection.bootstrap == "h:1" and found.group_id == "a"


def test_strategies() -> None:
    assert parse(assign='{"t":[1,0,1]}').strategy == Assign((T0, T1))
    assert parse(subscribePattern=" e.* ").strategy == SubscribePattern("e.*")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": "earliest"}, Earliest()),
        ({"startingOffsets": " LATEST "}, Latest()),
        ({"startingOffsets": '{"t":{"0":23,"1":-1}}'}, ByOffset({T0: 23, T1: -1})),
        ({"startingOffsets": "earliest", "startingTimestamp": " 5 "}, ByGlobalTimestamp(5)),
        (
            {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"t":{"0":7}}'},
            ByTimestamp({T0: 7}),
        ),
        (
            {"startingTimestamp": "5", "startingOffsetsByTimestamp": '{"t":{"0":7}}'},
            ByGlobalTimestamp(5),
        ),
    ],
)
def test_precedence_of_starts(given: dict[str, Any], expected: Any) -> None:
    assert parse(**given).start == expected


def test_precedence_of_ends() -> None:
    given = {"endingOffsets": "latest", "endingOffsetsByTimestamp": '{"t":{"0":7}}'}
    assert parse(False, **given).end == ByTimestamp({T0: 7})
    assert parse(False, **given, endingTimestamp="9").end == ByGlobalTimestamp(9)


@pytest.mark.parametrize(
    ("streaming", "given", "sentence"),
    [
        (True, {"subscribe": ","}, "No topics to subscribe to as specified value for option"),
        (True, {"assign": "t"}, "No topicpartitions to assign as specified value for option"),
        (True, {"assign": '{"t":0}'}, 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got {"t":0}'),
        (True, {"subscribePattern": " "}, "Pattern to subscribe is empty"),
        (True, {"subscribePattern": "("}, "cannot be used"),
        (True, {"startingOffsets": "soon"}, 'Expected e.g. {"topicA":{"0":23,"1":-1}'),
        (True, {"startingOffsets": '{"t":{"0":-3}}'}, "Expected e.g."),
        (True, {"startingTimestamp": "x"}, "Expected a single long value, got x"),
        (True, {"startingOffsetsByTimestamp": "1"}, 'Expected e.g. {"topicA": {"0": 123456789'),
        (True, {"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        (True, {"endingOffsetsByTimestamp": "{}"}, "ending timestamp not valid in streaming"),
        (True, {"endingTimestamp": "1"}, "ending timestamp not valid in streaming queries"),
        (True, {"asOfTimestamp": "1"}, "asOfTimestamp not valid in streaming queries"),
        (False, {"startingOffsets": "latest"}, "starting offset can't be latest for batch queries"),
        (False, {"startingOffsets": '{"t":{"0":-1}}'}, "startingOffsets for t-0 can't be latest"),
        (False, {"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries"),
        (False, {"endingOffsets": '{"t":{"0":-2}}'}, "ending offset for t-0 can't be earliest"),
        (
            False,
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'},
            "The specified start offset 5 is greater than the end offset 4 for topic t partition 0",
        ),
        (
            False,
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"1":9}}'},
            "The specified start offset and end offset should have the same topic-partitions",
        ),
        (
            False,
            {
                "startingOffsetsByTimestamp": '{"t":{"0":5}}',
                "endingOffsetsByTimestamp": '{"t":{"0":4}}',
            },
            "The specified start timestamp 5 is greater than the end timestamp 4",
        ),
        (True, {"minPartitions": "0"}, "minPartitions must be positive"),
        (True, {"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be positive"),
        (True, {"maxOffsetsPerTrigger": "many"}, "'maxOffsetsPerTrigger' must be a whole number"),
        (
            True,
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "The value of minOffsetPerTrigger(5) is higher than the maxOffsetsPerTrigger(4)",
        ),
        (True, {"maxTriggerDelay": "soon"}, "'maxTriggerDelay' is 'soon', which is no time"),
        (True, {"failOnDataLoss": "yes"}, "'failOnDataLoss' must be 'true' or 'false'"),
        (True, {"kafka__auto__offset__reset": "x"}, "'auto.offset.reset' is not supported."),
        (True, {"kafka__key__deserializer": "x"}, "'key.deserializer' is not supported as keys"),
        (True, {"value__deserializer": "x"}, "'value.deserializer' is not supported as values are"),
        (True, {"kafka__enable__auto__commit": "1"}, "'enable.auto.commit' is not supported"),
        (True, {"kafka__interceptor__classes": "x"}, "'interceptor.classes' is not supported"),
        (True, {"kafka__isolation__level": "dirty"}, "'kafka.isolation.level' is 'dirty'"),
        (True, {"startingOffsetsByTimestampStrategy": "x"}, "Set it to 'error' or 'latest'"),
        (True, {"columns": "key,colour"}, "names 'colour', which the source does not have"),
        (True, {"columns": " , "}, "names no column"),
        (True, {"commitOffsets": "true"}, "Set option 'kafka.group.id'"),
        (True, {"kafka__bootstrap__servers": " "}, "'kafka.bootstrap.servers' must be specified"),
    ],
)
def test_refusals(streaming: bool, given: dict[str, str], sentence: str) -> None:
    assert sentence in refused(streaming, **given)


HUGE = "9" * 5_000
"""Python's `int` raises a ValueError of its own for it."""


@pytest.mark.parametrize("text", [HUGE, "1_0", "\u0663", "1e5", "NaN", "", str(2**63)])
@pytest.mark.parametrize(
    "name",
    [
        "maxOffsetsPerTrigger",
        "maxBytesPerTrigger",
        "minPartitions",
        "fetchOffset.numRetries",
        "kafkaConsumer.pollTimeoutMs",
        "maxTriggerDelay",
        "kafka.fetch.max.bytes",
        "kafka.request.timeout.ms",
        "startingTimestamp",
    ],
)
def test_numbers_are_those_of_java(name: str, text: str) -> None:
    assert len(refused(True, **{name: text})) < 500


def test_hostile_times_and_expressions() -> None:
    for bad in (HUGE, "\u00b2", "--5", "-1", "1969-12-31T23:59:59Z", str(2**63)):
        assert "which is no time" in refused(False, asOfTimestamp=bad)
    for bad in ("-1", "-2"):  # latest and earliest, on the wire
        assert f"got {bad}. Set option" in refused(startingTimestamp=bad)
        assert f"got {bad}. Set option" in refused(False, endingTimestamp=bad)
    assert "Expected e.g." in refused(False, asOfOffsets="[" * 100_000)
    assert "cannot be used" in refused(subscribePattern="(a+" * 3_000)


def test_names_that_no_topic_can_have() -> None:
    for bad in ("a b", "..", ".", "\u00e9", "a/b", "x" * 250, "x" * 10_000_000, "t\n"):
        assign = json.dumps({bad: [0]})
        for sentence in (refused(subscribe=f"a,{bad}/"), refused(assign=assign)):
            assert "which cannot exist" in sentence and len(sentence) < 600
    assert "names topic '', which" in refused(assign='{"":[0]}')
    longest = ("a.b_c-" * 42)[:249]
    assert parse(subscribe=f"{longest}, ...").strategy == Subscribe(("...", longest))


def test_the_longest_times_of_java_are_accepted() -> None:
    longest = str(2**63 - 1)
    options = parse(
        kafkaConsumer__pollTimeoutMs=longest,
        kafka__max__block__ms=longest,
        kafka__request__timeout__ms=str(2**31 - 1),
    )
    assert options.connection.api_timeout_ms == 2**31 - 1
    assert options.poll_timeout_s == (2**31 - 1) / 1000


def test_exactly_one_strategy() -> None:
    bootstrap = {"kafka.bootstrap.servers": "h:1"}
    with pytest.raises(OptionError, match="One of the following options must be specified"):
        parse_options(bootstrap, streaming=True)
    with pytest.raises(OptionError, match="Only one of the following options can be specified"):
        parse_options({**bootstrap, "subscribe": "t", "assign": "{}"}, streaming=True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900), ("500ms", 0.5), ("250", 0.25), ("2 h", 7200), ("1d", 86400), ("1min", 60)],
)
def test_times(text: str, seconds: float) -> None:
    assert parse(maxTriggerDelay=text).max_trigger_delay_s == seconds


def test_columns() -> None:
    assert columns_of({"includeHeaders": "true"})[-1] == "headers"
    assert columns_of({"columns": "VALUE, timestamptype"}) == ("value", "timestampType")
    assert columns_of({"columns": "value", "includeHeaders": "true"}) == ("value", "headers")
    assert columns_of({"columns": "headers,key,key"}) == ("headers", "key")


def test_time_travel() -> None:
    assert parse(False, asOfTimestamp="999").end == ByGlobalTimestamp(1000)
    moment = parse(False, asOfTimestamp="1970-01-01T00:00:01Z").end
    assert moment == ByGlobalTimestamp(1001)
    end = parse(False, asOfOffsets='{"t":{"0":4}}').end
    assert isinstance(end, AsOf) and end.offset.ends == {T0: 4}
    line = '{"t":{"0":4},"__mqd":{"version":1,"topics":{"t":{"id":"u"}}}}'
    end = parse(False, asOfOffsets=line).end
    assert isinstance(end, AsOf) and end.offset.topic_id("t") == "u"
    assert "both say where the query ends" in refused(False, asOfTimestamp="1", endingTimestamp="2")
    assert "both say where the query ends" in refused(False, asOfTimestamp="1", asOfOffsets="{}")
    assert "needs offsets from 0 on" in refused(False, asOfOffsets='{"t":{"0":-1}}')
    assert "which is no time" in refused(False, asOfTimestamp="yesterday")


def test_java_expressions() -> None:
    """Found anywhere in the name, as Spark does it."""
    assert compile_pattern(r"\Qa.b\E").search("xa.b")
    assert not compile_pattern(r"\Qa.b\E").search("axb")
    assert compile_pattern(r"(?<n>a+)-\k<n>\z").search("aa-aa")
    assert compile_pattern(r"^\p{Alpha}+-\p{Digit}$").search("topic-1")
    for bad in (r"[a-z&&[^b]]", r"\p{IsGreek}", "a**+?+"):
        with pytest.raises(OptionError, match="cannot be used"):
            compile_pattern(bad)


def test_what_a_batch_query_ignores() -> None:
    given = {"maxoffsetspertrigger": "1", "MaxTriggerDelay": "1s"}
    assert ignored_in_batch(given) == ["maxOffsetsPerTrigger", "maxTriggerDelay"]


def test_unknown_options_have_no_effect() -> None:
    assert parse(frobnicate="1", kafka__linger__ms="5") == parse()
    for streaming in (True, False):  # the source joins no group
        assert parse(streaming, groupIdPrefix="p") == parse(streaming)
