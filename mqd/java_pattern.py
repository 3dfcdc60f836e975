"""The syntax of expressions of Java (`java.util.regex.Pattern`). Pure.

Only the syntax is checked, in linear time; nothing is matched (java_translation.py can). XX: Java
also refuses a lookbehind of unbounded length, and a block or script that does not exist; it ignores
comments after `(?x)`.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_REPEAT: Final = re.compile(r"\{([0-9]+)(?:,([0-9]*))?\}")
_GROUP: Final = re.compile(
    r"\?(?:[:>=!]|<[=!]|<([A-Za-z][A-Za-z0-9]*)>|[idmsuxU]*(?:-[idmsuxU]*)?[:)])"
)
_REFERENCE: Final = re.compile(r"<([A-Za-z][A-Za-z0-9]*)>")
_OCTAL: Final = re.compile(r"[0-3][0-7]{2}|[0-7]{1,2}")
_HEX: Final = {
    "x": re.compile(r"\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{2})"),
    "u": re.compile(r"()([0-9A-Fa-f]{4})"),
}
_NAMED: Final = re.compile(r"\{([^{}]+)\}")
_PROPERTY: Final = re.compile(
    r"\{(?:Is\w+|In[\w -]+|java[A-Z]\w+|"
    r"(?:(?:general_category|gc)=)?(?:L[ultmoC1D]?|M[nec]?|N[dlo]?|Z[slp]?|C[cfson]?|P[dsecif]?|"
    r"P[o]|S[mcko]?)|(?:script|sc|block|blk)=[\w -]+|Lower|Upper|ASCII|Alpha|Digit|Alnum|Punct|"
    r"Graph|Print|Blank|Cntrl|XDigit|Space|ALL)\}|[LMNZCPS]"
)
_REPEAT_MAX: Final = 2**31 - 1
_CODE_POINT_MAX: Final = 0x10FFFF
_CONTROLS: Final = {"a": 7, "e": 27, "f": 12, "n": 10, "r": 13, "t": 9}
_CLASSES: Final = frozenset("dDhHsSvVwW")
_OUTSIDE_CLASSES: Final = frozenset("AbBGRXzZ")


def check_java_pattern(text: str) -> None:
    """Raise ValueError with the reason if `text` is not a valid expression."""
    position = depth = 0
    may_repeat = False
    names: set[str] = set()
    while position < len(text):
        character = text[position]
        if character == "\\":
            position, _ = read_escape(text, position, names)
            may_repeat = True
        elif character == "[":
            position, may_repeat = _character_class(text, position), True
        elif character == "(":
            position, name, opens = group_start(text, position)
            if name is not None:
                if name in names:
                    raise ValueError(f"group {name!r} is defined twice")
                names.add(name)
            depth += opens
            may_repeat = False
        elif character == ")":
            if not depth:
                raise ValueError("unmatched closing ')'")
            position, depth, may_repeat = position + 1, depth - 1, True
        elif character in "*+?{":
            if character != "{" and not may_repeat:
                raise ValueError(f"dangling meta character {character!r}")
            position = repeat_end(text, position) if character == "{" else position + 1
            if text[position : position + 1] in ("?", "+"):
                position += 1
            may_repeat = False
        else:
            position, may_repeat = position + 1, character != "|"
    if depth:
        raise ValueError("unclosed group")


def group_start(text: str, position: int) -> tuple[int, str | None, bool]:
    """The position after the start of a group, its name, and whether it must be closed."""
    position += 1
    if text[position : position + 1] != "?":
        return position, None, True
    found = _GROUP.match(text, position)
    if found is None:
        raise ValueError("unknown inline modifier or look-behind group")
    return found.end(), found[1], not found[0].endswith(")")


def repeat_end(text: str, position: int) -> int:
    """The position after `{1,2}`."""
    found = _REPEAT.match(text, position)
    if found is None:
        raise ValueError("illegal repetition")
    least = found[1]
    most = found[2] or least
    if max(len(least), len(most)) > 10 or not int(least) <= int(most) <= _REPEAT_MAX:
        raise ValueError("illegal repetition range")
    return found.end()


def _character_class(text: str, position: int) -> int:
    """The position after the class that begins at `position`."""
    is_empty: list[bool] = []
    while position < len(text):
        character = text[position]
        if character == "[":
            is_empty.append(True)
            position += 2 if text[position + 1 : position + 2] == "^" else 1
        elif character == "]" and not is_empty[-1]:
            position += 1
            is_empty.pop()
            if not is_empty:
                return position
            is_empty[-1] = False
        elif text.startswith("&&", position):
            position += 2
        else:
            position = _range(text, position)
            is_empty[-1] = False
    raise ValueError("unclosed character class")


def _range(text: str, position: int) -> int:
    position, first = _class_character(text, position)
    last_at = position + 1
    if first is None or text[position : position + 1] != "-" or text[last_at : last_at + 1] in "[]":
        return position
    position, last = _class_character(text, last_at)
    if last is None or last < first:
        raise ValueError("illegal character range")
    return position


def _class_character(text: str, position: int) -> tuple[int, int | None]:
    """The position after one member of a class, and its code point if it is one character."""
    if text[position] == "\\":
        return read_escape(text, position, None)
    return position + 1, ord(text[position])


def read_escape(text: str, position: int, names: set[str] | None) -> tuple[int, int | None]:
    """The position after an escape, and its code point if it is one character.

    `names`: the groups so far; None in a character class.
    """
    kind = text[position + 1 : position + 2]
    position += 2
    if not (kind.isascii() and kind.isalnum()):
        if not kind:
            raise ValueError("a backslash ends the expression")
        return position, ord(kind)
    if kind in _CLASSES or (names is not None and kind in _OUTSIDE_CLASSES):
        return position, None
    if kind in _CONTROLS:
        return position, _CONTROLS[kind]
    if kind == "Q":
        end = text.find("\\E", position)
        return (len(text) if end < 0 else end + 2), None
    if kind == "c" and position < len(text):
        return position + 1, ord(text[position]) ^ 64
    if kind == "0" and (found := _OCTAL.match(text, position)):
        return found.end(), int(found[0], 8)
    if kind in _HEX and (found := _HEX[kind].match(text, position)):
        digits = found[1] or found[2]
        code_point = int(digits, 16) if len(digits.lstrip("0")) <= 6 else _CODE_POINT_MAX + 1
        if code_point <= _CODE_POINT_MAX:
            return found.end(), code_point
    if kind in "pP" and (found := _PROPERTY.match(text, position)):
        return found.end(), None
    if kind == "N" and (found := _NAMED.match(text, position)):
        return found.end(), _named(found[1])
    if names is not None:
        if kind in "123456789":
            return position, None
        if kind == "k" and (found := _REFERENCE.match(text, position)) and found[1] in names:
            return found.end(), None
    raise ValueError(f"illegal escape '\\{kind}'")


def _named(name: str) -> int:
    """The code point of a character name."""
    try:
        return ord(unicodedata.lookup(name))
    except (KeyError, TypeError):
        raise ValueError(f"unknown character name {name!r}") from None
