"""Voters that a test drives message by message: stock PySyncObj and RaftNode, with the same
methods.

Every message waits in its sender's box until a test takes it, delivers it, delays it or drops it.
Time stands still unless `advance` moves it. Nodes are numbered from 1.
"""

from __future__ import annotations

import importlib
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

from mqd.raft.codec import COMMAND, Message, RequestVote, decode_message, encode_message
from mqd.raft.elections import Timing
from mqd.raft.journal import Journal
from mqd.raft.journal_start import open_journal
from mqd.raft.machine import Role
from mqd.raft.node import RaftNode
from mqd.raft.proposal_results import ProposalResult
from mqd.raft.snapshots import Compaction, Work
from tests.raft.memory_disk import MemoryDisk

Callback = Callable[[Any, str], None]
"""(result, "applied" | "refused" | "unknown")."""


def load_stock(*names: str) -> list[ModuleType]:
    """Modules of a second, untouched copy of pysyncobj: the one that mqd imports is patched."""
    ours = {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if name.split(".")[0] == "pysyncobj"
    }
    try:
        return [importlib.import_module(f"pysyncobj.{name}") for name in names]
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "pysyncobj"]:
            del sys.modules[name]
        sys.modules.update(ours)


stock: Any
stock_journal: Any
stock_transport: Any
stock_node: Any
stock, stock_journal, stock_transport, stock_node = load_stock(
    "syncobj", "journal", "transport", "node"
)

StockNodeId = stock_node.Node
"""Defined at module level, so that stock PySyncObj can pickle it."""
StockNodeId.__module__, StockNodeId.__qualname__ = __name__, "StockNodeId"


class Group:
    """The operations. `nodes` voters, none connected."""

    def __init__(self, nodes: int = 3, **options: Any) -> None:
        self.ids = list(range(1, nodes + 1))
        self.random = random.Random(1)
        self.now = 100.0
        self.options = options
        self.boxes: dict[int, list[tuple[int, Any]]] = {i: [] for i in self.ids}
        self.nodes: dict[int, Any] = {}
        for i in self.ids:
            self.start(i)

    # where the two implementations differ
    def start(self, i: int) -> None:
        raise NotImplementedError

    def tick(self, i: int) -> None:
        raise NotImplementedError

    def deliver(self, source: int, target: int, message: Any) -> None:
        raise NotImplementedError

    def connect(self, i: int, *others: int) -> None:
        raise NotImplementedError

    def add(self, i: int, value: str, callback: Callback | None = None) -> None:
        raise NotImplementedError

    def force_election(self, i: int) -> None:
        self.nodes[i]._SyncObj__raftElectionDeadline = 0
        self.tick(i)

    def is_vote_request(self, message: Any) -> bool:
        raise NotImplementedError

    def values(self, i: int) -> list[str]:
        raise NotImplementedError

    def compact(self, i: int) -> None:
        raise NotImplementedError

    # what they share
    def advance(self, seconds: float = 0.2) -> None:
        self.now += seconds

    def take(self, i: int, target: int | None = None) -> list[Any]:
        """Messages of node i, to one target or all; the others are dropped."""
        return [message for to, message in self._empty(i) if target in (None, to)]

    def _empty(self, i: int) -> list[tuple[int, Any]]:
        box = list(self.boxes[i])
        self.boxes[i].clear()
        return box

    def pump(self, source: int, target: int) -> int:
        messages = self.take(source, target)
        for message in messages:
            self.deliver(source, target, message)
        return len(messages)

    def exchange(self, among: list[int], rounds: int = 4) -> None:
        """Everyone in `among` ticks and receives the messages of the others. Messages to other
        nodes are dropped.
        """
        for _ in range(rounds):
            self.advance()
            for i in among:
                self.tick(i)
                for to, message in self._empty(i):
                    if to in among:
                        self.deliver(i, to, message)

    def elect(self, who: int, voters: list[int]) -> None:
        for i in [who, *voters]:
            self.connect(i, *[other for other in self.ids if other != i])
        self.force_election(who)
        requested = next(message for message in self.take(who) if self.is_vote_request(message))
        for voter in voters:
            self.deliver(who, voter, requested)
            for to, message in self._empty(voter):
                if to == who:
                    self.deliver(voter, who, message)

    def leads(self, i: int) -> bool:
        return bool(self.nodes[i]._isLeader())

    def log(self, i: int) -> list[tuple[int, int]]:
        return [(entry[1], entry[2]) for entry in self.nodes[i]._SyncObj__raftLog[:]]

    def commit(self, i: int) -> int:
        return int(self.nodes[i].raftCommitIndex)

    def term(self, i: int) -> int:
        return int(self.nodes[i].raftCurrentTerm)


