from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mqd.client.errors import (
    ClientClosed,
    ClientCrashed,
    ClientError,
    ConsumerClosed,
    PeerUnreachable,
    ProducerClosed,
)
from mqd.client.producer import Producer
from mqd.client.sync import connect
from mqd.protocol.record_reader import Record
from mqd.types import TopicPartition
from tests.client.fake import FETCH, INIT_PRODUCER_ID, PRODUCE, Hang
from tests.client.loopback import Loopback, loopback

A0 = TopicPartition("a", 0)
OFFSET_COMMIT = 8


@pytest.fixture
def served() -> Iterator[Loopback]:
    with loopback() as broker:
        threads = threading.active_count()
        yield broker
        assert [
            thread.name for thread in threading.enumerate() if thread.name == "mqd-client"
        ] == []
        assert threading.active_count() == threads


def test_a_round_trip(served: Loopback) -> None:
    with connect(served.address) as client:
        assert client.admin.create_topic("a", 1).partitions == 1
        with client.producer() as producer:
            assert producer.send("a", b"0", key=b"k").offset == 0
            deliveries = [producer.enqueue("a", b"%d" % number) for number in range(1, 100)]
        assert deliveries[-1].is_done() and deliveries[-1].wait().offset == 99
        with client.consumer({A0: "beginning"}, end="end") as consumer:
            assert [record.value for batch in consumer for record in batch.records] == [
                b"%d" % number for number in range(100)
            ]
            assert consumer.position(A0) == 100 == consumer.high_watermark(
                A0
            ) and consumer.assignment() == [A0]
        with client.consumer({A0: "end"}) as consumer:
            assert consumer.next(timeout_s=0.01) is None
            consumer.seek(A0, 98)
            batch = consumer.next(timeout_s=10)
            assert batch is not None and batch.records[0].offset == 98


def test_retries_and_claims(served: Loopback) -> None:
    retries = {"mqd.delay.target": "a", "mqd.retry.backoff": "1s"}
    with connect(served.address) as client:
        client.admin.create_topic("a", 1, configs={"mqd.producer.access": "exclusive"})
        client.admin.create_topic("a.retry", 1, configs=retries)
        headers = [("trace", b"7"), ("trace", None)]
        failed = Record(5, 1, b"k", b"v", headers)
        with client.producer() as producer:
            assert producer.retry("a.retry", failed).offset == 0
        with client.consumer({TopicPartition("a.retry", 0): "beginning"}, end="end") as consumer:
            [record] = [record for batch in consumer for record in batch.records]
        assert (record.key, record.value, list(record.headers)) == (b"k", b"v", headers)
        with client.transactional_producer("t") as owner:
            owner.claim("a")
            with owner.transaction():
                owner.send("a", b"v")


def test_the_offset_of_a_record_that_could_not_be_retried_is_not_committed(
    served: Loopback,
) -> None:
    with connect(served.address) as client:
        client.admin.create_topic("a", 1)
        with client.producer() as producer:
            producer.send("a", b"v")
            with (
                pytest.raises(ClientError, match="'a' is no retry topic"),
                client.group_consumer("g", ["a"], reset="beginning") as consumer,
            ):
                batch = consumer.next(timeout_s=10)
                assert batch is not None
                producer.retry("a", batch.records[0])
        with client.group_consumer("g", ["a"], reset="beginning") as consumer:
            batch = consumer.next(timeout_s=10)
            assert batch is not None and batch.records[0].offset == 0


def test_records_whose_handler_raises_are_retried(served: Loopback) -> None:
    retries = {"mqd.delay.target": "a", "mqd.retry.backoff": "1s"}
    seen: list[bytes | None] = []

    def handle(record: Record) -> None:
        seen.append(record.value)
        if record.value == b"bad":
            raise ValueError("no stock")

    with connect(served.address) as client:
        client.admin.create_topic("a", 1)
        client.admin.create_topic("a.again", 1, configs=retries)
        with client.producer() as producer:
            for value in (b"bad", b"good"):
                producer.send("a", value)
            with client.group_consumer("g", ["a"], reset="beginning") as consumer:
                with pytest.raises(TypeError, match="handler is 5"):
                    consumer.consume_with_retry(producer, 5)  # type: ignore[arg-type]
                consumer.consume_with_retry(producer, handle, retry_topic="a.again", idle_s=0.5)
        with client.consumer({TopicPartition("a.again", 0): "beginning"}, end="end") as reader:
            [record] = [record for batch in reader for record in batch.records]
    assert seen == [b"bad", b"good"]
    assert record.value == b"bad" and dict(record.headers)["mqd-origin-group"] == b"g"


