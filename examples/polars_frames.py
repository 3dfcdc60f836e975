"""A topic into a polars frame, batch by batch: each batch is aggregated while the next ones arrive.

python examples/polars_frames.py [HOST:PORT]
"""

import sys
from secrets import token_hex

import polars as pl

from mqd.client import TopicPartition
from mqd.client.sync import connect

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
TOPIC = f"example-polars-{token_hex(3)}"  # a separate name for each run

events = pl.DataFrame(
    {
        "key": [f"sensor-{number % 5}" for number in range(5000)],
        "value": [str(number % 100) for number in range(5000)],
    }
)

with connect(BOOTSTRAP) as client:
    client.admin.create_topic(TOPIC, partitions=2)
    with client.arrow_producer() as producer:
        producer.send(TOPIC, events.to_arrow())

    frames = []
    with client.consumer(
        {TopicPartition(TOPIC, number): "beginning" for number in range(2)}, end="end"
    ) as consumer:
        for batch in consumer.arrow_batches(["key", "value"], rows_max=1000):
            frame = pl.DataFrame(batch).select(pl.col("key", "value").cast(pl.String))
            frames.append(
                frame.group_by("key").agg(rows=pl.len(), total=pl.col("value").cast(pl.Int64).sum())
            )

totals = pl.concat(frames).group_by("key").sum().sort("key")
print(totals)
assert (
    totals["rows"].sum() == 5000 and totals["total"].sum() == events["value"].cast(pl.Int64).sum()
)
