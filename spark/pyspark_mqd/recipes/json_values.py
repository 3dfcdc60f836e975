"""Recipe: JSON values to Parquet, by Spark's own `from_json`.

    python -m pyspark_mqd.recipes.json_values --topics clicks --columns 'id bigint, at timestamp' \\
        --to lake/clicks --dlq clicks.dlq --checkpoint state/clicks --available-now

A value that is not JSON, or has a field of another type, goes to the dead letters. A field that is
missing is null, and one that no column has is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pyspark_mqd.pipelines.cli import Failure, Settings
from pyspark_mqd.recipes.running import (
    ERROR_CLASS,
    ERROR_MESSAGE,
    RECORD,
    Places,
    main,
    read,
    recipe_command,
    recipe_options,
    run,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MALFORMED = "MalformedJson"
_CORRUPT = "_mqd_malformed"


def plan(spark: SparkSession, places: Places, columns: str) -> DataFrame:
    """The topics with the decoded record, or with an error."""
    return decoded(read(spark, places), columns)


def decoded(frame: DataFrame, columns: str) -> DataFrame:
    """`frame` with the columns record, error_class and error_message."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    wanted = StructType.fromDDL(columns)
    if not isinstance(wanted, StructType):
        raise Failure(
            f"The columns '{columns}' are one type, not columns.",
            remedy="Name each with its type: --columns 'id bigint, at timestamp'.",
        )
    names = wanted.fieldNames()
    parsed = f.from_json(
        f.col("value").cast("string"),
        StructType([*wanted.fields]).add(_CORRUPT, StringType()),
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT},
    )
    frame = frame.withColumn("parsed", parsed)
    text = f.col(f"parsed.{_CORRUPT}")
    is_bad = f.col("value").isNotNull() & (f.col("parsed").isNull() | text.isNotNull())
    record = f.struct(*[f.col(f"parsed.{name}").alias(name) for name in names])
    message = f.lit(f"The value is not a JSON object with the columns {columns}")
    return (
        frame.withColumn(RECORD, f.when(~is_bad & f.col("value").isNotNull(), record))
        .withColumn(ERROR_CLASS, f.when(is_bad, f.lit(MALFORMED)))
        .withColumn(ERROR_MESSAGE, f.when(is_bad, message))
        .drop("parsed")
    )


@recipe_command
@recipe_options
@click.option(
    "--columns", metavar="DDL", required=True, help="Columns, such as 'id bigint, at timestamp'."
)
def command(settings: Settings, places: Places, columns: str) -> None:
    """Write JSON values of topics to Parquet files, and bad values to a topic of dead letters.

    \b
    Example: python -m pyspark_mqd.recipes.json_values --topics clicks \\
               --columns 'id bigint, at timestamp' --to lake/clicks --dlq clicks.dlq \\
               --checkpoint state/clicks --available-now
    """
    run(settings, places, "json", lambda spark: plan(spark, places, columns))


if __name__ == "__main__":
    main(command)
