"""The crash model of a simulated disk: which unsynced writes and renames survive a power failure.

Reads see every earlier write, also those of a killed process. A power failure keeps everything that
was synced. In a file, each write since the last sync may be lost, kept, torn at any byte, or
replaced by zeros. In a directory, each change of an entry since the last sync (create, rename,
remove) may be lost. A new file is durable only after a sync of its directory.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


class Inode:
    """The content of one file: the bytes that processes see, and the bytes on stable storage."""

    __slots__ = ("data", "durable", "number", "pending")

    def __init__(self, number: int) -> None:
        self.number = number
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []
        """Writes (position, bytes) and truncations (size, None) since the last sync."""

    def sync(self) -> None:
        for write in self.pending:
            apply_write(self.durable, *write)
        self.pending.clear()

    def lose_power(self, source: random.Random) -> None:
        """Keep a random part of the unsynced writes."""
        pending = self.pending
        if pending:
            match source.randrange(5):
                case 0:
                    pending = []
                case 1:
                    pass  # all of it
                case 2:  # in order, up to a random byte of one write
                    pending = pending[: source.randrange(len(pending)) + 1]
                    pending[-1] = _torn(pending[-1], source)
                case 3:  # blocks in any order
                    pending = [
                        _torn(write, source) if source.random() < 0.3 else write
                        for write in pending
                        if source.random() < 0.6
                    ]
                case 4:  # the sizes are written, but not all data
                    pending = [
                        _zeroed(write, source) if source.random() < 0.5 else write
                        for write in pending
                    ]
            for write in pending:
                apply_write(self.durable, *write)
        self.data = bytearray(self.durable)
        self.pending = []


class Directory:
    """The names that processes see, and the names on stable storage."""

    __slots__ = ("durable", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}
        self.pending: list[tuple[tuple[str, Inode | Directory | None], ...]] = []
        """Changes since the last sync, each atomic: names and their new entries."""

    def change(self, *changes: tuple[str, Inode | Directory | None]) -> None:
        _change(self.names, changes)
        self.pending.append(changes)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.pending.clear()

    def lose_power(self, source: random.Random) -> None:
        pending = self.pending
        if pending:
            match source.randrange(4):
                case 0:
                    pending = []
                case 1:
                    pass
                case 2:  # in order, as by the journal of a file system
                    pending = pending[: source.randrange(len(pending) + 1)]
                case 3:
                    pending = [change for change in pending if source.random() < 0.5]
            for changes in pending:
                _change(self.durable, changes)
        self.names = dict(self.durable)
        self.pending = []
        for entry in self.names.values():
            entry.lose_power(source)

    def copy(self) -> Directory:
        """A copy of everything that processes see, all of it durable."""
        copied = Directory()
        for name, entry in self.names.items():
            if isinstance(entry, Directory):
                copied.names[name] = entry.copy()
            else:
                inode = copied.names[name] = Inode(entry.number)
                inode.data, inode.durable = bytearray(entry.data), bytearray(entry.data)
        copied.durable = dict(copied.names)
        return copied

    def bytes(self) -> int:
        return sum(
            entry.bytes() if isinstance(entry, Directory) else len(entry.data)
            for entry in self.names.values()
        )


def _change(
    names: dict[str, Inode | Directory], changes: Sequence[tuple[str, Inode | Directory | None]]
) -> None:
    for name, entry in changes:
        if entry is None:
            names.pop(name, None)
        else:
            names[name] = entry


def apply_write(data: bytearray, position: int, written: bytes | None) -> None:
    if written is None:
        del data[position:]
        return
    if len(data) < position:
        data.extend(bytes(position - len(data)))
    data[position : position + len(written)] = written


def _torn(write: tuple[int, bytes | None], source: random.Random) -> tuple[int, bytes | None]:
    position, written = write
    return (position, written[: source.randrange(len(written) + 1)]) if written else write


def _zeroed(write: tuple[int, bytes | None], source: random.Random) -> tuple[int, bytes | None]:
    position, written = write
    if not written:
        return write
    start = source.randrange(len(written)) if source.random() < 0.5 else 0
    return position, written[:start] + bytes(len(written) - start)
