"""A share session (KIP-932): what a member of a share group fetches from one broker, and what it
acknowledges there. Pure.

One request at a time: each has the next session epoch. Acknowledgements wait for the next request
and go with it, many at once. A session that the broker has lost, or whose connection broke, begins
again with epoch 0, and its broker gives the records to others: what was acquired is void.

Invariants: a request names each offset of a partition once, in order. An acknowledgement has one
outcome. After `lost`, acknowledgements of records acquired before are refused here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple
from uuid import UUID

from mqd.client.backoff import backoff_s
from mqd.client.errors import AcknowledgementFailed, ClientError, as_client_error, error_from_wire
from mqd.client.group_member import FOREVER, RetryTimer
from mqd.client.share_member import Place
from mqd.errors import ErrorCode, MqError

SHARE_FETCH, SHARE_ACKNOWLEDGE = 78, 79
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
_EPOCH_MAX: Final = 2**31 - 1
_SENT_AT_ONCE = 2_000
"""Acknowledgements of one partition in one request."""
DUE_COUNT = 500
"""So many acknowledgements are sent without waiting for more."""
_FOR_THE_USER = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Errors of a partition that refreshed metadata do not repair."""


class AcknowledgeType(IntEnum):
    """Numbers in requests."""

    GAP = 0
    """There is no record with this offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Acknowledgement:
    """What happens to one record, and the outcome."""

    __slots__ = ("delay_ms", "error", "is_done", "kind", "offset", "on_done", "place")

    def __init__(
        self, place: Place, offset: int, kind: AcknowledgeType, delay_ms: int = -1
    ) -> None:
        self.place = place
        self.offset = offset
        self.kind = kind
        self.delay_ms = delay_ms
        """For a release; -1: as the group's configuration says."""
        self.is_done = False
        self.error: AcknowledgementFailed | None = None
        self.on_done: Callable[[], None] | None = None
        """Set by a caller that waits for the outcome."""

    def done(self, error: AcknowledgementFailed | None) -> None:
        assert not self.is_done
        self.is_done, self.error = True, error
        if self.on_done is not None:
            self.on_done()


_Group = dict[int, Acknowledgement]
"""Acknowledgements of one partition, by offset."""


class Request(NamedTuple):
    """A request to the broker of the session."""

    key: int
    body: dict[str, Any]


