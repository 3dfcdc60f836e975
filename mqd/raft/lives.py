"""Which process is heard as which node: one at a time, whoever was there first. Pure.

A life is one run of a node's process; its incarnation names it in every introduction. What two lives of one voter say must never be
mixed: the later one may have forgotten what the earlier one acknowledged, and two at once vote twice.

- The life that is heard stays while it has an open connection on which something came lately. Who else introduces himself under its
  id is refused, in words: two processes run under one id. A process that has died is out of the way at once, since its system closes
  its connections; after a power cut nothing closes them, but nothing comes either.
- Any other life may follow, an earlier one too: who was displaced for a moment, by a second process or a liar, is let in again. But
  only by an introduction that began after the present life did. It proves that its sender lived then; what a dead process left on
  the wire, behind which its node may have started anew and empty, is not heard again.
- With each change everything that was heard of the node and not handled yet is dropped, and what it acknowledged is asked for anew:
  the owner's part.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

__all__ = ["Caller", "Lives", "NotHeard"]

logger = logging.getLogger(__name__)


class Caller(Protocol):
    """An inbound connection of the peer listener."""

    @property
    def peer(self) -> str:
        """Its address and port."""
        ...

    @property
    def heard_at(self) -> float:
        """Monotonic seconds: when something last came; -inf once nothing more can come."""
        ...

    def finish(self) -> None:
        """Hear no more of it, and close it."""
        ...


class NotHeard(Exception):
    """Another life of the node is heard: in words, for the operators of both."""


@dataclass(slots=True)
class _Life:
    incarnation: UUID
    began_at: float
    callers: list[Caller]


class Lives:
    """Of each other node, the life that is heard."""

    def __init__(self, *, silence: float) -> None:
        """`silence`: seconds after which a life that says nothing gives way to another."""
        self._silence = silence
        self._lives: dict[int, _Life] = {}

    def heard(self, node_id: int) -> UUID | None:
        """The incarnation of the present life, of which there may be no connection any more."""
        life = self._lives.get(node_id)
        return life.incarnation if life is not None else None

    def admit(self, now: float, node_id: int, incarnation: UUID, caller: Caller, *, called_at: float) -> bool:
        """`caller` has proven that it is this life, in an introduction that began at `called_at`. True when a life begins thereby.

        Raises NotHeard: it is to be refused."""
        life = self._lives.get(node_id)
        if life is not None and life.incarnation == incarnation:
            life.callers = [*(known for known in life.callers if known.heard_at > -math.inf), caller]
            return False
        if life is not None:
            self._check_over(now, node_id, life, called_at)
            for known in life.callers:
                if known.heard_at > -math.inf:  # what its system sends there once more is no word of this life: its registration, say
                    known.finish()
        self._lives[node_id] = _Life(incarnation, now, [caller])
        return True

    def _check_over(self, now: float, node_id: int, life: _Life, called_at: float) -> None:
        latest = max(life.callers, key=lambda caller: caller.heard_at)
        address = latest.peer.rpartition(":")[0]
        if now - latest.heard_at <= self._silence:
            raise NotHeard(
                f"another process at {address} runs under this id and is connected: two nodes run under id {node_id};"
                " stop the one that does not belong, or give it an id of its own"
            )
        if called_at <= life.began_at:
            raise NotHeard(f"another process at {address} introduced itself under this id meanwhile; do two nodes run under id {node_id}?")
        if latest.heard_at > -math.inf:
            logger.warning(
                "raft: node %d is heard from a new process; the one before, at %s, is connected still and silent: its machine lost"
                " power or the network, or two nodes run under one id",
                node_id,
                address,
            )
