"""The configuration of a node. Each source overrides the ones before it:

1. the defaults
2. the file of --config
3. the environment: MQD_LOG_RETENTION_MS sets log.retention.ms
4. the command line: -o key=value

The keys are Kafka's (`OPTIONS`, from `option_table.py`). A `NodeConfig` is an immutable mapping
from every node key to its typed value; `topic_options` derives the values of a topic. This module
does not log: warnings are in `NodeConfig.warnings`, and errors are raised as ConfigError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from mqd.errors import ErrorCode, MqError
from mqd.file_modes import others_can_read, remedy_for
from mqd.limits import CONNECTIONS_IDLE_LEAST_MS
from mqd.option_table import GROUP_OPTIONS, NODE_OPTIONS, OPTIONS, TOPIC_OPTIONS
from mqd.options import INT_MAX, ConfigError, Option, OptionType, StartError, Status, Value
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
    "connections_per_address",
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
LISTENER_PREFIX = "listener.name."
PEER_LISTENER_NAME = "peer"
"""The peer listener in `listener.name.peer.*`."""
DEFAULT_LISTENER = "PLAINTEXT"
"""The listener for clients, if `listeners` is not set."""
MECHANISM_PREFIXES = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "gssapi")
"""SASL mechanisms in `listener.name.NAME.MECHANISM.KEY`."""
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""Kafka's name for the authorizer that mqd has (security/authorizer.py)."""


class Source(Enum):
    """The source of a value, with its number in DescribeConfigs, which distinguishes fewer
    sources.
    """

    TOPIC = "topic", 1
    DYNAMIC = "dynamic", 2
    DYNAMIC_DEFAULT = "dynamic, of every node", 3
    FILE = "file", 4
    ENVIRONMENT = "environment", 4
    COMMAND_LINE = "command line", 4
    PEERS = "peers file", 4
    DEFAULT = "default", 5
    CLIENT_METRICS = "client metrics", 7
    GROUP = "group", 8

    @property
    def config_source(self) -> int:
        return self.value[1]


_REPLICATION_DEFAULTS: dict[int, dict[str, Value]] = {
    2: {"default.replication.factor": 2},
    3: {"default.replication.factor": 3, "min.insync.replicas": 2},
}
"""Replication defaults by the number of nodes in the peers file (3: or more), for keys that are not
set. With them, the loss of one node loses no acknowledged record. Apache Kafka's default is one
replica.
"""


_LISTENER_OPTIONS = {
    "max.connections": NODE_OPTIONS["max.connections"]._replace(default=INT_MAX, minimum=0)
}
"""Node keys with other bounds in `listener.name.NAME.KEY`, as in Kafka."""


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
        reader = _Reader()
        if file is not None:
            from mqd.config_file import read_config_file

            for setting in read_config_file(file):
                line = "" if setting.line is None else f", line {setting.line}"
                reader.set(setting.key, setting.value, Source.FILE, f"{file}{line}: ")
            if reader.has_secrets and others_can_read(file):
                reader.warnings.append(
                    f"users other than the owner can read {file}, which has passwords or keys: "
                    f"{remedy_for(file)}"
                )
        for variable, text in sorted((environment or {}).items()):
            if variable.startswith(ENVIRONMENT_PREFIX):
                key = _key_of_variable(variable)
                reader.set(key, text, Source.ENVIRONMENT, f"environment variable {variable}: ")
        for key, text in (overrides or {}).items():
            reader.set(key, text, Source.COMMAND_LINE, "-o ")
        reader.check_listener_names()
        of_super_users = _warning_of_super_users(str(reader.values.get("super.users", "")))
        if of_super_users is not None:
            reader.warnings.append(of_super_users)
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
            option = _LISTENER_OPTIONS.get(key, NODE_OPTIONS.get(key))
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
        value = _LISTENER_OPTIONS.get(key, NODE_OPTIONS[key]).parse(text)
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


