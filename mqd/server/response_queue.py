"""The order of the responses of one connection: it is that of the requests (I9)."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from mqd.server.send_queue import Part


class QueuedResponse(Protocol):
    """The place of a request in the queue. Code that sets `parts` calls
    `Connection.response_ready`.
    """

    parts: list[Part] | None
    """The response with its length and header. None until it is complete; empty if none is sent
    (acks=0).
    """


class ResponseQueue(deque[QueuedResponse]):
    """One place for each request without a sent response, in the order of the requests."""

    __slots__ = ()

    @property
    def is_ready(self) -> bool:
        """Whether the first response is complete."""
        return bool(self) and self[0].parts is not None

    def take_ready(self) -> tuple[list[Part], bool]:
        """Remove the complete responses at the front. Returns their parts, and whether file ranges
        may be among them.
        """
        ready: list[Part] = []
        may_have_ranges = False
        while self:
            parts = self[0].parts
            if parts is None:
                break
            self.popleft()
            ready += parts
            if len(parts) > 1:
                may_have_ranges = True
        return ready, may_have_ranges
