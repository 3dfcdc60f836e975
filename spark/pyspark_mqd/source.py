"""The source as Spark sees it: its readers for batch queries and streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .connection import logger, unused_names
from .option_names import check_source_names
from .options import ignored_in_batch, parse_options
from .source_schema import check_schema
from .warnings_once import warn_once

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


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
