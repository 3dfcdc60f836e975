"""The memory that this process may use: the machine's, or the limit of its control group."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""The limit files of control groups version 2 and version 1, as a container sees its own."""


def memory_bytes(limits: Iterable[Path] = _CGROUP_LIMITS) -> int:
    """The memory in bytes.

    A control group without a limit has "max", or a number above that of any machine.
    """
    smallest = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in limits:
        with suppress(OSError, ValueError):
            smallest = min(smallest, int(path.read_text()))
    return smallest
