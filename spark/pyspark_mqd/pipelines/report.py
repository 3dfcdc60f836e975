"""How a command prints what it did: a table for people, JSON for programs. Text in, text out.

Text that came from a cluster or a file is printed inertly: control characters become escapes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple

GAP = "  "


class Column(NamedTuple):
    """One column of a table: the key in each row, its title, and whether it is right-aligned."""

    key: str
    title: str
    right: bool = False


def printable(text: str) -> str:
    r"""`text` with control and format characters as escapes (\n, \x1b)."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def cell(value: object) -> str:
    """One value as a table shows it, on one line."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, list | tuple):
        return ",".join(cell(each) for each in value) or "-"
    return printable(str(value))


def table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> str:
    """Aligned lines under a line of titles, without trailing spaces."""
    lines = [[column.title for column in columns]]
    lines += [[cell(row.get(column.key)) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    text = []
    for line in lines:
        padded = [
            part.rjust(width) if column.right else part.ljust(width)
            for part, width, column in zip(line, widths, columns)
        ]
        text.append(GAP.join(padded).rstrip())
    return "\n".join(text) + "\n"


def fields(pairs: Mapping[str, Any]) -> str:
    """Names and values, one pair a line, values aligned."""
    width = max((len(name) for name in pairs), default=0)
    return "".join(f"{name.ljust(width)}{GAP}{cell(value)}\n" for name, value in pairs.items())


def to_json(data: Any) -> str:
    """`data` as indented JSON; bytes as text, times in ISO 8601."""
    return json.dumps(data, indent=2, default=_plain) + "\n"


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value)


def show(output: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows to standard output: a table, or a JSON array."""
    sys.stdout.write(to_json(list(rows)) if output == "json" else table(columns, rows))


def show_summary(output: str, summary: Mapping[str, Any]) -> None:
    """Print what a command did: names and values, or a JSON object."""
    if output == "json":
        sys.stdout.write(to_json(dict(summary)))
    else:
        sys.stdout.write(fields({name.replace("_", " "): each for name, each in summary.items()}))
