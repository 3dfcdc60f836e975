"""The load: idempotent producers with acks=all at full speed, consumers that read during the
faults, and a final read of all records.

Each client of librdkafka runs in its own thread, continues through every fault, and records its
results in a `history.History`. The first eight bytes of a value are the integer that identifies it
in the history; the rest is padding.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka

from .history import ACKED_SOMEWHERE, NOT_ACKED, History, Key, Reads, longs, number_of, value_of

VALUE = struct.Struct(">q")
FLUSH_TIMEOUT_S = 120.0
READ_TIMEOUT_S = 60.0
"""The timeout of a read without a new record."""
CODECS = ("none", "lz4", "zstd")
PADDINGS = 64
PADDING_BYTES_MAX = 300
BURST_MAX = 100
POLL_S = 0.01
IN_FLIGHT_MAX = 20_000
"""The maximum number of unacknowledged records of a producer, so that the flush after a long
silence is short.
"""


REFUSALS = frozenset(
    {
        confluent_kafka.KafkaError._AUTHENTICATION,
        confluent_kafka.KafkaError._SSL,
        confluent_kafka.KafkaError.SASL_AUTHENTICATION_FAILED,
        confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED,
        confluent_kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Errors of logins, TLS and ACLs. librdkafka retries some of them for ever."""
_DISCONNECTED = ("Disconnected", "Connection reset", "Broken pipe", "Broker transport failure")
"""In the text of an error of this kind, where the broker ended during the handshake or login."""


def is_refusal(error: Any) -> bool:
    """Whether a client of librdkafka reports that a broker refuses it, or the reverse."""
    return error.code() in REFUSALS and not any(each in str(error) for each in _DISCONNECTED)


class TrialFailed(Exception):
    """The trial is not valid: a producer gave up, or the records cannot be read."""


@dataclass
class Silence:
    """The longest time between two acknowledgements of one partition since the last `reset`."""

    last: dict[Key, float] = field(default_factory=dict)
    longest_s: float = 0.0

    def acked(self, key: Key, now: float) -> None:
        """An acknowledgement arrived."""
        gap = now - self.last.get(key, now)
        if gap > self.longest_s:
            self.longest_s = gap
        self.last[key] = now

    def reset(self) -> float:
        """Returns the longest silence since the last reset, and resets it."""
        longest, self.longest_s = self.longest_s, 0.0
        return longest


