"""SQL over a topic: DuckDB reads Arrow batches, and its result becomes another topic.

python examples/duckdb_frames.py [HOST:PORT]
"""

import json
import sys
from secrets import token_hex

import duckdb
import pyarrow as pa

from mqd.client import TopicPartition
from mqd.client.sync import connect

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
RUN = token_hex(3)  # separate names for each run
ORDERS, TOTALS = f"example-duckdb-orders-{RUN}", f"example-duckdb-totals-{RUN}"

with connect(BOOTSTRAP) as client:
    for topic in (ORDERS, TOTALS):
        client.admin.create_topic(topic, partitions=1)
    with client.producer() as producer:
        for number in range(1000):
            order = {"city": ("Oslo", "Rome", "Lima")[number % 3], "cents": number}
            producer.enqueue(ORDERS, json.dumps(order).encode())

    with client.consumer({TopicPartition(ORDERS, 0): "beginning"}, end="end") as consumer:
        batches = consumer.arrow_batches(["value", "offset"])
        # Read while DuckDB runs: the whole topic is never in memory.
        orders = pa.RecordBatchReader.from_batches(batches.schema, iter(batches))
        answer = duckdb.sql(
            """
            select row ->> 'city' as key, sum((row ->> 'cents')::bigint)::varchar as value
            from (select decode(value)::json as row from orders) group by 1 order by 1
            """
        )
        assert answer is not None  # None is DuckDB's result of statements without rows
        totals = answer.to_arrow_table()

    with client.arrow_producer() as producer:
        producer.send(TOTALS, totals)

    with client.consumer({TopicPartition(TOTALS, 0): "beginning"}, end="end") as consumer:
        found = {
            (record.key or b"").decode(): int(record.value or b"0")
            for batch in consumer
            for record in batch.records
        }
print(found)
assert found == {
    "Oslo": sum(range(0, 1000, 3)),
    "Rome": sum(range(1, 1000, 3)),
    "Lima": sum(range(2, 1000, 3)),
}
