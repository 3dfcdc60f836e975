"""A leader's snapshot on its way to a follower (InstallSnapshot; Raft, 7). Pure: `now` is a
parameter.

`SnapshotSender`: the leader sends one chunk at a time to each follower, the next one when the
follower has acknowledged it. `SnapshotReceiver`: the follower joins the chunks of one snapshot and
loads it outside of the turn (snapshots.py). Nothing is applied until it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mqd import limits
from mqd.raft import formats
from mqd.raft.codec import InstallSnapshot, SnapshotReply
from mqd.raft.journal import Journal
from mqd.raft.machine import Machine
from mqd.raft.snapshot_source import SnapshotSource
from mqd.raft.snapshots import Load, Work


@dataclass(slots=True)
class _Transfer:
    """The transfer of a snapshot to one follower, with one chunk in flight."""

    index: int
    term: int
    source: SnapshotSource
    acknowledged: int
    sent_at: float

    def chunk(self, term: int, now: float) -> InstallSnapshot:
        """The bytes after the acknowledged ones."""
        self.sent_at = now
        data = self.source.read_at(self.acknowledged, limits.RAFT_SNAPSHOT_CHUNK_BYTES)
        return self.message(term, data)

    def message(self, term: int, data: bytes) -> InstallSnapshot:
        start = self.acknowledged
        return InstallSnapshot(term, self.index, self.term, self.source.size, start, data)


class SnapshotSender:
    """The snapshots that a leader sends, one to a follower."""

    def __init__(self, journal: Journal, *, resend_after: float) -> None:
        """`resend_after`: seconds after which an unacknowledged chunk is sent again."""
        self._journal = journal
        self._resend_after = resend_after
        self._transfers: dict[int, _Transfer] = {}

    def clear(self) -> None:
        self._transfers.clear()

    def stop(self, peer: int) -> None:
        """Stop the transfer to `peer`: its connection closed, or its process restarted."""
        self._transfers.pop(peer, None)

    def matched(self, peer: int, match_index: int) -> None:
        """The log of `peer` equals the leader's up to this index."""
        transfer = self._transfers.get(peer)
        if transfer is not None and match_index >= transfer.index:
            del self._transfers[peer]

    def next_message(self, peer: int, *, term: int, now: float) -> InstallSnapshot:
        """The first chunk, an empty one as a heartbeat, or an unacknowledged chunk again."""
        transfer = self._transfers.get(peer)
        if transfer is None:
            journal = self._journal
            index, index_term = journal.snapshot_index, journal.snapshot_term
            transfer = _Transfer(index, index_term, journal.snapshot_source(), 0, now)
            self._transfers[peer] = transfer
            return transfer.chunk(term, now)
        if now - transfer.sent_at > self._resend_after:
            return transfer.chunk(term, now)
        return transfer.message(term, b"")

    def on_reply(
        self, peer: int, reply: SnapshotReply, *, term: int, now: float
    ) -> InstallSnapshot | None:
        """Process a reply. Returns the next chunk, if any."""
        transfer = self._transfers.get(peer)
        if transfer is None or transfer.index != reply.index:
            return None
        if reply.offset > transfer.source.size:
            return None
        if reply.offset == transfer.acknowledged:
            return None
        transfer.acknowledged = reply.offset  # more bytes, or the follower restarted the transfer
        return transfer.chunk(term, now)


_Key = tuple[int, int, int]
"""Index, term and size of a snapshot, as its leader announces it."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of loading a leader's snapshot."""

    snapshot: formats.Snapshot | None
    """None if it is unusable."""
    damage: str
    take_effect: Callable[[], None] = lambda: None


class SnapshotReceiver:
    """At most one snapshot of a leader at a time: its chunks, then its loading."""

    def __init__(self, cluster_id: str, machine: Machine, load: Load) -> None:
        self._cluster_id = cluster_id
        self._machine = machine
        self._load = load
        self._incoming: tuple[_Key, bytearray] | None = None
        self._loading: _Key | None = None
        self._loaded: Loaded | None = None

    @property
    def is_loading(self) -> bool:
        """Whether a snapshot is complete and not installed. Meanwhile no entry is applied, and
        chunks of another snapshot are refused.
        """
        return self._loading is not None

    def bytes_held(self, message: InstallSnapshot) -> int:
        """The received bytes of the snapshot of `message`, from its start."""
        key = _key(message)
        if self._loading is not None:
            return message.size if self._loading == key else 0
        if self._incoming is not None and self._incoming[0] == key:
            return len(self._incoming[1])
        return 0

    def add(self, message: InstallSnapshot) -> bool:
        """Add a chunk. True if the snapshot is complete: its loading has begun, or has ended."""
        assert self._loading is None
        key = _key(message)
        if self._incoming is None or self._incoming[0] != key:
            self._incoming = (key, bytearray())
        data = self._incoming[1]
        if message.offset == len(data):
            data += message.data
        if len(data) < message.size:
            return False
        self._incoming, self._loading = None, key
        self._load(self._steps(key, data), self._on_loaded)
        return True

    def take_loaded(self) -> Loaded | None:
        """The loaded snapshot to install now, once."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self._loading = None
        return loaded

    def _on_loaded(self, loaded: Loaded) -> None:
        self._loaded = loaded

    def _steps(self, key: _Key, data: bytearray) -> Work[Loaded]:
        """The snapshot, and the call that replaces the machine's state with its own."""
        try:
            snapshot = formats.decode_snapshot(bytes(data))
        except formats.Damaged as damage:
            return Loaded(None, str(damage))
        if (snapshot.cluster_id, snapshot.index, snapshot.term) != (self._cluster_id, *key[:2]):
            return Loaded(None, "it is not the one that was announced")
        yield
        take_effect = yield from self._machine.restoring(snapshot.state)
        return Loaded(snapshot, "", take_effect)


def _key(message: InstallSnapshot) -> _Key:
    return message.index, message.index_term, message.size
