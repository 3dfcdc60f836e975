"""Transactional producers of stock clients behind one small interface, and readers of both
isolation levels.

Errors rise as `Refused`, which names the client's error.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import aiokafka
import confluent_kafka
import kafka
from aiokafka.errors import KafkaError as AiokafkaError
from kafka.errors import KafkaError

from .clients import TIMEOUT_S, confluent_consumer

TRANSACTION_MS = 60_000


class Refused(Exception):
    """A client's own exception, by name and text."""


class Transactional(ABC):
    """One transactional producer; on creation it is opened, and has fenced the previous producer of
    its id.
    """

    @abstractmethod
    def __init__(self, address: str, transactional_id: str, timeout_ms: int) -> None: ...

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        """Send, and wait until the broker has them."""

    @abstractmethod
    def send_offsets(self, topic: str, offsets: Mapping[int, int], group: str) -> None:
        """The offsets of a consumer that assigns its partitions itself."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """An open transaction stays open."""

    def run(
        self, topic: str, values: Sequence[bytes], *, committed: bool = True, partition: int = 0
    ) -> None:
        """One transaction."""
        self.begin()
        self.send(topic, values, partition)
        self.commit() if committed else self.abort()


class Confluent(Transactional):
    """confluent-kafka."""

    def __init__(self, address: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": min(timeout_ms, int(TIMEOUT_S * 1000)),
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._address = address
        self._call(lambda: self._producer.init_transactions(TIMEOUT_S))

    @staticmethod
    def _call(call: Callable[[], Any]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                call()
                return
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise Refused(f"{error.args[0].name()} {error.args[0].str()}") from error

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        errors: list[Any] = []

        def delivered(error: Any, _: object) -> None:
            if error is not None:
                errors.append(error)

        for value in values:
            self._producer.produce(
                topic,
                value,
                partition=partition,
                on_delivery=delivered,
            )
        assert self._producer.flush(TIMEOUT_S) == 0
        if errors:
            raise Refused(f"{errors[0].name()} {errors[0].str()}")

    def send_offsets(self, topic: str, offsets: Mapping[int, int], group: str) -> None:
        consumer = confluent_consumer(self._address, group_id=group)
        try:
            rows = [
                confluent_kafka.TopicPartition(topic, partition, offset)
                for partition, offset in offsets.items()
            ]
            who = consumer.consumer_group_metadata()
            self._call(lambda: self._producer.send_offsets_to_transaction(rows, who, TIMEOUT_S))
        finally:
            consumer.close()

    def commit(self) -> None:
        self._call(lambda: self._producer.commit_transaction(TIMEOUT_S))

    def abort(self) -> None:
        self._call(lambda: self._producer.abort_transaction(TIMEOUT_S))

    def close(self) -> None:
        self._producer.purge()


class KafkaPython(Transactional):
    """kafka-python."""

    def __init__(self, address: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=address,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            max_block_ms=int(TIMEOUT_S * 1000),
        )
        self._call(self._producer.init_transactions)

    @staticmethod
    def _call(call: Callable[[], Any]) -> None:
        try:
            call()
        except KafkaError as error:
            raise Refused(f"{type(error).__name__} {error}") from error

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        def send() -> None:
            futures = [self._producer.send(topic, value, partition=partition) for value in values]
            for future in futures:
                future.get(TIMEOUT_S)

        self._call(send)

    def send_offsets(self, topic: str, offsets: Mapping[int, int], group: str) -> None:
        rows = {
            kafka.TopicPartition(topic, partition): kafka.OffsetAndMetadata(offset, "", -1)
            for partition, offset in offsets.items()
        }
        self._call(lambda: self._producer.send_offsets_to_transaction(rows, group))

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(0)


class Aiokafka(Transactional):
    """aiokafka, with its own event loop on a thread."""

    def __init__(self, address: str, transactional_id: str, timeout_ms: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def start() -> Any:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=address,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
            )
            await producer.start()
            return producer

        self._producer = self._call(start())

    def _call(self, call: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(call, TIMEOUT_S)

        try:
            return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result()
        except AiokafkaError as error:
            raise Refused(f"{type(error).__name__} {error}") from error

    def begin(self) -> None:
        self._call(self._producer.begin_transaction())

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        async def send() -> None:
            futures = [
                await self._producer.send(topic, value, partition=partition) for value in values
            ]
            await asyncio.gather(*futures)

        self._call(send())

    def send_offsets(self, topic: str, offsets: Mapping[int, int], group: str) -> None:
        rows = {
            aiokafka.TopicPartition(topic, partition): offset
            for partition, offset in offsets.items()
        }
        self._call(self._producer.send_offsets_to_transaction(rows, group))

    def commit(self) -> None:
        self._call(self._producer.commit_transaction())

    def abort(self) -> None:
        self._call(self._producer.abort_transaction())

    def close(self) -> None:
        async def stop() -> None:
            # it drops its batches only on request; an open transaction stays open
            await asyncio.wait_for(self._producer.stop(), 5)

        try:
            self._call(stop())
        except (Refused, TimeoutError):
            pass
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


PRODUCERS: dict[str, type[Transactional]] = {
    "confluent": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
}


# -- readers


def read_confluent(address: str, topic: str, isolation: str, partition: int = 0) -> list[bytes]:
    """Every value up to the end of this isolation level."""
    consumer = confluent_consumer(address, isolation_level=isolation, enable_partition_eof="true")
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
        values: list[bytes] = []
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is not None:
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                    return values
                value = message.value()
                assert value is not None
                values.append(value)
        raise AssertionError("no end of the partition")
    finally:
        consumer.close()


def read_kafka_python(address: str, topic: str, isolation: str, partition: int = 0) -> list[bytes]:
    """As `read_confluent`."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address,
        group_id=None,
        auto_offset_reset="none",
        isolation_level=isolation,
        fetch_max_wait_ms=50,
    )
    try:
        place = kafka.TopicPartition(topic, partition)
        consumer.assign([place])
        consumer.seek(place, 0)
        end = consumer.end_offsets([place])[place]
        values: list[bytes] = []
        deadline = time.monotonic() + TIMEOUT_S
        while consumer.position(place) < end:
            assert time.monotonic() < deadline, (consumer.position(place), end)
            values += [record.value for record in consumer.poll(200).get(place, [])]
        return values
    finally:
        consumer.close()


def read_aiokafka(address: str, topic: str, isolation: str, partition: int = 0) -> list[bytes]:
    """As `read_confluent`."""

    async def read() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address,
            group_id=None,
            auto_offset_reset="none",
            isolation_level=isolation,
            fetch_max_wait_ms=50,
        )
        await consumer.start()
        try:
            place = aiokafka.TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, 0)
            end = (await consumer.end_offsets([place]))[place]
            values: list[bytes] = []
            deadline = time.monotonic() + TIMEOUT_S
            while await consumer.position(place) < end:
                assert time.monotonic() < deadline, end
                values += [
                    record.value
                    for record in (await consumer.getmany(place, timeout_ms=200)).get(place, [])
                ]
            return values
        finally:
            await consumer.stop()

    return asyncio.run(read())


READERS: dict[str, Callable[..., list[bytes]]] = {
    "confluent": read_confluent,
    "kafka-python": read_kafka_python,
    "aiokafka": read_aiokafka,
}
