"""Finds the records with a key on brokers of mqd: `find`, and `find_as_of` for the value of a key
at a time.

The leader of the partition searches its log (FindRecords). A topic with `mqd.key.index` has filters
that let it skip most of the log; without them it reads every batch, which takes longer and has the
same result. One request is bounded by the broker, so a search may need many: the client sends the
next one when its caller wants more.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Literal, NamedTuple

import trio

from mqd.client.arguments import (
    INT32_MAX,
    INT64_MAX,
    check_above_zero,
    check_flag,
    check_topic,
    check_whole,
    shown,
)
from mqd.client.cluster import ClusterClient, check_client
from mqd.client.errors import (
    ClientError,
    does_not_exist,
    error_from_wire,
    invalid_type,
    invalid_value,
)
from mqd.client.partitioner import partition_for_key
from mqd.errors import ErrorCode
from mqd.types import TopicPartition

_FIND_RECORDS: Final = 32_004
_INT64_MIN: Final = -(2**63)
_PURPOSE = "find"
_RECORDS_A_REQUEST = 500
_LOG_END = -1

Partitions = Literal["all"]


class FoundRecord(NamedTuple):
    """One record. `timestamp` in milliseconds since 1970; the value of a tombstone is None."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class _Search(NamedTuple):
    key: bytes
    since: int
    until: int
    newest_first: bool
    records_max: int
    read_committed: bool


class Finding:
    """The records of a lookup: `async for record in finding`. Made by `find`.

    Counts what the brokers have read so far.
    """

    def __init__(
        self,
        client: ClusterClient,
        topic: str,
        search: _Search,
        partition: int | None,
        *,
        all_partitions: bool,
        last: bool,
        timeout_s: float,
    ) -> None:
        self._client = client
        self._topic = topic
        self._search = search
        self._partition = partition
        self._all_partitions = all_partitions
        self._last = last
        self._timeout_s = timeout_s
        self._left: deque[TopicPartition] | None = None
        """Partitions to search; None before the first request."""
        self._offset = 0
        """Where the search of the first of them goes on."""
        self._found: deque[FoundRecord] = deque()
        self.requests = 0
        self.scanned_bytes = 0
        """Bytes that the brokers have read and decompressed."""
        self.segments_read = 0
        """Segments of which something was read, once for each request."""
        self.segments_unindexed = 0
        """Full segments that were read whole, because they have no key filter."""

    def __aiter__(self) -> Finding:
        return self

    async def __anext__(self) -> FoundRecord:
        if self._left is None:
            self._left = deque(await self._partitions())
            if self._last:
                await self._find_newest()
        while not self._found:
            if not self._left:
                raise StopAsyncIteration
            await self._next_page()
        return self._found.popleft()

    async def _next_page(self) -> None:
        assert self._left is not None
        tp = self._left[0]
        response = await self._page(tp, self._offset)
        self._found.extend(self._record(tp, row) for row in response.records)
        self._offset = response.next_offset
        if response.is_complete:
            self._left.popleft()
            self._offset = 0

    async def _find_newest(self) -> None:
        """The last record; of several partitions, that with the largest timestamp."""
        assert self._left is not None
        newest: FoundRecord | None = None
        for tp in self._left:
            offset, is_complete = _LOG_END, False
            while not is_complete:
                response = await self._page(tp, offset)
                offset, is_complete = response.next_offset, response.is_complete
                if response.records:
                    found = self._record(tp, response.records[0])
                    if newest is None or found.timestamp > newest.timestamp:
                        newest = found
                    break
        self._left.clear()
        if newest is not None:
            self._found.append(newest)

    async def _partitions(self) -> list[TopicPartition]:
        info = await self._client.topic(self._topic, deadline=trio.current_time() + self._timeout_s)
        count = len(info.partitions)
        if self._partition is not None:
            tp = TopicPartition(self._topic, self._partition)
            if self._partition >= count:
                raise does_not_exist(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp}")
            return [tp]
        numbers = (
            range(count) if self._all_partitions else [partition_for_key(self._search.key, count)]
        )
        return [TopicPartition(self._topic, number) for number in numbers]

    async def _page(self, tp: TopicPartition, offset: int) -> Any:
        """The response of one request. It is sent again while the error is retriable."""
        search = self._search
        body = {
            "topic": tp.topic,
            "partition_index": tp.partition,
            "key": search.key,
            "offset": offset,
            "since": search.since,
            "until": search.until,
            "newest_first": search.newest_first,
            "isolation_level": int(search.read_committed),
            "max_records": search.records_max,
        }
        deadline = trio.current_time() + self._timeout_s
        attempts = 0

        async def attempt() -> Any:
            nonlocal attempts
            attempts += 1
            if attempts > 1:
                await self._client.refresh([tp.topic])
            leader = await self._client.leader(tp, deadline=deadline)
            connection = await self._client.connection_to_broker(leader.node_id, purpose=_PURPOSE)
            if _FIND_RECORDS not in connection.versions:
                raise _not_served(connection.peer)
            response = await self._client.request(connection, _FIND_RECORDS, body)
            self.requests += 1
            if response.error_code:
                raise _error(response, tp)
            return response

        response = await self._client.retry(f"finding records in {tp}", attempt, deadline=deadline)
        self.scanned_bytes += response.scanned_bytes
        self.segments_read += response.segments_read
        self.segments_unindexed += response.segments_unindexed
        return response

    def _record(self, tp: TopicPartition, row: Any) -> FoundRecord:
        headers = tuple(
            (bytes(header.name).decode(), _bytes(header.value)) for header in row.headers
        )
        key, value = self._search.key, _bytes(row.value)
        return FoundRecord(tp.topic, tp.partition, row.offset, row.timestamp, key, value, headers)