class _Reader:
    """Collects settings in rising precedence: a later value of a key replaces an earlier one."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.sources: dict[str, Source] = {}
        self.warnings: list[str] = []
        self.listener_settings: dict[str, dict[str, str]] = {}
        self.places: dict[str, str] = {}
        """Key, with the name of a listener in lower case -> where its value is set."""
        self._listener_places: list[tuple[str, str, str]] = []
        """(name in lower case, key, where) of each `listener.name.NAME.KEY`."""

    def check_listener_names(self) -> None:
        """Warn of settings for listeners that do not exist, and of those of the peer listener that
        it does not have. Kafka ignores the former.
        """
        names = self._listener_names()
        for name, key, where in self._listener_places:
            if name not in names:
                close = nearest(name, names)
                known = f"the listeners are {', '.join(sorted(names))}"
                remedy = f"did you mean '{close}'?" if close else known
                self.warnings.append(
                    f"{where}no listener is named '{name}', so {LISTENER_PREFIX}{name}.{key} "
                    f"has no effect; {remedy}"
                )
            elif name == PEER_LISTENER_NAME and not key.startswith("ssl."):
                self.warnings.append(
                    f"{where}{LISTENER_PREFIX}{name}.{key} has no effect; the peer listener has "
                    "only ssl.* keys"
                )

    def _listener_names(self) -> set[str]:
        """All names that may be in `listener.name.NAME.KEY`, in lower case. Those of controllers
        are there, too: a configuration of Kafka may have them.
        """
        listeners = self.values.get("listeners") or (DEFAULT_LISTENER,)
        controllers = self.values.get("controller.listener.names") or ()
        assert isinstance(listeners, tuple)
        assert isinstance(controllers, tuple)
        names = [entry.partition("://")[0].strip() for entry in listeners]
        return {name.lower() for name in (*names, *controllers, PEER_LISTENER_NAME)}

    @property
    def has_secrets(self) -> bool:
        """Whether some key that was set so far has a secret value."""
        own = any(NODE_OPTIONS[key].sensitive for key in self.values)
        return own or any(
            (option := NODE_OPTIONS.get(_without_mechanism(key))) is not None and option.sensitive
            for settings in self.listener_settings.values()
            for key in settings
        )

    def set(self, key: str, text: str, source: Source, where: str) -> None:
        """Set a key. `where` precedes it in messages: "server.properties, line 3: " or "-o "."""
        option = NODE_OPTIONS.get(key)
        if option is None and key.startswith(LISTENER_PREFIX):
            name, _, listener_key = key.removeprefix(LISTENER_PREFIX).partition(".")
            self.listener_settings.setdefault(name.lower(), {})[listener_key] = text
            self.places[f"{LISTENER_PREFIX}{name.lower()}.{listener_key}"] = where.rstrip(": ")
            self._listener_places.append((name.lower(), listener_key, where))
            option = _LISTENER_OPTIONS.get(listener_key, NODE_OPTIONS.get(listener_key))
            if option is None and _without_mechanism(listener_key) in NODE_OPTIONS:
                return  # security/sasl_options.py reads it
        if option is None:
            problem = _unknown_of_listener(key) if key.startswith(LISTENER_PREFIX) else None
            self.warnings.append(f"{where}{problem or _unknown(key)}")
            return
        named = option._replace(name=key)  # a message contains the whole `listener.name.NAME.KEY`
        try:
            value = named.parse(text)
        except ValueError as error:
            raise ConfigError(f"{where.rstrip(': ')}: {named.problem(error)}") from None
        if option.status is Status.REFUSED and value != option.default:
            raise ConfigError(
                f"{where}{key} is not supported: {option.note}; remove it to start the node"
            )
        if option.status is Status.IGNORED:
            self.warnings.append(f"{where}{key} is ignored: {option.note}")
        elif option.effective_maximum is not None and (loss := option.loss(value)) is not None:
            self.warnings.append(f"{where}{key}: {loss}")
        if option.name == key:
            self.values[key] = value
            self.sources[key] = source
            self.places[key] = where.rstrip(": ")


def _without_mechanism(key: str) -> str:
    """`plain.sasl.jaas.config`, a key of one listener, is `sasl.jaas.config`."""
    mechanism, _, rest = key.partition(".")
    return rest if mechanism in MECHANISM_PREFIXES else key


def _unknown_of_listener(key: str) -> str | None:
    """The message for a misspelt key of a listener. None if no key is similar."""
    name, _, listener_key = key.removeprefix(LISTENER_PREFIX).partition(".")
    of_mechanisms = (
        f"{mechanism}.{option}"
        for mechanism in MECHANISM_PREFIXES
        for option in NODE_OPTIONS
        if "sasl." in option or option == "connections.max.reauth.ms"
    )
    close = nearest(listener_key, (*NODE_OPTIONS, *of_mechanisms))
    if close is None:
        return None
    return f"{key} is an unknown key; did you mean {LISTENER_PREFIX}{name}.{close}?"


def topic_options(config: NodeConfig, overrides: Mapping[str, str]) -> dict[str, Value]:
    """Every topic key with its effective value: the topic's, else that of the node's synonym, else
    the default.

    `overrides`: the topic's configs as text, which were validated when they were set.
    """
    return {name: resolve_topic_option(name, config, overrides)[0].value for name in TOPIC_OPTIONS}


class Candidate(NamedTuple):
    """A value for a key of a topic or group, with its source and the key's name there."""

    name: str
    value: Value
    source: Source


