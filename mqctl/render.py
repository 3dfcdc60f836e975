"""Formats results as tables, JSON and YAML. Pure.

Tables escape control and direction characters in data from the cluster. So a topic name or a record
cannot move the cursor of a terminal or forge a line.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

GAP = "  "


class Column(NamedTuple):
    """One column of a table: the key in each row, its title, and whether it is right-aligned (for
    numbers).
    """

    key: str
    title: str
    right: bool = False


def printable(text: str, *, keep: str = "") -> str:
    r"""`text` with control, format and unpaired surrogate characters as escapes (\n, \x1b,
    \u202e); those in `keep` stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if each in keep or each.isprintable() else _escape(each) for each in text)


def _escape(character: str) -> str:
    if character == "\N{IDEOGRAPHIC SPACE}":
        return character
    return character.encode("unicode_escape").decode("ascii")


def width(text: str) -> int:
    """The number of terminal cells of printable text: a wide character has two, a combining mark
    none.
    """
    if text.isascii():
        return len(text)
    cells = 0
    for each in text:
        if not unicodedata.combining(each) and unicodedata.category(each) not in ("Mn", "Me", "Cf"):
            cells += 2 if unicodedata.east_asian_width(each) in ("W", "F") else 1
    return cells


def cell(value: object) -> str:
    """One value in a table: "-" for nothing, "yes" or "no", lists with commas; always one line."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(cell(each) for each in value) or "-"
    if isinstance(value, Mapping):
        return ",".join(f"{printable(str(key))}={cell(each)}" for key, each in value.items()) or "-"
    return printable(str(value))


def table(
    columns: Sequence[Column], rows: Iterable[Mapping[str, Any]], *, bold: bool = False
) -> str:
    """Aligned columns under a line of titles, without trailing spaces.

    The last line ends with a newline.
    """
    lines = [[column.title for column in columns]]
    lines += [[cell(row.get(column.key)) for column in columns] for row in rows]
    widths = [max(width(line[index]) for line in lines) for index in range(len(columns))]
    text = []
    for number, line in enumerate(lines):
        padded = [
            " " * (widths[index] - width(part)) + part
            if columns[index].right
            else part + " " * (widths[index] - width(part))
            for index, part in enumerate(line)
        ]
        joined = GAP.join(padded).rstrip()
        text.append(f"\x1b[1m{joined}\x1b[0m" if bold and number == 0 else joined)
    return "\n".join(text) + "\n"


def fields(pairs: Mapping[str, Any]) -> str:
    """Names and values, one pair a line, values aligned."""
    names = max((width(name) for name in pairs), default=0)
    return "".join(
        f"{name}{' ' * (names - width(name))}{GAP}{cell(value)}\n" for name, value in pairs.items()
    )


def to_json(data: Any, *, indent: int | None = 2) -> str:
    """JSON text with a newline at the end.

    Characters beyond ASCII stay themselves, unpaired surrogates are escaped.
    """
    text = json.dumps(
        data, indent=indent, ensure_ascii=False, separators=(",", ":") if indent is None else None
    )
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(data, indent=indent, separators=(",", ":") if indent is None else None)
    return text + "\n"


def to_yaml(data: Any) -> str:
    """YAML text with a newline at the end."""
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=1_000_000))
