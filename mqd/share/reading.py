"""Which record batches of fetched bytes a share group gets. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mqd.protocol.batch import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    iterate_batches,
)
from mqd.protocol.markers import parse_end_marker
from mqd.protocol.record_reader import iterate_records
from mqd.share.key_affinity import KeyOf
from mqd.types import Offset


class ReadBatch(NamedTuple):
    """One batch, at these positions of the bytes."""

    start: int
    end: int
    first_offset: Offset
    last_offset: Offset
    is_aborted: bool
    """Whether it is of an aborted transaction, and the group reads committed records only."""
    has_records: bool = True
    """Whether it is not a marker of a transaction."""


def read_batches(
    data: bytes | memoryview,
    aborted: Iterable[tuple[int, Offset]] | None,
    size: int = 0,
) -> list[ReadBatch]:
    """The batches in `data`, or one batch of at most `size` bytes that begins there. `aborted`:
    producer id and first offset of the aborted transactions among them; None if the group reads
    uncommitted records, too.
    """
    view = memoryview(data)
    transactions: defaultdict[int, deque[Offset]] = defaultdict(deque)
    for producer_id, first_offset in aborted or ():
        transactions[producer_id].append(first_offset)
    open_aborted: set[int] = set()
    found = []
    for start, batch_size, header in _batches(view, size):
        producer_id, is_aborted = header.producer_id, False
        if aborted is not None and header.is_transactional:
            begins = transactions.get(producer_id)
            while begins and begins[0] <= header.last_offset:
                begins.popleft()
                open_aborted.add(producer_id)
            if header.is_control:
                marker = parse_end_marker(view, start)
                if marker is not None and not marker.committed:
                    open_aborted.discard(producer_id)
            else:
                is_aborted = producer_id in open_aborted
        found.append(
            ReadBatch(
                start,
                start + batch_size,
                header.base_offset,
                header.last_offset,
                is_aborted,
                not header.is_control,
            )
        )
    return found


def keys_of(data: bytes | memoryview, batches: Iterable[ReadBatch]) -> list[KeyOf]:
    """The key of each record of these batches that may be delivered, decompressed. Raises MqError
    CORRUPT_MESSAGE. It takes milliseconds for each MiB: call it in a worker thread.

    The hash is random for each process, so that nobody can choose keys with one hash.
    """
    view = memoryview(data)
    return [
        KeyOf(record.offset, None if record.key is None else hash(record.key))
        for batch in batches
        if batch.has_records and not batch.is_aborted
        for record in iterate_records(view, batch.start)
    ]


def _batches(view: memoryview, size: int) -> Iterator[tuple[int, int, BatchHeader]]:
    yield from iterate_batches(view)
    if HEADER_BYTES <= len(view) < size:
        header = BatchHeader._make(HEADER.unpack_from(view))
        batch_size = header.batch_length + LOG_OVERHEAD_BYTES
        if len(view) < batch_size <= size:
            yield 0, batch_size, header
