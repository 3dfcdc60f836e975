"""What every attack has: a name, the bytes that it sends, and what each of its connections
does in one round, again and again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from tests.hostile.wire import Wire

KNOWN_TOPIC = "known"
PIPELINED = 50


class Attack(ABC):
    """One kind of attack. `known`: partitions of the topic `KNOWN_TOPIC`, which exists."""

    name: ClassVar[str]
    on_peer_port: ClassVar[bool] = False
    tested_partitions: ClassVar[int] = 50
    """Of that topic in test_attacks.py; the fewer, the sooner the node is ready."""
    good_bytes: ClassVar[int] = 1000
    """Size of the records that the good client sends beside it."""

    def __init__(self, known: int) -> None:
        self.known = known
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Make the bytes that every round sends."""

    @abstractmethod
    def round(self, wire: Wire) -> None:
        """Send one round and read its answers."""
