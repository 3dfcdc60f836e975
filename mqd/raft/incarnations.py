"""Which process is accepted as which node: one at a time, the first one that connects. Pure.

An incarnation is one run of a node's process; a UUID names it in every handshake. Messages of
two incarnations of one voter must never be mixed: the later one may have lost what the earlier
one acknowledged, and two at once vote twice.

- The current incarnation stays while it has an open connection that received something lately.
  Another process under its id is refused with a reason: two processes run under one id. A process
  that has died gives way at once, since its system closes its connections. After a power cut
  nothing closes them, but nothing is received either.
- Any other incarnation may follow, an earlier one too: a process that was displaced for a moment,
  by a second process or an impostor, is accepted again. But its handshake must have begun
  after the current incarnation did. That proves that the process ran then. Messages that a dead
  process left on the wire, behind which its node may have restarted empty, are not accepted.
- With each change the owner drops every received message of the node that is not handled yet, and
  requests again what the node acknowledged.
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
                f" under id {node_id}; stop the one that does not belong, or give it its own id"
            )
        if called_at <= current.began_at:
            raise IncarnationRefused(
                f"another process at {address} has completed a handshake under this id meanwhile;"
                f" do two nodes run under id {node_id}?"
            )
        if latest.received_at > -math.inf:
            logger.warning(
                "raft: node %d has a new process; the previous one, at %s, is still connected but"
                " silent: its machine lost power or the network, or two nodes use the same id",
                node_id,
                address,
            )
