"""What the driver reads of a checkpoint that is on its own file system: Spark's files, read only.

A checkpoint elsewhere, for example in an object store, or a file that is damaged gives None.
"""

from __future__ import annotations

import json
import os
from pathlib import Path


def query_id_of(checkpoint: str | None) -> str | None:
    """The query's id, from the file `metadata`."""
    path = _path_of(checkpoint)
    if path is None:
        return None
    try:
        return str(json.loads((path / "metadata").read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def planned_ms_of(checkpoint: str | None, batch_id: int) -> int | None:
    """Wall time, in milliseconds since 1970, when Spark planned the batch: from its offset log.

    A batch that runs again has the same time. A batch that was planned again, because an older
    checkpoint was restored, has another one.
    """
    path = _path_of(checkpoint)
    if path is None:
        return None
    try:
        lines = (path / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()
        return int(json.loads(lines[1])["batchTimestampMs"])
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return None


def last_batch_of(checkpoint: str | None) -> int | None:
    """The batch that Spark has planned last: during a batch, this one."""
    path = _path_of(checkpoint)
    if path is None:
        return None
    try:
        names = os.listdir(path / "offsets")
    except OSError:
        return None
    return max((int(name) for name in names if name.isdecimal()), default=None)


def _path_of(checkpoint: str | None) -> Path | None:
    text = (checkpoint or "").removeprefix("file://").removeprefix("file:")
    return Path(text) if os.path.isabs(text) else None
