"""The positions of a consumer, its prefetched batches, and their visible records. Pure: requests
and responses are values.

Each partition has two places: `position`, the next record for the user, and `fetch_offset`, the
next one to fetch. Batches between them are buffered, still compressed; each is decoded when the
user takes it. Invariants: position <= fetch_offset; at most one fetch of a partition is under way;
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
    """What a consumer hands out in one piece: records of one partition, or none where only
    markers were.
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

    Empty where a batch held nothing for a consumer (markers).
    """

    topic: str
    partition: int
    records: Sequence[Record]
    """Decoded at each access: keep a `list` of them for repeated access.
    """
    next_offset: int
    """The consumer's position after this batch."""
    high_watermark: int
    """Where the readable log ended in the answer that brought it: beyond its records.

    A later leader's may be lower for a moment.
    """


class Chunk(NamedTuple):
    """Whole record batches of one partition as received, lent to a reader that decodes them itself:
    see `Fetcher.take_chunk`.
    """

    tp: TopicPartition
    generation: int
    data: memoryview
    start: int
    """The first offset that is wanted of them."""
    end: int | None
    """The first offset that is not wanted any more."""
    next_offset: int
    """Where to read on behind them."""
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of aborted transactions, which `read_committed` hides."""
    read_committed: bool


class Wanted(NamedTuple):
    """One partition of a fetch that is about to be sent.

    A response of an older `generation` is ignored.
    """

    tp: TopicPartition
    fetch_offset: int
    generation: int


class _Ahead(NamedTuple):
    """One batch that was fetched and not yet taken.

    `aborts` is shared by the batches of one answer.
    """

    view: memoryview
    position: int
    size: int
    header: BatchHeader
    aborts: _Aborts
    high_watermark: int


class _Aborts:
    """The aborted transactions that an answer reports (KIP-98): which producers' records
    are hidden from here on.
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
    """A chunk was taken and not given back."""


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
        """A chunk was given back, so there is something to fetch: the shell looks at it
        after each take, and clears it.
        """

    # -- what is read

    def assign(self, tp: TopicPartition, position: int, end: int | None = None) -> None:
        """Read `tp` from `position` on, up to `end` (exclusive) if given.

        Replaces an earlier assignment of the partition.
        """
        assert position >= 0
        if tp not in self._partitions:
            self._turns.append(tp)
        # of all partitions: one that goes and comes back is not taken for the one that was asked
        # for
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
        """Another one after every `assign` and `seek`; None while `tp` is not read."""
        each = self._partitions.get(tp)
        return None if each is None else each.generation

    def position(self, tp: TopicPartition) -> int:
        """The offset of the next record that the user will see, or beyond it."""
        return self._partitions[tp].position

    def high_watermark(self, tp: TopicPartition) -> int:
        """The end of the readable records by the last response; -1 before the first."""
        return self._partitions[tp].high_watermark

    def is_done(self) -> bool:
        """Whether every partition has an end and has reached it.

        Never true of an open-ended consumer.
        """
        return all(
            each.end is not None and each.position >= each.end for each in self._partitions.values()
        )

    # -- asking

    def plan(
        self, now: float, leader_of: Callable[[TopicPartition], int | None]
    ) -> tuple[dict[int, list[Wanted]], set[str]]:
        """node id -> partitions worth asking it for, and the topics that miss a leader.

        Nothing is changed: see `on_sent`.
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
        """The body of the Fetch for one node, for any version; and the partitions count as
        under way.
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

    # -- answers

    def on_failed(self, wanted: list[Wanted], now: float, draw: float) -> None:
        """The request had no response: retry after a short pause."""
        for tp, _, generation in wanted:
            each = self._partitions.get(tp)
            if each is not None and each.generation == generation:
                each.in_flight = False
                each.retry_at = now + backoff_s(each.failures, draw)
                each.failures += 1

    def on_answer(
        self, wanted: list[Wanted], answer: Any, view: ClusterView, now: float, draw: float
    ) -> tuple[set[str], list[TopicPartition]]:
        """Take in an answer. Returns the topics whose leaders may have changed, and the partitions
        that lost their place.

        The latter wait for `seek` (or `refuse`): their offset is out of range.
        """
        names = {
            topic.topic_id: name
            for name, topic in view.topics.items()
            if topic.topic_id != ZERO_UUID
        }
        rows = {}
        for topic in answer.responses:
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
            # an earlier batch turned out to be damaged
            if each.fetch_offset != fetch_offset:
                continue
            row = rows.get((tp.topic, tp.partition))
            code = answer.error_code or (
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
        """Nothing more is readable here until the user seeks; the error is raised to the user."""
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
                each.tp, _corrupt(each.tp, each.fetch_offset, "the answer holds no whole batch")
            )
            return
        for position, size, header in found:
            each.ahead.append(_Ahead(view, position, size, header, aborts, row.high_watermark))
            each.ahead_bytes += size
        each.fetch_offset = found[-1][2].next_offset

    # -- taking

    def take(self) -> FetchedBatch | None:
        """The next batch, partitions by turns; None when nothing is there yet.

        Damage becomes a failure and stops its partition.
        """
        for _ in range(len(self._turns)):
            if (each := self._next_turn()) is not None:
                return self._decode(each)
        return None

    def _next_turn(self) -> _Partition | None:
        """The next partition in turn that has a deliverable batch."""
        tp = self._turns[0]
        self._turns.rotate(-1)
        if self._partitions[tp].is_lent:  # the borrower has dropped the chunk
            self._give_back(tp)
        each = self._partitions[tp]
        is_ready = (
            each.ahead and tp not in self._paused and (each.end is None or each.position < each.end)
        )
        return each if is_ready else None

    def take_chunk(self) -> Chunk | None:
        """The batches of one response for a partition, or the rest of them, whole and unchecked;
        partitions take turns. None if there are none. The position stays until `passed`, `finished`
        or `damaged` is called. A caller that takes anything else before `finished` returns the
        chunk; the partition is then read again from its position.
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
        """Whether more of a chunk may be handed out; else it is given back."""
        each = self._partitions.get(chunk.tp)
        if each is None or each.generation != chunk.generation or not each.is_lent:
            return False
        if chunk.tp in self._paused:
            self._give_back(chunk.tp)
            return False
        return True

    def _give_back(self, tp: TopicPartition) -> None:
        """What is missing of a chunk is fetched again."""
        self.seek(tp, self._partitions[tp].position)
        self.gave_back = True

    def passed(self, chunk: Chunk, next_offset: int) -> None:
        """Records before `next_offset` are handed out."""
        assert self.holds(chunk)
        self._partitions[chunk.tp].position = next_offset

    def finished(self, chunk: Chunk) -> None:
        """Everything of a chunk is handed out."""
        self.passed(chunk, chunk.next_offset)
        self._partitions[chunk.tp].is_lent = False

    def damaged(self, chunk: Chunk, error: MqError) -> None:
        """A chunk is damaged behind the position: the error is raised to the user."""
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
        remedy="check the log of the node that leads it with `mqctl log verify`, or read on "
        "behind the damage",
    )
