"""Checks that the transactions of two producers never overlap in a topic with
`mqd.producer.access=exclusive` or `wait` (I60). Pure.

A transaction is certainly open between the acknowledgement of its first record and the send of its
last record that was acknowledged. In a log, it reaches from its first record to its last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mqd.testing.checker import SHOWN_MAX, Anomaly
from mqd.types import TopicPartition

TWO_OWNERS = "transactions of two producers overlap in a topic with one producer at a time"


@dataclass(slots=True)
class Span:
    """One transaction. Times are virtual seconds."""

    topic: str
    owner: str
    """The transactional id."""
    name: str
    since: float | None = None
    """When its first record was acknowledged."""
    until: float = 0.0
    """When its last acknowledged record was sent."""

    def wrote(self, sent: float, now: float) -> None:
        """A record was sent at `sent`, and is acknowledged now."""
        if self.since is None:
            self.since = now
        self.until = sent


def check_owners(
    spans: Sequence[Span], logs: Mapping[TopicPartition, Sequence[tuple[int, bytes]]]
) -> list[Anomaly]:
    """`logs`: (offset, value) of all records, also of aborted transactions. A value begins with the
    name of its transaction, and a dot.
    """
    found: dict[TopicPartition, list[str]] = {}
    known = [one for one in spans if one.since is not None and one.since < one.until]
    for index, one in enumerate(known):
        for other in known[index + 1 :]:
            assert one.since is not None and other.since is not None
            overlap = max(one.since, other.since) < min(one.until, other.until)
            if one.topic == other.topic and one.owner != other.owner and overlap:
                text = (
                    f"{one.name} from {one.since:.3f} to {one.until:.3f}, {other.name} from "
                    f"{other.since:.3f} to {other.until:.3f}"
                )
                found.setdefault(TopicPartition(one.topic, 0), []).append(text)
    owners = {one.name.encode(): one.owner for one in spans}
    for partition, log in logs.items():
        reaches: dict[bytes, list[int]] = {}
        for offset, value in log:
            reaches.setdefault(value.rpartition(b".")[0], []).append(offset)
        rows = sorted((offsets[0], offsets[-1], name) for name, offsets in reaches.items())
        for (_, end, name), (begin, _, later) in pairwise(rows):
            if begin < end and owners.get(name) != owners.get(later):
                text = f"{later!r} begins at {begin}, {name!r} ends at {end}"
                found.setdefault(partition, []).append(text)
    return [
        Anomaly("two-owners", partition, len(rows), tuple(rows[:SHOWN_MAX]), TWO_OWNERS)
        for partition, rows in sorted(found.items())
    ]
