"""How Spark options become a connection; security that cannot be provided is refused."""

from __future__ import annotations

import os
import pickle
from typing import Any

import pytest

from pyspark_mqd import connection
from pyspark_mqd.connection import Connection, client_for, connection_of, unused_names
from pyspark_mqd.errors import OptionError

BASE = {"kafka.bootstrap.servers": " a:1 , b:2 "}


def test_defaults() -> None:
    assert connection_of(BASE) == Connection("a:1 , b:2", "mqd-spark", 30_000, 60_000, 10_000)


def test_javas_names_are_honoured() -> None:
    found = connection_of(
        {
            **BASE,
            "kafka.client.id": "me",
            "kafka.request.timeout.ms": "1000",
            "kafka.default.api.timeout.ms": "2000",
            "kafka.socket.connection.setup.timeout.ms": "3000",
        }
    )
    assert found == Connection("a:1 , b:2", "me", 1000, 2000, 3000)


def test_max_block_ms_stands_in_for_the_api_timeout() -> None:
    assert connection_of({**BASE, "kafka.max.block.ms": "7"}).api_timeout_ms == 7
    both = {**BASE, "kafka.max.block.ms": "7", "kafka.default.api.timeout.ms": "8"}
    assert connection_of(both).api_timeout_ms == 8


def test_bootstrap_servers_are_required() -> None:
    with pytest.raises(OptionError, match=r"Option 'kafka.bootstrap.servers' must be specified"):
        connection_of({})


@pytest.mark.parametrize("value", ["0", "-5", "soon"])
def test_times_are_positive(value: str) -> None:
    with pytest.raises(OptionError, match=r"'kafka.request.timeout.ms' must be a positive"):
        connection_of({**BASE, "kafka.request.timeout.ms": value})


LOGIN = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.SASL.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": 'a.ScramLoginModule required username="u" password="hush";',
    "kafka.ssl.truststore.location": "/ca.pem",
}


def test_tls_and_login() -> None:
    found = connection_of({**BASE, **LOGIN, "ssl.truststore.location": "/other.pem"})
    security = found.client_options()["security"]
    assert (security.protocol, security.mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (security.username, security.password) == ("u", "hush")
    assert str(security.ca) == "/ca.pem", "the form with the prefix wins"
    assert "hush" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found
    assert connection_of(BASE).client_options()["security"] is None
    assert unused_names({**BASE, **LOGIN}) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka.security.protocol", "SASL_SSL"),
        ("security.protocol", "tls"),
        ("kafka.sasl.mechanism", "PLAIN"),
        ("kafka.SASL.jaas.config", 'x "hush"'),
        ("kafka.ssl.truststore.typo", "/x"),
        ("kafka.ssl.keystore.type", "JKS"),
    ],
)
def test_incomplete_and_unknown_security_is_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=r"'kafka\.sasl\.\*'.*are invalid") as caught:
        connection_of({**BASE, name: value})
    assert "hush" not in str(caught.value)


def test_names_without_an_effect() -> None:
    given = {**BASE, "kafka.linger.ms": "1", "Kafka.Client.Rack": "r", "startingOffsets": "latest"}
    assert unused_names(given) == ["kafka.client.rack", "kafka.linger.ms"]


class _FakeHeld:
    """Stands in for an open client: what matters here is who gets which one."""

    def __init__(self, wanted: Connection) -> None:
        self.client: Any = None
        self.wanted = wanted
        self.closed = False

    def open(self) -> Any:
        self.client = object()
        return self.client

    def alive(self) -> bool:
        return not self.closed

    def close(self) -> None:
        self.closed = True


def test_one_client_a_process_and_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_Held", _FakeHeld)
    monkeypatch.setattr(connection, "_clients", {})
    first = client_for(BASE)
    assert client_for(BASE) is first
    assert client_for({**BASE, "kafka.client.id": "other"}) is not first
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert client_for(BASE) is not first  # after a fork


def test_a_client_whose_thread_has_ended_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_Held", _FakeHeld)
    monkeypatch.setattr(connection, "_clients", {})
    first = client_for(BASE)
    connection.close_clients()
    assert client_for(BASE) is not first
