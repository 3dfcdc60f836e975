"""One share session of a simulated member with one broker: raw ShareFetch and ShareAcknowledge
requests on a stream of its own. Everything that it receives goes to the ledger.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import trio

from mqd.client.cluster import api
from mqd.client.errors import ClientError
from mqd.errors import ErrorCode
from mqd.protocol.batch import iterate_batches
from mqd.protocol.record_reader import Record, iterate_records
from mqd.protocol.schema import INT32_MAX
from mqd.share.values import AcknowledgeType
from mqd.testing.clients.wire import Wire
from mqd.testing.share_features import ShareFeatures
from mqd.testing.share_ledger import Hold, Place, ShareLedger
from mqd.types import TopicPartition

SHARE_FETCH, SHARE_ACKNOWLEDGE, VERSION = 78, 79, 2
FINAL_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one fetch asks for."""

    wait_ms: int
    max_records: int
    batch_size: int
    exact: bool


Chosen = Sequence[tuple[Hold, AcknowledgeType]]
"""Acknowledgements of one partition, in the order of their offsets."""


class Session:
    """The session. Raises OSError, TooSlowError or ProtocolError when the connection ends, and
    ClientError when the broker refuses a request: then the session has ended.
    """

    def __init__(
        self,
        wire: Wire,
        ledger: ShareLedger,
        *,
        group: str,
        member: str,
        member_id: str,
        places: Mapping[TopicPartition, Any],
        term: Callable[[TopicPartition], Hashable],
        lock_seconds: float,
        wall_between: Callable[[float, float], tuple[int, int]],
        features: ShareFeatures,
    ) -> None:
        """`places`: partition -> topic id, all led by the broker. `term(partition)`: the present
        term of this broker (probes/shares.py). `wall_between(since, until)`: the earliest and the
        latest wall time of this broker."""
        self._wire = wire
        self._ledger = ledger
        self._group = group
        self._member = member
        self._member_id = member_id
        self._places = places
        self._term = term
        self._lock_seconds = lock_seconds
        self._wall_between = wall_between
        self._features = features
        self._epoch = 0
        self._until: dict[Hold, float] = {}
        """The ends of the locks before the acknowledgements in flight."""
        self._last_response = trio.current_time()
        self.held: dict[TopicPartition, list[Hold]] = {}
        """Records that were acquired, and with no acknowledgement chosen yet."""
        self._holds: list[Hold] = []
        """All records that were acquired."""
        self.is_refused = False
        """Whether the broker no longer leads a partition."""

    async def fetch(self, wanted: Wanted, chosen: Mapping[TopicPartition, Chosen]) -> int:
        """Acknowledge, and acquire unless it renews locks. Returns the number of records that it
        has acquired."""
        body = self._body(chosen, self._epoch)
        acquires = not body["is_renew_ack"]
        body |= {
            "max_wait_ms": wanted.wait_ms if acquires else 0,
            "min_bytes": 1 if acquires else 0,
            "max_bytes": INT32_MAX if acquires else 0,
            "max_records": wanted.max_records if acquires else 0,
            "batch_size": wanted.batch_size,
            "share_acquire_mode": int(wanted.exact),
            "forgotten_topics_data": [],
        }
        response, sent, terms = await self._send(SHARE_FETCH, body, chosen)
        now, count = trio.current_time(), 0
        for partition, row in self._rows(response):
            self._confirm(partition, chosen, row.acknowledge_error_code, sent, terms, now)
            self.is_refused |= bool(row.error_code)
            if row.acquired_records:
                count += self._acquired(partition, row, sent, terms[partition], now)
        return count

    async def acknowledge(
        self, chosen: Mapping[TopicPartition, Chosen], *, closes: bool = False
    ) -> None:
        """Acknowledge in a request of its own, which may also close the session."""
        body = self._body(chosen, FINAL_EPOCH if closes else self._epoch)
        response, sent, terms = await self._send(SHARE_ACKNOWLEDGE, body, chosen)
        if closes:
            self._ledger.session_ended(self._holds, sent)
        now = trio.current_time()
        for partition, row in self._rows(response):
            self._confirm(partition, chosen, row.error_code, sent, terms, now)

    async def intrude(self, chance: random.Random) -> None:
        """Accept a record that another member holds. Its own acknowledgement must succeed."""
        foreign = [
            (partition, offset)
            for partition in self._places
            for offset in self._ledger.held_by_others(
                Place(self._group, partition), self._member, trio.current_time()
            )
        ]
        if not foreign:
            return
        place, offset = chance.choice(foreign)
        body = self._body({}, self._epoch)
        for (partition, _), topic in zip(self._places.items(), body["topics"], strict=True):
            if partition == place:
                topic["partitions"][0]["acknowledgement_batches"] = [
                    {
                        "first_offset": offset,
                        "last_offset": offset,
                        "acknowledge_types": [int(AcknowledgeType.ACCEPT)],
                    }
                ]
        await self._send(SHARE_ACKNOWLEDGE, body, {})

    def ended(self) -> None:
        """The session is not used any more."""
        self._ledger.session_ended(self._holds, self._last_response)

    # -- internals

    def _body(self, chosen: Mapping[TopicPartition, Chosen], epoch: int) -> dict[str, Any]:
        renews = any(kind is AcknowledgeType.RENEW for rows in chosen.values() for _, kind in rows)
        return {
            "group_id": self._group,
            "member_id": self._member_id,
            "share_session_epoch": epoch,
            "is_renew_ack": renews,
            "topics": [
                {
                    "topic_id": topic_id,
                    "partitions": [
                        {
                            "partition_index": partition.partition,
                            "acknowledgement_batches": _batches(chosen.get(partition, ())),
                        }
                    ],
                }
                for partition, topic_id in self._places.items()
            ],
        }

    async def _send(
        self, key: int, body: dict[str, Any], chosen: Mapping[TopicPartition, Chosen]
    ) -> tuple[Any, float, dict[TopicPartition, Hashable]]:
        """The response, when the request was sent, and the terms at that time."""
        sent = trio.current_time()
        terms = {partition: self._term(partition) for partition in self._places}
        self._until = {hold: hold.until for rows in chosen.values() for hold, _ in rows}
        for rows in chosen.values():
            for hold, kind in rows:
                self._ledger.acknowledging(hold, kind, sent)
        try:
            await self._wire.send(api(key), VERSION, body)
            response = await self._wire.receive()
        except BaseException:
            if key == SHARE_FETCH:
                self._ledger.response_lost([Place(self._group, one) for one in self._places])
            raise
        if response.error_code:
            raise ClientError(ErrorCode(response.error_code), "share session")
        self._last_response = sent
        self._epoch += 1
        return response, sent, terms

    def _rows(self, response: Any) -> list[tuple[TopicPartition, Any]]:
        by_id = {(topic_id, place.partition): place for place, topic_id in self._places.items()}
        return [
            (by_id[topic.topic_id, row.partition_index], row)
            for topic in response.responses
            for row in topic.partitions
        ]

    def _confirm(
        self,
        partition: TopicPartition,
        chosen: Mapping[TopicPartition, Chosen],
        code: int,
        sent: float,
        terms: Mapping[TopicPartition, Hashable],
        now: float,
    ) -> None:
        rows = chosen.get(partition, ())
        if not rows:
            return
        if code == ErrorCode.NONE:
            for hold, kind in rows:
                self._ledger.acknowledged(
                    hold,
                    kind,
                    sent=sent,
                    now=now,
                    until=self._until[hold],
                    lock_seconds=self._lock_seconds,
                    wall_ms=self._wall_between(sent, now)[0],
                )
        elif code == ErrorCode.INVALID_RECORD_STATE:
            term = terms[partition] if terms[partition] == self._term(partition) else None
            holds = [(hold, self._until[hold]) for hold, _ in rows]
            self._ledger.refused_state(Place(self._group, partition), holds, term, now)
        else:
            self.is_refused = True

    def _acquired(
        self, partition: TopicPartition, row: Any, sent: float, term: Hashable, now: float
    ) -> int:
        records: dict[int, Record] = {}
        view = memoryview(row.records)
        for start, _, header in iterate_batches(view):
            if not header.is_control:
                for record in iterate_records(view, start, header=header):
                    records[record.offset] = record
        if term != self._term(partition):
            term = None
        again = {
            offset
            for one in row.acquired_records
            for offset in range(one.first_offset, one.last_offset + 1)
        }
        # A lock that has ended is replaced by that of the new delivery to the same member.
        held = [hold for hold in self.held.get(partition, ()) if hold.offset not in again]
        self.held[partition] = held
        count, wall_ms = 0, self._wall_between(sent, now)
        for one in row.acquired_records:
            for offset in range(one.first_offset, one.last_offset + 1):
                found = records.get(offset)
                hold = Hold(
                    self._member,
                    offset,
                    None if found is None else found.key,
                    None if found is None else found.value or b"",
                    one.delivery_count,
                    term,
                    sent,
                    now,
                    sent + self._lock_seconds,
                    wall_ms,
                    None if found is None else self._features.expires_ms(found),
                )
                self._ledger.delivered(Place(self._group, partition), hold)
                held.append(hold)
                self._holds.append(hold)
                count += 1
        return count


def _batches(chosen: Chosen) -> list[dict[str, Any]]:
    """Runs of neighbours with one delay, each with one acknowledge type for each record."""
    ordered = sorted(chosen, key=lambda row: row[0].offset)
    runs = groupby(
        enumerate(ordered), key=lambda row: (row[1][0].offset - row[0], row[1][0].named_delay_ms)
    )
    found = []
    for (_, delay_ms), run in runs:
        rows = [row for _, row in run]
        found.append(
            {
                "first_offset": rows[0][0].offset,
                "last_offset": rows[-1][0].offset,
                "acknowledge_types": [int(kind) for _, kind in rows],
                "retry_delay_ms": delay_ms,
            }
        )
    return found
