"""The ports of a ReplicaService and the ISR conditions of a Partition, replaceable by a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from mqd.replica.partition import Partition
from mqd.replica.ports import ReplicaPorts
from mqd.types import NodeId


class Ports:
    """Each attribute is one port: a test sets those that it needs."""

    def __init__(self) -> None:
        defaults = ReplicaPorts()
        self.alter_partitions: Any = defaults.alter_partitions
        self.eligible_epoch: Any = defaults.eligible_epoch
        self.contact_until: Any = defaults.contact_until
        self.follow: Any = defaults.follow
        self.unfollow: Any = defaults.unfollow
        self.on_offline: Any = defaults.on_offline
        self.on_role_changed: Any = defaults.on_role_changed

    def value(self) -> ReplicaPorts:
        return ReplicaPorts(
            **{field.name: self._late(field.name) for field in fields(ReplicaPorts)}
        )

    def _late(self, name: str) -> Any:
        return lambda *args: getattr(self, name)(*args)


def set_eligible(partition: Partition, epoch_of: Callable[[NodeId], int | None]) -> None:
    """From now on, these brokers may join the ISR of the partition."""
    membership = partition.membership
    membership.conditions = replace(membership.conditions, eligible_epoch=epoch_of)
