"""Checks the guarantees of share groups (KIP-932) by what their members sent and received.

A core: no client. A member records each record that it acquires as a `Hold`: a claim that it has
the acquisition lock from the response on until the lock may have ended. The end is the earliest of
these: the lock duration after the request, the member's own acknowledgement, and the last response
of its session. Each hold has a term: one leader in one leader epoch, without a loss of contact in
between. A new term begins with the stored states, so an acquisition lock does not survive it.

Promises: within a term, two members never hold one record at a time, and a lock that has not ended
is not lost. After a response has confirmed that a record is accepted or rejected, the record is
never delivered again. Delivery counts never go back and never exceed the limit of the group. Every
record ends accepted, rejected, expired, or delivered as often as the limit allows. In a group with
`share.key.affinity`, a record is delivered after all earlier ones of its key are done. A record
that was released with a delay is not delivered before its time, and no record after it has expired.
Both are wall times of nodes, whose clocks may be wrong and jump.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mqd.share.values import AcknowledgeType
from mqd.testing.checker import SHOWN_MAX, Anomaly
from mqd.types import TopicPartition

MEANINGS = {
    "two-locks": "two members held the acquisition lock of a record at the same time",
    "lock-lost": "a member could not acknowledge a record although its lock had not ended",
    "delivered-again": "a record was delivered after it was accepted or rejected",
    "count-back": "the delivery count of a record went back",
    "count-beyond-limit": "a record was delivered more often than the group allows",
    "start-back": "the start offset of a share partition went back",
    "record-lost": "the share group is beyond a record that nobody accepted or rejected",
    "early": "a released record was delivered before the end of its delay",
    "expired": "a record was delivered after it had expired",
    "key-order": "a record was delivered before an earlier one of its key was done",
    "other-record": "a member received another record than the log has",
}
FINAL = (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT)
"""The acknowledge types after which a record is never delivered again."""


class Place(NamedTuple):
    """A share partition."""

    group: str
    partition: TopicPartition


@dataclass(slots=True, eq=False)
class Hold:
    """One delivery of one record to one member. Times are virtual seconds."""

    member: str
    offset: int
    key: bytes | None
    value: bytes | None
    count: int
    """The delivery count in the response."""
    term: Hashable
    """None if another term may have begun between the request and the response."""
    sent: float
    """When the request was sent that acquired the record."""
    received: float
    until: float
    """The lock lasts at least so long."""
    wall_ms: tuple[int, int] = (0, 0)
    """The earliest and the latest wall time of the leader between the request and the response."""
    expires_ms: int | None = None
    """The wall time at which the record expires."""
    named_delay_ms: int = -1
    """The delay that its release names; -1: none."""
    delay_ms: int = 0
    """The delay of its release, named or by the back-off of the group."""
    due_ms: int = 0
    """If the release is confirmed: the earliest wall time of the next delivery."""
    released: float = math.inf
    """When the confirmed release was sent."""
    sent_kind: AcknowledgeType | None = None
    """The last acknowledgement that the member has sent, without renewals."""
    confirmed: float = math.inf
    """When a response confirmed the acknowledgement."""
    was_locked: bool = False
    """Whether the lock had certainly not ended before the confirmation. Otherwise another
    member may have finished the record: leaders ignore records before the start offset."""

    def ends_at(self, at: float) -> None:
        """The lock may end at this time."""
        self.until = min(self.until, at)


@dataclass(slots=True)
class _Deliveries:
    holds: dict[int, list[Hold]] = field(default_factory=dict)
    """Offset -> its deliveries."""
    lost_responses: int = 0
    """Responses that members did not receive: they may have acquired records."""
    start_offset: int = 0
    start_received: float = -math.inf


class ShareLedger:
    """The share groups of one run."""

    def __init__(self, latest_wall_ms: Callable[[float, float], int] = lambda *_: 0) -> None:
        """`latest_wall_ms(since, until)`: the latest wall time that any node had between two
        virtual times.
        """
        self._latest_wall_ms = latest_wall_ms
        self.ordered: frozenset[str] = frozenset()
        """The groups with `share.key.affinity`."""
        self.limit = 5
        """`share.delivery.count.limit` of all groups."""
        self.deliveries = self.confirmed = self.redeliveries = self.refused = self.renewed = 0
        self._places: dict[Place, _Deliveries] = {}
        self.delayed = 0
        self._found: dict[tuple[str, TopicPartition], list[str]] = {}

    def holds(self, place: Place, offset: int) -> Sequence[Hold]:
        """The deliveries of a record."""
        return self._of(place).holds.get(offset, ())

    def held_by_others(self, place: Place, member: str, now: float) -> list[int]:
        """Records that other members hold and have not acknowledged."""
        return [
            offset
            for offset, holds in self._of(place).holds.items()
            if holds[-1].member != member and holds[-1].until > now and not holds[-1].sent_kind
        ]

    def lost_responses(self, place: Place) -> int:
        return self._of(place).lost_responses

    # -- events of members

    def delivered(self, place: Place, hold: Hold) -> None:
        self.deliveries += 1
        self.redeliveries += hold.count > 1
        found = self._of(place)
        found.holds.setdefault(hold.offset, []).append(hold)
        if not 1 <= hold.count <= self.limit:
            self._note("count-beyond-limit", place, f"{hold.offset}: {hold.count}, {hold.member}")
        if hold.expires_ms is not None and hold.expires_ms <= hold.wall_ms[0]:
            text = f"{hold.offset}: at {hold.expires_ms} ms, the leader had {hold.wall_ms[0]}"
            self._note("expired", place, text)

    def acknowledging(self, hold: Hold, kind: AcknowledgeType, now: float) -> None:
        """A member is about to send an acknowledgement."""
        if kind is not AcknowledgeType.RENEW:
            hold.sent_kind = kind
            hold.ends_at(now)

    def acknowledged(
        self,
        hold: Hold,
        kind: AcknowledgeType,
        *,
        sent: float,
        now: float,
        until: float,
        lock_seconds: float,
        wall_ms: int = 0,
    ) -> None:
        """A response has confirmed an acknowledgement that was sent at `sent`. `until`: the end of
        the lock before that. `wall_ms`: the earliest wall time of the leader since then."""
        if kind is AcknowledgeType.RENEW:
            self.renewed += 1
            if now < until:  # otherwise another member may have finished the record
                hold.until = max(hold.until, sent + lock_seconds)
        else:
            self.confirmed += 1
            hold.confirmed, hold.was_locked = now, now < until
            if kind is AcknowledgeType.RELEASE and hold.delay_ms:
                self.delayed += 1
                hold.released, hold.due_ms = sent, wall_ms + hold.delay_ms

    def refused_state(
        self, place: Place, holds: Sequence[tuple[Hold, float]], term: Hashable, now: float
    ) -> None:
        """A leader refused an acknowledgement of these records with INVALID_RECORD_STATE: at least
        one lock must have ended. Each hold has the end of its lock before the acknowledgement.
        """
        self.refused += 1
        if term is not None and all(one.term == term and until > now for one, until in holds):
            shown = ", ".join(str(one.offset) for one, _ in holds[:5])
            self._note("lock-lost", place, f"{shown}: {holds[0][0].member} at {now:.3f}")

    def session_ended(self, holds: Sequence[Hold], at: float) -> None:
        """The session may have ended at any time after `at`."""
        for hold in holds:
            hold.ends_at(at)

    def response_lost(self, places: Sequence[Place]) -> None:
        """A member got no response to a fetch from these partitions."""
        for place in places:
            self._of(place).lost_responses += 1

    def start_offset(self, place: Place, offset: int, *, sent: float, now: float) -> None:
        """The coordinator returned this start offset to a request that was sent at `sent`."""
        found = self._of(place)
        if sent >= found.start_received and offset < found.start_offset:
            self._note("start-back", place, f"from {found.start_offset} to {offset}")
        if offset > found.start_offset:
            found.start_offset, found.start_received = offset, now

    def _of(self, place: Place) -> _Deliveries:
        return self._places.setdefault(place, _Deliveries())

    def _note(self, kind: str, place: Place, example: str) -> None:
        rows = self._found.setdefault((kind, place.partition), [])
        rows.append(f"{place.group}: {example}")

    # -- the check

    def check(
        self,
        groups: Sequence[str],
        final: Mapping[TopicPartition, Sequence[tuple[int, bytes]]],
        expired: Mapping[TopicPartition, Collection[int]] | None = None,
    ) -> list[Anomaly]:
        """Returns every anomaly. `final`: (offset, value) of all records of each partition that the
        groups read; their start offsets are behind all of these. `expired`: the records that may
        have expired.
        """
        for place, found in self._places.items():
            values = dict(final.get(place.partition, ()))
            for offset, holds in found.holds.items():
                self._check_record(place, holds)
                for hold in holds:
                    if hold.value is not None and values.get(offset) != hold.value:
                        self._note("other-record", place, f"{offset}: {hold.value!r}")
            if place.group in self.ordered:
                self._check_order(place, found)
        for group in groups:
            for partition, log in final.items():
                place = Place(group, partition)
                found, gone = self._of(place), (expired or {}).get(partition, ())
                for offset, _ in log:
                    if offset not in gone and not self._is_done(found, offset):
                        self._note("record-lost", place, str(offset))
        return [
            Anomaly(kind, partition, len(rows), tuple(rows[:SHOWN_MAX]), MEANINGS[kind])
            for (kind, partition), rows in sorted(self._found.items())
        ]

    def _check_order(self, place: Place, found: _Deliveries) -> None:
        """Records of one key are delivered one at a time, in their order, also if some of them are
        delivered again."""
        by_key: dict[bytes, list[Hold]] = {}
        for holds in found.holds.values():
            for hold in holds:
                if hold.key is not None:
                    by_key.setdefault(hold.key, []).append(hold)
        for holds in by_key.values():
            holds.sort(key=lambda one: one.received)
            for index, one in enumerate(holds):
                for later in holds[index + 1 :]:
                    both = one.term is not None and one.term == later.term
                    both &= later.received < min(one.until, later.until)
                    back = later.offset < one.offset and later.sent >= one.received
                    if later.offset != one.offset and (both or back):
                        self._note(
                            "key-order",
                            place,
                            f"{one.key!r}: {one.offset} at {one.received:.3f} until "
                            f"{one.until:.3f}, {later.offset} at {later.received:.3f}",
                        )

    def _is_done(self, found: _Deliveries, offset: int) -> bool:
        holds = found.holds.get(offset, ())
        if any(one.sent_kind in FINAL for one in holds):
            return True
        seen = max((one.count for one in holds), default=0)
        return seen + found.lost_responses >= self.limit

    def _check_record(self, place: Place, holds: list[Hold]) -> None:
        for index, one in enumerate(holds):
            for other in holds[index + 1 :]:
                self._check_pair(place, one, other)
                self._check_pair(place, other, one)

    def _check_pair(self, place: Place, one: Hold, later: Hold) -> None:
        """Two deliveries of one record. Nothing to check unless `later` is certainly the later
        one, except that both hold it at the same time.
        """
        text = (
            f"{one.offset}: {one.member} from {one.received:.3f} to {one.until:.3f}, count "
            f"{one.count}; {later.member} from {later.received:.3f}, count {later.count}"
        )
        same_term = one.term is not None and one.term == later.term
        if (
            same_term
            and one.received <= later.received < one.until
            and later.received < later.until
        ):
            self._note("two-locks", place, text)
        is_later = later.sent >= one.received
        is_final = one.sent_kind in FINAL and one.confirmed < math.inf
        is_after = later.sent >= one.confirmed or (
            same_term and one.was_locked and later.count > one.count
        )
        if is_final and is_after:
            self._note("delivered-again", place, f"{text}; confirmed at {one.confirmed:.3f}")
        if is_later and same_term and later.count < one.count:
            self._note("count-back", place, text)
        if (
            one.sent_kind is AcknowledgeType.RELEASE
            and later.sent >= one.confirmed
            and later.count <= one.count
        ):
            self._note("count-back", place, f"{text}; released at {one.confirmed:.3f}")
        if later.sent >= one.confirmed and one.due_ms:
            latest = self._latest_wall_ms(one.released, later.received)
            if latest < one.due_ms:
                self._note("early", place, f"{text}; due at {one.due_ms} ms, it was {latest}")
