"""Numbers in headers of records (delay_names.py): decimal digits in ASCII, from 0 to INT64. Pure.

If a header occurs several times, the last one counts, as with `lastHeader` of Kafka's clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

INT64_MAX: Final = (1 << 63) - 1
_DIGITS_MAX: Final = 19


def number_of(content: bytes | None) -> int | None:
    """The number in the content of a header; None if it is something else."""
    if content is None or len(content) > _DIGITS_MAX or not content.isdigit():
        return None
    number = int(content)
    return number if number <= INT64_MAX else None


def last_number(headers: Sequence[tuple[str, bytes | None]], name: str) -> int | None:
    """The number in the last header with this name; None without such a header or number."""
    return number_of(
        next((content for header, content in reversed(headers) if header == name), None)
    )
