"""The parts of every attack: a name, the bytes that it sends, and what each of its connections does
in one round, repeatedly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from tests.hostile.wire import Opening, Wire

KNOWN_TOPIC = "known"
PIPELINED = 50


class Attack(ABC):
    """One kind of attack. `known`: partitions of the topic `KNOWN_TOPIC`, which exists."""

    name: ClassVar[str]
    on_peer_port: ClassVar[bool] = False
    opening: ClassVar[Opening] = Opening.LOGIN
    """How far its connections are open before the first round."""
    tested_partitions: ClassVar[int] = 50
    """Partitions of that topic in test_attacks.py; with fewer partitions the node is ready
    sooner.
    """
    begins_within_seconds: ClassVar[float] = 0.0
    """The time until the attack has an effect. test_attacks.py does not measure before."""
    good_bytes: ClassVar[int] = 1000
    """Size of the records that the good client sends during the attack."""

    def __init__(self, known: int) -> None:
        self.known = known
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Build the bytes that every round sends."""

    @abstractmethod
    def round(self, wire: Wire) -> None:
        """Send one round and read its responses."""
