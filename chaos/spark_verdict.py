"""Checks a copy that Spark has made: the rows of both topics, and open transactions.

The query has ended. Transactions of killed tasks may stay open until their timeout.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from mqd.client import columns as arrow, sync
from mqd.client.descriptions import LATEST
from mqd.client.errors import ClientError
from mqd.client.security import Security
from mqd.types import TopicPartition

from .spark_copy_checker import check_rows

STABLE_S = 120.0
"""The time within which all transactions must end, and every last stable offset must reach the high
watermark.
"""
POLL_INTERVAL_S = 0.2


class Topic(NamedTuple):
    """A topic of the trial."""

    name: str
    partitions: int


def judge(bootstrap: str, source: Topic, copy: Topic, security: Security) -> list[str]:
    """Returns all violations in the copy under `read_committed`. Raises ClientError."""
    violations = []
    with sync.connect(bootstrap, security=security) as client:
        deadline = time.monotonic() + STABLE_S
        while found := _open(client, copy):
            if time.monotonic() > deadline:
                violations.append(f"still open: {', '.join(found)}")
                break
            time.sleep(POLL_INTERVAL_S)
        rows = check_rows(_rows(client, source), _rows(client, copy))
    return violations + [str(each) for each in rows]


def _open(client: sync.BlockingClient, copy: Topic) -> list[str]:
    """Open transactions, and partitions whose last stable offset is below the high watermark."""
    listed = client.admin.list_transactions(["Ongoing"])
    names = [f"transactional id {each.transactional_id}" for each in listed]
    stable = _ends(client, copy, committed=True)
    ends = _ends(client, copy, committed=False)
    return names + [f"{tp} from {stable[tp]}" for tp in ends if stable[tp] != ends[tp]]


def _ends(
    client: sync.BlockingClient, topic: Topic, *, committed: bool
) -> dict[TopicPartition, int]:
    wanted = {TopicPartition(topic.name, number): LATEST for number in range(topic.partitions)}
    ends = {}
    for tp, outcome in client.admin.list_offsets(wanted, read_committed=committed).items():
        if isinstance(outcome, ClientError):
            raise outcome
        ends[tp] = outcome.offset
    return ends


def _rows(client: sync.BlockingClient, topic: Topic) -> dict[int, list[bytes]]:
    """Partition -> all values that a `read_committed` consumer receives."""
    found: dict[int, list[bytes]] = {}
    for tp, end in _ends(client, topic, committed=True).items():
        rows = found.setdefault(tp.partition, [])
        with client.range_reader(tp, 0, end, read_committed=True) as reader:
            for fetched in reader:
                for batch in arrow.decode(
                    fetched.data,
                    tp.topic,
                    tp.partition,
                    start=fetched.start,
                    end=fetched.next_offset,
                    columns=("value",),
                    aborted=[arrow.Aborted(*each) for each in fetched.aborted],
                    read_committed=True,
                ):
                    rows += batch.column(0).to_pylist()
    return found
