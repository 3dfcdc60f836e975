from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from mqd.config import (
    NODE_OPTIONS,
    OPTIONS,
    TOPIC_OPTIONS,
    ConfigError,
    NodeConfig,
    OptionType,
    Status,
    Value,
)
from mqd.config_sources import Source
from mqd.errors import ErrorCode, MqError
from mqd.peers import parse_peers
from mqd.resource_configs import (
    resolve_topic_option,
    topic_options,
    validate_topic_config,
    validate_topic_configs,
)


def load(*settings: str) -> NodeConfig:
    return NodeConfig.load(overrides=dict(setting.split("=", 1) for setting in settings))


def refusal(*settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*settings)
    return str(caught.value)


# -- the table


def test_every_default_is_a_value_that_its_option_reads_back() -> None:
    for option in OPTIONS.values():
        text = option.format(option.default)
        if text is None or (text == "" and option.type is not OptionType.LIST):
            continue
        assert option.parse(text) == option.default, option.name


def test_every_option_has_a_meaning_and_a_note_unless_implemented() -> None:
    for option in OPTIONS.values():
        assert option.meaning, option.name
        assert not option.meaning.endswith("."), option.name
        assert bool(option.note) == (option.status is not Status.IMPLEMENTED), option.name


def test_a_topic_option_has_the_default_that_its_synonyms_give() -> None:
    config = NodeConfig.load()
    for name, option in TOPIC_OPTIONS.items():
        assert resolve_topic_option(name, config, {})[0].value == option.default, name