def find(
    client: ClusterClient,
    topic: str,
    key: bytes,
    *,
    since: int | None = None,
    until: int | None = None,
    last: bool = False,
    partition: int | None = None,
    partitions: Partitions | None = None,
    read_committed: bool = False,
    timeout_s: float = 60.0,
) -> Finding:
    """The records with a key, in the order of their partition: `async for record in find(...)`.

    Only those from `since` on and before `until`, milliseconds since 1970. `last`: only the newest
    one, by its offset. By default, the partition of the key is that of Kafka's default partitioner;
    `partition` names another one, and `partitions="all"` searches each of them in turn. Then `last`
    means the largest timestamp.

    `timeout_s` bounds each request with its retries. Raises ClientError, UNSUPPORTED_VERSION if the
    broker is not one of mqd.
    """
    check_client(client)
    check_topic(topic)
    _check_key(key)
    _check_time("since", since)
    _check_time("until", until)
    check_flag("last", last)
    _check_partitions(partition, partitions)
    check_flag("read_committed", read_committed)
    check_above_zero("timeout_s", timeout_s)
    search = _Search(
        bytes(key),
        _INT64_MIN if since is None else since,
        INT64_MAX if until is None else until,
        last,
        1 if last else _RECORDS_A_REQUEST,
        read_committed,
    )
    return Finding(
        client,
        topic,
        search,
        partition,
        all_partitions=partitions is not None,
        last=last,
        timeout_s=timeout_s,
    )


async def find_as_of(
    client: ClusterClient,
    topic: str,
    key: bytes,
    time: int,
    *,
    partition: int | None = None,
    partitions: Partitions | None = None,
    read_committed: bool = False,
    timeout_s: float = 60.0,
) -> FoundRecord | None:
    """The record that had the value of a key at `time`, in milliseconds since 1970: the last one
    with this timestamp or an earlier one. None if there is none, or if it is a tombstone.

    Compaction removes what later records have replaced, and retention what is old. Other arguments
    are those of `find`.
    """
    check_whole("time", time, 0, INT64_MAX - 1)
    finding = find(
        client,
        topic,
        key,
        until=time + 1,
        last=True,
        partition=partition,
        partitions=partitions,
        read_committed=read_committed,
        timeout_s=timeout_s,
    )
    async for record in finding:
        return record if record.value is not None else None
    return None


def _bytes(view: memoryview | None) -> bytes | None:
    return None if view is None else bytes(view)


def _not_served(peer: str) -> ClientError:
    return ClientError(
        ErrorCode.UNSUPPORTED_VERSION,
        f"broker {peer} cannot look up records by key: FindRecords is an API of mqd",
        remedy="use brokers of mqd, or read the topic with a consumer and choose the records",
    )


def _error(response: Any, tp: TopicPartition) -> ClientError:
    if response.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return does_not_exist(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp}")
    return error_from_wire(response.error_code, f"partition {tp}", response.error_message)


def _check_key(key: object) -> None:
    if not isinstance(key, bytes | bytearray | memoryview):
        raise invalid_type(f"key is {shown(key)}", "give bytes, for example b'42'")


def _check_time(name: str, value: object) -> None:
    if value is not None:
        check_whole(name, value, 0, INT64_MAX)


def _check_partitions(partition: object, partitions: object) -> None:
    if partition is not None:
        check_whole("partition", partition, 0, INT32_MAX)
    if partitions is not None and partitions != "all":
        raise invalid_value(f"partitions is {shown(partitions)}", "give 'all', or leave it out")
    if partition is not None and partitions is not None:
        raise invalid_value("partition and partitions are both given", "give one of them")
