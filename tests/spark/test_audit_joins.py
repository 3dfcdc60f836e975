"""The parts of the audit that need no Spark: where ids are, and the history of a chaos run
as lines.
"""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos import history_lines
from chaos.history import ACKED_SOMEWHERE, NOT_ACKED, History, Reads, value_of
from pyspark_mqd.pipelines import audit
from pyspark_mqd.pipelines.audit_joins import EVENTS, KINDS, IdRule, parse_rule
from pyspark_mqd.pipelines.cli import Failure


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("key", IdRule("key")),
        ("int64", IdRule("int64")),
        ("header:order-id", IdRule("header", "order-id")),
        ("json:order.id", IdRule("json", "order.id")),
    ],
)
def test_where_an_id_is(text: str, rule: IdRule) -> None:
    assert parse_rule(text) == rule


@pytest.mark.parametrize("text", ["", "offset", "header:", "json:a'b"])
def test_no_place_for_an_id(text: str) -> None:
    with pytest.raises(Failure, match="does not name the id of a record"):
        parse_rule(text)


def test_a_chaos_run_becomes_lines(tmp_path: Path) -> None:
    history = History(
        sends={3: {("t", 0): array("q", [0, ACKED_SOMEWHERE, NOT_ACKED])}},
        final={("t", 0): Reads(array("q", [0, 1]), array("q", [value_of(3, 0), value_of(3, 1)]))},
    )
    history_lines.write(history, tmp_path / "new")
    events = [
        json.loads(line) for line in (tmp_path / "new" / "history.jsonl").read_text().splitlines()
    ]
    assert [(each["event"], each["number"], each.get("offset")) for each in events] == [
        ("ok", 0, 0),
        ("ok", 1, None),
        ("info", 2, None),
    ]
    assert {each["event"] for each in events} <= set(EVENTS)
    log = [json.loads(line) for line in (tmp_path / "new" / "log.jsonl").read_text().splitlines()]
    assert [each["id"] for each in log] == [each["id"] for each in events[:2]]


def test_counts_are_shown_for_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {**dict.fromkeys(KINDS, 0), "lost": 2}
    sample = {
        "kind": "lost",
        "topic": "t",
        "partition": 0,
        "offset": 7,
        "id": "x\x1b",
        "producer": "1",
        "number": 3,
        "detail": "",
    }
    verdict = audit.AuditResult(10, 8, 9, counts, [sample])
    assert not verdict.is_clean
    audit.show("json", verdict)
    assert json.loads(capsys.readouterr().out)["violations"] == counts
    audit.show("table", verdict)
    shown = capsys.readouterr().out
    assert "x\\x1b" in shown
    assert all(kind in shown for kind in KINDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--history", "none.jsonl"], "The history 'none.jsonl' does not exist"),
        (["--history", "."], "Specify the topics: --topics"),
        (["--history", ".", "--archive", "a", "--log-file", "b"], "exclude each other"),
    ],
)
def test_wrong_usage_is_refused_before_spark_starts(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(audit.command, arguments)
    assert message in f"{result.output} {result.exception}"
