"""What must hold inside the cluster, looked at after every event (docs/INVARIANTS.md names the
invariants).

`Probes.look` compares only what changed since the last look, so it may be called after each of
millions of events; `validate` compares everything, images and bytes included, at the end and now
and then. A probe reads the nodes' own objects and changes nothing in them. The first violation is
kept in `violation` and told to `on_violation`; nothing is looked at after it.

Three ideas carry most of it:

- Of every replica there is a *shadow*: the headers of all batches in its files, read as they
  appear. It outlives the process.
- What any leader's high watermark has passed is *committed*: one list of batches a partition, only
  ever extended. Every replica below its own high watermark, every in-sync replica below the
  leader's, and every new leader altogether must agree with it.
- What any voter's commit index has passed is committed in the metadata: every later leader holds
  it, every node applies the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from mqd.controller.size import recount, recount_groups
from mqd.controller.snapshot import encode_snapshot
from mqd.coordinator.group.shard import GroupShard
from mqd.coordinator.txn.shard import TransactionShard
from mqd.daemon import Daemon
from mqd.protocol.batch import HEADER_BYTES, parse_header, validate
from mqd.raft.machine import Role
from mqd.testing.coordinator_probes import GroupProbe
from mqd.testing.violation import Violation
from mqd.types import NO_NODE, TopicPartition


class World(Protocol):
    """What the probes need of the simulated cluster."""

    def daemon(self, node_id: int) -> Daemon | None:
        """The live node, None while there is none."""
        ...

    def contents(self, node_id: int, path: Path) -> bytes | bytearray:
        """The bytes of a file on a node's disk as its processes see them; empty when there
        is no such file.
        """
        ...


class Batch(NamedTuple):
    """What tells one batch from another."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int
    size: int
    """Bytes in the file."""


@dataclass(slots=True, eq=False)
class Shadow:
    """One replica as its files say. `batches` goes on when the process ends."""

    batches: list[Batch] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    """(base offset of the segment, position in its file) of each batch."""
    start: int = 0
    """Where its files begin."""
    end: int = 0
    cuts: int = -1
    cleanings: int = 0
    life: int = 0
    high_watermark: int = 0
    stable: int = 0
    """The last stable offset at the last look."""
    open: dict[int, int] = field(default_factory=dict)
    """Producer id -> first offset of its transaction, where the files hold no marker of its end."""
    state: tuple[Any, ...] = ()
    """What was seen at the last look."""
    agreed: int = 0
    """Batches from the front that were compared with the committed ones and are the same."""
    compared_below: int = 0
    """Of a compacted log: its batches below this offset were compared with the committed
    ones since its files were read whole.
    """
    lost_power: bool = False
    """Whether what it had in memory only may be gone; known again when it has restarted."""
    set_aside: bool = False
    """Whether its log is fenced (corrupt) or gone: it is not held to anything until it is
    fetched anew.
    """
    unassigned: bool = False
    """Whether the metadata took the replica from its node since its log was read: the node
    may have removed it, and begun another.
    """
    latest_epoch: int = -1
    """The last entry of its leader epochs."""

    def lies_below(self, cleaned_to: int) -> bool:
        """Whether it ends inside what another replica has compacted. A leader that has no batch
        left of its last epoch lets it begin again before the gap: all that it loses is superseded
        by committed records that it does not have yet, so it is in no ISR and no ELR.
        """
        return self.end <= cleaned_to


def _epoch_led_in_passing(log: Any, shadow: Shadow, before: tuple[Any, ...]) -> int | None:
    """The epoch in which the node, which does not lead now, led since it was looked at: several
    entries of the metadata may be applied in one step, and the high watermark move between them.

    Either it led when it was looked at, or its leader epochs tell: only a leader notes an epoch of
    which its log has no batch yet.
    """
    latest: int = log.epochs.latest
    if latest > shadow.latest_epoch and not (
        shadow.batches and shadow.batches[-1].leader_epoch == latest
    ):
        return latest
    return before[4] if before and before[5] else None


def _file_name(base_offset: int, suffix: str) -> str:
    """Of a segment.

    A cleaned one is read before it has its name, while the file that it replaces still has it
    (`Segment.suffix`).
    """
    return f"{base_offset:020d}.log{suffix}"


@dataclass(slots=True, eq=False)
class Committed:
    """What was once below a leader's high watermark, in one partition."""

    batches: list[Batch] = field(default_factory=list)
    leader_epochs: list[int] = field(default_factory=list)
    """Of the leader whose high watermark passed each of them first."""
    first_offset: int = 0
    cleaned_to: int = 0
    """Below it some replica was compacted: there batches may be missing, or have lost
    records, on any.
    """

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.first_offset

    def end_before(self, leader_epoch: int) -> int:
        """Up to where it was committed by leaders of earlier epochs: what a leader of this one must
        hold. (One that learns of its leadership late, when another leads already, need not hold
        what that one has committed.)
        """
        count = next(
            (at for at, epoch in enumerate(self.leader_epochs) if epoch >= leader_epoch),
            len(self.batches),
        )
        return self.batches[count - 1].next_offset if count else self.first_offset


