"""Pipelines read committed records only: aborted ones would be counted, sent and archived."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from pyspark_mqd.pipelines import dlq, rollup
from pyspark_mqd.recipes import running

ISOLATION = "kafka.isolation.level"


class Seen(Exception):
    """Carries the options that a reader was given."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__()
        self.options_given = options


class Reader:
    """`spark`, `spark.read` and `spark.readStream` at once; it ends where options are given."""

    @property
    def read(self) -> Reader:
        return self

    @property
    def readStream(self) -> Reader:  # noqa: N802
        return self

    def format(self, name: str) -> Reader:
        assert name == "mqd"
        return self

    def options(self, **given: str) -> Any:
        raise Seen(given)


@pytest.mark.parametrize("streaming", [False, True])
def test_dead_letters(streaming: bool) -> None:
    spark: Any = Reader()
    with pytest.raises(Seen) as seen:
        dlq.read_dead_letters(spark, {}, "letters", streaming=streaming)
    assert seen.value.options_given[ISOLATION] == "read_committed"


def test_recipes() -> None:
    spark: Any = Reader()
    with pytest.raises(Seen) as seen:
        running.read(spark, running.Places({"subscribe": "a"}, "out", "letters", "checkpoint"))
    assert seen.value.options_given[ISOLATION] == "read_committed"


@pytest.mark.parametrize("given", ["read_committed", "read_uncommitted"])
def test_rollup(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(source: dict[str, str], *rest: Any, **others: Any) -> None:
        raise Seen(source)

    monkeypatch.setattr(rollup, "RollupConfiguration", seen)
    arguments = ["--topics", "a", "--checkpoint", "c"]
    if given != "read_committed":  # the default
        arguments += ["--isolation", given]
    outcome = CliRunner().invoke(rollup.command, arguments)
    assert isinstance(outcome.exception, Seen)
    assert outcome.exception.options_given[ISOLATION] == given