def test_keys_that_operators_of_kafka_know_are_in_the_table() -> None:
    for name in (
        "node.id",
        "log.dirs",
        "num.partitions",
        "log.retention.hours",
        "sasl.enabled.mechanisms",
        "num.io.threads",
    ):
        assert name in NODE_OPTIONS
    for name in (
        "retention.ms",
        "cleanup.policy",
        "min.insync.replicas",
        "compression.type",
        "remote.storage.enable",
    ):
        assert name in TOPIC_OPTIONS
    assert len(NODE_OPTIONS) > 340
    assert OPTIONS["min.insync.replicas"].scopes == {"node", "topic"}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("auto.create.topics.enable", " FALSE ", False),
        ("num.partitions", "12", 12),
        ("num.partitions", "+12", 12),
        ("log.retention.bytes", "-1", -1),
        ("log.retention.ms", "9223372036854775807", 2**63 - 1),
        ("log.cleaner.min.cleanable.ratio", "0.25", 0.25),
        ("log.cleanup.policy", "compact , delete", ("compact", "delete")),
        ("log.cleanup.policy", "", ()),
        ("compression.gzip.level", "-1", -1),
        ("compression.type", "zstd", "zstd"),
        ("ssl.key.password", " in the middle ", "in the middle"),
    ],
)
def test_text_becomes_a_typed_value(name: str, text: str, value: Value) -> None:
    parsed = OPTIONS[name].parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("auto.create.topics.enable", "yes"),
        ("num.partitions", "1_000"),
        ("num.partitions", "٣"),
        ("num.partitions", "1.0"),
        ("num.partitions", "--1"),
        ("num.partitions", ""),
        ("num.partitions", "0"),
        ("num.partitions", "2147483648"),
        ("offsets.topic.replication.factor", "32768"),
        ("log.retention.ms", "9223372036854775808"),
        ("log.retention.ms", "9" * 5000),
        ("log.cleaner.min.cleanable.ratio", "1.5"),
        ("log.cleaner.min.cleanable.ratio", "nan"),
        ("log.cleanup.policy", "compact,,delete"),
        ("log.cleanup.policy", "compact,compact"),
        ("log.cleanup.policy", "shrink"),
        ("compression.gzip.level", "0"),
        ("compression.type", "brotli"),
    ],
)
def test_invalid_values_are_refused(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        OPTIONS[name].parse(text)


@given(st.lists(st.text("abcXYZ012.:/", min_size=1), unique=True))
def test_lists_survive_being_written_and_read(elements: list[str]) -> None:
    option = OPTIONS["log.dirs"]
    assert option.parse(option.format(tuple(elements)) or "") == tuple(elements)


# -- precedence and sources


def test_later_sources_override_earlier_ones(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nlog.retention.ms=2\nmin.insync.replicas=2\n")
    environment = {"MQD_LOG_RETENTION_MS": "3", "MQD_MIN_INSYNC_REPLICAS": "3", "HOME": "/"}
    config = NodeConfig.load(file, environment, {"min.insync.replicas": "4"})
    names = ("num.partitions", "log.retention.ms", "min.insync.replicas", "fetch.max.bytes")
    assert [config[name] for name in names] == [2, 3, 4, 57671680]
    assert [config.source(name) for name in names] == [
        Source.FILE,
        Source.ENVIRONMENT,
        Source.COMMAND_LINE,
        Source.DEFAULT,
    ]
    assert config.warnings == ()


def test_every_node_key_has_a_value_and_no_other_key_does() -> None:
    config = NodeConfig.load()
    assert set(config) == set(NODE_OPTIONS)
    assert len(config) == len(NODE_OPTIONS)
    assert "retention.ms" not in config
    with pytest.raises(KeyError):
        config["retention.ms"]
    with pytest.raises(KeyError):
        config.source("retention.ms")


def test_typed_readings() -> None:
    config = load("log.dirs=/a,/b")
    assert config.integer("num.partitions") == 1
    assert config.boolean("delete.topic.enable") is True
    assert config.text("logging.level") == "INFO"
    assert config.number("log.cleaner.min.cleanable.ratio") == 0.5
    assert config.strings("log.dirs") == ("/a", "/b")
    with pytest.raises(AssertionError):
        config.integer("delete.topic.enable")


def test_the_configuration_returns_the_values_of_the_peers_file() -> None:
    text = (
        'cluster_id="c"\n[[node]]\nid=7\nhost="a"\nport=1\npeer_port=2\nrack="r"\nadverti'
        'sed_host="b"\n'
    )
    peers = parse_peers(text, Path("peers.toml"))
    config = load("node.id=9").of_node(peers, 7)
    assert config["node.id"] == 7
    assert config["listeners"] == ("PLAINTEXT://a:1",)
    assert config["advertised.listeners"] == ("PLAINTEXT://b:1",)
    assert config["controller.quorum.voters"] == ("7@a:2",)
    assert config["broker.rack"] == "r"
    assert config.source("node.id") is Source.PEERS
    assert config.source("node.id").config_source == 4
    assert len(config.warnings) == 1
    listeners = load("listeners=SSL://:9999").of_node(peers, 7)["listeners"]
    assert listeners == ("SSL://:9999",)


def test_a_password_is_trimmed_as_in_java() -> None:
    for name in ("ssl.keystore.password", "ssl.key.password", "ssl.truststore.password"):
        assert load(f"{name}=\t change it \x01")[name] == "change it"
        assert load(f"{name}=a\u00a0")[name] == "a\u00a0"


def test_secrets_are_not_shown() -> None:
    config = NodeConfig.load().replaced({"ssl.key.password": "hush"}, Source.FILE)
    assert config["ssl.key.password"] == "hush"
    assert "hush" not in repr(config)


# -- warnings and refusals


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "log.retention.msec=1",
            ["-o 'log.retention.msec' is an unknown key; did you mean 'log.retention.ms'?"],
        ),
        ("zzz=1", ["'zzz' is an unknown key", "list all keys with `mqd config list`"]),
        ("retention.ms=1", ["a topic key", "log.retention.ms"]),
        ("remote.storage.enable=false", ["a topic key"]),
        ("num.io.threads=8", ["ignored", "one event loop"]),
        ("compression.zstd.level=22", ["-o 'compression.zstd.level': 22 acts as 9"]),
        ("inter.broker.listener.name=SSL", ["ignored", "peer.ssl turns on TLS"]),
        ("listener.name.plaintext.num.io.threads=8", ["ignored"]),
        (
            "listener.name.plaintext.plain.sasl.jaas.confg=x",
            ["unknown key", "did you mean 'listener.name.plaintext.plain.sasl.jaas.config'?"],
        ),
        (
            "listener.name.plaintext.ssl.client.atuh=x",
            ["did you mean 'listener.name.plaintext.ssl.client.auth'?"],
        ),
        ("listener.name.nowhere.ssl.client.auth=none", ["the listeners are peer, plaintext"]),
        ("listener.name.peer.max.connections=5", ["the peer listener has only ssl.* keys"]),
        (
            "super.users=User:admin,User:bob",
            ["'User:admin,User:bob' is one principal", "separate principals with semicolons"],
        ),
    ],
)
def test_a_key_without_effect_gives_a_warning(setting: str, words: list[str]) -> None:
    (warning,) = load(setting).warnings
    for word in words:
        assert word in warning


