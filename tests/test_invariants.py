"""docs/INVARIANTS.md agrees with the source: everything that it names exists.

tests/test_documents.py checks where the source cites its numbers.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "INVARIANTS.md").read_text(encoding="utf-8")
NUMBERED = re.findall(r"^\*\*I(\d+)\. ", TEXT, re.MULTILINE)
_FUNCTION = re.compile(r"^ *(?:async )?def (\w+)\(", re.MULTILINE)
QUOTED = re.findall(r"`((?:mqd|mqctl|chaos|tests|bench)/[^`]+)`", TEXT)


@cache
def functions(path: str) -> frozenset[str]:
    """Every function that a file defines, at any depth. To parse a hundred files takes seconds."""
    return frozenset(_FUNCTION.findall((ROOT / path).read_text(encoding="utf-8")))


def test_numbers_are_without_gaps() -> None:
    assert [int(number) for number in NUMBERED] == list(range(1, len(NUMBERED) + 1))


def test_every_invariant_is_asserted_and_guarded() -> None:
    for section in re.split(r"^\*\*I\d+\. ", TEXT, flags=re.MULTILINE)[1:]:
        asserted, _, guarded = section.partition("- guarded: ")
        assert re.search(r"- asserted: `(mqd|spark)/", asserted), section
        assert "`tests/" in guarded, section


def test_names_in_the_document_exist() -> None:
    assert QUOTED
    missing = []
    for reference in QUOTED:
        path, _, name = reference.replace("::", ":").partition(":")
        if not (ROOT / path).is_file() or (name and name not in functions(path)):
            missing.append(reference)
    assert missing == []
