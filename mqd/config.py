"""The configuration of a node. Each source overrides the ones before it:

1. the defaults
2. the file of --config
3. the environment: MQD_LOG_RETENTION_MS sets log.retention.ms
4. the command line: -o key=value

The keys are Kafka's (`OPTIONS`, from `option_table.py`). A `NodeConfig` is an immutable mapping
from every node key to its typed value. `config_sources.py` reads the sources, and
`resource_configs.py` derives the values of topics and groups. This module does not log: warnings
are in `NodeConfig.warnings`, and errors are raised as ConfigError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mqd.config_sources import (
    DEFAULT_LISTENER,
    LISTENER_OPTIONS,
    LISTENER_PREFIX,
    PEER_LISTENER_NAME,
    SettingsReader,
    Source,
)
from mqd.limits import CONNECTIONS_IDLE_LEAST_MS
from mqd.option_table import GROUP_OPTIONS, NODE_OPTIONS, OPTIONS, TOPIC_OPTIONS
from mqd.options import INT_MAX, ConfigError, Option, OptionType, StartError, Status, Value
from mqd.peers import PeerNode, Peers, load_peers

__all__ = [
    "DEFAULT_LISTENER",
    "GROUP_OPTIONS",
    "LISTENER_PREFIX",
    "NODE_OPTIONS",
    "OPTIONS",
    "PEER_LISTENER_NAME",
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
    "connections_per_address",
    "load_peers",
]

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""Kafka's name for the authorizer that mqd has (security/authorizer.py)."""


_REPLICATION_DEFAULTS: dict[int, dict[str, Value]] = {
    2: {"default.replication.factor": 2},
    3: {"default.replication.factor": 3, "min.insync.replicas": 2},
}
"""Replication defaults by the number of nodes in the peers file (3: or more), for keys that are not
set. With them, the loss of one node loses no acknowledged record. Apache Kafka's default is one
replica.
"""


