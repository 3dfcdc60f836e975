from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mqd import logs
from mqd.logs import REPEATS_MAX, REPEATS_WINDOW_S, LineFormatter, RepeatFilter


def record(
    message: str, *arguments: object, line: int = 1, exc_info: Any = None
) -> logging.LogRecord:
    return logging.LogRecord(
        "mqd.log", logging.WARNING, "/x.py", line, message, arguments, exc_info
    )


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield root
    root.handlers[:], level = before
    root.setLevel(level)


def test_a_line_is_time_level_logger_event_and_pairs() -> None:
    line = LineFormatter().format(record("segment.rolled partition=%s records=%d", "t-0", 12))
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING mqd\.log "
        r"segment\.rolled partition=t-0 records=12",
        line,
    )


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("left reason=%s member=%s", ("no heartbeat", "m"), "left reason='no heartbeat' member=m"),
        ("left reason=%s", ("its client's end",), 'left reason="its client\'s end"'),
        ("left reason=%s", ("a 'b' \"c\"",), 'left reason="a \'b\' \\"c\\""'),
        ("at address=%s:%d", ("a host", 1), "at address=a host:1"),
        ("near share=%.0f%% of=%s", (50.4, "all of it"), "near share=50% of='all of it'"),
        ("loaded count=%d %s", (1, "a=b c=d"), "loaded count=1 a=b c=d"),
        ("nothing reason='in words'", (), "nothing reason='in words'"),
    ],
)
def test_a_value_with_a_space_is_quoted(
    text: str, arguments: tuple[object, ...], expected: str
) -> None:
    assert LineFormatter().format(record(text, *arguments)).endswith(f"mqd.log {expected}")


def test_bytes_of_a_peer_cannot_forge_a_line() -> None:
    assert "\n" not in LineFormatter().format(record("bad.frame client=%s", "x\r\n2026 INFO fine"))


def test_a_traceback_follows_its_line() -> None:
    try:
        raise RuntimeError("why")
    except RuntimeError:
        text = LineFormatter().format(record("task.failed", exc_info=sys.exc_info()))
    assert text.splitlines()[0].endswith("task.failed")
    assert text.endswith("RuntimeError: why")


def test_repeats_are_suppressed_and_counted() -> None:
    now = 0.0
    repeats = RepeatFilter(lambda: now)
    passed = [repeats.filter(record("bad.frame client=%s", i)) for i in range(REPEATS_MAX + 5)]
    assert passed == [True] * REPEATS_MAX + [False] * 5
    assert repeats.filter(record("other", line=2))
    now = REPEATS_WINDOW_S
    first = record("bad.frame client=%s", "x")
    assert repeats.filter(first)
    assert LineFormatter().format(first).endswith("bad.frame client=x suppressed=5")
    second = record("bad.frame client=%s", "x")
    assert repeats.filter(second)
    assert "suppressed" not in LineFormatter().format(second)


def test_tracebacks_and_configuration_warnings_always_pass() -> None:
    repeats = RepeatFilter(lambda: 0.0)
    assert all(
        repeats.filter(record("failed", exc_info=(RuntimeError, RuntimeError(), None)))
        for _ in range(3 * REPEATS_MAX)
    )
    always = record("a key is ignored")
    always.always = True
    assert all(repeats.filter(always) for _ in range(3 * REPEATS_MAX))


def test_the_remembered_statements_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "STATEMENTS_MAX", 3)
    repeats = RepeatFilter(lambda: 0.0)
    for line in range(100):
        assert repeats.filter(record("x", line=line))
        assert len(repeats._statements) <= 3


def test_set_up_writes_to_standard_error_once(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.set_up("WARNING")
    logs.set_up("WARNING")
    logging.getLogger("mqd.x").info("quiet")
    logging.getLogger("mqd.x").error("loud a=1")
    logs.warn_all(f"key{i} is ignored" for i in range(REPEATS_MAX + 5))
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1 + REPEATS_MAX + 5
    assert lines[0].endswith("ERROR mqd.x loud a=1")
    assert lines[-1].endswith("WARNING mqd.config configuration warning message='key14 is ignored'")
