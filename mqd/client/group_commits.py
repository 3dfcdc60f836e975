"""Committed offsets of a group consumer: what its user has processed, and what of it is committed.
Commits happen on request, at intervals, and before a revocation.

A position is the next offset to read. Invariant: only positions of owned partitions are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import trio

from mqd.client.cluster import ClusterClient
from mqd.client.errors import ClientError, CommitFailed
from mqd.client.group_member import COORDINATOR_MOVED, GroupMetadata
from mqd.client.group_options import GroupOptions
from mqd.client.membership import Membership
from mqd.client.offsets import (
    COMMIT_CAME_TOO_LATE,
    NAMES_UP_TO,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    CommittedOffset,
    Offsets,
    commit_body,
    commit_errors,
    fetch_body,
    fetched,
    raise_most_severe,
)
from mqd.errors import ErrorCode, MqError
from mqd.types import TopicPartition

_RETRY_S = 0.05
"""The time between attempts to commit while the group's next generation is formed."""


class GroupCommits:
    """Made by the group consumer."""

    def __init__(
        self,
        client: ClusterClient,
        nursery: trio.Nursery,
        membership: Membership,
        options: GroupOptions,
    ) -> None:
        self.processed: dict[TopicPartition, int] = {}
        """The position of each partition up to which the user has processed the records."""
        self._committed: dict[TopicPartition, int] = {}
        """The positions that are committed, as far as this member knows."""
        self._client = client
        self._nursery = nursery
        self._membership = membership
        self._member = membership.member
        self._options = options
        self._interval_s = options.auto_commit_interval_ms / 1000
        self._next_commit_at = trio.current_time() + self._interval_s
        self._is_committing = False

    def on_start(self, tp: TopicPartition, position: int) -> None:
        """Reading begins at a committed position."""
        self._committed[tp] = position

    def forget(self, tp: TopicPartition) -> None:
        """The partition was revoked."""
        self.processed.pop(tp, None)
        self._committed.pop(tp, None)

    # -- commits

    async def commit(self, wanted: Callable[[], Offsets], *, deadline: float) -> None:
        """Commit what `wanted` returns, with retries until `deadline`.

        `wanted` is called before each attempt: a retry must not undo the commit of another task.
        Raises CommitFailed, REBALANCE_IN_PROGRESS and DeadlineExceeded.
        """
        doing = f"committing offsets of group {self._options.group_id!r}"
        offsets: Offsets = {}

        async def attempt() -> None:
            nonlocal offsets
            while True:
                if not (offsets := wanted()):
                    return
                await self._membership.wait_until_member(doing, deadline)
                self._check_owned(offsets)
                errors = await self._commit_once(offsets)
                codes = {error.code for error in errors.values()}
                if ErrorCode.STALE_MEMBER_EPOCH in codes and self._has_epochs:
                    self._membership.heartbeat_now()
                elif ErrorCode.REBALANCE_IN_PROGRESS not in codes or not self._member.may_advance:
                    break
                if trio.current_time() >= deadline:
                    break
                await trio.sleep(_RETRY_S)
            for error in errors.values():
                if error.code in COMMIT_CAME_TOO_LATE:
                    raise CommitFailed(error.code, f"{doing}: {error.message}")
            raise_most_severe(errors.values())

        await self._client.retry(doing, attempt, deadline=deadline)
        for tp, position in offsets.items():
            if isinstance(position, int) and tp in self._member.owned:
                self._committed[tp] = position

    @property
    def _has_epochs(self) -> bool:
        return self._options.group_protocol == "consumer"

    async def _commit_once(self, offsets: Offsets) -> dict[TopicPartition, ClientError]:
        body = commit_body(self._member.metadata(), offsets)
        response = await self._membership.coordinator.ask(OFFSET_COMMIT, body, at_most=NAMES_UP_TO)
        errors = commit_errors(response)
        if {error.code for error in errors.values()} & COORDINATOR_MOVED:
            self._membership.coordinator.forget()
        return errors

    def _check_owned(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            if tp not in self._member.owned:
                message = f"{tp} is not assigned to this member of group {self._options.group_id!r}"
                raise CommitFailed(ErrorCode.ILLEGAL_GENERATION, message)

    def _uncommitted(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Positions to commit: of the partitions, or of all."""
        positions = self.processed
        wanted = positions if partitions is None else [tp for tp in partitions if tp in positions]
        return {tp: positions[tp] for tp in wanted if self._committed.get(tp) != positions[tp]}

    def commit_if_due(self) -> None:
        """With `auto_commit`, start a commit if the interval is over."""
        now = trio.current_time()
        if not self._options.auto_commit or self._is_committing or now < self._next_commit_at:
            return
        if self._member.is_member:
            self._next_commit_at = now + self._interval_s
            if self._uncommitted():
                self._is_committing = True
                self._nursery.start_soon(self._commit_in_background)

    async def _commit_in_background(self) -> None:
        """No task waits for this commit: offsets that it could not commit are in the next one."""
        try:
            deadline = trio.current_time() + self._interval_s
            await self.commit(self._uncommitted, deadline=deadline)
        except MqError:
            pass
        finally:
            self._is_committing = False

    async def commit_before_revocation(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit the processed offsets of the partitions.

        After a failure their next owner reads some records again: at-least-once delivery.
        """
        try:
            deadline = trio.current_time() + self._options.timeout_s
            await self.commit(lambda: self._uncommitted(partitions), deadline=deadline)
        except MqError:
            pass

    # -- what is committed

    async def fetch(
        self, partitions: list[TopicPartition], *, stable: bool
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """The committed offset of each partition, None without one.

        With `stable`, offsets that an open transaction may change are waited for (KIP-447).
        """
        group = self._options.group_id
        subject = f"the committed offsets of group {group!r}"
        found: dict[TopicPartition, CommittedOffset | None] = {}

        def accept(response: object) -> None:
            rows = fetched(response, subject)
            raise_most_severe(each for each in rows.values() if isinstance(each, ClientError))
            for tp, row in rows.items():
                if not isinstance(row, ClientError):
                    found[tp] = row

        body = fetch_body(GroupMetadata(group), partitions, stable=stable)
        deadline = trio.current_time() + self._options.timeout_s
        await self._membership.coordinator.call(
            subject, OFFSET_FETCH, lambda: body, accept, deadline=deadline, at_most=NAMES_UP_TO
        )
        return {tp: found.get(tp) for tp in partitions}
