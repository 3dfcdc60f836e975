"""Transactions of stock clients: all or nothing, fenced, timed out, with offsets; read with both
isolation levels.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient, OffsetSpec

from .clients import CLIENTS, TIMEOUT_S, Message, confluent_consumer
from .conftest import Broker
from .transactional import (
    PRODUCERS,
    READERS,
    TRANSACTION_MS,
    Refused,
    Transactional,
    read_confluent,
)
from .wire import until

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
SHORT_MS = 1000
Open = Callable[..., Transactional]

every_producer = pytest.mark.parametrize("client", tuple(PRODUCERS))


@pytest.fixture
def opened(broker: Broker) -> Iterator[Open]:
    """Opens transactional producers: a kind of client and a transactional id."""
    producers: list[Transactional] = []

    def make(client: str, transactional_id: str, timeout_ms: int = TRANSACTION_MS) -> Transactional:
        producers.append(PRODUCERS[client](broker.address, transactional_id, timeout_ms))
        return producers[-1]

    yield make
    for producer in producers:
        producer.close()


def ends(broker: Broker, topic: str) -> tuple[int, int]:
    """Last stable offset and high watermark of partition 0."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    place = confluent_kafka.TopicPartition(topic, 0)
    levels = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    stable, high = (
        admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)[place]
        .result(TIMEOUT_S)
        .offset
        for level in levels
    )
    return stable, high


def committed(broker: Broker, group: str, topic: str) -> int:
    """The group's offset of partition 0, when no transaction delays it; negative for none."""
    consumer = confluent_consumer(broker.address, group_id=group, isolation_level=COMMITTED)
    try:
        (row,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], TIMEOUT_S)
        return row.offset
    finally:
        consumer.close()


def values(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}-{number}".encode() for number in range(count)]


@pytest.mark.parametrize("reader", tuple(READERS))
@every_producer
def test_readers_of_committed_records_get_all_of_a_transaction_or_nothing(
    broker: Broker, topic: str, new_name: Callable[[], str], opened: Open, client: str, reader: str
) -> None:
    producer = opened(client, new_name())
    producer.run(topic, values("first", 5))
    producer.run(topic, values("taken-back", 5), committed=False)
    producer.run(topic, values("last", 5))
    read = READERS[reader]
    assert read(broker.address, topic, COMMITTED) == values("first", 5) + values("last", 5)
    assert read(broker.address, topic, UNCOMMITTED) == values("first", 5) + values(
        "taken-back", 5
    ) + values("last", 5)


@every_producer
def test_an_open_transaction_delays_later_records(
    broker: Broker, topic: str, new_name: Callable[[], str], opened: Open, client: str
) -> None:
    producer = opened(client, new_name())
    CLIENTS[0].produce(broker.address, topic, [Message(b"before")])
    producer.begin()
    producer.send(topic, values("open", 2))
    CLIENTS[0].produce(broker.address, topic, [Message(b"behind")])
    assert ends(broker, topic) == (1, 4)
    assert read_confluent(broker.address, topic, COMMITTED) == [b"before"]
    assert read_confluent(broker.address, topic, UNCOMMITTED) == [
        b"before",
        *values("open", 2),
        b"behind",
    ]
    producer.commit()
    until(
        lambda: ends(broker, topic) == (5, 5),
        "the transaction has ended",
        details=lambda: ends(broker, topic),
    )
    assert read_confluent(broker.address, topic, COMMITTED) == [
        b"before",
        *values("open", 2),
        b"behind",
    ]


@pytest.mark.parametrize("later", tuple(PRODUCERS))
@every_producer
def test_the_next_producer_of_an_id_fences_the_previous_one(
    broker: Broker, topic: str, new_name: Callable[[], str], opened: Open, client: str, later: str
) -> None:
    transactional_id = new_name()
    zombie = opened(client, transactional_id)
    zombie.begin()
    zombie.send(topic, values("lost", 3))
    heir = opened(later, transactional_id)
    heir.run(topic, values("heir", 3))
    with pytest.raises(Refused) as refused:
        zombie.commit()
    said = str(refused.value).lower()
    assert "fenc" in said or "epoch" in said or "mapping" in said, said
    assert read_confluent(broker.address, topic, COMMITTED) == values("heir", 3)
    heir.run(topic, values("again", 1))
    assert read_confluent(broker.address, topic, COMMITTED) == values("heir", 3) + values(
        "again", 1
    )