def resolve_topic_option(
    name: str, config: NodeConfig, overrides: Mapping[str, str]
) -> list[Candidate]:
    """All values for a topic key, the effective one first (the synonyms of DescribeConfigs)."""
    return _candidates(TOPIC_OPTIONS[name], config, overrides, Source.TOPIC)


def resolve_group_option(
    name: str, config: NodeConfig, overrides: Mapping[str, str]
) -> list[Candidate]:
    """The same for a key of consumer groups (KIP-848). `group_option` also applies the bounds of
    the node.
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
    """The typed value of a topic config that a client has sent. Raises MqError INVALID_CONFIG."""
    option = TOPIC_OPTIONS.get(name)
    if option is None:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"Unknown topic config name: {name}; {_topic_key_remedy(name)}",
        )
    if value is None:
        raise MqError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}"
        )
    try:
        parsed = option.parse(value)
    except ValueError as error:
        raise MqError(ErrorCode.INVALID_CONFIG, option.problem(error)) from None
    if option.status is Status.REFUSED and parsed != option.default:
        raise MqError(ErrorCode.INVALID_CONFIG, f"'{name}' is not supported: {option.note}")
    return parsed


def validate_topic_configs(overrides: Mapping[str, str | None]) -> dict[str, Value]:
    """The typed values of a topic's configs, checked together. Raises MqError INVALID_CONFIG."""
    values = {name: validate_topic_config(name, value) for name, value in overrides.items()}
    lag_min = values.get("min.compaction.lag.ms", TOPIC_OPTIONS["min.compaction.lag.ms"].default)
    lag_max = values.get("max.compaction.lag.ms", TOPIC_OPTIONS["max.compaction.lag.ms"].default)
    assert isinstance(lag_min, int)
    assert isinstance(lag_max, int)
    if lag_min > lag_max:
        raise MqError(
            ErrorCode.INVALID_CONFIG,
            f"min.compaction.lag.ms ({lag_min}) must be less than or equal to "
            f"max.compaction.lag.ms ({lag_max})",
        )
    return values


def without_effect(options: Mapping[str, Option], overrides: Mapping[str, str]) -> str | None:
    """A message that names the keys without effect whose value is not the default, and values that
    act as a smaller one; None if there are none. `overrides` must be valid.
    """
    losses: dict[Status, list[str]] = {Status.IGNORED: [], Status.IMPLEMENTED: []}
    for name, text in sorted(overrides.items()):
        option = options[name]
        if option.status is not Status.IGNORED and option.effective_maximum is None:
            continue  # also keys of client metrics, whose lists may name an element twice
        loss = option.loss(option.parse(text))
        if loss is not None:
            losses[option.status].append(f"{name} ({loss})")
    ignored, limited = losses[Status.IGNORED], losses[Status.IMPLEMENTED]
    sentences = [f"Accepted without effect: {', '.join(ignored)}."] if ignored else []
    if limited:
        sentences.append(f"Accepted with less effect: {', '.join(limited)}.")
    return " ".join(sentences) or None


