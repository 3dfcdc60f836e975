"""Share groups with Apache Kafka's own consumer, kafka-console-share-consumer.sh (KIP-932)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer

from chaos.ensemble import ensemble
from mqd.client import AcknowledgementFailed
from mqd.client.sync import BlockingShareConsumer, BlockingShareRecord, connect
from tests.ran import Ran

from .conftest import GROUP_OPTIONS, Broker, running
from .test_kafka_tools import CONFIGS, TOOL_SECONDS, have_tools, run_tool, tool

GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
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
            ),
        )
    ) as cluster:
        yield Broker("127.0.0.1", cluster.nodes[1].port, None, cluster.bootstrap)


def test_each_record_is_delivered_once(shares: Broker, new_name: Callable[[], str]) -> None:
    topic, group = new_name(), new_name()
    prepare(shares, topic, group)
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


def prepare(shares: Broker, topic: str, group: str) -> None:
    """Produce the records, and have the group read them from the first one."""
    producer = Producer({"bootstrap.servers": shares.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, f"value-{number}".encode())
    assert producer.flush(30) == 0
    earliest = ("--add-config", "share.auto.offset.reset=earliest")
    tool(shares, CONFIGS, "--alter", "--group", group, *earliest)


def test_kafkas_tool_describes_resets_and_deletes_groups(
    shares: Broker, new_name: Callable[[], str]
) -> None:
    """kafka-share-groups.sh."""
    topic, group = new_name(), new_name()
    prepare(shares, topic, group)
    one = ("--group", group)

    def read(records: int) -> list[str]:
        done = run_tool(
            shares,
            CONSUMER,
            *("--topic", topic, *one, "--timeout-ms", "30000"),
            *("--max-messages", str(records)),
        )
        return [line for line in done.stdout.splitlines() if line.startswith("value-")]

    def lag() -> str:
        """Start offsets are not compared: Apache Kafka may store them later."""
        described = tool(shares, GROUPS, "--describe", *one)
        rows = [line.split() for line in described.splitlines() if topic in line]
        assert len(rows) == 1, described
        return rows[0][-1]

    assert len(read(RECORDS)) == RECORDS
    assert lag() == "0"
    assert group in tool(shares, GROUPS, "--list").split()
    listed = tool(shares, GROUPS, "--list", "--state", "Empty")
    assert [group, "Empty"] in [line.split() for line in listed.splitlines()]
    reset = ("--reset-offsets", *one, "--topic", topic, "--to-earliest")
    tool(shares, GROUPS, *reset, "--dry-run")
    assert lag() == "0"
    tool(shares, GROUPS, *reset, "--execute")
    assert lag() == str(RECORDS)
    assert read(1)
    deleted = tool(shares, GROUPS, "--delete-offsets", *one, "--topic", topic)
    assert [topic, "Successful"] in [line.split() for line in deleted.splitlines()], deleted
    tool(shares, GROUPS, "--delete", *one)
    assert group not in tool(shares, GROUPS, "--list").split()


class Acting:
    """A member of a group in a share session, until the end of the block."""

    def __init__(self, shares: Broker, topic: str, group: str) -> None:
        self._stack = ExitStack()
        client = self._stack.enter_context(connect(shares.address))
        self.consumer = self._stack.enter_context(
            client.share_consumer(group, [topic], mode="explicit", max_records=10)
        )
        self.first = next_of(self.consumer)

    def __enter__(self) -> Acting:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def columns(text: str, name: str) -> list[list[str]]:
    """The words of the lines that begin with this name."""
    rows = [line.split() for line in text.splitlines()]
    return [row for row in rows if row and row[0] == name]


@pytest.mark.slow
def test_kafkas_tool_shows_active_groups(shares: Broker, new_name: Callable[[], str]) -> None:
    """kafka-share-groups.sh --list, and --describe with --state, --members and --offsets."""
    topic, group = new_name(), new_name()
    prepare(shares, topic, group)

    def describe(*options: str) -> list[list[str]]:
        return columns(tool(shares, GROUPS, "--describe", *options), group)

    with Acting(shares, topic, group) as member:
        member.first.accept()
        listed = tool(shares, GROUPS, "--list", "--state")
        assert [group, "Stable"] in [line.split() for line in listed.splitlines()]
        (row,) = describe("--group", group, "--state")
        assert row[-2:] == ["Stable", "1"], row
        (row,) = describe("--all-groups", "--state", "--verbose")
        assert "Stable" in row and row[-1] == "1", row
        (row,) = describe("--group", group, "--members")
        assert f"{topic}:0" in row, row
        (row,) = describe("--group", group, "--members", "--verbose")
        assert f"{topic}:0" in row, row
        (row,) = describe("--group", group, "--offsets")
        assert row[1:3] == [topic, "0"] and row[-1] == str(RECORDS - 1), row
        (row,) = describe("--group", group, "--offsets", "--verbose")
        assert row[1:3] == [topic, "0"] and row[-1] == str(RECORDS - 1), row


@pytest.mark.slow
def test_kafkas_tool_leaves_active_groups_alone(
    shares: Broker, new_name: Callable[[], str]
) -> None:
    topic, group = new_name(), new_name()
    prepare(shares, topic, group)
    one, named = ("--group", group), ("--topic", topic)
    with Acting(shares, topic, group):
        for options, cause in (
            (("--delete", *one), "is not EMPTY"),
            (("--delete-offsets", *one, *named), "not empty"),
            (("--reset-offsets", *one, *named, "--to-earliest", "--execute"), "not empty"),
        ):
            refused = run_tool(shares, GROUPS, *options)
            assert cause in refused.stdout + refused.stderr, refused
    missing = new_name()
    refused = run_tool(shares, GROUPS, "--describe", "--group", missing)
    assert f"Group {missing} not found." in refused.stdout + refused.stderr


@pytest.mark.slow
def test_kafkas_tool_resets_offsets(shares: Broker, new_name: Callable[[], str]) -> None:
    """To the end, to a time, and of all topics; a group that does not exist is created."""
    topic, group = new_name(), new_name()
    prepare(shares, topic, group)
    reset = ("--reset-offsets", "--group", group, "--execute")

    def lag() -> str:
        described = tool(shares, GROUPS, "--describe", "--group", group)
        (row,) = columns(described, group)
        return row[-1]

    tool(shares, GROUPS, *reset, "--topic", topic, "--to-latest")
    assert lag() == "0"
    tool(shares, GROUPS, *reset, "--all-topics", "--to-datetime", "2020-01-01T00:00:00.000")
    assert lag() == str(RECORDS)
    both = ("--delete", "--group", group, "--group", new_name())
    deleted = run_tool(shares, GROUPS, *both)
    assert group not in tool(shares, GROUPS, "--list").split(), deleted


@pytest.mark.slow
@pytest.mark.parametrize("option, again", [("--reject", 0), ("--release", 10)])
def test_kafkas_console_consumer_gives_records_back(
    shares: Broker, new_name: Callable[[], str], option: str, again: int
) -> None:
    """kafka-console-share-consumer.sh --reject and --release."""
    topic, group = new_name(), new_name()
    prepare(shares, topic, group)
    consume = ("--topic", topic, "--group", group, "--timeout-ms", "10000")
    done = run_tool(shares, CONSUMER, *consume, "--max-messages", "10", option)
    first = [line for line in done.stdout.splitlines() if line.startswith("value-")]
    assert len(first) == 10, done.stderr
    rest = run_tool(shares, CONSUMER, *consume)
    lines = rest.stdout.splitlines()
    assert sum(line in first for line in lines) == again, rest.stderr
    assert set(lines) | set(first) >= {f"value-{number}" for number in range(RECORDS)}


@pytest.mark.slow
def test_mqctl_shows_and_resets_share_groups(shares: Broker, new_name: Callable[[], str]) -> None:
    topic, group = new_name(), new_name()
    prepare(shares, topic, group)

    def mqctl(*arguments: str) -> Ran:
        command = [sys.executable, "-m", "mqctl", "-b", shares.address, "-o", "json", *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    run_tool(
        shares,
        CONSUMER,
        *("--topic", topic, "--group", group, "--timeout-ms", "30000"),
        *("--max-messages", str(RECORDS)),
    )
    [described] = mqctl("group", "describe", group).data
    assert (described["type"], described["state"]) == ("share", "Empty")
    [lag] = mqctl("group", "lag", group).data
    assert (lag["topic"], lag["partition"], lag["end"], lag["lag"]) == (topic, 0, RECORDS, 0)
    reset = mqctl("group", "seek", group, topic, "--to", "beginning", "--execute")
    assert reset.code == 0, reset.err
    [lag] = mqctl("group", "lag", group).data
    assert (lag["committed"], lag["lag"]) == (0, RECORDS)
    assert mqctl("group", "delete-offsets", group, f"{topic}:0", "-y").code == 1
    deleted = mqctl("group", "delete-offsets", group, topic, "-y")
    assert deleted.data == [{"topic": topic, "partition": 0, "deleted": True}], deleted.err
    assert mqctl("group", "delete", group, "-y").data == [{"group": group, "deleted": True}]


def test_the_client_of_mqd(shares: Broker, new_name: Callable[[], str]) -> None:
    """Each kind of acknowledgement; a lock that ended; records of a closed member."""
    topic, group = new_name(), new_name()
    prepare(shares, topic, group)
    with connect(shares.address) as client:
        with client.share_consumer(group, [topic], mode="explicit") as consumer:
            records = [next_of(consumer) for _ in range(RECORDS)]
            assert sorted(record.offset for record in records) == list(range(RECORDS))
            records[0].renew()
            records[0].accept()
            records[1].reject()
            records[2].release()
            for record in records[3:90]:
                record.accept_soon()
            consumer.flush()
            again = next_of(consumer)
            assert (again.offset, again.delivery_count) == (2, 2)
            again.accept()
            with pytest.raises(AcknowledgementFailed, match="has been acknowledged"):
                again.accept()
        with client.share_consumer(
            group, [topic], acquire_mode="record_limit", max_records=1
        ) as consumer:
            assert sorted(next_of(consumer).offset for _ in range(10)) == list(range(90, RECORDS))
        with client.share_consumer(group, [topic]) as consumer:
            assert consumer.next(timeout_s=2) is None


def next_of(consumer: BlockingShareConsumer) -> BlockingShareRecord:
    record = consumer.next(timeout_s=60)
    assert record is not None
    return record


def test_mqctl_consumes(shares: Broker, new_name: Callable[[], str]) -> None:
    topic, group = new_name(), new_name()
    prepare(shares, topic, group)

    def consume(*arguments: str) -> list[str]:
        command = [sys.executable, "-m", "mqctl", "consume", topic, "-b", shares.address]
        command += ["--share-group", group, *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.splitlines()

    assert consume("-n", "60") == [f"value-{number}" for number in range(60)]
    assert consume("-n", "1", "--release") == ["value-60"]
    assert consume("-n", "1", "--reject") == ["value-60"]
    assert consume("--idle", "10") == [f"value-{number}" for number in range(61, RECORDS)]


@pytest.mark.mqd_only("Apache Kafka ignores the delay")
def test_kafkas_tool_reads_the_state_of_delayed_records(
    shares: Broker, new_name: Callable[[], str]
) -> None:
    topic, group = new_name(), new_name()
    prepare(shares, topic, group)
    with (
        connect(shares.address) as client,
        client.share_consumer(group, [topic], mode="explicit") as consumer,
    ):
        next_of(consumer).release(delay=3600)
    printed = run_tool(
        shares,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--topic", "__share_group_state", "--from-beginning", "--timeout-ms", "10000"),
        "--formatter",
        "org.apache.kafka.tools.consumer.group.share.ShareGroupStateMessageFormatter",
    ).stdout
    rows = [line for line in printed.splitlines() if group in line]
    released = '{"firstOffset":0,"lastOffset":0,"deliveryState":0,"deliveryCount":1}'
    assert any(released in line for line in rows), printed
