"""Checks the guarantees of consumer groups: a partition has one owner at a time, only the owner can
commit, and committed offsets are not lost.

Members record their events while they run. `check` compares them with the final committed offsets.
A core: no client.

Each committed offset is a register. A commit must have written its final value. This commit must
not have ended before another acknowledged commit began, because then the later one replaced its
value. A commit with an unknown outcome, or with more than one attempt, may have arrived later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

from mqd.client.group_member import GroupMetadata
from mqd.testing.checker import SHOWN_MAX, Anomaly, Outcome
from mqd.types import NO_OFFSET, TopicPartition

GHOST = "ghost"
"""The metadata of commits that the coordinator must never accept."""

MEANINGS = {
    "two-owners": "in one generation two members were assigned the same partition",
    "stale-commit": "a commit of a former owner was accepted after another member had become "
    "the owner",
    "commit-beyond-read": "the committed offset is beyond all records that members received",
    "commit-lost": "the last commits cannot have left the committed offset",
    "commit-unknown": "no commit has sent the committed offset",
    "group-skip": "no member of the group received records below the committed offset",
}


@dataclass(slots=True, eq=False)
class Commit:
    """One commit of one member.

    `began` and `ended`: positions in the sequence of all events.
    """

    offsets: Mapping[TopicPartition, int]
    began: int
    ended: int = 0
    outcome: Outcome = Outcome.PENDING
    single: bool = False
    """Whether it was sent only once."""


@dataclass(frozen=True, slots=True)
class Ghost:
    """A former owner of a partition."""

    metadata: GroupMetadata
    partition: TopicPartition
    ended: bool
    """Whether its process has ended. Otherwise it has released the partition, and may still be a
    member in this generation.
    """


@dataclass(slots=True)
class _Group:
    commits: list[Commit] = field(default_factory=list)
    claims: dict[tuple[int, TopicPartition], str] = field(default_factory=dict)
    owners: dict[TopicPartition, GroupMetadata] = field(default_factory=dict)
    """The owner in the highest generation."""
    given: dict[TopicPartition, set[int]] = field(default_factory=dict)
    ghosts: list[Ghost] = field(default_factory=list)
    reached: dict[str, int] = field(default_factory=dict)
    """Member id -> the highest generation in which it got an assignment."""


class GroupLedger:
    """The groups of one run."""

    def __init__(self) -> None:
        self.groups: dict[str, _Group] = {}
        self.commits = 0
        self.assignments = 0
        self.refused_ghosts = 0
        self._clock = count(1)
        self._found: dict[tuple[str, TopicPartition], list[str]] = {}

    def _group(self, name: str) -> _Group:
        return self.groups.setdefault(name, _Group())

    # -- events of members

    def assigned(
        self, metadata: GroupMetadata, owned: Iterable[TopicPartition], *, classic: bool
    ) -> None:
        """A member got its assignment. In the classic protocol, each generation assigns a partition
        once. A static member that returns in the same generation has another member id (KIP-345).
        """
        self.assignments += 1
        group, name = self._group(metadata.group_id), metadata.instance_id or metadata.member_id
        group.reached[metadata.member_id] = max(
            metadata.generation, group.reached.get(metadata.member_id, 0)
        )
        for partition in owned:
            known = group.owners.get(partition)
            if known is None or known.generation < metadata.generation:
                group.owners[partition] = metadata
            if classic:
                owner = group.claims.setdefault((metadata.generation, partition), name)
                if owner != name:
                    self._note(
                        "two-owners",
                        partition,
                        f"{metadata.group_id}, generation {metadata.generation}: {owner} and "
                        f"{name}",
                    )

    def gone(
        self, metadata: GroupMetadata, partitions: Iterable[TopicPartition], *, ended: bool = False
    ) -> None:
        """A member no longer reads these partitions: they are revoked or lost. `ended`: the member
        itself has ended.
        """
        if metadata.member_id and metadata.generation >= 0:
            self._group(metadata.group_id).ghosts += [
                Ghost(metadata, partition, ended) for partition in partitions
            ]

    def given(self, group: str, partition: TopicPartition, offsets: Iterable[int]) -> None:
        """A member received these records."""
        self._group(group).given.setdefault(partition, set()).update(offsets)

    def committing(self, group: str, offsets: Mapping[TopicPartition, int]) -> Commit:
        """A member is about to send a commit."""
        self._group(group).commits.append(commit := Commit(dict(offsets), next(self._clock)))
        return commit

    def committed(self, commit: Commit, *, single: bool) -> None:
        """A commit was acknowledged. `single`: it was certainly sent only once."""
        commit.outcome, commit.ended, commit.single = Outcome.OK, next(self._clock), single
        self.commits += 1

    def ghosts(self, group: str) -> list[Ghost]:
        """The former owners whose commits the coordinator must reject: another member owns the
        partition in a later generation.

        The times of events prove nothing: a removed member may receive its assignment late. A
        member that has released one partition and must release more keeps its epoch meanwhile
        (KIP-848). Its commits in this epoch are accepted, as in Apache Kafka.
        """
        known = self._group(group)
        return [
            ghost
            for ghost in known.ghosts
            if (owner := known.owners.get(ghost.partition)) is not None
            and owner.member_id != ghost.metadata.member_id
            and owner.generation > ghost.metadata.generation
            and (
                ghost.ended
                or known.reached.get(ghost.metadata.member_id, 0) > ghost.metadata.generation
            )
        ]

    def ghost_refused(self) -> None:
        self.refused_ghosts += 1

    def ghost_accepted(self, ghost: Ghost) -> None:
        """The coordinator accepted a commit of a ghost."""
        self._note("stale-commit", ghost.partition, str(ghost.metadata))

    def _note(self, kind: str, partition: TopicPartition, example: str) -> None:
        self._found.setdefault((kind, partition), []).append(example)

    # -- the check

    def check(
        self,
        committed: Mapping[str, Mapping[TopicPartition, tuple[int, str]]],
        logs: Mapping[TopicPartition, Iterable[int]],
    ) -> list[Anomaly]:
        """Returns every anomaly. `committed`: the final (offset, metadata) of each group. `logs`:
        the offsets of all records at the end.
        """
        for name in sorted(self.groups.keys() | committed.keys()):
            group = self._group(name)
            for partition, offsets in logs.items():
                found = committed.get(name, {}).get(partition)
                self._check_register(name, group, partition, found)
                if found is not None:
                    given = group.given.get(partition, set())
                    if found[0] > max(given, default=-1) + 1:
                        self._note(
                            "commit-beyond-read",
                            partition,
                            f"{name}: {found[0]}, read up to {max(given, default=-1)}",
                        )
                    for offset in offsets:
                        if offset < found[0] and offset not in given:
                            self._note(
                                "group-skip", partition, f"{name}: {offset}, committed {found[0]}"
                            )
        return [
            Anomaly(kind, partition, len(rows), tuple(rows[:SHOWN_MAX]), MEANINGS[kind])
            for (kind, partition), rows in sorted(self._found.items())
        ]

    def _check_register(
        self, name: str, group: _Group, partition: TopicPartition, found: tuple[int, str] | None
    ) -> None:
        commits = [commit for commit in group.commits if partition in commit.offsets]
        newest = max(
            (commit.began for commit in commits if commit.outcome is Outcome.OK), default=0
        )
        possible = [commit for commit in commits if not commit.single or commit.ended >= newest]
        allowed = {commit.offsets[partition] for commit in possible} | (
            set() if newest else {NO_OFFSET}
        )
        offset, metadata = found if found is not None else (NO_OFFSET, "")
        if metadata == GHOST:
            self._note(
                "stale-commit",
                partition,
                f"{name}: offset {offset} is committed with the metadata of a ghost",
            )
        elif offset not in allowed:
            kind = (
                "commit-lost"
                if offset == NO_OFFSET
                or any(commit.offsets[partition] == offset for commit in commits)
                else "commit-unknown"
            )
            self._note(kind, partition, f"{name}: {offset}, possible {sorted(allowed)}")
