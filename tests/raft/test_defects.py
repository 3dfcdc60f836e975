"""Every defect of PySyncObj 0.3.17 that pysyncobj_node.py and journal.py repair, A to Q: stock has
it, RaftNode does not.

The same scenario runs on both where both can run it. A scenario that stock passes tests nothing.
"""

from __future__ import annotations

import gc
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from mqd import limits
from mqd.errors import ProtocolError, StorageError
from mqd.raft.codec import (
    AppendEntries,
    AppendReply,
    Entry,
    InstallSnapshot,
    Vote,
    decode_message,
    encode_message,
)
from tests.raft.directed import Group, Ours, Stock, stock, stock_journal
from tests.raft.memory_disk import MemoryDisk, PowerCut


@pytest.fixture
def collected() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def stock_leaks_files(test: Callable[..., None]) -> Callable[..., None]:
    """Stock PySyncObj does not close what it opens: that is not a failure of RaftNode."""
    ignored = pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    )
    return cast("Callable[..., None]", ignored(pytest.mark.usefixtures("collected")(test)))


def uncommitted_entry_then_snapshot(group: Group) -> tuple[list[str], list[Any]]:
    """Only node 1 has LOST. 2 leads with 3 and compacts; then 2 sends 1 its first message.

    Returns what 1 applied and the results of its callbacks.
    """
    callback_results: list[Any] = []
    group.elect(1, [2, 3])
    group.exchange([1, 2, 3])
    group.add(1, "LOST", lambda _index, result: callback_results.append(result))
    group.tick(1)
    group.take(1)
    group.elect(2, [3])
    for k in range(6):
        group.add(2, f"k{k}")
    group.exchange([2, 3], 8)
    group.compact(2)
    group.take(2)
    node = group.nodes[2]
    node._SyncObj__raftNextIndex[next(peer for peer in node.otherNodes if peer.id == 1)] = 2
    group.connect(2, 1)
    group.advance()
    group.tick(2)
    for message in group.take(2, 1)[:1]:
        group.deliver(2, 1, message)
    group.tick(1)
    return group.values(1), callback_results


@stock_leaks_files
def test_a_a_snapshot_chunk_does_not_commit_what_it_does_not_cover(tmp_path: Path) -> None:
    values, callback_results = uncommitted_entry_then_snapshot(
        Stock(directory=tmp_path, logCompactionBatchSize=64)
    )
    assert "LOST" in values and callback_results == ["applied"]
    values, callback_results = uncommitted_entry_then_snapshot(Ours())
    assert values == [f"k{k}" for k in range(6)] and callback_results == ["unknown"]


def test_a_a_first_of_several_chunks_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RAFT_SNAPSHOT_CHUNK_BYTES", 8)
    values, callback_results = uncommitted_entry_then_snapshot(Ours())
    assert values == [] and callback_results == ["unknown"]


def resent_batch(group: Group) -> tuple[int, int]:
    """A batch arrives twice, the second time when the follower holds more. Returns its log end
    before and after.
    """
    group.elect(1, [2, 3])
    group.exchange([1, 2])
    for k in range(4):
        group.add(1, f"v{k}")
    group.tick(1)
    group.advance()
    group.tick(1)
    first = group.take(1, 2)
    for message in first:
        group.deliver(1, 2, message)
    group.take(2)
    for k in range(4):
        group.add(1, f"w{k}")
    group.tick(1)
    group.advance()
    group.tick(1)
    for message in group.take(1, 2):
        group.deliver(1, 2, message)
    before = group.log(2)[-1][0]
    for message in first:
        group.deliver(1, 2, message)
    return before, group.log(2)[-1][0]


def test_b_agreement_never_truncates() -> None:
    before, after = resent_batch(Stock())
    assert after < before
    before, after = resent_batch(Ours())
    assert after == before == 11


def acknowledgement_of_an_earlier_term(group: Group) -> tuple[int, int, int]:
    """Five voters; 2's acknowledgements to 1 are delayed while 1 loses and regains leadership with
    another log.

    Returns the commit index of 1 before and after they arrive, and how many voters hold that entry.
    """
    group.elect(1, [2, 3, 4])
    for message in group.take(1, 2):
        group.deliver(1, 2, message)
    for value in "st":
        group.add(1, value)
    group.tick(1)
    group.advance()
    group.tick(1)
    for message in group.take(1, 2):
        group.deliver(1, 2, message)
    late = group.take(2, 1)
    group.elect(3, [4, 5])
    group.exchange([3, 1, 4, 5], 8)
    group.elect(1, [4, 5])
    group.take(1)
    group.add(1, "NEW")
    for _ in range(3):
        group.tick(1)
        group.advance()
        group.tick(1)
        group.pump(1, 3)
        group.pump(3, 1)
    group.tick(1)
    before = group.commit(1)
    for message in late:
        group.deliver(2, 1, message)
    group.tick(1)
    last = group.log(1)[-1]
    return before, group.commit(1), sum(last in group.log(i) for i in group.ids)