def _content(image: Any) -> tuple[Any, ...]:
    """What an image holds besides partitions and brokers.

    Cheap: values are replaced where they change.
    """
    topics = frozenset((topic.name, topic_id) for topic_id, topic in image.topics_by_id.items())
    return (
        image.cluster_id,
        image.next_producer_id,
        dict(image.features),
        dict(image.configs),
        frozenset(image.lost_replicas),
        topics,
    )


def _moved_early(before: Any, after: Any) -> set[int]:
    """Replicas that a move has brought, and that count like the others without having been
    in sync (KIP-455).
    """
    settled = set(after.replicas) - set(after.adding)
    return settled - (set(before.replicas) - set(before.adding)) - set(before.isr) - set(after.isr)


Key = tuple[UUID, int]
"""Topic id and partition: a topic that comes back under the same name is another."""


@dataclass(slots=True, eq=False)
class Quorum:
    """The metadata log as the voters hold it."""

    leaders: dict[int, int] = field(default_factory=dict)
    entries: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)
    """(index, term) -> command, term of the entry before."""
    committed: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    last: int = 1
    """Index of the newest committed entry. The first one is everybody's base."""
    journals: dict[int, Any] = field(default_factory=dict)
    """The newest journal object of each voter, dead ones too."""
    kept: dict[int, int] = field(default_factory=dict)
    """Voter -> up to where its former lives had made durable what its journal still holds. A new
    life that writes its journal anew, because it cannot know what was synced, does not count it at
    once; it is on the disk all the same.
    """
    states: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    newest: dict[int, Any] = field(default_factory=dict)
    compared: dict[int, int] = field(default_factory=dict)
    """Node -> its commit index when it was last compared."""


@dataclass(slots=True)
class Counts:
    """What happened, for whoever reads the totals."""

    looks: int = 0
    elections: int = 0
    leader_changes: int = 0
    batches: int = 0
    truncations: int = 0
    truncated_below_high_watermark: int = 0
    high_watermark_after_restart_lower: int = 0
    isr_changes: int = 0