def test_share_groups(served: Loopback) -> None:
    with connect(served.address) as client:
        client.admin.create_topic("a", 1)
        with client.producer() as producer:
            for number in range(20):
                producer.enqueue("a", b"%d" % number)
        with client.share_consumer("g", ["a"], mode="explicit") as consumer:
            for record in consumer:
                assert (record.topic, record.partition, record.delivery_count) == ("a", 0, 1)
                assert record.value == b"%d" % record.offset
                if record.offset % 2:
                    record.accept()
                else:
                    record.accept_soon()
                if record.offset == 19:
                    break
            consumer.flush()
            assert record.is_acknowledged and consumer.assignment() == [A0]
            assert consumer.next(timeout_s=0.1) is None
    assert len(served.cluster.shares["g"].done[A0]) == 20


def test_groups_and_transactions(served: Loopback) -> None:
    with connect(served.address) as client:
        client.admin.create_topic("a", 1)
        client.admin.create_topic("b", 1)
        with client.producer() as producer:
            for number in range(20):
                producer.enqueue("a", b"%d" % number)
        with (
            client.transactional_producer("t") as copier,
            client.group_consumer("g", ["a"], reset="beginning", auto_commit=False) as consumer,
        ):
            assert consumer.next(timeout_s=0.0) is None
            with pytest.raises(KeyError), copier.transaction():
                batch = consumer.next(timeout_s=10)
                assert batch is not None
                copier.enqueue("b", b"never")
                raise KeyError
            consumer.rewind()
            while consumer.positions().get(A0) != 20:
                with copier.transaction():
                    batch = consumer.next(timeout_s=10)
                    assert batch is not None
                    for record in batch.records:
                        copier.enqueue("b", record.value)
                    copier.send_offsets(consumer.positions(), consumer.group_metadata())
            committed = consumer.committed([A0])[A0]
            assert consumer.assignment() == [A0]
            assert committed is not None and committed.offset == 20
            consumer.pause(A0)
            consumer.seek(A0, 0)
            assert consumer.next(timeout_s=0.1) is None
            consumer.resume(A0)
            assert consumer.next(timeout_s=10) is not None
        with client.consumer(
            {TopicPartition("b", 0): "beginning"}, end="end", read_committed=True
        ) as reader:
            assert [record.value for batch in reader for record in batch.records] == [
                b"%d" % number for number in range(20)
            ]
        assert [each.group_id for each in client.admin.list_groups()] == ["g"]


def test_errors_arrive_unchanged(served: Loopback) -> None:
    with connect(served.address) as client, pytest.raises(ClientError, match="does not exist"):
        client.admin.delete_topic("nope")
    with pytest.raises(KeyError), connect(served.address):
        raise KeyError
    with pytest.raises(PeerUnreachable), connect("127.0.0.1:1"):
        pass


def test_leaving_a_producer_with_an_error_does_not_flush(served: Loopback) -> None:
    served.inside(lambda: served.cluster.add_topic("a"))
    served.inside(lambda: served.cluster.one.script(PRODUCE, Hang()))
    with connect(served.address) as client:
        with pytest.raises(KeyError), client.producer() as producer:
            delivery = producer.enqueue("a", b"x")
            raise KeyError
        with pytest.raises(ProducerClosed):
            delivery.wait()


def test_use_after_the_end(served: Loopback) -> None:
    with connect(served.address) as client:
        pass
    with pytest.raises(ClientClosed, match="the client is closed"):
        client.admin.list_topics()