def test_c_acknowledgement_of_an_earlier_term_does_not_count() -> None:
    before, after, holders = acknowledgement_of_an_earlier_term(Stock(5))
    assert after > before and holders == 2
    before, after, holders = acknowledgement_of_an_earlier_term(Ours(5))
    assert after == before and holders == 2


@stock_leaks_files
def test_d_crash_between_snapshot_and_journal_keeps_the_tail(tmp_path: Path) -> None:
    group: Any = Stock(1, directory=tmp_path)
    group.force_election(1)
    for k in range(6):
        group.add(1, f"v{k}")
    for _ in range(3):
        group.tick(1)
    for k in range(3):
        group.add(1, f"tail{k}")
    group.nodes[1].forceLogCompaction()
    group.tick(1)  # writes the dump; the journal is cut in the next tick
    held = group.log(1)[-1]
    group.start(1)
    group.nodes[1]._SyncObj__raftElectionDeadline = float("inf")
    group.tick(1)
    assert group.log(1)[-1] < held  # stock

    for fuse in range(4):  # RaftNode: power fails in each of the writes of a compaction
        ours = Ours(1)
        ours.tick(1)
        ours.tick(1)  # a no-op, and the first voter set
        for k in range(9):
            ours.add(1, f"v{k}")
            ours.tick(1)
        assert ours.values(1) == [f"v{k}" for k in range(9)]
        ours.journals[1].compact(7, b"\n".join(b"v%d" % k for k in range(4)), entries_kept=0)
        ours.disks[1].fuse = fuse
        try:
            ours.journals[1].flush()
        except PowerCut:
            pass
        ours.disks[1].crash()
        ours.start(1)
        ours.tick(1)
        assert ours.values(1) == [f"v{k}" for k in range(9)], fuse


def second_snapshot(group: Group) -> tuple[int, int]:
    """Two replies request a snapshot; both snapshots are sent.

    Returns the follower's log end before and after the second.
    """
    group.elect(1, [2, 3])
    for k in range(6):
        group.add(1, f"k{k}")
    group.exchange([1, 3], 6)
    group.compact(1)
    group.take(1)
    asking = []
    for _ in range(2):
        group.advance()
        group.tick(1)
        for message in group.take(1, 2):
            group.deliver(1, 2, message)
        asking += group.take(2, 1)
    group.deliver(2, 1, asking[0])
    group.advance()
    group.tick(1)
    snapshot = group.take(1, 2)
    for message in snapshot:
        group.deliver(1, 2, message)
    for _ in range(3):
        for message in group.take(2, 1):
            group.deliver(2, 1, message)
        group.add(1, "more")
        group.tick(1)
        group.advance()
        group.tick(1)
        for message in group.take(1, 2):
            group.deliver(1, 2, message)
    before = group.log(2)[-1][0]
    for message in snapshot:
        if not isinstance(message, dict) or "serialized" in message:
            group.deliver(1, 2, message)
    return before, group.log(2)[-1][0]


@stock_leaks_files
def test_e_old_snapshot_does_not_roll_back(tmp_path: Path) -> None:
    before, after = second_snapshot(Stock(directory=tmp_path))
    assert after < before
    before, after = second_snapshot(Ours())
    assert after == before


def raising_callback(group: Group) -> tuple[list[str], list[str]]:
    def bad(_index: Any, _result: str) -> None:
        raise RuntimeError("channel closed")

    group.elect(1, [2, 3])
    group.exchange([1, 2])
    group.add(1, "x", bad)
    for _ in range(8):
        try:
            group.exchange([1, 2], 1)
        except RuntimeError:
            group.pump(1, 2)
            group.pump(2, 1)
    return group.values(1), group.values(2)


def test_f_raising_callback_does_not_apply_twice() -> None:
    leader, follower = raising_callback(Stock())
    assert leader.count("x") > 1 and leader != follower
    assert raising_callback(Ours()) == (["x"], ["x"])


