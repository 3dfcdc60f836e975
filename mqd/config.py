"""Configuration: what a node was told, from defaults, a file, the environment and the command line,
later ones first.

    defaults < --config FILE < MQD_* environment (MQD_LOG_RETENTION_MS is log.retention.ms) < -o
    key=value

The keys are Kafka's dotted names and stand in one table (`OPTIONS`, re-exported from
`option_table.py`). A `NodeConfig` is an immutable mapping from every node key to its typed value; a
topic's values are made of it by `topic_options`. Nothing here prints or logs: what an operator
should hear is in `NodeConfig.warnings`, what he must mend is a ConfigError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from mqd.errors import ErrorCode, MqError
from mqd.limits import CONNECTIONS_IDLE_LEAST_MS
from mqd.option_table import GROUP_OPTIONS, NODE_OPTIONS, OPTIONS, TOPIC_OPTIONS
from mqd.options import ConfigError, Option, OptionType, StartError, Status, Value
from mqd.peers import PeerNode, Peers, load_peers

__all__ = [
    "GROUP_OPTIONS",
    "NODE_OPTIONS",
    "OPTIONS",
    "TOPIC_OPTIONS",
    "ConfigError",
    "NodeConfig",
    "Option",
    "OptionType",
    "PeerNode",
    "Peers",
    "Source",
    "StartError",
    "StartOptions",
    "Status",
    "Value",
    "group_option",
    "load_peers",
    "nearest",
    "resolve_group_option",
    "resolve_topic_option",
    "topic_options",
    "validate_group_configs",
    "validate_topic_config",
    "validate_topic_configs",
]

ENVIRONMENT_PREFIX = "MQD_"


class Source(Enum):
    """Where a value came from.

    The number is DescribeConfigs' `config_source`, which knows fewer places.
    """

    TOPIC = "topic", 1
    DYNAMIC = "dynamic", 2
    DYNAMIC_DEFAULT = "dynamic, of every node", 3
    FILE = "file", 4
    ENVIRONMENT = "environment", 4
    COMMAND_LINE = "command line", 4
    PEERS = "peers file", 4
    DEFAULT = "default", 5
    GROUP = "group", 8

    @property
    def config_source(self) -> int:
        return self.value[1]


_REPLICATION_OF_NODES: dict[int, dict[str, Value]] = {
    2: {"default.replication.factor": 2},
    3: {"default.replication.factor": 3, "min.insync.replicas": 2},
}
"""What a cluster of so many nodes (3: or more) does where nobody says otherwise: one node may be
lost, and no acknowledged record with it. Apache Kafka keeps one replica of a topic unless it is
told to keep more.
"""


class NodeConfig(Mapping[str, Value]):
    """Every node key with its typed value. Immutable; `replaced` makes another."""

    __slots__ = ("_sources", "_values", "warnings")

    def __init__(
        self,
        values: Mapping[str, Value],
        sources: Mapping[str, Source],
        warnings: Iterable[str] = (),
    ) -> None:
        """`values` and `sources` hold what differs from the defaults in origin, not
        necessarily in value.
        """
        assert values.keys() == sources.keys()
        assert values.keys() <= NODE_OPTIONS.keys()
        self._values = dict(values)
        self._sources = dict(sources)
        self.warnings = tuple(warnings)

    @classmethod
    def load(
        cls,
        file: Path | None = None,
        environment: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> NodeConfig:
        """Read all three places.

        Raises ConfigError for a bad value, a refused key or an unreadable file.
        """
        reader = _Reader()
        if file is not None:
            from mqd.config_file import read_config_file

            for setting in read_config_file(file):
                line = "" if setting.line is None else f", line {setting.line}"
                reader.set(setting.key, setting.value, Source.FILE, f"{file}{line}: ")
        for variable, text in sorted((environment or {}).items()):
            if variable.startswith(ENVIRONMENT_PREFIX):
                key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
                reader.set(key, text, Source.ENVIRONMENT, f"environment variable {variable}: ")
        for key, text in (overrides or {}).items():
            reader.set(key, text, Source.COMMAND_LINE, "-o ")
        config = cls(reader.values, reader.sources, reader.warnings)
        _check_relations(config)
        return config

    def replaced(self, changes: Mapping[str, Value], source: Source) -> NodeConfig:
        """The same with some typed values from another place: the peers file, or a dynamic
        change.
        """
        return NodeConfig(
            {**self._values, **changes},
            {**self._sources, **dict.fromkeys(changes, source)},
            self.warnings,
        )

    def of_node(self, peers: Peers, node_id: int) -> NodeConfig:
        """The same with the keys that come from the peers file, so that whoever asks for
        them hears the truth.
        """
        node = peers.nodes[node_id]
        changes: dict[str, Value] = {
            "node.id": node_id,
            "broker.id": node_id,
            "broker.rack": node.rack,
            "listeners": (f"PLAINTEXT://{node.host}:{node.port}",),
            "advertised.listeners": (f"PLAINTEXT://{node.advertised_host}:{node.advertised_port}",),
            "controller.quorum.voters": tuple(
                f"{voter.id}@{voter.host}:{voter.peer_port}" for voter in peers.voters.values()
            ),
        }
        for key, value in _REPLICATION_OF_NODES.get(min(len(peers.nodes), 3), {}).items():
            if self.source(key) is Source.DEFAULT:
                changes[key] = value
        return self.replaced(changes, Source.PEERS)

    def source(self, name: str) -> Source:
        """Where the value of a node key came from; KeyError when there is no such key."""
        if name in self._sources:
            return self._sources[name]
        NODE_OPTIONS[name]
        return Source.DEFAULT

    def __getitem__(self, name: str) -> Value:
        if name in self._values:
            return self._values[name]
        return NODE_OPTIONS[name].default

    def __iter__(self) -> Iterator[str]:
        return iter(NODE_OPTIONS)

    def __len__(self) -> int:
        return len(NODE_OPTIONS)

    def __repr__(self) -> str:
        shown = {
            name: "[hidden]" if NODE_OPTIONS[name].sensitive else value
            for name, value in self._values.items()
        }
        return f"NodeConfig({shown})"

    # The typed readings below are for callers that know the type of their key; a wrong one is our
    # own mistake.

    def boolean(self, name: str) -> bool:
        value = self[name]
        assert isinstance(value, bool), name
        return value

    def integer(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int), name
        assert not isinstance(value, bool), name
        return value

    def number(self, name: str) -> float:
        value = self[name]
        assert isinstance(value, int | float), name
        assert not isinstance(value, bool), name
        return value

    def text(self, name: str) -> str:
        value = self[name]
        assert isinstance(value, str), name
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        value = self[name]
        assert isinstance(value, tuple), name
        return value


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What `mqd start` was asked to do: everything that the daemon needs to know."""

    peers: Peers
    node_id: int
    data_directory: Path
    config: NodeConfig


