"""Compares the responses to clients with the final logs of the cluster.

Clients record their history while they run. Each send begins as *pending* and ends as *ok*
(acknowledged at an offset), *fail* (rejected: certainly not stored) or *info* (unknown outcome). An
outcome is unknown after a timeout, a broken connection, NOT_LEADER_OR_FOLLOWER,
NOT_ENOUGH_REPLICAS_AFTER_APPEND or REQUEST_TIMED_OUT (KAFKA-13574). A send that is pending at the
end counts as info. Each poll records the returned records and offsets. Values are unique, so a
value identifies its send.

`History.check(final)` compares both with the final log of each partition, which is read from its
beginning after all faults. The anomalies are those of Jepsen's Kafka workload that apply without
transactions, and also wrong acknowledged offsets, gaps, and decreasing high watermarks. A core: no
client, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from mqd.types import NO_OFFSET, TopicPartition

SHOWN_MAX = 5
"""The maximum number of examples of an anomaly."""


class Outcome(Enum):
    """The outcome of a send, as far as the producer knows it."""

    PENDING = "pending"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Promise(Enum):
    """The guarantee of an acknowledged send."""

    ALL = "acks=all"
    """The record is never lost, and is at the acknowledged offset."""
    ORDER = "acks=1 or 0"
    """The record may be lost; otherwise it is in the log once and in order."""


@dataclass(slots=True, eq=False)
class Send:
    """One sent record. `session`: the part of a producer's sends whose order is guaranteed. With
    idempotence this is the life of the producer: a record is after those that were acknowledged
    before its send, unless its outcome is unknown. Without idempotence it is one connection, on
    which no record is sent twice.
    """

    session: str
    partition: TopicPartition
    value: bytes
    promise: Promise
    outcome: Outcome = Outcome.PENDING
    offset: int = NO_OFFSET

    def ok(self, offset: int) -> None:
        """The send is acknowledged. NO_OFFSET: the response has no offset."""
        assert self.outcome is Outcome.PENDING, self
        self.outcome, self.offset = Outcome.OK, offset

    def fail(self) -> None:
        """The send is rejected, and the record is certainly not stored."""
        assert self.outcome is Outcome.PENDING, self
        self.outcome = Outcome.FAIL

    def info(self) -> None:
        """The outcome is unknown."""
        assert self.outcome is Outcome.PENDING, self
        self.outcome = Outcome.INFO


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One broken guarantee in one partition. `examples`: the first values or numbers concerned."""

    kind: str
    partition: TopicPartition
    count: int
    examples: tuple[str, ...]
    meaning: str = ""
    """If empty, MEANINGS has the text of the kind."""

    def __str__(self) -> str:
        meaning = self.meaning or MEANINGS[self.kind]
        return (
            f"{self.kind}: {self.partition}, {self.count} time(s): {meaning} (first: "
            f"{', '.join(self.examples)})"
        )


MEANINGS = {
    "lost": "acknowledged with acks=all, and not in the log",
    "duplicate": "in the log more than once",
    "misplaced": "acknowledged at one offset, found at another",
    "reordered": "before a record of the same producer that was acknowledged before its send",
    "gap": "an offset does not follow the one before",
    "unknown": "in the log, or read, and never sent",
    "aborted-read": "in the log, or read, although its send was refused",
    "inconsistent": "two readers saw different values at one offset",
    "lost-read": "received by a consumer, and not in the log",
    "poll-skip": "a consumer skipped records",
    "poll-back": "a consumer got a record again, or an older one",
    "watermark-back": "the high watermark of one leader in one epoch decreased",
    "watermarks-disagree": "log start <= last stable offset <= high watermark does not hold "
    "in a response",
    "beyond-watermark": "a response has a record at or above its high watermark",
    "beyond-epoch": "a fetch in one leader epoch returned records of a later one (KIP-320)",
    "out-of-range": "a consumer that had read all earlier records got OFFSET_OUT_OF_RANGE",
    "unreadable": "a consumer got damaged batches, or an error that is not retriable",
    "ack-not-committed": "acknowledged with acks=all, while no replica's high watermark had "
    "passed it",
}