def test_a_warning_of_an_unknown_variable_has_its_name() -> None:
    (warning,) = NodeConfig.load(environment={"MQD_NUM_PARTITION": "1"}).warnings
    assert "MQD_NUM_PARTITION" in warning
    assert "num.partitions" in warning


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "connections.max.reauth.ms=x",
            ["Not a number of type LONG; set it to a whole number of mill"],
        ),
        (
            "num.partitions=none",
            ["-o: Invalid value none for configuration num.partitions: Not a number"],
        ),
        (
            "authorizer.class.name=org.example.Mine",
            ["not supported", "access control", "remove it"],
        ),
        (
            "authorizer.class.name=kafka.security.authorizer.AclAuthorizer",
            ["not supported", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"],
        ),
        ("super.users=User:admin;ops", ["'ops'", "User:NAME", "semicolons"]),
        ("ssl.engine.factory.class=org.example.Mine", ["not supported", "Java"]),
        ("listener.name.client.ssl.engine.factory.class=x", ["not supported", "Java"]),
        ("remote.log.storage.system.enable=true", ["not supported", "tiered"]),
        ("create.topic.policy.class.name=org.example.Mine", ["not supported", "Java"]),
        ("broker.heartbeat.interval.ms=9000", ["broker.session.timeout.ms", "fenced"]),
        ("max.connections=0", ["max.connections", "10"]),
        ("max.connections.per.ip=0", ["max.connections.per.ip"]),
        ("max.connections.per.ip.overrides=a.example:5", ["'a.example:5'", "10.0.0.7:200"]),
        ("max.connections.per.ip.overrides=10.0.0.7", ["'10.0.0.7'", "10.0.0.7:200"]),
        (
            "listener.name.ssl.max.connections=-1",
            ["-1 for configuration listener.name.ssl.max.connections: Value must be at least 0"],
        ),
        ("connections.max.idle.ms=0", ["connections.max.idle.ms", "1000", "-1"]),
        ("group.members.memory.bytes=0", ["group.members.memory.bytes"]),
        ("message.max.bytes=104857601", ["socket.request.max.bytes"]),
    ],
)
def test_impossible_values_are_refused_with_a_remedy(setting: str, words: list[str]) -> None:
    message = refusal(setting)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_refused_key_at_its_default_changes_nothing_and_passes() -> None:
    assert load("remote.log.storage.system.enable=false", "authorizer.class.name=").warnings == ()
    for key, name in (
        ("principal.builder.class", "authenticator.DefaultKafkaPrincipalBuilder"),
        ("sasl.oauthbearer.jwt.retriever.class", "oauthbearer.DefaultJwtRetriever"),
        ("sasl.oauthbearer.jwt.validator.class", "oauthbearer.DefaultJwtValidator"),
    ):
        for prefix in ("", "listener.name.plaintext."):
            default = f"{prefix}{key}=org.apache.kafka.common.security.{name}"
            assert load(default).warnings == ()
        assert "runs no Java classes" in refusal(f"{key}=com.example.Ours")


def test_a_wrong_secret_is_refused_without_showing_it() -> None:
    assert "hush" not in refusal("delegation.token.secret.key=hush")


def test_a_misspelt_listener_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "x.p"
    file.write_text(
        "listeners=SASL_SSL://:9093,CONTROLLER://:9094\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.name.sasl_ss.ssl.client.auth=required\n"
        "listener.name.SASL_SSL.ssl.client.auth=required\n"
        "listener.name.controller.ssl.client.auth=required\n"
        "listener.name.peer.ssl.client.auth=required\n"
        "super.users=User:CN=a,OU=b;User:bob\n"
    )
    assert NodeConfig.load(file).warnings == (
        f"{file}, line 3: no listener is named 'sasl_ss', so "
        "listener.name.sasl_ss.ssl.client.auth has no effect; did you mean 'sasl_ssl'?",
    )


def test_a_bad_line_of_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# ours\n\nnum.partitions=1\nlog.segment.bytes=\\\n  12\n")
    with pytest.raises(
        ConfigError,
        match=r"server\.properties, line 4: Invalid value 12 for configuration "
        r"log\.segment\.bytes: Value must be at least 1048576$",
    ):
        NodeConfig.load(file)


# -- topics


