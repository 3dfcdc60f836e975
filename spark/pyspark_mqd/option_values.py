"""Values of options: booleans, numbers and times, as Spark reads them. Pure.

`own` has lower-case names; `name` is the option as the documentation writes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .errors import OptionError, shortened

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1

_UNITS_MS = {
    "us": 0.001,
    "ms": 1.0,
    "s": 1_000.0,
    "m": 60_000.0,
    "min": 60_000.0,
    "h": 3_600_000.0,
    "d": 86_400_000.0,
}


def boolean(own: Mapping[str, str], name: str, default: bool) -> bool:
    text = own.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(
            f"Option '{name}' must be 'true' or 'false', but it is '{shortened(text)}'."
        )
    return text.strip().lower() == "true"


def whole(text: str, most: int = LONG_MAX) -> int | None:
    """A whole number as Java writes it; None for all else and beyond `most`."""
    digits = text.strip()
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", digits, re.ASCII):
        return None
    value = int(digits)
    return value if -most <= value <= most else None


def number(text: str, name: str, most: int = LONG_MAX) -> int:
    value = whole(text, most)
    if value is None:
        raise OptionError(
            f"Option '{name}' must be a whole number up to {most}, but it is '{shortened(text)}'."
        )
    return value


def positive(own: Mapping[str, str], name: str, most: int = LONG_MAX) -> int | None:
    text = own.get(name.lower())
    if text is None:
        return None
    value = number(text, name, most)
    if value <= 0:
        raise OptionError(f"{name} must be positive, but it is '{text}'.")
    return value


def natural(own: Mapping[str, str], name: str, default: int) -> int:
    text = own.get(name.lower())
    if text is None:
        return default
    value = number(text, name)
    if value < 0:
        raise OptionError(f"Option '{name}' must not be negative, but it is '{text}'.")
    return value


def duration_s(own: Mapping[str, str], name: str, default: str) -> float:
    """A time as Spark writes it: `15m`, `500ms`; a number alone is milliseconds."""
    text = own.get(name.lower(), default)
    found = re.fullmatch(r"(-?[0-9]{1,18})\s*([a-z]*)", text.strip().lower(), re.ASCII)
    factor = _UNITS_MS.get(found.group(2) or "ms") if found else None
    if found is None or factor is None:
        raise OptionError(
            f"Option '{name}' is '{shortened(text)}', which is no time. "
            "Write a number and a unit (us, ms, s, m, h, d), for example '15m'."
        )
    return int(found.group(1)) * factor / 1000
