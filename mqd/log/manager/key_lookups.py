"""Lookups of records by key, in one log: connects disk/key_search.py with the files of the node.

Unreadable data fences its log; temporary errors do not (reading.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from mqd.io.disk import Disk
from mqd.log.disk.key_filter_build import read_filter
from mqd.log.disk.key_search import (
    KeyQuery,
    KeySearch,
    KeySearchResult,
    KeySearchSlices,
    KeySearchSources,
)
from mqd.log.manager.descriptors import Descriptors
from mqd.log.manager.key_indexer import KeyIndexer
from mqd.log.manager.reading import Reader
from mqd.log.partition_log import PartitionLog
from mqd.log.segment import Segment
from mqd.protocol.batch import BatchHeader
from mqd.protocol.files import BadBatch, FileFormatError
from mqd.protocol.key_filter import KeyFilter


class KeyLookups:
    """See the head of this file."""

    def __init__(
        self, disk: Disk, descriptors: Descriptors, reader: Reader, indexer: KeyIndexer
    ) -> None:
        self._disk = disk
        self._descriptors = descriptors
        self._reader = reader
        self._indexer = indexer

    def find(
        self,
        log: PartitionLog,
        query: KeyQuery,
        *,
        read_committed: bool,
        is_over: Callable[[], bool],
    ) -> tuple[KeySearchResult, KeySearchSlices]:
        """The result of a search, and the work that fills it, in slices.

        The log may be deleted in each pause: check that it is still served before you resume. The
        work raises MqError: KAFKA_STORAGE_ERROR, or as `KeySearch.run`.
        """
        sources = KeySearchSources(
            self._descriptors.open,
            self._filter_of,
            self._indexer.discard,
            self._is_hidden if read_committed else _never_hidden,
        )
        search = KeySearch(log, query, sources, is_over)
        return search.result, self._run(log, search)

    def _run(self, log: PartitionLog, search: KeySearch) -> KeySearchSlices:
        try:
            yield from search.run()
        except BadBatch as bad:
            raise self._reader.unreadable(log, f"{log.path} {bad}") from bad
        except OSError as error:
            raise self._reader.not_read(log, error) from error

    def _filter_of(self, log: PartitionLog, segment: Segment) -> KeyFilter | None:
        """The key filter of an open segment, if it has a valid one. Raises OSError."""
        assert segment.file is not None
        if segment.suffix:
            return None
        try:
            return read_filter(self._disk, log.path, segment, segment.file)
        except FileNotFoundError:
            if segment.has_key_filter:
                self._indexer.discard(log, segment, "the file is missing")
        except FileFormatError as damage:
            self._indexer.discard(log, segment, damage)
        return None

    def _is_hidden(self, log: PartitionLog, header: BatchHeader) -> Generator[int, None, bool]:
        """Whether the batch belongs to an aborted transaction. Below the last stable offset, so the
        marker is in the log.
        """
        if not header.is_transactional:
            return False
        candidates = self._reader.aborted_candidates(log, header.base_offset, header.next_offset)
        aborted = yield from candidates.listed()
        return any(producer_id == header.producer_id for producer_id, _ in aborted)


def _never_hidden(log: PartitionLog, header: BatchHeader) -> Generator[int, None, bool]:
    yield from ()
    return False