def test_a_topic_takes_its_own_value_then_the_nodes_then_the_default() -> None:
    hours = load("log.retention.hours=2", "flush.ms=7", "log.flush.scheduler.interval.ms=5")
    assert topic_options(hours, {})["retention.ms"] == 7_200_000
    assert topic_options(hours, {})["flush.ms"] == 5
    assert topic_options(hours, {"retention.ms": "9"})["retention.ms"] == 9
    minutes = load("log.retention.hours=2", "log.retention.minutes=3")
    assert topic_options(minutes, {})["retention.ms"] == 180_000
    assert topic_options(load("log.retention.hours=-1"), {})["retention.ms"] == -1
    assert topic_options(load("min.insync.replicas=2"), {})["min.insync.replicas"] == 2
    assert topic_options(load("log.flush.before.ack=true"), {})["flush.before.ack"] is True
    assert set(topic_options(NodeConfig.load(), {})) == set(TOPIC_OPTIONS)


def test_the_places_of_a_topic_value_are_listed_in_order() -> None:
    config = load("log.retention.minutes=1", "log.retention.ms=5")
    assert [
        tuple(each) for each in resolve_topic_option("retention.ms", config, {"retention.ms": "9"})
    ] == [
        ("retention.ms", 9, Source.TOPIC),
        ("log.retention.ms", 5, Source.COMMAND_LINE),
        ("log.retention.minutes", 60_000, Source.COMMAND_LINE),
        ("log.retention.hours", 604_800_000, Source.DEFAULT),
    ]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            {"retention.m": "1"},
            ["Unknown topic config name: retention.m; did you mean 'retention.ms'?"],
        ),
        ({"zzz": "1"}, ["Unknown topic config name: zzz; list all keys with `mqd config list`"]),
        ({"log.retention.ms": "1"}, ["it is a broker key, and the topic key is 'retention.ms'"]),
        (
            {"num.partitions": "1"},
            ["Unknown topic config name: num.partitions; it is a broker key"],
        ),
        ({"retention.ms": None}, ["Null value not supported for topic configs: retention.ms"]),
        (
            {"retention.ms": "abc"},
            [
                "Invalid value abc for configuration retention.ms: Not a number of type LONG; set "
                "it to a whole number of at least -1"
            ],
        ),
        (
            {"retention.ms": "-2"},
            ["Invalid value -2 for configuration retention.ms: Value must be at least -1"],
        ),
        ({"cleanup.policy": "shrink"}, ["shrink", "compact, delete"]),
        ({"remote.storage.enable": "true"}, ["not supported", "tiered"]),
        (
            {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"},
            ["less than or equal to max.compaction.lag.ms (1)"],
        ),
    ],
)
def test_a_bad_topic_config_is_the_clients_fault(
    overrides: Mapping[str, str | None], words: list[str]
) -> None:
    with pytest.raises(MqError) as caught:
        validate_topic_configs(overrides)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    for word in words:
        assert word in caught.value.message


def test_a_valid_topic_config_is_returned_typed() -> None:
    assert validate_topic_config("cleanup.policy", "compact,delete") == ("compact", "delete")
    assert validate_topic_config("remote.storage.enable", "false") is False
    assert validate_topic_configs({"flush.messages": "1"}) == {"flush.messages": 1}


@pytest.mark.parametrize(
    ("nodes", "replicas", "in_sync"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)]
)
def test_the_number_of_nodes_decides_the_default_replication_factor(
    nodes: int, replicas: int, in_sync: int
) -> None:
    text = 'cluster_id = "c"\n' + "".join(
        f'[[node]]\nid = {i}\nhost = "h{i}"\nport = 1\npeer_port = 2\n' for i in range(1, nodes + 1)
    )
    peers = parse_peers(text, Path("peers.toml"))
    config = load().of_node(peers, 1)
    assert (config["default.replication.factor"], config["min.insync.replicas"]) == (
        replicas,
        in_sync,
    )
    assert topic_options(config, {})["min.insync.replicas"] == in_sync
    chosen = load("default.replication.factor=1", "min.insync.replicas=1").of_node(peers, 1)
    assert (chosen["default.replication.factor"], chosen["min.insync.replicas"]) == (1, 1)


def test_the_replication_defaults_of_a_cluster_are_in_the_meaning_of_their_keys() -> None:
    factor = NODE_OPTIONS["default.replication.factor"]
    least = NODE_OPTIONS["min.insync.replicas"]
    assert factor.default == 1 and factor.meaning.endswith("; 2 with two nodes, 3 with more")
    assert least.default == 1 and least.meaning.endswith("; 2 with three or more nodes")
