"""mqctl log: read the data directory of a node that does not run. No broker is asked."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import click

from mqctl import offline, render
from mqctl.app import FAILED, Failure, LazyGroup, Settings, options, say, write
from mqd.errors import StorageError

COMMANDS = {
    "dump": ("mqctl.commands.log:dump", "Show the batches or records of a segment, or what another file holds."),
    "verify": ("mqctl.commands.log:verify", "Check every segment, index, checkpoint and snapshot of a data directory."),
}

BATCHES = (
    render.Column("file", "FILE"),
    render.Column("position", "POSITION", right=True),
    render.Column("base_offset", "BASE", right=True),
    render.Column("last_offset", "LAST", right=True),
    render.Column("records", "RECORDS", right=True),
    render.Column("bytes", "BYTES", right=True),
    render.Column("codec", "CODEC"),
    render.Column("max_timestamp", "MAX-TIMESTAMP", right=True),
    render.Column("leader_epoch", "EPOCH", right=True),
    render.Column("producer_id", "PRODUCER", right=True),
    render.Column("base_sequence", "SEQUENCE", right=True),
    render.Column("crc", "CRC"),
)
RECORDS = (
    render.Column("offset", "OFFSET", right=True),
    render.Column("timestamp", "TIMESTAMP", right=True),
    render.Column("key", "KEY"),
    render.Column("value", "VALUE"),
    render.Column("headers", "HEADERS"),
)
FINDINGS = (render.Column("file", "FILE"), render.Column("problem", "PROBLEM"))
_PAGE_ROWS = 1000


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def log() -> None:
    """Read the data directory of a stopped node."""


@click.command()
@options
@click.argument("path", metavar="DIR_OR_FILE", type=click.Path(exists=True, path_type=Path))
@click.option("--records", is_flag=True, help="Unpack batches and show their records.")
def dump(settings: Settings, path: Path, records: bool) -> None:
    """Show a partition's directory (all its segments), one segment, an index, a snapshot or a checkpoint."""
    try:
        if path.is_dir() or offline.is_segment(path):
            segments = offline.segments_of(path) if path.is_dir() else [path]
            if not segments:
                raise Failure(f"{path} holds no segment", remedy="name a partition's directory, such as DATA/orders-0, or a file")
            one = offline.dump_records if records else offline.dump_batches
            _show_pages(settings, RECORDS if records else BATCHES, chain.from_iterable(map(one, segments)))
            return
        rows = offline.dump_small(path)
    except StorageError as error:
        raise Failure(f"{path}: {error}") from None
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from None
    names = list(rows[0]) if rows else ["offset"]
    settings.show([render.Column(name, name.replace("_", "-").upper(), right=True) for name in names], rows)


def _show_pages(settings: Settings, columns: tuple[render.Column, ...], rows: Iterator[dict[str, Any]]) -> None:
    """Rows as they come, where the form allows it: a segment may hold millions."""
    if settings.output not in ("table", "jsonl"):
        settings.show_data(list(rows))
        return
    first = True
    while page := list(islice(rows, _PAGE_ROWS)):
        if settings.output == "jsonl" or first:
            settings.show(columns, page)
        else:
            write(render.table(columns, page).split("\n", 1)[1])
        first = False


@click.command()
@options
@click.argument("path", metavar="DATA_DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--allow-gaps", is_flag=True, help="Missing offsets are no finding: the topics are compacted.")
def verify(settings: Settings, path: Path, allow_gaps: bool) -> None:
    """Check every segment (CRC, offsets), index, checkpoint and snapshot. Exit code 1 when something is found."""
    verifier = offline.Verifier(lambda partition: say(f"reading {partition}"), allow_gaps=allow_gaps)
    try:
        for directory in offline.log_directories(path):
            verifier.directory(directory)
    except OSError as error:
        raise Failure(f"{error.filename} cannot be read: {error.strerror}") from None
    rows = [{"file": finding.file, "problem": finding.problem} for finding in verifier.findings]
    if settings.output in ("table", "jsonl"):
        if rows:
            settings.show(FINDINGS, rows)
    else:
        settings.show_data(
            {"partitions": verifier.partitions, "batches": verifier.batches, "bytes": verifier.size_bytes, "findings": rows}
        )
    say(f"{verifier.partitions} partitions, {verifier.batches} batches, {verifier.size_bytes} bytes: {len(rows)} findings")
    if rows:
        raise SystemExit(FAILED)
