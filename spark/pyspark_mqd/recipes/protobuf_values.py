"""Recipe: Protobuf values to Parquet, by the Python library and a descriptor file.

    protoc --include_imports --descriptor_set_out=orders.desc orders.proto
    python -m pyspark_mqd.recipes.protobuf_values --topics orders --descriptor orders.desc \\
        --message shop.Order --to lake/orders --dlq orders.dlq --checkpoint state/orders

With --prefixed each value begins with the prefix of a schema registry. This is a zero, the id of
the schema (four bytes) and the position of the message in its file. Enums become their names. A
field that is not set is null where Protobuf can tell, and has its default otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyspark_mqd.pipelines.cli import Failure, Settings
from pyspark_mqd.recipes.registry import split_prefix
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

TIMESTAMP = "google.protobuf.Timestamp"
CPP_TYPES = {
    1: "int32",
    2: "int64",
    3: "int64",  # uint32
    5: "float64",
    6: "float32",
    7: "bool_",
    8: "string",  # enum: its name
    9: "string",
}
"""`cpp_type` of a field -> Arrow type; uint64, messages and bytes have code of their own."""
UINT64, ENUM, MESSAGE = 4, 8, 10
BYTES_TYPE, REPEATED = 12, 3

Convert = Callable[[Any], Any]


def _library(name: str) -> Any:
    """A module of `protobuf`."""
    return import_module(f"google.protobuf.{name}")


def message_class(descriptor_set: bytes, name: str) -> Any:
    """The class of a message in a descriptor file. Raises Failure."""
    descriptors, pools = _library("descriptor_pb2"), _library("descriptor_pool")
    files = descriptors.FileDescriptorSet.FromString(descriptor_set)
    pool = pools.DescriptorPool()
    for each in files.file:
        pool.Add(each)
    try:
        return _library("message_factory").GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError:
        known = ", ".join(
            f"{each.package}.{message.name}".lstrip(".")
            for each in files.file
            for message in each.message_type
        )
        raise Failure(
            f"The descriptor file has no message '{name}'.", remedy=f"Its messages are: {known}."
        ) from None


def arrow_type(descriptor: Any, path: tuple[str, ...] = ()) -> pa.DataType:
    """The struct for a message. Raises Failure for one that contains itself."""
    import pyarrow as pa

    if descriptor.full_name == TIMESTAMP:
        return pa.timestamp("us", "UTC")
    if descriptor.full_name in path:
        raise Failure(
            f"The message '{descriptor.full_name}' contains itself: no column can hold it.",
            remedy="Decode this topic in a program of your own.",
        )
    inner = (*path, descriptor.full_name)
    return pa.struct([(each.name, _field_type(each, inner)) for each in descriptor.fields])


def _field_type(field: Any, path: tuple[str, ...]) -> pa.DataType:
    import pyarrow as pa

    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_scalar_type(key, path), _scalar_type(value, path))
    one = _scalar_type(field, path)
    return pa.list_(one) if _is_repeated(field) else one


def _scalar_type(field: Any, path: tuple[str, ...]) -> pa.DataType:
    import pyarrow as pa

    if field.cpp_type == MESSAGE:
        return arrow_type(field.message_type, path)
    if field.cpp_type == UINT64:
        return pa.decimal128(20, 0)
    if field.type == BYTES_TYPE:
        return pa.binary()
    return getattr(pa, CPP_TYPES[field.cpp_type])()


def _is_map(field: Any) -> bool:
    kind = field.message_type
    return _is_repeated(field) and kind is not None and bool(kind.GetOptions().map_entry)


def _is_repeated(field: Any) -> bool:
    known = getattr(field, "is_repeated", None)  # protobuf 5 has `label` instead
    return bool(field.label == REPEATED if known is None else known)


def converter_of(descriptor: Any) -> Convert:
    """A function that turns a message into what its Arrow type takes."""
    if descriptor.full_name == TIMESTAMP:
        return lambda message: message.seconds * 1_000_000 + message.nanos // 1_000
    steps = [
        (field.name, field.has_presence, _field_converter(field)) for field in descriptor.fields
    ]

    def convert(message: Any) -> dict[str, Any]:
        return {
            name: None if present and not message.HasField(name) else step(getattr(message, name))
            for name, present, step in steps
        }

    return convert


def _field_converter(field: Any) -> Convert:
    if _is_map(field):
        step = _scalar_converter(field.message_type.fields_by_name["value"])
        return lambda entries: [(key, step(entries[key])) for key in entries]
    step = _scalar_converter(field)
    return (lambda values: [step(each) for each in values]) if _is_repeated(field) else step


def _scalar_converter(field: Any) -> Convert:
    if field.cpp_type == MESSAGE:
        return converter_of(field.message_type)
    if field.cpp_type == ENUM:
        names = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else str(number)
    return lambda value: value


def skip_indexes(body: bytes) -> bytes:
    """What follows the place of the message in its file: a count, and as many zigzag varints."""
    position, left = 0, 1
    first = True
    while left:
        value = shift = 0
        while True:
            if position == len(body) or shift > 63:
                raise Undecodable("The place of the message behind the schema id is cut short.")
            byte = body[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        left -= 1
        if first:
            left, first = value >> 1, False
    return body[position:]


def decoder_of(descriptor_set: bytes, name: str, *, prefixed: bool) -> Decoder:
    """A function that decodes values."""
    undecodable = _library("message").DecodeError
    kind = message_class(descriptor_set, name)
    convert = converter_of(kind.DESCRIPTOR)

    def decode(value: bytes) -> Mapping[str, Any]:
        body = skip_indexes(split_prefix(value)[1]) if prefixed else value
        try:
            row: Mapping[str, Any] = convert(kind.FromString(body))
        except undecodable as error:
            raise Undecodable(f"The value is not a message '{name}': {error}") from None
        return row

    return decode


def plan(
    spark: SparkSession, places: Places, descriptor_set: bytes, name: str, *, prefixed: bool
) -> DataFrame:
    """The topics with the decoded record, or with an error."""
    record = arrow_type(message_class(descriptor_set, name).DESCRIPTOR)
    return decoded(
        read(spark, places), lambda: decoder_of(descriptor_set, name, prefixed=prefixed), record
    )


@recipe_command
@recipe_options
@click.option(
    "--descriptor", metavar="FILE", required=True, help="Descriptor set that protoc wrote."
)
@click.option(
    "--message",
    "name",
    metavar="NAME",
    required=True,
    help="Full name of the message, such as shop.Order.",
)
@click.option("--prefixed", is_flag=True, help="Values have the prefix of a schema registry.")
def command(settings: Settings, places: Places, descriptor: str, name: str, prefixed: bool) -> None:
    """Write Protobuf values of topics to Parquet files, and bad values to a topic of dead letters.

    \b
    Example: python -m pyspark_mqd.recipes.protobuf_values --topics orders \\
               --descriptor orders.desc --message shop.Order --to lake/orders \\
               --dlq orders.dlq --checkpoint state/orders --available-now
    """
    require("google.protobuf", MAP_IN_ARROW)
    content = Path(descriptor).read_bytes()
    message_class(content, name)
    run(
        settings,
        places,
        "protobuf",
        lambda spark: plan(spark, places, content, name, prefixed=prefixed),
    )


if __name__ == "__main__":
    main(command)
