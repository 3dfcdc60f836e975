"""Fetching from leaders: one task and one connection each. The shell of follower.py.

A task asks, waits, applies the answer and asks again; what it asks says what it has (the leader
counts that), so nothing is asked before the answer is in the log. All partitions of an answer are
appended and flushed in one stretch without await, cut into pieces where it is long, so that clients
of this node are not kept waiting by a replica that catches up.

A fetch that finds nothing waits at the leader for up to `replica.fetch.wait.max.ms`. When there is
something else to ask meanwhile (a partition is to be followed, a pause is over), an ApiVersions
request behind it frees it: whatever comes behind a parked fetch does.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from mqd.client.errors import ClientError
from mqd.client.line import Line
from mqd.errors import ErrorCode, MqError, ProtocolError, StorageError
from mqd.io.clock import Clock
from mqd.io.entropy import Entropy
from mqd.limits import FOLLOWER_STRETCH_BYTES
from mqd.log.partition_log import PartitionLog
from mqd.log.service import LogService
from mqd.protocol.apis import by_key
from mqd.protocol.hot_follower import VERSION, decode_fetch_response
from mqd.protocol.schema import Api
from mqd.replica.follower import (
    Action,
    Append,
    Followed,
    Follower,
    FollowerOptions,
    Reset,
    Truncate,
)
from mqd.replica.partition import Partition
from mqd.replica.service import ReplicaService
from mqd.types import NO_NODE, NodeId, TopicPartition

logger = logging.getLogger(__name__)

STRETCH_SECONDS = 0.005
"""After so long in one stretch the event loop goes round."""
SYNC_SECONDS_MAX = 0.05
"""How long the partitions that are durable wait for those that are to become it, before
they are asked for alone.
"""
FIRST_PAUSE_SECONDS = 0.02
"""Before the second attempt to connect; the first one comes at once.

Doubled up to `replica.fetch.backoff.ms`.
"""


@dataclass(frozen=True, slots=True)
class FetchersStatistics:
    leaders: int
    connected: int
    partitions: int
    fetches: int
    fetched_bytes: int
    truncations: int
    resets: int
    refused_batches: int
    """Batches that were damaged or did not continue the log."""


class _Fetcher:
    """One leader's task, as others touch it."""

    __slots__ = ("asked", "asked_at", "asking", "changed", "connected", "core", "running")

    def __init__(self, core: Follower) -> None:
        self.core = core
        self.running = False
        self.connected = False
        self.asking = False
        """Whether a request is under way."""
        self.asked = 0
        """How many requests there were."""
        self.asked_at = 0.0
        """When the last one was made."""
        self.changed = trio.Event()
        """What is to be asked has changed; replaced when that is seen."""

    def change(self) -> None:
        changed, self.changed = self.changed, trio.Event()
        changed.set()