class _StockBox(stock_transport.Transport):  # type: ignore[misc]  # PySyncObj has no types
    def __init__(self, sync_object: Any, self_node: Any, other_nodes: Any) -> None:
        super().__init__(sync_object, self_node, other_nodes)
        self.box: list[tuple[int, Any]] = []

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        self.box.append((node.id, pickle.loads(pickle.dumps(message))))
        return True


class _StockNode(stock.SyncObj):  # type: ignore[misc]  # PySyncObj has no types
    def __init__(self, i: int, ids: list[int], journal: str, **options: Any) -> None:
        configuration = stock.SyncObjConf(
            autoTick=False, journalFile=journal, useFork=False, **options
        )
        others = [stock_node.Node(other) for other in ids if other != i]
        super().__init__(stock_node.Node(i), others, configuration, transportClass=_StockBox)
        self.applied: list[str] = []

    @stock.replicated  # type: ignore[untyped-decorator]  # PySyncObj has no types
    def add(self, value: str) -> int:
        if value == "boom":
            raise ValueError("poison")
        self.applied.append(value)
        return len(self.applied)


_FATES = {0: "applied", 3: "refused", 7: "unknown"}


class Stock(Group):
    """PySyncObj 0.3.17 with its memory journal, which `start` keeps."""

    def __init__(self, nodes: int = 3, **options: Any) -> None:
        self.journals: dict[str, Any] = {}
        super().__init__(nodes, **options)

    def _enter(self) -> None:
        stock.random = self.random
        stock.createJournal = lambda name: self.journals.setdefault(
            name, stock_journal.MemoryJournal()
        )
        stock.monotonicTime = self._read_clock

    def _read_clock(self) -> float:
        self.now += 1e-4  # a loop that waits for time to pass must see it pass
        return self.now

    def start(self, i: int) -> None:
        self._enter()
        options = dict(self.options)
        if "directory" in options:
            options["fullDumpFile"] = str(options.pop("directory") / f"dump-{i}")
        self.nodes[i] = _StockNode(i, self.ids, f"journal-{i}", **options)
        self.nodes[i]._SyncObj__transport.box = self.boxes[i]

    def tick(self, i: int) -> None:
        self._enter()
        self.nodes[i].doTick()

    def deliver(self, source: int, target: int, message: Any) -> None:
        self._enter()
        self.nodes[target]._SyncObj__transport._onMessageReceived(stock_node.Node(source), message)

    def connect(self, i: int, *others: int) -> None:
        for other in others:
            self.nodes[i]._SyncObj__transport._onNodeConnected(stock_node.Node(other))

    def add(self, i: int, value: str, callback: Callback | None = None) -> None:
        self._enter()
        record_result = (
            None
            if callback is None
            else (lambda result, reason: callback(result, _FATES.get(reason, "refused")))
        )
        self.nodes[i].add(value, callback=record_result)

    def is_vote_request(self, message: Any) -> bool:
        return bool(message["type"] == "request_vote")

    def values(self, i: int) -> list[str]:
        return list(self.nodes[i].applied)

    def compact(self, i: int) -> None:
        self.nodes[i].forceLogCompaction()
        self.tick(i)
        self.tick(i)


