"""How the records that a consumer got differ from those that were sent. Pure."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

_SHOWN = 5
"""Records of each kind that are named."""


def differences(numbers: list[int], wanted: list[int]) -> str:
    """The first records that arrived twice, never, or after a later one."""
    counts = Counter(numbers)
    twice = [number for number, count in counts.items() if count > 1]
    missing = [number for number in wanted if number not in counts]
    late = [after for before, after in pairwise(numbers) if after < before]
    return f"twice {twice[:_SHOWN]}, missing {missing[:_SHOWN]}, late {late[:_SHOWN]}"
