"""The source as Spark sees it: its columns, and its readers for batch queries and streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .connection import logger, unused_names
from .errors import OptionError
from .option_names import check_source_names
from .options import COLUMNS, HEADERS, columns_of, ignored_in_batch, parse_options
from .warnings_once import warn_once

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}
_BY_LOWER = {name.lower(): name for name in (*COLUMNS, HEADERS)}


def column_named(name: str) -> str:
    """The source's column for a name in any case. Raises OptionError."""
    found = _BY_LOWER.get(name.lower())
    if found is None:
        raise OptionError(
            f"The schema has a column '{name}', which the source does not have. "
            f"Choose among: {', '.join(_TYPES)}."
        )
    return found


def schema_of(options: Mapping[str, str]) -> StructType:
    """The schema of Spark's Kafka source, less what option `columns` leaves out."""
    return StructType([StructField(name, _TYPES[name]) for name in columns_of(options)])


def check_schema(schema: StructType) -> None:
    """A schema that the user gives chooses columns; their types are fixed. Raises OptionError."""
    if not schema.fields:
        raise OptionError(f"The schema is empty. Choose among: {', '.join(_TYPES)}.")
    seen = set()
    for field in schema.fields:
        name = column_named(field.name)
        if name in seen:
            raise OptionError(f"The schema has column '{name}' twice. Name each column once.")
        seen.add(name)
        if not _same_type(field.dataType, _TYPES[name]):
            raise OptionError(
                f"The schema has column '{field.name}' as {field.dataType.simpleString()}, but the "
                f"source gives {_TYPES[name].simpleString()}. Cast the column in the query."
            )


def _same_type(given: DataType, own: DataType) -> bool:
    """Equal but for what may be null."""
    return given.simpleString() == own.simpleString()


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader of a batch query. Raises OptionError."""
    from .batch_reader import BatchReader, PushdownReader

    check_schema(schema)
    parsed = parse_options(options, streaming=False)
    _log_unused(options)
    for name in ignored_in_batch(options):
        logger.warning("%s option ignored in batch queries", name)
    kind = PushdownReader if parsed.filter_pushdown else BatchReader
    return kind(parsed, schema)


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader of a streaming query. Raises OptionError."""
    from .stream_reader import StreamReader

    check_schema(schema)
    parsed = parse_options(options, streaming=True)
    _log_unused(options)
    return StreamReader(parsed, schema)


def _log_unused(options: Mapping[str, str]) -> None:
    for warning in check_source_names(options):
        warn_once(repr(sorted(options.items())), warning)
    unused = unused_names(options)
    if unused:
        logger.info("These configurations were supplied but are not used: %s", ", ".join(unused))
