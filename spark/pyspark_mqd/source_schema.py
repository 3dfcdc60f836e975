"""The columns of the source and their types."""

from __future__ import annotations

from collections.abc import Mapping

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

from .errors import OptionError
from .options import COLUMNS, HEADERS, columns_of

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
