"""Worker threads for clients. The server uses `Disk.offload`, which a simulation replaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

ResultT = TypeVar("ResultT")


async def in_thread(call: Callable[[], ResultT]) -> ResultT:
    """Run a blocking call in a worker thread. If the caller is cancelled, the result is dropped."""
    return await trio.to_thread.run_sync(call, abandon_on_cancel=True)
