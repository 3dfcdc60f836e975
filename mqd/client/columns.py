"""Record batches as Arrow columns, in both directions: the face of `columns_*.py`. Pure.

`decode` turns the batches of a fetch response into Arrow batches, `encode` turns Arrow columns into
record batches for a produce request. No record becomes a Python object. The packages numpy and
pyarrow are an extra: importing this file without them raises ImportError. So nothing that works
without them imports it at module level.

    columns_schema.py    names and types of the columns
    columns_decode.py    record batches to columns        columns_starts.py  where records begin
    columns_headers.py   the column `headers`             columns_varints.py varints by columns
    columns_encode.py    columns to record batches        columns_hash.py    murmur2 by columns
"""

from __future__ import annotations

try:
    import numpy  # noqa: F401
    import pyarrow  # noqa: F401
except ImportError as error:
    raise ImportError(
        "Arrow columns need numpy and pyarrow. Install them: pip install 'mqd[arrow]'"
    ) from error

from mqd.client.columns_decode import decode
from mqd.client.columns_encode import EncodedBatch, encode
from mqd.client.columns_hash import partition_for_keys
from mqd.client.columns_schema import COLUMNS, Aborted, schema

__all__ = ["COLUMNS", "Aborted", "EncodedBatch", "decode", "encode", "partition_for_keys", "schema"]
