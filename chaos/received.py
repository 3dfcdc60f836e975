"""Records as a consumer got them, and how they differ from those that were sent. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_SHOWN = 5
"""Records of each kind that are named."""


class Received(NamedTuple):
    """One record as a consumer got it."""

    offset: int
    number: int


def misplaced(received: Sequence[Received], wanted: Sequence[int]) -> str:
    """The first misplaced records. Such a record is in the log twice, or the consumer got it twice
    from one offset, never, or after a later one. Or it was never sent to this partition.
    """
    offsets: dict[int, list[int]] = {}
    for each in received:
        offsets.setdefault(each.number, []).append(each.offset)
    sent = set(wanted)
    kinds = {
        "appended twice": [one for one, places in offsets.items() if len(set(places)) > 1],
        "read twice": [one for one, places in offsets.items() if len(places) > len(set(places))],
        "missing": [one for one in wanted if one not in offsets],
        "unknown": [one for one in offsets if one not in sent],
        "late": [after.number for before, after in pairwise(received) if after < before],
    }
    return ", ".join(f"{kind} {numbers[:_SHOWN]}" for kind, numbers in kinds.items())