def test_f_bad_command_is_a_result_and_a_raising_machine_stops_the_node() -> None:
    group: Group = Stock(1)
    group.force_election(1)
    group.add(1, "boom")
    group.add(1, "after")
    raised = 0
    for _ in range(10):
        try:
            group.tick(1)
        except ValueError:
            raised += 1
    assert raised >= 8 and group.values(1) == []  # stock: for ever

    ours = Ours(1)
    for value in ("boom", "after"):
        ours.add(1, value)
    ours.tick(1)
    assert ours.values(1) == ["after"]

    def broken(index: int, command: bytes) -> int:
        raise ValueError("a machine that is not total")

    ours.machines[1].apply = broken  # type: ignore[method-assign]  # replaced by the test
    ours.add(1, "x")
    # the exception rises: the daemon stops instead of running without the entry
    with pytest.raises(ValueError, match="not total"):
        ours.tick(1)


def test_f_version_entries_are_not_taken_from_a_peer() -> None:
    """Stock obeys a leader that announces another version of the code. It skips that entry without
    counting it, and therefore applies the next entry twice.
    """
    version = bytes([stock._COMMAND_TYPE.VERSION]) + pickle.dumps(99)
    group: Group = Stock()
    group.elect(1, [2, 3])
    group.exchange([1, 2, 3])
    group.nodes[1]._applyCommand(version[1:], None, stock._COMMAND_TYPE.VERSION)
    group.add(1, "after")
    group.exchange([1, 2, 3])
    assert group.values(2) == ["after", "after"]

    ours = Ours()
    ours.elect(1, [2, 3])
    ours.exchange([1, 2, 3])
    last, term = ours.log(2)[-1]
    message = encode_message(
        AppendEntries(term, last + 1, last, term, (Entry(version, last + 1, term),))
    )
    with pytest.raises(ProtocolError, match="neither a command, a voter set nor a no-op"):
        ours.deliver(1, 2, message)
    assert ours.log(2)[-1] == (last, term)


def test_g_a_flipped_bit_in_the_journal_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = stock_journal.FileJournal(str(path))
    journal.add(b"\x00pay 100", 2, 1)
    journal.add(b"\x00pay 200", 3, 1)
    journal._destroy()
    path.write_bytes(path.read_bytes().replace(b"pay 100", b"pay 900"))
    journal = stock_journal.FileJournal(str(path))
    assert journal[0][0] == b"\x00pay 900"  # stock: accepted
    journal._destroy()

    ours = Ours(1)
    for value in ("pay 100", "pay 200"):
        ours.add(1, value)
        ours.tick(1)
    content = ours.disks[1].files[Path("raft/journal")]
    content.data[:] = content.data.replace(b"pay 100", b"pay 900")
    with pytest.raises(StorageError, match=r"raft/journal is corrupt.*damaged"):
        ours.start(1)


@stock_leaks_files
def test_h_a_lost_vote_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = stock_journal.FileJournal(str(path))
    journal.setCurrentTerm(7, 2)
    journal._destroy()
    (tmp_path / "journal.meta").write_bytes(b"")  # renamed without fsync, then a power cut
    journal = stock_journal.FileJournal(str(path))
    # stock: may vote again in term 7
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (0, None)
    journal._destroy()

    ours = Ours(1)
    ours.tick(1)
    ours.disks[1].files[Path("raft/quorum-state")].data.clear()
    with pytest.raises(StorageError, match="quorum-state is corrupt"):
        ours.start(1)


def state_after_compaction_and_restart(group: Group) -> list[str]:
    group.force_election(1)
    for k in range(6):
        group.add(1, f"v{k}")
        group.tick(1)
    group.tick(1)
    group.compact(1)
    group.start(1)
    group.force_election(1)
    for _ in range(3):
        group.tick(1)
    return group.values(1)


def test_i_compaction_without_a_dump_file_keeps_the_state() -> None:
    assert len(state_after_compaction_and_restart(Stock(1))) < 3
    assert state_after_compaction_and_restart(Ours(1)) == [f"v{k}" for k in range(6)]


def rounds_to_repair(group: Group) -> int:
    """A follower with 40 entries that conflict with the leader's. Returns how many heartbeats make
    the logs equal.
    """
    group.elect(1, [2, 3])
    group.exchange([1, 2, 3])
    for k in range(40):
        group.add(1, f"lost{k}")
        group.tick(1)
    group.take(1)
    group.elect(2, [3])
    for k in range(40):
        group.add(2, f"kept{k}")
    group.exchange([2, 3], 6)
    group.elect(3, [2])
    group.take(3)
    rounds = 0
    while group.log(1) != group.log(3):
        group.exchange([3, 1], 1)
        rounds += 1
    return rounds


