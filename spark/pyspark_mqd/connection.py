"""Connections out of Spark options: Kafka's client names, with or without the prefix `kafka.`.

The reading of options is pure. `client_for` gives each process one blocking client a set of
options. A process that was forked gets a client of its own: threads do not survive a fork.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mqd.client.client_properties import is_security_key, security_of
from mqd.client.errors import AuthenticationFailed, ClientError, TlsHandshakeFailed
from mqd.errors import ErrorCode

from .errors import ConnectorError, OptionError, shortened
from .option_values import INT_MAX, whole

if TYPE_CHECKING:
    from mqd.client.sync import BlockingClient

logger = logging.getLogger("pyspark_mqd")

PREFIX = "kafka."
BOOTSTRAP = "bootstrap.servers"
DEFAULT_CLIENT_ID = "mqd-spark"
DEFAULT_REQUEST_TIMEOUT_MS = 30_000
DEFAULT_API_TIMEOUT_MS = 60_000
DEFAULT_CONNECT_TIMEOUT_MS = 10_000
_CLOSE_SECONDS = 5.0


class Unreachable(ConnectorError):
    """No broker has responded for `kafka.default.api.timeout.ms`."""


HONOURED = frozenset(
    {
        BOOTSTRAP,
        "client.id",
        "request.timeout.ms",
        "default.api.timeout.ms",
        "max.block.ms",
        "socket.connection.setup.timeout.ms",
        "security.protocol",
        "group.id",
        "isolation.level",
        "fetch.max.bytes",
    }
)
"""Client names that the connector acts upon, beside those of the sink."""


def lowered(options: Mapping[str, str]) -> dict[str, str]:
    """Options by lower-case name: Spark's are case-insensitive."""
    return {key.lower(): value for key, value in options.items()}


def client_name(options: Mapping[str, str], name: str) -> str | None:
    """The value of one of Kafka's client names; the form with the prefix wins."""
    value = options.get(PREFIX + name)
    return options.get(name) if value is None else value


def whole_number(options: Mapping[str, str], name: str, shown: str, default: int) -> int:
    """A client name that is a positive number, at most 2^31 - 1. Raises OptionError."""
    text = client_name(options, name)
    if text is None:
        return default
    value = whole(text)
    if value is None or value <= 0:
        raise OptionError(
            f"Option '{shown}' must be a positive whole number, but it is '{shortened(text)}'."
        )
    return min(value, INT_MAX)


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a cluster. Hashable: one client a process and value."""

    bootstrap: str
    client_id: str = DEFAULT_CLIENT_ID
    request_timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS
    api_timeout_ms: int = DEFAULT_API_TIMEOUT_MS
    connect_timeout_ms: int = DEFAULT_CONNECT_TIMEOUT_MS
    security: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Kafka's client properties for TLS and login, sorted. They contain passwords."""

    def client_options(self) -> dict[str, Any]:
        """Arguments of `mqd.client.connect`, beside the addresses."""
        return {
            "client_id": self.client_id,
            "request_timeout_s": self.request_timeout_ms / 1000,
            "connect_timeout_s": self.connect_timeout_ms / 1000,
            "security": security_of(dict(self.security)) if self.security else None,
        }


def connection_of(options: Mapping[str, str]) -> Connection:
    """The connection that Spark options describe. Raises OptionError."""
    options = lowered(options)
    bootstrap = client_name(options, BOOTSTRAP)
    if not (bootstrap or "").strip():
        raise OptionError(
            "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer "
            "or producer, for example 'host1:9092,host2:9092'."
        )
    api_timeout = "default.api.timeout.ms"
    if client_name(options, api_timeout) is None and client_name(options, "max.block.ms"):
        api_timeout = "max.block.ms"
    return Connection(
        bootstrap=(bootstrap or "").strip(),
        client_id=client_name(options, "client.id") or DEFAULT_CLIENT_ID,
        request_timeout_ms=whole_number(
            options, "request.timeout.ms", "kafka.request.timeout.ms", DEFAULT_REQUEST_TIMEOUT_MS
        ),
        api_timeout_ms=whole_number(
            options, api_timeout, PREFIX + api_timeout, DEFAULT_API_TIMEOUT_MS
        ),
        connect_timeout_ms=whole_number(
            options,
            "socket.connection.setup.timeout.ms",
            "kafka.socket.connection.setup.timeout.ms",
            DEFAULT_CONNECT_TIMEOUT_MS,
        ),
        security=_security(options),
    )


