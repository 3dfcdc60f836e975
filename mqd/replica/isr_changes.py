"""The ISRs of the partitions that this node leads. Followers fetch, fall behind and return. One
task proposes the changes to the controller, many partitions in a request.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice

import trio

from mqd.errors import ErrorCode, MqError
from mqd.io.clock import Clock
from mqd.replica.isr import ProposalResult
from mqd.replica.parked import ParkedRequests
from mqd.replica.partition import Partition
from mqd.replica.progress import UsedSession
from mqd.types import IsrChange, IsrOutcome, NodeId, Offset, TopicPartition

logger = logging.getLogger(__name__)

CHANGES_PER_REQUEST = 1000
"""Partitions in one request to the controller."""
RETRY_SECONDS = (0.05, 0.5)
"""First and longest pause after a request that the controller did not accept, or whose outcome is
unknown.
"""


class IsrChanges:
    def __init__(
        self,
        parked: ParkedRequests,
        clock: Clock,
        alter_partitions: Callable[[Sequence[IsrChange]], Awaitable[list[IsrOutcome]]],
    ) -> None:
        self.low_watermark_moved = trio.Event()
        """Set, and replaced by a new one, when a low watermark may have moved: a follower sent a
        new log start, or an ISR changed.
        """
        self._parked = parked
        self._clock = clock
        self._alter_partitions = alter_partitions
        self._proposals: dict[TopicPartition, tuple[Partition, IsrChange]] = {}
        """The changes in flight."""
        self._has_proposals = trio.Event()

    # -- what changes an ISR -----------------------------------------------------------------------

    def follower_fetched(
        self,
        partition: Partition,
        node_id: NodeId,
        broker_epoch: int,
        offset: Offset,
        log_start: Offset,
        session: UsedSession | None = None,
    ) -> None:
        """A follower sent a valid fetch: it has all records below `offset`.

        Moves the high watermark, and may propose that the follower joins the ISR.
        """
        follower = partition.followers[node_id]
        start_before = follower.log_start_offset
        moved, proposal = partition.follower_fetched(
            node_id, broker_epoch, offset, log_start, self._clock.monotonic(), session
        )
        if proposal is not None:
            self._propose(partition, proposal)
        if moved:
            self._parked.high_watermark_moved(partition)
        if log_start != start_before:
            self.low_watermarks_changed()

    def low_watermarks_changed(self) -> None:
        moved, self.low_watermark_moved = self.low_watermark_moved, trio.Event()
        moved.set()

    def membership_changed(self, partition: Partition) -> None:
        """The replicas, the ISR or `min.insync.replicas` changed. Followers may join now. If too
        few replicas are in sync, the produces that wait for a commit are rejected.
        """
        change = partition.expand_isr(self._clock.monotonic())
        if change is not None:
            self._propose(partition, change)
        if partition.short_of_replicas and partition.acks:
            self._parked.reject_produces(partition.acks, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def eligibility_changed(self, partitions: Iterable[Partition]) -> None:
        """Brokers were added, removed or fenced, or are shutting down. The high watermarks do not
        wait for followers that cannot join.
        """
        now = self._clock.monotonic()
        for partition in partitions:
            if partition.followers:
                self._recount(partition, now)

    def check_lag(self, partition: Partition) -> None:
        """Propose that out-of-sync replicas leave, or that followers join."""
        if partition.followers:
            now = self._clock.monotonic()
            change = partition.shrink_isr(now) or partition.expand_isr(now)
            if change is not None:
                self._propose(partition, change)
            self._recount(partition, now)

    def _recount(self, partition: Partition, now: float) -> None:
        partition.membership.recount(now)
        if partition.advance():
            self._parked.high_watermark_moved(partition)

    # -- proposals ---------------------------------------------------------------------------------

    def _propose(self, partition: Partition, change: IsrChange) -> None:
        self._proposals[change.topic_partition] = partition, change
        self._has_proposals.set()

    def withdraw(self, topic_partition: TopicPartition) -> None:
        """This node no longer has the partition."""
        self._proposals.pop(topic_partition, None)

    async def run(self) -> None:
        """Send the proposals and apply the responses, one request at a time. After a request that
        left a proposal undecided or refused, there is a pause.
        """
        pause, longest = RETRY_SECONDS
        while True:
            await self._has_proposals.wait()
            if await self._send():
                pause = RETRY_SECONDS[0]
            else:
                await trio.sleep(pause)
                pause = min(2 * pause, longest)

    async def _send(self) -> bool:
        """Send as many proposals as one request may contain. Returns whether no proposal was
        refused or must be sent again.
        """
        sent = dict(islice(self._proposals.items(), CHANGES_PER_REQUEST))
        outcomes: dict[TopicPartition, IsrOutcome] = {}
        try:
            received = await self._alter_partitions([change for _, change in sent.values()])
        except MqError as error:
            logger.warning(
                "cannot change in-sync replicas, will retry partitions=%d reason=%s",
                len(sent),
                error,
            )
        else:
            outcomes = {outcome.topic_partition: outcome for outcome in received}
        now = self._clock.monotonic()
        succeeded = True
        for topic_partition, (partition, change) in sent.items():
            result = partition.in_sync.on_outcome(change, outcomes.get(topic_partition))
            if result is ProposalResult.RETRY:
                succeeded = False
                continue
            if self._proposals.get(topic_partition, (None, None))[1] is change:
                del self._proposals[topic_partition]
            if result is ProposalResult.COMMITTED:
                logger.info(
                    "in-sync replicas changed partition=%s isr=%s",
                    topic_partition,
                    sorted(partition.isr),
                )
            elif result is ProposalResult.REFUSED:
                succeeded = False
            else:
                continue
            if partition.isr_decided(now):
                self._parked.high_watermark_moved(partition)
            self.membership_changed(partition)
        if not self._proposals:
            self._has_proposals = trio.Event()
        self.low_watermarks_changed()
        return succeeded
