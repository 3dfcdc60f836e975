"""Whether users other than the owner can read or change a file, and the remedy."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path

_OTHERS_CAN_READ = stat.S_IRGRP | stat.S_IROTH
OTHERS_CAN_CHANGE = stat.S_IWGRP | stat.S_IWOTH


def others_can_read(path: Path) -> bool:
    """Whether its group or all users can read the file. Raises OSError."""
    return bool(path.stat().st_mode & _OTHERS_CAN_READ)


def others_can_change(path: Path) -> bool:
    """Whether its group or all users can write to the file. Raises OSError."""
    return bool(path.stat().st_mode & OTHERS_CAN_CHANGE)


def warning_of_change(path: Path, consequence: str) -> str | None:
    """A warning if users other than the owner can change the file; also None if it cannot be
    inspected.
    """
    try:
        if not others_can_change(path):
            return None
    except OSError:
        return None
    return (
        f"users other than the owner can change {path}, and {consequence}: run chmod go-w "
        f"{shlex.quote(str(path))}"
    )


def remedy_for(path: Path) -> str:
    """The command that makes the file private."""
    return f"run chmod 600 {shlex.quote(str(path))}"
