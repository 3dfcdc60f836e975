"""How much memory this process may count on: the machine's, or the limit of a control group."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Of version 2 and of version 1, as a container sees its own."""


def memory_bytes(limits: Iterable[Path] = _CGROUP_LIMITS) -> int:
    """Bytes of memory.

    A control group without a limit has "max", or a number beyond all machines.
    """
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in limits:
        with suppress(OSError, ValueError):
            found = min(found, int(path.read_text()))
    return found
