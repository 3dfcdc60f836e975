"""Recipe: Avro values with a schema registry, to Parquet.

    python -m pyspark_mqd.recipes.avro_registry --topics orders --registry http://registry:8081 \\
        --to lake/orders --dlq orders.dlq --checkpoint state/orders --available-now

Each value has a prefix of five bytes: a zero, and the id of the schema that it was written with.
The columns are those of the newest schema of the subject when the query starts. Avro's rules
resolve values of older schemas to it. Restart the query to take up a newer schema.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from pyspark_mqd.pipelines.cli import Failure, Settings
from pyspark_mqd.recipes.registry import Registry, Schema, split_prefix
from pyspark_mqd.recipes.running import (
    MAP_IN_ARROW,
    Decoder,
    Places,
    Undecodable,
    decoded,
    main,
    read,
    recipe_command,
    recipe_options,
    require,
    run,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PRIMITIVES = {
    "boolean": "bool_",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "bytes": "binary",
    "string": "string",
}


def arrow_type(schema: Any, named: dict[str, Any] | None = None, path: str = "") -> pa.DataType:
    """The column type for an Avro schema. Raises Failure for what no column can hold."""
    import pyarrow as pa

    named = {} if named is None else named
    if isinstance(schema, list):
        some = [each for each in schema if each != "null"]
        if len(some) != 1:
            raise _refused(path, f"is a union of {len(some)} types")
        return arrow_type(some[0], named, path)
    if isinstance(schema, str):
        if schema in PRIMITIVES:
            return getattr(pa, PRIMITIVES[schema])()
        if named.get(schema) is None:
            raise _refused(path, f"refers to the type '{schema}', which contains it or is unknown")
        return named[schema]
    kind, logical = schema["type"], schema.get("logicalType")
    if logical is not None and (found := _logical(schema, logical, path)) is not None:
        return found
    if kind in ("enum", "fixed"):
        found = pa.string() if kind == "enum" else pa.binary()
        return named.setdefault(schema["name"], found)
    if kind == "array":
        return pa.list_(arrow_type(schema["items"], named, f"{path}[]"))
    if kind == "map":
        return pa.map_(pa.string(), arrow_type(schema["values"], named, f"{path}{{}}"))
    if kind == "record":
        fields = [
            (each["name"], arrow_type(each["type"], named, f"{path}.{each['name']}"))
            for each in schema["fields"]
        ]
        return named.setdefault(schema["name"], pa.struct(fields))
    return arrow_type(kind, named, path)


def _logical(schema: Mapping[str, Any], logical: str, path: str) -> pa.DataType | None:
    import pyarrow as pa

    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical in ("time-millis", "time-micros"):
        raise _refused(path, f"has the logical type '{logical}'")
    known = {
        "date": pa.date32(),
        "timestamp-millis": pa.timestamp("us", "UTC"),
        "timestamp-micros": pa.timestamp("us", "UTC"),
        "local-timestamp-millis": pa.timestamp("us"),
        "local-timestamp-micros": pa.timestamp("us"),
        "uuid": pa.string(),
    }
    return known.get(logical)


def _refused(path: str, what: str) -> Failure:
    return Failure(
        f"The field '{path.lstrip('.') or 'value'}' of the Avro schema {what}: no column can "
        "hold it.",
        remedy="Change the schema, or decode this topic in a program of your own.",
    )


DEPTH_MAX = 64
NODES_MAX = 20_000
"""Levels and types of a schema, where each use of a named type counts."""


def parse(schema: Schema) -> Any:
    """The schema as fastavro wants it, with those that it refers to.

    Raises Undecodable for a schema that cannot be parsed, or with which a small value can exhaust
    the worker. The reader of fastavro recurses in C without a limit.
    """
    if schema.type != "AVRO":
        raise Undecodable(f"The schema {schema.id} is of type {schema.type}, not Avro.")
    try:
        named: dict[str, Any] = {}
        _is_empty(_parsed(schema, named, expand=False), named, frozenset(), 0, [NODES_MAX])
        return _parsed(schema, {}, expand=True)
    except Undecodable as error:
        raise Undecodable(f"The Avro schema {schema.id} {error}.") from None
    except Exception as error:
        raise Undecodable(f"The Avro schema {schema.id} cannot be parsed: {error}") from None


def _parsed(schema: Schema, named: dict[str, Any], *, expand: bool) -> Any:
    import fastavro

    for text in schema.references:
        fastavro.parse_schema(json.loads(text), named_schemas=named)
    return fastavro.parse_schema(json.loads(schema.text), named_schemas=named, expand=expand)


def _is_empty(
    schema: Any, named: dict[str, Any], inside: frozenset[str], depth: int, left: list[int]
) -> bool:
    """Whether values of this type take no bytes. `inside` has the records around it.

    Raises Undecodable for recursive and for large types, and for arrays of values without bytes:
    five bytes would be an array of millions of them.
    """
    left[0] -= 1
    if depth > DEPTH_MAX or left[0] < 0:
        raise Undecodable(f"has over {DEPTH_MAX} levels or over {NODES_MAX} types")

    def within(inner: Any, around: frozenset[str] = inside) -> bool:
        return _is_empty(inner, named, around, depth + 1, left)

    if isinstance(schema, list):
        for each in schema:
            within(each)
        return False
    if isinstance(schema, str):
        if schema in named:
            return within(named[schema])
        return schema == "null"
    kind = schema["type"]
    if kind in ("record", "error"):
        if schema["name"] in inside:
            raise Undecodable(f"is recursive: '{schema['name']}' contains itself")
        around = inside | {schema["name"]}
        empty = [within(each["type"], around) for each in schema["fields"]]  # visits all of them
        return all(empty)
    if kind == "array":
        if within(schema["items"]):
            raise Undecodable("has an array of values that take no bytes")
        return False
    if kind == "map":
        within(schema["values"])
        return False
    if kind == "fixed":
        return bool(schema["size"] == 0)
    return False if kind == "enum" else within(kind)


def decoder_of(url: str, reader: Schema) -> Decoder:
    """A function that decodes values to the fields of `reader`."""
    import fastavro
    import fastavro.read

    fastavro.read.LOGICAL_READERS["string-uuid"] = lambda text, *_: text  # Arrow has no UUIDs
    registry, own = Registry(url), parse(reader)
    writers: dict[int, Any] = {}  # a schema id -> the schema, or why it is Undecodable

    def decode(value: bytes) -> Mapping[str, Any]:
        schema_id, body = split_prefix(value)
        writer = writers.get(schema_id)
        if writer is None:
            schema = registry.schema(schema_id)
            try:
                writer = parse(schema)
            except Undecodable as error:
                writer = error
            writers[schema_id] = writer
        if isinstance(writer, Undecodable):
            raise Undecodable(str(writer))
        stream = io.BytesIO(body)
        row = fastavro.schemaless_reader(stream, writer, own)
        if stream.tell() != len(body):
            raise Undecodable(f"{len(body) - stream.tell()} bytes follow the record.")
        if not isinstance(row, dict):
            raise Undecodable("The value is not a record.")
        return row

    return decode


def reader_schema(url: str, subject: str) -> Schema:
    """The newest schema of a subject. Raises Failure where none can be used, Outage."""
    try:
        found = Registry(url).latest(subject)
        if found is not None and found.type == "AVRO":
            parse(found)
    except Undecodable as error:
        raise Failure(
            f"The newest schema of the subject '{subject}' cannot be used. {error}",
            remedy="Change the schema, or decode this topic in a program of your own.",
        ) from None
    if found is None:
        raise Failure(
            f"The schema registry has no subject '{subject}'.",
            remedy="Name the subject with --subject, for example orders-value.",
        )
    if found.type != "AVRO":
        raise Failure(
            f"The subject '{subject}' has schemas of type {found.type}, not Avro.",
            remedy="Use the recipe for that type.",
        )
    return found


def plan(spark: SparkSession, places: Places, url: str, reader: Schema) -> DataFrame:
    """The topics with the decoded record, or with an error."""
    return decoded(read(spark, places), lambda: decoder_of(url, reader), arrow_type(parse(reader)))


@recipe_command
@recipe_options
@click.option(
    "--registry",
    metavar="URL",
    required=True,
    help="Schema registry: http://host:port, or http://user:password@host:port.",
)
@click.option("--subject", metavar="NAME", help="Subject of the schema  [default: TOPIC-value]")
def command(settings: Settings, places: Places, registry: str, subject: str | None) -> None:
    """Write Avro values of topics to Parquet files, and bad values to a topic of dead letters.

    \b
    Example: python -m pyspark_mqd.recipes.avro_registry --topics orders \\
               --registry http://registry:8081 --to lake/orders --dlq orders.dlq \\
               --checkpoint state/orders --available-now
    """
    require("fastavro", MAP_IN_ARROW)
    first = places.source["subscribe"].split(",")[0].strip()
    reader = reader_schema(registry, subject or f"{first}-value")
    run(settings, places, "avro", lambda spark: plan(spark, places, registry, reader))


if __name__ == "__main__":
    main(command)