class Probes:
    """See the head of the file. `voters` are the ids that count for a majority; `may_lose(topic)`
    tells whether what happened to the disks of this run may take acknowledged records of that
    topic.
    """

    def __init__(
        self,
        world: World,
        nodes: tuple[int, ...],
        *,
        voters: tuple[int, ...] | None = None,
        may_lose: Callable[[str], bool] | None = None,
    ) -> None:
        self.world = world
        self.nodes = nodes
        self.voters = voters if voters is not None else nodes
        self.may_lose = may_lose if may_lose is not None else lambda _topic: False
        self.violation: str | None = None
        self.on_violation: Callable[[], None] = lambda: None
        self.on_restart: Callable[[int], None] = lambda _node: None
        self.on_life: Callable[[Daemon], None] = lambda _daemon: None
        self.groups: GroupProbe | None = None
        self.counts = Counts()
        self.quorum = Quorum()
        self.shadows: dict[Key, dict[int, Shadow]] = {}
        self.committed: dict[Key, Committed] = {}
        self.names: dict[TopicPartition, UUID] = {}
        self._lives: dict[int, tuple[int, Daemon | None]] = dict.fromkeys(nodes, (0, None))
        self._epoch_leaders: dict[tuple[UUID, int, int], int] = {}
        self._images: dict[tuple[UUID, int, int], Any] = {}
        self._newest: dict[Key, Any] = {}
        """Of each partition the image with the highest partition epoch that any node has
        applied.
        """
        self._image_indexes: dict[int, int] = {}
        self._contents: dict[int, tuple[int, tuple[Any, ...]]] = {}
        """Index -> the first node that was seen there, and what its image held besides
        partitions.
        """
        self._powerless: set[int] = set()
        self._seen: dict[int, dict[int, tuple[Any, ...]]] = {node_id: {} for node_id in nodes}
        """Node -> id() of a replica of its present life -> what was seen of it at the last look."""

    # -- what the world tells

    def power_cut(self, node_id: int) -> None:
        """A node is about to lose what it had not synced."""
        self._powerless.add(node_id)
        for replicas in self.shadows.values():
            if node_id in replicas:
                replicas[node_id].lost_power = True

    def set_aside(self, node_id: int, partition: TopicPartition) -> None:
        """The files of a replica were damaged: it is not held to what it had until it has
        been fetched anew.
        """
        shadow = self.shadow(node_id, partition)
        if shadow is not None:
            shadow.set_aside = True

    def shadow(self, node_id: int, partition: TopicPartition) -> Shadow | None:
        topic_id = self.names.get(partition)
        return (
            self.shadows.get((topic_id, partition.partition), {}).get(node_id)
            if topic_id is not None
            else None
        )

    def is_committed(self, partition: TopicPartition, offset: int) -> bool:
        """Whether some leader's high watermark has passed `offset`."""
        topic_id = self.names.get(partition)
        committed = (
            self.committed.get((topic_id, partition.partition)) if topic_id is not None else None
        )
        return committed is not None and offset < committed.end

    def committed_end(self, partition: TopicPartition) -> int:
        """The end of what is committed of a partition."""
        committed = self.committed.get((self.names[partition], partition.partition))
        return committed.end if committed is not None else 0

    def unstable(self) -> str | None:
        """A partition in which readers of committed records are held up, by the word of
        whoever leads it.
        """
        for daemon in self._live().values():
            for partitions in daemon.replica.by_name.values():
                for partition in partitions.values():
                    if (
                        partition.is_leader
                        and partition.last_stable_offset < partition.log.log_end_offset
                    ):
                        place = partition.log.topic_partition
                        return (
                            f"the end of a transaction in {place}, stable up to "
                            f"{partition.last_stable_offset}"
                        )
        return None

    def undeleted(self) -> str | None:
        """A replica that still has records which its leader has deleted."""
        live = self._live()
        for leader, daemon in live.items():
            for partitions in daemon.replica.by_name.values():
                for partition in partitions.values():
                    place, start = partition.log.topic_partition, partition.log.log_start_offset
                    for follower in (
                        partition.followers
                        if partition.is_leader and leader not in partition.followers
                        else ()
                    ):
                        copy = live[follower].replica.get(place) if follower in live else None
                        if copy is not None and copy.log.log_start_offset < start:
                            return (
                                f"deletion of the records of {place} below {start} on node "
                                f"{follower}"
                            )
        return None

    def unreleased(self) -> str | None:
        """A node whose pools count more than its connections hold (I14).

        Requests that are in tasks count too, for a moment.
        """
        for node_id, daemon in self._live().items():
            server = daemon.server
            if server is None:
                continue
            for kind, pool in server._pools.items():
                connections = [one for one in server._connections if one.listener == kind]
                counted = pool.bytes, server._answers[kind].bytes
                held = (
                    sum(one.held_bytes for one in connections),
                    sum(one.unsent_bytes for one in connections),
                )
                if counted != held:
                    return (
                        f"release of memory on node {node_id}: {counted} bytes of requests "
                        f"and answers are counted, {held} are held"
                    )
        return None

    # -- looking

    def look(self, node_id: int) -> None:
        """After a step of this node. Never raises: a violation is kept and told."""
        if self.violation is not None:
            return
        self.counts.looks += 1
        daemon = self.world.daemon(node_id)
        if daemon is None:
            return
        life, known = self._lives[node_id]
        try:
            if daemon is not known:
                life += 1
                self._lives[node_id] = life, daemon
                self._begin_life(node_id)
                self.on_life(daemon)
            self._look_at_quorum(node_id, daemon)
            if daemon.machine.image.index != self._image_indexes.get(node_id):
                self._look_at_image(node_id, daemon)
            self._look_at_replicas(node_id, life, daemon)
            if self.groups is not None:
                self.groups.look(node_id, daemon, lambda *key: self._newest.get(key))
        except Violation as violation:
            self.violation = str(violation)
            self.on_violation()

    def _begin_life(self, node_id: int) -> None:
        self.quorum.newest.pop(node_id, None)
        self.quorum.states.pop(node_id, None)
        self._seen[node_id] = {}
        self._image_indexes.pop(node_id, None)
        self._powerless.discard(node_id)
        self.on_restart(node_id)

    # -- the quorum (I11, I12; Ongaro, figure 3.2)

    def _look_at_quorum(self, node_id: int, daemon: Daemon) -> None:
        node, journal = daemon.raft._node, daemon.raft._journal
        if node is None or journal is None:
            return
        quorum = self.quorum
        newest = journal.entries[-1]
        state = (
            node.term,
            node.role,
            node.commit_index,
            newest,
            journal.durable_index,
            node.applied_index,
        )
        if quorum.states.get(node_id) == state:
            return
        quorum.states[node_id] = state
        former = quorum.journals.get(node_id)
        if former is not None and former is not journal:
            quorum.kept[node_id] = max(quorum.kept.get(node_id, 0), former.durable_index)
        quorum.kept[node_id] = min(quorum.kept.get(node_id, 0), journal.last_index)
        quorum.journals[node_id] = journal
        if node.role is Role.LEADER and quorum.leaders.get(node.term) != node_id:
            if node.term in quorum.leaders:
                raise Violation(
                    f"I12 election safety: nodes {quorum.leaders[node.term]} and {node_id} "
                    f"both lead term {node.term}"
                )
            quorum.leaders[node.term] = node_id
            self.counts.elections += 1
            for index, (term, _) in quorum.committed.items():
                if index > journal.base_index and not journal.holds(index, term):
                    raise Violation(
                        f"I12 leader completeness: node {node_id} leads term {node.term} "
                        f"without entry {index} of term {term}"
                    )
        if newest is not quorum.newest.get(node_id):
            self._look_at_entries(node_id, journal)
        commit_index = node.commit_index
        for index in range(quorum.last + 1, commit_index + 1):
            self._commit(node_id, journal, index)
        for index in range(
            max(quorum.compared.get(node_id, 1), journal.base_index) + 1, commit_index + 1
        ):
            entry = journal.entries[index - journal.base_index]
            if quorum.committed[index] != (entry.term, entry.command):
                raise Violation(
                    f"I12 state machine safety: node {node_id} committed another command at {index}"
                )
        quorum.compared[node_id] = commit_index
        if node.applied_index > journal.durable_index:
            raise Violation(
                f"I11: node {node_id} applied {node.applied_index}, durable only to "
                f"{journal.durable_index}"
            )

    def _look_at_entries(self, node_id: int, journal: Any) -> None:
        entries, known = self.quorum.entries, self.quorum.newest.get(node_id)
        rows = journal.entries
        for position in range(len(rows) - 1, 0, -1):
            entry = rows[position]
            if entry is known:
                break
            fact = (entry.command, rows[position - 1].term)
            if entries.setdefault((entry.index, entry.term), fact) != fact:
                raise Violation(
                    f"I12 log matching: entry {entry.index} of term {entry.term} differs on "
                    f"node {node_id}"
                )
        self.quorum.newest[node_id] = rows[-1]

    def _commit(self, node_id: int, journal: Any, index: int) -> None:
        """The first sight of a committed entry: a majority must have it on stable storage."""
        if index <= journal.base_index:
            raise Violation(
                f"I12: node {node_id} committed {index} by a snapshot of what nobody had committed"
            )
        entry = journal.entries[index - journal.base_index]
        copies = 0
        for voter in self.voters:
            copy = self.quorum.journals.get(voter)
            if copy is None:
                continue
            durable_index = max(copy.durable_index, self.quorum.kept.get(voter, 0))
            if durable_index >= index and (
                index <= copy.base_index or copy.holds(index, entry.term)
            ):
                copies += 1
        if copies * 2 <= len(self.voters):
            raise Violation(
                f"I11: node {node_id} commits {index} of term {entry.term} with {copies} "
                f"durable copies of {len(self.voters)}"
            )
        self.quorum.committed[index] = (entry.term, entry.command)
        self.quorum.last = index

    # -- the metadata image (I10)

    def _look_at_image(self, node_id: int, daemon: Daemon) -> None:
        image = daemon.machine.image
        before = self._image_indexes.get(node_id, 0)
        if image.index < before:
            raise Violation(
                f"I10: the image of node {node_id} went back from {before} to {image.index}"
            )
        self._image_indexes[node_id] = image.index
        content = _content(image)
        other, expected = self._contents.setdefault(image.index, (node_id, content))
        if expected != content:
            differing = next(
                pair for pair in zip(expected, content, strict=True) if pair[0] != pair[1]
            )
            raise Violation(
                f"I10: at index {image.index} nodes {other} and {node_id} hold {differing[0]} "
                f"and {differing[1]}"
            )
        for topic in image.topics.values():
            for number, partition in enumerate(topic.partitions):
                place = (topic.topic_id, number, partition.partition_epoch)
                known = self._images.get(place)
                if known is partition:
                    continue
                where = f"{topic.name}-{number} at partition epoch {partition.partition_epoch}"
                if known is not None:
                    if known != partition:
                        raise Violation(
                            f"I10: two images of {where}: {known} and, on node {node_id}, "
                            f"{partition}"
                        )
                    continue
                self._images[place] = partition
                previous = self._images.get((*place[:2], partition.partition_epoch - 1))
                if previous is not None and (early := _moved_early(previous, partition)):
                    raise Violation(
                        f"a move of {where} leaves {early} as replicas, never in sync: "
                        f"{previous}, {partition}"
                    )
                newest = self._newest.get(place[:2])
                if newest is None or newest.partition_epoch < partition.partition_epoch:
                    self._newest[place[:2]] = partition
                for other, shadow in self.shadows.get(place[:2], {}).items():
                    shadow.unassigned = shadow.unassigned or other not in partition.replicas
                self.counts.isr_changes += 1
                if not set(partition.isr) <= set(partition.replicas) or len(
                    set(partition.replicas)
                ) != len(partition.replicas):
                    raise Violation(
                        f"I10: in-sync replicas beyond the replicas of {where}: {partition}"
                    )
                if partition.leader != NO_NODE and partition.leader not in partition.isr:
                    raise Violation(f"I10: a leader that is not in sync in {where}: {partition}")
                if set(partition.elr) & set(partition.isr):
                    raise Violation(f"I10: replicas in the ISR and the ELR of {where}: {partition}")
                if partition.leader != NO_NODE:
                    self._lead(
                        topic.topic_id, number, partition.leader_epoch, partition.leader, where
                    )

    def _lead(
        self, topic_id: UUID, number: int, leader_epoch: int, node_id: int, where: str
    ) -> None:
        known = self._epoch_leaders.setdefault((topic_id, number, leader_epoch), node_id)
        if known != node_id:
            raise Violation(
                f"two leaders in leader epoch {leader_epoch} of {where}: nodes {known} and "
                f"{node_id}"
            )

    # -- replicas (I1 to I5)

    def _look_at_replicas(self, node_id: int, life: int, daemon: Daemon) -> None:
        """Called for every step of every node: what did not change must cost next to nothing."""
        seen = self._seen[node_id]
        for partitions in daemon.replica.by_name.values():
            for partition in partitions.values():
                log = partition.log
                state = (
                    partition.high_watermark,
                    log.written_end_offset,
                    log.log_start_offset,
                    (log.truncations, log.cleanings),
                    partition.leader_epoch,
                    partition.is_leader,
                    partition.assignment,
                    log.failure,
                    log,
                    partition,  # held, so that nothing else gets its id
                )
                if seen.get(id(partition)) == state:
                    continue
                topic_partition = log.topic_partition
                key = (log.topic_id, topic_partition.partition)
                try:
                    shadow = self.shadows[key][node_id]
                except KeyError:
                    self.names[topic_partition] = log.topic_id
                    shadow = self.shadows.setdefault(key, {}).setdefault(node_id, Shadow(life=life))
                    self.committed.setdefault(key, Committed())
                before, shadow.state = shadow.state, state
                self._look_at_replica(node_id, life, partition, key, shadow, before)
                seen[id(partition)] = state

    def _look_at_replica(
        self,
        node_id: int,
        life: int,
        partition: Any,
        key: Key,
        shadow: Shadow,
        before: tuple[Any, ...],
    ) -> None:
        log, topic_partition = partition.log, partition.log.topic_partition
        committed = self.committed[key]
        high_watermark = partition.high_watermark
        where = f"{topic_partition} on node {node_id}"
        if not log.log_start_offset <= high_watermark <= log.log_end_offset:
            raise Violation(
                f"I4: {where}: start {log.log_start_offset}, high watermark {high_watermark}, "
                f"end {log.log_end_offset}"
            )
        if (
            shadow.life == life
            and not shadow.set_aside
            and not shadow.unassigned
            and not shadow.lies_below(committed.cleaned_to)
        ):
            if high_watermark < shadow.high_watermark and not self.may_lose(topic_partition.topic):
                raise Violation(
                    f"I5: the high watermark of {where} went back from "
                    f"{shadow.high_watermark} to {high_watermark}"
                )
            if partition.last_stable_offset < shadow.stable and not self.may_lose(
                topic_partition.topic
            ):
                raise Violation(
                    f"the last stable offset of {where} went back from {shadow.stable} to "
                    f"{partition.last_stable_offset}"
                )
        elif high_watermark < shadow.high_watermark:
            self.counts.high_watermark_after_restart_lower += 1
        if log.cleaned_to or log.cleanings:
            committed.cleaned_to = max(committed.cleaned_to, log.segments[-1].base_offset)
        if (
            log.written_end_offset != shadow.end
            or (log.truncations, log.cleanings) != (shadow.cuts, shadow.cleanings)
            or shadow.life != life
        ):
            # its last log, and what was seen of it
            died_in_cut = (
                shadow.life != life and bool(before) and before[8].truncations != before[3][0]
            )
            self._read_log(node_id, life, log, shadow, died_in_cut, where)
        self._look_at_stable(partition, shadow, where)
        shadow.life, shadow.high_watermark = life, high_watermark
        if partition.is_leader:
            became = not before or before[4] != partition.leader_epoch or not before[5]
            if became:
                self._lead(
                    log.topic_id, topic_partition.partition, partition.leader_epoch, node_id, where
                )
                self.counts.leader_changes += 1
                if shadow.set_aside:
                    raise Violation(
                        f"I8: {where} leads in epoch {partition.leader_epoch}, and its log is "
                        "damaged or gone"
                    )
                if not self.may_lose(topic_partition.topic):
                    end = committed.end_before(partition.leader_epoch)
                    self._compare(
                        shadow,
                        committed,
                        end,
                        f"I1: the new leader of epoch {partition.leader_epoch}, {where}",
                    )
            if not self.may_lose(topic_partition.topic):
                self._look_at_leader(partition, key, committed, where)
        elif (
            high_watermark > committed.end
            and not self.may_lose(topic_partition.topic)
            and (epoch := _epoch_led_in_passing(log, shadow, before)) is not None
        ):
            self._commit_batches(shadow, committed, high_watermark, epoch, where)
        shadow.latest_epoch = log.epochs.latest
        if not shadow.set_aside and not self.may_lose(topic_partition.topic):
            if high_watermark > committed.end:
                raise Violation(
                    f"I2: the high watermark of {where} is {high_watermark}; no leader's was "
                    f"above {committed.end}"
                )
            self._compare(
                shadow,
                committed,
                high_watermark,
                f"replicas differ below the high watermark: {where}",
            )

    @staticmethod
    def _look_at_stable(partition: Any, shadow: Shadow, where: str) -> None:
        """Readers of committed records get nothing from the first open transaction on."""
        log, stable = partition.log, partition.last_stable_offset
        if not log.log_start_offset <= stable <= partition.high_watermark:
            raise Violation(
                f"{where}: start {log.log_start_offset}, stable {stable}, high watermark "
                f"{partition.high_watermark}"
            )
        shadow.stable = stable
        first = min(shadow.open.values(), default=stable)
        if (
            log.log_start_offset <= first < stable
            and not shadow.set_aside
            and not log.cleanings
            and not log.cleaned_to
        ):
            raise Violation(
                f"the last stable offset of {where} is {stable}, and the transaction that "
                f"begins at {first} has no end"
            )

    def _look_at_leader(self, partition: Any, key: Key, committed: Committed, where: str) -> None:
        """What a leader's high watermark passes must be on every in-sync replica: from here
        on it is committed.
        """
        high_watermark = partition.high_watermark
        shadows = self.shadows[key]
        own = shadows[partition.node_id]
        if high_watermark > committed.end:
            self._commit_batches(own, committed, high_watermark, partition.leader_epoch, where)
        newest = self._newest.get(key)
        for member in sorted({*partition.assignment.isr, partition.node_id}):
            if (
                newest is not None
                and newest.partition_epoch > partition.assignment.partition_epoch
                and member not in newest.isr
            ):
                # taken out since, which this leader has not heard yet: the member may have given up
                # its log
                continue
            shadow = shadows.get(member)
            if shadow is None:
                if high_watermark > committed.first_offset:
                    raise Violation(
                        f"I1: {where} has high watermark {high_watermark}, and in-sync "
                        f"replica {member} has no log"
                    )
            elif not shadow.lost_power and not shadow.set_aside:
                self._compare(
                    shadow, committed, high_watermark, f"I1: in-sync replica {member} of {where}"
                )

    @staticmethod
    def _commit_batches(
        own: Shadow, committed: Committed, high_watermark: int, leader_epoch: int, where: str
    ) -> None:
        """A leader's high watermark has passed these batches of its log."""
        for batch in own.batches[bisect_left(own.batches, (committed.end,)) :]:
            if batch.next_offset > high_watermark:
                break
            committed.batches.append(batch)
            committed.leader_epochs.append(leader_epoch)
        if committed.end != high_watermark:
            raise Violation(
                f"I3: the high watermark of {where} is {high_watermark}, inside a batch or "
                "beyond its file"
            )

    def _compare(self, shadow: Shadow, committed: Committed, end: int, what: str) -> None:
        """The replica must hold the committed batches below `end`, those that are older
        than its log excepted.
        """
        if not committed.batches or end <= committed.first_offset:
            return
        if committed.cleaned_to:
            self._compare_compacted(shadow, committed, end, what)
            return
        first = bisect_left(
            committed.batches, (shadow.batches[0].base_offset if shadow.batches else shadow.start,)
        )
        at = first + shadow.agreed
        while at < len(committed.batches) and committed.batches[at].next_offset <= end:
            ours = shadow.batches[at - first] if at - first < len(shadow.batches) else None
            theirs = committed.batches[at]
            if ours is None:
                raise Violation(
                    f"{what} ends at {shadow.end}, and {theirs.next_offset} and more was committed"
                )
            if ours[:4] != theirs[:4]:
                raise Violation(
                    f"{what} has {ours[:4]}, and {theirs[:4]} was committed (base, next, "
                    "leader epoch, CRC)"
                )
            at += 1
        shadow.agreed = at - first

    @staticmethod
    def _compare_compacted(shadow: Shadow, committed: Committed, end: int, what: str) -> None:
        """What the replica has is what was committed, or less of it; above what any replica
        has compacted nothing is missing.
        """
        # what came before was compared, and the log was not rewritten since
        first = (shadow.compared_below,)
        ours = {
            batch.base_offset: batch
            for batch in shadow.batches[bisect_left(shadow.batches, first) :]
            if batch.next_offset <= end
        }
        start = shadow.batches[0].base_offset if shadow.batches else shadow.start
        for theirs in committed.batches[bisect_left(committed.batches, first) :]:
            if theirs.next_offset > end:
                break
            batch = ours.pop(theirs.base_offset, None)
            if batch is None:
                if theirs.base_offset >= max(committed.cleaned_to, start):
                    raise Violation(
                        f"{what} has no batch at {theirs.base_offset}, which was committed, "
                        "above all that is compacted"
                    )
            elif batch[1:3] != theirs[1:3] or (
                batch.crc != theirs.crc and batch.base_offset >= committed.cleaned_to
            ):
                raise Violation(
                    f"{what} has {batch[:4]}, and {theirs[:4]} was committed (base, next, "
                    "leader epoch, CRC)"
                )
            shadow.compared_below = theirs.next_offset
        if any(base_offset >= committed.first_offset for base_offset in ours):
            raise Violation(f"{what} has a batch at {min(ours)} that nobody committed")

    def _read_log(
        self, node_id: int, life: int, log: Any, shadow: Shadow, died_in_cut: bool, where: str
    ) -> None:
        """Bring the shadow up to the file, and see what was cut off.

        A process that was killed while it cut its log has lost nothing by dying: what its leader
        does not have goes, finished or not.
        """
        if (log.truncations, log.cleanings, life) == (
            shadow.cuts,
            shadow.cleanings,
            shadow.life,
        ) and log.written_end_offset > shadow.end:
            self._extend(node_id, log, shadow, where)
            return
        before, end_before = shadow.batches, shadow.end
        shadow.compared_below = 0
        shadow.start = log.segments[0].base_offset
        fresh = Shadow()
        fresh.end = log.segments[0].base_offset
        self._extend(node_id, log, fresh, where)
        # at its leader's log start, which had passed it
        begun_anew = log.segments[0].base_offset > end_before
        older = (
            []
            if begun_anew
            else [batch for batch in before if batch.next_offset <= log.segments[0].base_offset]
        )
        shadow.places = [(-1, -1)] * len(older) + fresh.places
        shadow.batches = older + fresh.batches
        shadow.open = fresh.open
        kept = next(
            (at for at, (old, new) in enumerate(zip(before, shadow.batches)) if old != new),
            min(len(before), len(shadow.batches)),
        )
        shadow.agreed = min(shadow.agreed, kept)
        cut_at = before[kept].base_offset if kept < len(before) and not begun_anew else end_before
        # what is missing in between, or has fewer records, was compacted
        if log.cleaned_to or log.cleanings:
            cut_at, shadow.agreed = (
                min(shadow.batches[-1].next_offset if shadow.batches else 0, end_before),
                0,
            )
        excused = (
            shadow.lost_power
            or shadow.set_aside
            or shadow.unassigned
            or self.may_lose(log.topic_partition.topic)
        )
        excused |= shadow.lies_below(
            self.committed[log.topic_id, log.topic_partition.partition].cleaned_to
        )
        if life != shadow.life and not died_in_cut:
            if cut_at < end_before and not excused:
                raise Violation(
                    f"I1: a restarted process lost what was written: {where} ended at "
                    f"{end_before}, now at {cut_at}"
                )
        elif cut_at < end_before:
            self.counts.truncations += 1
            if cut_at < shadow.high_watermark:
                self.counts.truncated_below_high_watermark += 1
                if not excused:
                    raise Violation(
                        f"I8: {where} was cut to {cut_at}, below its high watermark "
                        f"{shadow.high_watermark}"
                    )
        shadow.lost_power = shadow.set_aside = shadow.unassigned = False
        shadow.end, shadow.cuts, shadow.cleanings = (
            log.written_end_offset,
            log.truncations,
            log.cleanings,
        )

    def _extend(self, node_id: int, log: Any, shadow: Shadow, where: str) -> None:
        for segment in log.segments[log.segment_index(shadow.end) :]:
            position = 0
            if shadow.places and shadow.places[-1][0] == segment.base_offset:
                position = shadow.places[-1][1] + shadow.batches[-1].size
            if position >= segment.size:
                continue
            data = self.world.contents(
                node_id, log.path / _file_name(segment.base_offset, segment.suffix)
            )
            while position < segment.size:
                if position + HEADER_BYTES > len(data):
                    raise Violation(
                        f"I3: {where}: the file of segment {segment.base_offset} ends before "
                        f"position {segment.size}"
                    )
                header = parse_header(memoryview(data), position)
                if header.base_offset != shadow.end and not (
                    log.cleaned_to is not None and header.base_offset > shadow.end
                ):
                    raise Violation(
                        f"I3: {where}: a batch begins at {header.base_offset}, the one before "
                        f"it ended at {shadow.end}"
                    )
                if (
                    shadow.batches
                    and header.partition_leader_epoch < shadow.batches[-1].leader_epoch
                ):
                    raise Violation(
                        f"{where}: leader epoch {header.partition_leader_epoch} after "
                        f"{shadow.batches[-1].leader_epoch}"
                    )
                shadow.batches.append(
                    Batch(
                        header.base_offset,
                        header.next_offset,
                        header.partition_leader_epoch,
                        header.crc,
                        header.size,
                    )
                )
                shadow.places.append((segment.base_offset, position))
                shadow.end = header.next_offset
                if header.is_control:
                    shadow.open.pop(header.producer_id, None)
                elif header.is_transactional:
                    shadow.open.setdefault(header.producer_id, header.base_offset)
                position += header.size
                self.counts.batches += 1
        shadow.cuts, shadow.cleanings = log.truncations, log.cleanings

    # -- everything

    def validate(self) -> None:
        """Compare images, bytes and producers of all live nodes, whole. Never raises."""
        if self.violation is not None:
            return
        try:
            self._validate_images()
            self._validate_accounts()
            for key, shadows in self.shadows.items():
                self._validate_partition(key, shadows)
        except Violation as violation:
            self.violation = str(violation)
            self.on_violation()

    def _live(self) -> dict[int, Daemon]:
        return {
            node_id: daemon
            for node_id in self.nodes
            if (daemon := self.world.daemon(node_id)) is not None
        }

    def _validate_images(self) -> None:
        by_index: dict[int, tuple[int, bytes]] = {}
        for node_id, daemon in self._live().items():
            image = daemon.machine.image
            other, snapshot = by_index.setdefault(image.index, (node_id, encode_snapshot(image)))
            if snapshot != encode_snapshot(image):
                raise Violation(
                    f"I10: nodes {other} and {node_id} have different images at index {image.index}"
                )
            if (image.size, image.groups_size) != (recount(image), recount_groups(image)):
                raise Violation(
                    f"I45: node {node_id} counts {image.size} bytes of metadata, a recount "
                    f"{recount(image)}"
                )

    def _validate_accounts(self) -> None:
        for node_id, daemon in self._live().items():
            for coordinator in (daemon.coordinators.groups, daemon.coordinators.transactions):
                for shard in coordinator.shards():
                    assert isinstance(shard, GroupShard | TransactionShard)
                    if shard.account.exact != shard.recount():
                        found = (
                            f"counts {shard.account.exact} bytes in {shard.account.name}, "
                            f"a recount {shard.recount()}"
                        )
                        raise Violation(f"I46: node {node_id} {found}")

    def _validate_partition(self, key: Key, shadows: Mapping[int, Shadow]) -> None:
        held: dict[int, Any] = {}
        for node_id, daemon in self._live().items():
            partition = daemon.replica.by_id.get(key[0].bytes, {}).get(key[1])
            if partition is not None and not partition.log.queue:
                held[node_id] = partition
        for node_id, partition in held.items():
            self._validate_bytes(node_id, partition, shadows[node_id])
        for (a, first), (b, second) in pairwise(sorted(held.items(), key=lambda row: row[0])):
            self._validate_producers(a, first, b, second)

    def _validate_bytes(self, node_id: int, partition: Any, shadow: Shadow) -> None:
        """Each batch below the high watermark passes its CRC, which covers all but what the
        shadow compares.
        """
        log = partition.log
        if shadow.set_aside:
            return
        suffixes = {segment.base_offset: segment.suffix for segment in log.segments}
        for batch, (segment, position) in zip(shadow.batches, shadow.places, strict=True):
            if (
                batch.next_offset > partition.high_watermark
                or segment < 0
                or batch.next_offset <= log.log_start_offset
            ):
                continue
            data = self.world.contents(
                node_id, log.path / _file_name(segment, suffixes.get(segment, ""))
            )
            if not data:
                continue  # retired by retention
            try:
                validate(memoryview(data), position)
            except Exception as error:
                raise Violation(
                    f"bytes of {log.topic_partition} on node {node_id} at offset "
                    f"{batch.base_offset}: {error}"
                ) from error

    def _validate_producers(self, a: int, first: Any, b: int, second: Any) -> None:
        """Two replicas that end alike know the last batch of each producer alike (I7)."""
        logs = first.log, second.log
        if (
            logs[0].log_end_offset != logs[1].log_end_offset
            or logs[0].epochs.latest != logs[1].epochs.latest
        ):
            return
        known = [{row.producer_id: row[:5] for row in log.producers.entries()} for log in logs]
        if known[0] != known[1]:
            raise Violation(
                f"I7: nodes {a} and {b} know other producers of {logs[0].topic_partition}: "
                f"{known[0]} and {known[1]}"
            )
