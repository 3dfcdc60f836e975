"""Whether a micro-batch is the one that its target expects. Pure.

A target remembers the last committed micro-batch of a query: its id, and its offset ranges or a
digest of them. Spark runs a micro-batch again with exactly its ranges. So the same id with other
ranges means an old copy of the checkpoint, and its records would be lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from pyspark_mqd.pipelines.cli import Failure

Ranges = Mapping[tuple[str, int], Sequence[tuple[int, int]]]
"""(topic, partition) -> offset ranges `[start, end)` in order, joined where they touch."""


def digest_of(ranges: Ranges) -> int:
    """The ranges as a number of 63 bits: what an app transaction of Delta can hold."""
    rows = [[*key, *map(list, ranges[key])] for key in sorted(ranges)]
    return int.from_bytes(hashlib.sha256(json.dumps(rows).encode()).digest()[:8]) >> 1


def ranges_app(query: str) -> str:
    """The name of the app transaction that holds the digest of a query's last micro-batch."""
    return f"{query}/ranges"


def check_turn(query: str, batch: int, last: int | None, target: str, remedy: str) -> bool:
    """Whether `batch` was committed before. Raises Failure where it does not follow `last`.

    `target` names the target in a message, such as "archive '/lake'".
    """
    before = -1 if last is None else last
    if batch == before:
        return True
    if batch == before + 1:
        return False
    found = "no micro-batch" if last is None else f"micro-batch {before} as the last one"
    raise Failure(
        f"The {target} has {found} of query '{query}', and the checkpoint resumes with"
        f" micro-batch {batch}. The checkpoint and the {target.partition(' ')[0]} do not belong"
        " together.",
        remedy=remedy,
    )


def refuse_other_ranges(query: str, batch: int, target: str, remedy: str) -> None:
    """Raises Failure: the committed micro-batch of this id has other offsets."""
    raise Failure(
        f"The {target} has micro-batch {batch} of query '{query}' with other offsets than the"
        " checkpoint plans for it: the checkpoint is an old copy. Nothing is written.",
        remedy=remedy,
    )