class NodeConfig(Mapping[str, Value]):
    """Every node key with its typed value. Immutable; `replaced` returns a changed copy."""

    __slots__ = ("_places", "_sources", "_values", "listener_settings", "warnings")

    def __init__(
        self,
        values: Mapping[str, Value],
        sources: Mapping[str, Source],
        warnings: Iterable[str] = (),
        listener_settings: Mapping[str, Mapping[str, str]] | None = None,
        places: Mapping[str, str] | None = None,
    ) -> None:
        """`values` and `sources` contain the keys that are set, even to their default value.
        `listener_settings`: the texts of `listener.name.NAME.KEY`, by NAME in lower case and KEY.
        `places`: where keys are set, such as "server.properties, line 3".
        """
        assert values.keys() == sources.keys()
        assert values.keys() <= NODE_OPTIONS.keys()
        self._values = dict(values)
        self._sources = dict(sources)
        self._places = dict(places or {})
        self.warnings = tuple(warnings)
        self.listener_settings = {
            name: dict(settings) for name, settings in (listener_settings or {}).items()
        }

    @classmethod
    def load(
        cls,
        file: Path | None = None,
        environment: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> NodeConfig:
        """Read all sources. Raises ConfigError for an invalid value, a refused key or an unreadable
        file.
        """
        reader = SettingsReader()
        reader.read(file, environment or {}, overrides or {})
        config = cls(
            reader.values,
            reader.sources,
            reader.warnings,
            reader.listener_settings,
            reader.places,
        )
        _check_relations(config)
        return config

    def replaced(self, changes: Mapping[str, Value], source: Source) -> NodeConfig:
        """A copy with changed values, from the peers file or a dynamic change."""
        return NodeConfig(
            {**self._values, **changes},
            {**self._sources, **dict.fromkeys(changes, source)},
            self.warnings,
            self.listener_settings,
            self._places,
        )

    def of_listener(self, name: str) -> NodeConfig:
        """A copy in which `listener.name.NAME.KEY` replaces KEY. `name` is in any case."""
        values, sources = dict(self._values), dict(self._sources)
        places = dict(self._places)
        for key, text in self.listener_settings.get(name.lower(), {}).items():
            places[key] = places.get(f"{LISTENER_PREFIX}{name.lower()}.{key}", "")
            option = LISTENER_OPTIONS.get(key, NODE_OPTIONS.get(key))
            if option is not None:
                values[key] = option.parse(text)
                sources[key] = Source.FILE
        return NodeConfig(values, sources, self.warnings, self.listener_settings, places)

    def named(self, key: str) -> str:
        """The key with the place where it is set, for messages: `ssl.keystore.location
        (server.properties, line 3)`.
        """
        place = self._places.get(key)
        return f"{key} ({place})" if place else key

    def integer_of_listener(self, name: str, key: str) -> int | None:
        """The value of `listener.name.NAME.KEY`. None if it is not set."""
        text = self.listener_setting(name, key)
        if text is None:
            return None
        value = LISTENER_OPTIONS.get(key, NODE_OPTIONS[key]).parse(text)
        assert isinstance(value, int), key
        return value

    def listener_setting(self, name: str, key: str) -> str | None:
        """The text of `listener.name.NAME.KEY`, also of a KEY that is no node key, such as
        `plain.sasl.jaas.config`. None if it is not set.
        """
        return self.listener_settings.get(name.lower(), {}).get(key)

    def of_node(self, peers: Peers, node_id: int) -> NodeConfig:
        """A copy with the keys that the peers file determines, so that DescribeConfigs returns
        their actual values.
        """
        node = peers.nodes[node_id]
        changes: dict[str, Value] = {
            "node.id": node_id,
            "broker.id": node_id,
            "broker.rack": node.rack,
            "controller.quorum.voters": tuple(
                f"{voter.id}@{voter.host}:{voter.peer_port}" for voter in peers.voters.values()
            ),
        }
        if self.source("listeners") is Source.DEFAULT:
            changes["listeners"] = (f"PLAINTEXT://{node.host}:{node.port}",)
            if self.source("advertised.listeners") is Source.DEFAULT:
                changes["advertised.listeners"] = (
                    f"PLAINTEXT://{node.advertised_host}:{node.advertised_port}",
                )
        for key, value in _REPLICATION_DEFAULTS.get(min(len(peers.nodes), 3), {}).items():
            if self.source(key) is Source.DEFAULT:
                changes[key] = value
        return self.replaced(changes, Source.PEERS)

    def source(self, name: str) -> Source:
        """The source of a node key's value. Raises KeyError for an unknown key."""
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

    # Typed access, for callers that know the type of a key; another type is a bug.

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
    """The options of `mqd start`, as the daemon needs them."""

    peers: Peers
    node_id: int
    data_directory: Path
    config: NodeConfig


def _check_authorizer(config: NodeConfig) -> None:
    name = config["authorizer.class.name"]
    if name not in ("", STANDARD_AUTHORIZER):
        raise ConfigError(
            f"authorizer.class.name: '{name}' is not supported: mqd runs no Java classes; use "
            f"{STANDARD_AUTHORIZER}, or remove it for a cluster without access control"
        )
    for user in filter(None, map(str.strip, str(config["super.users"]).split(";"))):
        type_, _, principal = user.partition(":")
        if not type_ or not principal:
            raise ConfigError(
                f"super.users: '{user}' is not a principal; write each one as User:NAME, "
                "separated by semicolons"
            )


def connections_per_address(config: NodeConfig) -> dict[str, int]:
    """`max.connections.per.ip.overrides`, such as `10.0.0.7:200,fe80::1:5`, by IP address. Raises
    ConfigError.
    """
    from ipaddress import ip_address

    key = "max.connections.per.ip.overrides"
    found: dict[str, int] = {}
    for entry in filter(None, map(str.strip, config.text(key).split(","))):
        address, _, count = (part.strip() for part in entry.rpartition(":"))
        address = address.removeprefix("[").removesuffix("]")
        try:
            ip_address(address)
            is_valid = count.isascii() and count.isdigit() and int(count) <= INT_MAX
        except ValueError:
            is_valid = False
        if not is_valid:
            raise ConfigError(
                f"{key}: '{entry}' is not an IP address and a number of connections; write each "
                "one as 10.0.0.7:200, separated by commas"
            )
        found[address] = int(count)
    return found


def _check_relations(config: NodeConfig) -> None:
    _check_authorizer(config)
    connections_per_address(config)
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
