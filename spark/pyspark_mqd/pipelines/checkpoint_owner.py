"""Which pipeline a checkpoint belongs to: a small file beside Spark's own.

Spark resumes any query from any checkpoint. Another pipeline would skip records, or fail later with
an error about markers.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

from pyspark_mqd.pipelines.cli import Failure

NAME = "mqd-pipeline.json"


def claim(checkpoint: str, pipeline: str) -> None:
    """Write the pipeline's name into a checkpoint without one. Raises Failure for another name.

    Does nothing for a checkpoint that is not on a file system.
    """
    parts = urlsplit(checkpoint)
    if parts.scheme not in ("", "file"):
        return
    path = Path(parts.path if parts.scheme else checkpoint) / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            json.dump({"pipeline": pipeline}, file)
    except FileExistsError:
        owner = _owner(path)
        if owner not in (None, pipeline):
            raise Failure(
                f"Checkpoint '{checkpoint}' is of pipeline '{owner}', not of '{pipeline}'.",
                remedy="Use a checkpoint of its own for each pipeline: --checkpoint DIR.",
            ) from None


def _owner(path: Path) -> str | None:
    """The name in the file; None where a crash has left it incomplete."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["pipeline"])
    except (ValueError, TypeError, KeyError):
        return None
