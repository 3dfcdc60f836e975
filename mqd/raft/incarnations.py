"""Which process is accepted as which node: one at a time, the first one that connects. Pure.

An incarnation is one run of a node's process; a UUID identifies it in every handshake. Messages of
two incarnations of one voter must never be mixed. The later one may have lost entries that the
earlier one acknowledged, and two at the same time would vote twice.

- The current incarnation stays while it has an open connection that has received bytes recently.
  Another process with its id is refused, because two processes run under one id. A process that has
  died is replaced immediately, because its system closes its connections. After a power cut the
  connections stay open, but receive no bytes.
- Otherwise any incarnation may follow, also an earlier one. So a process that a second process or
  an impostor replaced for a moment is accepted again. But its handshake must have begun after the
  current incarnation was accepted, which proves that the process ran then. Late messages of a dead
  process, whose node may have restarted with an empty log, are not accepted.
- With each change the owner drops all unprocessed messages of the node, and discards its
  acknowledgements, which the new process must repeat.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

__all__ = ["Caller", "IncarnationRefused", "Incarnations"]

logger = logging.getLogger(__name__)


class Caller(Protocol):
    """An inbound connection of the peer listener."""

    @property
    def peer(self) -> str:
        """Its address and port."""
        ...

    @property
    def received_at(self) -> float:
        """Monotonic time of the last received bytes; -inf once nothing more can be received."""
        ...

    def finish(self) -> None:
        """Stop receiving, and close the connection."""
        ...


class IncarnationRefused(Exception):
    """Another incarnation of the node is current. The text is for the operators of both."""


@dataclass(slots=True)
class _Incarnation:
    id: UUID
    began_at: float
    callers: list[Caller]


class Incarnations:
    """The current incarnation of each other node."""

    def __init__(self, *, silence: float) -> None:
        """`silence`: seconds without a received byte after which another incarnation may replace
        the current one.
        """
        self._silence = silence
        self._current: dict[int, _Incarnation] = {}

    def current(self, node_id: int) -> UUID | None:
        """The accepted incarnation, which may no longer have an open connection."""
        known = self._current.get(node_id)
        return known.id if known is not None else None

    def admit(
        self, now: float, node_id: int, incarnation: UUID, caller: Caller, *, called_at: float
    ) -> bool:
        """Accept `caller`, which has proven its incarnation. True when this one becomes current.

        `called_at`: when its handshake began. Raises IncarnationRefused.
        """
        current = self._current.get(node_id)
        if current is not None and current.id == incarnation:
            is_open = (known for known in current.callers if known.received_at > -math.inf)
            current.callers = [*is_open, caller]
            return False
        if current is not None:
            self._check_over(now, node_id, current, called_at)
            for known in current.callers:
                if (
                    known.received_at > -math.inf
                ):  # late bytes of that connection are not from this incarnation
                    known.finish()
        self._current[node_id] = _Incarnation(incarnation, now, [caller])
        return True

    def _check_over(
        self, now: float, node_id: int, current: _Incarnation, called_at: float
    ) -> None:
        latest = max(current.callers, key=lambda caller: caller.received_at)
        address = latest.peer.rpartition(":")[0]
        if now - latest.received_at <= self._silence:
            raise IncarnationRefused(
                f"another process at {address} runs under this id and is connected: two nodes run"
                f" under id {node_id}; stop the wrong one, or give it its own id"
            )
        if called_at <= current.began_at:
            raise IncarnationRefused(
                f"another process at {address} has completed a handshake under this id meanwhile;"
                f" do two nodes run under id {node_id}?"
            )
        if latest.received_at > -math.inf:
            logger.warning(
                "a node has a new process, the previous one is connected but silent node=%d"
                " previous_address=%s reason='it lost power or the network, or two nodes use the"
                " same id'",
                node_id,
                address,
            )
