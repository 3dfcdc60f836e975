"""The positions of a consumer, its prefetched batches, and their visible records. Pure: requests
and responses are values.

Each partition has two offsets: `position`, the next record for the user, and `fetch_offset`, the
next one to fetch. Batches between them are buffered, still compressed; each is decoded when the
user takes it. Invariants: position <= fetch_offset; at most one fetch of a partition is in flight;
a seek invalidates older responses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple, Protocol

from mqd import limits
from mqd.client.backoff import backoff_s
from mqd.client.errors import ClientError, error_from_wire
from mqd.client.metadata import ClusterView
from mqd.errors import ErrorCode, MqError
from mqd.protocol.batch import BatchHeader, iterate_batches, validate
from mqd.protocol.client_records import read_records
from mqd.protocol.record_reader import Record, iterate_records
from mqd.types import NO_OFFSET, ZERO_UUID, TopicPartition

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
_CONTROL_KEY = Struct(">hh")  # version, type
_CONTROL_ABORT = 0


ARROW_ROWS_MAX = 32_768
"""Default number of rows in an Arrow batch that a consumer delivers."""


class Handed(Protocol):
    """What a consumer returns at once: records of one partition, or none if there were only
    transaction markers.
    """

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def records(self) -> Sized: ...
    @property
    def next_offset(self) -> int: ...


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """Records of one partition in their order, at most one batch.

    Empty if the batch had no visible records (transaction markers, aborted records).
    """

    topic: str
    partition: int
    records: Sequence[Record]
    """Decoded at each access: keep a `list` of them for repeated access.
    """
    next_offset: int
    """The consumer's position after this batch."""
    high_watermark: int
    """The high watermark in the response that contained the batch; above its records.

    That of a later leader may be lower for a moment.
    """


