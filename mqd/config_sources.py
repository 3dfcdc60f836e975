"""Reads the settings of a node from a file, the environment and the command line.

A `SettingsReader` collects settings in the order in which they override one another. It does not
log: problems that do not prevent the start are in `warnings`. `config.py` makes a NodeConfig of
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from mqd.file_modes import others_can_read, remedy_for
from mqd.option_table import NODE_OPTIONS, TOPIC_OPTIONS
from mqd.options import INT_MAX, ConfigError, Status, Value, nearest

ENVIRONMENT_PREFIX = "MQD_"
LISTENER_PREFIX = "listener.name."
PEER_LISTENER_NAME = "peer"
"""The peer listener in `listener.name.peer.*`."""
DEFAULT_LISTENER = "PLAINTEXT"
"""The listener for clients, if `listeners` is not set."""
MECHANISM_PREFIXES = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "gssapi")
"""SASL mechanisms in `listener.name.NAME.MECHANISM.KEY`."""


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


LISTENER_OPTIONS = {
    "max.connections": NODE_OPTIONS["max.connections"]._replace(default=INT_MAX, minimum=0)
}
"""Node keys with other bounds in `listener.name.NAME.KEY`, as in Kafka."""


class SettingsReader:
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

    def read(
        self, file: Path | None, environment: Mapping[str, str], overrides: Mapping[str, str]
    ) -> None:
        """Read all sources. Raises ConfigError."""
        if file is not None:
            self._read_file(file)
        for variable, text in sorted(environment.items()):
            if variable.startswith(ENVIRONMENT_PREFIX):
                key = _key_of_variable(variable)
                self._set(key, text, Source.ENVIRONMENT, f"environment variable {variable}: ")
        for key, text in overrides.items():
            self._set(key, text, Source.COMMAND_LINE, "-o ")
        self._check_listener_names()
        of_super_users = _warning_of_super_users(str(self.values.get("super.users", "")))
        if of_super_users is not None:
            self.warnings.append(of_super_users)

    def _read_file(self, file: Path) -> None:
        from mqd.config_file import read_config_file

        for setting in read_config_file(file):
            line = "" if setting.line is None else f", line {setting.line}"
            self._set(setting.key, setting.value, Source.FILE, f"{file}{line}: ")
        if self._has_secrets and others_can_read(file):
            self.warnings.append(
                f"users other than the owner can read {file}, which has passwords or keys: "
                f"{remedy_for(file)}"
            )

    def _check_listener_names(self) -> None:
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
    def _has_secrets(self) -> bool:
        """Whether some key that was set so far has a secret value."""
        own = any(NODE_OPTIONS[key].sensitive for key in self.values)
        return own or any(
            (option := NODE_OPTIONS.get(_without_mechanism(key))) is not None and option.sensitive
            for settings in self.listener_settings.values()
            for key in settings
        )

    def _set(self, key: str, text: str, source: Source, where: str) -> None:
        """Set a key. `where` precedes it in messages: "server.properties, line 3: " or "-o "."""
        option = NODE_OPTIONS.get(key)
        if option is None and key.startswith(LISTENER_PREFIX):
            name, _, listener_key = key.removeprefix(LISTENER_PREFIX).partition(".")
            self.listener_settings.setdefault(name.lower(), {})[listener_key] = text
            self.places[f"{LISTENER_PREFIX}{name.lower()}.{listener_key}"] = where.rstrip(": ")
            self._listener_places.append((name.lower(), listener_key, where))
            option = LISTENER_OPTIONS.get(listener_key, NODE_OPTIONS.get(listener_key))
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
                f"{where}'{key}' is not supported: {option.note}; remove it to start the node"
            )
        if option.status is Status.IGNORED:
            self.warnings.append(f"{where}'{key}' is ignored: {option.note}")
        elif option.effective_maximum is not None and (loss := option.loss(value)) is not None:
            self.warnings.append(f"{where}'{key}': {loss}")
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
    return f"'{key}' is an unknown key; did you mean '{LISTENER_PREFIX}{name}.{close}'?"


def _unknown(key: str) -> str:
    if key in TOPIC_OPTIONS:
        synonyms = TOPIC_OPTIONS[key].synonyms
        remedy = (
            f"for all topics set '{synonyms[0][0]}'"
            if synonyms
            else "set it when you create or alter the topic"
        )
        return f"'{key}' is a topic key, not a node key; {remedy}"
    close = nearest(key, NODE_OPTIONS)
    return f"'{key}' is an unknown key; " + (
        f"did you mean '{close}'?" if close else "list all keys with `mqd config list`"
    )


def _key_of_variable(variable: str) -> str:
    """MQD_LOG_DIRS is log.dirs; two underscores are one, and three are a hyphen, as in Kafka's
    container images: MQD_LISTENER_NAME_SASL__SSL_SSL_CLIENT_AUTH.
    """
    name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
    for underscores, sign in (("___", "-"), ("__", " "), ("_", "."), (" ", "_")):
        name = name.replace(underscores, sign)
    return name


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
