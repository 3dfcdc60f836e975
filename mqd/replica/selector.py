"""Selects the replica that a consumer should read from: one in its rack (KIP-392, Kafka's
RackAwareReplicaSelector). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mqd.types import NodeId, Offset

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The value of `replica.selector.class` that enables it."""


class ReplicaView(NamedTuple):
    """A replica with the offset that a consumer fetches: the leader or another member of the ISR
    (Kafka's class of that name).
    """

    node_id: NodeId
    rack: str | None
    end_offset: Offset
    seconds_since_caught_up: float
    """0 for the leader."""


def select(rack: str, leader: ReplicaView, others: Iterable[ReplicaView]) -> NodeId | None:
    """The node to read from instead of the leader. None if the leader is in the consumer's rack, or
    if no replica is.

    Of several: the one with the highest log end, then the one that was caught up last, then the one
    with the lowest id.
    """
    if not rack or leader.rack == rack:
        return None
    near = [replica for replica in others if replica.rack == rack]
    if not near:
        return None
    return min(
        near, key=lambda one: (-one.end_offset, one.seconds_since_caught_up, one.node_id)
    ).node_id
