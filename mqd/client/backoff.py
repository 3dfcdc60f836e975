"""How long to wait before the next attempt: doubling from 20 ms to 1 s, each with 20 % of
jitter either way. Pure.
"""

from __future__ import annotations

BACKOFF_FIRST_S = 0.02
BACKOFF_MAX_S = 1.0
_DOUBLINGS_MAX = 16


def backoff_s(attempts: int, draw: float) -> float:
    """Seconds to wait after `attempts` failures in a row, from 0; `draw` is chance in [0, 1)."""
    assert attempts >= 0 and 0 <= draw < 1
    return min(BACKOFF_FIRST_S * float(2 ** min(attempts, _DOUBLINGS_MAX)), BACKOFF_MAX_S) * (
        0.8 + 0.4 * draw
    )
