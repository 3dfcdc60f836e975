"""Fetches from leaders: one task and one connection for each leader. The shell of follower.py.

A task sends a fetch, waits for the response, applies it, and sends the next fetch. A fetch
acknowledges the records in the log, so it is not sent before the response is in the log. All
partitions of a response are appended and flushed without an await. Long responses are divided, so
that a replica that catches up does not delay the clients of this node.

A fetch without new records is parked at the leader for up to `replica.fetch.wait.max.ms`. If this
node has something else to fetch meanwhile (a new partition, or the end of a pause), it sends an
ApiVersions request. The next request of a connection ends its parked fetch.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import trio

from mqd.client.errors import ClientError
from mqd.client.line import Line
from mqd.errors import MqError, ProtocolError, StorageError
from mqd.io.clock import Clock
from mqd.io.entropy import Entropy
from mqd.limits import FOLLOWER_STRETCH_BYTES, SEGMENTS_RETIRED_AT_ONCE
from mqd.log.partition_log import PartitionLog
from mqd.log.service import LogService
from mqd.protocol.apis import by_key
from mqd.protocol.hot_follower import VERSION, decode_fetch_response
from mqd.protocol.schema import Api
from mqd.replica.follower import (
    Action,
    AppendRecords,
    Follower,
    FollowerOptions,
    PartitionFetchState,
    Reset,
    Truncate,
)
from mqd.replica.partition import Partition
from mqd.replica.service import ReplicaService
from mqd.types import NO_NODE, NodeId, TopicPartition

logger = logging.getLogger(__name__)

STRETCH_SECONDS = 0.005
"""The longest stretch of appends without an await."""
SYNC_SECONDS_MAX = 0.05
"""The time that a fetch waits for a sync of its partitions. After that, it omits those that are not
durable.
"""
FIRST_PAUSE_SECONDS = 0.02
"""The pause before the third attempt to connect; the second one follows at once.

Doubled up to `replica.fetch.backoff.ms`.
"""


class _Fetcher:
    """The state of one leader's task that other tasks use."""

    __slots__ = ("changed", "core", "in_flight", "last_request_at", "requests", "running")

    def __init__(self, core: Follower) -> None:
        self.core = core
        self.running = False
        self.in_flight = False
        """Whether a fetch waits for its response."""
        self.requests = 0
        """The number of sent fetches."""
        self.last_request_at = 0.0
        self.changed = trio.Event()
        """Set, and replaced by a new one, when the next request changes."""

    def change(self) -> None:
        changed, self.changed = self.changed, trio.Event()
        changed.set()


