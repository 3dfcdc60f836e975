"""Share groups with Apache Kafka's own consumer, kafka-console-share-consumer.sh (KIP-932)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from chaos.ensemble import ensemble

from .conftest import GROUP_OPTIONS, Broker, running
from .test_kafka_tools import CONFIGS, TOOL_SECONDS, have_tools, run_tool, tool

CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
SHARE = "group.coordinator.rebalance.protocols=classic,consumer,share"
RECORDS = 100

pytestmark = [
    pytest.mark.skipif(not have_tools(), reason="needs Java and `scripts/kafka.sh fetch`"),
    pytest.mark.timeout(15 * TOOL_SECONDS),
]


@pytest.fixture(scope="module")
def shares(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """A broker that serves share groups."""
    kind = request.config.getoption("--kind")
    with running(
        ensemble(
            kind,
            tmp_path_factory.mktemp("shares"),
            request.config.getoption("--nodes"),
            options=(
                "auto.create.topics.enable=true",
                *GROUP_OPTIONS,
                *((SHARE,) if kind == "mqd" else ()),
            ),
        )
    ) as cluster:
        yield Broker("127.0.0.1", cluster.nodes[1].port, None, cluster.bootstrap)


def test_each_record_is_delivered_once(shares: Broker, new_name: Callable[[], str]) -> None:
    topic, group = new_name(), new_name()
    producer = Producer({"bootstrap.servers": shares.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, f"value-{number}".encode(), key=str(number).encode())
    assert producer.flush(30) == 0
    earliest = ("--add-config", "share.auto.offset.reset=earliest")
    tool(shares, CONFIGS, "--alter", "--group", group, *earliest)
    read: list[str] = []
    for _ in range(2):  # each run is another member
        done = run_tool(
            shares,
            CONSUMER,
            *("--topic", topic, "--group", group),
            *("--max-messages", str(RECORDS // 2), "--timeout-ms", "30000"),
        )
        read += [line for line in done.stdout.splitlines() if line.startswith("value-")]
    assert len(read) == len(set(read)) >= RECORDS // 2, done.stderr
    done = run_tool(shares, CONSUMER, *("--topic", topic, "--group", group, "--timeout-ms", "5000"))
    read += [line for line in done.stdout.splitlines() if line.startswith("value-")]
    assert sorted(read) == sorted(f"value-{number}" for number in range(RECORDS)), done.stderr
