"""The parts of the recipes that need no Spark: the registry's client, and decoding into Arrow."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from pyspark_mqd.pipelines.cli import Failure
from pyspark_mqd.recipes import avro_registry, protobuf_values
from pyspark_mqd.recipes.registry import PREFIX, Registry, split_prefix
from pyspark_mqd.recipes.running import Outage, Undecodable, with_records
from tests.spark.fake_registry import FakeRegistry, order_descriptors

ORDER_V1 = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "old", "type": "string"}],
}
ORDER_V2 = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "aliases": ["Order"],
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "at",
            "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
            "default": None,
        },
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {
            "name": "price",
            "type": [
                "null",
                {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            ],
            "default": None,
        },
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "counts", "type": {"type": "map", "values": "int"}, "default": {}},
        {
            "name": "state",
            "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]},
            "default": "NEW",
        },
        {
            "name": "uid",
            "type": ["null", {"type": "string", "logicalType": "uuid"}],
            "default": None,
        },
    ],
}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as server:
        yield server


def encode(schema_id: int, schema: Any, row: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return PREFIX.pack(0, schema_id) + stream.getvalue()


# -- the registry


def test_a_prefix_is_five_bytes() -> None:
    assert split_prefix(b"\0\0\0\1\2rest") == (258, b"rest")
    with pytest.raises(Undecodable, match="has 3 bytes"):
        split_prefix(b"\0\0\0")
    with pytest.raises(Undecodable, match="begins with byte 123"):
        split_prefix(b'{"id":1}')


def test_schemas_are_requested_once(registry: FakeRegistry) -> None:
    known = registry.add("orders-value", ORDER_V1)
    client = Registry(registry.url)
    assert [client.schema(known).text for _ in range(3)] == [json.dumps(ORDER_V1)] * 3
    assert registry.paths == [f"/schemas/ids/{known}"]
    latest = client.latest("orders-value")
    assert latest is not None and (latest.id, latest.type) == (known, "AVRO")
    assert client.latest("none") is None


def test_an_unknown_id_is_requested_again_after_a_while(registry: FakeRegistry) -> None:
    now = [100.0]
    client = Registry(registry.url, clock=lambda: now[0])
    for _ in range(3):
        with pytest.raises(Undecodable, match="does not know the schema id 1"):
            client.schema(1)
    assert len(registry.paths) == 1
    registry.add("orders-value", ORDER_V1)
    now[0] += 31
    assert client.schema(1).id == 1


def test_a_registry_that_is_ill_is_tried_again_and_is_no_bad_record(registry: FakeRegistry) -> None:
    known = registry.add("orders-value", ORDER_V1)
    pauses: list[float] = []
    registry.failures = 2
    assert Registry(registry.url, pause=pauses.append).schema(known).id == known
    assert pauses == [0.5, 1.0]
    registry.failures = 99
    with pytest.raises(Outage, match="cannot be used: HTTP status 503"):
        Registry(registry.url, pause=pauses.append).schema(known)
    with pytest.raises(Outage, match="cannot be used"):
        Registry("http://127.0.0.1:1", pause=pauses.append).schema(known)


def test_user_and_password_of_the_url_are_sent_in_a_header(registry: FakeRegistry) -> None:
    known = registry.add("orders-value", ORDER_V1)
    Registry(registry.url.replace("//", "//ann:secret@")).schema(known)
    assert registry.authorizations == ["Basic YW5uOnNlY3JldA=="]


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        None,
        5,
        {"schema": None},
        {"schema": {"type": "int"}},
        {"schema": "{"},
        {"schema": '"int"', "references": {}},
        {"schema": '"int"', "references": [{"subject": "a"}]},
        {"schema": '"int"', "schemaType": 5},
    ],
)
def test_a_response_that_is_no_schema_is_an_outage(registry: FakeRegistry, body: Any) -> None:
    registry.fixed["/schemas/ids/1"] = body
    client = Registry(registry.url, pause=lambda _: None)
    with pytest.raises(Outage, match="cannot be used: its response"):
        client.schema(1)
    del registry.fixed["/schemas/ids/1"]
    assert client.schema(registry.add("orders-value", ORDER_V1)).id == 1  # nothing was cached


def test_a_newest_schema_without_an_id_is_an_outage(registry: FakeRegistry) -> None:
    registry.fixed["/subjects/s/versions/latest"] = {"schema": '"int"'}
    with pytest.raises(Outage, match="its response has no id"):
        Registry(registry.url, pause=lambda _: None).latest("s")


def test_references_in_a_circle_end(registry: FakeRegistry) -> None:
    registry.add("a", "int", references=[{"name": "b", "subject": "b", "version": 1}])
    registry.add("b", "int", references=[{"name": "a", "subject": "a", "version": 1}])
    assert Registry(registry.url).schema(1).references == ('"int"', '"int"')
    assert len(registry.paths) == 3


def test_many_references_are_refused_once(registry: FakeRegistry) -> None:
    names = [{"name": "x", "subject": "x", "version": 1 + each} for each in range(201)]
    for _ in names:
        registry.add("x", "int")
    known = registry.add("orders-value", "int", references=names)
    client = Registry(registry.url)
    for _ in range(2):
        with pytest.raises(Undecodable, match="refers to more than 200 schemas"):
            client.schema(known)
    assert len(registry.paths) == 202


def test_a_redirect_to_another_server_gets_no_password(registry: FakeRegistry) -> None:
    known = registry.add("orders-value", ORDER_V1)
    with FakeRegistry() as front:
        front.moved = registry.url
        Registry(front.url.replace("//", "//ann:secret@")).schema(known)
        assert len(front.authorizations) == 1 and registry.authorizations == []
        front.moved, registry.moved = "", registry.url + "/x"  # on the same server
        registry.fixed[f"/x/schemas/ids/{known}"] = {"schema": '"int"'}
        Registry(registry.url.replace("//", "//ann:secret@")).schema(known)
        assert len(registry.authorizations) == 2


# -- Avro


def test_older_schemas_are_resolved_to_the_newest(registry: FakeRegistry) -> None:
    first, second = registry.add("orders-value", ORDER_V1), registry.add("orders-value", ORDER_V2)
    reader = avro_registry.reader_schema(registry.url, "orders-value")
    decode = avro_registry.decoder_of(registry.url, reader)
    at = datetime(2026, 11, 23, 8, tzinfo=UTC)
    row = {
        "id": 2,
        "at": at,
        "day": date(2026, 11, 23),
        "price": Decimal("9.50"),
        "tags": ["a"],
        "counts": {"x": 1},
    }
    row |= {"state": "PAID", "uid": "00000000-0000-0000-0000-000000000001"}
    values = [encode(first, ORDER_V1, {"id": 1, "old": "gone"}), encode(second, ORDER_V2, row)]
    record = avro_registry.arrow_type(avro_registry.parse(reader))
    rows = pa.array([decode(value) for value in values], record).to_pylist()
    assert rows[0] == {
        "id": 1,
        "at": None,
        "day": None,
        "price": None,
        "tags": [],
        "counts": [],
        "state": "NEW",
        "uid": None,
    }
    assert rows[1] == {**row, "counts": [("x", 1)]}


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"no avro", Undecodable),
        (PREFIX.pack(0, 99) + b"x", Undecodable),
        (PREFIX.pack(0, 1) + b"\2", EOFError),
        (PREFIX.pack(0, 1) + b"\2\2a" + b"trailing", Undecodable),
    ],
)
def test_values_that_are_not_avro_are_refused(
    registry: FakeRegistry, value: bytes, error: type[Exception]
) -> None:
    registry.add("orders-value", ORDER_V1)
    decode = avro_registry.decoder_of(
        registry.url, avro_registry.reader_schema(registry.url, "orders-value")
    )
    with pytest.raises(error):
        decode(value)


def test_references_between_schemas_are_followed(registry: FakeRegistry) -> None:
    money = {
        "type": "record",
        "name": "Money",
        "namespace": "shop",
        "fields": [{"name": "cents", "type": "long"}],
    }
    registry.add("money", money)
    order = {"type": "record", "name": "O", "fields": [{"name": "price", "type": "shop.Money"}]}
    registry.add(
        "orders-value", order, references=[{"name": "shop.Money", "subject": "money", "version": 1}]
    )
    reader = avro_registry.reader_schema(registry.url, "orders-value")
    assert avro_registry.arrow_type(avro_registry.parse(reader)) == pa.struct(
        [("price", pa.struct([("cents", pa.int64())]))]
    )


def record(name: str, *types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{index}", "type": each} for index, each in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def nested(levels: int) -> Any:
    return {"type": "array", "items": nested(levels - 1)} if levels else "int"


def doubling(levels: int) -> Any:
    """Each level has the one below twice: 2 to the power of `levels` types."""
    return (
        record(f"R{levels}", doubling(levels - 1), f"R{levels - 1}")
        if levels
        else record("R0", "int")
    )


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (record("R", "int", ["null", "R"]), "is recursive: 'R' contains itself"),
        (record("R", {"type": "array", "items": "R"}), "is recursive: 'R' contains itself"),
        (record("R", {"type": "map", "values": record("S", "R")}), "is recursive"),
        (record("R", {"type": "array", "items": "null"}), "array of values that take no bytes"),
        (record("R", {"type": "array", "items": record("S", "null")}), "array of values that take"),
        (nested(100), "over 64 levels"),
        (doubling(25), "over 20000 types"),
        (record("R", "nothing"), "cannot be parsed"),
        ("nothing", "cannot be parsed"),
    ],
)
def test_writer_schemas_that_exhaust_a_worker_are_undecodable(
    registry: FakeRegistry, schema: Any, message: str
) -> None:
    reader = registry.add("orders-value", ORDER_V1)
    decode = avro_registry.decoder_of(registry.url, Registry(registry.url).schema(reader))
    value = PREFIX.pack(0, registry.add("hostile", schema)) + b"\2" * 4_000_000
    registry.paths.clear()
    for _ in range(2):
        with pytest.raises(Undecodable, match=message):
            decode(value)
    assert len(registry.paths) == 1
    with pytest.raises(Failure, match="The newest schema of the subject 'hostile' cannot be used"):
        avro_registry.reader_schema(registry.url, "hostile")


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (["null", "int", "string"], "The field 'x' of the Avro schema is a union of 2 types"),
        ("R", "refers to the type 'R', which contains it"),
        ({"type": "int", "logicalType": "time-millis"}, "has the logical type 'time-millis'"),
    ],
)
def test_what_no_column_can_hold_is_refused_at_the_start(field: Any, message: str) -> None:
    with pytest.raises(Failure, match=message):
        avro_registry.arrow_type(
            {"type": "record", "name": "R", "fields": [{"name": "x", "type": field}]}
        )


# -- Protobuf


def test_protobuf_messages_become_rows() -> None:
    descriptors = order_descriptors()
    kind = protobuf_values.message_class(descriptors, "shop.Order")
    message = kind(id=7, total=2**63 + 1, tags=["a", "b"], state=1)
    message.at.FromDatetime(datetime(2026, 11, 23, 8))
    message.address.city = "Graz"
    message.counts["x"] = 3
    record = protobuf_values.arrow_type(kind.DESCRIPTOR)
    decode = protobuf_values.decoder_of(descriptors, "shop.Order", prefixed=False)
    (row, empty) = pa.array([decode(message.SerializeToString()), decode(b"")], record).to_pylist()
    assert row == {
        "id": 7,
        "total": Decimal(2**63 + 1),
        "tags": ["a", "b"],
        "state": "PAID",
        "at": datetime(2026, 11, 23, 8, tzinfo=UTC),
        "address": {"city": "Graz"},
        "counts": [("x", 3)],
    }
    assert (empty["id"], empty["state"], empty["at"], empty["address"], empty["tags"]) == (
        0,
        "NEW",
        None,
        None,
        [],
    )


def test_a_prefix_with_indexes_is_skipped() -> None:
    descriptors = order_descriptors()
    decode = protobuf_values.decoder_of(descriptors, "shop.Order", prefixed=True)
    body = protobuf_values.message_class(descriptors, "shop.Order")(id=7).SerializeToString()
    for indexes in (b"\0", b"\2\0", b"\4\2\xac\2"):
        assert decode(PREFIX.pack(0, 1) + indexes + body)["id"] == 7
    with pytest.raises(Undecodable, match="cut short"):
        decode(PREFIX.pack(0, 1) + b"\4\2")


def test_what_is_no_message_is_refused() -> None:
    decode = protobuf_values.decoder_of(order_descriptors(), "shop.Order", prefixed=False)
    with pytest.raises(Undecodable, match=r"not a message 'shop\.Order'"):
        decode(b"\x08")
    with pytest.raises(Failure, match=r"has no message 'shop\.Nothing'"):
        protobuf_values.message_class(order_descriptors(), "shop.Nothing")


# -- batches


def batch(values: list[bytes | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


def decoded(
    values: list[bytes | None], decode: Callable[[bytes], dict[str, Any]]
) -> list[dict[str, Any]]:
    record = pa.struct([("n", pa.int64())])
    rows: list[dict[str, Any]] = with_records(batch(values), decode, record).to_pylist()
    return rows


def test_bad_values_become_errors_beside_good_ones() -> None:
    rows = decoded([b"1", b"x", None], lambda value: {"n": int(value)})
    assert [row["record"] for row in rows] == [{"n": 1}, None, None]
    assert [row["error_class"] for row in rows] == [None, "ValueError", None]
    assert "invalid literal" in rows[1]["error_message"]


def test_a_record_that_does_not_fit_its_type_is_an_error_of_its_own() -> None:
    rows = decoded([b"1", b"2", b"3"], lambda value: {"n": "two" if value == b"2" else int(value)})
    assert [row["record"] for row in rows] == [{"n": 1}, None, {"n": 3}]
    assert rows[1]["error_class"] == "pyarrow.lib.ArrowInvalid"


def test_an_outage_is_no_bad_record() -> None:
    def decode(value: bytes) -> dict[str, Any]:
        raise Outage("the registry is down")

    with pytest.raises(Outage):
        decoded([b"1"], decode)
