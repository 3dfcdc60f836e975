"""What the programs of this folder share: the directory of a run, and its end."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SHOWN_MAX = 20
"""Violations that are printed."""


def add_keep(parser: argparse.ArgumentParser) -> None:
    """Add the option of `directory_of`."""
    parser.add_argument(
        "--keep",
        type=Path,
        default=None,
        metavar="DIR",
        help="use this directory and leave it there",
    )


@contextmanager
def directory_of(keep: Path | None, prefix: str) -> Iterator[Path]:
    """The directory of a run: `keep`, or a temporary one that is removed at the end."""
    directory = keep or Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield directory
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)


def conclude(
    summary: str, violations: Sequence[object], *, reasons: str = "", again: str = ""
) -> int:
    """Print the result of a run that has ended. Returns the exit code.

    `reasons`: printed after violations. `again`: the command that repeats the run.
    """
    print(summary)
    _print_faults(violations, reasons if violations else "")
    print(f"chaos: {'FAILED' if violations else 'everything held'}")
    if again:
        print(f"again: {again}")
    return 1 if violations else 0


def failed(
    error: Exception, violations: Sequence[object] = (), *, reasons: str = "", again: str = ""
) -> int:
    """Print why a run stopped early. Returns the exit code. Parameters as of `conclude`."""
    print(f"chaos: FAILED: {error}", file=sys.stderr)
    _print_faults(violations, reasons)
    if again:
        print(f"again: {again}", file=sys.stderr)
    return 1


def _print_faults(violations: Sequence[object], reasons: str) -> None:
    for violation in violations[:SHOWN_MAX]:
        print(violation, file=sys.stderr)
    if reasons:
        print(reasons, file=sys.stderr)