def test_j_a_conflicting_tail_is_skipped_one_term_at_a_time() -> None:
    assert rounds_to_repair(Stock()) > 30
    assert rounds_to_repair(Ours()) <= 5


@stock_leaks_files
def test_k_no_flood_while_a_snapshot_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def messages(group: Any, chunk: int) -> int:
        group.elect(1, [2, 3])
        for k in range(6):
            group.add(1, f"k{k}")
        group.exchange([1, 3], 6)
        group.compact(1)
        group.take(1)
        node = group.nodes[1]
        node._SyncObj__raftNextIndex[next(peer for peer in node.otherNodes if peer.id == 2)] = 1
        if isinstance(group, Stock):
            node._SyncObj__serializer._Serializer__pid = 1  # a dump is being written
            node._SyncObj__serializer.checkSerializing = lambda: (1, None)
        group.advance()
        group.tick(1)
        return len(group.take(1, 2))

    assert messages(Stock(directory=tmp_path), 0) > 100
    monkeypatch.setattr(limits, "RAFT_SNAPSHOT_CHUNK_BYTES", 8)
    assert messages(Ours(), 8) == 1


def stale_leader(group: Group) -> bool:
    """1 leads term 1; 2 and 3 moved on, and 1 received nothing about it.

    Returns whether 1 still leads after a response to its heartbeat.
    """
    group.elect(1, [2, 3])
    group.take(1)
    group.elect(2, [3])
    group.take(2)
    group.advance()
    group.tick(1)
    group.pump(1, 3)
    group.pump(3, 1)
    return group.leads(1)


def test_l_a_stale_leader_gets_the_newer_term() -> None:
    assert stale_leader(Stock())
    assert not stale_leader(Ours())


def response_to_an_earlier_process(group: Group) -> tuple[list[str], list[str], int]:
    """Follower 2 proposes x, restarts, and proposes y, which is lost. Then 1's response to x
    arrives.

    Returns the results that 2 received for y, what it applied, and how many messages carried x to
    1.
    """
    results: list[str] = []
    group.elect(1, [2, 3])
    group.exchange([1, 2, 3])
    group.add(2, "x", lambda _index, _result: None)
    group.tick(2)
    forwarded = group.pump(2, 1)
    group.start(2)
    group.connect(2, 1, 3)
    group.advance()
    group.tick(1)
    heartbeat, *answers = group.take(1, 2)
    group.deliver(1, 2, heartbeat)
    group.add(2, "y", lambda _index, result: results.append(result))
    group.tick(2)
    group.take(2)
    for message in answers:
        group.deliver(1, 2, message)
    group.exchange([1, 2, 3])
    return results, group.values(2), forwarded


def test_m_nothing_is_forwarded_so_no_response_can_be_confused() -> None:
    """Stock's request ids start at 1 in every process; RaftNode forwards no requests."""
    assert response_to_an_earlier_process(Stock()) == (["applied"], ["x"], 1)
    assert response_to_an_earlier_process(Ours()) == (["refused"], [], 0)


def test_n_entries_of_every_size_up_to_the_limit_arrive() -> None:
    group: Group = Stock(2)
    group.elect(1, [2])
    group.exchange([1, 2])
    failed = 0
    for size in range(131000, 131080, 10):
        group.add(1, "z" * size)
        group.tick(1)
        group.advance()
        group.tick(1)
        for message in group.take(1, 2):
            try:
                group.deliver(1, 2, message)
            except Exception:
                failed += 1
        group.pump(2, 1)
    assert failed > 0

    ours = Ours(2)
    ours.elect(1, [2])
    ours.exchange([1, 2])
    sizes = [limits.RAFT_COMMAND_BYTES_MAX - k for k in range(3)] + [1, 0, 30_000]
    for size in sizes:
        ours.add(1, "z" * size)
    ours.exchange([1, 2], 6)
    assert [len(value) for value in ours.values(2)] == sizes
    with pytest.raises(AssertionError):
        ours.add(1, "z" * (limits.RAFT_COMMAND_BYTES_MAX + 1))


