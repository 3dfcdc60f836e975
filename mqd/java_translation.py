"""Expressions of Java (`java.util.regex.Pattern`) as expressions of Python's `re`. Pure.

A class of characters becomes an expression that matches one character: Python has neither unions
nor intersections of classes. What `re` cannot match is a ValueError that names it: scripts and
blocks, `\\X`, `\\G`, and the flags d, u, U and x. `re.ASCII` gives `\\w`, `\\d` and `(?i)` their
meaning in Java. XX: `\\b` is that of Java 19; before, all letters and digits were words for it.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache
from itertools import groupby
from typing import Final

from mqd.java_pattern import check_java_pattern, group_start, read_escape, repeat_end

_LINE_ENDS: Final = r"\n\r\x85\u2028\u2029"
_ANY: Final = r"[\s\S]"
_SETS: Final = {
    "h": r" \t\xA0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000",
    "v": r"\n\x0B\f\r\x85\u2028\u2029",
}
_OTHERS: Final = {
    "b": r"(?:\b)",
    "B": r"(?:\B)",
    "A": r"(?:\A)",
    "R": rf"(?:\r\n|[{_SETS['v']}])",
    "Z": rf"(?:(?=(?:\r\n|[{_LINE_ENDS}])?\Z))",
    "z": r"(?:\Z)",
}
"""Outside classes. Java can repeat all of them, Python can repeat groups."""
_POSIX: Final = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": r"\x00-\x7F",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": r"!-/:-@\[-`{-~",
    "Graph": "!-~",
    "Print": " -~",
    "Blank": r" \t",
    "Cntrl": r"\x00-\x1F\x7F",
    "XDigit": "0-9a-fA-F",
    "Space": r" \t\n\x0B\f\r",
    "ALL": r"\x00-\U0010FFFF",
    "L1": r"\x00-\xFF",
}
_CATEGORY: Final = re.compile(r"(?:(?:general_category|gc)=|Is)?([LMNZCPS][a-zA-Z]?)")
_SEVERAL: Final = {"LC": ("Lu", "Ll", "Lt"), "LD": ("L", "Nd")}


def compile_java_pattern(text: str) -> re.Pattern[str]:
    """Raises ValueError with the reason."""
    check_java_pattern(text)
    try:
        return re.compile(_Translation(text).result(), re.ASCII)
    except (re.error, OverflowError) as error:
        raise ValueError(str(error)) from None


class _Scope:
    """An open group."""

    def __init__(self, dot_all: bool) -> None:
        self.dot_all = dot_all
        """Whether `.` matches line ends."""
        self.flags: list[str] = []
        """Starts of the groups that stand for `(?i)` and the like, which applies until the end of
        the group around it.
        """

    def ends(self) -> str:
        return ")" * len(self.flags)


class _Translation:
    """`text` must be valid in Java."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._groups = 0
        """Capturing groups so far."""
        self._names: set[str] = set()
        self._scopes = [_Scope(dot_all=False)]

    def result(self) -> str:
        parts: list[str] = []
        while self._position < len(self._text):
            parts.append(self._next())
        return "".join(parts) + self._scopes[-1].ends()

    def _next(self) -> str:
        character = self._text[self._position]
        if character == "\\":
            return self._escape()
        if character == "[":
            return self._class()
        if character == "(":
            return self._group()
        start = self._position
        self._position = repeat_end(self._text, start) if character == "{" else start + 1
        scope = self._scopes[-1]
        if character == ")":
            self._scopes.pop()
            return scope.ends() + ")"
        if character == "|":
            return f"{scope.ends()}|{''.join(scope.flags)}"
        if character == ".":
            return _ANY if scope.dot_all else f"[^{_LINE_ENDS}]"
        if character in "^$":
            return f"(?:{character})"
        if character in "*+?{":
            return self._text[start : self._position]
        return re.escape(character)

    def _group(self) -> str:
        start = self._position
        self._position, name, opens = group_start(self._text, start)
        found = self._text[start : self._position]
        dot_all = self._scopes[-1].dot_all
        if found == "(" or name is not None:
            self._groups += 1
            self._names.update([] if name is None else [name])
            self._scopes.append(_Scope(dot_all))
            return "(" if name is None else f"(?P<{name}>"
        if found in ("(?>", "(?=", "(?!", "(?<=", "(?<!"):
            self._scopes.append(_Scope(dot_all))
            return found
        flags = found[2:-1]
        if unsupported := set(flags) - set("ims-"):
            raise ValueError(f"the flag {min(unsupported)!r} is not supported")
        added, _, removed = flags.partition("-")
        dot_all = (dot_all or "s" in added) and "s" not in removed
        added = "".join(sorted(set(added) - set(removed)))
        python = f"(?{added}{'-' if removed else ''}{''.join(sorted(set(removed)))}:"
        if opens:
            self._scopes.append(_Scope(dot_all))
        else:
            self._scopes[-1].dot_all = dot_all
            self._scopes[-1].flags.append(python)
        return python

    def _escape(self) -> str:
        start = self._position
        kind = self._text[start + 1]
        if kind == "Q":
            return re.escape(self._quoted())
        if kind in "123456789":
            return self._reference()
        self._position, code_point = read_escape(self._text, start, self._names)
        if code_point is not None:
            return re.escape(chr(code_point))
        if kind == "k":
            return f"(?P={self._text[start + 3 : self._position - 1]})"
        if kind in _OTHERS:
            return _OTHERS[kind]
        return self._set_of(start)

    def _set_of(self, start: int) -> str:
        """The expression of the class of characters whose escape begins at `start`."""
        kind = self._text[start + 1]
        if kind in "dDsSwW":
            return f"[\\{kind}]"
        if kind in "hHvV":
            members = _SETS[kind.lower()]
        elif kind in "pP":
            members = _members(self._text[start + 2 : self._position])
        else:
            raise ValueError(f"'\\{kind}' is not supported")
        return f"[{'^' if kind.isupper() else ''}{members}]"

    def _quoted(self) -> str:
        """The text between `\\Q` and `\\E`."""
        start = self._position + 2
        end = self._text.find("\\E", start)
        self._position = len(self._text) if end < 0 else end + 2
        return self._text[start:] if end < 0 else self._text[start:end]

    def _reference(self) -> str:
        """Java takes as many digits as give a group."""
        end = self._position + 2
        while self._text[end : end + 1].isdigit() and (
            int(self._text[self._position + 1 : end + 1]) <= self._groups
        ):
            end += 1
        number = self._text[self._position + 1 : end]
        self._position = end
        return f"(?:\\{number})"

    def _class(self) -> str:
        """An expression for one character of the class that begins here."""
        self._position += 1
        negated = self._text.startswith("^", self._position)
        self._position += negated
        operands: list[str] = []
        union: list[str] = []
        while True:
            if self._text.startswith("]", self._position) and (union or operands):
                break
            if self._text.startswith("&&", self._position):
                self._position += 2
                operands.append(_union(union))
                union = []
            elif self._text.startswith("[", self._position):
                union.append(self._class())
            else:
                union.append(self._member())
        self._position += 1
        operands.append(_union(union))
        *others, last = operands
        one = "".join(f"(?={other})" for other in others) + last
        if negated:
            return f"(?:(?!{one}){_ANY})"
        return f"(?:{one})"

    def _member(self) -> str:
        """A character, a range or an escape in a class."""
        start = self._position
        if self._text.startswith("\\Q", start):
            quoted = self._quoted()
            if not quoted:
                raise ValueError("an empty quotation in a class is not supported")
            return f"[{''.join(_member(ord(each)) for each in quoted)}]"
        first = self._class_character()
        if first is None:
            return self._set_of(start)
        last_at = self._position + 1
        if (
            not self._text.startswith("-", self._position)
            or self._text[last_at : last_at + 1] in "[]"
        ):
            return f"[{_member(first)}]"
        self._position = last_at
        last = self._class_character()
        assert last is not None, "check_java_pattern"
        return f"[{_member(first)}-{_member(last)}]"

    def _class_character(self) -> int | None:
        if self._text[self._position] == "\\":
            self._position, code_point = read_escape(self._text, self._position, None)
            return code_point
        self._position += 1
        return ord(self._text[self._position - 1])