class Fetchers:
    """See the head of this file. `follow` and `unfollow` are replica/partition.py's `Follows`."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        replica: ReplicaService,
        logs: LogService,
        clock: Clock,
        entropy: Entropy,
        options: FollowerOptions,
        connect: Callable[[NodeId], Awaitable[Line]],
        broker_epoch: Callable[[], int],
    ) -> None:
        """`connect` gives a fresh, introduced connection to a node's peer listener, OSError when
        there is none; `broker_epoch` is that of this node's registration, by which the leader knows
        this incarnation (KIP-903).
        """
        self._node_id = node_id
        self._replica = replica
        self._logs = logs
        self._clock = clock
        self._entropy = entropy
        self._options = options
        self._connect = connect
        self._broker_epoch = broker_epoch
        self._fetchers: dict[NodeId, _Fetcher] = {}
        self._leader_of: dict[TopicPartition, NodeId] = {}
        self._wanted = trio.Event()
        self._fetches = self._fetched_bytes = self._truncations = self._resets = (
            self._refused_batches
        ) = 0

    def statistics(self) -> FetchersStatistics:
        return FetchersStatistics(
            leaders=sum(bool(fetcher.core.followed) for fetcher in self._fetchers.values()),
            connected=sum(fetcher.connected for fetcher in self._fetchers.values()),
            partitions=sum(len(fetcher.core.followed) for fetcher in self._fetchers.values()),
            fetches=self._fetches,
            fetched_bytes=self._fetched_bytes,
            truncations=self._truncations,
            resets=self._resets,
            refused_batches=self._refused_batches,
        )

    def follow(self, partition: Partition) -> None:
        """Fetch this partition from its leader in its leader epoch, from the end of its log on."""
        assert not partition.is_leader and partition.assignment.leader != NO_NODE, partition
        leader = partition.assignment.leader
        topic_partition = partition.assignment.topic_partition
        if self._leader_of.get(topic_partition, leader) != leader:
            self.unfollow(partition)
        self._leader_of[topic_partition] = leader
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            core = Follower(leader, self._node_id, self._options, self._replica.follower_throttle)
            fetcher = self._fetchers[leader] = _Fetcher(core)
        if fetcher.core.follow(partition):
            fetcher.change()
            self._wanted.set()

    def unfollow(self, partition: Partition) -> None:
        leader = self._leader_of.pop(partition.assignment.topic_partition, None)
        if leader is not None and self._fetchers[leader].core.unfollow(partition):
            self._fetchers[leader].change()

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._wanted = trio.Event()
                for fetcher in self._fetchers.values():
                    if fetcher.core.followed and not fetcher.running:
                        fetcher.running = True
                        nursery.start_soon(self._run_fetcher, fetcher)
                await self._wanted.wait()

    # -- one leader --------------------------------------------------------------------------------

    async def _run_fetcher(self, fetcher: _Fetcher) -> None:
        """Connect and fetch, again and again, as long as this leader has something to follow."""
        leader, pause, told = fetcher.core.leader, 0.0, ""
        try:
            while fetcher.core.followed:
                try:
                    connection = await self._connect(leader)
                except (OSError, ClientError) as error:
                    failure = str(error)
                else:
                    began = self._clock.monotonic()
                    failure = await self._fetch_over(connection, fetcher)
                    if self._clock.monotonic() - began > self._options.backoff_seconds:
                        pause = 0.0
                if not fetcher.core.followed:
                    break
                if failure != told:
                    told = failure
                    partitions = len(fetcher.core.followed)
                    logger.info(
                        "cannot fetch, will retry leader=%d partitions=%d reason=%s",
                        leader,
                        partitions,
                        failure,
                    )
                changed = fetcher.changed
                with trio.move_on_after(pause * (0.5 + self._entropy.below(1024) / 1024)):
                    await changed.wait()
                pause = min(self._options.backoff_seconds, max(FIRST_PAUSE_SECONDS, 2 * pause))
        finally:
            fetcher.running = False
        if fetcher.core.followed:  # followed again since it was looked at
            self._wanted.set()

    async def _fetch_over(self, line: Line, fetcher: _Fetcher) -> str:
        """Fetch until the connection breaks or nothing is left to follow; returns why it ended."""
        fetcher.core.disconnected()
        fetcher.connected = True
        failure = ""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, line, fetcher)
                try:
                    await self._run_fetches(line, fetcher)
                except (ClientError, ProtocolError, MqError) as error:
                    failure = str(error)
                nursery.cancel_scope.cancel()
        finally:
            fetcher.connected = fetcher.asking = False
            line.close(failure or "nothing is left to fetch")
            fetcher.core.disconnected()
        return failure

    async def _run_fetches(self, line: Line, fetcher: _Fetcher) -> None:
        """No cancel scope and no other task between an answer and the next request: every
        acknowledgement waits for this.
        """
        core, clock = fetcher.core, self._clock
        while core.followed:
            changed, now = fetcher.changed, clock.monotonic()
            body = core.next_request(self._broker_epoch(), now)
            if body is None:
                with trio.move_on_after(max(0.0, core.next_ready_at() - clock.monotonic())):
                    await changed.wait()
                await self._wait_durable(core)
                continue
            fetcher.asking, fetcher.asked_at = True, now
            fetcher.asked += 1
            if core.next_ready_at() < math.inf:
                fetcher.change()
            await line.ask(_FETCH, VERSION, body)
            frame, position = await line.answer()
            fetcher.asking = False
            self._fetches += 1
            actions = core.on_answer(decode_fetch_response(frame, position), clock.monotonic())
            if actions:
                await self._apply(core, actions)
            await self._wait_durable(core)

    async def _watch(self, line: Line, fetcher: _Fetcher) -> None:
        """Have a fetch answered that waits at the leader, when there is something else to
        ask; end a line on which nothing comes.
        """
        timeout = self._options.wait_seconds_max + self._options.timeout_seconds
        freed = 0
        while True:
            changed, now = fetcher.changed, self._clock.monotonic()
            due = now + timeout
            if fetcher.asking:
                due = fetcher.asked_at + timeout
                if due <= now:
                    line.close(
                        f"node {fetcher.core.leader} did not answer a fetch within {timeout:g} s"
                    )
                    return
                ready_at = fetcher.core.next_ready_at() if freed != fetcher.asked else math.inf
                if ready_at <= now:
                    freed = fetcher.asked
                    try:
                        await line.ask(_API_VERSIONS, 0, b"", wanted=False)
                    except ClientError:
                        return  # the task that fetches finds the same, and says so
                    continue
                due = min(due, ready_at)
            with trio.move_on_after(due - now):
                await changed.wait()

    # -- what an answer asks for -------------------------------------------------------------------

    async def _apply(self, core: Follower, actions: Sequence[Action]) -> None:
        appends: deque[Append] = deque()
        for action in actions:
            if isinstance(action, Append):
                appends.append(action)
            else:
                self._cut(core, action)
        while appends:
            self._append_some(core, appends)
            if appends:
                await trio.lowlevel.checkpoint()

    def _cut(self, core: Follower, action: Truncate | Reset) -> None:
        followed = action.followed
        partition, log = followed.partition, followed.partition.log
        self._logs.checkpoint_high_watermark(log.topic_partition, partition.high_watermark)
        before = log.log_end_offset
        try:
            if isinstance(action, Truncate):
                self._logs.truncate_to(log, action.offset)
                self._truncations += 1
            else:
                self._logs.reset(log, action.offset)
                self._resets += 1
        except StorageError as error:
            self._storage_failed(core, followed, error)
        logger.info(
            "log truncated to match its leader partition=%s leader=%d epoch=%d log_end=%d was=%d",
            log.topic_partition, core.leader, followed.leader_epoch, log.log_end_offset, before,
        )  # fmt: skip
        partition.log_replaced()

    def _append_some(self, core: Follower, appends: deque[Append]) -> None:
        """As much as one stretch may do: queue, write, take over the ends. No await."""
        until, budget = self._clock.monotonic() + STRETCH_SECONDS, FOLLOWER_STRETCH_BYTES
        appended: list[Append] = []
        unfinished: list[Append] = []
        while appends and budget > 0 and self._clock.monotonic() < until:
            append = appends.popleft()
            if core.is_current(append.followed):
                if append.records:
                    rest = self._append(core, append, budget)
                    if rest is None:
                        continue
                    budget -= len(append.records) - len(rest)
                    if rest:
                        unfinished.append(append._replace(records=rest))
                appended.append(append)
        failed: dict[PartitionLog, StorageError] = dict(self._logs.flush())
        for append in appended:
            followed = append.followed
            partition = followed.partition
            failure = failed.get(partition.log)
            if failure is not None:
                self._storage_failed(core, followed, failure)
                continue
            followed.behind = append.high_watermark > partition.log.log_end_offset
            if partition.follower_progress(append.high_watermark, append.log_start_offset):
                self._replica.follower_advanced(partition)
        appends.extendleft(
            append for append in reversed(unfinished) if append.followed.partition.log not in failed
        )

    def _append(self, core: Follower, append: Append, budget: int) -> memoryview | None:
        """Queue records; what is left of them for the next stretch, None where they were
        refused.
        """
        followed, records = append.followed, append.records
        log = followed.partition.log
        now = self._clock.monotonic()
        try:
            taken = self._logs.append_as_follower(log, records, leader_epoch=followed.leader_epoch)
        except MqError as error:
            if error.code is ErrorCode.CORRUPT_MESSAGE:
                self._refused_batches += 1
            logger.error(
                "cannot append fetched records, will retry leader=%d reason=%s", core.leader, error
            )
            core.postpone(followed, now)
            self._replica.log_failed(followed.partition)
            return None
        except StorageError as error:
            self._storage_failed(core, followed, error)
            return None
        self._fetched_bytes += taken
        throttle = self._replica.follower_throttle
        if followed.behind and throttle.is_throttled(log.topic_partition):
            throttle.record(taken, now)
        if not taken:  # cut off, or of a leader epoch that this node has not heard of
            core.postpone(followed, now)
            return None
        return records[taken:]

    def _storage_failed(self, core: Follower, followed: Followed, error: StorageError) -> None:
        """Nothing was appended.

        It is tried again where the disk may get space, and given up where the log is lost.
        """
        logger.error(
            "cannot write a replica partition=%s reason=%s",
            followed.partition.assignment.topic_partition,
            error,
        )
        core.postpone(followed, self._clock.monotonic())
        self._replica.log_failed(followed.partition)

    async def _wait_durable(self, core: Follower) -> None:
        """Where topics ask for `flush.before.ack`: what was appended is durable before the next
        request says that it is here.

        A disk that takes long holds up what is on it, and no other partition of this leader: the
        next request leaves its partitions out. One that refuses, for it is full, is asked again now
        and then.
        """
        until = ask_at = math.nan
        while True:
            waiting = [partition for partition in core.unsynced() if partition.log.failure is None]
            if not waiting:
                return
            now = self._clock.monotonic()
            if math.isnan(until):
                until = now + SYNC_SECONDS_MAX
            if not now < ask_at:
                ask_at = now + SYNC_SECONDS_MAX
                for partition in waiting:
                    self._logs.request_sync(partition.log)
            if now >= until and len(waiting) < len(core.followed):
                return
            with trio.move_on_after(ask_at - now):
                await self._logs.wait_synced()


def _api(key: int) -> Api:
    api = by_key(key)
    assert api is not None, key
    return api


_FETCH, _API_VERSIONS = _api(1), _api(18)
