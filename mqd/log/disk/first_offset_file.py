"""The first offset of a log that did not begin at 0, as the name of an empty file in its directory.

A follower begins its log at the leader's log start. After a power cut, unsynced files are on the
disk in any order: a first segment at offset 10 may be such a beginning, or the first segment may be
lost. The file decides. It is created with the first segment, and the first sync of the log makes
both durable. If it is missing, no record of the log was ever synced, unless a checkpoint names a
log start or a recovery point.
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


def leave_beginning(disk: Disk, path: Path, offset: Offset) -> None:
    """`path`: the directory of the log. OSError."""
    disk.open(path / f"log-began-at-{offset}", create=True).close()


def is_beginning(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def beginning_of(names: Iterable[str]) -> Offset:
    """The first offset of a log whose directory has files of these names."""
    found = (_NAME.fullmatch(name) for name in names)
    return max((int(match[1]) for match in found if match is not None), default=0)
