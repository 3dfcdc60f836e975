"""Progress of long work, on standard error: a bar on a terminal, a line from time to time
elsewhere.

`render` is pure. `Progress` has a clock and a stream, and writes at most a few times a second.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from pyspark_mqd.pipelines.cli import signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
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
    """Progress for the length of a block: `update` with how much is done so far.

    A quiet one counts, and writes nothing.
    """

    def __init__(
        self,
        label: str,
        *,
        unit: str = "records",
        total: int | None = None,
        quiet: bool = False,
        stream: Stream | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label = label
        self.unit = unit
        self.total = total
        self.done = 0
        self._stream: Stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._terminal = self._stream.isatty()
        self._clock = clock
        self._begun = self._written = clock()
        self._shown = ""

    def update(self, done: int, total: int | None = None) -> None:
        """`done` of `total` so far; writes only when it is time."""
        self.done = done
        self.total = self.total if total is None else total
        interval = TERMINAL_INTERVAL_S if self._terminal else LINE_INTERVAL_S
        if not self._quiet and self._clock() - self._written >= interval:
            self._write()

    def add(self, count: int) -> None:
        """`count` more."""
        self.update(self.done + count)

    def finish(self, done: int) -> None:
        """All that there was is done."""
        self.done = done
        self.total = self.total and done

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
        if (self.done or self._shown) and not self._quiet:
            self._write()
            if self._terminal:
                self._stream.write("\n")
                self._stream.flush()


def run_query(
    query: StreamingQuery,
    progress: Progress,
    count: Callable[[], int] | None = None,
    poll_s: float = POLL_S,
) -> None:
    """Show how far a streaming query is until it ends. Raises what made it fail.

    `count` gives the records so far; without it they are the input rows of the query. After Ctrl-C
    or SIGTERM the query is stopped, then the interruption rises.
    """
    rows = _Rows()
    try:
        while True:
            with signals.held():
                if not query.isActive:
                    break
                rows.update(query.recentProgress)
            time.sleep(poll_s)
            done = rows.count if count is None else count()
            progress.update(done, done + rows.backlog if rows.backlog else None)
        query.awaitTermination()  # raises what made it fail
    except BaseException as error:
        if not isinstance(error, Exception):
            with suppress(*jvm_errors()):  # the signal may have ended the JVM, too
                query.stop()
        raise
    finally:
        with suppress(*jvm_errors()):
            rows.update(query.recentProgress)
        progress.finish(rows.count if count is None else count())


def jvm_errors() -> tuple[type[Exception], ...]:
    """What a call to the JVM raises when the JVM, or the connection to it, has ended."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    return Py4JError, OSError


class _Rows:
    """Input rows of a query, summed over the progress of its micro-batches."""

    def __init__(self) -> None:
        self.count = 0
        self.backlog = 0
        self._seen = -1

    def update(self, recent: Iterable[Any]) -> None:
        for each in recent:
            batch = int(each["batchId"])
            if batch > self._seen:
                self.count += int(each["numInputRows"])
                self._seen = batch
                self.backlog = sum(backlog(source) for source in each["sources"])


def backlog(source: Any) -> int:
    """Offsets between the end of a micro-batch and the end of the topics, from its progress."""
    latest, end = _offsets(source["latestOffset"]), _offsets(source["endOffset"])
    return sum(max(0, place - end.get(name, place)) for name, place in latest.items())


def topics_in(text: Any) -> set[str]:
    """The topics of an offset in the progress of a query."""
    return {topic for topic, _ in _offsets(text)}


def _offsets(text: Any) -> dict[tuple[str, str], int]:
    try:
        raw = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    found = {}
    for topic, places in raw.items() if isinstance(raw, dict) else ():
        for partition, place in places.items() if isinstance(places, dict) else ():
            if isinstance(place, int) and partition.isdecimal():
                found[topic, partition] = place
    return found


def run_jobs(
    work: Callable[[], object], progress: Progress, count: Callable[[], int], poll_s: float = 1.0
) -> None:
    """Run a batch job, and show how far it is by `count`, which a thread calls meanwhile."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(poll_s):
            progress.update(count())

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        work()
    finally:
        ended.set()
        watcher.join()
    progress.finish(count())


def tasks_done(spark: SparkSession) -> int:
    """Tasks of the session that have ended, of the stages that Spark still knows."""
    tracker = spark.sparkContext.statusTracker()
    done = 0
    for job in tracker.getJobIdsForGroup(None):
        info = tracker.getJobInfo(job)
        for stage in [] if info is None else info.stageIds:
            about = tracker.getStageInfo(stage)
            done += 0 if about is None else about.numCompletedTasks
    return done
