"""Records that a member of a share group has acquired, and how it acknowledges them. No await but
in the methods of `ShareRecord` that wait for the broker.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, NamedTuple, Protocol

from mqd.back_off import MILLISECONDS_MAX
from mqd.client.arguments import check_number, milliseconds
from mqd.client.errors import AcknowledgementFailed, invalid_value
from mqd.client.share_member import Place
from mqd.client.share_session import Acknowledgement, AcknowledgeType, AcquiredRows, ShareSession
from mqd.errors import ErrorCode, MqError
from mqd.protocol.batch import iterate_batches, validate
from mqd.protocol.client_records import read_records
from mqd.protocol.record_reader import INT64_MAX, Record

RELEASE_SECONDS_MAX: Final = MILLISECONDS_MAX // 1000
"""The longest delay of a release."""


class Acknowledger(Protocol):
    """The consumer, as its records see it."""

    def acknowledge(
        self, record: ShareRecord, kind: AcknowledgeType, delay_ms: int
    ) -> Acknowledgement:
        """Queue an acknowledgement."""
        ...

    def stored(self, one: Acknowledgement, session: ShareSession) -> Awaitable[None]:
        """Wait for its outcome. Raises AcknowledgementFailed."""
        ...

    def lock_ends(self, session: ShareSession) -> float:
        """When a lock that begins now ends."""
        ...


class ShareRecord:
    """One record, acquired by this member until its lock ends.

    `accept`, `release`, `reject` and `renew` return when the broker has stored it, and raise
    AcknowledgementFailed if it has not. Their `_soon` variants return at once:
    `ShareConsumer.flush` waits for all of them. Cancel-safe: a cancelled wait does not take the
    acknowledgement back.
    """

    __slots__ = (
        "_consumer",
        "_generation",
        "_session",
        "delivery_count",
        "headers",
        "is_acknowledged",
        "key",
        "lock_ends",
        "offset",
        "partition",
        "place",
        "timestamp",
        "topic",
        "value",
    )

    def __init__(
        self,
        consumer: Acknowledger,
        session: ShareSession,
        place: Place,
        topic: str,
        record: Record,
        delivery_count: int,
        lock_ends: float,
    ) -> None:
        self._consumer = consumer
        self._session = session
        self._generation = session.generation
        self.place = place
        self.topic = topic
        self.partition = place.partition
        self.offset, self.timestamp, self.key, self.value, self.headers = record
        self.delivery_count = delivery_count
        """How many times the record was delivered, with this time."""
        self.lock_ends = lock_ends
        """Trio's clock: when the lock ends, about."""
        self.is_acknowledged = False

    def __repr__(self) -> str:
        return (
            f"ShareRecord({self.topic}-{self.partition}, offset={self.offset}, "
            f"delivery_count={self.delivery_count})"
        )

    @property
    def session(self) -> ShareSession:
        return self._session

    @property
    def is_current(self) -> bool:
        """Whether the session in which it was acquired lives."""
        return self._generation == self._session.generation

    @property
    def generation(self) -> int:
        """The generation of its session in which it was acquired."""
        return self._generation

    async def accept(self) -> None:
        """The record is processed: it is never delivered again."""
        await self._consumer.stored(self.accept_soon(), self._session)

    async def release(self, delay: float | None = None) -> None:
        """Deliver the record again, to any member, after `delay` seconds; None: as the group's
        mqd.share.retry.backoff says. Apache Kafka ignores the delay. A record with too many
        deliveries is archived."""
        await self._consumer.stored(self.release_soon(delay), self._session)

    async def reject(self) -> None:
        """The record cannot be processed: archive it."""
        await self._consumer.stored(self.reject_soon(), self._session)

    async def renew(self) -> None:
        """The lock begins again (KIP-1222): processing takes longer."""
        self._check_not_acknowledged()
        one = self._consumer.acknowledge(self, AcknowledgeType.RENEW, -1)
        await self._consumer.stored(one, self._session)
        self.lock_ends = self._consumer.lock_ends(self._session)

    def accept_soon(self) -> Acknowledgement:
        """As `accept`, without a wait."""
        return self._end(AcknowledgeType.ACCEPT)

    def release_soon(self, delay: float | None = None) -> Acknowledgement:
        """As `release`, without a wait."""
        if delay is None:
            return self._end(AcknowledgeType.RELEASE)
        check_number("delay", delay, 0)
        if delay > RELEASE_SECONDS_MAX:
            allowed = f"give at most {RELEASE_SECONDS_MAX} seconds, which is about 24 days"
            raise invalid_value(f"delay is {delay}", allowed)
        return self._end(AcknowledgeType.RELEASE, milliseconds(delay))

    def reject_soon(self) -> Acknowledgement:
        """As `reject`, without a wait."""
        return self._end(AcknowledgeType.REJECT)

    def _end(self, kind: AcknowledgeType, delay_ms: int = -1) -> Acknowledgement:
        self._check_not_acknowledged()
        self.is_acknowledged = True
        return self._consumer.acknowledge(self, kind, delay_ms)

    def _check_not_acknowledged(self) -> None:
        if self.is_acknowledged:
            raise AcknowledgementFailed(
                ErrorCode.INVALID_RECORD_STATE, f"{self!r} has been acknowledged"
            )


class Decoded(NamedTuple):
    """What a response has of one partition."""

    records: list[tuple[Record, int]]
    """In order, each with its delivery count."""
    gaps: list[int]
    """Acquired offsets that have no record."""
    damaged: list[int]
    """Acquired offsets in batches that cannot be read."""
    error: MqError | None
    """The damage."""


def decode(rows: AcquiredRows) -> Decoded:
    """The acquired records of a partition."""
    found: dict[int, Record] = {}
    error: MqError | None = None
    damaged_from = INT64_MAX
    at = rows.acquired[0][0]
    try:
        for position, size, header in iterate_batches(rows.records):
            at = header.base_offset
            if header.is_control or not any(
                first <= header.last_offset and last >= at for first, last, _ in rows.acquired
            ):
                continue
            validate(rows.records, position, end=position + size)
            batch = read_records(rows.records, position, header=header)
            found.update((record.offset, record) for record in batch)
    except MqError as damage:
        error, damaged_from = damage, at
    decoded = Decoded([], [], [], error)
    for first, last, count in rows.acquired:
        for offset in range(first, last + 1):
            record = found.get(offset)
            if record is not None:
                decoded.records.append((record, count))
            else:
                (decoded.gaps if offset < damaged_from else decoded.damaged).append(offset)
    return decoded
