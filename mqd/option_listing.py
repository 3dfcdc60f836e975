"""The output of `mqd config list`: the option table for people and programs."""

from __future__ import annotations

import json
from typing import Any

from mqd.option_table import OPTIONS
from mqd.options import Option


def render(output: str) -> str:
    """All options as a `table`, as `json` or as `yaml`, without a newline at the end."""
    rows = [_row(OPTIONS[name]) for name in sorted(OPTIONS)]
    if output == "json":
        return json.dumps(rows, indent=2)
    if output == "yaml":
        import yaml

        return str(yaml.safe_dump(rows, sort_keys=False)).rstrip("\n")
    assert output == "table", output
    return _table(rows)


def _row(option: Option) -> dict[str, Any]:
    return {
        "name": option.name,
        "type": option.type.name.lower(),
        "default": option.format(option.default),
        "scope": sorted(option.scopes),
        "status": option.status.value,
        "dynamic": option.dynamic,
        "meaning": option.meaning,
        "note": option.note,
        "synonyms": [synonym for synonym, _ in option.synonyms if synonym != option.name],
    }


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [("NAME", "TYPE", "DEFAULT", "SCOPE", "STATUS", "DYNAMIC", "MEANING")]
    for row in rows:
        meaning = f"{row['meaning']} ({row['note']})" if row["note"] else row["meaning"]
        default = "-" if row["default"] in (None, "") else row["default"]
        lines.append(
            (
                row["name"],
                row["type"],
                default,
                ",".join(row["scope"]),
                row["status"],
                "yes" if row["dynamic"] else "no",
                meaning,
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(6)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths)), line[6]])
        for line in lines
    )
