"""Tables, JSON and YAML."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import given, strategies as st

from mqctl import render
from mqctl.render import Column

COLUMNS = (Column("name", "NAME"), Column("count", "COUNT", right=True), Column("more", "MORE"))

# As a terminal displays it.
TABLE = """\
NAME   COUNT  MORE
a          1  yes
bb     12345  -
日本       -  1,2
e\u0301\\x1b      7  k=v
"""


def test_table() -> None:
    rows: list[dict[str, Any]] = [
        {"name": "a", "count": 1, "more": True},
        {"name": "bb", "count": 12345, "more": ""},
        {"name": "日本", "count": None, "more": [1, 2]},
        {"name": "e\u0301\x1b", "count": 7, "more": {"k": "v"}},
    ]
    assert render.table(COLUMNS, rows) == TABLE
    assert render.table(COLUMNS, [], bold=True) == "\x1b[1mNAME  COUNT  MORE\x1b[0m\n"


def test_fields() -> None:
    assert render.fields({"a": 1, "long name": None}) == "a          1\nlong name  -\n"


def test_control_characters_are_escaped() -> None:
    assert render.printable("a\x1b[2Jb\r\n\x07\u202e\ud800") == r"a\x1b[2Jb\r\n\x07\u202e\ud800"
    assert render.printable("a\tb\n", keep="\t\n") == "a\tb\n"
    assert render.printable("żółw 日本") == "żółw 日本"


@given(
    st.lists(st.fixed_dictionaries({"name": st.text(), "count": st.integers(), "more": st.none()}))
)
def test_a_table_has_one_line_for_each_row_and_only_printable_characters(
    rows: list[dict[str, object]],
) -> None:
    text = render.table(COLUMNS, rows)
    assert len(text.split("\n")) == len(rows) + 2
    assert all(each.isprintable() or each in "\n\u3000" for each in text)


SAMPLE = {"text": "żółw\x1b", "n": None, "b": False, "yes": "yes", "list": [{"a": "1"}, {"a": 1}]}


def test_json_and_yaml_round_trip() -> None:
    assert json.loads(render.to_json(SAMPLE)) == SAMPLE
    assert render.to_json(SAMPLE, indent=None).count("\n") == 1
    assert "żółw" in render.to_json(SAMPLE) and "żółw" in render.to_yaml({"a": "żółw"})
    assert yaml.safe_load(render.to_yaml(SAMPLE)) == SAMPLE
    assert json.loads(render.to_json({"a": "\ud800"})) == {"a": "\ud800"}
