"""Voters on virtual time, a network that delays and breaks, power cuts that lose unsynced writes:
one seed, one run.

    python -m tests.raft.simulate --seeds 0-500 [--nodes 5] [--observers 1] [--seconds 20]
        [--no-wipes]
    python -m tests.raft.simulate --seeds 0-500 --nodes 3 --observers 2 --changes

The nodes are the real RaftNode and Journal. After every event the safety properties of Raft
(Ongaro, figure 3.2) are checked: election safety, log matching, leader completeness, state machine
safety; that a committed entry is durable on a majority; that a node applies only entries that are
durable on it; that observers never vote or stand; and that a leader has received messages from a
majority within the longest election timeout. Besides crashes and cuts, one voter's disk may be
emptied while all others keep theirs. That happens once a run, because the quorum does not survive a
second loss. At the end all faults are repaired. Then all nodes must converge, and no acknowledged
command is lost or applied twice. A violation names the seed that reproduces it.

With `changes`, an operator adds and removes voters: edits the peers file and restarts node by node,
with a cut at every step. Some nodes occasionally start with files that name unrelated voters. Two
more properties are checked: successive committed voter sets differ by one voter, and at the end the
set of the last file is in force on every node.
"""

from __future__ import annotations

import argparse
import heapq
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

from mqd.limits import RAFT_ROWS_PER_TURN
from mqd.raft.codec import COMMAND, Entry, Message, decode_message, encode_message
from mqd.raft.elections import Timing
from mqd.raft.journal import Journal
from mqd.raft.journal_start import open_journal
from mqd.raft.machine import Role
from mqd.raft.node import RaftNode
from mqd.raft.proposal_results import ProposalResult
from mqd.raft.snapshots import Compaction, Work, all_steps
from mqd.raft.voters import CONFIGURATION, VoterSet, decode_entry, disagreement
from tests.raft.memory_disk import MemoryDisk, PowerCut


class Violation(AssertionError):
    pass


class ListMachine:
    """Stores what was applied; the simulation compares it."""

    def __init__(self) -> None:
        self.applied: list[bytes] = []
        self.on_apply: Callable[[int, bytes], None] = lambda _index, _command: None
        self.on_snapshot: Callable[[], None] = lambda: None

    def apply(self, index: int, command: bytes) -> int:
        self.on_apply(index, command)
        self.applied.append(command)
        return RAFT_ROWS_PER_TURN // 2  # a turn applies two commands

    def snapshot(self) -> Iterator[bytes]:
        self.on_snapshot()
        return iter([len(command).to_bytes(4, "big") + command for command in self.applied])

    def restoring(self, state: bytes) -> Work[Callable[[], None]]:
        yield
        return lambda: self.restore(state)

    def restore(self, state: bytes) -> None:
        self.applied, position = [], 0
        while position < len(state):
            size = int.from_bytes(state[position : position + 4], "big")
            self.applied.append(state[position + 4 : position + 4 + size])
            position += 4 + size


