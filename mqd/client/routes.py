"""The partitions for records of one topic, by one view of the cluster. Pure."""

from __future__ import annotations

from numbers import Integral

from mqd.client.arguments import shown
from mqd.client.errors import invalid_type, invalid_value
from mqd.client.metadata import ClusterView, TopicInfo
from mqd.client.partitioner import Partitioner, StickyPartitioner, partition_for_key

_KEYS_KNOWN = 10_000
_KEY_BYTES_KNOWN = 64
"""A topic remembers the partitions of so many keys up to this size: murmur2 of 16 bytes takes
1.5 us."""


class Route:
    """The partitions of a topic, and the choice among them."""

    __slots__ = (
        "_available",
        "_known",
        "_partitioner",
        "_partitions",
        "_topic",
        "is_led",
        "sticky",
        "view",
    )

    def __init__(
        self,
        view: ClusterView,
        info: TopicInfo,
        sticky: StickyPartitioner,
        partitioner: Partitioner | None,
    ) -> None:
        self.view = view
        self.sticky = sticky
        led = [each.partition for each in info.partitions if each.leader in view.brokers]
        self.is_led = bool(led)
        self._topic = info.name
        self._partitions = range(len(info.partitions))
        self._available = led or list(self._partitions)
        self._known: dict[bytes, int] = {}
        """Key -> partition."""
        self._partitioner = partitioner

    def choose(self, key: bytes | None, size: int) -> int:
        """The partition of a record without a given one; `size` is in bytes.

        Raises the exceptions of the user's partitioner, and ValueError or TypeError for a wrong
        return value.
        """
        if self._partitioner is not None:
            return self._call_partitioner(self._partitioner, key)
        if key is None:
            return self.sticky.partition(size, self._available)
        known = self._known.get(key)
        if known is None:
            known = partition_for_key(key, len(self._partitions))
            if len(key) <= _KEY_BYTES_KNOWN:
                if len(self._known) >= _KEYS_KNOWN:
                    self._known.clear()
                self._known[key] = known
        return known

    def _call_partitioner(self, partitioner: Partitioner, key: bytes | None) -> int:
        chosen: object = partitioner(self._topic, key, self._partitions, tuple(self._available))
        message = f"the partitioner returned {shown(chosen)} for topic {self._topic!r}"
        remedy = f"return a partition from 0 to {len(self._partitions) - 1}"
        if isinstance(chosen, bool) or not isinstance(chosen, Integral):
            raise invalid_type(message, remedy)
        if int(chosen) not in self._partitions:
            raise invalid_value(message, remedy)
        return int(chosen)