class _Reader:
    """Collects settings in order of precedence; a later one replaces an earlier one of the
    same key.
    """

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.sources: dict[str, Source] = {}
        self.warnings: list[str] = []

    def set(self, key: str, text: str, source: Source, where: str) -> None:
        """`where` stands before the key in what is told of it: "server.properties, line 3:
        " or "-o ".
        """
        option = NODE_OPTIONS.get(key)
        if option is None:
            option = self._of_listener(key)
        if option is None:
            self.warnings.append(f"{where}{_unknown(key)}")
            return
        try:
            value = option.parse(text)
        except ValueError as error:
            raise ConfigError(
                f"{where}{key}: {_told(option, error)}; `mqd config list` shows its type"
            ) from None
        if option.status is Status.REFUSED and value != option.default:
            raise ConfigError(
                f"{where}{key} is not supported: {option.note}; remove it to start the node"
            )
        if key in ("listeners", "advertised.listeners") and isinstance(value, tuple):
            _refuse_secure_listeners(value, f"{where}{key}")
        if option.status is Status.IGNORED:
            self.warnings.append(f"{where}{key} is ignored: {option.note}")
        if option.name == key:
            self.values[key] = value
            self.sources[key] = source

    def _of_listener(self, key: str) -> Option | None:
        """The option that `listener.name.NAME.KEY` sets for one listener."""
        parts = key.split(".", 3)
        if len(parts) < 4 or parts[:2] != ["listener", "name"]:
            return None
        return NODE_OPTIONS.get(parts[3])


def topic_options(config: NodeConfig, overrides: Mapping[str, str]) -> dict[str, Value]:
    """Every topic key with the value in force: the topic's own, else the node's synonym, else the
    default.

    `overrides` are the topic's configs as text, validated when they were set.
    """
    return {name: resolve_topic_option(name, config, overrides)[0].value for name in TOPIC_OPTIONS}