def _member(code_point: int) -> str:
    """A character in a class of Python."""
    return f"\\U{code_point:08x}"


def _union(expressions: list[str]) -> str:
    if not expressions:
        raise ValueError("an empty operand of && is not supported")
    if all(each[0] == "[" and each[1] != "^" for each in expressions):
        return f"[{''.join(each[1:-1] for each in expressions)}]"
    return f"(?:{'|'.join(expressions)})"


def _members(property_: str) -> str:
    """The characters of `L` or `{Alpha}`, for a class."""
    name = property_.strip("{}")
    found = _CATEGORY.fullmatch(name)
    posix = _POSIX.get(name)
    if posix is not None:
        return posix
    if found is None:
        raise ValueError(
            f"'\\p{property_}' is not supported; use a general category such as \\p{{L}}, or "
            "\\p{Alpha}"
        )
    return _of_categories(_SEVERAL.get(found[1], (found[1],)))


@cache
def _of_categories(prefixes: tuple[str, ...]) -> str:
    ranges: list[str] = []
    belongs = (
        (unicodedata.category(chr(code_point)).startswith(prefixes), code_point)
        for code_point in range(sys.maxunicode + 1)
    )
    for is_member, run in groupby(belongs, key=lambda each: each[0]):
        if is_member:
            numbers = [code_point for _, code_point in run]
            ranges.append(f"{_member(numbers[0])}-{_member(numbers[-1])}")
    return "".join(ranges)
