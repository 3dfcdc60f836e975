"""Java's expressions in Python. Java 17 matches, or does not match, as these tables say."""

from __future__ import annotations

import pytest

from mqd.java_translation import compile_java_pattern

TRANSLATED: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    # pattern, what it matches, what it does not match
    (r"CN=(?<n>\p{Alpha}+),\k<n>", ("CN=Ab,Ab",), ("CN=Ab,ab", "CN=é,é")),
    (r"\p{L}+\P{Lu}\pN", ("Zoë1",), ("ZOE1",)),
    (r"\p{IsLu}\p{gc=Ll}\p{Punct}\p{LC}", ("Ab-c",), ("ab-c", "Ab1c")),
    (r"[a-z&&[^aeiou]]+", ("xyz",), ("abc",)),
    (r"[a-c[x-z]-]+", ("a-z",), ("d",)),
    (r"[^a[bc]&]", ("d",), ("a", "b", "&")),
    (r"[^\p{Upper}\d&&[^A]]", ("A", "a", "="), ("B", "1")),
    (r"[\Q^]-\E\]]+", ("^]-",), ("\\",)),
    (r"[]a][^]]", ("]a",), ("]]",)),
    (r"\Qa.b*\Ec*", ("a.b*", "a.b*cc"), ("aab",)),
    ("a(?i)b|C(?-i)d", ("aB", "cd"), ("AB", "cD")),
    ("x(a(?i)b)c", ("xaBc",), ("xaBC",)),
    ("(?i:ab)c", ("ABc",), ("ABC",)),
    ("a.b", ("a-b",), ("a\nb", "a\u2028b")),
    ("(?s)a.(?-s).", ("a\nb",), ("a\n\n",)),
    (r"(a)(b)\12", ("aba2",), ("abb",)),
    (r"\w+\d\s\h\H\v\V", ("a1 \u00a0a\u2028b",), ("é1 \u00a0a\u2028b",)),
    (r"\x41\u0042\x{43}\0104\cA\e\N{DIGIT ONE}", ("ABCD\x01\x1b1",), ()),
    (r"a\Z", ("a",), ("b",)),
    (r"a\R\z", ("a\r\n", "a\x85"), ("a",)),
    (r"a++b?(?>c|cd)e", ("aace",), ("aacde",)),
    (r"\A?^*a$?\b*", ("a",), ("",)),
    ("(?<=a)?a(?!b)(?<!b).", ("ac",), ("ab",)),
]


@pytest.mark.parametrize(("pattern", "matching", "others"), TRANSLATED)
def test_the_translation_matches_as_java_does(
    pattern: str, matching: tuple[str, ...], others: tuple[str, ...]
) -> None:
    found = compile_java_pattern(pattern)
    for text in matching:
        assert found.fullmatch(text), text
    for text in others:
        assert not found.fullmatch(text), text


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"\p{IsGreek}", r"'\\p{IsGreek}' is not supported; use a general category"),
        (r"\X", r"'\\X' is not supported"),
        ("(?x)a", "the flag 'x' is not supported"),
        ("[a&&]", "an empty operand"),
        ("(a", "unclosed group"),
        ("(?<=a*)b", "look-behind"),
        (r"\2(a)", "group reference"),
    ],
)
def test_what_python_cannot_match_is_an_error(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        compile_java_pattern(pattern)
