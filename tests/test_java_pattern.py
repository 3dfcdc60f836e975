"""The syntax of Java's expressions: what `Pattern.compile` of Java 17 accepts and refuses."""

from __future__ import annotations

import pytest

from mqd.java_pattern import check_java_pattern

VALID = (
    *("", "a", "1.*", "a|b|", "^a$", "a??b*+c{2}d{2,}e{2,3}?", "]}", "{2}", "[]a]", "[^]]", "[a-]"),
    *("[a-c&&[^b]]", "[[a]b]", "(a(?:b)(?>c)(?=d)(?!e)(?<=f)(?<!g))", r"(?<n>a)\k<n>", "(?i-s:a)"),
    *("(?i)a", r"\d\D\b\R\z\.\-\]", r"\pL\p{Lu}\P{IsAlphabetic}\p{javaLowerCase}\p{InGreek}"),
    *(r"\Q(a[\E", r"\Qa", r"\x41\x{1F600}\u0041\012\cA\t", r"\1", r"\N{DIGIT ONE}", r"[\Qa\E\d-]"),
)
INVALID = (
    *("(", ")", "a)", "(a", "*", "a|*", "(+", "a**", "a+++", "(?i)*", "a{", "a{x}", "a{2,1}"),
    *(
        "a{99999999999}",
        "[",
        "[]",
        "[a",
        "[^]",
        "[z-a]",
        "[[a]",
        r"[\b]",
        r"[\1]",
        "(?<n>a)(?<n>b)",
    ),
    *("(?P<n>a)", "(?", "(?<1>a)", r"\k<n>", "\\", r"\y", r"\E", r"\x4", r"\u004", r"\08", r"\c"),
    *(r"\p{Foo}", r"\p", r"\N{NO SUCH NAME}", r"\x{110000}"),
)


@pytest.mark.parametrize("text", VALID)
def test_valid(text: str) -> None:
    check_java_pattern(text)


@pytest.mark.parametrize("text", INVALID)
def test_invalid(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_java_pattern(text)
