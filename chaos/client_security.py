"""The security of clients, in the names of each client library.

A run writes Kafka's client properties to one file (chaos/cluster_security.py). Processes of the run
read it with `load`, as `mqctl --command-config` does.
"""

from __future__ import annotations

import inspect
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiokafka.abc import AbstractTokenProvider

from mqd.client.client_properties import read_client_properties, security_of
from mqd.client.security import Security

TOKEN_LIFETIME_S = 300
"""librdkafka asks for another token before this time has passed."""
PLAINTEXT = Security()


def load(command_config: Path | None) -> Security:
    """The security in a file of client properties; without a file, PLAINTEXT."""
    if command_config is None:
        return PLAINTEXT
    return security_of(read_client_properties(command_config))


def librdkafka_options(security: Security) -> dict[str, Any]:
    """For confluent-kafka. Empty for PLAINTEXT."""
    if security == PLAINTEXT:
        return {}
    options: dict[str, Any] = {"security.protocol": security.protocol}
    if security.ca is not None:
        options["ssl.ca.location"] = str(security.ca)
    if security.mechanism is not None:
        options["sasl.mechanism"] = security.mechanism
    if security.token is not None:
        options["oauth_cb"] = lambda _: (_token(security), time.time() + TOKEN_LIFETIME_S)
    elif security.has_sasl:
        options |= {"sasl.username": security.username, "sasl.password": security.password}
    return options


def aiokafka_options(security: Security) -> dict[str, Any]:
    """For aiokafka. Empty for PLAINTEXT."""
    return _python_options(security, _TokenProvider)


def kafka_python_options(security: Security) -> dict[str, Any]:
    """For kafka-python. Empty for PLAINTEXT."""
    return _python_options(security, _blocking_token_provider)


def _python_options(security: Security, provider: Callable[[Security], Any]) -> dict[str, Any]:
    if security == PLAINTEXT:
        return {}
    options: dict[str, Any] = {"security_protocol": security.protocol}
    if security.has_tls:
        options["ssl_context"] = ssl.create_default_context(cafile=str(security.ca))
    if security.has_sasl:
        options["sasl_mechanism"] = security.mechanism
    if security.token is not None:
        options["sasl_oauth_token_provider"] = provider(security)
    elif security.has_sasl:
        options["sasl_plain_username"] = security.username
        options["sasl_plain_password"] = security.password
    return options


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, security: Security) -> None:
        self._security = security

    async def token(self) -> str:
        return _token(self._security)


def _blocking_token_provider(security: Security) -> Any:
    # imported here: other programs need neither the import nor its warning
    from kafka.net.sasl.oauth import AbstractTokenProvider as BlockingProvider

    class Provider(BlockingProvider):  # type: ignore[misc]
        def token(self) -> str:
            return _token(security)

    return Provider()


def _token(security: Security) -> str:
    assert security.token is not None
    token = security.token() if callable(security.token) else security.token
    assert not inspect.isawaitable(token), "tokens of a run are in a file"
    return token
