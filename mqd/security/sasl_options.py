"""SASL on one listener, as the configuration describes it. A core.

A value comes from the first of these keys that is set, as in Kafka:

    listener.name.NAME.MECHANISM.KEY     for jaas.config, connections.max.reauth.ms, oauthbearer
    listener.name.NAME.KEY
    KEY
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from mqd.config import ConfigError, NodeConfig, Value
from mqd.option_table import OPTIONS
from mqd.options import INT_MAX
from mqd.security.jaas import (
    OAUTHBEARER_MODULE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    LoginModule,
    parse_login_module,
)
from mqd.security.jaas_tls import RequestTls, is_tls_option, request_tls
from mqd.security.mechanism import MECHANISMS, OAUTHBEARER, PLAIN
from mqd.security.oauthbearer import TokenRules
from mqd.security.plain import users_of
from mqd.security.tls_settings import LOOPBACK_HOSTS

_MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
}
_JAAS_EXAMPLES: Final = {
    PLAIN: f'{PLAIN_MODULE} required user_NAME="...";',
    OAUTHBEARER: f"{OAUTHBEARER_MODULE} required;",
}
_JAAS_EXAMPLE: Final = f"{SCRAM_MODULE} required;"
_BEARER: Final = "org.apache.kafka.common.security.oauthbearer"
_CLASSES: Final = {
    "sasl.server.callback.handler.class": (
        f"{_BEARER}.OAuthBearerValidatorCallbackHandler",
        f"{_BEARER}.secured.OAuthBearerValidatorCallbackHandler",
    ),
    "sasl.oauthbearer.jwt.retriever.class": (f"{_BEARER}.DefaultJwtRetriever",),
    "sasl.oauthbearer.jwt.validator.class": (
        f"{_BEARER}.DefaultJwtValidator",
        f"{_BEARER}.BrokerJwtValidator",
    ),
}
"""Classes of Kafka whose work mqd does for OAUTHBEARER, by the key that names them."""
USERS_FILE_OPTION: Final = "users_file"
"""Of a PlainLoginModule. Apache Kafka ignores it."""
_URL_SCHEMES: Final = ("file://", "https://", "http://")


@dataclass(frozen=True, slots=True)
class KeySetOptions:
    """Where the keys are that verify tokens, and how often they are read."""

    url: str
    refresh_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    tls: RequestTls | None = None
    """TLS of requests for the URL. None: the certificates that the system trusts are trusted."""


@dataclass(frozen=True, slots=True)
class SaslOptions:
    """SASL on one listener."""

    listener: str
    mechanisms: tuple[str, ...]
    """In the order of `sasl.enabled.mechanisms`."""
    passwords: Mapping[str, str] = field(repr=False)
    """Users of PLAIN in the JAAS string."""
    users_file: str | None
    """A file with hashes of the passwords of PLAIN instead (hashed_users.py)."""
    max_reauth_ms: Mapping[str, int]
    """`connections.max.reauth.ms` of each mechanism. 0: no limit."""
    receive_bytes_max: int
    """The largest frame before the end of the authentication. It may be larger than
    `socket.request.max.bytes`, which also applies.
    """
    failure_delay_ms: int
    """How long a failed login waits for its response."""
    token_rules: TokenRules
    key_set: KeySetOptions | None
    """None without OAUTHBEARER, and if only unsigned tokens are accepted."""
    warnings: tuple[str, ...] = ()
    """Messages about options without effect."""


def sasl_options(config: NodeConfig, listener: str) -> SaslOptions:
    """The options of the listener of that name. Raises ConfigError."""
    own = config.of_listener(listener)
    mechanisms = own.strings("sasl.enabled.mechanisms")
    where = f"listener {listener}"
    if not mechanisms:
        raise ConfigError(
            f"{where}: sasl.enabled.mechanisms is empty, and Kafka's default GSSAPI (Kerberos) is "
            f"not supported: set it to some of {', '.join(MECHANISMS)}"
        )
    for mechanism in mechanisms:
        if mechanism not in MECHANISMS:
            raise ConfigError(
                f"{where}: sasl.enabled.mechanisms names '{mechanism}', which is not supported: "
                f"use some of {', '.join(MECHANISMS)}"
            )
        _check_classes(config, listener, mechanism)
    modules = {each: _login_module(config, listener, each) for each in mechanisms}
    plain = modules.get(PLAIN)
    rules = _token_rules(config, listener)
    key_set = None
    if OAUTHBEARER in modules:
        key_set = _key_set(config, listener, rules, modules[OAUTHBEARER])
    receive_bytes_max = own.integer("sasl.server.max.receive.size")
    return SaslOptions(
        listener=listener,
        mechanisms=mechanisms,
        passwords=_passwords(plain, where, listener) if PLAIN in modules else {},
        users_file=None if plain is None else plain.options.get(USERS_FILE_OPTION),
        max_reauth_ms={
            each: _integer(_setting(config, listener, each, "connections.max.reauth.ms"))
            for each in mechanisms
        },
        receive_bytes_max=INT_MAX if receive_bytes_max == -1 else receive_bytes_max,
        failure_delay_ms=own.integer("connection.failed.authentication.delay.ms"),
        token_rules=rules,
        key_set=key_set,
        warnings=_without_effect(listener, modules.get(OAUTHBEARER), key_set),
    )


def _setting(config: NodeConfig, listener: str, mechanism: str, key: str) -> Value:
    """A value for one mechanism. Raises ConfigError."""
    prefixed = f"{mechanism.lower()}.{key}"
    text = config.listener_setting(listener, prefixed)
    if text is None:
        return config.of_listener(listener)[key]
    try:
        return OPTIONS[key].parse(text)
    except ValueError as error:
        raise ConfigError(f"listener.name.{listener.lower()}.{prefixed}: {error}") from None


def _login_module(config: NodeConfig, listener: str, mechanism: str) -> LoginModule | None:
    """The JAAS entry of a mechanism. Raises ConfigError, without the text: it has passwords."""
    key = f"{mechanism.lower()}.sasl.jaas.config"
    text = config.listener_setting(listener, key)
    if text is None:
        return None
    where = f"listener.name.{listener.lower()}.{key}"
    try:
        found = parse_login_module(text)
    except ValueError as error:
        raise ConfigError(
            f"{where}: {error}; write it as {_JAAS_EXAMPLES.get(mechanism, _JAAS_EXAMPLE)}"
        ) from None
    if found.short_name != _MODULES[mechanism]:
        # any other word may be a password in the wrong place
        name = f" '{found.name}'" if found.name.endswith("LoginModule") else ""
        raise ConfigError(
            f"{where} has another login module{name}; {mechanism} needs {_MODULES[mechanism]}"
        )
    return found


def _passwords(module: LoginModule | None, where: str, listener: str) -> dict[str, str]:
    found = {} if module is None else users_of(module.options)
    users_file = None if module is None else module.options.get(USERS_FILE_OPTION)
    if users_file is not None and (found or not users_file):
        raise ConfigError(
            f"{where}: the JAAS string of PLAIN has {USERS_FILE_OPTION} and users, or an empty "
            f"{USERS_FILE_OPTION}: move the users to one file, with `mqd storage hash-password`"
        )
    if not found and users_file is None:
        raise ConfigError(
            f"{where}: PLAIN has no users: set listener.name.{listener.lower()}.plain.sasl.jaas."
            'config=org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="'
            f'...";, or {USERS_FILE_OPTION}="/path/of/a/file" (or use SCRAM-SHA-256, whose users '
            "are in the metadata)"
        )
    for user, password in found.items():
        if not password or "\0" in user + password:
            raise ConfigError(f"{where}: the user '{user}' of PLAIN has an invalid password")
    return found


def _check_classes(config: NodeConfig, listener: str, mechanism: str) -> None:
    """Raises ConfigError for a class whose work mqd does not do."""
    for key, known in _CLASSES.items():
        prefixed = f"{mechanism.lower()}.{key}"
        name = config.listener_setting(listener, prefixed)
        is_known = mechanism == OAUTHBEARER and str(name).strip() in known
        if name is not None and not is_known:
            raise ConfigError(
                f"listener.name.{listener.lower()}.{prefixed} names the class '{name}', and mqd "
                "runs no Java classes: remove it, and use SCRAM or OAUTHBEARER"
            )


def _token_rules(config: NodeConfig, listener: str) -> TokenRules:
    def value(key: str) -> Value:
        return _setting(config, listener, OAUTHBEARER, key)

    audiences, issuer, subject = (
        value("sasl.oauthbearer.expected.audience"),
        value("sasl.oauthbearer.expected.issuer"),
        value("sasl.oauthbearer.sub.claim.name"),
    )
    assert isinstance(audiences, tuple) and isinstance(subject, str)
    return TokenRules(
        audiences=audiences,
        issuer=None if issuer is None else str(issuer),
        subject_claim=subject,
        skew_seconds=_integer(value("sasl.oauthbearer.clock.skew.seconds")),
        allows_unsigned=bool(value("sasl.oauthbearer.allow.unsigned.tokens")),
    )


def _without_effect(
    listener: str, module: LoginModule | None, key_set: KeySetOptions | None
) -> tuple[str, ...]:
    """Warnings of the options of OAUTHBEARER. Names of options are no passwords: the JAAS string is
    well-formed.
    """
    if module is None:
        return ()
    where = f"listener.name.{listener.lower()}.oauthbearer.sasl.jaas.config"
    has_url = key_set is not None and not key_set.url.startswith("file://")
    found = []
    for key in module.options:
        if not is_tls_option(key):
            found.append(f"{where}: the option {key} has no effect")
        elif not has_url:
            found.append(
                f"{where}: the option {key} has no effect: the key set is not at an https:// "
                "address"
            )
    return tuple(found)


def _key_set(
    config: NodeConfig, listener: str, rules: TokenRules, module: LoginModule | None
) -> KeySetOptions | None:
    def value(key: str) -> Value:
        return _setting(config, listener, OAUTHBEARER, key)

    url = value("sasl.oauthbearer.jwks.endpoint.url")
    if url is None and rules.allows_unsigned:
        return None
    if url is None:
        raise ConfigError(
            f"listener {listener}: OAUTHBEARER needs the keys that verify tokens: set "
            "sasl.oauthbearer.jwks.endpoint.url to a file:// or https:// address"
        )
    text = str(url)
    if not text.startswith(_URL_SCHEMES):
        raise ConfigError(
            f"listener {listener}: sasl.oauthbearer.jwks.endpoint.url is '{text}': expected a "
            "file:// or https:// address"
        )
    if text.startswith("http://") and _host_of(text) not in LOOPBACK_HOSTS:
        raise ConfigError(
            f"listener {listener}: sasl.oauthbearer.jwks.endpoint.url is '{text}': without TLS, an "
            "attacker on the network can replace the keys; use https://"
        )
    return KeySetOptions(
        url=text,
        refresh_ms=_integer(value("sasl.oauthbearer.jwks.endpoint.refresh.ms")),
        retry_backoff_ms=_integer(value("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms")),
        retry_backoff_max_ms=_integer(value("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms")),
        tls=None
        if module is None
        else request_tls(
            module.options,
            where=f"listener.name.{listener.lower()}.oauthbearer.sasl.jaas.config: ",
        ),
    )


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _integer(value: Value) -> int:
    assert isinstance(value, int) and not isinstance(value, bool)
    return value
