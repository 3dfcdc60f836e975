"""Reading as a member of a group: `async with open_group_consumer(client, "billing", ["orders"]) as consumer: async for batch in consumer`.

A face over `group.py`. One task of the consumer's nursery talks to the coordinator; the user's task, while it is in `next`, is told
of what changes: partitions are revoked and assigned there and nowhere else, so nobody else reads a record that is being worked on.
A user that stays away for `max_poll_interval_ms` loses its partitions, as in every Kafka client.

Offsets. `commit` commits what has been handed out. With `auto_commit`, the default as in Kafka, that happens by itself: a batch counts
as done when the next one is asked for, and is committed now and then, before its partition is revoked, and when the block ends. At least
once, that is: after a crash the last batches are read again. For exactly once, see `transactional.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import trio

from mqd import limits
from mqd.client.cluster import ClusterClient
from mqd.client.consumer import Consumer, HandedT, Place, Reset, check_reset, resolve
from mqd.client.coordinator import Coordinator, KeyType
from mqd.client.errors import ClientError, CommitFailed, check_names
from mqd.client.fetcher import FetchedBatch, Fetcher, Handed
from mqd.client.group import (
    COORDINATOR_GONE,
    ClassicMember,
    ConsumerMember,
    GroupMetadata,
    Look,
    MemberOptions,
    Pause,
    SeenTopic,
    Turn,
    check_options,
    is_retriable,
)
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
    raise_worst,
)
from mqd.client.peer import lasting_nursery
from mqd.errors import ErrorCode, MqError
from mqd.types import TopicPartition

Callback = Callable[[list[TopicPartition]], Awaitable[None]]
_BETWEEN_STEP_S = 0.05
"""How long a commit waits for the group's next generation before it asks again."""


