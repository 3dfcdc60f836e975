"""The Spark data source `mqd`: `spark.read.format("mqd")`, `readStream`, `write`, `writeStream`.

PySpark imports every package whose name begins with `pyspark_`, without a guard. So this file needs
nothing but pyspark, and never raises: all else is imported inside of methods.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType
else:
    try:
        from pyspark.sql.datasource import DataSource
    except Exception:  # no pyspark, or one without Python data sources
        DataSource = None

__all__ = ["DefaultSource", "configure"]


REDACTED = r"(?i)secret|password|token|access[.]?key|sasl[.]jaas|keystore[.]key|key[.]pem"
"""Options whose values the plans of streaming queries hide: Spark's default, and private keys."""


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Set on `builder` what the connector needs and cannot set itself; returns `builder`.

    With Spark's default for `spark.sql.execution.arrow.maxBytesPerBatch`, sinks are 10 to 30 times
    slower: Spark measures the whole Arrow batch again for every row. Delivery guarantee
    `exactly-once` needs the same tasks when a micro-batch runs again, which adaptive execution does
    not promise.

    Plans of streaming queries show options. Values of those that have secrets are hidden.

    With a local master that is set before, workers run the Python of the driver (`PYSPARK_PYTHON`),
    unless another one is set. PySpark would take `python3` from PATH.
    """
    _share_python(builder)
    if "spark.redaction.regex" not in getattr(builder, "_options", {}):
        builder = builder.config("spark.redaction.regex", REDACTED)
    return builder.config("spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1)).config(
        "spark.sql.adaptive.streaming.stateless.enabled", "false"
    )


def _share_python(builder: SparkSession.Builder) -> None:
    given = getattr(builder, "_options", {})
    is_set = "spark.pyspark.python" in given or "PYSPARK_PYTHON" in os.environ
    if not is_set and str(given.get("spark.master", "")).startswith("local") and sys.executable:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


if TYPE_CHECKING or DataSource is not None:

    class DefaultSource(DataSource):
        """Format `mqd`, found by its class name. Methods run in Python workers."""

        @classmethod
        def name(cls) -> str:
            return "mqd"

        def schema(self) -> StructType:
            from .source_schema import schema_of

            return schema_of(self.options)

        def reader(self, schema: StructType) -> Any:
            from .source import batch_reader

            return batch_reader(self.options, schema)

        def streamReader(self, schema: StructType) -> Any:  # noqa: N802
            from .source import stream_reader

            return stream_reader(self.options, schema)

        def writer(self, schema: StructType, overwrite: bool) -> Any:
            from . import sink

            return sink.batch_writer(self.options, schema, overwrite)

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
            from . import sink

            return sink.stream_writer(self.options, schema, overwrite)
