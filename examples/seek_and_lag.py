"""The lag of a group, and reading again from a time, like `mqctl group lag` and `mqctl group seek`.

python examples/seek_and_lag.py [HOST:PORT]
"""

import sys
import time
from secrets import token_hex

from mqd.client import ClientError, TopicPartition
from mqd.client.sync import connect

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
RUN = token_hex(3)  # separate names for each run
TOPIC = GROUP = f"example-seek-{RUN}"
PARTITION = TopicPartition(TOPIC, 0)
BEGIN_MS = int(time.time() * 1000) - 3600_000  # the records are an hour old
CONFIGS: dict[str, str | int] = {
    "message.timestamp.type": "CreateTime",
    "retention.ms": 86_400_000,  # a day, even if the cluster's default is shorter
}
DELETED = "the records are not there: did retention delete them?"

with connect(BOOTSTRAP) as client:
    client.admin.create_topic(TOPIC, partitions=1, configs=CONFIGS)
    with client.producer() as producer:
        for minute in range(60):
            producer.send(TOPIC, b"%d" % minute, timestamp=BEGIN_MS + minute * 60_000)

    with client.group_consumer(GROUP, [TOPIC], reset="beginning", auto_commit=False) as consumer:
        read = 0
        while read < 40:
            batch = consumer.next(timeout_s=5)
            if batch is None:
                raise SystemExit(DELETED)
            read += len(batch.records)
        consumer.commit({PARTITION: 40})
    (row,) = client.admin.group_lag(GROUP)
    assert row.committed is not None
    print("the group is at", row.committed.offset, "of", row.end, "- lag", row.lag)
    assert row.lag == 20

    when = BEGIN_MS + 30 * 60_000
    found = client.admin.list_offsets({PARTITION: when})[PARTITION]
    if isinstance(found, ClientError):
        raise found
    # Refused while the group has members.
    client.admin.alter_group_offsets(GROUP, {PARTITION: found.offset})
    (row,) = client.admin.group_lag(GROUP)
    assert row.committed is not None
    print("after the seek: at", row.committed.offset, "- lag", row.lag)
    assert row.lag == 30

    with client.group_consumer(GROUP, [TOPIC]) as consumer:
        batch = consumer.next(timeout_s=5)
        if batch is None:
            raise SystemExit(DELETED)
        print("the group resumes at minute", (batch.records[0].value or b"?").decode())
