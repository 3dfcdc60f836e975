"""A snapshot is sent to a follower chunk by chunk, and restarts where the follower holds less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from mqd import limits
from mqd.raft.codec import COMMAND, InstallSnapshot, SnapshotReply
from mqd.raft.journal import Journal
from mqd.raft.journal_start import open_journal
from mqd.raft.snapshot_transfer import SnapshotReceiver, SnapshotSender
from mqd.raft.snapshots import Work, load_at_once
from tests.raft.memory_disk import MemoryDisk

STATE = bytes(range(200))


class Machine:
    def __init__(self) -> None:
        self.state = b""

    def apply(self, index: int, command: bytes) -> int:
        return 1

    def snapshot(self) -> Iterator[bytes]:
        return iter((self.state,))

    def restoring(self, state: bytes) -> Work[Callable[[], None]]:
        yield

        def take_effect() -> None:
            self.state = state

        return take_effect


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> Journal:
    """With a snapshot at entry 2."""
    monkeypatch.setattr(limits, "RAFT_SNAPSHOT_CHUNK_BYTES", 100)
    journal = open_journal(
        MemoryDisk(), Path("raft"), cluster_id="c", node_id=1, new_uuid=lambda: UUID(int=1)
    )
    journal.append(COMMAND, 2, 1)
    journal.flush()
    journal.compact(2, STATE, entries_kept=0)
    journal.flush()
    return journal


def snapshot_of(journal: Journal) -> bytes:
    source = journal.snapshot_source()
    return source.read_at(0, source.size)


def receive(receiver: SnapshotReceiver, message: InstallSnapshot) -> SnapshotReply:
    receiver.add(message)
    return SnapshotReply(1, message.index, receiver.bytes_held(message))


def test_chunk_follows_chunk_until_the_snapshot_can_be_loaded(journal: Journal) -> None:
    machine = Machine()
    sender = SnapshotSender(journal, resend_after=1.0)
    receiver = SnapshotReceiver("c", machine, load_at_once)
    message: InstallSnapshot | None = sender.next_message(2, term=1, now=0.0)
    chunks = 0
    while message is not None:
        chunks += 1
        assert (message.index, message.index_term) == (2, 1) and len(message.data) <= 100
        message = sender.on_reply(2, receive(receiver, message), term=1, now=0.0)
        if receiver.is_loading:
            break
    assert chunks == -(-len(snapshot_of(journal)) // 100) > 2
    loaded = receiver.take_loaded()
    assert loaded is not None and loaded.snapshot is not None and machine.state == b""
    loaded.take_effect()
    assert machine.state == STATE and not receiver.is_loading and receiver.take_loaded() is None


def test_an_unacknowledged_chunk_is_sent_again_and_empty_ones_before_that(journal: Journal) -> None:
    sender = SnapshotSender(journal, resend_after=1.0)
    first = sender.next_message(2, term=1, now=0.0)
    heartbeat = sender.next_message(2, term=1, now=0.9)
    assert (heartbeat.data, heartbeat.offset) == (b"", 0)
    assert sender.next_message(2, term=1, now=1.1) == first
    second = sender.on_reply(2, SnapshotReply(1, 2, 100), term=1, now=1.2)
    assert second is not None and second.offset == 100
    assert sender.on_reply(2, SnapshotReply(1, 2, 100), term=1, now=1.3) is None, "no new chunk"
    assert sender.on_reply(2, SnapshotReply(1, 2, 1 << 20), term=1, now=1.3) is None
    assert sender.on_reply(2, SnapshotReply(1, 2, 0), term=1, now=1.4) == first, (
        "the transfer restarted"
    )


def test_a_snapshot_of_another_cluster_is_not_used(journal: Journal) -> None:
    receiver = SnapshotReceiver("another", Machine(), load_at_once)
    data = snapshot_of(journal)
    message = InstallSnapshot(1, 2, 1, len(data), 0, data)
    assert receiver.add(message) and receiver.is_loading
    loaded = receiver.take_loaded()
    assert loaded is not None and loaded.snapshot is None
    assert loaded.damage == "it is not the one that was announced"
    assert receiver.bytes_held(message) == 0


def test_while_one_is_loaded_another_one_waits(journal: Journal) -> None:
    receiver = SnapshotReceiver("c", Machine(), lambda work, done: None)
    data = snapshot_of(journal)
    message = InstallSnapshot(1, 2, 1, len(data), 0, data)
    other = InstallSnapshot(2, 5, 2, 9, 0, b"")
    assert receiver.add(message) and receiver.take_loaded() is None
    assert receiver.is_loading and receiver.bytes_held(message) == len(data)
    assert receiver.bytes_held(other) == 0