class _Values:
    """A state machine of strings. Total: "boom" is a result, not an exception."""

    def __init__(self) -> None:
        self.applied: list[str] = []

    def apply(self, index: int, command: bytes) -> int:
        if command != b"boom":
            self.applied.append(command.decode())
        return 1

    def snapshot(self) -> Iterator[bytes]:
        return iter(("\n".join(self.applied).encode(),))

    def restoring(self, state: bytes) -> Work[Callable[[], None]]:
        yield
        return lambda: self.restore(state)

    def restore(self, state: bytes) -> None:
        self.applied = state.decode().split("\n") if state else []


class Ours(Group):
    """RaftNode with its journal on a MemoryDisk. Messages cross as bytes."""

    node_class: type[RaftNode] = RaftNode
    intact = True
    """Whether a voter that starts with an empty log counts as one that has lost nothing."""
    observers: list[int] = []  # replaced, never changed  # noqa: RUF012

    def __init__(self, nodes: int = 3, **options: Any) -> None:
        self.disks = {i: MemoryDisk(i) for i in range(1, nodes + 1)}
        self.machines: dict[int, _Values] = {}
        self.journals: dict[int, Journal] = {}
        super().__init__(nodes, **options)

    def start(self, i: int) -> None:
        journal = open_journal(
            self.disks[i], Path("raft"), cluster_id="c", node_id=i, new_uuid=lambda: UUID(int=i)
        )
        if self.intact and not journal.intact and i in self.ids:
            journal.set_intact()
        self.journals[i], self.machines[i] = journal, _Values()
        self.nodes[i] = self.node_class(
            node_id=i,
            voters=self.ids,
            observers=self.observers,
            journal=journal,
            machine=self.machines[i],
            random=self.random.random,
            now=self.now,
            timing=Timing(),
            cluster_id="c",
            compaction=Compaction(entries_kept=0),
        )

    def force_election(self, i: int) -> None:
        """As if a majority had promised its votes."""
        self.nodes[i]._pre_votes.won = True
        super().force_election(i)

    def _flush(self, i: int) -> None:
        if self.journals[i].dirty:
            self.journals[i].flush()
        for to, message in self.nodes[i].flushed():
            self.boxes[i].append((to, encode_message(message)))

    def tick(self, i: int) -> None:
        self.nodes[i].turn(self.now)
        self._flush(i)
        while self.nodes[i].can_commit():
            self.nodes[i].turn(self.now)
            self._flush(i)

    def deliver(self, source: int, target: int, message: Any) -> None:
        decoded: Message = decode_message(message) if isinstance(message, bytes) else message
        self.nodes[target].receive(self.now, source, decoded)
        self._flush(target)

    def connect(self, i: int, *others: int) -> None:
        for other in others:
            self.nodes[i].connected(other)

    def add(self, i: int, value: str, callback: Callback | None = None) -> None:
        def on_result(index: int, result: ProposalResult) -> None:
            if callback is not None:
                callback(index, result.value)

        self.nodes[i].propose(COMMAND + value.encode(), on_result)

    def is_vote_request(self, message: Any) -> bool:
        return isinstance(decode_message(message), RequestVote)

    def values(self, i: int) -> list[str]:
        return self.machines[i].applied

    def leads(self, i: int) -> bool:
        return bool(self.nodes[i].role is Role.LEADER)

    def compact(self, i: int) -> None:
        node = self.nodes[i]
        self.journals[i].compact(
            node.applied_index, b"".join(self.machines[i].snapshot()), entries_kept=0
        )
        self._flush(i)


def sent_messages(ours: Ours, i: int, target: int | None = None) -> list[object]:
    return [decode_message(message) for message in ours.take(i, target)]


def led(leader: int = 1, nodes: int = 3) -> Ours:
    ours = Ours(nodes)
    others = [i for i in ours.ids if i != leader]
    ours.elect(leader, others)
    ours.exchange(ours.ids)
    ours.exchange(ours.ids)
    assert ours.leads(leader)
    return ours