class FetchOptions(NamedTuple):
    """What a fetch may acquire, and how long it may wait."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    record_limit: bool


class AcquiredRows(NamedTuple):
    """The row of a partition that has records: their bytes, and (first offset, last offset,
    delivery count) of those acquired."""

    place: Place
    records: memoryview
    acquired: list[tuple[int, int, int]]


@dataclass(slots=True)
class Outcome:
    """What a response means beyond the session."""

    acquired: list[AcquiredRows] = field(default_factory=list)
    moved: list[Place] = field(default_factory=list)
    """Partitions that have another leader, or none: refresh the metadata."""
    failures: list[ClientError] = field(default_factory=list)
    """Errors for the user."""
    failed: list[Acknowledgement] = field(default_factory=list)
    """Acknowledgements that failed."""


@dataclass(slots=True)
class _Refused:
    """A partition that the broker refused to serve."""

    retry_at: float
    failures: int = 1


class ShareSession:
    """The session with one broker. See the head of this file."""

    def __init__(self, node_id: int, group_id: str, member_id: str) -> None:
        self.node_id = node_id
        self.generation = 0
        """How often the session was lost."""
        self.acquired_count = 0
        """Records that are acquired and not acknowledged, as far as this side knows."""
        self._acquired_until = 0.0
        """When the last lock ends, about."""
        self.lock_s = FOREVER
        """How long a record stays acquired, of the last response."""
        self.is_busy = False
        """A request is in flight."""
        self.waits = False
        """The request in flight may wait at the broker until there is a record."""
        self.retry = RetryTimer()
        self.found_nothing = False
        """The last fetch, which did not wait, acquired nothing."""
        self.is_urgent = False
        """A caller waits for acknowledgements: send them at once."""
        self._identity = {"group_id": group_id, "member_id": member_id}
        self._group_id = group_id
        self._epoch = INITIAL_EPOCH
        self._wanted: frozenset[Place] = frozenset()
        self._in_session: frozenset[Place] = frozenset()
        self._refused: dict[Place, _Refused] = {}
        self._waiting: dict[Place, deque[_Group]] = {}
        """Groups of acknowledgements: a request has at most one of each partition."""
        self.waiting_count = 0
        self._oldest_at = FOREVER
        self._sent: dict[Place, list[Acknowledgement]] = {}

    # -- what is wanted

    def want(self, places: Iterable[Place]) -> None:
        """Fetch from these partitions, and no others."""
        self._wanted = frozenset(places)
        self._refused = {key: one for key, one in self._refused.items() if key in self._wanted}

    @property
    def has_acknowledgements(self) -> bool:
        """Whether acknowledgements wait, or are in flight."""
        return bool(self.waiting_count or self._sent)

    @property
    def is_unused(self) -> bool:
        """Nothing is wanted, acquired or waiting."""
        return not (
            self._wanted or self.acquired_count or self.has_acknowledgements or self.is_busy
        )

    def holds_records(self, now: float) -> bool:
        """Whether records are acquired and not acknowledged."""
        return self.acquired_count > 0 and now < self._acquired_until

    @property
    def is_open(self) -> bool:
        """Whether the broker may have the session."""
        return self._epoch != INITIAL_EPOCH

    def acknowledge(self, one: Acknowledgement, generation: int, now: float) -> bool:
        """Send it with a later request. Returns False, and fails it, if the session in which the
        record was acquired is lost."""
        if generation != self.generation:
            one.done(
                AcknowledgementFailed(
                    ErrorCode.SHARE_SESSION_NOT_FOUND,
                    f"the record at offset {one.offset} is not acquired any more:"
                    f" the share session with broker {self.node_id} ended",
                )
            )
            return False
        if one.kind is not AcknowledgeType.RENEW:
            self.acquired_count -= 1
        groups = self._waiting.setdefault(one.place, deque())
        last = groups[-1] if groups else None
        if last is None or len(last) >= _SENT_AT_ONCE or one.offset in last:
            groups.append({one.offset: one})
        else:
            last[one.offset] = one
        if not self.waiting_count:
            self._oldest_at = now
        self.waiting_count += 1
        return True

    # -- requests

    def next_request(
        self, now: float, *, fetch: FetchOptions | None, linger_s: float
    ) -> Request | None:
        """The request to send now; None if there is nothing to send. `fetch`: records are
        wanted."""
        if self.is_busy or now < self.retry.retry_at:
            return None
        wanted = self._fetchable(now)
        waits = fetch is not None and fetch.max_wait_ms > 0
        due = self.waiting_count and (
            self.is_urgent or self.waiting_count >= DUE_COUNT or now >= self._oldest_at + linger_s
        )
        renews = (
            any(
                one.kind is AcknowledgeType.RENEW
                for groups in self._waiting.values()
                for one in groups[0].values()
            )
            if due
            else False
        )
        # An acknowledgement that a caller waits for does not wait with a fetch. A request that
        # renews locks acquires nothing (KIP-1222).
        if due and (not (fetch and wanted) or renews or (self.is_urgent and waits)):
            return self._acknowledge_request(renews=renews)
        if fetch is not None and wanted:
            return self._fetch_request(fetch, wanted)
        if self.is_open and not wanted and not self._wanted and not self.acquired_count:
            return None if self.waiting_count else self.final_request()
        return None

    def next_deadline(self, now: float, linger_s: float) -> float:
        """When `next_request` may return another request without a change."""
        if self.is_busy:
            return FOREVER
        due = [one.retry_at for one in self._refused.values()]
        if self.waiting_count:
            due.append(self._oldest_at + linger_s)
        return max(min(due, default=FOREVER), self.retry.retry_at)

    def _fetchable(self, now: float) -> frozenset[Place]:
        return frozenset(
            place
            for place in self._wanted
            if place not in self._refused or self._refused[place].retry_at <= now
        )

    def _fetch_request(self, fetch: FetchOptions, wanted: frozenset[Place]) -> Request:
        acknowledged = self._take() if self.is_open else {}
        named = (wanted - self._in_session) | set(acknowledged)
        forgotten = (self._in_session | set(acknowledged)) - wanted
        body = self._begin() | {
            "max_wait_ms": fetch.max_wait_ms,
            "min_bytes": fetch.min_bytes,
            "max_bytes": fetch.max_bytes,
            "max_records": fetch.max_records,
            "batch_size": fetch.max_records,
            "share_acquire_mode": int(fetch.record_limit),
            "topics": _topics(named, acknowledged),
            "forgotten_topics_data": _by_topic((place, place.partition) for place in forgotten),
        }
        self._in_session = wanted
        self.waits = fetch.max_wait_ms > 0
        return Request(SHARE_FETCH, body)

    def _acknowledge_request(self, *, renews: bool) -> Request:
        acknowledged = self._take()
        body = self._begin() | {
            "is_renew_ack": renews,
            "topics": _topics(acknowledged, acknowledged),
        }
        return Request(SHARE_ACKNOWLEDGE, body)

    def final_request(self) -> Request:
        """Acknowledge what waits, and close the session: the broker releases all other records."""
        acknowledged = self._take()
        body = self._begin() | {
            "share_session_epoch": FINAL_EPOCH,
            "is_renew_ack": False,
            "topics": _topics(acknowledged, acknowledged),
        }
        return Request(SHARE_ACKNOWLEDGE, body)

    def _begin(self) -> dict[str, Any]:
        epoch = self._epoch
        self._epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        self.is_busy, self.waits = True, False
        return self._identity | {"share_session_epoch": epoch}

    def _take(self) -> dict[Place, list[Acknowledgement]]:
        """The next group of each partition, in the order of offsets: in flight from now on."""
        taken = {}
        for place, groups in list(self._waiting.items()):
            group = [one for _, one in sorted(groups.popleft().items())]
            taken[place] = group
            self.waiting_count -= len(group)
            if not groups:
                del self._waiting[place]
        if not self.waiting_count:
            self._oldest_at, self.is_urgent = FOREVER, False
        for place, group in taken.items():
            self._sent[place] = group
        return taken

    # -- responses

    def on_response(self, request: Request, response: Any, now: float, draw: float) -> Outcome:
        """Process the response to a request."""
        self.is_busy = False
        code = response.error_code
        if code:
            subject = f"share group {self._group_id!r}"
            return self.lost(error_from_wire(code, subject, response.error_message), now, draw)
        self.retry.succeed()
        if response.get("acquisition_lock_timeout_ms"):
            self.lock_s = response.acquisition_lock_timeout_ms / 1000
        outcome = Outcome()
        sent, self._sent = self._sent, {}
        if request.body["share_session_epoch"] == FINAL_EPOCH:
            assert not self.waiting_count
            self._end_session()
        is_fetch = request.key == SHARE_FETCH
        for topic in response.responses:
            for row in topic.partitions:
                place = Place(topic.topic_id, row.partition_index)
                if is_fetch:
                    self._on_fetched(outcome, place, row, now, draw)
                if place in sent:
                    error_code = row.acknowledge_error_code if is_fetch else row.error_code
                    message = row.acknowledge_error_message if is_fetch else row.error_message
                    self._on_acknowledged(outcome, sent.pop(place), error_code, message, now)
        for group in sent.values():
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            self._on_acknowledged(outcome, group, code, "the response has no outcome", now)
        if is_fetch:
            self.found_nothing = not outcome.acquired and not request.body["max_wait_ms"]
        return outcome

    def _on_fetched(
        self, outcome: Outcome, place: Place, row: Any, now: float, draw: float
    ) -> None:
        if row.error_code:
            error = error_from_wire(row.error_code, "a share partition", row.error_message)
            if error.code in _FOR_THE_USER:
                outcome.failures.append(error)
            else:
                outcome.moved.append(place)
            failures = self._refused[place].failures + 1 if place in self._refused else 1
            self._refused[place] = _Refused(now + backoff_s(failures, draw), failures)
            return
        self._refused.pop(place, None)
        acquired = [
            (one.first_offset, one.last_offset, one.delivery_count) for one in row.acquired_records
        ]
        if acquired:
            self.acquired_count += sum(last - first + 1 for first, last, _ in acquired)
            self._acquired_until = now + self.lock_s
            outcome.acquired.append(AcquiredRows(place, memoryview(row.records or b""), acquired))

    def _on_acknowledged(
        self,
        outcome: Outcome,
        group: list[Acknowledgement],
        code: int,
        message: str | None,
        now: float,
    ) -> None:
        if not code:
            for one in group:
                one.done(None)
        elif code == ErrorCode.INVALID_RECORD_STATE and len(group) > 1:
            # One record that is not acquired any more refuses all, and nothing has changed.
            # Halves find it.
            middle = len(group) // 2
            groups = self._waiting.setdefault(group[0].place, deque())
            for half in (group[middle:], group[:middle]):
                groups.appendleft({one.offset: one for one in half})
            self.waiting_count += len(group)
            self._oldest_at, self.is_urgent = now, True
        else:
            self._fail(outcome, group, error_from_wire(code, "the acknowledgement", message))

    def lost(self, error: MqError, now: float, draw: float) -> Outcome:
        """No response, or one that ends the session: nothing is acquired any more."""
        found = as_client_error(error)
        outcome = Outcome()
        self.is_busy = False
        self.retry.fail(now, draw)
        groups = [*self._sent.values()]
        for waiting in self._waiting.values():
            groups.extend(list(group.values()) for group in waiting)
        self._end_session()
        for group in groups:
            self._fail(outcome, group, found)
        if not (found.retriable or found.code in _SESSION_ERRORS):
            outcome.failures.append(found)
        return outcome

    def _end_session(self) -> None:
        self.generation += 1
        self._epoch = INITIAL_EPOCH
        self.acquired_count = 0
        self._in_session = frozenset()
        self._sent, self._waiting, self.waiting_count = {}, {}, 0
        self._oldest_at, self.is_urgent = FOREVER, False

    def _fail(self, outcome: Outcome, group: list[Acknowledgement], error: ClientError) -> None:
        for one in group:
            failed = AcknowledgementFailed(error.code, f"offset {one.offset}: {error.message}")
            one.done(failed)
            outcome.failed.append(one)


_SESSION_ERRORS = frozenset(
    {
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)
"""Errors after which another session is opened."""


def _topics(
    places: Iterable[Place], acknowledged: dict[Place, list[Acknowledgement]]
) -> list[dict[str, Any]]:
    return _by_topic(
        (
            place,
            {
                "partition_index": place.partition,
                "acknowledgement_batches": _batches(acknowledged.get(place, [])),
            },
        )
        for place in sorted(places)
    )


def _by_topic(rows: Iterable[tuple[Place, Any]]) -> list[dict[str, Any]]:
    found: dict[UUID, list[Any]] = {}
    for place, row in rows:
        found.setdefault(place.topic_id, []).append(row)
    return [{"topic_id": topic_id, "partitions": of_topic} for topic_id, of_topic in found.items()]


def _batches(group: list[Acknowledgement]) -> list[dict[str, Any]]:
    """Neighbours with the same type and delay are one row."""
    rows: list[dict[str, Any]] = []
    last: Acknowledgement | None = None
    for one in group:
        if (
            last is not None
            and one.offset == last.offset + 1
            and one.kind is last.kind
            and one.delay_ms == last.delay_ms
        ):
            rows[-1]["last_offset"] = one.offset
        else:
            row = {
                "first_offset": one.offset,
                "last_offset": one.offset,
                "acknowledge_types": [int(one.kind)],
            }
            if one.delay_ms >= 0:
                row["retry_delay_ms"] = one.delay_ms
            rows.append(row)
        last = one
    return rows
