"""What the relay needs of other parts of the node: pure declarations."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple, Protocol

from mqd.errors import MqError
from mqd.types import NodeId, Offset, TopicPartition


class Calls(Protocol):
    """Requests to the nodes of this cluster, this one included."""

    def transaction_coordinator(self, transactional_id: str) -> NodeId | None:
        """None while there is none, or it is unknown. The topic of its state is created soon."""
        ...

    def group_coordinator(self, group_id: str) -> NodeId | None:
        """The same for a group."""
        ...

    def leader_of(self, topic_partition: TopicPartition) -> NodeId | None:
        """None while there is none."""
        ...

    def problem_of(self, topic: str) -> MqError | None:
        """Why a partition of this topic takes no records now, as far as the metadata shows."""
        ...

    def request(
        self, node_id: NodeId, owner: str, api: str, version: int, body: Mapping[str, Any]
    ) -> Awaitable[Mapping[str, Any]]:
        """The response. Requests of one `owner` may wait for each other. Raises OSError if the node
        cannot be reached."""
        ...


class CommittedProgress(NamedTuple):
    """The progress of an owner in one partition, as a committed offset holds it."""

    offset: Offset
    metadata: str = ""
    """At most `offset.metadata.max.bytes` of the cluster: 4,096 by default."""