def _security(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The properties for TLS and login, without the prefix. Raises OptionError, also for one that
    is unknown: security is never left out.
    """
    found: dict[str, str] = {}
    for key in sorted(options, key=lambda key: key.startswith(PREFIX)):  # the prefix wins
        if is_security_key(name := key.removeprefix(PREFIX)):
            found[name] = options[key]
    try:
        security_of(found)
    except ClientError as error:
        raise OptionError(
            f"The options for TLS and login ('kafka.security.protocol', 'kafka.sasl.*', "
            f"'kafka.ssl.*') are invalid: {error.message}. Correct them: {error.remedy}."
        ) from None
    return tuple(sorted(found.items()))


def unused_names(options: Mapping[str, str], honoured: frozenset[str] = HONOURED) -> list[str]:
    """`kafka.*` options without an effect, for one line of log."""
    return sorted(
        key
        for key in lowered(options)
        if key.startswith(PREFIX)
        and (name := key.removeprefix(PREFIX)) not in honoured
        and not is_security_key(name)
    )


# -- one client a process


class _Held:
    """A client that one thread keeps open until the process ends."""

    def __init__(self, connection: Connection) -> None:
        self.client: BlockingClient | None = None
        self._connection = connection
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._close = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mqd-spark-client", daemon=True)

    def open(self) -> BlockingClient:
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        assert self.client is not None
        return self.client

    def _run(self) -> None:
        try:
            from mqd.client import sync  # inside: a failed import must reach `open`

            with sync.connect(
                self._connection.bootstrap,
                timeout_s=self._connection.api_timeout_ms / 1000,
                wait_s=self._connection.api_timeout_ms / 1000,
                **self._connection.client_options(),
            ) as client:
                self.client = client
                self._ready.set()
                self._close.wait()
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self._close.set()
        self._thread.join(_CLOSE_SECONDS)


_lock = threading.Lock()
_clients: dict[tuple[int, Connection], _Held] = {}
"""(process id, connection) -> its client. Entries of a parent process are kept and never used."""


def client_for(options: Mapping[str, str] | Connection) -> BlockingClient:
    """This process's client for these options, connected when it is first needed.

    Raises OptionError, and Unreachable if no broker responds.
    """
    connection = options if isinstance(options, Connection) else connection_of(options)
    with _lock:
        place = (os.getpid(), connection)
        held = _clients.get(place)
        if held is not None and held.alive() and held.client is not None:
            return held.client
        held = _Held(connection)
        try:
            client = held.open()
        except ClientError as error:
            raise _unconnected(connection.bootstrap, error) from error
        _clients[place] = held
        return client


def _unconnected(bootstrap: str, error: ClientError) -> ConnectorError:
    shown, reason = shortened(bootstrap), error.message.rstrip(".")
    if error.code is ErrorCode.INVALID_REQUEST:
        return OptionError(
            f"Option 'kafka.bootstrap.servers' is '{shown}', but {reason}. "
            "Write 'host:port', or several of them with commas."
        )
    if isinstance(error, AuthenticationFailed | TlsHandshakeFailed):
        remedy = f" {error.remedy[:1].upper()}{error.remedy[1:]}." if error.remedy else ""
        return ConnectorError(f"The brokers of '{shown}' refuse the connection: {reason}.{remedy}")
    return Unreachable(
        f"No broker of option 'kafka.bootstrap.servers' ('{shown}') answers: {reason}. Start the "
        "brokers, or correct the option; the driver and every worker must reach them."
    )


def close_clients() -> None:
    """Close the clients of this process. The next `client_for` connects again."""
    with _lock:
        own = [place for place in _clients if place[0] == os.getpid()]
        for place in own:
            _clients.pop(place).close()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # the parent may have held it


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close_clients)
