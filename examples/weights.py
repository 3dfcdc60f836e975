"""A consumer that reads urgent records before most of the normal ones, without starving them.

python examples/weights.py [HOST:PORT]
"""

import sys
from collections import Counter
from secrets import token_hex

import trio

from mqd.client import (
    Admin,
    NewTopic,
    OffsetSpec,
    TopicPartition,
    connect,
    open_consumer,
    open_producer,
)

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
RUN = token_hex(3)  # separate names for each run
URGENT, NORMAL = f"example-urgent-{RUN}", f"example-normal-{RUN}"
RECORDS = 90


async def main() -> None:
    async with connect(BOOTSTRAP) as client:
        await Admin(client).create_topics([NewTopic(URGENT, 1), NewTopic(NORMAL, 1)])
        async with open_producer(client) as producer:
            for number in range(RECORDS):
                for topic in (NORMAL, URGENT):
                    await producer.send(topic, b"%d" % number)  # a batch each
        both: dict[TopicPartition, OffsetSpec] = {
            TopicPartition(topic, 0): "beginning" for topic in (URGENT, NORMAL)
        }
        read = Counter[str]()
        async with open_consumer(
            client, both, end="end", weights={URGENT: 8, NORMAL: 1}
        ) as consumer:
            async for batch in consumer:
                read[batch.topic] += len(batch.records)
                if read[URGENT] == RECORDS and "at_the_end" not in read:
                    read["at_the_end"] = read[NORMAL]
        print("normal records beside", RECORDS, "urgent ones:", read["at_the_end"])
        assert read[NORMAL] == RECORDS


trio.run(main)
