"""Chooses the handshake version for each node, and records which releases run. Pure.

A node of the previous release supports only version 2, and closes the connection at a hello of
version 3. So the first call uses version 3. If the connection is closed before the challenge, the
next call uses version 2, if it is allowed (versions.py). If that fails, too, the following call
uses version 3 again. Each call uses one version.
"""

from __future__ import annotations

from uuid import UUID


class HandshakeVersions:
    """The handshake version for each other node."""

    def __init__(self) -> None:
        self._use_v2: set[int] = set()
        self._newest: dict[int, tuple[UUID, bool]] = {}
        """The newest known incarnation of each node, and whether it has used version 3."""

    def uses_v2(self, peer: int) -> bool:
        """Whether the next call should use version 2."""
        return peer in self._use_v2

    def use_v2(self, peer: int) -> None:
        self._use_v2.add(peer)

    def use_v3(self, peer: int) -> None:
        self._use_v2.discard(peer)

    def on_handshake(self, peer: int, incarnation: UUID, *, in_v3: bool) -> bool:
        """A handshake with `peer` is complete, in either direction. Returns True for the first one
        with an incarnation of the previous release. A process that has used version 3 is of this
        release, even if a later handshake fails early.
        """
        known, used_v3 = self._newest.get(peer, (None, False))
        self._newest[peer] = (incarnation, in_v3 or (known == incarnation and used_v3))
        return known != incarnation and not in_v3

    def speaks_v3(self, peer: int) -> bool:
        return peer in self._newest and self._newest[peer][1]