class Fetchers:
    """See the head of this file. `follow` and `unfollow` are called through `ReplicaPorts`."""

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
        """`connect` returns a new, authenticated connection to the peer listener of a node. Raises
        OSError if it cannot connect. `broker_epoch`: of this node's registration, so that the
        leader can fence earlier ones (KIP-903).
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
        self._has_idle_fetcher = trio.Event()
        self.resets = 0
        """The number of logs that were reset: the simulation checks that its seeds reach this."""

    def follow(self, partition: Partition) -> None:
        """Fetch this partition from its leader in its leader epoch, beginning at its log end."""
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
            self._has_idle_fetcher.set()

    def unfollow(self, partition: Partition) -> None:
        leader = self._leader_of.pop(partition.assignment.topic_partition, None)
        if leader is not None and self._fetchers[leader].core.unfollow(partition):
            self._fetchers[leader].change()

    async def run(self) -> None:
        """Fetch from all leaders until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._has_idle_fetcher = trio.Event()
                for fetcher in self._fetchers.values():
                    if fetcher.core.followed and not fetcher.running:
                        fetcher.running = True
                        nursery.start_soon(self._run_fetcher, fetcher)
                await self._has_idle_fetcher.wait()

    # -- one leader --------------------------------------------------------------------------------

    async def _run_fetcher(self, fetcher: _Fetcher) -> None:
        """Connect and fetch, again and again, while this node follows partitions of the leader."""
        leader, pause, logged = fetcher.core.leader, 0.0, ""
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
                if failure != logged:
                    logged = failure
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
        if fetcher.core.followed:
            # A partition was followed since the last look.
            self._has_idle_fetcher.set()

    async def _fetch_over(self, line: Line, fetcher: _Fetcher) -> str:
        """Fetch until the connection breaks or no partition is left. Returns why it ended."""
        fetcher.core.disconnected()
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
            fetcher.in_flight = False
            line.close(failure or "no partition is left to fetch")
            fetcher.core.disconnected()
        return failure

    async def _run_fetches(self, line: Line, fetcher: _Fetcher) -> None:
        """Between a response and the next request there is no cancel scope and no other task: each
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
            fetcher.in_flight, fetcher.last_request_at = True, now
            fetcher.requests += 1
            if core.next_ready_at() < math.inf:
                fetcher.change()
            await line.send(_FETCH, VERSION, body)
            frame, position = await line.response()
            fetcher.in_flight = False
            actions = core.on_response(decode_fetch_response(frame, position), clock.monotonic())
            if actions:
                await self._apply(core, actions)
            await self._wait_durable(core)

    async def _watch(self, line: Line, fetcher: _Fetcher) -> None:
        """Free the fetch that is parked at the leader, when there is something else to fetch. Close
        a connection without a response.
        """
        timeout = self._options.wait_seconds_max + self._options.timeout_seconds
        freed_request = 0
        while True:
            changed, now = fetcher.changed, self._clock.monotonic()
            due = now + timeout
            if fetcher.in_flight:
                due = fetcher.last_request_at + timeout
                if due <= now:
                    leader = fetcher.core.leader
                    line.close(f"node {leader} did not respond to a fetch within {timeout:g} s")
                    return
                ready_at = math.inf
                if freed_request != fetcher.requests:
                    ready_at = fetcher.core.next_ready_at()
                if ready_at <= now:
                    freed_request = fetcher.requests
                    try:
                        await line.send(_API_VERSIONS, 0, b"", wanted=False)
                    except ClientError:
                        return  # The task that fetches gets the same error, and logs it.
                    continue
                due = min(due, ready_at)
            with trio.move_on_after(due - now):
                await changed.wait()

    # -- the actions of a response -----------------------------------------------------------------

    async def _apply(self, core: Follower, actions: Sequence[Action]) -> None:
        appends: deque[AppendRecords] = deque()
        for action in actions:
            if isinstance(action, AppendRecords):
                appends.append(action)
            else:
                await self._truncate(core, action)
        while appends:
            self._append_some(core, appends)
            if appends:
                await trio.lowlevel.checkpoint()

    async def _truncate(self, core: Follower, action: Truncate | Reset) -> None:
        """Remove many segments from the end in portions. Each is a whole truncation: the log may
        stay as it leaves it.
        """
        log = action.state.partition.log
        while core.is_current(action.state) and log.is_readable:
            oldest = len(log.segments) - SEGMENTS_RETIRED_AT_ONCE
            if isinstance(action, Reset) or oldest <= log.segment_index(action.offset):
                self._truncate_now(core, action)
                return
            portion = Truncate(action.state, log.segments[oldest].base_offset)
            if not self._truncate_now(core, portion):
                return
            await trio.lowlevel.checkpoint()

    def _truncate_now(self, core: Follower, action: Truncate | Reset) -> bool:
        """Returns whether it was carried out."""
        state = action.state
        partition, log = state.partition, state.partition.log
        self._logs.checkpoint_high_watermark(log.topic_partition, partition.high_watermark)
        end_before, carried_out = log.log_end_offset, True
        try:
            if isinstance(action, Truncate):
                self._logs.truncate_to(log, action.offset)
            else:
                self._logs.reset(log, action.offset)
                self.resets += 1
        except StorageError as error:
            carried_out = False
            self._storage_failed(core, state, error)
        logger.info(
            "log truncated to match its leader partition=%s leader=%d epoch=%d log_end=%d was=%d",
            log.topic_partition, core.leader, state.leader_epoch, log.log_end_offset, end_before,
        )  # fmt: skip
        partition.log_replaced()
        return carried_out

    def _append_some(self, core: Follower, appends: deque[AppendRecords]) -> None:
        """Append and flush as much as one stretch may contain, then take the leader's offsets. No
        await.
        """
        until, budget = self._clock.monotonic() + STRETCH_SECONDS, FOLLOWER_STRETCH_BYTES
        appended: list[AppendRecords] = []
        unfinished: list[AppendRecords] = []
        while appends and budget > 0 and self._clock.monotonic() < until:
            append = appends.popleft()
            if core.is_current(append.state):
                if append.records:
                    remaining = self._append(core, append, budget)
                    if remaining is None:
                        continue
                    budget -= len(append.records) - len(remaining)
                    if remaining:
                        unfinished.append(append._replace(records=remaining))
                appended.append(append)
        failed: dict[PartitionLog, StorageError] = dict(self._logs.flush())
        for append in appended:
            state = append.state
            partition = state.partition
            failure = failed.get(partition.log)
            if failure is not None:
                self._storage_failed(core, state, failure)
                continue
            state.succeeded()
            state.is_behind = append.high_watermark > partition.log.log_end_offset
            if partition.follower_progress(append.high_watermark, append.log_start_offset):
                self._replica.follower_advanced(partition)
        appends.extendleft(
            append for append in reversed(unfinished) if append.state.partition.log not in failed
        )

    def _append(self, core: Follower, append: AppendRecords, budget: int) -> memoryview | None:
        """Queue records. Returns those that are left for the next stretch, None if they were
        refused.
        """
        state, records = append.state, append.records
        log = state.partition.log
        now = self._clock.monotonic()
        try:
            taken = self._logs.append_as_follower(log, records, leader_epoch=state.leader_epoch)
        except MqError as error:
            logger.error(
                "cannot append fetched records, will retry leader=%d reason=%s", core.leader, error
            )
            core.postpone(state, now)
            self._replica.log_failed(state.partition)
            return None
        except StorageError as error:
            self._storage_failed(core, state, error)
            return None
        throttle = self._replica.follower_throttle
        if state.is_behind and throttle.is_throttled(log.topic_partition):
            throttle.record(taken, now)
        if not taken:
            # An incomplete batch, or one of a leader epoch that this node does not know yet.
            core.postpone(state, now)
            return None
        return records[taken:]

    def _storage_failed(
        self, core: Follower, state: PartitionFetchState, error: StorageError
    ) -> None:
        """No record was appended. A full disk may get space again, so the append is retried. A log
        that is lost is no longer followed.
        """
        logger.error(
            "cannot write a replica partition=%s reason=%s",
            state.partition.assignment.topic_partition,
            error,
        )
        core.postpone(state, self._clock.monotonic())
        self._replica.log_failed(state.partition)

    async def _wait_durable(self, core: Follower) -> None:
        """With `flush.before.ack`, appended records are durable before the next request
        acknowledges them (I1). So are the files of a log that was reset (I25).

        A slow disk delays its own partitions, and no other partition of this leader: the next
        request omits them. A full disk is synced again from time to time.
        """
        until = sync_at = math.nan
        while True:
            # Appends retry after a full disk, and need this sync first.
            waiting = [
                partition
                for partition in core.unsynced()
                if partition.log.failure is None or partition.log.failure.is_retriable
            ]
            if not waiting:
                return
            now = self._clock.monotonic()
            if math.isnan(until):
                until = now + SYNC_SECONDS_MAX
            if not now < sync_at:
                sync_at = now + SYNC_SECONDS_MAX
                for partition in waiting:
                    self._logs.request_sync(partition.log)
            if now >= until and len(waiting) < len(core.followed):
                return
            with trio.move_on_after(sync_at - now):
                await self._logs.wait_synced()


def _api(key: int) -> Api:
    api = by_key(key)
    assert api is not None, key
    return api


_FETCH, _API_VERSIONS = _api(1), _api(18)
