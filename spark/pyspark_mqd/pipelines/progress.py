"""Progress of long work, on standard error: a bar on a terminal, a line from time to time elsewhere.

`render` is pure. `Progress` has a clock and a stream, and writes at most a few times a second.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

BAR_CELLS = 24
TERMINAL_INTERVAL_S = 0.2
LINE_INTERVAL_S = 10.0
POLL_S = 0.25


class Stream(Protocol):
    """Where progress goes."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def isatty(self) -> bool: ...


def render(label: str, unit: str, done: int, total: int | None, elapsed_s: float) -> str:
    """One line: with a total a bar, a share and the time that is left; else the count."""
    rate = done / elapsed_s if elapsed_s > 0 else 0.0
    if not total:
        return f"{label}  {done:,} {unit}  {rate:,.0f}/s"
    share = min(1.0, done / total)
    filled = int(BAR_CELLS * share)
    bar = "#" * filled + "." * (BAR_CELLS - filled)
    left = f"  {seconds((total - done) / rate)} left" if rate and done < total else ""
    return f"{label}  [{bar}] {share:4.0%}  {done:,} of {total:,} {unit}  {rate:,.0f}/s{left}"


def seconds(count: float) -> str:
    """A length of time for people."""
    whole = int(count + 0.5)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


class Progress:
    """Progress for the length of a block: `update` with how much is done so far."""

    def __init__(
        self,
        label: str,
        *,
        unit: str = "records",
        total: int | None = None,
        stream: Stream | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label = label
        self.unit = unit
        self.total = total
        self.done = 0
        self._stream: Stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._clock = clock
        self._begun = self._written = clock()
        self._shown = ""

    def update(self, done: int, total: int | None = None) -> None:
        """`done` of `total` so far; writes only when it is time."""
        self.done = done
        self.total = self.total if total is None else total
        interval = TERMINAL_INTERVAL_S if self._terminal else LINE_INTERVAL_S
        if self._clock() - self._written >= interval:
            self._write()

    def add(self, count: int) -> None:
        """`count` more."""
        self.update(self.done + count)

    def _write(self) -> None:
        self._written = self._clock()
        line = render(self.label, self.unit, self.done, self.total, self._written - self._begun)
        if self._terminal:
            self._stream.write(f"\r\x1b[K{line}")
        elif line != self._shown:
            self._stream.write(line + "\n")
        self._shown = line
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.done or self._shown:
            self._write()
            if self._terminal:
                self._stream.write("\n")
                self._stream.flush()


def follow(query: StreamingQuery, progress: Progress, poll_s: float = POLL_S) -> None:
    """Show the rows of a streaming query until it ends. Raises what made the query fail."""
    rows, seen = 0, -1
    while not query.awaitTermination(poll_s):  # type: ignore[arg-type]
        rows, seen = _count(query, rows, seen)
        progress.update(rows)
    rows, seen = _count(query, rows, seen)
    progress.update(rows)


def _count(query: StreamingQuery, rows: int, seen: int) -> tuple[int, int]:
    for each in query.recentProgress:
        batch: Any = each["batchId"]
        if batch > seen:
            rows, seen = rows + int(each["numInputRows"]), batch
    return rows, seen
