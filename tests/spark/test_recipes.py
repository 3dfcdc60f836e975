"""The recipes on a real cluster: good values become rows, bad ones dead letters, and
nothing is lost.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

pytest.importorskip("pyspark")

from chaos.ensemble import Ensemble
from mqd.client.sync import BlockingClient
from pyspark_mqd.pipelines.dead_letters import with_origin
from pyspark_mqd.recipes import avro_registry, json_values, protobuf_values
from pyspark_mqd.recipes.registry import PREFIX
from pyspark_mqd.recipes.running import Places, start, wait
from tests.spark.fake_registry import FakeRegistry, order_descriptors

NOW = {"availableNow": True}
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as server:
        yield server


@pytest.fixture
def filled(
    spark: Any,
    client: BlockingClient,
    cluster: Ensemble,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> Callable[..., tuple[Places, Callable[[], list[Any]], Callable[[], list[Any]]]]:
    """Topics with values, and what a recipe made of them: rows of files, and dead letters."""

    def fill(
        values: list[bytes | None],
    ) -> tuple[Places, Callable[[], list[Any]], Callable[[], list[Any]]]:
        topic, dead = new_topic(1), new_topic(1)
        with client.producer() as producer:
            for index, value in enumerate(values):
                producer.send(
                    topic,
                    value,
                    key=b"k%d" % index,
                    headers=[("h", b"%d" % index)] if index % 2 else [],
                )
        source = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
        places = Places(source, str(tmp_path / topic), dead, str(tmp_path / f"{topic}-checkpoint"))

        def rows() -> list[Any]:
            return list(spark.read.parquet(places.folder).orderBy("source.offset").collect())

        def dead_rows() -> list[Any]:
            given = {
                **source,
                "subscribe": dead,
                "includeHeaders": "true",
                "kafka.isolation.level": "read_committed",
            }
            return list(
                with_origin(spark.read.format("mqd").options(**given).load())
                .orderBy("offset")
                .collect()
            )

        return places, rows, dead_rows

    return fill


def test_avro_with_a_registry(
    spark: Any, registry: FakeRegistry, filled: Callable[..., Any]
) -> None:
    schema_id = registry.add("orders-value", SCHEMA)

    def encode(row: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(SCHEMA), row)
        return PREFIX.pack(0, schema_id) + stream.getvalue()

    good: list[dict[str, Any]] = [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    places, rows, dead = filled(
        [encode(good[0]), b"not avro", None, encode(good[1]), PREFIX.pack(0, 77)]
    )
    reader = avro_registry.reader_schema(registry.url, "orders-value")
    wait(start(avro_registry.plan(spark, places, registry.url, reader), places, NOW))
    assert [(row["id"], row["name"], row["source"]["offset"]) for row in rows()] == [
        (1, "a", 0),
        (None, None, 2),
        (2, None, 3),
    ]
    found = dead()
    assert [
        (bytes(row["key"]), row["original_offset"], row["original_topic"]) for row in found
    ] == [
        (b"k1", 1, places.source["subscribe"]),
        (b"k4", 4, places.source["subscribe"]),
    ]
    assert {row["error"] for row in found} == {"pyspark_mqd.recipes.running.Undecodable"}
    assert "does not know the schema id 77" in found[1]["message"]
    assert [bytes(each["value"]) for each in found[0]["headers"] if each["key"] == "h"] == [b"1"]


def test_json(spark: Any, filled: Callable[..., Any]) -> None:
    values = [{"id": 1, "at": "2026-11-23T08:00:00Z"}, {"id": "x"}, {"id": 3, "more": 1}]
    places, rows, dead = filled([*(json.dumps(each).encode() for each in values), b"{oh", None])
    wait(start(json_values.plan(spark, places, "id bigint, at timestamp"), places, NOW))
    assert [(row["id"], row["source"]["offset"]) for row in rows()] == [(1, 0), (3, 2), (None, 4)]
    assert [(bytes(row["value"]), row["error"], row["original_offset"]) for row in dead()] == [
        (b'{"id": "x"}', "MalformedJson", 1),
        (b"{oh", "MalformedJson", 3),
    ]


def test_protobuf(spark: Any, filled: Callable[..., Any]) -> None:
    descriptors = order_descriptors()
    order = protobuf_values.message_class(descriptors, "shop.Order")
    message = order(id=7, tags=["a"], state=1, counts={"x": 3})
    message.address.city = "Graz"
    places, rows, dead = filled([message.SerializeToString(), b"\x08", None])
    wait(
        start(
            protobuf_values.plan(spark, places, descriptors, "shop.Order", prefixed=False),
            places,
            NOW,
        )
    )
    first, tombstone = rows()
    assert (
        first["id"],
        first["tags"],
        first["state"],
        first["counts"],
        first["address"]["city"],
    ) == (7, ["a"], "PAID", {"x": 3}, "Graz")
    assert (tombstone["id"], tombstone["source"]["offset"]) == (None, 2)
    assert [(row["original_offset"], row["error"]) for row in dead()] == [
        (1, "pyspark_mqd.recipes.running.Undecodable")
    ]
