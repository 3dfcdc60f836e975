"""The exception of probes."""

from __future__ import annotations


class Violation(AssertionError):
    """An invariant is violated. The text begins with its number in docs/INVARIANTS.md, if it has
    one.
    """
