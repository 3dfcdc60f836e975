"""What probes raise."""

from __future__ import annotations


class Violation(AssertionError):
    """An invariant does not hold.

    The text begins with its number in docs/INVARIANTS.md where it has one.
    """
