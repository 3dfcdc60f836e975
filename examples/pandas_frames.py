"""A pandas frame into a topic, and a topic into a pandas frame.

python examples/pandas_frames.py [HOST:PORT]
"""

import sys
from secrets import token_hex

import pandas as pd
import pyarrow as pa

from mqd.client import TopicPartition
from mqd.client.sync import connect

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
TOPIC = f"example-pandas-{token_hex(3)}"  # a separate name for each run

orders = pd.DataFrame({"city": ["Oslo", "Rome", "Lima", "Rome"] * 1000, "cents": range(4000)})

with connect(BOOTSTRAP) as client:
    client.admin.create_topic(TOPIC, partitions=3)
    # Key and value are bytes or text; the key chooses the partition.
    with client.arrow_producer() as producer:
        rows = pd.DataFrame({"key": orders["city"], "value": orders["cents"].astype(str)})
        sent = producer.send(TOPIC, pa.Table.from_pandas(rows, preserve_index=False))
    print("sent", sent, "rows")

    with client.consumer(
        {TopicPartition(TOPIC, number): "beginning" for number in range(3)}, end="end"
    ) as consumer:
        batches = consumer.arrow_batches(["key", "value", "timestamp"])
        frame = pa.Table.from_batches(batches, schema=batches.schema).to_pandas()

frame["city"] = frame["key"].str.decode("utf-8")
frame["cents"] = frame["value"].astype(int)
totals = frame.groupby("city")["cents"].sum()
print(totals.to_string())
assert totals.to_dict() == orders.groupby("city")["cents"].sum().to_dict()
