"""The columns of a Kafka record in Arrow: their names, their types, and the aborted transactions of
a fetch response.

Names and types are those of Spark's own Kafka source. `headers` is null for a record without
headers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from mqd.client.arguments import check_names
from mqd.client.errors import invalid_value

COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE: Final = pa.list_(HEADER_TYPE)
TIMESTAMP_TYPE: Final = pa.timestamp("us", "UTC")
_TYPES: Final = (
    pa.binary(),
    pa.binary(),
    pa.string(),
    pa.int32(),
    pa.int64(),
    TIMESTAMP_TYPE,
    pa.int32(),
    HEADERS_TYPE,
)
_FIELDS: Final = {name: pa.field(name, kind) for name, kind in zip(COLUMNS, _TYPES, strict=True)}


class Aborted(NamedTuple):
    """One aborted transaction of a fetch response: its records begin at `first_offset`, and its
    marker ends them.
    """

    producer_id: int
    first_offset: int


def schema(columns: Sequence[str] = COLUMNS[:7]) -> pa.Schema:
    """The Arrow schema of `columns`, in the order given."""
    names = check_names("columns", columns, "value")
    unknown = [name for name in names if name not in _FIELDS]
    if unknown:
        raise invalid_value(f"unknown column '{unknown[0]}'", f"choose among {', '.join(COLUMNS)}")
    if len(set(names)) != len(names):
        raise invalid_value(f"a column appears twice in {', '.join(names)}", "name each once")
    return pa.schema([_FIELDS[name] for name in names])