@every_producer
def test_a_timed_out_transaction_is_aborted_with_an_error(
    broker: Broker, topic: str, new_name: Callable[[], str], opened: Open, client: str
) -> None:
    transactional_id = new_name()
    producer = opened(client, transactional_id, SHORT_MS)
    producer.begin()
    producer.send(topic, values("late", 3))
    CLIENTS[0].produce(broker.address, topic, [Message(b"behind")])
    until(
        lambda: ends(broker, topic) == (5, 5),
        "the transaction is aborted",
        details=lambda: ends(broker, topic),
    )
    assert read_confluent(broker.address, topic, COMMITTED) == [b"behind"]
    with pytest.raises(Refused):
        producer.commit()
    opened(client, transactional_id).run(topic, values("next", 1))
    assert read_confluent(broker.address, topic, COMMITTED) == [b"behind", *values("next", 1)]


@every_producer
def test_offsets_move_only_if_the_transaction_commits(
    broker: Broker, topic: str, new_name: Callable[[], str], opened: Open, client: str
) -> None:
    group = new_name()
    producer = opened(client, new_name())
    for offset, commits, expected in ((3, False, -1), (4, True, 4), (7, False, 4), (9, True, 9)):
        producer.begin()
        producer.send(topic, [b"%d" % offset])
        producer.send_offsets(topic, {0: offset}, group)
        producer.commit() if commits else producer.abort()
        found = committed(broker, group, topic)
        assert found == expected or found < 0 > expected, (offset, commits)


@every_producer
def test_a_transaction_with_only_offsets_counts(
    broker: Broker, topic: str, new_name: Callable[[], str], opened: Open, client: str
) -> None:
    group = new_name()
    producer = opened(client, new_name())
    producer.begin()
    producer.send_offsets(topic, {0: 5}, group)
    producer.commit()
    assert committed(broker, group, topic) == 5
    assert ends(broker, topic) == (0, 0)


@every_producer
def test_a_transaction_without_records_changes_nothing(
    broker: Broker, topic: str, new_name: Callable[[], str], opened: Open, client: str
) -> None:
    producer = opened(client, new_name())
    for end in (producer.commit, producer.abort):
        producer.begin()
        end()
    assert ends(broker, topic) == (0, 0)
    producer.run(topic, values("one", 1))
    assert read_confluent(broker.address, topic, COMMITTED) == values("one", 1)


def test_transactions_of_many_producers_in_one_partition_are_independent(
    broker: Broker, topic: str, new_name: Callable[[], str], opened: Open
) -> None:
    """They end in any order, so an aborted transaction is found by its first offset although it
    ended before an earlier one.
    """
    dice = random.Random(5)
    producers = [opened(client, new_name()) for client in PRODUCERS for _ in range(2)]
    expected: list[tuple[int, bytes]] = []
    busy: dict[int, list[tuple[int, bytes]]] = {}
    sent = 0
    for turn in range(120):
        who = dice.randrange(len(producers))
        if who not in busy:
            producers[who].begin()
            busy[who] = []
        elif busy[who] and dice.random() < 0.4:
            if dice.random() < 0.5:
                expected += busy[who]
                producers[who].commit()
            else:
                producers[who].abort()
            del busy[who]
            continue
        value = b"%d-%d" % (who, turn)
        producers[who].send(topic, [value])
        busy[who].append((sent, value))
        sent += 1
    for who, rows in busy.items():
        expected += rows
        producers[who].commit()
    until(lambda: len(set(ends(broker, topic))) == 1, "every transaction has ended")
    wanted = [value for _, value in sorted(expected)]
    for read in READERS.values():
        assert read(broker.address, topic, COMMITTED) == wanted


def test_administrators_see_a_transaction(
    broker: Broker, topic: str, new_name: Callable[[], str], opened: Open
) -> None:
    """kafka-python has the requests."""
    import kafka

    transactional_id = new_name()
    producer = opened("confluent", transactional_id)
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.address)
    try:
        if not hasattr(admin, "describe_transactions"):
            pytest.skip("this kafka-python does not ask")
        producer.begin()
        producer.send(topic, [b"x"])
        assert "Ongoing" in repr(admin.describe_transactions([transactional_id]))
        producer.commit()
        until(
            lambda: "CompleteCommit" in repr(admin.describe_transactions([transactional_id])),
            "it is complete",
        )
    finally:
        admin.close()
