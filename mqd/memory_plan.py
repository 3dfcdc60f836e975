"""How the memory of the machine is divided: one share for each kind of state. Pure.

Connections, the six kinds of state and topics in memory have eleven sixteenths of the memory
together, unless options say otherwise. The metadata of the cluster is counted too, but its bound
has no share: it must be the same on all nodes. Batches that the broker decompresses have a fixed
bound (server/batch_work.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from mqd.limits import INSPECTED_BYTES_LARGEST, MIB

SHARE_BYTES_MIN: Final = 8 * MIB
"""No share is smaller by default. On a machine of 128 MiB, all shares fit into seven eighths."""
MEMBERS_BYTES_MAX: Final = 512 * MIB
"""The share of group members is no larger by default."""


class MemoryPlan(NamedTuple):
    """Bytes that each class may use."""

    machine: int
    """The memory of the machine, or of its control group."""
    connections: int
    groups: int
    members: int
    transactions: int
    share_states: int
    """At share coordinators."""
    share_partitions: int
    """At the leaders of their partitions."""
    producers: int
    topics: int
    metadata: int
    batches: int = 2 * INSPECTED_BYTES_LARGEST

    @classmethod
    def of(cls, options: Mapping[str, object], machine: int) -> MemoryPlan:
        def share(option: str, part: int) -> int:
            chosen = options[option]
            return chosen if isinstance(chosen, int) else max(machine // part, SHARE_BYTES_MIN)

        members = share("group.members.memory.bytes", 16)
        if options["group.members.memory.bytes"] is None:
            members = min(members, MEMBERS_BYTES_MAX)
        metadata = options["metadata.image.max.bytes"]
        assert isinstance(metadata, int)
        return cls(
            machine,
            connections=share("memory.budget.bytes", 4),
            groups=share("group.coordinator.memory.bytes", 8),
            members=members,
            transactions=share("transaction.coordinator.memory.bytes", 16),
            share_states=share("share.coordinator.memory.bytes", 32),
            share_partitions=share("group.share.partition.memory.bytes", 32),
            producers=share("producer.state.memory.bytes", 16),
            topics=share("memory.topics.max.bytes", 16),
            metadata=metadata,
        )

    @property
    def total(self) -> int:
        return sum(self[1:])

    @property
    def is_too_large(self) -> bool:
        return self.total > self.machine

    def __str__(self) -> str:
        """For the log, in MiB."""
        classes = {"total": self.total, **self._asdict()}
        return " ".join(f"{name}={size // MIB}" for name, size in classes.items())
