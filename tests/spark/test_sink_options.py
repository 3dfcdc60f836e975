"""Options and columns of the sink: what is taken, and the words of refusals."""

from __future__ import annotations

import pytest

from mqd.protocol.compression import Codec
from pyspark_mqd.errors import OptionError
from pyspark_mqd.sink_options import (
    Columns,
    Guarantee,
    SinkOptions,
    columns_of,
    parse_sink_options,
    refuse_batch_exactly_once,
    refuse_overwrite,
)

BOOTSTRAP = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
HEADERS = "array<struct<key:string,value:binary>>"


def parsed(**options: str) -> SinkOptions:
    return parse_sink_options(BOOTSTRAP | {key.replace("__", "."): options[key] for key in options})


def test_defaults() -> None:
    options = parsed(topic="orders")

    assert options.guarantee is Guarantee.AT_LEAST_ONCE
    assert options.topic == "orders"
    assert options.codec is Codec.NONE
    assert not options.task_headers
    assert not options.accept_missing_markers
    assert options.without_effect == ()


def test_names_are_case_insensitive_and_the_prefix_is_optional() -> None:
    options = parse_sink_options(
        {
            "bootstrap.servers": "127.0.0.1:9092",
            "Topic": "orders",
            "compression.type": "ZSTD",
            "KAFKA.BATCH.SIZE": "1000",
            "deliveryguarantee": "Exactly-Once",
        }
    )

    assert options.codec is Codec.ZSTD
    assert options.batch_bytes == 1000
    assert options.guarantee is Guarantee.EXACTLY_ONCE
    assert options.marker_topic == "orders"


def test_producer_names_are_honoured() -> None:
    options = parsed(
        kafka__acks="all",
        kafka__compression__type="lz4",
        kafka__batch__size="16384",
        kafka__linger__ms="5",
        kafka__max__request__size="2000000",
        kafka__buffer__memory="1000000",
        kafka__delivery__timeout__ms="30000",
        kafka__request__timeout__ms="4000",
        kafka__max__block__ms="6000",
        kafka__transaction__timeout__ms="60000",
    )

    assert options.codec is Codec.LZ4
    assert options.batch_bytes == 16384
    assert options.request_bytes_max == 2_000_000
    assert options.buffer_bytes == 1_000_000
    assert options.delivery_timeout_ms == 30_000
    assert options.transaction_timeout_ms == 60_000
    assert options.connection.request_timeout_ms == 4000
    assert options.connection.api_timeout_ms == 6000
    assert options.without_effect == ()


def test_options_without_an_effect_are_known() -> None:
    assert parsed(kafka__send__buffer__bytes="1").without_effect == ("kafka.send.buffer.bytes",)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kafka__transactional__id": "x"}, "transactional.id' is not supported"),
        ({"kafka__key__serializer": "x"}, "keys are serialized with ByteArraySerializer"),
        ({"kafka__value__serializer": "x"}, "value are serialized with ByteArraySerializer"),
        ({"kafka__partitioner__class": "x"}, "partitioner.class' is not supported"),
        ({"kafka__interceptor__classes": "x"}, "interceptor.classes' is not supported"),
        ({"kafka__compression__type": "brotli"}, "Use one of 'none', 'gzip'"),
        ({"kafka__batch__size": "-1"}, "must be a positive whole number"),
        ({"deliveryGuarantee": "twice"}, "Use one of 'at-least-once', 'exactly-once'"),
        ({"taskHeaders": "yes"}, "must be 'true' or 'false'"),
        ({"deliveryGuarantee": "exactly-once"}, "Set 'markerTopic'"),
        ({"deliveryGuarantee": "atomic-batch"}, "Set 'markerTopic'"),
        ({"exactlyOnceId": "a b"}, "exactlyOnceId"),
        ({"kafka__security__protocol": "SASL_SSL"}, "sasl.mechanism"),
    ],
)
def test_refusals(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parsed(**options)
    assert words in str(caught.value)


def test_modes_get_sparks_error_message() -> None:
    assert str(refuse_overwrite()).startswith("Save mode Overwrite not allowed for Kafka.")
    assert "'atomic-batch'" in str(refuse_batch_exactly_once())


def test_columns_of_a_source_are_taken_as_they_are() -> None:
    fields = [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", HEADERS),
    ]

    assert columns_of(fields, parsed()) == Columns(True, True, True, True, None)
    assert columns_of(fields, parsed(topic="t")) == Columns(True, True, False, True, None)
    with_stamp = columns_of(fields, parsed(timestampColumn="timestamp"))
    assert with_stamp.timestamp == "timestamp"


def test_option_topic_overrides_a_column_of_any_type() -> None:
    fields = [("value", "string"), ("topic", "int")]

    assert columns_of(fields, parsed(topic="t")) == Columns(False, False, False, False, None)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([("topic", "string")], "Required attribute 'value' not found"),
        ([("value", "string")], "topic option required when no 'topic' attribute is present"),
        (
            [("topic", "string"), ("value", "int")],
            "value attribute unsupported type int. value must be a(n) string or binary",
        ),
        (
            [("topic", "binary"), ("value", "string")],
            "topic attribute unsupported type binary. topic must be a(n) string",
        ),
        (
            [("topic", "string"), ("value", "string"), ("partition", "bigint")],
            "partition attribute unsupported type bigint. partition must be a(n) int",
        ),
        (
            [("topic", "string"), ("value", "string"), ("headers", "string")],
            f"headers attribute unsupported type string. headers must be a(n) {HEADERS}",
        ),
        (
            [("topic", "string"), ("value", "string"), ("key", "bigint")],
            "key attribute unsupported type bigint. key must be a(n) string or binary",
        ),
    ],
)
def test_columns_get_sparks_error_message(fields: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        columns_of(fields, parsed())
    assert words in str(caught.value)


def test_the_column_of_timestamps_is_checked() -> None:
    fields = [("value", "string"), ("at", "string")]

    with pytest.raises(OptionError, match="no such column"):
        columns_of(fields, parsed(topic="t", timestampColumn="when"))
    with pytest.raises(OptionError, match="at attribute unsupported type string"):
        columns_of(fields, parsed(topic="t", timestampColumn="at"))


def test_changed_rows_are_accepted_where_rows_are_compared() -> None:
    own = {"deliveryGuarantee": "exactly-once", "acceptChangedRows": "true"}
    assert parsed(topic="t", **own).accept_changed_rows
    assert not parsed(topic="t").accept_changed_rows
    assert not parsed(topic="t", acceptChangedRows="false").accept_changed_rows
    assert parsed(topic="t", **own | {"deliveryGuarantee": "atomic-batch"}).accept_changed_rows
    with pytest.raises(OptionError, match=r"which compares no rows\. Remove 'acceptChangedRows'"):
        parsed(topic="t", **own | {"deliveryGuarantee": "at-least-once"})
    with pytest.raises(OptionError, match="'acceptChangedRows' must be 'true' or 'false'"):
        parsed(topic="t", **own | {"acceptChangedRows": "once"})
