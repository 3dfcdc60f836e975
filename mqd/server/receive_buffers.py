"""Memory that connections receive into: one arena for all in a turn, and a buffer for each
unfinished frame.
"""

from __future__ import annotations

import mmap

from mqd.limits import MIB, RECEIVE_BYTES_MAX

_MAPPED_BYTES_MIN = 8 * MIB
"""From this size on, the buffer of a frame is a memory mapping: it costs no time before bytes
arrive, and grows without a copy. A `bytearray` of 64 MiB takes 40 ms.
"""
Buffer = bytearray | mmap.mmap
"""A buffer that connections receive into. A memoryview of it keeps it alive."""


def new_buffer(size: int) -> Buffer:
    if size < _MAPPED_BYTES_MIN:
        return bytearray(size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class Arena:
    """The buffer that all connections receive into during one turn of the loop.

    It is used from front to back, and from the front again in the next turn. So idle connections
    need no buffers, and records are written to the log from where they were received.
    """

    __slots__ = ("buffer", "position", "size", "view")

    def __init__(self, size: int) -> None:
        self.buffer = bytearray(size)
        self.view = memoryview(self.buffer)
        self.size = size
        self.position = 0

    @property
    def full(self) -> bool:
        return self.size - self.position < RECEIVE_BYTES_MAX
