"""The listener's end of an inbound connection, as handshakes see it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Calling:
    peer: str = "a:1"
    received_at: float = 0.0

    def close(self) -> None:
        self.received_at = -math.inf

    finish = close
