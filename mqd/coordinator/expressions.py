"""Regular expressions of clients. They are those of RE2, as in Apache Kafka's coordinator.

RE2 has no backreferences and no lookaround. The time of a match grows only with the length of the
name and the size of the compiled expression. RE2 bounds that size after it has read the whole
expression. So this file bounds what RE2 reads (I41).
"""

from __future__ import annotations

from typing import Any

import re2

from mqd.limits import EXPRESSION_CHARS_MAX, EXPRESSION_CLASSES_MAX, EXPRESSION_MEMORY

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = EXPRESSION_MEMORY
_COMPILATION_STEPS = 20_000
"""The time to compile a short expression, 30 to 200 us, in steps of matching."""
_CHARACTER_STEPS = 500
_CLASS_STEPS = 40_000


def compiled(text: str) -> Any:
    """Raises ValueError with the cause if the text is not valid, or is too large."""
    if len(text) > EXPRESSION_CHARS_MAX:
        raise ValueError(
            f"it has {len(text):,} characters; at most {EXPRESSION_CHARS_MAX:,} are allowed"
        )
    if (classes := _classes(text)) > EXPRESSION_CLASSES_MAX:
        raise ValueError(
            f"it has {classes:,} Unicode classes (\\p); at most {EXPRESSION_CLASSES_MAX} are "
            "allowed"
        )
    try:
        return re2.compile(text, _OPTIONS)
    except re2.error as error:
        [cause] = error.args or ("invalid",)
        raise ValueError(
            cause.decode("utf-8", "replace") if isinstance(cause, bytes) else str(cause)
        ) from None


def compilation_steps(text: str) -> int:
    """The time to compile the expression, in steps of matching."""
    return (
        _COMPILATION_STEPS + _CHARACTER_STEPS * len(text) + _CLASS_STEPS * _classes(text)
        if len(text) <= EXPRESSION_CHARS_MAX
        else _COMPILATION_STEPS
    )


def matching_steps(expression: Any, name: str) -> int:
    """The time to match one name: characters times instructions."""
    size: int = expression.programsize
    return len(name) * size


def _classes(text: str) -> int:
    return text.count("\\p") + text.count("\\P")
