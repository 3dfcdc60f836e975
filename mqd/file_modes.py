"""Whether users other than the owner can read a file with secrets, and the remedy."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path

_OTHERS_CAN_READ = stat.S_IRGRP | stat.S_IROTH


def others_can_read(path: Path) -> bool:
    """Whether its group or all users can read the file. Raises OSError."""
    return bool(path.stat().st_mode & _OTHERS_CAN_READ)


def remedy_for(path: Path) -> str:
    """The command that makes the file private."""
    return f"run chmod 600 {shlex.quote(str(path))}"
