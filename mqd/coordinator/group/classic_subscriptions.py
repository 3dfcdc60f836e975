"""The topics to which members of a classic group subscribe, from the bytes of their JoinGroups.

The bytes are read when they are needed, and nothing that was read is kept. A subscription of 600 KB
has 100,000 names, which take 10 MB when they are decoded. A group that takes more steps than
`SUBSCRIPTIONS_STEPS_MAX` counts as subscribed to every topic. So does a group whose bytes have
another meaning. Apache Kafka reads them all in each generation, and keeps the names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from mqd.coordinator.group.state import Subscribed
from mqd.errors import ProtocolError
from mqd.limits import SUBSCRIPTIONS_STEPS_MAX, TOPIC_NAME_CHARS_MAX
from mqd.protocol.consumer_protocol import TOPICS_AT, read_topics

_MEMBER_STEPS: Final = 3
_BYTES_A_STEP: Final = 2048
"""Bytes to compare with those of another member."""
_COMPARED_MAX: Final = 4
"""Different lists of topics with which a member's list is compared."""


class ClassicSubscriptions:
    """The subscriptions of the members of one generation."""

    def __init__(self, metadata: Iterable[bytes]) -> None:
        self._metadata = list(metadata)
        self.bytes = sum(map(len, self._metadata))

    def subscribed(self, topics: Collection[str]) -> Subscribed:
        """The names of `topics` that a member subscribes to."""
        wanted = {topic.encode(): topic for topic in topics}
        found: set[bytes] = set()
        lists: list[bytes] = []
        """The first different lists: most members of a group have the same one."""
        steps = 0
        try:
            for data in self._metadata:
                compared = len(lists) * (len(data) // _BYTES_A_STEP)
                steps += _MEMBER_STEPS + compared
                if steps > SUBSCRIPTIONS_STEPS_MAX:
                    return Subscribed(topics, SUBSCRIPTIONS_STEPS_MAX)
                if any(data.startswith(known, TOPICS_AT) for known in lists):
                    continue
                names, end = read_topics(
                    data, names_max=SUBSCRIPTIONS_STEPS_MAX - steps, size_max=TOPIC_NAME_CHARS_MAX
                )
                steps += len(names)
                found.update(wanted.keys() & names)
                if len(lists) < _COMPARED_MAX:
                    lists.append(data[TOPICS_AT:end])
        except ProtocolError:  # a client with another meaning of protocol type "consumer"
            return Subscribed(topics, max(1, steps))
        return Subscribed([wanted[name] for name in found], steps)