class Candidate(NamedTuple):
    """One place that has a value for a key of a topic or a group, under the name that the
    key has there.
    """

    name: str
    value: Value
    source: Source


def resolve_topic_option(
    name: str, config: NodeConfig, overrides: Mapping[str, str]
) -> list[Candidate]:
    """Every candidate for a topic key, the one in force first: what DescribeConfigs calls
    its synonyms.
    """
    return _candidates(TOPIC_OPTIONS[name], config, overrides, Source.TOPIC)


def resolve_group_option(
    name: str, config: NodeConfig, overrides: Mapping[str, str]
) -> list[Candidate]:
    """The same for a key of consumer groups (KIP-848).

    What is in force lies within bounds besides: `group_option`.
    """
    return _candidates(GROUP_OPTIONS[name], config, overrides, Source.GROUP)


def _candidates(
    option: Option, config: NodeConfig, overrides: Mapping[str, str], own: Source
) -> list[Candidate]:
    name = option.name
    found: list[Candidate] = []
    if name in overrides:
        found.append(Candidate(name, option.parse(overrides[name]), own))
    for synonym, factor in option.synonyms:
        value = _scaled(config[synonym], factor)
        if value is not None and config.source(synonym) is not Source.DEFAULT:
            found.append(Candidate(synonym, value, config.source(synonym)))
    for synonym, factor in option.synonyms:
        value = _scaled(NODE_OPTIONS[synonym].default, factor)
        if value is not None:
            found.append(Candidate(synonym, value, Source.DEFAULT))
            return found
    return [*found, Candidate(name, option.default, Source.DEFAULT)]


def validate_topic_config(name: str, value: str | None) -> Value:
    """The typed value of one topic config as a client sent it.

    MqError with INVALID_CONFIG for anything mqd would not keep.
    """
    option = TOPIC_OPTIONS.get(name)
    if option is None:
        raise MqError(ErrorCode.INVALID_CONFIG, _unknown(name, TOPIC_OPTIONS))
    if value is None:
        raise MqError(ErrorCode.INVALID_CONFIG, f"{name} has no value")
    try:
        parsed = option.parse(value)
    except ValueError as error:
        raise MqError(ErrorCode.INVALID_CONFIG, f"{name}: {error}") from None
    if option.status is Status.REFUSED and parsed != option.default:
        raise MqError(ErrorCode.INVALID_CONFIG, f"{name} is not supported: {option.note}")
    return parsed


def validate_topic_configs(overrides: Mapping[str, str | None]) -> dict[str, Value]:
    """All configs of one topic, each by itself and in relation. MqError with INVALID_CONFIG."""
    values = {name: validate_topic_config(name, value) for name, value in overrides.items()}
    least = values.get("min.compaction.lag.ms", TOPIC_OPTIONS["min.compaction.lag.ms"].default)
    most = values.get("max.compaction.lag.ms", TOPIC_OPTIONS["max.compaction.lag.ms"].default)
    assert isinstance(least, int)
    assert isinstance(most, int)
    if least > most:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"min.compaction.lag.ms ({least}) must be less than or equal to max.compaction.lag.ms "
            f"({most})",
        )
    return values


def without_effect(options: Mapping[str, Option], overrides: Mapping[str, str]) -> str | None:
    """The message that goes with keys that were accepted and have no effect; None where there are
    none. Defaults are no wish.

    `overrides` were validated.
    """
    ignored = []
    for name, text in sorted(overrides.items()):
        option = options[name]
        if option.status is Status.IGNORED and option.parse(text) != option.default:
            ignored.append(f"{name} ({option.note})")
    return f"Accepted without effect: {', '.join(ignored)}." if ignored else None


class _OfNode(NamedTuple):
    """The node keys behind a key of groups: what stands in for it, and between what it must lie."""

    default: str
    least: str
    most: str


