"""A work queue: several workers of a share group, with retries and rejects (KIP-932).

python examples/share_consumer.py [HOST:PORT]
"""

import sys
from secrets import token_hex

import trio

from mqd.client import (
    Admin,
    ConfigChange,
    ConfigOperation,
    NewTopic,
    Resource,
    ResourceType,
    ShareRecord,
    connect,
    open_producer,
    open_share_consumer,
)

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
TOPIC = GROUP = f"example-share-{token_hex(3)}"  # separate names for each run
TASKS = 60
FROM_THE_BEGINNING = ConfigChange("share.auto.offset.reset", ConfigOperation.SET, "earliest")

done: list[int] = []
rejected: list[int] = []


async def work(record: ShareRecord) -> None:
    """Multiples of 20 are broken, and other multiples of 10 fail the first time."""
    number = int(record.value or b"0")
    await trio.sleep(0.001)
    if number % 20 == 0:
        rejected.append(number)
        await record.reject()
    elif number % 10 == 0 and record.delivery_count == 1:
        await record.release(delay=0.1)
    else:
        done.append(number)
        await record.accept()


async def main() -> None:
    async with connect(BOOTSTRAP) as client:
        admin = Admin(client)
        await admin.create_topics([NewTopic(TOPIC, partitions=1)])
        group = Resource(ResourceType.GROUP, GROUP)
        refused = (await admin.alter_configs({group: [FROM_THE_BEGINNING]}))[group]
        if refused is not None:
            raise refused
        async with open_producer(client) as producer:
            for number in range(TASKS):
                await producer.enqueue(TOPIC, b"%d" % number)

        # More workers than partitions: all of them get records of the one partition.
        async with trio.open_nursery() as nursery:

            async def worker() -> None:
                async with open_share_consumer(
                    client,
                    GROUP,
                    [TOPIC],
                    mode="explicit",
                    acquire_mode="record_limit",
                    max_records=5,
                ) as consumer:
                    async for record in consumer:
                        await work(record)
                        if len(done) + len(rejected) == TASKS:
                            nursery.cancel_scope.cancel()

            for _ in range(4):
                nursery.start_soon(worker)
    print("done:", len(done), "rejected:", sorted(rejected))
    assert sorted(done + rejected) == list(range(TASKS))


trio.run(main)
