"""The broker under test: a fresh `mqd start` for the session, or with `--broker host:port` one that runs already.

`mqd_only` marks what other brokers need not do (each test says why); it is skipped against an external broker.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chaos.node import Node

from .wire import Wire, create_topic

_session = secrets.token_hex(3)
_counter = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--broker", metavar="HOST:PORT", default=None, help="run the conformance tests against this broker instead of a new mqd"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "mqd_only: a promise that other brokers do not make; skipped with --broker")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    external = config.getoption("--broker", default=None) is not None
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.conformance)
        if external and item.get_closest_marker("mqd_only"):
            item.add_marker(pytest.mark.skip(reason="only mqd promises this"))


@dataclass(frozen=True)
class Broker:
    """Where the broker under test listens, and its process if it is ours."""

    host: str
    port: int
    node: Node | None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    address = request.config.getoption("--broker", default=None)
    if address is not None:
        host, _, port = address.rpartition(":")
        yield Broker(host, int(port), None)
        return
    node = Node(tmp_path_factory.mktemp("mqd"), ("auto.create.topics.enable=true",))
    node.start()
    try:
        yield Broker("127.0.0.1", node.port, node)
    finally:
        if node.running:
            node.stop()


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


@pytest.fixture
def topic(wire: Wire, new_name: Callable[[], str]) -> str:
    """A new topic with one partition."""
    return create_topic(wire, new_name())
