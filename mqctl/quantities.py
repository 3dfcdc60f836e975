"""Parses and formats sizes and durations. Pure."""

from __future__ import annotations

import re

_FACTORS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?(?:/s)?", re.IGNORECASE)
_STEP = 1024.0
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)")


def parse_bytes(text: str) -> int:
    """`1500000`, `1.5M` (1,500,000), `10MiB`, `10MB/s` as bytes.

    Raises ValueError that lists the valid forms.
    """
    found = _BYTES.fullmatch(text.strip())
    amount = int(float(found[1]) * _FACTORS[(found[2] or "").lower()]) if found is not None else 0
    if amount < 1:
        raise ValueError(f"invalid size {text!r}: expected 10000000, 10M (millions) or 10MiB")
    return amount


def format_bytes(amount: int | float | None) -> str | None:
    """`512 B`, `1.5 MiB`; None stays None."""
    if amount is None:
        return None
    size = float(amount)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < _STEP or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _STEP
    raise AssertionError("unreachable")


def parse_duration_ms(text: str) -> int:
    """`500ms`, `90s`, `15m`, `2h`, `7d` as milliseconds.

    Raises ValueError that lists the valid forms.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"invalid duration {text!r}: expected 90s, 15m, 2h or 7d")
    return int(found[1]) * _UNITS_MS[found[2]]


def format_duration(seconds: float) -> str:
    """`0.4s`, `42s`, `3m05s`, `2h03m`, `4d05h`."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"
