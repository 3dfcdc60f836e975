"""The sink as Spark sees it: the writer for the options, the columns and the delivery guarantee.

Called in a Python worker of the driver: for each batch write, and for each micro-batch. So a
refusal here ends a query before its first row is written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .option_names import check_sink_names
from .sink_options import (
    Columns,
    Guarantee,
    SinkOptions,
    columns_of,
    parse_sink_options,
    refuse_batch_exactly_once,
    refuse_overwrite,
)
from .warnings_once import warn_once

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType

logger = logging.getLogger("pyspark_mqd")


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of a batch write. Raises OptionError."""
    if overwrite:
        raise refuse_overwrite()
    parsed, columns = _parsed(options, schema)
    if parsed.guarantee is Guarantee.EXACTLY_ONCE:
        raise refuse_batch_exactly_once()
    if parsed.guarantee is Guarantee.ATOMIC_BATCH:
        from .atomic_batch import AtomicWriter
        from .two_phase import require_two_phase

        require_two_phase(parsed.connection)
        return AtomicWriter(parsed, columns)
    from .at_least_once import Writer

    return Writer(parsed, columns)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of one micro-batch. Mode complete appends, as in Spark. Raises OptionError."""
    parsed, columns = _parsed(options, schema)
    if parsed.guarantee is Guarantee.EXACTLY_ONCE:
        from .exactly_once import ExactlyOnceWriter

        return ExactlyOnceWriter(parsed, columns)
    if parsed.guarantee is Guarantee.ATOMIC_BATCH:
        from .atomic_batch import AtomicStreamWriter
        from .two_phase import require_two_phase

        require_two_phase(parsed.connection)
        return AtomicStreamWriter(parsed, columns)
    from .at_least_once import StreamWriter

    return StreamWriter(parsed, columns)


def _parsed(options: Mapping[str, str], schema: StructType) -> tuple[SinkOptions, Columns]:
    parsed = parse_sink_options(options)
    for warning in check_sink_names(options):
        warn_once(repr(sorted(options.items())), warning)
    if parsed.without_effect:
        logger.info("Options without an effect in the sink: %s.", ", ".join(parsed.without_effect))
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    return parsed, columns_of(fields, parsed)
