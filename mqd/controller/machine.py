"""The metadata image as Raft's state machine: `RaftService(machine=...)`.

A command takes effect only if its decider had seen everything before it: `base_index` is the index
of the last command that took effect here. Otherwise every node skips it alike. So no command
applies to an image that its controller did not see (I10). Such a command is a decision of a deposed
controller, or a proposal with an unknown outcome.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from mqd.controller.commands import decode_command
from mqd.controller.delta import Delta, Restoring, Subscriber
from mqd.controller.image import MetadataImage
from mqd.controller.replay import replay
from mqd.controller.snapshot import restoring, snapshot_pieces
from mqd.raft.snapshots import Work, all_steps

_SKIPPED_REMEMBERED = 1_000
"""Skipped commands whose indexes `took_effect` remembers."""


class MetadataMachine:
    """Holds the image, applies committed commands, and calls subscribers with each change.

    `apply` is total for every command that `encode_command` wrote. Other bytes come from another
    version of mqd: ValueError stops the daemon before its image differs from that of its peers.
    """

    def __init__(self) -> None:
        self.image = MetadataImage()
        self._subscribers: list[tuple[Subscriber, Restoring | None]] = []
        self._skipped: deque[int] = deque(maxlen=_SKIPPED_REMEMBERED)

    def subscribe(self, subscriber: Subscriber, restoring: Restoring | None = None) -> None:
        """Call `subscriber(delta, image)` after each change, in order of subscription, without an
        await in between. For a snapshot, `restoring` replaces this call.
        """
        self._subscribers.append((subscriber, restoring))

    def apply(self, index: int, command: bytes) -> int:
        image = self.image
        base_index, records = decode_command(command)
        if base_index != image.index:
            self._skipped.append(index)
            return len(records)
        delta = Delta(index)
        for record in records:
            replay(image, record, index, delta)
        image.index = index
        for subscriber, _ in self._subscribers:
            subscriber(delta, image)
        return len(records) + len(delta.partitions_changed)

    def took_effect(self, index: int) -> bool:
        """Whether the command at an index that was just applied was not skipped."""
        return index not in self._skipped

    def snapshot(self) -> Iterator[bytes]:
        return snapshot_pieces(self.image)

    def restoring(self, data: bytes) -> Work[Callable[[], None]]:
        fresh, delta = yield from restoring(self.image, data)
        applying: list[Callable[[], None]] = []
        for subscriber, restore in self._subscribers:
            if restore is None:
                applying.append(partial(subscriber, delta, self.image))
            else:
                applying.append((yield from restore(delta, fresh)))

        def take_effect() -> None:
            self.image.become(fresh)
            for apply in applying:
                apply()

        return take_effect

    def restore(self, data: bytes) -> None:
        """`restoring`, and the call that it returns, at once."""
        all_steps(self.restoring(data))()