class RecordingProducer(ABC):
    """A producer in a thread of its own, which records its acknowledgements and errors."""

    def __init__(self, number: int, keys: Sequence[Key]) -> None:
        self.number = number
        self.acked: dict[Key, array[int]] = {key: longs() for key in keys}
        self.acknowledged = 0
        self.errors: list[str] = []
        self.refusals: list[str] = []
        """Errors that `is_refusal` names."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"producer-{number}", daemon=True)

    def start(self) -> None:
        """Begin to produce."""
        self._thread.start()

    @abstractmethod
    def _run(self) -> None:
        """Produce until `_stop` is set."""


class Producer(RecordingProducer):
    """One idempotent producer, at full speed or at `rate` records a second, until it is stopped."""

    def __init__(
        self,
        number: int,
        bootstrap: str,
        keys: Sequence[Key],
        seed: float,
        *,
        rate: float | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(number, keys)
        self.silence = Silence()
        self._keys = list(keys)
        self._random = random.Random(seed)
        self._rate = rate
        settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": self._random.choice(CODECS),
            "queue.buffering.max.messages": IN_FLIGHT_MAX,
            "error_cb": self._on_error,
            "log_level": 0,
        }
        self._producer = confluent_kafka.Producer(settings | dict(options or {}))

    def wait_for_acknowledgement(self) -> None:
        """Wait for the next acknowledgement. Raises TrialFailed."""
        before, deadline = self.acknowledged, time.monotonic() + FLUSH_TIMEOUT_S
        while self.acknowledged == before:
            if self.errors or time.monotonic() > deadline:
                raise TrialFailed(
                    f"nothing acknowledged within {FLUSH_TIMEOUT_S:.0f} s {self.errors[:1]}"
                )
            time.sleep(0.002)

    def stop_sending(self) -> None:
        """Stop sending."""
        self._stop.set()

    def finish(self) -> None:
        """Stop sending, and wait until every sent record is acknowledged. Raises TrialFailed."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(FLUSH_TIMEOUT_S)
        if self.errors:
            raise TrialFailed(
                f"producer {self.number} gave up: {self.errors[0]} (and "
                f"{len(self.errors) - 1} more)"
            )
        if left:
            raise TrialFailed(
                f"producer {self.number}: {left} records not acknowledged within "
                f"{FLUSH_TIMEOUT_S:.0f} s"
            )

    def abandon(self) -> None:
        """Stop sending, and drop unacknowledged records."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._producer.purge()
        self._producer.flush(1)

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self.errors.append(str(error))
        elif is_refusal(error):
            self.refusals.append(str(error))

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        key = message.topic(), message.partition()
        (value,) = VALUE.unpack_from(message.value())
        offset = message.offset()
        self.acked[key][number_of(value)] = ACKED_SOMEWHERE if offset is None else offset
        self.acknowledged += 1
        self.silence.acked(key, time.monotonic())

    def _run(self) -> None:
        try:
            self._produce()
        except Exception as error:  # `finish` raises it: a run without records would pass
            self.errors.append(repr(error))

    def _produce(self) -> None:
        padding = [
            self._random.randbytes(self._random.randrange(PADDING_BYTES_MAX))
            for _ in range(PADDINGS)
        ]
        started_at, turn = time.monotonic(), 0
        while not self._stop.is_set() and not self.errors:
            topic, partition = key = self._random.choice(self._keys)
            for _ in range(1 if self._rate else self._random.randrange(1, BURST_MAX)):
                turn += 1
                rows = self.acked[key]
                value = VALUE.pack(value_of(self.number, len(rows))) + padding[turn % PADDINGS]
                try:
                    self._producer.produce(
                        topic, value, partition=partition, on_delivery=self._on_delivery
                    )
                except BufferError:
                    self._producer.poll(POLL_S)
                    break
                rows.append(NOT_ACKED)
            ahead = started_at + turn / self._rate - time.monotonic() if self._rate else 0.0
            self._producer.poll(max(0.0, ahead))


class Reader:
    """A consumer that reads from the beginning during the faults, in its own thread."""

    def __init__(
        self,
        number: int,
        bootstrap: str,
        keys: Iterable[Key],
        *,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.number = number
        self.reads: dict[Key, Reads] = {key: Reads() for key in keys}
        self.errors: list[str] = []
        self.refusals: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reader-{number}", daemon=True)
        self._consumer = _consumer(bootstrap, {"error_cb": self._on_error} | dict(options or {}))

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def finish(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join()

    @property
    def count(self) -> int:
        """Records read so far."""
        return sum(len(reads.offsets) for reads in self.reads.values())

    def _on_error(self, error: Any) -> None:
        if is_refusal(error):
            self.refusals.append(str(error))

    def _run(self) -> None:
        try:
            self._consumer.assign(
                [
                    confluent_kafka.TopicPartition(topic, partition, 0)
                    for topic, partition in self.reads
                ]
            )
            while not self._stop.is_set():
                for message in self._consumer.consume(1000, 0.2):
                    error = message.error()
                    if error is not None:
                        self.errors.append(str(error))
                        continue
                    _add(self.reads, message)
        finally:
            self._consumer.close()


def read_all(
    bootstrap: str, keys: Sequence[Key], *, options: Mapping[str, Any] | None = None
) -> dict[Key, Reads]:
    """Returns every record of every partition, in a consumer's order. Raises TrialFailed."""
    consumer = _consumer(bootstrap, options or {})
    try:
        places = [confluent_kafka.TopicPartition(topic, partition, 0) for topic, partition in keys]
        ends = {
            (place.topic, place.partition): consumer.get_watermark_offsets(place, 10)[1]
            for place in places
        }
        log = {key: Reads() for key in keys}
        reading = {key for key, end in ends.items() if end > 0}
        consumer.assign([place for place in places if (place.topic, place.partition) in reading])
        deadline = time.monotonic() + READ_TIMEOUT_S
        while reading:
            messages = consumer.consume(10_000, 1.0)
            for message in messages:
                if message.error() is not None:
                    raise TrialFailed(f"reading back: {message.error()}")
                key, offset = _add(log, message)
                if offset + 1 >= ends[key]:
                    reading.discard(key)
            if messages:
                deadline = time.monotonic() + READ_TIMEOUT_S
            elif time.monotonic() > deadline:
                raise TrialFailed(
                    f"no record for {READ_TIMEOUT_S:.0f} s; {sorted(reading)} are not at "
                    f"their ends {ends}"
                )
        return log
    except confluent_kafka.KafkaException as error:
        raise TrialFailed(f"reading back: {error}") from None
    finally:
        consumer.close()


def gather(
    producers: Iterable[RecordingProducer], readers: Iterable[Reader], final: dict[Key, Reads]
) -> History:
    """The results of all producers and consumers, as one history."""
    return History(
        {one.number: one.acked for one in producers},
        {one.number: one.reads for one in readers},
        final,
    )


def _consumer(bootstrap: str, options: Mapping[str, Any]) -> confluent_kafka.Consumer:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "chaos",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "log_level": 0,
    }
    return confluent_kafka.Consumer(settings | dict(options))


def _add(log: Mapping[Key, Reads], message: Any) -> tuple[Key, int]:
    key, offset = (message.topic(), message.partition()), message.offset()
    log[key].add(offset, VALUE.unpack_from(message.value())[0])
    return key, offset