_OF_NODE = {
    "consumer.assignment.interval.ms": _OfNode(
        "group.consumer.assignment.interval.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ),
    "consumer.heartbeat.interval.ms": _OfNode(
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    "consumer.session.timeout.ms": _OfNode(
        "group.consumer.session.timeout.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
}
assert _OF_NODE.keys() == GROUP_OPTIONS.keys()


def validate_group_configs(overrides: Mapping[str, str], config: NodeConfig) -> None:
    """All configs of one group, each by itself, within the node's bounds, and in relation.

    MqError with INVALID_CONFIG.
    """
    values = {name: config.integer(keys.default) for name, keys in _OF_NODE.items()}
    for name, text in overrides.items():
        if name not in GROUP_OPTIONS:
            raise MqError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
        try:
            value = GROUP_OPTIONS[name].parse(text)
        except ValueError as error:
            raise MqError(ErrorCode.INVALID_CONFIG, f"{name}: {error}") from None
        assert isinstance(value, int), name
        keys = _OF_NODE[name]
        if value < config.integer(keys.least):
            raise MqError(
                ErrorCode.INVALID_CONFIG, f"{name} must be greater than or equal to {keys.least}"
            )
        if value > config.integer(keys.most):
            raise MqError(
                ErrorCode.INVALID_CONFIG, f"{name} must be less than or equal to {keys.most}"
            )
        values[name] = value
    if values["consumer.session.timeout.ms"] <= values["consumer.heartbeat.interval.ms"]:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms",
        )


def group_option(name: str, config: NodeConfig, overrides: Mapping[str, str]) -> int:
    """The value in force: the group's own, within the bounds that the node has now; else
    the node's.
    """
    keys = _OF_NODE[name]
    if name not in overrides:
        return config.integer(keys.default)
    value = GROUP_OPTIONS[name].parse(overrides[name])
    assert isinstance(value, int), name
    return max(config.integer(keys.least), min(config.integer(keys.most), value))


def nearest(key: str, names: Iterable[str]) -> str | None:
    """The known name that looks most like `key`, or None when none does."""
    import difflib

    found = difflib.get_close_matches(key, list(names), n=1, cutoff=0.6)
    return found[0] if found else None


def _unknown(key: str, names: Iterable[str] = NODE_OPTIONS) -> str:
    if names is NODE_OPTIONS and key in TOPIC_OPTIONS:
        synonyms = TOPIC_OPTIONS[key].synonyms
        remedy = (
            f"for all topics set {synonyms[0][0]}"
            if synonyms
            else "set it when you create or alter the topic"
        )
        return f"{key} is a topic key, not a node key; {remedy}"
    close = nearest(key, names)
    return f"{key} is an unknown key; " + (
        f"did you mean {close}?" if close else "list all keys with `mqd config list`"
    )


def _told(option: Option, error: ValueError) -> str:
    return "the value is not permitted" if option.sensitive else str(error)


def _scaled(value: Value, factor: int) -> Value:
    """A value in the unit of its topic key: hours to milliseconds, where any negative
    number means "without end".
    """
    if factor == 1 or value is None:
        return value
    assert isinstance(value, int), value
    return -1 if value < 0 else value * factor


def _refuse_secure_listeners(listeners: tuple[str, ...], where: str) -> None:
    for listener in listeners:
        if "SSL" in listener.upper() or "SASL" in listener.upper():
            raise ConfigError(
                f"{where}: {listener} requires TLS or SASL, which is not in this release; use "
                "PLAINTEXT or remove it"
            )


def _check_relations(config: NodeConfig) -> None:
    heartbeat, session = (
        config.integer("broker.heartbeat.interval.ms"),
        config.integer("broker.session.timeout.ms"),
    )
    if heartbeat >= session:
        raise ConfigError(
            f"broker.heartbeat.interval.ms ({heartbeat}) must be less than "
            f"broker.session.timeout.ms ({session}), "
            "or nodes are fenced between heartbeats; lower the interval or raise the timeout"
        )
    batch, request = config.integer("message.max.bytes"), config.integer("socket.request.max.bytes")
    if batch > request:
        raise ConfigError(
            f"message.max.bytes ({batch}) must not exceed socket.request.max.bytes ({request}), or "
            "such batches cannot be received; raise the latter"
        )
    idle = config.integer("connections.max.idle.ms")
    if 0 <= idle < CONNECTIONS_IDLE_LEAST_MS:
        raise ConfigError(
            f"connections.max.idle.ms ({idle}) is below {CONNECTIONS_IDLE_LEAST_MS}; clients "
            "would be disconnected between two"
            f" requests: set it to {CONNECTIONS_IDLE_LEAST_MS} or more, or to -1 for no bound"
        )
