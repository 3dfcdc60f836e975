"""A history as files of JSON lines, which `mqd-spark audit` joins at any scale.

`history.jsonl` has one event for each sent record: `ok` with the acknowledged offset, or `info`
without an acknowledgement. `log.jsonl` has the records of the log at the end. The id of a record is
its value, as in `history.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .history import NOT_ACKED, History, value_of


def events(history: History) -> Iterator[dict[str, Any]]:
    """One event for each sent record."""
    for producer, keys in sorted(history.sends.items()):
        for (topic, partition), rows in sorted(keys.items()):
            for number, offset in enumerate(rows):
                event: dict[str, Any] = {
                    "event": "info" if offset == NOT_ACKED else "ok",
                    "producer": str(producer),
                    "topic": topic,
                    "partition": partition,
                    "number": number,
                    "id": str(value_of(producer, number)),
                }
                yield event | ({"offset": offset} if offset >= 0 else {})


def log_rows(history: History) -> Iterator[dict[str, Any]]:
    """One row for each record at the end."""
    for (topic, partition), reads in sorted(history.final.items()):
        for offset, value in zip(reads.offsets, reads.values):
            yield {"topic": topic, "partition": partition, "offset": offset, "id": str(value)}


def write(history: History, directory: Path) -> None:
    """Write both files into `directory`; creates it if it is missing."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, rows in (("history.jsonl", events(history)), ("log.jsonl", log_rows(history))):
        with open(directory / name, "w") as file:
            for row in rows:
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
