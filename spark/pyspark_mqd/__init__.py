"""The Spark data source `mqd`: `spark.read.format("mqd")`, and `readStream`, `write`, `writeStream`.

PySpark imports every package whose name begins with `pyspark_`, without a guard. So this file needs
nothing but pyspark, and never raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["configure"]


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Set on `builder` what the connector needs and cannot set itself; returns `builder`.

    With Spark's default for `spark.sql.execution.arrow.maxBytesPerBatch`, sinks are 10 to 30 times
    slower: Spark measures the whole Arrow batch again for every row.
    """
    return builder.config("spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1))
