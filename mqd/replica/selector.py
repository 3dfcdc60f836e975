"""Which replica a consumer should read from: one in its rack (KIP-392, Kafka's
RackAwareReplicaSelector). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mqd.types import NodeId, Offset

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The value of `replica.selector.class` that turns it on."""


class Candidate(NamedTuple):
    """A replica that holds what a consumer asks for: the leader, or another member of the ISR."""

    node_id: NodeId
    rack: str | None
    end_offset: Offset
    behind_seconds: float
    """Since it was caught up; 0 for the leader."""


def select(rack: str, leader: Candidate, others: Iterable[Candidate]) -> NodeId | None:
    """The node to read from instead of the leader; None where the leader is in the consumer's rack
    or nobody else is.

    Of several the one that is furthest, then least long behind, then with the lowest id.
    """
    if not rack or leader.rack == rack:
        return None
    near = [candidate for candidate in others if candidate.rack == rack]
    if not near:
        return None
    return min(near, key=lambda one: (-one.end_offset, one.behind_seconds, one.node_id)).node_id
