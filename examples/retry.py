"""A record that cannot be processed returns after a delay, and is a dead letter in the end.

python examples/retry.py [HOST:PORT]
"""

import sys
from secrets import token_hex

from mqd.client import Record, TopicPartition, attempts_of
from mqd.client.sync import connect

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
TOPIC = GROUP = f"example-retry-{token_hex(3)}"  # separate names for each run
RETRIES, DEAD = f"{TOPIC}.retry", f"{TOPIC}.dlq"


def process(record: Record) -> None:
    """Order 1 fails once, and order 2 each time."""
    if record.value == b"order 2" or (record.value == b"order 1" and attempts_of(record) == 0):
        raise ValueError("no stock")
    print(record.value, "is processed, after failures:", attempts_of(record))


with connect(BOOTSTRAP) as client:
    # As `mqctl retry setup TOPIC --back-off 100ms,200ms`.
    for topic in (TOPIC, DEAD):
        client.admin.create_topic(topic, partitions=1)
    configs = {
        "mqd.delay.target": TOPIC,
        "mqd.dlq.topic": DEAD,
        "mqd.retry.backoff": "100ms,200ms",
        "message.timestamp.type": "LogAppendTime",
    }
    client.admin.create_topic(RETRIES, partitions=1, configs=configs)

    with (
        client.producer() as producer,
        client.group_consumer(GROUP, [TOPIC], reset="beginning", read_committed=True) as consumer,
    ):
        for number in range(3):
            producer.send(TOPIC, b"order %d" % number)
        # A record whose `process` raises goes to RETRIES; then its offset is committed.
        consumer.consume_with_retry(producer, process, idle_s=10)

    with client.consumer({TopicPartition(DEAD, 0): "beginning"}, read_committed=True) as reader:
        batch = reader.next(timeout_s=30)
        assert batch is not None
        [dead] = batch.records
        deliveries = dict(dead.headers)["__dlq.errors.delivery.count"]
        print(dead.value, "is a dead letter, after deliveries:", deliveries)
        assert (dead.value, deliveries) == (b"order 2", b"3")
