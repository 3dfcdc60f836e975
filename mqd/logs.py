"""What the daemon says on standard error: one line an event, `time level event key=value ...`,
repeats held back.

Loggers are the standard library's; `logging.getLogger(__name__).info("segment.rolled partition=%s",
partition)` is a whole event. This module decides the shape of the line and how often the same
complaint may be repeated: a client that sends rubbish in a loop, or a full disk, must not fill
another disk with log lines.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Final, TextIO

REPEATS_MAX: Final = 10
"""Lines from the same place in the code that may be written in one window."""
REPEATS_WINDOW_S: Final = 10.0
PLACES_MAX: Final = 1_000
"""Places that are told apart; above it, the count starts anew for all."""


def set_up(level: str = "INFO") -> None:
    """Send every logger's lines to standard error.

    Replaces what was set up before; `level` is a `logging.level` of the option table.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    handler.addFilter(RepeatFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def write_line(line: str, stream: TextIO | None = None) -> None:
    """One line, whole though several threads write, on standard error or `stream`. Whoever read
    there may have gone: what is written from then on goes nowhere, and nobody stops for that.
    """
    stream = sys.stderr if stream is None else stream
    try:
        stream.write(line + "\n")
        stream.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # the interpreter would try once more at its end
        os.close(nowhere)


def warn_all(warnings: Iterable[str]) -> None:
    """What an operator should hear about his configuration: each line, however many there are."""
    for warning in warnings:
        logging.getLogger("mqd.config").warning("%s", warning, extra={"always": True})


class LineFormatter(logging.Formatter):
    """`2026-03-01T12:00:00.123Z INFO mqd.log segment.rolled partition=t-0`; a traceback
    follows on lines of its own.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        message = record.message.replace("\r", "\\r").replace("\n", "\\n")
        repeats = getattr(record, "held_back", 0)
        more = f" held_back={repeats}" if repeats else ""
        return f"{seconds}.{int(record.msecs):03}Z {record.levelname} {record.name} {message}{more}"

    def usesTime(self) -> bool:  # noqa: N802
        return False  # formatMessage writes the time itself


class RepeatFilter(logging.Filter):
    """Holds back a line whose place in the code has written `REPEATS_MAX` of them in this window.

    The first line of the next window says how many were held back. Errors with a traceback always
    pass.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._places: dict[tuple[str, int], _Place] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info or getattr(record, "always", False):
            return True
        now = self._now()
        key = (record.pathname, record.lineno)
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= PLACES_MAX:
                self._places.clear()
            place = self._places[key] = _Place(now)
        if now - place.window_start >= REPEATS_WINDOW_S:
            record.held_back = place.held_back
            place.window_start, place.written, place.held_back = now, 0, 0
        if place.written >= REPEATS_MAX:
            place.held_back += 1
            return False
        place.written += 1
        return True


class _Place:
    __slots__ = ("held_back", "window_start", "written")

    def __init__(self, now: float) -> None:
        self.window_start = now
        self.written = 0
        self.held_back = 0
