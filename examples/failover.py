"""Failover: two members for one partition. When the reading member dies, the other one resumes at
its committed offset.

python examples/failover.py [HOST:PORT]
"""

import sys
from contextlib import ExitStack
from secrets import token_hex
from typing import Any

from mqd.client.sync import connect

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
RUN = token_hex(3)  # separate names for each run
TOPIC = GROUP = f"example-failover-{RUN}"
MEMBER: dict[str, Any] = {
    "assignors": ["cooperative-sticky"],  # the owner keeps the partition when others join
    "session_timeout_ms": 6_000,  # how soon a silent member counts as dead
    "heartbeat_interval_ms": 1_000,
    "reset": "beginning",
    "auto_commit": False,
}

with connect(BOOTSTRAP) as client, ExitStack() as life_of_the_active:
    client.admin.create_topic(TOPIC, partitions=1)
    with client.producer() as producer:
        producer.send(TOPIC, b"first")

    active = life_of_the_active.enter_context(
        client.group_consumer(GROUP, [TOPIC], leave=False, **MEMBER)
    )
    batch = active.next()
    assert batch is not None
    print("the active member reads", batch.records[0].value)
    active.commit()

    with client.group_consumer(GROUP, [TOPIC], **MEMBER) as spare:
        assert spare.next(timeout_s=3) is None and spare.assignment() == []
        print("the spare member waits")

        life_of_the_active.close()  # with leave=False it does not leave the group, like a crash
        with client.producer() as producer:
            producer.send(TOPIC, b"second")
        batch = spare.next()  # returns when the session of the other has ended
        assert batch is not None
        print("the spare member reads", batch.records[0].value)
        assert [record.value for record in batch.records] == [b"second"]
