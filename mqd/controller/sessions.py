"""The sessions of brokers: which of them the controller has received no heartbeat from.

Sessions are soft state: only the memory of the controller has them, and a new controller starts
them all again. Times are monotonic seconds.
"""

from __future__ import annotations

import math

from mqd.controller.image import MetadataImage
from mqd.types import NodeId

_AUTHORITY_SECONDS_MAX = 1.0


class Sessions:
    """The time of each broker's last heartbeat.

    The previous controller may respond to heartbeats for `authority` seconds after this one was
    elected (session_watch.py). A broker serves clients for a session after such a response. So the
    first sessions of a new controller are that much longer (I26).
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.authority = min(_AUTHORITY_SECONDS_MAX, timeout / 4)
        self._last_heartbeat: dict[NodeId, float] = {}
        self._not_before = -math.inf
        """Earlier heartbeats count as if they came at this time."""

    def take_over(self, image: MetadataImage, now: float) -> None:
        """This node has become the controller."""
        self._not_before = now + self.authority
        self.restart(image, now)

    def restart(self, image: MetadataImage, now: float) -> None:
        """Start all sessions again, because this process itself was not running."""
        self._last_heartbeat = {
            broker.node_id: max(now, self._not_before) for broker in image.alive_brokers()
        }

    def touch(self, node_id: NodeId, now: float) -> None:
        """The broker has sent a heartbeat."""
        self._last_heartbeat[node_id] = max(now, self._not_before)

    def expire(self, node_id: NodeId) -> None:
        """There is evidence that a broker's process ended."""
        if node_id in self._last_heartbeat:
            self._last_heartbeat[node_id] = -math.inf

    def next_expiry(self, image: MetadataImage, now: float) -> float:
        """When the next session ends without further heartbeats; `now` + a session if there is
        none.
        """
        return (
            min(
                (self._last_heartbeat.get(broker.node_id, now) for broker in image.alive_brokers()),
                default=now,
            )
            + self.timeout
        )

    def silent(self, image: MetadataImage, now: float) -> tuple[tuple[NodeId, int], ...]:
        """Unfenced brokers without a heartbeat for a session, by id and epoch."""
        return tuple(
            (broker.node_id, broker.epoch)
            for broker in image.alive_brokers()
            if now - self._last_heartbeat.setdefault(broker.node_id, max(now, self._not_before))
            >= self.timeout
        )