@dataclass(slots=True)
class _Reader:
    """One consumer of one partition, from one seek to the next."""

    next_offset: int
    watermarks: dict[tuple[int, int], int] = field(default_factory=dict)
    """(node, leader epoch) -> highest high watermark that the node returned in this epoch."""


class History:
    """All requests of the clients of one run, and their responses."""

    def __init__(self) -> None:
        self.sends: list[Send] = []
        self.reads = 0
        self.acknowledged = 0
        self._by_value: dict[bytes, Send] = {}
        self._seen: dict[TopicPartition, dict[int, set[bytes]]] = {}
        self._readers: dict[tuple[str, TopicPartition], _Reader] = {}
        self._found: dict[tuple[str, TopicPartition], list[str]] = {}

    # -- events of clients

    def send(self, session: str, partition: TopicPartition, value: bytes, promise: Promise) -> Send:
        """A producer sends a record. Call this in the order of the sends of a session."""
        assert value not in self._by_value, value
        made = self._by_value[value] = Send(session, partition, value, promise)
        self.sends.append(made)
        return made

    def begin_reading(self, consumer: str, partition: TopicPartition, offset: int) -> None:
        """A consumer sets its position: at its start, and at each seek."""
        self._readers[consumer, partition] = _Reader(offset)

    def polled(
        self,
        consumer: str,
        partition: TopicPartition,
        records: Iterable[tuple[int, bytes]],
        high_watermark: int | None,
    ) -> None:
        """One poll returned `records`: (offset, value) of each, in order. `high_watermark`: that of
        the same response. None if the client has only that of a newer response: a new leader's may
        be below prefetched records.
        """
        reader = self._readers[consumer, partition]
        seen = self._seen.setdefault(partition, {})
        for offset, value in records:
            self.reads += 1
            if offset > reader.next_offset:
                self._note(
                    "poll-skip", partition, f"{consumer}: {offset} after {reader.next_offset - 1}"
                )
            elif offset < reader.next_offset:
                self._note(
                    "poll-back", partition, f"{consumer}: {offset} after {reader.next_offset - 1}"
                )
            if high_watermark is not None and offset >= high_watermark:
                self._note(
                    "beyond-watermark",
                    partition,
                    f"{consumer}: {offset}, high watermark {high_watermark}",
                )
            reader.next_offset = offset + 1
            seen.setdefault(offset, set()).add(value)

    def fetched(
        self,
        consumer: str,
        partition: TopicPartition,
        *,
        node: int,
        leader_epoch: int,
        log_start: int,
        last_stable: int,
        high_watermark: int,
    ) -> None:
        """The offsets in one response of one node. Another node or epoch may return lower ones: a
        new leader must first receive fetches of its followers to know the high watermark (KIP-207).
        No record is lost by that.
        """
        if not log_start <= last_stable <= high_watermark:
            self._note(
                "watermarks-disagree",
                partition,
                f"{consumer}: {log_start}, {last_stable}, {high_watermark}",
            )
        watermarks = self._readers[consumer, partition].watermarks
        before = watermarks.get((node, leader_epoch), NO_OFFSET)
        if high_watermark < before:
            self._note(
                "watermark-back",
                partition,
                f"{consumer}: {before} to {high_watermark} by node {node} in epoch {leader_epoch}",
            )
        watermarks[node, leader_epoch] = high_watermark

    def restarted(self, node: int) -> None:
        """A new process of a node runs. Its high watermark may be lower, because it starts from a
        checkpoint.
        """
        for reader in self._readers.values():
            for key in [key for key in reader.watermarks if key[0] == node]:
                del reader.watermarks[key]

    def out_of_range(self, consumer: str, partition: TopicPartition, why: str) -> None:
        """A leader returned OFFSET_OUT_OF_RANGE to a consumer that has read all records below the
        offset.
        """
        self._note("out-of-range", partition, f"{consumer}: {why}")

    def unreadable(self, consumer: str, partition: TopicPartition, why: str) -> None:
        """A consumer got bytes that are not records, or an error that is not retriable."""
        self._note("unreadable", partition, f"{consumer}: {why}")

    def beyond_epoch(self, consumer: str, partition: TopicPartition, why: str) -> None:
        """A node returned records of a later leader epoch to a fetch with an earlier one, which it
        should fence.
        """
        self._note("beyond-epoch", partition, f"{consumer}: {why}")

    def not_committed(self, partition: TopicPartition, offset: int) -> None:
        """A record was acknowledged with acks=all before any high watermark had passed `offset`."""
        self._note("ack-not-committed", partition, str(offset))

    def _note(self, kind: str, partition: TopicPartition, example: str) -> None:
        self._found.setdefault((kind, partition), []).append(example)

    # -- the check

    def check(self, final: Mapping[TopicPartition, Sequence[tuple[int, bytes]]]) -> list[Anomaly]:
        """Returns every anomaly. `final`: (offset, value) of all records, from offset 0, of each
        partition that exists at the end. Sends to deleted topics do not count.
        """
        sends: dict[TopicPartition, list[Send]] = {}
        for send in self.sends:
            sends.setdefault(send.partition, []).append(send)
        for partition, log in final.items():
            self._check_log(partition, log)
            self._check_sends(partition, log, sends.get(partition, []))
        return [
            Anomaly(kind, partition, len(rows), tuple(rows[:SHOWN_MAX]))
            for (kind, partition), rows in sorted(self._found.items())
        ]

    def _check_log(self, partition: TopicPartition, log: Sequence[tuple[int, bytes]]) -> None:
        expected = 0
        times: dict[bytes, int] = {}
        for offset, value in log:
            if offset != expected:
                self._note("gap", partition, f"{offset} after {expected - 1}")
            expected = offset + 1
            self._check_value(partition, value)
            times[value] = times.get(value, 0) + 1
            if times[value] == 2:
                self._note("duplicate", partition, f"{value!r} again at {offset}")
        rows = dict(log)
        for offset, values in sorted(self._seen.get(partition, {}).items()):
            for value in sorted(values):
                if rows.get(offset) != value:
                    self._check_value(partition, value)
            if len(values) > 1:
                self._note("inconsistent", partition, f"{offset}: {sorted(values)}")
            elif offset in rows and {rows[offset]} != values:
                self._note(
                    "inconsistent", partition, f"{offset}: {sorted(values | {rows[offset]})}"
                )
            elif offset not in rows:
                self._note("lost-read", partition, f"{min(values)!r} at {offset}")

    def _check_value(self, partition: TopicPartition, value: bytes) -> None:
        send = self._by_value.get(value)
        if send is None or send.partition != partition:
            self._note("unknown", partition, repr(value))
        elif send.outcome is Outcome.FAIL:
            self._note("aborted-read", partition, repr(value))

    def _check_sends(
        self, partition: TopicPartition, log: Sequence[tuple[int, bytes]], sends: Sequence[Send]
    ) -> None:
        place: dict[bytes, int] = {}
        for offset, value in log:
            place.setdefault(value, offset)
        highest: dict[str, tuple[int, bytes]] = {}
        for send in sends:
            at = place.get(send.value)
            if at is None:
                if send.outcome is Outcome.OK and send.promise is Promise.ALL:
                    self._note("lost", partition, f"{send.value!r} acknowledged at {send.offset}")
                continue
            before, earlier = highest.get(send.session, (-1, b""))
            if at < before:
                self._note(
                    "reordered", partition, f"{send.value!r} at {at}, but {earlier!r} at {before}"
                )
            if (
                send.outcome is Outcome.OK
                and send.promise is Promise.ALL
                and send.offset not in (NO_OFFSET, at)
            ):
                self._note(
                    "misplaced",
                    partition,
                    f"{send.value!r} acknowledged at {send.offset}, found at {at}",
                )
            if send.outcome is Outcome.OK or send.promise is Promise.ORDER:
                highest[send.session] = max((at, send.value), (before, earlier))
