"""The first offset of a log that did not begin at 0, as the name of an empty file in its directory.

A follower begins its log at the leader's log start offset. After a power cut, any unsynced file may
be missing. If the first segment has base offset 10, either the log began there, or earlier segments
were lost. This file decides. It is created with the first segment, and the first sync of the log
makes both durable. If it is missing, no record of the log was ever synced, unless a checkpoint
names a log start offset or a recovery point.

Retention creates another one if the disk is so full that the log start checkpoint cannot be
written. An empty file takes no space. The largest offset counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from mqd.types import Offset

if TYPE_CHECKING:
    from mqd.io.disk import Disk

_NAME = re.compile(r"log-began-at-([0-9]{1,19})")


def create_first_offset_file(disk: Disk, path: Path, offset: Offset) -> None:
    """`path`: the directory of the log. Raises OSError."""
    disk.open(path / f"log-began-at-{offset}", create=True).close()


def mark_first_offset(disk: Disk, path: Path, offset: Offset) -> None:
    """The log in the directory `path` begins at `offset` now, or later. Durable on return. Raises
    OSError."""
    create_first_offset_file(disk, path, offset)
    disk.sync_directory(path)


def is_first_offset_file(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def first_offset_of(names: Iterable[str]) -> Offset:
    """The first offset of a log whose directory has files with these names."""
    found = (_NAME.fullmatch(name) for name in names)
    return max((int(match[1]) for match in found if match is not None), default=0)