class GroupConsumer(Consumer):
    """Made by `open_group_consumer`. One task at a time reads from it."""

    def __init__(
        self,
        client: ClusterClient,
        nursery: trio.Nursery,
        fetcher: Fetcher,
        member: ClassicMember | ConsumerMember,
        *,
        max_wait_ms: int,
        min_bytes: int,
        reset: Reset,
        timeout_s: float,
        read_committed: bool,
        auto_commit: bool,
        auto_commit_interval_s: float,
        on_assigned: Callback | None,
        on_revoked: Callback | None,
        on_lost: Callback | None,
    ) -> None:
        super().__init__(client, nursery, fetcher, max_wait_ms=max_wait_ms, min_bytes=min_bytes, reset=reset, timeout_s=timeout_s)
        self._member = member
        self._coordinator = Coordinator(client, member.options.group_id, KeyType.GROUP)
        self._read_committed = read_committed
        self._auto_commit = auto_commit
        self._auto_commit_interval_s = auto_commit_interval_s
        self._commit_at = trio.current_time() + auto_commit_interval_s
        self._committing = False
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost if on_lost is not None else on_revoked
        self._in_hand: Handed | None = None
        self._done: dict[TopicPartition, int] = {}
        """Where each partition is to be read on, as far as the user has worked."""
        self._saved: dict[TopicPartition, int] = {}
        """What of this is committed."""
        self._unplaced: dict[TopicPartition, object] = {}
        """Assigned, and it is not known yet where to read on."""
        self._placing: set[TopicPartition] = set()
        self._told_revoked: Turn | None = None
        self._fresh: tuple[TopicPartition, ...] | None = None
        """Assigned, and the user has not been told yet."""
        self._membership = f"group-{id(self)}"
        self._member_changed = trio.Event()
        self._member_scope = trio.CancelScope()

    # -- for users

    async def next(self) -> FetchedBatch:
        """The next batch that has records; waits for one. Rebalances happen in here, and so do the callbacks. Raises ClientError.

        Cancel-safe: no batch is lost. A callback that is cancelled is called again by the next `next`. After an error of one
        partition it stands still until `seek`, others go on; an error of the membership is final.
        """
        return await self.next_of(self._fetcher.take)

    async def next_of(self, take: Callable[[], HandedT | None]) -> HandedT:
        """As `next`, of what `take` takes from the fetcher."""
        self._settle_hand()
        self._member.enter_poll(trio.current_time())
        self._wake_member()
        try:
            while True:
                await trio.lowlevel.checkpoint()
                self._check_open()
                changed = self._changed
                if self._fresh is not None:
                    await self._tell_assigned(self._fresh)
                    continue
                if self._member.turn is not None:
                    await self._take_turn(self._member.turn)
                    continue
                if self._member.failure is not None:
                    raise self._member.failure.copy()
                if self._fetcher.failures:
                    raise self._fetcher.failures.popleft()
                self._commit_now_and_then()
                self._place_unplaced()
                batch = take()
                if batch is not None or self._fetcher.gave_back:
                    self._fetcher.gave_back = False
                    self._wake()
                if batch is None:
                    await changed.wait()
                    continue
                self._in_hand = batch
                if len(batch.records):
                    return batch
                self._settle_hand()
        finally:
            self._member.leave_poll(trio.current_time())

    async def __anext__(self) -> FetchedBatch:
        return await self.next()

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit where the group reads on: what has been handed out, or the given offsets of partitions that are ours.

        Raises CommitFailed when the group has gone on without us, REBALANCE_IN_PROGRESS when a rebalance waits for `next`, and
        DeadlineExceeded.
        """
        self._check_open()
        if offsets is None:
            self._settle_hand()
            offsets = dict(self._done)
        await self._commit(lambda: offsets, deadline=trio.current_time() + self._timeout_s)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset | None]:
        """What the group has committed; None where nothing is."""
        self._check_open()
        return await self._fetch_committed(list(partitions), stable=self._read_committed)

    def assignment(self) -> list[TopicPartition]:
        """What this member owns, as its callbacks were told."""
        return sorted(self._member.owned)

    def group_metadata(self) -> GroupMetadata:
        """Who we are in the group, or were, for `TransactionalProducer.send_offsets`. Another one after each rebalance."""
        return self._member.metadata()

    def positions(self) -> dict[TopicPartition, int]:
        """Where the group is to read on when everything that was handed out has been worked on: offsets to commit."""
        hand = self._in_hand
        return self._done if hand is None else self._done | {TopicPartition(hand.topic, hand.partition): hand.next_offset}

    async def seek(self, tp: TopicPartition, place: Place) -> None:
        """Go on reading `tp`, which is ours, somewhere else; what was handed out of it is not committed any more."""
        self._check_open()
        self._check_read(tp)
        found = await resolve(self._client, {tp: place}, timeout_s=self._timeout_s)
        self._check_read(tp)
        self._place_at(tp, found[tp])
        self._done[tp] = found[tp]
        if self._in_hand is not None and (self._in_hand.topic, self._in_hand.partition) == tp:
            self._in_hand = None

    async def rewind(self) -> None:
        """Read again from what the group has committed: after a transaction with offsets of this consumer was aborted."""
        self._check_open()
        ours = self.assignment()
        self._in_hand = None
        places = await self._fetch_committed(ours, stable=True)
        for tp in ours:
            place = places[tp]
            if tp not in self._member.owned:
                continue
            if place is not None:
                self._place_at(tp, place.offset)
                self._done[tp] = place.offset
            else:
                self._done.pop(tp, None)
                self._unplaced[tp] = object()
                if self._fetcher.generation(tp) is not None:
                    is_paused = tp in self._fetcher.paused()
                    self._fetcher.unassign(tp)
                    if is_paused:
                        self._fetcher.pause(tp)
        self._wake()

    def rejoin_count(self) -> int:
        """Assignments so far."""
        return self._member.rebalances

    # -- turns

    async def _take_turn(self, turn: Turn) -> None:
        """Tell the user what it loses, and take over what comes."""
        assert turn is self._member.turn
        if turn.revoked and self._told_revoked is not turn:
            if self._auto_commit and not turn.lost:
                await self._commit_quietly(turn.revoked)
            callback = self._on_lost if turn.lost else self._on_revoked
            if callback is not None:
                await callback(list(turn.revoked))
        self._told_revoked = turn
        for tp in turn.revoked:
            self._forget(tp)
        assigned = self._member.turn_done(turn, trio.current_time())
        self._unplaced.update({tp: object() for tp in assigned})
        self._fresh = assigned or None
        self._wake_member()

    async def _tell_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        if self._on_assigned is not None:
            await self._on_assigned(list(partitions))
        self._fresh = None

    def _forget(self, tp: TopicPartition) -> None:
        if self._fetcher.generation(tp) is not None:
            self._fetcher.unassign(tp)
        self._fetcher.resume(tp)
        for kept in (self._unplaced, self._done, self._saved):
            kept.pop(tp, None)
        if self._in_hand is not None and (self._in_hand.topic, self._in_hand.partition) == tp:
            self._in_hand = None

    def _place_at(self, tp: TopicPartition, offset: int) -> None:
        self._unplaced.pop(tp, None)
        self._fetcher.assign(tp, offset)
        self._wake()

    def _place_unplaced(self) -> None:
        wanted = {tp: token for tp, token in self._unplaced.items() if tp not in self._placing}
        if wanted:
            self._placing |= set(wanted)
            self._nursery.start_soon(self._place, wanted)

    async def _place(self, wanted: dict[TopicPartition, object]) -> None:
        """Find where to read on: what is committed, else an end of the log. What fails is tried again by the `next` after the one told."""
        try:
            places = await self._fetch_committed(list(wanted), stable=self._read_committed)
            start = {tp: place.offset for tp, place in places.items() if place is not None}
            fresh = [tp for tp in wanted if tp not in start]
            if fresh and self._reset != "error":
                start |= await resolve(self._client, dict.fromkeys(fresh, self._reset), timeout_s=self._timeout_s)
        except ClientError as error:
            self._fetcher.failures.append(error)
            self._wake()
            return
        finally:
            self._placing -= set(wanted)
        for tp, token in wanted.items():
            if self._unplaced.get(tp) is not token:
                continue  # revoked meanwhile, or the user has placed it
            if tp in start:
                self._place_at(tp, start[tp])
                self._saved[tp] = start[tp]
            else:
                message = f"group {self._member.options.group_id!r} has committed nothing for {tp}"
                self._fetcher.failures.append(ClientError(ErrorCode.OFFSET_OUT_OF_RANGE, message, remedy="seek, or choose a reset"))
        self._wake()

    # -- offsets

    def _settle_hand(self) -> None:
        """The user has worked on what it got."""
        batch, self._in_hand = self._in_hand, None
        if batch is not None:
            self._done[TopicPartition(batch.topic, batch.partition)] = batch.next_offset

    def _check_ours(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            if tp not in self._member.owned:
                group = self._member.options.group_id
                raise CommitFailed(ErrorCode.ILLEGAL_GENERATION, f"{tp} does not belong to this member of group {group!r}")

    async def _commit(self, wanted: Callable[[], Offsets], *, deadline: float) -> None:
        """`wanted` is asked before each attempt: one that is made again must not undo what another task has committed meanwhile."""
        group = self._member.options.group_id
        what = f"committing offsets of group {group!r}"
        offsets: Offsets = {}

        async def attempt() -> None:
            nonlocal offsets
            while True:
                if not (offsets := wanted()):
                    return
                await self._wait_for_membership(what, deadline)
                self._check_ours(offsets)
                answer = await self._coordinator.ask(OFFSET_COMMIT, commit_body(self._member.metadata(), offsets), at_most=NAMES_UP_TO)
                errors = commit_errors(answer)
                codes = {error.code for error in errors.values()}
                if codes & COORDINATOR_GONE:
                    self._coordinator.forget()
                if ErrorCode.STALE_MEMBER_EPOCH in codes and isinstance(self._member, ConsumerMember):
                    self._member.hurry()
                    self._wake_member()
                elif ErrorCode.REBALANCE_IN_PROGRESS not in codes or not self._member.is_between:
                    break
                if trio.current_time() >= deadline:
                    break
                await trio.sleep(_BETWEEN_STEP_S)
            for error in errors.values():
                if error.code in COMMIT_CAME_TOO_LATE:
                    raise CommitFailed(error.code, f"{what}: {error.message}")
            raise_worst(errors.values())

        await self._client.retry(what, attempt, deadline=deadline)
        self._saved.update({tp: place for tp, place in offsets.items() if isinstance(place, int) and tp in self._member.owned})

    async def _wait_for_membership(self, what: str, deadline: float) -> None:
        """While the next generation is being made without the user's help, a commit has nobody to speak for."""
        while not self._member.is_member or (isinstance(self._member, ClassicMember) and self._member.is_between):
            if self._member.failure is not None:
                raise self._member.failure.copy()
            if not self._member.is_between:
                raise ClientError(ErrorCode.REBALANCE_IN_PROGRESS, f"{what}: a rebalance waits", remedy="call next, then commit again")
            with trio.move_on_at(deadline) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                raise ClientError(ErrorCode.REBALANCE_IN_PROGRESS, f"{what}: a rebalance is under way")

    def _unsaved(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        wanted = self._done if partitions is None else [tp for tp in partitions if tp in self._done]
        return {tp: self._done[tp] for tp in wanted if self._saved.get(tp) != self._done[tp]}

    def _commit_now_and_then(self) -> None:
        now = trio.current_time()
        if self._auto_commit and not self._committing and now >= self._commit_at and self._member.is_member:
            self._commit_at = now + self._auto_commit_interval_s
            if self._unsaved():
                self._committing = True
                self._nursery.start_soon(self._commit_aside)

    async def _commit_aside(self) -> None:
        """A commit that nobody waits for: what fails is committed with the next one."""
        try:
            await self._commit(self._unsaved, deadline=trio.current_time() + self._auto_commit_interval_s)
        except MqError:
            pass
        finally:
            self._committing = False

    async def _commit_quietly(self, partitions: Sequence[TopicPartition]) -> None:
        """Before partitions go: if it fails, others read some records again, which is what at least once means."""
        try:
            await self._commit(lambda: self._unsaved(partitions), deadline=trio.current_time() + self._timeout_s)
        except MqError:
            pass

    async def _fetch_committed(self, partitions: list[TopicPartition], *, stable: bool) -> dict[TopicPartition, CommittedOffset | None]:
        group = self._member.options.group_id
        what = f"the committed offsets of group {group!r}"
        found: dict[TopicPartition, CommittedOffset | None] = {}

        def accept(answer: object) -> None:
            rows = fetched(answer, what)
            raise_worst(each for each in rows.values() if isinstance(each, ClientError))
            found.update({tp: each for tp, each in rows.items() if not isinstance(each, ClientError)})

        body = fetch_body(GroupMetadata(group), partitions, stable=stable)
        deadline = trio.current_time() + self._timeout_s
        await self._coordinator.call(what, OFFSET_FETCH, lambda: body, accept, deadline=deadline, at_most=NAMES_UP_TO)
        return {tp: found.get(tp) for tp in partitions}

    # -- the membership

    def _wake_member(self) -> None:
        self._member_changed.set()
        self._member_changed = trio.Event()

    async def run_member(self) -> None:
        """Do what the member says, until it leaves."""
        with self._member_scope:
            await self._run_member()

    async def _run_member(self) -> None:
        member = self._member
        while True:
            changed = self._member_changed
            step = member.next(trio.current_time())
            if isinstance(step, Pause):
                with trio.move_on_at(step.until):
                    await changed.wait()
                continue
            draw = self._client.entropy.random()
            try:
                if isinstance(step, Look):
                    member.on_look(await self._look(step), trio.current_time())
                else:
                    answer = await self._coordinator.ask(step.key, step.body, timeout_s=step.timeout_s, purpose=self._membership)
                    if answer.error_code in COORDINATOR_GONE:
                        self._coordinator.forget()
                    member.on_answer(step, answer, trio.current_time(), draw)
            except MqError as error:
                if not is_retriable(error):
                    member.failure = error if isinstance(error, ClientError) else ClientError(error.code, error.message)
                member.on_failure(step, trio.current_time(), draw)
            self._wake()

    async def _look(self, step: Look) -> dict[str, SeenTopic]:
        view = await self._client.refresh(None if step.everything else step.names)
        return {
            topic.name: SeenTopic(topic.topic_id, len(topic.partitions))
            for topic in view.topics.values()
            if not topic.error_code and (topic.name in step.names or (step.everything and not topic.internal))
        }

    async def finish(self, *, orderly: bool, leave: bool, timeout_s: float) -> None:
        """Commit what is done, tell the user, leave the group: as far as that can be had within `timeout_s`."""
        try:
            with trio.move_on_after(timeout_s, shield=True):
                if orderly:
                    self._settle_hand()
                else:
                    self._in_hand = None
                owned = sorted(self._member.owned)
                if self._auto_commit and self._member.is_member:
                    await self._commit_quietly(owned)
                try:
                    if owned and orderly and self._on_revoked is not None:
                        await self._on_revoked(owned)
                finally:
                    self._member_scope.cancel()
                    if leave:
                        await self._say_goodbye(timeout_s)
        finally:
            self.close()
            self._client.close_connections(self._membership)

    async def _say_goodbye(self, timeout_s: float) -> None:
        farewell = self._member.goodbye()
        if farewell is None:
            return
        # A heartbeat that joins may still be on its way, and must not come after this; a parked JoinGroup would hold it up,
        # and cannot come after it: the coordinator knows no member that has left.
        purpose = self._membership if isinstance(self._member, ConsumerMember) else ""
        try:
            await self._coordinator.ask(farewell.key, farewell.body, timeout_s=timeout_s, purpose=purpose)
        except MqError:
            pass  # its session ends by itself


@asynccontextmanager
async def open_group_consumer(
    client: ClusterClient,
    group: str,
    topics: Sequence[str] = (),
    *,
    pattern: str | None = None,
    group_protocol: Literal["classic", "consumer"] = "classic",
    assignors: Sequence[str] = ("range", "cooperative-sticky"),
    server_assignor: str | None = None,
    instance_id: str | None = None,
    rack: str | None = None,
    session_timeout_ms: int = 45_000,
    heartbeat_interval_ms: int = 3_000,
    max_poll_interval_ms: int = 300_000,
    metadata_max_age_ms: int = 60_000,
    auto_commit: bool = True,
    auto_commit_interval_ms: int = 5_000,
    reset: Reset = "end",
    read_committed: bool = False,
    on_assigned: Callback | None = None,
    on_revoked: Callback | None = None,
    on_lost: Callback | None = None,
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    max_bytes: int = limits.CONSUMER_FETCH_BYTES,
    partition_max_bytes: int = limits.CONSUMER_PARTITION_FETCH_BYTES,
    timeout_s: float = 30.0,
    leave: bool = True,
    close_timeout_s: float = 5.0,
) -> AsyncIterator[GroupConsumer]:
    """A member of `group` for the length of a block; at its end it commits (with `auto_commit`) and leaves.

    Names and defaults are those of Kafka's consumer: `reset` is auto.offset.reset ("end" is latest), `instance_id` makes a static member,
    `group_protocol="consumer"` speaks KIP-848, where `server_assignor` is uniform or range and the broker has the time-outs.
    `pattern` subscribes to every topic whose whole name matches, besides or in place of `topics`. The callbacks get what is new or gone:
    `on_revoked` while the partitions are still ours, `on_lost` when they are not (default: `on_revoked`). `leave=False` goes without a
    word, as a crash would.
    """
    check_names(topics)
    options = MemberOptions(
        group,
        tuple(sorted(topics)),
        pattern,
        instance_id,
        rack,
        tuple(assignors),
        server_assignor,
        session_timeout_ms,
        heartbeat_interval_ms,
        max_poll_interval_ms,
        metadata_max_age_ms,
    )
    check_options(options, group_protocol)
    check_reset(reset)
    now = trio.current_time()
    member: ClassicMember | ConsumerMember
    if group_protocol == "classic":
        member = ClassicMember(options, now)
    else:
        member = ConsumerMember(options, now, str(client.entropy.uuid()))
    fetcher = Fetcher(read_committed=read_committed, max_bytes=max_bytes, partition_max_bytes=partition_max_bytes)
    async with lasting_nursery() as nursery:
        consumer = GroupConsumer(
            client,
            nursery,
            fetcher,
            member,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            reset=reset,
            timeout_s=timeout_s,
            read_committed=read_committed,
            auto_commit=auto_commit,
            auto_commit_interval_s=auto_commit_interval_ms / 1000,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_lost=on_lost,
        )
        nursery.start_soon(consumer.run)
        nursery.start_soon(consumer.run_member)
        orderly = False
        try:
            yield consumer
            orderly = True
        finally:
            await consumer.finish(orderly=orderly, leave=leave, timeout_s=close_timeout_s)
