"""The arguments of `send` that delay a record."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mqd.client import ClientError, ErrorCode, open_producer
from mqd.client.admin import Admin
from mqd.client.delay import delay_header
from mqd.testing import Cluster, simulated


def test_headers() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    assert delay_header(moment, None) == ("mqd-deliver-at", b"1767323045678")
    assert delay_header(1767323045678, None) == ("mqd-deliver-at", b"1767323045678")
    assert delay_header(datetime(1999, 1, 1, tzinfo=UTC), None)[1] == b"915148800000"
    assert delay_header(None, 1.5) == ("mqd-delay", b"1500")
    assert delay_header(None, 0) == ("mqd-delay", b"0")


@pytest.mark.parametrize(
    ("deliver_at", "delay", "problem"),
    [
        (1, 1, "deliver_at and delay"),
        (datetime(2026, 1, 1), None, "no time zone"),
        ("tomorrow", None, "deliver_at is 'tomorrow'"),
        (-1, None, "deliver_at is -1"),
        (5, None, "before the year 2000"),
        (1767323045, None, "before the year 2000"),
        (datetime(1969, 1, 1, tzinfo=UTC), None, "deliver_at is -"),
        (None, "1s", "delay is '1s'"),
        (None, -1, "delay is -1"),
        (None, float("nan"), "delay is nan"),
        (None, True, "delay is True"),
        (None, 1e30, "delay is 1000000000000000"),
    ],
)
def test_wrong_arguments(deliver_at: Any, delay: Any, problem: str) -> None:
    with pytest.raises(ClientError, match=problem):
        delay_header(deliver_at, delay)


@simulated(seed=21)
async def test_a_delay_needs_a_delay_topic() -> None:
    """Otherwise the record would be delivered at once."""
    async with Cluster(nodes=1) as cluster:
        client = await cluster.client()
        admin = Admin(client)
        await admin.create_topic("orders", 1)
        await admin.create_topic("orders.delay", 1, 1, {"mqd.delay.target": "orders"})
        async with open_producer(client, delivery_timeout_s=5) as producer:
            with pytest.raises(ClientError, match="'orders' is no delay topic") as caught:
                await producer.send("orders", b"v", delay=1)
            assert caught.value.code is ErrorCode.INVALID_CONFIG
            assert "mqd.delay.target" in caught.value.remedy
            with pytest.raises(ClientError) as caught:
                await producer.send("missing", b"v", deliver_at=10**12)
            assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert "mqd.delay.target" in caught.value.remedy
            for _ in range(2):
                await producer.send("orders.delay", b"v", delay=0)
