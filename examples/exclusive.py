"""A single reader: consumers that share an instance id. The second one is refused while the first
one is active.

python examples/exclusive.py [HOST:PORT]
"""

import sys
from secrets import token_hex
from typing import Any

from mqd.client import ClientError
from mqd.client.sync import connect

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
RUN = token_hex(3)  # separate names for each run
TOPIC = GROUP = f"example-exclusive-{RUN}"
ALONE: dict[str, Any] = {
    "group_protocol": "consumer",
    "instance_id": "the-only-one",
    "reset": "beginning",
}

with connect(BOOTSTRAP) as client:
    client.admin.create_topic(TOPIC, partitions=2)
    with client.producer() as producer:
        for number in range(10):
            producer.enqueue(TOPIC, b"%d" % number, partition=number % 2)

    with client.group_consumer(GROUP, [TOPIC], **ALONE) as first:
        batch = first.next()
        assert batch is not None
        print("the first reads partition", batch.partition)
        try:
            with client.group_consumer(GROUP, [TOPIC], **ALONE) as second:
                second.next(timeout_s=10)
                raise SystemExit("there are two readers")
        except ClientError as error:
            print("the second is refused:", error.code.name.lower())
        batch = first.next()
        assert batch is not None
        print("the first reads partition", batch.partition)

    # The first one has left the group.
    with client.group_consumer(GROUP, [TOPIC], **ALONE) as second:
        print("the second member resumes:", second.next(timeout_s=5) or "nothing is left")
