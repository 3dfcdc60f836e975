"""The broker under test: a fresh `mqd start` for the session, or with `--broker host:port` a
running one.

`--nodes 3` runs the same tests on a cluster: three `mqd start`, or with `--kind kafka` three nodes
of Apache Kafka, which the tests may kill as well. `mqd_only` marks tests of behaviour that other
brokers need not have (each test gives the reason); they are skipped with any other broker. The
tests in `test_cluster_*.py` always have a cluster of three nodes of that kind. All nodes run at the
beginning of each test, and failed nodes are restored after it.
"""

from __future__ import annotations

import functools
import itertools
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from chaos.ensemble import Ensemble, ensemble
from chaos.node import Node

from .classic_members import Members
from .secured_cluster import SecuredCluster, matrix_users, secured_cluster
from .share_exchanges import ShareWire, Sharing, group_here
from .wire import Wire, create_topic, found_coordinator, has_leaders, until

RACKS = {1: "a", 2: "b", 3: "c"}
OPTIONS = (
    "auto.leader.rebalance.enable=false",
    "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector",
)
GROUP_OPTIONS = (
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=1000",
    "group.consumer.min.session.timeout.ms=1000",
    "group.consumer.session.timeout.ms=3000",
    "group.consumer.min.heartbeat.interval.ms=100",
    "group.consumer.heartbeat.interval.ms=300",
    "group.share.assignment.interval.ms=0",
    "group.share.min.session.timeout.ms=1000",
    "group.share.min.heartbeat.interval.ms=500",
    "group.share.min.record.lock.duration.ms=1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=200",
)
"""So that tests need not wait for dead members and abandoned transactions.

A foreign broker must be started with them.
"""
AUTHORIZER = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:ANONYMOUS",
)
SESSION_MS = 3000
HEAL_S = 60.0
CLUSTER_TIMEOUT_S = 240
"""Restarts of a JVM are slow."""

LEFT_BEHIND = "ignore:unclosed <(socket|ssl):ResourceWarning"
"""kafka-python and aiokafka leave a socket to the garbage collector when a node ends while they
connect; this may occur in any test.
"""

_session = secrets.token_hex(3)
_counter = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--broker",
        metavar="HOST:PORT",
        default=None,
        help="run the conformance tests against this broker instead of a new mqd",
    )
    parser.addoption(
        "--nodes",
        type=int,
        default=1,
        help="run the conformance tests against a new cluster of so many nodes (1)",
    )
    parser.addoption(
        "--kind", choices=("mqd", "kafka"), default="mqd", help="of mqd or of Apache Kafka (mqd)"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "mqd_only: a promise that other brokers do not make; skipped with --broker"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cluster_is_foreign = config.getoption("--broker", default=None) is not None
    external = (
        config.getoption("--broker", default=None) is not None
        or config.getoption("--kind", default="mqd") != "mqd"
    )
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.conformance)
        item.add_marker(pytest.mark.filterwarnings(LEFT_BEHIND))
        is_slow_to_start = config.getoption("--kind", default="mqd") == "kafka"
        if is_slow_to_start and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(CLUSTER_TIMEOUT_S))
        if item.path.name.startswith("test_cluster_"):
            item.add_marker(pytest.mark.timeout(CLUSTER_TIMEOUT_S))
            if cluster_is_foreign:
                item.add_marker(
                    pytest.mark.skip(reason="the nodes of a foreign cluster are not ours to kill")
                )
        if external and item.get_closest_marker("mqd_only"):
            item.add_marker(pytest.mark.skip(reason="only mqd promises this"))


