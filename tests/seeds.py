"""Seeds of random tests: a few in the default suite, and all of them where time allows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def seeds(few: int, every: Iterable[int]) -> list[int | ParameterSet]:
    """The first `few` seeds run in the default suite. The others are marked `slow`: `make slow` and
    `.ci/run` run them.
    """
    return [
        seed if number < few else slow(seed) for number, seed in zip(count(), every, strict=False)
    ]


def slow(*values: Any) -> ParameterSet:
    """Arguments of a test that takes seconds with them."""
    return pytest.param(*values, marks=pytest.mark.slow)
