"""The crash model of a simulated disk: which unsynced writes and renames survive a power failure.

Every later read sees a write at once, and a killed process leaves its writes behind. A power
failure keeps what was synced. Of a file, each write since the last sync may be lost, kept, torn at
any byte, or leave zeros in place of its bytes. Of a directory, each entry that was created, renamed
or removed since its last sync may be there or not: a new file has a durable entry only after a sync
of its directory.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


class Inode:
    """The content of one file: as processes see it, and as it is on stable storage."""

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
                case 2:  # in order, up to somewhere in the middle of one
                    pending = pending[: source.randrange(len(pending)) + 1]
                    pending[-1] = _torn(pending[-1], source)
                case 3:  # blocks in any order
                    pending = [
                        _torn(write, source) if source.random() < 0.3 else write
                        for write in pending
                        if source.random() < 0.6
                    ]
                case 4:  # the sizes were written, the data of some was not
                    pending = [
                        _zeroed(write, source) if source.random() < 0.5 else write
                        for write in pending
                    ]
            for write in pending:
                apply_write(self.durable, *write)
        self.data = bytearray(self.durable)
        self.pending = []


class Directory:
    """Names, as processes see them, and as they are on stable storage."""

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
                case 2:  # as journals of file systems do: in order
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
        """A copy of what processes see, all of it durable."""
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