@dataclass(frozen=True)
class Broker:
    """Where the broker under test listens, and its process if the test session started it."""

    host: str
    port: int
    node: Node | None
    bootstrap: str | None = None
    """All nodes of a cluster."""

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of every node, sorted."""
        pairs = [address.rpartition(":") for address in self.address.split(",")]
        return sorted((host, int(port)) for host, _, port in pairs)

    @property
    def address(self) -> str:
        """The bootstrap servers for clients."""
        return self.bootstrap or f"{self.host}:{self.port}"


@pytest.fixture(scope="session")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    address = request.config.getoption("--broker", default=None)
    if address is not None:
        host, _, port = address.rpartition(":")
        yield Broker(host, int(port), None)
        return
    count, kind = (
        request.config.getoption("--nodes", default=1),
        request.config.getoption("--kind", default="mqd"),
    )
    if count > 1 or kind != "mqd":
        with running(
            ensemble(
                kind,
                tmp_path_factory.mktemp(kind),
                count,
                options=("auto.create.topics.enable=true", *GROUP_OPTIONS),
            )
        ) as cluster:
            first = cluster.nodes[1]
            yield Broker(
                "127.0.0.1",
                first.port,
                first if isinstance(first, Node) else None,
                cluster.bootstrap,
            )
        return
    node = Node(tmp_path_factory.mktemp("mqd"), ("auto.create.topics.enable=true", *GROUP_OPTIONS))
    node.start()
    try:
        yield Broker("127.0.0.1", node.port, node)
    finally:
        if node.running:
            node.stop()


@pytest.fixture(scope="session")
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """A broker with an authorizer, whose clients are super users."""
    if request.config.getoption("--broker") is not None:
        yield request.getfixturevalue("broker")
        return
    with running(
        ensemble(
            request.config.getoption("--kind"),
            tmp_path_factory.mktemp("guarded"),
            request.config.getoption("--nodes"),
            options=(*GROUP_OPTIONS, *AUTHORIZER),
        )
    ) as cluster:
        yield Broker("127.0.0.1", cluster.nodes[1].port, None, cluster.bootstrap)


@contextmanager
def running(cluster: Ensemble) -> Iterator[Ensemble]:
    """The cluster for the length of the block.

    Nodes that still run at its end must stop cleanly.
    """
    try:
        cluster.start()
        yield cluster
        cluster.stop()
    finally:
        cluster.kill()


@pytest.fixture
def new_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Makes topic names that no other test, worker or earlier run on the same broker has used."""
    stem = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)[:60].strip("-")
    return lambda: f"{stem}-{_session}-{next(_counter)}"


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    """A bare connection to the broker."""
    with Wire(broker.host, broker.port) as connection:
        yield connection


def known_everywhere(broker: Broker, topic: str, partitions: int) -> None:
    """Wait until every node has the topic's leaders: a client may send Metadata to any node, and
    nodes apply metadata at different times.
    """
    for address in broker.addresses:
        with Wire(*address) as wire:
            until(lambda: has_leaders(wire, topic, partitions), f"leaders of {topic} at {address}")


@pytest.fixture
def topic(broker: Broker, wire: Wire, new_name: Callable[[], str]) -> str:
    """A new topic with one partition."""
    name = create_topic(wire, new_name())
    known_everywhere(broker, name, 1)
    return name


@pytest.fixture(scope="session")
def three_nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ensemble]:
    kind = request.config.getoption("--kind", default="mqd")
    with running(
        ensemble(
            kind,
            tmp_path_factory.mktemp(kind),
            3,
            session_ms=SESSION_MS,
            racks=RACKS,
            options=(*OPTIONS, *GROUP_OPTIONS),
        )
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def secured_nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredCluster]:
    """Three nodes with every security protocol and mechanism."""
    directory, kind = tmp_path_factory.mktemp("secured"), request.config.getoption("--kind")
    with secured_cluster(kind, directory, matrix_users()) as cluster:
        yield cluster


@pytest.fixture
def cluster(three_nodes: Ensemble) -> Iterator[Ensemble]:
    """Three running nodes."""
    yield three_nodes
    for node in three_nodes.nodes.values():
        if node.paused:
            node.resume()
        if not node.running:
            node.launch()
    for node in three_nodes.nodes.values():
        node.wait_ready()
    count = len(three_nodes.nodes)
    three_nodes.wait_until(
        lambda: all(len(three_nodes.brokers(node_id)) == count for node_id in three_nodes.nodes),
        "all nodes",
        HEAL_S,
    )


@pytest.fixture
def connect(cluster: Ensemble) -> Iterator[Callable[[int], Wire]]:
    """Opens a bare connection to a node."""
    opened: list[Wire] = []

    def to(node_id: int) -> Wire:
        opened.append(Wire("127.0.0.1", cluster.nodes[node_id].port))
        return opened[-1]

    yield to
    for wire in opened:
        wire.socket.close()


@pytest.fixture
def members(wire: Wire, new_name: Callable[[], str]) -> Iterator[Members]:
    """Members of a new group, at its coordinator."""
    group = new_name()
    with ExitStack() as stack:
        found = Members(group, found_coordinator(wire, group, 0), stack)
        until(
            lambda: found.described(5).error_code not in (14, 15, 16),
            "the coordinator has loaded",
            60,
        )
        yield found


@pytest.fixture
def sharing(broker: Broker, topic: str, new_name: Callable[[], str]) -> Iterator[Sharing]:
    """A share group, and a topic with one partition, which it reads from the first record. One node
    coordinates the group and leads the topic."""
    with ShareWire(broker.host, broker.port) as share_wire:
        group = group_here(share_wire, new_name)
        found = Sharing(share_wire, group, topic)
        describe = functools.partial(share_wire.exchange, "ShareGroupDescribe", group_ids=[group])
        until(lambda: describe()["groups"][0]["error_code"] == 69, "the coordinator has loaded", 60)
        share_wire.configure(group, share_auto_offset_reset="earliest")
        yield found
