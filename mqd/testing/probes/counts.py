"""Counts the events that the probes see."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """The counts of one run, for the totals."""

    looks: int = 0
    elections: int = 0
    leader_changes: int = 0
    batches: int = 0
    truncations: int = 0
    truncated_below_high_watermark: int = 0
    high_watermark_after_restart_lower: int = 0
    isr_changes: int = 0