class _NodeKeys(NamedTuple):
    """The node keys for a group key: its default, and its bounds."""

    default: str
    least: str
    most: str


_NODE_KEYS = {
    "consumer.assignment.interval.ms": _NodeKeys(
        "group.consumer.assignment.interval.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ),
    "consumer.heartbeat.interval.ms": _NodeKeys(
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    "consumer.session.timeout.ms": _NodeKeys(
        "group.consumer.session.timeout.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
}
assert _NODE_KEYS.keys() == GROUP_OPTIONS.keys()


def validate_group_configs(overrides: Mapping[str, str], config: NodeConfig) -> None:
    """Check the configs of a group: each alone, within the node's bounds, and together. Raises
    MqError INVALID_CONFIG.
    """
    values = {name: config.integer(keys.default) for name, keys in _NODE_KEYS.items()}
    for name, text in overrides.items():
        if name not in GROUP_OPTIONS:
            remedy = f"choose from {', '.join(map(repr, GROUP_OPTIONS))}"
            raise MqError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}; {remedy}")
        try:
            value = GROUP_OPTIONS[name].parse(text)
        except ValueError as error:
            raise MqError(ErrorCode.INVALID_CONFIG, GROUP_OPTIONS[name].problem(error)) from None
        assert isinstance(value, int), name
        keys = _NODE_KEYS[name]
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
    """The effective value: the group's, limited to the node's present bounds; else the node's."""
    keys = _NODE_KEYS[name]
    if name not in overrides:
        return config.integer(keys.default)
    value = GROUP_OPTIONS[name].parse(overrides[name])
    assert isinstance(value, int), name
    return max(config.integer(keys.least), min(config.integer(keys.most), value))


def nearest(key: str, names: Iterable[str]) -> str | None:
    """The name that is most similar to `key`; None if none is similar."""
    import difflib

    found = difflib.get_close_matches(key, list(names), n=1, cutoff=0.6)
    return found[0] if found else None


def _topic_key_remedy(name: str) -> str:
    """What to do about a key that is not a topic key."""
    if name in NODE_OPTIONS:
        of_node = {
            synonym: option.name
            for option in TOPIC_OPTIONS.values()
            for synonym, _ in option.synonyms
        }
        if name in of_node:
            return f"it is a broker key, and the topic key is '{of_node[name]}'"
        return "it is a broker key"
    close = nearest(name, TOPIC_OPTIONS)
    return f"did you mean '{close}'?" if close else "list all keys with `mqd config list`"


def _unknown(key: str) -> str:
    if key in TOPIC_OPTIONS:
        synonyms = TOPIC_OPTIONS[key].synonyms
        remedy = (
            f"for all topics set {synonyms[0][0]}"
            if synonyms
            else "set it when you create or alter the topic"
        )
        return f"{key} is a topic key, not a node key; {remedy}"
    close = nearest(key, NODE_OPTIONS)
    return f"{key} is an unknown key; " + (
        f"did you mean {close}?" if close else "list all keys with `mqd config list`"
    )


def _scaled(value: Value, factor: int) -> Value:
    """A value in the unit of its topic key, such as hours in milliseconds. -1 for a negative
    value, which means no limit.
    """
    if factor == 1 or value is None:
        return value
    assert isinstance(value, int), value
    return -1 if value < 0 else value * factor


def _key_of_variable(variable: str) -> str:
    """MQD_LOG_DIRS is log.dirs; two underscores are one, and three are a hyphen, as in Kafka's
    container images: MQD_LISTENER_NAME_SASL__SSL_SSL_CLIENT_AUTH.
    """
    name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
    for underscores, sign in (("___", "-"), ("__", " "), ("_", "."), (" ", "_")):
        name = name.replace(underscores, sign)
    return name


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


def _warning_of_super_users(text: str) -> str | None:
    """A warning if `text` separates principals with commas. A distinguished name has commas, so it
    is no error.
    """
    import re

    for user in map(str.strip, text.split(";")):
        if re.search(r",\s*User:", user):
            return (
                f"super.users: '{user}' is one principal whose name has commas; separate "
                "principals with semicolons"
            )
    return None


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