def test_several_threads(served: Loopback) -> None:
    offsets: list[int] = []
    with connect(served.address) as client:
        client.admin.create_topic("a")
        with client.producer() as producer:
            threads = [
                threading.Thread(target=lambda: offsets.append(producer.send("a", b"x").offset))
                for _ in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert sorted(offsets) == list(range(8))


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Background processes of a shell ignore it, and so do their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt(response: Any = None) -> Any:
    """Ctrl-C, from the broker's thread; then the broker's response."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)
    return response


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_a_second_ctrl_c_does_not_leave_a_member_behind(served: Loopback) -> None:
    """The first one interrupts the wait for records, the second one the commit."""

    again = {"topics": [{"name": "a", "partitions": [{"partition_index": 0, "error_code": 14}]}]}
    served.inside(lambda: served.cluster.add_topic("a"))
    with connect(served.address) as client, client.producer() as producer:
        producer.send("a", b"x")
    with (
        pytest.raises(KeyboardInterrupt),
        connect(served.address) as client,
        client.group_consumer("g", ["a"], reset="beginning") as consumer,
    ):
        assert consumer.next(timeout_s=10) is not None
        served.inside(
            lambda: served.cluster.one.script(
                OFFSET_COMMIT, lambda *_: interrupt(again), *[again] * 5
            )
        )
        served.inside(lambda: served.cluster.one.script(FETCH, lambda *_: interrupt()))
        consumer.next(timeout_s=0.05)
        consumer.next(timeout_s=10)
    assert served.inside(lambda: served.cluster.groups["g"].members) == {}


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_while_a_consumer_is_opened(served: Loopback) -> None:
    """The call does not wait: the coordinator does not respond."""
    served.inside(lambda: served.cluster.one.script(INIT_PRODUCER_ID, lambda *_: interrupt(Hang())))
    began = time.monotonic()
    with (
        pytest.raises(KeyboardInterrupt),
        connect(served.address) as client,
        client.transactional_producer("t"),
    ):
        raise AssertionError("it was opened")
    assert time.monotonic() - began < 20


def test_a_crash_of_a_background_task_is_raised_with_its_cause(
    served: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is not only that the producer is closed."""

    async def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    with connect(served.address) as client:
        client.admin.create_topic("a")
        with pytest.raises(ClientCrashed) as caught, client.producer() as producer:
            monkeypatch.setattr(Producer, "_send_batches", broken)
            producer.send("a", b"x")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_using_a_closed_object_is_an_error(served: Loopback) -> None:
    with connect(served.address) as client:
        client.admin.create_topic("a")
        with client.consumer({A0: "beginning"}) as consumer:
            pass
        with pytest.raises(ConsumerClosed):
            consumer.next()
        with client.transactional_producer("t") as producer:
            pass
        for use in (producer.begin, producer.commit, lambda: producer.send("a", b"x")):
            with pytest.raises(ProducerClosed, match="the producer is closed"):
                use()


def test_a_wrong_argument_is_a_value_error_without_effect(served: Loopback) -> None:
    with (
        pytest.raises(ValueError, match="'nowhere:0' is not an address: write host:port"),
        connect("nowhere:0"),
    ):
        pass
    with connect(served.address) as client:
        client.admin.create_topic("a")
        with (
            pytest.raises(ValueError, match="linger_ms is -1: give a number of at least 0"),
            client.producer(linger_ms=-1),
        ):
            raise AssertionError
        with (
            pytest.raises(TypeError, match="topics is 'a': give a list"),
            client.group_consumer("g", "a"),
        ):
            raise AssertionError
        with (
            pytest.raises(TypeError, match="not an option of open_producer"),
            client.producer(linger=1),  # type: ignore[call-arg]  # the wrong name is the test
        ):
            raise AssertionError
        with client.producer() as producer:
            assert producer.send("a", b"x").offset == 0


def test_the_user_s_exception_leaves_nested_blocks_unwrapped(served: Loopback) -> None:
    mine = KeyError("mine")
    with pytest.raises(KeyError) as caught, connect(served.address) as client:
        client.admin.create_topic("a")
        with (
            client.group_consumer("g", ["a"]),
            client.consumer({A0: "beginning"}),
            client.transactional_producer("t") as producer,
            producer.transaction(),
        ):
            raise mine
    assert caught.value is mine
