"""A user's SCRAM credential as the metadata stores it (RFC 5802, KIP-554). A core.

It has no password: `stored_key` and `server_key` verify a proof and respond to it, but cannot log
in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class ScramMechanism(IntEnum):
    """Kafka's numbers."""

    UNKNOWN = 0
    SHA_256 = 1
    SHA_512 = 2


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """`repr` shows no secret."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
