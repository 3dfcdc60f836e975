"""Broadcast: each reader has its own group and gets every record.

python examples/broadcast.py [HOST:PORT]
"""

import sys
from secrets import token_hex

from mqd.client.sync import connect

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
RUN = token_hex(3)  # separate names for each run
TOPIC = f"example-broadcast-{RUN}"

with connect(BOOTSTRAP) as client:
    client.admin.create_topic(TOPIC, partitions=3)
    with client.producer() as producer:
        for number in range(30):
            producer.enqueue(TOPIC, b"%d" % number, partition=number % 3)

    for reader in ("billing", "shipping", "statistics"):
        seen: list[bytes | None] = []
        with client.group_consumer(
            f"example-{reader}-{RUN}", [TOPIC], reset="beginning"
        ) as consumer:
            for batch in consumer:
                seen += [record.value for record in batch.records]
                if len(seen) >= 30:
                    break
        print(reader, "has read", len(set(seen)), "records")
        assert len(seen) == len(set(seen)) == 30
