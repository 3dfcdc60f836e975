"""Logging to standard error: one line for each event, `time level logger event key=value ...`.

Modules use the standard library's loggers:
`logging.getLogger(__name__).info("appends resume partition=%s", partition)`. This module formats
the lines, quotes each value that has a space, and suppresses repeats. A client that sends invalid
requests in a loop, or a full disk, must not fill a disk with log lines.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from typing import Final, TextIO

REPEATS_MAX: Final = 10
"""The maximum number of lines from one log statement in one window."""
REPEATS_WINDOW_S: Final = 10.0
STATEMENTS_MAX: Final = 1_000
"""The maximum number of log statements that are counted; then all counts restart at 0."""


def set_up(level: str = "INFO") -> None:
    """Send the lines of all loggers to standard error, and replace all other handlers.

    `level` is a value of the option `logging.level`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    handler.addFilter(RepeatFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def write_line(line: str, stream: TextIO | None = None) -> None:
    """Write one line to standard error or `stream`. Lines of several threads do not mix.

    If the reader of the stream has gone, this and all later output is discarded without an error.
    """
    stream = sys.stderr if stream is None else stream
    try:
        stream.write(line + "\n")
        stream.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # the interpreter flushes again at exit
        os.close(nowhere)


def warn_all(warnings: Iterable[str]) -> None:
    """Log warnings about the configuration. They are never suppressed."""
    for warning in warnings:
        logging.getLogger("mqd.config").warning(
            "configuration warning message=%s", warning, extra={"always": True}
        )


class LineFormatter(logging.Formatter):
    """`2026-03-01T12:00:00.123Z INFO mqd.log appends resume partition=t-0`; a traceback
    follows on further lines.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        message = message_of(record).replace("\r", "\\r").replace("\n", "\\n")
        repeats = getattr(record, "suppressed", 0)
        more = f" suppressed={repeats}" if repeats else ""
        return f"{seconds}.{int(record.msecs):03}Z {record.levelname} {record.name} {message}{more}"

    def usesTime(self) -> bool:  # noqa: N802
        return False  # formatMessage writes the time itself


_CONVERSION = re.compile(r"%(?:%|[-#0 +]*\d*(?:\.\d+)?[a-zA-Z])")


def message_of(record: logging.LogRecord) -> str:
    """The message of a record. The argument of each `key=%s` is quoted if it has a space:
    `reason='the session expired'`.
    """
    if not isinstance(record.args, tuple) or not isinstance(record.msg, str):
        return record.getMessage()
    conversions = [each for each in _CONVERSION.finditer(record.msg) if each[0] != "%%"]
    if len(conversions) != len(record.args):
        return record.getMessage()
    arguments = [
        quoted(str(argument)) if _is_whole_value(record.msg, found) else argument
        for found, argument in zip(conversions, record.args, strict=True)
    ]
    return record.msg % tuple(arguments) if arguments else record.getMessage()


def _is_whole_value(text: str, found: re.Match[str]) -> bool:
    """Whether the conversion is `%s` between `=` and a space or the end."""
    before, after = text[: found.start()], text[found.end() :]
    return found[0] == "%s" and before.endswith("=") and after[:1] in ("", " ")


def quoted(text: str) -> str:
    """A value of a log line: in quotes if it has a space."""
    if not any(character.isspace() for character in text):
        return text
    if "'" not in text:
        return f"'{text}'"
    return '"' + text.replace('"', '\\"') + '"'


class RepeatFilter(logging.Filter):
    """Suppresses lines of a log statement that has written `REPEATS_MAX` lines in this window.

    Its first line in a later window has their number. Errors with a traceback are never suppressed.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._statements: dict[tuple[str, int], _Statement] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info or getattr(record, "always", False):
            return True
        now = self._now()
        key = (record.pathname, record.lineno)
        statement = self._statements.get(key)
        if statement is None:
            if len(self._statements) >= STATEMENTS_MAX:
                self._statements.clear()
            statement = self._statements[key] = _Statement(now)
        if now - statement.window_start >= REPEATS_WINDOW_S:
            record.suppressed = statement.suppressed
            statement.window_start, statement.written, statement.suppressed = now, 0, 0
        if statement.written >= REPEATS_MAX:
            statement.suppressed += 1
            return False
        statement.written += 1
        return True


class _Statement:
    __slots__ = ("suppressed", "window_start", "written")

    def __init__(self, now: float) -> None:
        self.window_start = now
        self.written = 0
        self.suppressed = 0