class Chunk(NamedTuple):
    """Whole record batches of one partition as received, lent to a caller that decodes them: see
    `Fetcher.take_chunk`.
    """

    tp: TopicPartition
    generation: int
    data: memoryview
    start: int
    """The offset of the first record to deliver; the batches may begin below it."""
    end: int | None
    """Deliver only records below this offset; None: no limit."""
    next_offset: int
    """The position after the chunk."""
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of the aborted transactions that `read_committed` hides."""
    read_committed: bool


class Wanted(NamedTuple):
    """One partition of a fetch that is about to be sent.

    `generation` is that of the assignment, see `Fetcher.generation`; a response to an older one is
    ignored.
    """

    tp: TopicPartition
    fetch_offset: int
    generation: int


class _Ahead(NamedTuple):
    """One batch that was fetched and not yet taken.

    All batches of one response share `aborts`.
    """

    view: memoryview
    position: int
    size: int
    header: BatchHeader
    aborts: _Aborts
    high_watermark: int


class _Aborts:
    """The aborted transactions of a response (KIP-98). They decide which batches are hidden; the
    state advances with each batch.
    """

    __slots__ = ("_active", "_waiting")

    def __init__(self, rows: Iterable[tuple[int, int]]) -> None:
        """Rows are (first offset, producer id), in any order."""
        self._waiting = deque(sorted(rows))
        self._active: set[int] = set()

    def hides(self, header: BatchHeader) -> bool:
        """Whether the batch belongs to an aborted transaction. Call it for each batch, in order."""
        while self._waiting and self._waiting[0][0] <= header.last_offset:
            self._active.add(self._waiting.popleft()[1])
        return (
            header.is_transactional and not header.is_control and header.producer_id in self._active
        )

    def rest(self) -> tuple[tuple[int, int], ...]:
        """(producer id, first offset) of the aborted transactions from here on."""
        return (
            *((producer_id, 0) for producer_id in self._active),
            *((producer_id, first) for first, producer_id in self._waiting),
        )

    def on_abort_marker(self, producer_id: int) -> None:
        self._active.discard(producer_id)


@dataclass(slots=True)
class _Partition:
    tp: TopicPartition
    position: int
    fetch_offset: int
    end: int | None
    ahead: deque[_Ahead] = field(default_factory=deque)
    ahead_bytes: int = 0
    generation: int = 0
    in_flight: bool = False
    failures: int = 0
    retry_at: float = 0.0
    high_watermark: int = NO_OFFSET
    resetting: bool = False
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
    ) -> None:
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
        self._generations = 0
        self.gave_back = False
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
        # new generation, so that it ignores older responses.
        self._generations += 1
        self._partitions[tp] = _Partition(tp, position, position, end, generation=self._generations)

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

    def generation(self, tp: TopicPartition) -> int | None:
        """It changes with every `assign` and `seek`; None while `tp` is not assigned. Not the
        generation of a group.
        """
        each = self._partitions.get(tp)
        return None if each is None else each.generation

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
            each.end is not None and each.position >= each.end for each in self._partitions.values()
        )

    # -- requests

    def plan(
        self, now: float, leader_of: Callable[[TopicPartition], int | None]
    ) -> tuple[dict[int, list[Wanted]], set[str]]:
        """node id -> partitions to fetch from it; and the topics with a partition without a leader.

        Changes nothing: `request` marks the partitions as in flight.
        """
        wanted: dict[int, list[Wanted]] = {}
        leaderless: set[str] = set()
        for tp, each in self._partitions.items():
            if (
                each.in_flight
                or each.resetting
                or now < each.retry_at
                or each.ahead_bytes > self._partition_max_bytes
            ):
                continue
            if tp in self._paused:
                continue
            if each.end is not None and each.fetch_offset >= each.end:
                continue
            node_id = leader_of(tp)
            if node_id is None:
                leaderless.add(tp.topic)
            else:
                wanted.setdefault(node_id, []).append(
                    Wanted(tp, each.fetch_offset, each.generation)
                )
        return wanted, leaderless

    def next_deadline(self, now: float) -> float:
        """When the next failed partition is retried; infinity if there is none."""
        return min(
            (
                each.retry_at
                for each in self._partitions.values()
                if not each.in_flight and each.retry_at > now
            ),
            default=float("inf"),
        )

    def request(
        self, wanted: list[Wanted], view: ClusterView, *, max_wait_ms: int, min_bytes: int
    ) -> dict[str, Any]:
        """The body of the Fetch request for one node, for any version. Its partitions count as in
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

    def on_failed(self, wanted: list[Wanted], now: float, draw: float) -> None:
        """The request had no response: retry after a short pause."""
        for tp, _, generation in wanted:
            each = self._partitions.get(tp)
            if each is not None and each.generation == generation:
                each.in_flight = False
                each.retry_at = now + backoff_s(each.failures, draw)
                each.failures += 1

    def on_response(
        self, wanted: list[Wanted], response: Any, view: ClusterView, now: float, draw: float
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
        lost: list[TopicPartition] = []
        for tp, fetch_offset, generation in wanted:
            each = self._partitions.get(tp)
            if each is None or each.generation != generation:
                continue
            assert each.in_flight
            each.in_flight = False
            # An earlier batch was damaged, so `fetch_offset` has moved back.
            if each.fetch_offset != fetch_offset:
                continue
            row = rows.get((tp.topic, tp.partition))
            code = response.error_code or (
                ErrorCode.UNKNOWN_SERVER_ERROR if row is None else row.error_code
            )
            if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                each.resetting = True
                lost.append(tp)
            elif code:
                error = error_from_wire(code, f"reading {tp} at offset {fetch_offset}")
                if error.retriable:
                    stale.add(tp.topic)
                    each.retry_at = now + backoff_s(each.failures, draw)
                    each.failures += 1
                else:
                    self.refuse(tp, error)
            else:
                self._take_in(each, row)
        return stale, lost

    def refuse(self, tp: TopicPartition, error: ClientError) -> None:
        """Stop reading the partition until the user seeks, and raise the error to the user."""
        self._partitions[tp].resetting = True
        self.failures.append(error)

    def _take_in(self, each: _Partition, row: Any) -> None:
        each.failures = 0
        each.high_watermark = row.high_watermark
        if not row.records:
            return
        view = memoryview(row.records)
        aborted = row.aborted_transactions if self._read_committed else None
        aborts = _Aborts((one.first_offset, one.producer_id) for one in aborted or ())
        try:
            found = [
                batch
                for batch in iterate_batches(view)
                if batch[2].last_offset >= each.fetch_offset
            ]
        except MqError as error:
            self.refuse(each.tp, _corrupt(each.tp, each.fetch_offset, error))
            return
        if not found:
            self.refuse(
                each.tp,
                _corrupt(each.tp, each.fetch_offset, "the response contains no complete batch"),
            )
            return
        for position, size, header in found:
            each.ahead.append(_Ahead(view, position, size, header, aborts, row.high_watermark))
            each.ahead_bytes += size
        each.fetch_offset = found[-1][2].next_offset

    # -- delivery

    def take(self) -> FetchedBatch | None:
        """The next batch; partitions take turns. None if no batch is ready.

        A damaged batch stops its partition, see `refuse`.
        """
        for _ in range(len(self._turns)):
            if (each := self._next_turn()) is not None:
                return self._decode(each)
        return None

    def _next_turn(self) -> _Partition | None:
        """The next partition in turn that has a deliverable batch."""
        tp = self._turns[0]
        self._turns.rotate(-1)
        if self._partitions[tp].is_lent:  # the caller has not finished the chunk
            self._give_back(tp)
        each = self._partitions[tp]
        is_ready = (
            each.ahead and tp not in self._paused and (each.end is None or each.position < each.end)
        )
        return each if is_ready else None

    def take_chunk(self) -> Chunk | None:
        """The remaining batches of one response for a partition, whole and unchecked; partitions
        take turns. None if there are none. The position changes only in `passed` and `finished`.
        If the caller takes something else before `finished` or `damaged`, the chunk counts as given
        back: the partition is fetched again from its position.
        """
        for _ in range(len(self._turns)):
            if (each := self._next_turn()) is None:
                continue
            first = last = each.ahead[0]
            while each.ahead and each.ahead[0].view is first.view:
                last = each.ahead.popleft()
                each.ahead_bytes -= last.size
            each.is_lent = True
            next_offset = (
                last.header.next_offset
                if each.end is None
                else min(last.header.next_offset, each.end)
            )
            data = first.view[first.position : last.position + last.size]
            rest = first.aborts.rest()
            return Chunk(
                each.tp,
                each.generation,
                data,
                each.position,
                each.end,
                next_offset,
                rest,
                self._read_committed,
            )
        return None

    def holds(self, chunk: Chunk) -> bool:
        """Whether the caller may deliver more of a chunk. If not, the rest of the
        chunk is fetched again.
        """
        each = self._partitions.get(chunk.tp)
        if each is None or each.generation != chunk.generation or not each.is_lent:
            return False
        if chunk.tp in self._paused:
            self._give_back(chunk.tp)
            return False
        return True

    def _give_back(self, tp: TopicPartition) -> None:
        """Fetch the undelivered rest of a chunk again."""
        self.seek(tp, self._partitions[tp].position)
        self.gave_back = True

    def passed(self, chunk: Chunk, next_offset: int) -> None:
        """The caller has delivered the records before `next_offset`."""
        assert self.holds(chunk)
        self._partitions[chunk.tp].position = next_offset

    def finished(self, chunk: Chunk) -> None:
        """The caller has delivered the whole chunk."""
        self.passed(chunk, chunk.next_offset)
        self._partitions[chunk.tp].is_lent = False

    def damaged(self, chunk: Chunk, error: MqError) -> None:
        """A chunk is damaged at or after the position: raise the error to the user."""
        each = self._partitions[chunk.tp]
        each.is_lent = False
        self._refuse_damage(each, error)

    def _decode(self, each: _Partition) -> FetchedBatch:
        view, position, size, header, aborts, high_watermark = each.ahead[0]
        try:
            records = self._visible(each, view, position, size, header, aborts)
        except MqError as error:
            self._refuse_damage(each, error)
            return FetchedBatch(each.tp.topic, each.tp.partition, [], each.position, high_watermark)
        each.ahead.popleft()
        each.ahead_bytes -= size
        each.position = (
            header.next_offset if each.end is None else min(header.next_offset, each.end)
        )
        return FetchedBatch(
            each.tp.topic, each.tp.partition, records, each.position, high_watermark
        )

    def _refuse_damage(self, each: _Partition, error: MqError) -> None:
        self.refuse(each.tp, _corrupt(each.tp, each.position, error))
        each.ahead.clear()
        each.ahead_bytes = 0
        each.fetch_offset = each.position

    def _visible(
        self,
        each: _Partition,
        view: memoryview,
        position: int,
        size: int,
        header: BatchHeader,
        aborts: _Aborts,
    ) -> Sequence[Record]:
        validate(view, position, end=position + size)
        hidden = self._read_committed and aborts.hides(header)
        if header.is_control:
            for marker in iterate_records(view, position, header=header):
                if (
                    marker.key is not None
                    and len(marker.key) >= 4
                    and _CONTROL_KEY.unpack_from(marker.key)[1] == _CONTROL_ABORT
                ):
                    aborts.on_abort_marker(header.producer_id)
            return []
        if hidden:
            return []
        end = header.next_offset if each.end is None else each.end
        return read_records(view, position, header=header).between(each.position, end)


def _corrupt(tp: TopicPartition, offset: int, why: object) -> ClientError:
    return ClientError(
        ErrorCode.CORRUPT_MESSAGE,
        f"{tp} is damaged at offset {offset}: {why.message if isinstance(why, MqError) else why}",
        remedy="check the log of the broker that leads it with `mqctl log verify`, or read on "
        "behind the damage",
    )
