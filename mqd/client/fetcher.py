"""The positions of a consumer, and its prefetched batches. Pure: requests and responses are values.

Each partition has two offsets: `position`, the next record for the user, and `fetch_offset`, the
next one to fetch. Batches between them are buffered, still compressed; each is decoded when the
user takes it. Invariants: position <= fetch_offset; at most one fetch of a partition is in flight;
a seek invalidates older responses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mqd import limits
from mqd.client.backoff import backoff_s
from mqd.client.errors import ClientError, error_from_wire
from mqd.client.fetched_batches import (
    AbortedTransactions,
    BufferedBatch,
    Chunk,
    FetchedBatch,
    corrupt,
)
from mqd.client.metadata import ClusterView
from mqd.client.topic_weights import TopicWeights
from mqd.errors import ErrorCode, MqError
from mqd.protocol.batch import iterate_batches
from mqd.types import NO_OFFSET, ZERO_UUID, TopicPartition

READ_UNCOMMITTED = 0
READ_COMMITTED = 1


class PartitionFetch(NamedTuple):
    """One partition of a fetch that is about to be sent.

    A response is ignored if the partition has another `assignment_id` by then.
    """

    tp: TopicPartition
    fetch_offset: int
    assignment_id: int


@dataclass(slots=True)
class _Partition:
    tp: TopicPartition
    position: int
    fetch_offset: int
    end: int | None
    ahead: deque[BufferedBatch] = field(default_factory=deque)
    ahead_bytes: int = 0
    assignment_id: int = 0
    in_flight: bool = False
    failures: int = 0
    retry_at: float = 0.0
    high_watermark: int = NO_OFFSET
    stopped: bool = False
    is_lent: bool = False
    """A chunk was taken, and neither finished nor given back."""


class Fetcher:
    """The partitions of one consumer."""

    def __init__(
        self,
        *,
        read_committed: bool = False,
        max_bytes: int = limits.CONSUMER_FETCH_BYTES,
        partition_max_bytes: int = limits.CONSUMER_PARTITION_FETCH_BYTES,
        weights: Mapping[str, int] | None = None,
    ) -> None:
        """`weights`: by topic; without them, partitions take turns."""
        self._weights = None if weights is None else TopicWeights(weights)
        self.failures: deque[ClientError] = deque()
        """Errors to raise to the user, in order. Their partitions are not fetched until the user
        seeks.
        """
        self._read_committed = read_committed
        self._max_bytes = max_bytes
        self._partition_max_bytes = partition_max_bytes
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._turns: deque[TopicPartition] = deque()
        self._paused: set[TopicPartition] = set()
        self._last_assignment_id = 0
        self.chunk_given_back = False
        """A chunk was given back, so its partition can be fetched again. The consumer checks and
        clears this after each take.
        """

    # -- assignment and positions

    def assign(self, tp: TopicPartition, position: int, end: int | None = None) -> None:
        """Read `tp` from `position` on, up to `end` (exclusive) if given.

        Replaces an earlier assignment of the partition.
        """
        assert position >= 0
        if tp not in self._partitions:
            self._turns.append(tp)
        # One counter for all partitions: a partition that is unassigned and assigned again gets a
        # new id, so that it ignores older responses.
        self._last_assignment_id += 1
        self._partitions[tp] = _Partition(
            tp, position, position, end, assignment_id=self._last_assignment_id
        )

    def unassign(self, tp: TopicPartition) -> None:
        del self._partitions[tp]
        self._turns.remove(tp)
        self._paused.discard(tp)

    def pause(self, tp: TopicPartition) -> None:
        """Neither fetch nor deliver its records until `resume`. The partition may be assigned
        later.
        """
        self._paused.add(tp)

    def resume(self, tp: TopicPartition) -> None:
        self._paused.discard(tp)

    def paused(self) -> list[TopicPartition]:
        return sorted(self._paused)

    def seek(self, tp: TopicPartition, position: int) -> None:
        """Continue at `position`; prefetched batches are dropped."""
        self.assign(tp, position, self._partitions[tp].end)

    def assignment(self) -> list[TopicPartition]:
        return list(self._partitions)

    def assignment_id(self, tp: TopicPartition) -> int | None:
        """It changes with every `assign` and `seek`; None while `tp` is not assigned."""
        state = self._partitions.get(tp)
        return None if state is None else state.assignment_id

    def position(self, tp: TopicPartition) -> int:
        """The lowest offset that the user has not passed; the next record is there or later."""
        return self._partitions[tp].position

    def high_watermark(self, tp: TopicPartition) -> int:
        """The high watermark in the last response; -1 before the first."""
        return self._partitions[tp].high_watermark

    def is_done(self) -> bool:
        """Whether every partition has an end and has reached it.

        Never true for a consumer without ends.
        """
        return all(
            state.end is not None and state.position >= state.end
            for state in self._partitions.values()
        )

    # -- requests

    def plan(
        self, now: float, leader_of: Callable[[TopicPartition], int | None]
    ) -> tuple[dict[int, list[PartitionFetch]], set[str]]:
        """broker id -> partitions to fetch from it; and the topics with a partition without a
        leader.

        Changes nothing: `request` marks the partitions as in flight.
        """
        wanted: dict[int, list[PartitionFetch]] = {}
        leaderless: set[str] = set()
        for tp, state in self._partitions.items():
            if (
                state.in_flight
                or state.stopped
                or now < state.retry_at
                or state.ahead_bytes > self._partition_max_bytes
            ):
                continue
            if tp in self._paused:
                continue
            if state.end is not None and state.fetch_offset >= state.end:
                continue
            node_id = leader_of(tp)
            if node_id is None:
                leaderless.add(tp.topic)
            else:
                wanted.setdefault(node_id, []).append(
                    PartitionFetch(tp, state.fetch_offset, state.assignment_id)
                )
        return wanted, leaderless

    def next_deadline(self, now: float) -> float:
        """When the next failed partition is retried; infinity if there is none."""
        return min(
            (
                state.retry_at
                for state in self._partitions.values()
                if not state.in_flight and state.retry_at > now
            ),
            default=float("inf"),
        )

    def request(
        self, wanted: list[PartitionFetch], view: ClusterView, *, max_wait_ms: int, min_bytes: int
    ) -> dict[str, Any]:
        """The body of the Fetch request for one broker, for any version. Its partitions count as in
        flight from now on.
        """
        topics: dict[str, list[dict[str, Any]]] = {}
        for tp, fetch_offset, _ in wanted:
            self._partitions[tp].in_flight = True
            row = {
                "partition": tp.partition,
                "current_leader_epoch": view.leader_epoch_of(tp),
                "fetch_offset": fetch_offset,
                "partition_max_bytes": self._partition_max_bytes,
            }
            topics.setdefault(tp.topic, []).append(row)
        return {
            "max_wait_ms": max_wait_ms,
            "min_bytes": min_bytes,
            "max_bytes": self._max_bytes,
            "isolation_level": READ_COMMITTED if self._read_committed else READ_UNCOMMITTED,
            "topics": [
                {"topic": name, "topic_id": view.topics[name].topic_id, "partitions": rows}
                for name, rows in topics.items()
            ],
        }

    # -- responses

    def on_failed(self, wanted: list[PartitionFetch], now: float, draw: float) -> None:
        """The request had no response: retry after a short pause."""
        for tp, _, assignment_id in wanted:
            state = self._partitions.get(tp)
            if state is not None and state.assignment_id == assignment_id:
                state.in_flight = False
                state.retry_at = now + backoff_s(state.failures, draw)
                state.failures += 1

    def on_response(
        self,
        wanted: list[PartitionFetch],
        response: Any,
        view: ClusterView,
        now: float,
        draw: float,
    ) -> tuple[set[str], list[TopicPartition]]:
        """Process a response. Returns the topics whose leaders may have changed, and the partitions
        whose offset is out of range.

        The latter wait for `seek` or `refuse`.
        """
        names = {
            topic.topic_id: name
            for name, topic in view.topics.items()
            if topic.topic_id != ZERO_UUID
        }
        rows = {}
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            rows.update({(name, row.partition_index): row for row in topic.partitions})
        stale: set[str] = set()
        out_of_range: list[TopicPartition] = []
        for tp, fetch_offset, assignment_id in wanted:
            state = self._partitions.get(tp)
            if state is None or state.assignment_id != assignment_id:
                continue
            assert state.in_flight
            state.in_flight = False
            # An earlier batch was damaged, so `fetch_offset` has moved back.
            if state.fetch_offset != fetch_offset:
                continue
            row = rows.get((tp.topic, tp.partition))
            code = response.error_code or (
                ErrorCode.UNKNOWN_SERVER_ERROR if row is None else row.error_code
            )
            if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                state.stopped = True
                out_of_range.append(tp)
            elif code:
                error = error_from_wire(code, f"reading {tp} at offset {fetch_offset}")
                if error.retriable:
                    stale.add(tp.topic)
                    state.retry_at = now + backoff_s(state.failures, draw)
                    state.failures += 1
                else:
                    self.refuse(tp, error)
            else:
                self._buffer(state, row)
        return stale, out_of_range

    def refuse(self, tp: TopicPartition, error: ClientError) -> None:
        """Stop reading the partition until the user seeks, and raise the error to the user."""
        self._partitions[tp].stopped = True
        self.failures.append(error)

    def _buffer(self, state: _Partition, row: Any) -> None:
        state.failures = 0
        state.high_watermark = row.high_watermark
        if not row.records:
            return
        view = memoryview(row.records)
        aborted = row.aborted_transactions if self._read_committed else None
        aborts = AbortedTransactions((one.first_offset, one.producer_id) for one in aborted or ())
        try:
            found = [
                batch
                for batch in iterate_batches(view)
                if batch[2].last_offset >= state.fetch_offset
            ]
        except MqError as error:
            self.refuse(state.tp, corrupt(state.tp, state.fetch_offset, error))
            return
        if not found:
            self.refuse(
                state.tp,
                corrupt(state.tp, state.fetch_offset, "the response contains no complete batch"),
            )
            return
        for position, size, header in found:
            state.ahead.append(
                BufferedBatch(view, position, size, header, aborts, row.high_watermark)
            )
            state.ahead_bytes += size
        state.fetch_offset = found[-1][2].next_offset

    # -- delivery

    def take(self) -> FetchedBatch | None:
        """The next batch; partitions take turns, topics by weight. None if no batch is ready.

        A damaged batch stops its partition, see `refuse`.
        """
        state = self._next_ready()
        if state is None:
            return None
        batch = self._decode(state)
        if self._weights is not None:
            self._weights.taken(batch.topic, len(batch.records))
        return batch

    def _next_ready(self) -> _Partition | None:
        """The next partition to take from."""
        ready: dict[str, _Partition] = {}
        for _ in range(len(self._turns)):
            if (state := self._next_turn()) is not None:
                if self._weights is None:
                    return state
                ready.setdefault(state.tp.topic, state)
        if self._weights is None or not ready:
            return None
        state = ready[self._weights.choose(ready)]
        self._turns.remove(state.tp)
        self._turns.append(state.tp)
        return state

    def _next_turn(self) -> _Partition | None:
        """The next partition in turn that has a deliverable batch."""
        tp = self._turns[0]
        self._turns.rotate(-1)
        if self._partitions[tp].is_lent:  # the caller has not finished the chunk
            self._give_back(tp)
        state = self._partitions[tp]
        is_ready = (
            state.ahead
            and tp not in self._paused
            and (state.end is None or state.position < state.end)
        )
        return state if is_ready else None

    def take_chunk(self) -> Chunk | None:
        """The remaining batches of one response for a partition, whole and unchecked; partitions
        take turns. None if there are none. The position changes only in `delivered_until` and
        `delivered`. If the caller takes something else before `delivered` or `damaged`, the chunk
        counts as given back: the partition is fetched again from its position.
        """
        state = self._next_ready()
        if state is None:
            return None
        first = last = state.ahead[0]
        while state.ahead and state.ahead[0].view is first.view:
            last = state.ahead.popleft()
            state.ahead_bytes -= last.size
        state.is_lent = True
        next_offset = (
            last.header.next_offset
            if state.end is None
            else min(last.header.next_offset, state.end)
        )
        if self._weights is not None:
            self._weights.taken(state.tp.topic, next_offset - state.position)
        data = first.view[first.position : last.position + last.size]
        rest = first.aborts.rest()
        return Chunk(
            state.tp,
            state.assignment_id,
            data,
            state.position,
            state.end,
            next_offset,
            rest,
            self._read_committed,
        )

    def may_deliver(self, chunk: Chunk) -> bool:
        """Whether the caller may deliver more of a chunk. If not, the rest of the
        chunk is fetched again.
        """
        state = self._partitions.get(chunk.tp)
        if state is None or state.assignment_id != chunk.assignment_id or not state.is_lent:
            return False
        if chunk.tp in self._paused:
            self._give_back(chunk.tp)
            return False
        return True

    def _give_back(self, tp: TopicPartition) -> None:
        """Fetch the undelivered rest of a chunk again."""
        self.seek(tp, self._partitions[tp].position)
        self.chunk_given_back = True

    def delivered_until(self, chunk: Chunk, next_offset: int) -> None:
        """The caller has delivered the records before `next_offset`."""
        assert self.may_deliver(chunk)
        self._partitions[chunk.tp].position = next_offset

    def delivered(self, chunk: Chunk) -> None:
        """The caller has delivered the whole chunk."""
        self.delivered_until(chunk, chunk.next_offset)
        self._partitions[chunk.tp].is_lent = False

    def damaged(self, chunk: Chunk, error: MqError) -> None:
        """A chunk is damaged at or after the position: raise the error to the user."""
        state = self._partitions[chunk.tp]
        state.is_lent = False
        self._refuse_damage(state, error)

    def _decode(self, state: _Partition) -> FetchedBatch:
        batch = state.ahead[0]
        high_watermark, next_offset = batch.high_watermark, batch.header.next_offset
        end = next_offset if state.end is None else state.end
        try:
            records = batch.visible_records(
                state.position, end, read_committed=self._read_committed
            )
        except MqError as error:
            self._refuse_damage(state, error)
            return FetchedBatch(
                state.tp.topic, state.tp.partition, [], state.position, high_watermark
            )
        state.ahead.popleft()
        state.ahead_bytes -= batch.size
        state.position = min(next_offset, end)
        return FetchedBatch(
            state.tp.topic, state.tp.partition, records, state.position, high_watermark
        )

    def _refuse_damage(self, state: _Partition, error: MqError) -> None:
        self.refuse(state.tp, corrupt(state.tp, state.position, error))
        state.ahead.clear()
        state.ahead_bytes = 0
        state.fetch_offset = state.position
