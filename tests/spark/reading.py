"""What readers see of a topic: used by the tests of the sink, without Spark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from mqd.client import columns as arrow
from mqd.client.descriptions import LATEST, ListedOffset
from mqd.client.sync import BlockingClient
from mqd.types import TopicPartition

STABLE_SECONDS = 30.0


def ends_of(client: BlockingClient, topic: str, *, committed: bool = True) -> dict[int, int]:
    """Partition -> its last stable offset, or its high watermark."""
    places = {
        TopicPartition(topic, partition): LATEST
        for partition in range(client.partition_count(topic, fresh=True))
    }
    found = client.admin.list_offsets(places, read_committed=committed)
    ends = {}
    for tp in places:
        end = found[tp]
        assert isinstance(end, ListedOffset), end
        ends[tp.partition] = end.offset
    return ends


def rows_in(
    client: BlockingClient, topic: str, columns: Sequence[str] = ("key", "value")
) -> dict[int, list[Any]]:
    """Partition -> its rows as tuples, as readers with `read_committed` see them."""
    found: dict[int, list[Any]] = {}
    for partition, end in ends_of(client, topic).items():
        rows = found.setdefault(partition, [])
        tp = TopicPartition(topic, partition)
        with client.range_reader(tp, 0, end, read_committed=True) as reader:
            for fetched in reader:
                for batch in arrow.decode(
                    fetched.data,
                    topic,
                    partition,
                    start=fetched.start,
                    end=fetched.next_offset,
                    columns=columns,
                    aborted=[arrow.Aborted(*each) for each in fetched.aborted],
                    read_committed=True,
                ):
                    rows += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def wait_stable(client: BlockingClient, topic: str) -> None:
    """Until no transaction is open in the topic: markers come after the answer to EndTxn."""
    deadline = time.monotonic() + STABLE_SECONDS
    while ends_of(client, topic) != ends_of(client, topic, committed=False):
        assert time.monotonic() < deadline, f"a transaction stays open in {topic}"
        time.sleep(0.02)


def values_in(client: BlockingClient, topic: str, *, stable: bool = True) -> list[bytes]:
    """All values of a topic, sorted. `stable` waits until no transaction is open."""
    if stable:
        wait_stable(client, topic)
    rows = rows_in(client, topic, ("value",)).values()
    return sorted(value for part in rows for (value,) in part)


def open_transactions(client: BlockingClient, prefix: str) -> list[str]:
    """Transactional ids with this prefix whose transaction has no outcome yet."""
    listed = client.admin.list_transactions(["Ongoing"])
    names = [each.transactional_id for each in listed]
    return [name for name in names if name.startswith(prefix)]
