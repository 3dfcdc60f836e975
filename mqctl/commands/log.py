"""mqctl log: read the data directory of a stopped node, without a connection."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import click

from mqctl import offline, render
from mqctl.app import FAILED, Failure, LazyGroup, Settings, offline_options, print_message, write
from mqctl.dumping import dump_batches, dump_records, dump_small
from mqctl.verifying import Verifier
from mqd.errors import StorageError

COMMANDS = {
    "dump": (
        "mqctl.commands.log:dump",
        "Show the batches or records of a segment, or the content of another file.",
    ),
    "verify": (
        "mqctl.commands.log:verify",
        "Check every segment, index, checkpoint and snapshot of a data directory or a partition.",
    ),
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
_PROGRESS_SECONDS = 0.5


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def log() -> None:
    """Read the data directory of a stopped node."""


@click.command()
@offline_options
@click.argument("path", metavar="DIR_OR_FILE", type=click.Path(exists=True, path_type=Path))
@click.option("--records", is_flag=True, help="Show records instead of batches.")
def dump(settings: Settings, path: Path, records: bool) -> None:
    """Show the content of a segment, index, snapshot or checkpoint, or of all segments of a
    partition.

    \b
    mqctl log dump data/node-1/logs/orders-0 --records
    """
    try:
        if path.is_dir() or offline.is_segment(path):
            segments = offline.segments_of(path) if path.is_dir() else [path]
            if not segments:
                raise Failure(
                    f"no segments in {str(path)!r}",
                    remedy="specify the directory of a partition, such as DATA/orders-0, or a file",
                )
            one = dump_records if records else dump_batches
            _show_pages(
                settings, RECORDS if records else BATCHES, chain.from_iterable(map(one, segments))
            )
            return
        rows = dump_small(path)
    except StorageError as error:
        raise Failure(f"{path}: {error}") from None
    except OSError as error:
        raise Failure(f"cannot read {str(path)!r}: {error.strerror}") from None
    if not rows:
        print_message(f"{path} has no entries")
        if settings.output in ("json", "yaml"):
            settings.show_data([])
        return
    names = list(rows[0])
    settings.show(
        [render.Column(name, name.replace("_", "-").upper(), right=True) for name in names], rows
    )


def _show_pages(
    settings: Settings, columns: tuple[render.Column, ...], rows: Iterator[dict[str, Any]]
) -> None:
    """Write rows in pages if the format permits it: a segment may have millions of records."""
    if settings.output not in ("table", "jsonl"):
        settings.show_data(list(rows))
        return
    first = True
    while page := list(islice(rows, _PAGE_ROWS)):
        if settings.output == "jsonl" or first:
            settings.show(columns, [_cells(row, settings) for row in page])
        else:
            write(render.table(columns, [_cells(row, settings) for row in page]).split("\n", 1)[1])
        first = False


def _cells(row: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """A row for a table, with headers as name=value; unchanged for other formats."""
    if settings.output != "table" or not row.get("headers"):
        return row
    return {
        **row,
        "headers": [f"{one['name']}={render.cell(one['value'])}" for one in row["headers"]],
    }


@click.command()
@offline_options
@click.argument(
    "path", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--allow-gaps",
    is_flag=True,
    help="Permit gaps between offsets, also in partitions that were never compacted.",
)
def verify(settings: Settings, path: Path, allow_gaps: bool) -> None:
    """Check every segment (CRC, offsets), index, checkpoint and snapshot.

    DIR is a data directory, the directory of `mqd dev` with the data of several nodes, a log
    directory or the directory of one partition. For a data directory, all log directories of the
    node are checked, also those elsewhere (log.dirs). The exit code is 1 if it finds a fault, or no
    partition. The metadata log of a node (DIR/metadata) is not checked: the node checks it at its
    start.

    \b
    mqctl log verify data
    """
    nodes = [] if offline.is_partition(path) else offline.node_directories(path)
    for each in nodes or [path]:
        if offline.in_use(each):
            print_message(
                f"warning: a node is running on {each}: its unfinished writes may be reported as "
                "faults; stop it first to be certain"
            )
    verifier = Verifier(_progress(), allow_gaps=allow_gaps)
    directories: list[Path] = []
    try:
        if offline.is_partition(path):
            verifier.partition(path)
        else:
            directories = offline.log_directories(path)
            for directory in directories:
                verifier.directory(directory)
    except StorageError as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise Failure(f"cannot read {error.filename!r}: {error.strerror}") from None
    rows = [{"file": finding.file, "problem": finding.problem} for finding in verifier.findings]
    if settings.output in ("table", "jsonl"):
        if rows:
            settings.show(FINDINGS, rows)
    else:
        summary = {
            "partitions": verifier.partitions,
            "batches": verifier.batches,
            "bytes": verifier.size_bytes,
            "findings": rows,
        }
        settings.show_data({"directories": [str(one) for one in directories], **summary})
    for each in nodes or [path]:
        metadata = each / offline.METADATA_FOLDER
        if metadata.is_dir():
            print_message(f"{metadata} was not checked: the node checks it at its start")
    if directories not in ([], [path]):
        print_message(f"log directories: {', '.join(map(str, directories))}")
    if not verifier.partitions and not rows:
        remedy = "specify a data directory, one of its log.dirs, or the directory of a partition"
        raise Failure(f"no partitions in {str(path)!r}: nothing was verified", remedy=remedy)
    print_message(
        f"{verifier.partitions} partitions, {verifier.batches} batches, {verifier.size_bytes} "
        f"bytes: {len(rows)} faults"
    )
    if rows:
        raise SystemExit(FAILED)


def _progress() -> Callable[[str], None]:
    """A function that prints the partition being read: only on a terminal, and at most every
    _PROGRESS_SECONDS.
    """
    if not sys.stderr.isatty():
        return lambda partition: None
    printed_at = time.monotonic()

    def show(partition: str) -> None:
        nonlocal printed_at
        if time.monotonic() - printed_at >= _PROGRESS_SECONDS:
            printed_at = time.monotonic()
            print_message(f"reading {partition}")

    return show
