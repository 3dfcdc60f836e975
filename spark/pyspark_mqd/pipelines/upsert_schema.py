"""The columns of change events and of the Delta table, as DDL and as types."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyspark_mqd.pipelines.cli import Failure
from pyspark_mqd.pipelines.upsert_events import CHANGE, KIND, OWN_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType

_TYPES = re.compile(r"`(?:[^`]|``)*`|\bVOID\b(?!:)|\bOBJECT<")
"""Types in the schema of a variant that DDL does not have; quoted names are skipped."""
_DDL = {"VOID": "STRING", "OBJECT<": "STRUCT<"}
"""A column that has only nulls so far becomes text."""


def infer_schema(frame: DataFrame) -> str | None:
    """The DDL of the rows in a micro-batch; None where it has none."""
    from pyspark.sql import functions as f

    row = f.coalesce(f.col("after"), f.col("before"))
    rows = frame.where(f.col(KIND) == CHANGE).select(f.try_parse_json(row).alias("row"))
    found = rows.where("row is not null").agg(f.schema_of_variant_agg("row")).head()
    text = None if found is None else found[0]
    if not text or not text.startswith("OBJECT<"):
        return None
    return _TYPES.sub(lambda found: _DDL.get(found[0], found[0]), text)


def merged_schema(known: str | None, found: str | None) -> str | None:
    """The columns that the table has with their types, then new ones of this micro-batch."""
    if known is None or found is None:
        return known or found
    have, new = columns_of(known), columns_of(found)
    names = {name.lower() for name in have.names}
    fields = [*have.fields, *(each for each in new.fields if each.name.lower() not in names)]
    return ddl_of(fields)


def check_keys(keys: tuple[str, ...], schema: str) -> None:
    """Raises Failure where a key is not a column."""
    names = columns_of(schema).names
    for key in keys:
        if key not in names:
            raise Failure(
                f"The change events have no column '{key}', which --key names.",
                remedy=f"Their columns are: {', '.join(names)}.",
            )


def check_schema(ddl: str) -> None:
    """Raises Failure where --schema has a reserved name."""
    for name in columns_of(ddl).names:
        if name.lower() in OWN_COLUMNS:
            raise Failure(
                f"The column '{name}' of --schema has a reserved name.",
                remedy="Leave the column out.",
            )


def columns_of(ddl: str) -> StructType:
    """DDL as columns."""
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


def pa_schema(table: Any) -> pa.Schema:
    """The schema of a Delta table."""
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


def columns_in(schema: pa.Schema) -> list[StructField]:
    """The columns of a table that events have given it."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField

    fields = [each for each in schema if each.name not in OWN_COLUMNS]
    return [StructField(each.name, from_arrow_type(each.type)) for each in fields]


def ddl_of(fields: Iterable[StructField]) -> str:
    """Columns as DDL."""
    from pyspark.sql.types import StructType

    return StructType([*fields]).toDDL()
