"""Batches that a consumer has fetched: buffered, delivered with their visible records, or lent as
chunks. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, Protocol

from mqd.client.errors import ClientError
from mqd.errors import ErrorCode, MqError
from mqd.limits import DECOMPRESSED_BYTES_MAX
from mqd.protocol.batch import BatchHeader, validate
from mqd.protocol.client_records import read_records
from mqd.protocol.record_reader import ANY_HEADERS, Record, iterate_records
from mqd.types import TopicPartition

_CONTROL_KEY = Struct(">hh")  # version, type
_CONTROL_ABORT = 0
ARROW_ROWS_MAX = 32_768
"""Default number of rows in an Arrow batch that a consumer delivers."""


class ConsumedBatch(Protocol):
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
    assignment_id: int
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


class AbortedTransactions:
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


class BufferedBatch(NamedTuple):
    """One batch that was fetched and not yet taken.

    All batches of one response share `aborts`.
    """

    view: memoryview
    position: int
    size: int
    header: BatchHeader
    aborts: AbortedTransactions
    high_watermark: int

    def visible_records(
        self,
        start: int,
        end: int,
        *,
        read_committed: bool,
        limit: int = DECOMPRESSED_BYTES_MAX,
        headers_max: int = ANY_HEADERS,
    ) -> Sequence[Record]:
        """The records in `[start, end)` that a consumer sees. Call it once for each batch, in
        order. Raises MqError if the batch is damaged, or beyond a limit (`read_records`).
        """
        validate(self.view, self.position, end=self.position + self.size)
        hidden = read_committed and self.aborts.hides(self.header)
        if self.header.is_control:
            for marker in iterate_records(self.view, self.position, header=self.header):
                if (
                    marker.key is not None
                    and len(marker.key) >= 4
                    and _CONTROL_KEY.unpack_from(marker.key)[1] == _CONTROL_ABORT
                ):
                    self.aborts.on_abort_marker(self.header.producer_id)
            return []
        if hidden:
            return []
        records = read_records(
            self.view, self.position, header=self.header, limit=limit, headers_max=headers_max
        )
        return records.between(start, end)


def corrupt(tp: TopicPartition, offset: int, why: object) -> ClientError:
    """The error of a damaged batch, for the user."""
    return ClientError(
        ErrorCode.CORRUPT_MESSAGE,
        f"{tp} is damaged at offset {offset}: {why.message if isinstance(why, MqError) else why}",
        remedy="stop the broker that leads it and run `mqctl log verify` there, or seek past"
        " the damage",
    )
