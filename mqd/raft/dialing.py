"""In which introduction version each node is called, and which releases run. Pure.

A node of the previous release speaks version 2 only, and closes a connection at a hello of version
3. So a call begins with version 3. When that is closed before the challenge, the next call uses
version 2, where it is allowed (versions.py); when that fails too, the next one uses version 3
again: one version a call, at the pace of the calls.
"""

from __future__ import annotations

from uuid import UUID


class Dialing:
    """Of every other node."""

    def __init__(self) -> None:
        self._use_2: set[int] = set()
        self._met: dict[int, tuple[UUID, bool]] = {}
        """The newest known incarnation of each node, and whether it has used version 3."""

    def uses_2(self, peer: int) -> bool:
        """Whether the next call should use version 2."""
        return peer in self._use_2

    def use_2(self, peer: int) -> None:
        self._use_2.add(peer)

    def use_3(self, peer: int) -> None:
        self._use_2.discard(peer)

    def met(self, peer: int, incarnation: UUID, *, in_version_3: bool) -> bool:
        """A process of `peer` has introduced itself, or was called. True the first time that one of
        the previous release did.

        A process that used version 3 once is of this release, also where a later call ended early.
        """
        known, spoke_3 = self._met.get(peer, (None, False))
        self._met[peer] = (incarnation, in_version_3 or (known == incarnation and spoke_3))
        return known != incarnation and not in_version_3

    def speaks_3(self, peer: int) -> bool:
        return peer in self._met and self._met[peer][1]
