from __future__ import annotations

from pathlib import Path

import pytest

from mqd.config import ConfigError, NodeConfig
from mqd.peers import Peers, parse_peers
from mqd.security.client_listeners import ClientListener, client_listeners

PEERS = """
cluster_id = "c"
[[node]]
id = 1
host = "10.0.0.1"
port = 9092
peer_port = 9192
advertised_host = "one.example"
"""


def peers() -> Peers:
    return parse_peers(PEERS, Path("peers.toml"))


def parsed(**settings: str) -> tuple[ClientListener, ...]:
    overrides = {key.replace("_", "."): value for key, value in settings.items()}
    config = NodeConfig.load(overrides=overrides).of_node(peers(), 1)
    return client_listeners(config, peers().nodes[1])


def shown(listener: ClientListener) -> str:
    return (
        f"{listener.name} {listener.protocol.name} {listener.host}:{listener.port} "
        f"{listener.advertised_host}:{listener.advertised_port}"
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["PLAINTEXT PLAINTEXT 10.0.0.1:9092 one.example:9092"]),
        ({"listeners": "SSL://:9093"}, ["SSL SSL :9093 one.example:9093"]),
        (
            {
                "listeners": "plaintext://127.0.0.1:9092,SASL_SSL://[::1]:9094",
                "advertised_listeners": "SASL_SSL://kafka.example:19094",
            },
            [
                "PLAINTEXT PLAINTEXT 127.0.0.1:9092 127.0.0.1:9092",
                "SASL_SSL SASL_SSL ::1:9094 kafka.example:19094",
            ],
        ),
        (
            {
                "listeners": "IN://10.0.0.1:1,OUT://0.0.0.0:2,CONTROLLER://:3",
                "listener_security_protocol_map": "in:PLAINTEXT, out:SSL,CONTROLLER:PLAINTEXT",
                "controller_listener_names": "CONTROLLER",
            },
            ["IN PLAINTEXT 10.0.0.1:1 10.0.0.1:1", "OUT SSL 0.0.0.0:2 one.example:2"],
        ),
    ],
)
def test_listeners_have_names_protocols_and_addresses(
    settings: dict[str, str], expected: list[str]
) -> None:
    assert [shown(listener) for listener in parsed(**settings)] == expected


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"listeners": "9092"}, "'9092' is not NAME://host:port"),
        ({"listeners": "SSL://h:99999"}, "not between 0 and 65535"),
        ({"listeners": "IN://:1"}, "No security protocol defined for listener IN"),
        ({"listeners": "SSL://:1,ssl://:2"}, "Each listener must have a different name"),
        ({"listeners": "SSL://:1,PLAINTEXT://:1"}, "must have a different port"),
        (
            {"listeners": "PEER://:1", "listener_security_protocol_map": "PEER:SSL"},
            "use another name",
        ),
        ({"listeners": "PLAINTEXT://:1", "listener_security_protocol_map": "A"}, "NAME:PROTOCOL"),
        ({"listeners": "SSL://:1", "advertised_listeners": "PLAINTEXT://h:1"}, "does not have"),
        ({"listeners": "SSL://:1", "advertised_listeners": "SSL://0.0.0.0:1"}, "cannot connect"),
        ({"advertised_listeners": "PLAINTEXT://h:1"}, "listeners is not"),
        (
            {"listeners": "CONTROLLER://:1", "controller_listener_names": "CONTROLLER"},
            "no listener for clients",
        ),
    ],
)
def test_invalid_listeners_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parsed(**settings)


def test_a_key_of_one_listener_replaces_the_general_one() -> None:
    config = NodeConfig.load(
        environment={"MQD_LISTENER_NAME_SASL__SSL_SSL_CLIENT_AUTH": "required"},
        overrides={
            "listeners": "SASL_SSL://:9093",
            "ssl.client.auth": "requested",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": "x required;",
        },
    )
    assert config.text("ssl.client.auth") == "requested"
    assert config.of_listener("SASL_SSL").text("ssl.client.auth") == "required"
    assert config.of_listener("SSL").text("ssl.client.auth") == "requested"
    assert config.listener_setting("SASL_SSL", "plain.sasl.jaas.config") == "x required;"
    assert config.warnings == ()
