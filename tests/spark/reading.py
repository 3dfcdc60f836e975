"""What readers see of a topic: used by the tests of the sink, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mqd.client import columns as arrow
from mqd.client.descriptions import LATEST
from mqd.client.sync import BlockingClient
from mqd.types import TopicPartition


def ends_of(client: BlockingClient, topic: str, *, committed: bool = True) -> dict[int, int]:
    """Partition -> its last stable offset, or its high watermark."""
    places = {
        TopicPartition(topic, partition): LATEST
        for partition in range(client.partition_count(topic, fresh=True))
    }
    found = client.admin.list_offsets(places, read_committed=committed)
    return {tp.partition: found[tp].offset for tp in places}


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


def values_in(client: BlockingClient, topic: str) -> list[bytes]:
    """All values of a topic, sorted."""
    rows = rows_in(client, topic, ("value",)).values()
    return sorted(value for part in rows for (value,) in part)


def open_transactions(client: BlockingClient, prefix: str) -> list[str]:
    """Transactional ids with this prefix whose transaction has not ended."""
    listed = client.admin.list_transactions()
    ended = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
    return [
        each.transactional_id
        for each in listed
        if each.transactional_id.startswith(prefix) and each.state not in ended
    ]
