"""The security of a run: its files, the options of nodes, those of each client library."""

from __future__ import annotations

import argparse
import ssl
import stat
from pathlib import Path

import pytest

from chaos import cluster_security
from chaos.client_security import PLAINTEXT, aiokafka_options, librdkafka_options, load
from chaos.cluster_security import MECHANISMS, PROTOCOLS, USER, ClusterSecurity
from chaos.node import CLUSTER_ID
from mqd.config import NodeConfig
from mqd.security.client_listeners import SecurityProtocol
from mqd.security.mechanism import MECHANISMS as MECHANISMS_OF_MQD


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cluster_security.add_arguments(parser)
    return parser.parse_args(words)


def test_plaintext_changes_nothing(tmp_path: Path) -> None:
    arguments = parsed()
    assert cluster_security.from_arguments(arguments, tmp_path / "security") is None
    assert cluster_security.shown(arguments) == ""
    assert load(None) == PLAINTEXT
    assert librdkafka_options(PLAINTEXT) == aiokafka_options(PLAINTEXT) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_run_shows_its_options_again() -> None:
    words = ("--security", "sasl_ssl", "--sasl-mechanism", "PLAIN")
    assert cluster_security.shown(parsed(*words)).split() == list(words)
    assert cluster_security.shown(parsed("--security", "ssl")) == " --security ssl"


def test_all_protocols_and_mechanisms_can_be_chosen() -> None:
    assert set(PROTOCOLS) == set(SecurityProtocol.__members__)
    assert set(MECHANISMS) == set(MECHANISMS_OF_MQD)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_clients_get_the_login_of_the_run(tmp_path: Path, mechanism: str) -> None:
    made = ClusterSecurity.create(tmp_path / "s", "SASL_SSL", mechanism)
    assert stat.S_IMODE(made.command_config.stat().st_mode) == 0o600
    security = load(made.command_config)
    assert (security.protocol, security.mechanism) == ("SASL_SSL", mechanism)
    found, for_aiokafka = librdkafka_options(security), aiokafka_options(security)
    assert found["security.protocol"] == for_aiokafka["security_protocol"] == "SASL_SSL"
    assert Path(found["ssl.ca.location"]).read_bytes().startswith(b"-----BEGIN CERTIFICATE")
    assert isinstance(for_aiokafka["ssl_context"], ssl.SSLContext)
    if mechanism == "OAUTHBEARER":
        token, _ = found["oauth_cb"]("")
        assert token.count(".") == 2
    else:
        assert (found["sasl.username"], found["sasl.password"]) == (USER, made.password)
        assert for_aiokafka["sasl_plain_password"] == made.password


@pytest.mark.parametrize("protocol", PROTOCOLS[1:])
def test_nodes_get_options_that_mqd_knows(tmp_path: Path, protocol: str) -> None:
    made = ClusterSecurity.create(tmp_path / "s", protocol, "SCRAM-SHA-512")
    options = dict(
        each.split("=", 1) for each in made.node_options("mqd", 2, CLUSTER_ID, 20_001, 20_002)
    )
    config = NodeConfig.load(overrides=options)
    assert options["listeners"].endswith(f",{protocol}://127.0.0.1:20002")
    assert config.text("peer.ssl") == ("required" if made.has_tls else "disabled")
    assert ("sasl.enabled.mechanisms" in options) == made.has_sasl
    assert (made.directory / "node-2.pem").exists() == made.has_tls


def test_apache_kafka_keeps_its_controller_listener(tmp_path: Path) -> None:
    made = ClusterSecurity.create(tmp_path / "s", "SASL_PLAINTEXT", "OAUTHBEARER")
    options = dict(
        each.split("=", 1) for each in made.node_options("kafka", 1, CLUSTER_ID, 20_001, 20_011)
    )
    assert options["listeners"].endswith("CONTROLLER://127.0.0.1:20002")
    assert "CONTROLLER" not in options["advertised.listeners"]
    assert "peer.ssl" not in options
    assert "keys.json" in made.java_options