def test_o_only_configured_voters_count_and_each_has_one_vote() -> None:
    group: Group = Stock(5)
    group.connect(1, 2, 3, 4, 5)
    group.force_election(1)
    for _ in range(2):
        group.deliver(99, 1, {"type": "response_vote", "term": group.term(1)})
    assert group.leads(1)  # stock: two forged votes

    ours = Ours(5)
    ours.connect(1, 2, 3, 4, 5)
    ours.force_election(1)
    for sender in (99, 99, 2, 2, 2):
        ours.deliver(sender, 1, Vote(ours.term(1)))
    assert not ours.leads(1)
    ours.deliver(3, 1, Vote(ours.term(1)))
    assert ours.leads(1)


@stock_leaks_files
def test_p_a_damaged_snapshot_stops_the_start(tmp_path: Path) -> None:
    def compacted(group: Any) -> Any:
        group.force_election(1)
        for k in range(6):
            group.add(1, f"v{k}")
            group.tick(1)
        group.tick(1)
        group.compact(1)
        return group

    group = compacted(Stock(1, directory=tmp_path))
    (tmp_path / "dump-1").write_bytes(b"not a dump")
    group.start(1)
    group.tick(1)  # stock: logs the error and runs without its state
    assert group.values(1) == []

    ours = compacted(Ours(1))
    ours.disks[1].files[Path("raft/snapshot")].data[-1] ^= 1
    with pytest.raises(
        StorageError, match=r"raft/snapshot is corrupt: its checksum does not match.*remove raft"
    ):
        ours.start(1)


def test_q_a_wiped_node_is_noticed() -> None:
    """2 votes for 1, loses all its data, and 3 requests its vote in the same term."""
    group: Any = Stock()
    group.elect(1, [2])
    group.journals.clear()
    group.start(2)
    group.elect(3, [2])
    # stock: two votes, and two leaders of one term
    assert group.leads(1) and group.leads(3) and group.term(1) == group.term(3)

    ours = Ours()
    ours.elect(1, [2])
    del ours.disks[2].files[Path("raft/journal")]
    with pytest.raises(StorageError, match="journal is missing, though"):
        ours.start(2)
    ours.intact, ours.disks[2] = False, MemoryDisk(2)  # no file is left
    ours.start(2)
    ours.elect(3, [2])
    assert ours.term(1) == ours.term(3) and ours.leads(1) and not ours.leads(3)


def test_q_a_node_that_was_cut_off_does_not_depose_a_healthy_leader() -> None:
    """The node is cut off while connected to a node that does not respond. It stands for election
    repeatedly and then reconnects.
    """

    def after_reconnect(group: Group) -> tuple[int, bool]:
        group.elect(1, [2, 3])
        for i in group.ids:
            group.connect(i, *[other for other in group.ids if other != i])
        group.exchange([1, 2, 3])
        term = group.term(1)
        for _ in range(40):
            group.exchange([1, 2], 1)
            group.tick(3)
            group.take(3)
        while not group.boxes[3]:
            group.exchange([1, 2], 1)
            group.tick(3)
        for to, message in group._empty(3):
            group.deliver(3, to, message)
        group.exchange([3, 1, 2], 1)
        return group.term(1) - term, group.leads(1)

    terms, _ = after_reconnect(Stock())
    assert terms > 0
    assert after_reconnect(Ours()) == (0, True)


def test_a_a_heartbeat_commits_only_what_it_proves() -> None:
    ours = Ours(3)
    ours.elect(1, [2, 3])
    ours.exchange([1, 2, 3])
    last, term = ours.log(2)[-1]
    ours.deliver(
        1, 2, AppendEntries(term, last, last, term, (Entry(b"\x00contradicts", last + 1, term),))
    )
    # its entry `last + 1` differs from the leader's
    ours.deliver(3, 2, AppendEntries(term + 1, last + 1, last, term, ()))
    ours.tick(2)
    assert ours.commit(2) == last and ours.values(2) == []


def test_e_an_older_snapshot_gets_the_committed_index_in_response() -> None:
    ours = Ours(3)
    ours.elect(1, [2, 3])
    for k in range(6):
        ours.add(1, f"v{k}")
    ours.exchange([1, 2, 3])
    ours.compact(2)
    before = (ours.log(2), ours.values(2))
    ours.take(2)
    ours.deliver(1, 2, InstallSnapshot(ours.term(1), 4, 1, 10, 0, bytes(10)))
    (reply,) = (decode_message(message) for message in ours.take(2, 1))
    assert reply == AppendReply(ours.term(1), ours.commit(2) + 1, True, False)
    assert (ours.log(2), ours.values(2)) == before