class Life:
    """One process of one voter, from start to crash."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world, self.node_id = world, node_id
        self.machine = ListMachine()
        disk = world.disks[node_id]
        self.journal: Journal = open_journal(
            disk,
            Path("raft"),
            cluster_id="sim",
            node_id=node_id,
            new_uuid=lambda: UUID(int=node_id),
        )
        self.node: RaftNode = world.node_class(
            node_id=node_id,
            voters=world.files[node_id],
            observers=[i for i in world.ids if i not in world.files[node_id]],
            journal=self.journal,
            machine=self.machine,
            random=world.random.random,
            now=world.now,
            timing=Timing(),
            cluster_id="sim",
            compaction=Compaction(
                entries_max=world.compact_entries, entries_kept=world.entries_kept
            ),
            build=self._build,
            load=self._load,
        )
        self.machine.on_apply = self._on_apply
        # before compaction removes the entries
        self.machine.on_snapshot = lambda: world.check_commits(self)
        self.busy = False
        self.met: dict[int, Life] = {}
        """For each other node: the incarnation that last completed a handshake here."""
        self.term_led = 0
        self.received_at: dict[int, float] = {}
        """For each voter: when this node last received a message from it, or became leader."""
        self.checked: Entry | None = None

    def _on_apply(self, index: int, command: bytes) -> None:
        if index > self.journal.durable_index:
            raise Violation(
                f"node {self.node_id} applies {index}, durable only to {self.journal.durable_index}"
            )
        self.world.check_applied(self, index, command)

    def _build(self, pieces: Iterator[bytes], done: Callable[[bytes], None]) -> None:
        """Builds a snapshot inline, or beside the loop: then other turns come first, and perhaps a
        leader's snapshot.
        """
        delay = self.world.builds.choice([0.0, 0.02, 1.0])
        if delay:
            self.world.at(delay, lambda: self.world.when_idle(self, lambda: done(b"".join(pieces))))
        else:
            done(b"".join(pieces))

    def _load(self, work: Work[Any], done: Callable[[Any], None]) -> None:
        """Loads a snapshot inline or beside the loop, like `_build`."""
        delay = self.world.builds.choice([0.0, 0.02, 1.0])
        if delay:
            self.world.at(delay, lambda: self.world.when_idle(self, lambda: done(all_steps(work))))
        else:
            done(all_steps(work))


class World:
    talk_always = False
    """Nodes do not compare their voter sets."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        seconds: float = 8.0,
        compact_entries: int | None = None,
        node_class: type[RaftNode] = RaftNode,
        fault_every: float = 1.0,
        observers: int = 0,
        wipes: bool = False,
        changes: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.builds = random.Random(~seed)
        """How long snapshots take."""
        self.node_class = node_class
        self.seconds, self.fault_every = seconds, fault_every
        self.compact_entries = (
            compact_entries if compact_entries is not None else self.random.choice([5, 20, 10_000])
        )
        self.entries_kept = self.random.choice([0, 3, 1000])
        self.now = 0.0
        self.voters = list(range(1, nodes + 1))
        self.observers = list(range(nodes + 1, nodes + observers + 1))
        self.ids = [*self.voters, *self.observers]
        self.target = frozenset(self.voters)
        """The voters that the operator wants."""
        self.files = dict.fromkeys(self.ids, self.target)
        """For each node: the voters in its peers file."""
        self.changes = changes
        self.steps = self.mistakes = self.refusals = 0
        self.lost: dict[int, Journal] = {}
        """What a wiped voter had. A leader that has no message from it yet may count what it
        acknowledged. While the wiped voter does not vote, it cannot help to elect a candidate that
        it would have refused. Leader completeness is checked as always.
        """
        self.may_wipe = wipes and nodes > 2 and not changes
        self.wipes = self.gone = self.gone_leaders = 0
        self.disks = {i: MemoryDisk(self.random.getrandbits(32)) for i in self.ids}
        self.lives: dict[int, Life | None] = dict.fromkeys(self.ids)
        self.links: dict[tuple[int, int], deque[bytes]] = {
            (a, b): deque() for a in self.ids for b in self.ids if a != b
        }
        # 0: down; else the connection's number
        self.up: dict[tuple[int, int], int] = dict.fromkeys(self.links, 0)
        self.blocked: dict[tuple[int, int], float] = dict.fromkeys(self.links, 0.0)
        self.last_arrival: dict[tuple[int, int], float] = dict.fromkeys(self.links, 0.0)
        self.connections = 0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.events = self.messages = self.crashes = self.elections = 0
        self.leaders: dict[int, int] = {}
        self.entries: dict[tuple[int, int], tuple[bytes, int]] = {}
        self.committed: dict[int, tuple[int, bytes]] = {}  # index -> (term, command)
        self.read_back: dict[int, tuple[tuple[bytes, ...], Journal]] = {}
        self.sets = [VoterSet(0, self.target)]
        """Committed voter sets, in order."""
        self.sent = 0
        self.acknowledged: list[bytes] = []
        self.refused: list[bytes] = []
        self.healing = False

    # -- events

    def at(self, delay: float, action: Callable[[], None]) -> None:
        self.events += 1
        heapq.heappush(self.heap, (self.now + delay, self.events, action))

    def run(self) -> World:
        for i in self.ids:
            self.at(self.random.uniform(0, 0.3), partial(self.start, i))
        self.at(0.5, self.client)
        self.at(1.0, self.fault)
        if self.changes:
            self.at(1.5, self.operate)
        self._until(self.seconds)
        self.healing = True
        if self.changes:
            for i in self.ids:
                if self.files[i] != self.target:
                    self.restart(i, self.target)
        self.blocked = dict.fromkeys(self.links, 0.0)
        for i in self.ids:
            self.disks[i].fuse = None
            self.at(0.0, partial(self.start, i))
        self._until(self.seconds + (12.0 if self.changes else 8.0))
        self.check_end()
        return self

    def _until(self, end: float) -> None:
        while self.heap and self.heap[0][0] <= end:
            self.now, _, action = heapq.heappop(self.heap)
            action()
        self.now = end

    def start(self, i: int) -> None:
        if self.lives[i] is not None:
            return
        try:
            life = self.lives[i] = Life(self, i)
        except PowerCut:
            self.disks[i].crash()
            self.at(0.2, lambda: self.start(i))
            return
        self.tick(life)
        for j in self.ids:
            if j != i:
                self.at(self.random.uniform(0.001, 0.1), partial(self.connect, i, j))

    def alive(self, life: Life) -> bool:
        return self.lives[life.node_id] is life

    def tick(self, life: Life) -> None:
        if self.alive(life):
            self.turn(life)
            self.at(self.random.uniform(0.01, 0.06), lambda: self.tick(life))

    def turn(self, life: Life) -> None:
        """One turn and then its flush. The flush takes time, and a crash may follow it."""
        if life.busy or not self.alive(life):
            return
        life.node.turn(self.now)
        self.check_node(life)
        if not life.journal.dirty:
            self.release(life)
            return
        life.busy = True
        self.at(self.random.choice([0.0005, 0.002, 0.02]), lambda: self.flush(life))

    def flush(self, life: Life) -> None:
        if not self.alive(life):
            return
        try:
            life.journal.flush()
        except PowerCut:
            self.crash(life.node_id)
            return
        life.busy = False
        self.release(life)
        if life.node.can_commit():
            self.turn(life)

    def release(self, life: Life) -> None:
        for peer, message in life.node.flushed():
            self.send(life.node_id, peer, message)

    def crash(self, i: int) -> None:
        life = self.lives[i]
        if life is None:
            return
        self.crashes += 1
        life.node.abandon()
        self.lives[i] = None
        self.disks[i].crash()
        noticed = [
            a for a, b in self.links if b == i and self.up[a, b] and self.blocked[a, b] <= self.now
        ]
        for a, b in self.links:
            if i in (a, b):
                self.disconnect(a, b)
        for other in noticed:  # the connection broke, and no listener is left
            self.at(self.random.choice([0.0005, 0.01]), partial(self.notice, self.lives[other], i))
        self.at(self.random.choice([0.05, 0.5, 2.0]), lambda: self.start(i))

    def plot(self, leader: int) -> None:
        """Wipe a voter at the worst moment: some nodes receive nothing new for a while, then one
        up-to-date node is wiped, and only the outdated nodes can reach it.
        """
        self.may_wipe = False
        others = [i for i in self.voters if i != leader]
        self.random.shuffle(others)
        victim, *rest = others
        behind = rest[: len(self.voters) // 2]
        until = self.now + 0.5
        for a, b in self.links:
            if b in behind and a not in behind:
                self.blocked[a, b] = until
                self.disconnect(a, b)
        self.at(self.random.uniform(0.2, 0.45), lambda: self.wipe(victim, behind))

    def wipe(self, victim: int, behind: list[int]) -> None:
        if self.healing or not self.safe_to_wipe(victim):
            self.may_wipe = True
            return
        self.wipes += 1
        self.crash(victim)
        self._durable_on(victim, 1, 0)
        if victim in self.read_back:
            self.lost[victim] = self.read_back.pop(victim)[1]
        self.disks[victim].files.clear()
        self.start(victim)
        together = {victim, *behind}
        duration = self.random.choice([1.0, 3.0])
        for a, b in self.links:
            if len(together & {a, b}) == 1:
                self.blocked[a, b] = self.now + duration
                self.disconnect(a, b)
            elif a in together:
                self.blocked[a, b] = 0.0

    def safe_to_wipe(self, i: int) -> bool:
        """Whether all other voters have their data and are up to date: only then may a voter lose
        everything.
        """
        others = [life for j in self.voters if j != i and (life := self.lives[j]) is not None]
        return len(others) == len(self.voters) - 1 and all(life.journal.intact for life in others)

    def notice(self, life: Life | None, gone: int) -> None:
        if life is not None:
            self.gone += 1
            self.gone_leaders += life.node.leader_id == gone
            self.when_idle(life, lambda: life.node.peer_gone(self.now, gone))

    # -- network

    def connect(self, a: int, b: int) -> None:
        source = self.lives[a]
        if source is None or self.up[a, b]:
            return
        target = self.lives[b]
        if target is None or self.blocked[a, b] > self.now:
            self.at(self.random.uniform(0.05, 0.3), lambda: self.connect(a, b))
            return
        if (
            not self.talk_always
            and disagreement(a, source.node.voter_view, b, target.node.voter_view) is not None
        ):
            self.refusals += 1
            self.at(self.random.uniform(0.05, 0.3), lambda: self.connect(a, b))
            return
        self.connections += 1
        self.up[a, b] = self.connections
        source.node.peer_configured(b, self.files[b])
        target.node.peer_configured(a, self.files[a])
        if target.met.get(a) is not source:
            target.met[a] = source
            self.when_idle(target, lambda: target.node.restarted(a))
        self.when_idle(source, lambda: source.node.connected(b))

    def disconnect(self, a: int, b: int) -> None:
        if not self.up[a, b]:
            return
        self.up[a, b] = 0
        self.links[a, b].clear()
        source = self.lives[a]
        if source is not None:
            self.when_idle(source, lambda: source.node.disconnected(b))
            self.at(self.random.uniform(0.05, 0.3), lambda: self.connect(a, b))

    def when_idle(self, life: Life, action: Callable[[], None]) -> None:
        """Messages that arrive during a flush wait for its end."""
        if not self.alive(life):
            return
        if life.busy:
            self.at(0.001, lambda: self.when_idle(life, action))
            return
        action()
        self.turn(life)

    def send(self, a: int, b: int, message: Message) -> None:
        if not self.up[a, b]:
            return
        self.messages += 1
        connection = self.up[a, b]
        self.links[a, b].append(encode_message(message))
        arrival = max(
            self.last_arrival[a, b],
            self.blocked[a, b],
            self.now + self.random.choice([0.0005, 0.002, 0.01, 0.05]),
        )
        self.last_arrival[a, b] = arrival
        self.at(arrival - self.now, lambda: self.deliver(a, b, connection))

    def deliver(self, a: int, b: int, connection: int) -> None:
        life = self.lives[b]
        if self.up[a, b] != connection or life is None:
            return
        if life.busy:
            self.at(0.001, lambda: self.deliver(a, b, connection))
            return
        message = decode_message(self.links[a, b].popleft())
        life.received_at[a] = self.now
        life.node.receive(self.now, a, message)
        self.turn(life)

    # -- faults and clients

    def fault(self) -> None:
        if self.healing:
            return
        target = self.random.choice(self.ids)
        leaders = [
            i
            for i in self.ids
            if (life := self.lives[i]) is not None and life.node.role is Role.LEADER
        ]
        if leaders and self.random.random() < 0.5:
            target = self.random.choice(leaders)
        if leaders and self.may_wipe and self.random.random() < 0.3:
            self.plot(leaders[0])
            self.at(self.random.choice([0.5, 2.0]), self.fault)
            return
        duration = self.random.choice([0.05, 0.3, 1.0, 2.0])
        faults = ["power", "fuse", "all"] + (
            ["cut", "isolate", "stall", "oneway"] if self.links else []
        )
        match self.random.choice(faults):
            case "power":
                self.crash(target)
            case "fuse":
                self.disks[target].fuse = self.random.choice([0, 1, 2, 3, 5])
            case "all":
                if self.random.random() < 0.3:
                    for i in self.ids:
                        self.crash(i)
            case "cut":
                a, b = self.random.choice(list(self.links))
                self.disconnect(a, b)
            case "isolate":
                for a, b in self.links:
                    if target in (a, b):
                        self.blocked[a, b] = self.now + duration
                        self.disconnect(a, b)
            case "stall":  # bytes are delayed, the connection stays open
                self.blocked[self.random.choice(list(self.links))] = self.now + duration
            case "oneway":
                for a, b in self.links:
                    if a == target:
                        self.blocked[a, b] = self.now + duration
        self.at(self.random.expovariate(1 / self.fault_every), self.fault)

    # -- the operator

    def operate(self) -> None:
        """Add or remove one voter when the last change is committed."""
        if self.healing:
            return
        done = [
            life.node.voter_view.committed.voters
            for life in self.lives.values()
            if life is not None and life.node.ready
        ]
        if self.target not in done or set(self.files.values()) != {self.target}:
            self.at(0.2, self.operate)
            return
        if self.random.random() < 0.3:
            self.mistakes += 1
            strange = self.target
            while len(strange ^ self.target) < 2:  # one more or less would be a change
                strange = frozenset(
                    self.random.sample(self.ids, self.random.randint(1, len(self.ids)))
                )
            chosen = self.random.sample(self.ids, self.random.randint(1, len(self.ids) // 2))
            self.cut_in_two(chosen)
            for i in chosen:
                self.restart(i, strange)
            self.at(self.random.choice([0.5, 1.5]), lambda: self.roll(chosen))
            return
        self.target ^= {self.random.choice([i for i in self.ids if self.target != {i}])}
        order = self.random.sample(self.ids, len(self.ids))
        # as the manual says: a new voter first, a removed voter last
        if self.random.random() < 0.5:
            order.sort(
                key=lambda i: (i in self.target, i not in self.files[i]) == (True, True),
                reverse=True,
            )
            order.sort(key=lambda i: i not in self.target and i in self.files[i])
        self.roll(order)

    def roll(self, order: list[int]) -> None:
        """Restart node by node with the file that the operator wants."""
        if self.healing or not order:
            self.at(0.1, self.operate)
            return
        self.steps += 1
        if self.random.random() < 0.5:
            self.cut_in_two(
                self.random.sample(self.ids, self.random.randint(1, len(self.ids) // 2 + 1))
            )
        self.restart(order[0], self.target)
        self.at(self.random.choice([0.05, 0.5, 1.5]), lambda: self.roll(order[1:]))

    def restart(self, i: int, file: frozenset[int]) -> None:
        self.files[i] = file
        self.crash(i)

    def cut_in_two(self, group: list[int]) -> None:
        until = self.now + self.random.choice([0.5, 1.5, 2.5])
        for a, b in self.links:
            if (a in group) != (b in group):
                self.blocked[a, b] = until
                self.disconnect(a, b)

    def client(self) -> None:
        for life in list(self.lives.values()):
            if life is not None and life.node.role is Role.LEADER:
                for _ in range(self.random.choice([1, 1, 3])):
                    self.sent += 1
                    command = b"%d" % self.sent + bytes(self.random.choice([0, 10, 1000]))
                    life.node.propose(COMMAND + command, self._on_result(command))
        self.at(self.random.expovariate(12.0), self.client)

    def _on_result(self, command: bytes) -> Callable[[int, ProposalResult], None]:
        def on_result(index: int, result: ProposalResult) -> None:
            if result is ProposalResult.APPLIED:
                self.acknowledged.append(command)
                if self.committed.get(index, (0, b""))[1] != COMMAND + command:
                    raise Violation(f"{command!r} acknowledged at {index}, which holds another")
            elif result is ProposalResult.REFUSED:
                self.refused.append(command)

        return on_result

    # -- invariants

    def check_node(self, life: Life) -> None:
        node, journal = life.node, life.journal
        if node.role is Role.LEADER and node.term != life.term_led:
            life.term_led = node.term
            life.received_at = dict.fromkeys(self.ids, self.now)
            self.elections += 1
            if self.leaders.setdefault(node.term, life.node_id) != life.node_id:
                raise Violation(
                    f"nodes {self.leaders[node.term]} and {life.node_id} both lead term {node.term}"
                )
            for index, (term, _command) in self.committed.items():
                if index > journal.base_index and not journal.holds(index, term):
                    raise Violation(
                        f"leader {life.node_id} of term {node.term} lacks committed entry "
                        f"{index} of term {term}"
                    )
        fresh = journal.entries[-1] is not life.checked
        life.checked = journal.entries[-1]
        if node.role is not Role.FOLLOWER and life.node_id not in node.voters:
            raise Violation(f"observer {life.node_id} is {node.role}")
        if node.role is Role.LEADER:
            received_at = [
                self.now,
                *(life.received_at[i] for i in node.voters if i != life.node_id),
            ]
            silent = self.now - sorted(received_at, reverse=True)[len(node.voters) // 2]
            if silent > Timing().election_timeout_max:
                raise Violation(f"node {life.node_id} leads without a majority for {silent:.2f} s")
        previous_term = journal.entries[0].term
        for entry in journal.entries[1:] if fresh else ():
            known = self.entries.setdefault(
                (entry.index, entry.term), (entry.command, previous_term)
            )
            if known != (entry.command, previous_term):
                raise Violation(f"entry ({entry.index}, term {entry.term}) differs between logs")
            previous_term = entry.term
        self.check_commits(life)

    def check_commits(self, life: Life) -> None:
        for index in range(max(self.committed, default=1) + 1, life.node.commit_index + 1):
            self._commit(life, index)

    def _commit(self, life: Life, index: int) -> None:
        """The first node commits `index`: the entry must be durable on a majority."""
        if index <= life.journal.base_index:
            raise Violation(
                f"node {life.node_id} committed {index} by a snapshot that nobody had committed"
            )
        entry = life.journal.entries[index - life.journal.base_index]
        at_entry = life.journal.voter_set_at(index)
        sets = {life.node.voters, life.node.voters if at_entry is None else at_entry.voters}
        found = max(self._copies_are_majority(voters, index, entry.term) for voters in sets)
        if not found:
            raise Violation(
                f"node {life.node_id} commits {index} of term {entry.term} without a durable "
                f"majority of {sets}"
            )
        if entry.command[:1] == CONFIGURATION:
            self._commit_voters(decode_entry(entry.command))
        self.committed[index] = (entry.term, entry.command)

    def _copies_are_majority(self, voters: frozenset[int], index: int, term: int) -> bool:
        majority = len(voters) // 2 + 1
        copies = (
            i
            for i in sorted(voters)
            if self._durable_on(i, index, term) or self._lost_on(i, index, term)
        )
        # each copy is read from a disk: stop when the result is certain
        return len(list(islice(copies, majority))) == majority

    def _commit_voters(self, found: VoterSet) -> None:
        before = self.sets[-1]
        if found.epoch != before.epoch + 1 or len(found.voters ^ before.voters) != (
            before.epoch > 0
        ):
            raise Violation(f"voters {found} are committed after {before}")
        self.sets.append(found)

    def _durable_on(self, i: int, index: int, term: int) -> bool:
        """Whether node i would find the entry after a power cut now, read from a copy of its
        durable bytes.
        """
        durable = tuple(content.durable for content in self.disks[i].files.values())
        if not durable:
            return False
        if i not in self.read_back or self.read_back[i][0] != durable:
            copy = MemoryDisk()
            for path, content in self.disks[i].files.items():
                file = copy.files[path] = type(content)()
                file.data, file.durable = bytearray(content.durable), content.durable
            journal = open_journal(
                copy, Path("raft"), cluster_id="sim", node_id=i, new_uuid=lambda: UUID(int=i)
            )
            self.read_back[i] = (durable, journal)
        journal = self.read_back[i][1]
        return index <= journal.base_index or journal.holds(index, term)

    def _lost_on(self, i: int, index: int, term: int) -> bool:
        return i in self.lost and self.lost[i].holds(index, term)

    def check_applied(self, life: Life, index: int, command: bytes) -> None:
        self.check_commits(life)
        if self.committed[index][1] != COMMAND + command:
            raise Violation(
                f"node {life.node_id} applies another command at {index} than was committed there"
            )

    def check_end(self) -> None:
        expected = [
            command[1:]
            for _, (_, command) in sorted(self.committed.items())
            if command[:1] == COMMAND
        ]
        for i in self.ids:
            life = self.lives[i]
            if life is None:
                raise Violation(f"node {i} did not come back")
            applied = life.machine.applied
            if applied != expected[: len(applied)]:
                raise Violation(f"node {i} applied something else than was committed")
            if self.changes and life.node.voters != self.target:
                raise Violation(
                    f"node {i} has voters {life.node.voters}, the file names {self.target}"
                )
            if len(expected) - len(applied) > 60:
                raise Violation(f"node {i} is stuck at {len(applied)} of {len(expected)}")
        longest = max(
            (life.machine.applied for life in self.lives.values() if life is not None), key=len
        )
        if len(set(longest)) != len(longest):
            raise Violation("a command was applied twice")
        if lost := set(self.acknowledged) - set(longest):
            raise Violation(f"{len(lost)} acknowledged commands are lost")
        if wrong := set(self.refused) & set(longest):
            raise Violation(f"{len(wrong)} refused commands were applied")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Simulate the quorum under faults, one run a seed."
    )
    parser.add_argument("--seeds", default="0-99", help="first-last")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--observers", type=int, default=1)
    parser.add_argument("--no-wipes", action="store_true", help="no disk is emptied")
    parser.add_argument(
        "--changes", action="store_true", help="an operator adds and removes voters"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of virtual time under faults")
    parser.add_argument(
        "--fault-every", type=float, default=1.0, help="mean seconds between faults"
    )
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    first, _, last = options.seeds.partition("-")
    began, bad, totals = time.monotonic(), [], [0] * 12
    for seed in range(int(first), int(last or first) + 1):
        world = World(
            seed,
            nodes=options.nodes,
            seconds=options.seconds,
            fault_every=options.fault_every,
            observers=options.observers,
            wipes=not options.no_wipes,
            changes=options.changes,
        )
        try:
            world.run()
        except Exception as error:
            bad.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
        numbers = (
            world.events,
            world.messages,
            world.elections,
            world.crashes,
            len(world.acknowledged),
            world.wipes,
            world.gone,
            world.gone_leaders,
            len(world.sets) - 1,
            world.steps,
            world.mistakes,
            world.refusals,
        )
        totals = [total + number for total, number in zip(totals, numbers, strict=True)]
    figures = (
        "events {}, messages {}, elections {}, crashes {}, acknowledged {}, wiped "
        "disks {}, noticed deaths {}, of leaders {}"
    )
    figures += (
        ", voter sets {}, restarts with another file {}, wrong files {}, refused connections {}"
    )
    print(figures.format(*totals))
    print(f"{len(bad)} bad seeds {bad[:20]} in {time.monotonic() - began:.0f} s")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
