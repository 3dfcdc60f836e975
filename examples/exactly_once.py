"""Consume, transform, produce, each record exactly once, although the copier is killed during it:
offsets are part of the transaction.

python examples/exactly_once.py [HOST:PORT]
"""

import sys
from secrets import token_hex

from mqd.client import ClientError, TopicPartition
from mqd.client.sync import BlockingClient, connect

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
RUN = token_hex(3)  # separate names for each run
SOURCE, TARGET, COPIER = f"example-orders-{RUN}", f"example-invoices-{RUN}", f"example-copier-{RUN}"
COUNT = 100


class Crash(Exception):
    """The process dies here."""


def copy(client: BlockingClient, *, crash_after: int) -> None:
    """Opening the transactional id ends its predecessor's open transaction; the group resumes at
    its committed offset.
    """
    with (
        client.transactional_producer(COPIER) as producer,
        client.group_consumer(
            COPIER,
            [SOURCE],
            reset="beginning",
            auto_commit=False,
            read_committed=True,
            partition_max_bytes=100,
        ) as consumer,
    ):
        transactions = 0
        while True:
            batch = consumer.next(timeout_s=1)
            if batch is None:
                committed = client.admin.list_group_offsets([COPIER])[COPIER]
                if isinstance(committed, ClientError):
                    raise committed
                place = committed.get(TopicPartition(SOURCE, 0))
                if place is not None and place.offset == COUNT:
                    return
                continue
            with producer.transaction():
                for record in batch.records:
                    producer.enqueue(TARGET, b"invoice for " + (record.value or b"nothing"))
                producer.send_offsets(consumer.positions(), consumer.group_metadata())
                transactions += 1
                if transactions == crash_after:
                    raise Crash


with connect(BOOTSTRAP) as client:
    for topic in (SOURCE, TARGET):
        client.admin.create_topic(topic, partitions=1)
    with client.producer() as producer:
        for number in range(COUNT):
            producer.send(SOURCE, b"order %d" % number) if number % 10 == 0 else producer.enqueue(
                SOURCE, b"order %d" % number
            )

    try:
        copy(client, crash_after=3)
    except Crash:
        print("the copier was killed in its third transaction")
    copy(client, crash_after=-1)

    with client.consumer(
        {TopicPartition(TARGET, 0): "beginning"}, end="end", read_committed=True
    ) as reader:
        invoices = [record.value or b"" for batch in reader for record in batch.records]
    with client.consumer({TopicPartition(TARGET, 0): "beginning"}, end="end") as reader:
        written = sum(len(batch.records) for batch in reader)
    print(
        len(invoices),
        "invoices for",
        COUNT,
        "orders;",
        written - len(invoices),
        "belong to aborted transactions, so read_committed consumers skip them",
    )
    assert sorted(invoices) == sorted(b"invoice for order %d" % number for number in range(COUNT))
