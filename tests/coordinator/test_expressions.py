"""The bounds of regular expressions, before RE2 reads them."""

from __future__ import annotations

from typing import Any

import pytest
import re2

from mqd.coordinator.expressions import compilation_steps, compiled, matching_steps
from mqd.limits import EXPRESSION_CHARS_MAX, EXPRESSION_CLASSES_MAX, EXPRESSION_STEPS


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a" * (EXPRESSION_CHARS_MAX + 1), "it has 1,001 characters; at most 1,000 are allowed"),
        ("(?i)" + r"\pL" * 10_000, "it has 30,004 characters; at most 1,000 are allowed"),
        (r"\PL" * 21, r"it has 21 Unicode classes (\p); at most 20 are allowed"),
        (r"[\p{L}\P{N}]" * 11, r"it has 22 Unicode classes (\p); at most 20 are allowed"),
    ],
)
def test_large_expressions_are_refused_before_re2_reads_them(
    text: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(re2, "compile", lambda *_: pytest.fail("RE2 read it"))
    with pytest.raises(ValueError) as refusal:
        compiled(text)
    assert str(refusal.value) == cause


def test_the_largest_expressions_are_compiled() -> None:
    assert compiled("a" * EXPRESSION_CHARS_MAX).fullmatch("a" * EXPRESSION_CHARS_MAX)
    assert compiled(r"[\pN]" * EXPRESSION_CLASSES_MAX).fullmatch("7" * EXPRESSION_CLASSES_MAX)


def test_the_work_of_an_expression_grows_with_its_size() -> None:
    def a_slice(text: str) -> int:
        return EXPRESSION_STEPS // compilation_steps(text)

    assert a_slice("t.*") > 40 and a_slice("a" * 1000) == a_slice(r"\pL" * 20) == 1
    small: Any = compiled("a")
    large: Any = compiled("a{100}")
    assert matching_steps(large, "name") > 10 * matching_steps(small, "name")
