"""What tests of the Spark half share: one Spark session and one cluster of three real nodes.

A test that uses the fixture `spark` needs Java, carries the mark `spark`, and runs under
`make spark-test`. All other tests in this folder are pure and run under `make test`.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chaos.ensemble import Ensemble, ensemble
from mqd.client import sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLUSTER_OPTIONS = (
    "auto.create.topics.enable=true",
    "group.initial.rebalance.delay.ms=0",
    "transaction.two.phase.commit.enable=true",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=200",
)
UNSTABLE = {"mqd": (), "kafka": ("unstable.api.versions.enable=true",)}
SPARK_TEST_SECONDS = 180
ROOT = Path(__file__).parents[2]

_session = secrets.token_hex(3)
_counter = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (
            "spark" in getattr(item, "fixturenames", ())
            and Path(__file__).parent in item.path.parents
        ):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(SPARK_TEST_SECONDS))
            # py4j and pyspark leave sockets and files to the garbage collector
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with `local[2]` and the settings of `pyspark_mqd.configure`."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, and this machine has none")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Spark finds the format by listing sys.path: an editable install is not on it
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "spark"), str(ROOT)])
    from pyspark.sql import SparkSession

    from pyspark_mqd import configure

    scratch = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("mqd tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    )
    session = configure(builder).getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three real nodes, each topic with three replicas; two-phase transactions are enabled.

    With MQD_SPARK_CLUSTER=kafka they are of Apache Kafka: the referee.
    """
    kind = os.environ.get("MQD_SPARK_CLUSTER", "mqd")
    options = CLUSTER_OPTIONS + UNSTABLE[kind]
    nodes = ensemble(kind, tmp_path_factory.mktemp(kind), 3, options=options)
    try:
        nodes.start()
        yield nodes
        nodes.stop()
    finally:
        nodes.kill()


@pytest.fixture
def client(cluster: Ensemble) -> Iterator[sync.BlockingClient]:
    """A blocking client of the cluster."""
    with sync.connect(cluster.bootstrap) as connected:
        yield connected


@pytest.fixture
def new_topic(request: pytest.FixtureRequest, cluster: Ensemble) -> Callable[..., str]:
    """Creates topics under names that no other test uses: `new_topic(partitions,
    configs={...})`.
    """
    stem = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)[:60].strip("-")

    def create(partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        name = f"{stem}-{_session}-{next(_counter)}"
        cluster.create_topic(name, partitions, configs=configs)
        return name

    return create
